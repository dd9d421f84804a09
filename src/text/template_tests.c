/* Jinja's tests: what may follow `is`. */
#include "text/template_impl.h"

#include <math.h>
#include <string.h>

typedef bool predicate(tpl_value value);

static bool answer(tpl_value *out, bool yes)
{
    *out = pm_tpl_bool(yes);
    return true;
}

/* Tests that only look at the value. */
#define TEST(name, condition)                                                                                          \
    static bool test_##name(tpl_run *run, const tpl_call *call, tpl_value *out)                                        \
    {                                                                                                                  \
        tpl_value v = call->self;                                                                                      \
        (void)run;                                                                                                     \
        return answer(out, condition);                                                                                 \
    }

TEST(defined, v.kind != TPL_UNDEFINED)
TEST(undefined, v.kind == TPL_UNDEFINED)
TEST(none, v.kind == TPL_NONE)
TEST(boolean, v.kind == TPL_BOOL)
TEST(true, v.kind == TPL_BOOL && v.b)
TEST(false, v.kind == TPL_BOOL && !v.b)
TEST(integer, v.kind == TPL_INT)
TEST(float, v.kind == TPL_FLOAT)
TEST(number, pm_tpl_is_number(v))
TEST(string, v.kind == TPL_STR)
TEST(mapping, v.kind == TPL_DICT)
TEST(iterable, pm_tpl_iterable(v))
TEST(escaped, v.kind == TPL_STR && v.s->markup)
TEST(callable, v.kind == TPL_UNDEFINED || v.kind >= TPL_LOOP)
TEST(sequence, v.kind == TPL_UNDEFINED || v.kind == TPL_STR || v.kind == TPL_DICT ||
                   (v.kind == TPL_SEQ && v.seq->flavour != TPL_VIEW && v.seq->flavour != TPL_GENERATOR))

static bool is_case(tpl_run *run, const tpl_call *call, bool upper, tpl_value *out)
{
    tpl_value text;
    return pm_tpl_str(run, call->self, &text) && pm_tpl_step(run, text.s->len / 4) &&
           answer(out, pm_tpl_is_case(text.s, upper));
}

static bool test_lower(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    return is_case(run, call, false, out);
}

static bool test_upper(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    return is_case(run, call, true, out);
}

static bool test_remainder(tpl_run *run, tpl_value value, tpl_value divisor, int wanted, tpl_value *out)
{
    tpl_value rest;
    return pm_tpl_binary(run, TPL_MOD, value, divisor, &rest) &&
           answer(out, pm_tpl_equal(run, rest, pm_tpl_int(wanted, 1)));
}

static bool test_odd(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    return test_remainder(run, call->self, pm_tpl_int(2, 1), 1, out);
}

static bool test_even(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    return test_remainder(run, call->self, pm_tpl_int(2, 1), 0, out);
}

static bool test_divisibleby(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    return test_remainder(run, call->self, call->arg[0], 0, out);
}

static bool test_in(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    bool yes;
    return pm_tpl_contains(run, call->arg[0], call->self, &yes) && answer(out, yes);
}

/* The same object. Small values are the same when they are equal and of one type. */
static bool test_sameas(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    tpl_value a = call->self, b = call->arg[0];
    bool same = a.kind == b.kind;
    (void)run;
    if (same && (a.kind == TPL_SEQ || a.kind == TPL_DICT))
        same = a.seq == b.seq;
    else if (same)
        same = pm_tpl_equal(run, a, b);
    return answer(out, same);
}

static bool test_eq(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    return pm_tpl_step(run, 1) && answer(out, pm_tpl_equal(run, call->self, call->arg[0]));
}

static bool test_ne(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    return pm_tpl_step(run, 1) && answer(out, !pm_tpl_equal(run, call->self, call->arg[0]));
}

static bool test_lt(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    int order;
    return pm_tpl_order(run, call->self, call->arg[0], "<", &order) && answer(out, order < 0);
}

static bool test_le(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    int order;
    return pm_tpl_order(run, call->self, call->arg[0], "<=", &order) && answer(out, order <= 0);
}

static bool test_gt(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    int order;
    return pm_tpl_order(run, call->self, call->arg[0], ">", &order) && answer(out, order == 1);
}

static bool test_ge(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    int order;
    return pm_tpl_order(run, call->self, call->arg[0], ">=", &order) && answer(out, order == 0 || order == 1);
}

/* 'name' is filter, 'name' is test */
static bool known(tpl_run *run, const tpl_call *call, const tpl_builtin *(*find)(const char *), tpl_value *out)
{
    if (!pm_tpl_hashable(call->self))
        return pm_tpl_fail(run, PM_ERR_INVALID, "%s: needs a name, not a %s", call->name, pm_tpl_type(call->self));
    char name[64] = "";
    if (call->self.kind == TPL_STR && call->self.s->len < sizeof(name))
        memcpy(name, call->self.s->data, call->self.s->len);
    return answer(out, find(name) != NULL);
}

static bool test_filter(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    return known(run, call, pm_tpl_filter, out);
}

static bool test_test(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    return known(run, call, pm_tpl_test, out);
}

static const tpl_builtin tests[] = {{"defined", test_defined, 0, {NULL}},
                                    {"undefined", test_undefined, 0, {NULL}},
                                    {"none", test_none, 0, {NULL}},
                                    {"string", test_string, 0, {NULL}},
                                    {"mapping", test_mapping, 0, {NULL}},
                                    {"iterable", test_iterable, 0, {NULL}},
                                    {"sequence", test_sequence, 0, {NULL}},
                                    {"boolean", test_boolean, 0, {NULL}},
                                    {"true", test_true, 0, {NULL}},
                                    {"false", test_false, 0, {NULL}},
                                    {"integer", test_integer, 0, {NULL}},
                                    {"float", test_float, 0, {NULL}},
                                    {"number", test_number, 0, {NULL}},
                                    {"callable", test_callable, 0, {NULL}},
                                    {"escaped", test_escaped, 0, {NULL}},
                                    {"lower", test_lower, 0, {NULL}},
                                    {"upper", test_upper, 0, {NULL}},
                                    {"odd", test_odd, 0, {NULL}},
                                    {"even", test_even, 0, {NULL}},
                                    {"divisibleby", test_divisibleby, 1, {"num"}},
                                    {"in", test_in, 1, {"seq"}},
                                    {"sameas", test_sameas, 1, {"other"}},
                                    {"filter", test_filter, 0, {NULL}},
                                    {"test", test_test, 0, {NULL}},
                                    {"==", test_eq, 1, {""}},
                                    {"eq", test_eq, 1, {""}},
                                    {"equalto", test_eq, 1, {""}},
                                    {"!=", test_ne, 1, {""}},
                                    {"ne", test_ne, 1, {""}},
                                    {"<", test_lt, 1, {""}},
                                    {"lt", test_lt, 1, {""}},
                                    {"lessthan", test_lt, 1, {""}},
                                    {"<=", test_le, 1, {""}},
                                    {"le", test_le, 1, {""}},
                                    {">", test_gt, 1, {""}},
                                    {"gt", test_gt, 1, {""}},
                                    {"greaterthan", test_gt, 1, {""}},
                                    {">=", test_ge, 1, {""}},
                                    {"ge", test_ge, 1, {""}}};

const tpl_builtin *pm_tpl_test(const char *name)
{
    for (size_t i = 0; i < PM_COUNT(tests); i++)
        if (!strcmp(tests[i].name, name))
            return &tests[i];
    return NULL;
}
