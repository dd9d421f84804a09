/* The evaluator: walks the tree, writes the output. Scopes are as in Jinja: the bodies of loops, macros, call, with,
 * set and filter blocks have their own; if has none. */
#include "text/template_impl.h"

#include <stdlib.h>
#include <string.h>

typedef enum flow { FLOW_FAIL, FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE } flow;

static bool eval(tpl_run *run, const tpl_node *node, tpl_scope *scope, tpl_value *out);
static flow execute(tpl_run *run, const tpl_block *body, tpl_scope *scope);

static bool enter(tpl_run *run)
{
    if (++run->depth <= TPL_MAX_DEPTH)
        return pm_tpl_step(run, 1);
    return pm_tpl_fail(run, PM_ERR_INVALID, "evaluation is nested more than %d deep", TPL_MAX_DEPTH);
}

/* ---- variables ---- */

static tpl_value lookup(tpl_run *run, const tpl_scope *scope, int name)
{
    for (; scope; scope = scope->parent) {
        for (size_t i = 0; i < scope->n; i++)
            if (scope->vars[i].name == name)
                return scope->vars[i].value;
        pm_tpl_step(run, scope->n / 16);
    }
    return run->context[name];
}

static bool set(tpl_run *run, tpl_scope *scope, int name, tpl_value value)
{
    for (size_t i = 0; i < scope->n; i++) {
        if (scope->vars[i].name == name) {
            scope->vars[i].value = value;
            return true;
        }
    }
    if (!pm_tpl_step(run, scope->n / 16))
        return false;
    if (scope->n == scope->cap) {
        size_t cap = scope->cap ? scope->cap * 2 : 4;
        tpl_binding *vars = pm_tpl_new(run, cap, sizeof(*vars));
        if (!vars)
            return false;
        if (scope->n)
            memcpy(vars, scope->vars, scope->n * sizeof(*vars));
        scope->vars = vars;
        scope->cap = cap;
    }
    scope->vars[scope->n++] = (tpl_binding){name, value};
    return true;
}

/* Hides what a name is outside. */
static bool unset(tpl_run *run, tpl_scope *scope, int name)
{
    tpl_value value;
    return run->context[name].kind == TPL_UNDEFINED ||
           (pm_tpl_undefined(run, NULL, NULL, run->tmpl->names[name], &value) && set(run, scope, name, value));
}

static bool set_namespace(tpl_run *run, const tpl_node *target, tpl_scope *scope, tpl_value value)
{
    tpl_value ns = lookup(run, scope, target->name);
    if (ns.kind != TPL_NAMESPACE)
        return pm_tpl_fail(run, PM_ERR_INVALID, "cannot assign an attribute of '%s', which is no namespace",
                           run->tmpl->names[target->name]);
    if (target->value.s->data[0] == '_')
        return pm_tpl_fail(run, PM_ERR_INVALID, "a namespace may not hold names that begin with '_'");
    return pm_tpl_dict_set(run, ns.dict, target->value, value);
}

static bool assign(tpl_run *run, const tpl_node *target, tpl_scope *scope, tpl_value value)
{
    if (target->kind == TPL_N_NAME)
        return set(run, scope, target->name, value);
    if (target->kind == TPL_N_NS_ATTR)
        return set_namespace(run, target, scope, value);
    tpl_value *items = NULL;
    size_t n, wanted = target->items.n;
    if (!pm_tpl_items(run, value, &items, &n))
        return false;
    if (n != wanted)
        return pm_tpl_fail(run, PM_ERR_INVALID, "%zu values cannot be unpacked into %zu names", n, wanted);
    for (size_t i = 0; i < n; i++)
        if (!assign(run, target->items.items[i], scope, items[i]))
            return false;
    return true;
}

/* ---- calls ---- */

static bool eval_star(tpl_run *run, const tpl_node *node, tpl_scope *scope, tpl_value **items, size_t *n)
{
    tpl_value value;
    *n = 0;
    return !node || (eval(run, node, scope, &value) && pm_tpl_items(run, value, items, n));
}

/* **mapping: its keys must be strings. */
static bool eval_star_star(tpl_run *run, const tpl_node *node, tpl_scope *scope, tpl_dict **out)
{
    tpl_value value;
    *out = NULL;
    if (!node)
        return true;
    if (!eval(run, node, scope, &value))
        return false;
    if (value.kind != TPL_DICT)
        return pm_tpl_fail(run, PM_ERR_INVALID, "** needs a mapping, not a %s", pm_tpl_type(value));
    *out = value.dict;
    return true;
}

static bool add_keyword(tpl_run *run, tpl_args *args, const char *name, tpl_value value)
{
    for (size_t i = 0; i < args->n_kw; i++)
        if (!strcmp(args->kw[i].name, name))
            return pm_tpl_fail(run, PM_ERR_INVALID, "argument '%s' is given twice", name);
    args->kw[args->n_kw++] = (tpl_keyword){name, value};
    return true;
}

/* Evaluates arguments, leaving room for one more with a name. */
static bool eval_args(tpl_run *run, const tpl_arguments *in, tpl_scope *scope, tpl_args *out)
{
    tpl_value *star = NULL;
    tpl_dict *dict;
    size_t n_star;
    *out = (tpl_args){0};
    if (!in->n && !in->n_kw && !in->star && !in->star_star)
        return (out->kw = pm_tpl_new(run, 1, sizeof(*out->kw))) != NULL;
    tpl_value *pos = pm_tpl_new(run, in->n, sizeof(*pos));
    if (!pos)
        return false;
    for (size_t i = 0; i < in->n; i++)
        if (!eval(run, in->pos[i], scope, &pos[i]))
            return false;
    tpl_value *named = pm_tpl_new(run, in->n_kw, sizeof(*named));
    if (!named)
        return false;
    for (size_t i = 0; i < in->n_kw; i++)
        if (!eval(run, in->kw[i], scope, &named[i]))
            return false;
    if (!eval_star(run, in->star, scope, &star, &n_star) || !eval_star_star(run, in->star_star, scope, &dict))
        return false;
    out->pos = pos;
    out->n = in->n;
    if (n_star) {
        if (!(out->pos = pm_tpl_new(run, in->n + n_star, sizeof(*pos))))
            return false;
        if (in->n)
            memcpy(out->pos, pos, in->n * sizeof(*pos));
        memcpy(out->pos + in->n, star, n_star * sizeof(*pos));
        out->n += n_star;
    }
    if (!(out->kw = pm_tpl_new(run, in->n_kw + (dict ? dict->n : 0) + 1, sizeof(*out->kw))))
        return false;
    for (size_t i = 0; i < in->n_kw; i++)
        if (!add_keyword(run, out, in->kw_names[i], named[i]))
            return false;
    for (size_t i = 0; dict && i < dict->n; i++) {
        const tpl_value key = dict->keys[i];
        char *name = key.kind == TPL_STR ? pm_tpl_new(run, key.s->len + 1, 1) : NULL;
        if (!name)
            return run->status == PM_OK && pm_tpl_fail(run, PM_ERR_INVALID, "** needs keys that are strings");
        memcpy(name, key.s->data, key.s->len);
        if (!add_keyword(run, out, name, dict->values[i]))
            return false;
    }
    return true;
}

/* Binds arguments to the parameters of a builtin. A parameter called "" cannot be given by name. */
static bool bind(tpl_run *run, const tpl_builtin *builtin, const tpl_args *args, tpl_call *call)
{
    int n_params = 0;
    while (n_params < TPL_MAX_PARAMS && builtin->params[n_params])
        n_params++;
    if (args->n > (size_t)n_params)
        return pm_tpl_fail(run, PM_ERR_INVALID, "%s takes at most %d arguments, not %zu", builtin->name, n_params,
                           args->n);
    for (size_t i = 0; i < args->n; i++)
        call->arg[i] = args->pos[i];
    for (size_t k = 0; k < args->n_kw; k++) {
        int i = 0;
        while (i < n_params && (!*builtin->params[i] || strcmp(builtin->params[i], args->kw[k].name) != 0))
            i++;
        if (i == n_params)
            return pm_tpl_fail(run, PM_ERR_INVALID, "%s has no argument '%s'", builtin->name, args->kw[k].name);
        if (call->arg[i].kind != TPL_MISSING)
            return pm_tpl_fail(run, PM_ERR_INVALID, "%s: argument '%s' is given twice", builtin->name,
                               args->kw[k].name);
        call->arg[i] = args->kw[k].value;
    }
    for (int i = 0; i < builtin->required; i++)
        if (call->arg[i].kind == TPL_MISSING)
            return pm_tpl_fail(run, PM_ERR_INVALID, "%s needs %d arguments", builtin->name, builtin->required);
    return true;
}

bool pm_tpl_call_builtin(tpl_run *run, const tpl_builtin *builtin, tpl_value self, const tpl_args *args, tpl_value *out)
{
    tpl_call call = {.self = self, .args = args, .name = builtin->name};
    if (!builtin->call)
        return pm_tpl_fail(run, PM_ERR_UNSUPPORTED, "'%s' of %s is not supported", builtin->name, pm_tpl_type(self));
    if (builtin->required >= 0 && !bind(run, builtin, args, &call))
        return false;
    return pm_tpl_step(run, 1) && builtin->call(run, &call, out) && run->status == PM_OK;
}

/* The value given for a parameter by name, taken out of `args`. */
static bool take_keyword(tpl_args *args, const char *name, tpl_value *out)
{
    for (size_t i = 0; i < args->n_kw; i++) {
        if (strcmp(args->kw[i].name, name) != 0)
            continue;
        *out = args->kw[i].value;
        memmove(&args->kw[i], &args->kw[i + 1], (args->n_kw - i - 1) * sizeof(*args->kw));
        args->n_kw--;
        return true;
    }
    return false;
}

static const char *name_of(const tpl_macro *macro)
{
    return macro->name ? macro->name : "caller";
}

/* Parameters first, then the special names that the body uses. */
static bool bind_macro(tpl_run *run, const tpl_macro *macro, tpl_args *args, tpl_scope *scope)
{
    tpl_value value;
    for (size_t i = 0; i < macro->n; i++) {
        const char *name = run->tmpl->names[macro->params[i]];
        if (i < args->n)
            value = args->pos[i];
        else if (!take_keyword(args, name, &value) &&
                 !(macro->defaults[i]
                       ? eval(run, macro->defaults[i], scope, &value)
                       : pm_tpl_undefined(run, "a parameter of a macro was not given", NULL, name, &value)))
            return false;
        if (!set(run, scope, macro->params[i], value))
            return false;
    }
    if (macro->caller) {
        if (!take_keyword(args, "caller", &value) &&
            !pm_tpl_undefined(run, "no caller is defined", NULL, "caller", &value))
            return false;
        if (!set(run, scope, TPL_NAME_CALLER, value))
            return false;
    }
    if (macro->kwargs) {
        if (!pm_tpl_dict_new(run, TPL_DICT, args->n_kw, 1, &value))
            return false;
        for (size_t i = 0; i < args->n_kw; i++) {
            tpl_value key;
            if (!pm_tpl_text(run, args->kw[i].name, strlen(args->kw[i].name), 1, &key) ||
                !pm_tpl_dict_set(run, value.dict, key, args->kw[i].value))
                return false;
        }
        if (!set(run, scope, TPL_NAME_KWARGS, value))
            return false;
    } else if (args->n_kw) {
        return pm_tpl_fail(run, PM_ERR_INVALID, "macro '%s' has no argument '%s'", name_of(macro), args->kw[0].name);
    }
    if (macro->varargs) {
        if (!pm_tpl_seq_new(run, TPL_TUPLE, 0, 1, &value))
            return false;
        for (size_t i = macro->n; i < args->n; i++)
            if (!pm_tpl_append(run, value.seq, args->pos[i]))
                return false;
        return set(run, scope, TPL_NAME_VARARGS, value);
    }
    return args->n <= macro->n || pm_tpl_fail(run, PM_ERR_INVALID, "macro '%s' takes at most %zu arguments, not %zu",
                                              name_of(macro), macro->n, args->n);
}

static tpl_scope *new_scope(tpl_run *run, tpl_scope *parent)
{
    tpl_scope *scope = pm_tpl_new(run, 1, sizeof(*scope));
    if (scope)
        scope->parent = parent;
    return scope;
}

/* Runs a body and takes what it wrote. */
static flow capture(tpl_run *run, const tpl_block *body, tpl_scope *scope, tpl_value *out)
{
    size_t mark = pm_tpl_mark(run);
    flow f = execute(run, body, scope);
    return f != FLOW_FAIL && !pm_tpl_take(run, mark, false, out) ? FLOW_FAIL : f;
}

static bool call_macro(tpl_run *run, const tpl_closure *closure, const tpl_args *args, tpl_value *out)
{
    tpl_scope *scope = new_scope(run, closure->scope);
    tpl_args left = *args;
    if (!scope || !(left.kw = pm_tpl_new(run, args->n_kw, sizeof(*left.kw))))
        return false;
    if (args->n_kw)
        memcpy(left.kw, args->kw, args->n_kw * sizeof(*left.kw));
    return bind_macro(run, closure->macro, &left, scope) &&
           capture(run, &closure->macro->body, scope, out) != FLOW_FAIL;
}

static bool run_loop(tpl_run *run, const tpl_node *node, tpl_scope *outer, tpl_value iterable, int depth0, flow *end);

/* loop(iterable) in a recursive loop renders the loop over it. */
static bool call_loop(tpl_run *run, const tpl_loop *loop, const tpl_args *args, tpl_value *out)
{
    flow end;
    size_t mark = pm_tpl_mark(run);
    if (!loop->node->flag)
        return pm_tpl_fail(run, PM_ERR_INVALID, "the loop must be marked 'recursive' to be called");
    if (args->n != 1 || args->n_kw)
        return pm_tpl_fail(run, PM_ERR_INVALID, "loop() takes one iterable");
    return run_loop(run, loop->node, loop->outer, args->pos[0], loop->depth0 + 1, &end) &&
           pm_tpl_take(run, mark, false, out);
}

bool pm_tpl_call(tpl_run *run, tpl_value callee, const tpl_args *args, tpl_value *out)
{
    if (!enter(run))
        return false;
    bool ok;
    switch ((tpl_kind)callee.kind) {
    case TPL_MACRO: ok = call_macro(run, callee.macro, args, out); break;
    case TPL_FUNCTION: ok = pm_tpl_call_builtin(run, callee.function, pm_tpl_none(), args, out); break;
    case TPL_METHOD: ok = pm_tpl_call_builtin(run, callee.method->builtin, callee.method->self, args, out); break;
    case TPL_LOOP: ok = call_loop(run, callee.loop, args, out); break;
    case TPL_UNDEFINED: ok = pm_tpl_fail_undefined(run, callee); break;
    default: ok = pm_tpl_fail(run, PM_ERR_INVALID, "a %s cannot be called", pm_tpl_type(callee)); break;
    }
    run->depth--;
    return ok;
}

/* ---- expressions ---- */

static bool eval_elements(tpl_run *run, const tpl_node *node, tpl_scope *scope, tpl_value *out)
{
    if (!pm_tpl_seq_new(run, node->kind == TPL_N_LIST ? TPL_LIST : TPL_TUPLE, node->items.n, 1, out))
        return false;
    for (size_t i = 0; i < node->items.n; i++) {
        tpl_value value;
        if (!eval(run, node->items.items[i], scope, &value) || !pm_tpl_append(run, out->seq, value))
            return false;
    }
    return true;
}

static bool eval_dict(tpl_run *run, const tpl_node *node, tpl_scope *scope, tpl_value *out)
{
    if (!pm_tpl_dict_new(run, TPL_DICT, node->items.n / 2, 1, out))
        return false;
    for (size_t i = 0; i + 1 < node->items.n; i += 2) {
        tpl_value key, value;
        if (!eval(run, node->items.items[i], scope, &key) || !eval(run, node->items.items[i + 1], scope, &value) ||
            !pm_tpl_dict_set(run, out->dict, key, value))
            return false;
    }
    return true;
}

static bool eval_slice(tpl_run *run, const tpl_node *node, tpl_scope *scope, tpl_value *out)
{
    const tpl_node *bounds[] = {node->b, node->c, node->d};
    tpl_value object, values[3] = {{.kind = TPL_MISSING}, {.kind = TPL_MISSING}, {.kind = TPL_MISSING}};
    if (!eval(run, node->a, scope, &object))
        return false;
    for (int i = 0; i < 3; i++)
        if (bounds[i] && !eval(run, bounds[i], scope, &values[i]))
            return false;
    return pm_tpl_slice(run, object, values[0], values[1], values[2], out);
}

static bool eval_call(tpl_run *run, const tpl_node *node, tpl_scope *scope, tpl_value *out)
{
    tpl_value callee;
    tpl_args args;
    return eval(run, node->a, scope, &callee) && eval_args(run, &node->args, scope, &args) &&
           (run->place = node->place, pm_tpl_call(run, callee, &args, out));
}

/* A filter or test over a subject that is known. */
static bool apply(tpl_run *run, const tpl_node *node, tpl_scope *scope, tpl_value subject, tpl_value *out)
{
    tpl_args args;
    if (!node->builtin) {
        run->place = node->place;
        return pm_tpl_fail(run, PM_ERR_UNSUPPORTED, "%s '%s' is not supported",
                           node->kind == TPL_N_FILTER ? "filter" : "test", node->value.s->data);
    }
    return eval_args(run, &node->args, scope, &args) &&
           (run->place = node->place, pm_tpl_call_builtin(run, node->builtin, subject, &args, out));
}

static bool eval_applied(tpl_run *run, const tpl_node *node, tpl_scope *scope, tpl_value *out)
{
    tpl_value subject;
    return eval(run, node->a, scope, &subject) && apply(run, node, scope, subject, out);
}

/* The filters of a block, the innermost of which has no subject in the tree. */
static bool apply_filters(tpl_run *run, const tpl_node *node, tpl_scope *scope, tpl_value text, tpl_value *out)
{
    if (!node) {
        *out = text;
        return true;
    }
    if (!enter(run))
        return false;
    tpl_value subject;
    bool ok = apply_filters(run, node->a, scope, text, &subject) && apply(run, node, scope, subject, out);
    run->depth--;
    return ok;
}

static bool eval_concat(tpl_run *run, const tpl_node *node, tpl_scope *scope, tpl_value *out)
{
    tpl_value *parts = pm_tpl_new(run, node->items.n, sizeof(*parts));
    if (!parts)
        return false;
    for (size_t i = 0; i < node->items.n; i++)
        if (!eval(run, node->items.items[i], scope, &parts[i]))
            return false;
    size_t mark = pm_tpl_mark(run);
    for (size_t i = 0; i < node->items.n; i++)
        pm_tpl_put_value(run, parts[i]);
    return pm_tpl_take(run, mark, false, out);
}

static bool compare(tpl_run *run, tpl_op op, tpl_value a, tpl_value b, bool *out)
{
    static const char *const texts[] = {[TPL_LT] = "<", [TPL_LE] = "<=", [TPL_GT] = ">", [TPL_GE] = ">="};
    int order;
    if (op == TPL_EQ || op == TPL_NE) {
        *out = pm_tpl_equal(run, a, b) == (op == TPL_EQ);
        return run->status == PM_OK;
    }
    if (op == TPL_IN || op == TPL_NOT_IN) {
        if (!pm_tpl_contains(run, b, a, out))
            return false;
        *out = *out == (op == TPL_IN);
        return true;
    }
    if (!pm_tpl_order(run, a, b, texts[op], &order))
        return false;
    *out = order != 2 && (op == TPL_LT ? order < 0 : op == TPL_LE ? order <= 0 : op == TPL_GT ? order > 0 : order >= 0);
    return true;
}

static bool eval_compare(tpl_run *run, const tpl_node *node, tpl_scope *scope, tpl_value *out)
{
    tpl_value left, right;
    bool yes = true;
    if (!eval(run, node->a, scope, &left))
        return false;
    for (size_t i = 0; yes && i < node->items.n; i++) {
        const tpl_node *side = node->items.items[i];
        if (!eval(run, side->a, scope, &right) || !compare(run, (tpl_op)side->op, left, right, &yes))
            return false;
        left = right;
    }
    *out = pm_tpl_bool(yes);
    return true;
}

static bool eval_condition(tpl_run *run, const tpl_node *node, tpl_scope *scope, tpl_value *out)
{
    tpl_value test;
    if (!eval(run, node->a, scope, &test))
        return false;
    if (pm_tpl_truth(test))
        return eval(run, node->b, scope, out);
    return node->c ? eval(run, node->c, scope, out)
                   : pm_tpl_undefined(run, "an inline 'if' without 'else' was false", NULL, NULL, out);
}

/* `and` and `or` give one of their sides. */
static bool eval_logic(tpl_run *run, const tpl_node *node, tpl_scope *scope, tpl_value *out)
{
    if (!eval(run, node->a, scope, out))
        return false;
    return pm_tpl_truth(*out) == (node->kind == TPL_N_OR) || eval(run, node->b, scope, out);
}

static bool eval_binary(tpl_run *run, const tpl_node *node, tpl_scope *scope, tpl_value *out)
{
    tpl_value a, b;
    return eval(run, node->a, scope, &a) && eval(run, node->b, scope, &b) &&
           (run->place = node->place, pm_tpl_binary(run, (tpl_op)node->op, a, b, out));
}

static bool eval_unary(tpl_run *run, const tpl_node *node, tpl_scope *scope, tpl_value *out)
{
    tpl_value value;
    if (!eval(run, node->a, scope, &value))
        return false;
    if (node->kind != TPL_N_NOT)
        return pm_tpl_negate(run, value, node->kind == TPL_N_NEG, out);
    *out = pm_tpl_bool(!pm_tpl_truth(value));
    return true;
}

static bool eval_member(tpl_run *run, const tpl_node *node, tpl_scope *scope, tpl_value *out)
{
    tpl_value object, key;
    if (!eval(run, node->a, scope, &object))
        return false;
    run->place = node->place;
    if (node->kind == TPL_N_ATTR)
        return pm_tpl_getattr(run, object, node->value.s->data, out);
    return eval(run, node->b, scope, &key) && pm_tpl_getitem(run, object, key, out);
}

static bool eval(tpl_run *run, const tpl_node *node, tpl_scope *scope, tpl_value *out)
{
    bool ok = enter(run);
    run->place = node->place;
    if (ok) {
        switch ((tpl_node_kind)node->kind) {
        case TPL_N_CONST: *out = node->value; break;
        case TPL_N_NAME:
            *out = lookup(run, scope, node->name);
            ok = run->status == PM_OK;
            break;
        case TPL_N_LIST:
        case TPL_N_TUPLE: ok = eval_elements(run, node, scope, out); break;
        case TPL_N_DICT: ok = eval_dict(run, node, scope, out); break;
        case TPL_N_ATTR:
        case TPL_N_ITEM: ok = eval_member(run, node, scope, out); break;
        case TPL_N_SLICE: ok = eval_slice(run, node, scope, out); break;
        case TPL_N_CALL: ok = eval_call(run, node, scope, out); break;
        case TPL_N_FILTER:
        case TPL_N_TEST: ok = eval_applied(run, node, scope, out); break;
        case TPL_N_NOT:
        case TPL_N_NEG:
        case TPL_N_POS: ok = eval_unary(run, node, scope, out); break;
        case TPL_N_BINARY: ok = eval_binary(run, node, scope, out); break;
        case TPL_N_CONCAT: ok = eval_concat(run, node, scope, out); break;
        case TPL_N_COMPARE: ok = eval_compare(run, node, scope, out); break;
        case TPL_N_AND:
        case TPL_N_OR: ok = eval_logic(run, node, scope, out); break;
        case TPL_N_COND: ok = eval_condition(run, node, scope, out); break;
        default: ok = pm_tpl_fail(run, PM_ERR_INVALID, "a statement where an expression was expected"); break;
        }
    }
    run->depth--;
    return ok;
}

/* ---- statements ---- */

static bool output(tpl_run *run, const tpl_node *node, tpl_scope *scope)
{
    for (size_t i = 0; i < node->items.n; i++) {
        tpl_value value;
        if (!eval(run, node->items.items[i], scope, &value))
            return false;
        pm_tpl_put_value(run, value);
    }
    return run->status == PM_OK;
}

/* The elements of a loop that pass its condition. */
static bool loop_items(tpl_run *run, const tpl_node *node, tpl_scope *outer, tpl_value iterable, tpl_value **items,
                       size_t *n)
{
    if (!pm_tpl_items(run, iterable, items, n) || !node->c)
        return run->status == PM_OK;
    tpl_value *kept = pm_tpl_new(run, *n, sizeof(*kept)), test;
    tpl_scope *scope = new_scope(run, outer);
    size_t n_kept = 0;
    if (!kept || !scope)
        return false;
    for (size_t i = 0; i < *n; i++) {
        scope->n = 0;
        if (!assign(run, node->a, scope, (*items)[i]) || !eval(run, node->c, scope, &test))
            return false;
        if (pm_tpl_truth(test))
            kept[n_kept++] = (*items)[i];
    }
    *items = kept;
    *n = n_kept;
    return true;
}

/* Runs a loop over an iterable. `else` runs when no iteration came to its end, be it for lack of elements or, as in
 * Jinja, because all were left by break or continue. *end tells how it ended: a jump there belongs to an outer loop. */
static bool run_loop(tpl_run *run, const tpl_node *node, tpl_scope *outer, tpl_value iterable, int depth0, flow *end)
{
    tpl_value *items = NULL;
    size_t n;
    *end = FLOW_NEXT;
    tpl_scope *scope = new_scope(run, outer);
    tpl_loop *loop = pm_tpl_new(run, 1, sizeof(*loop));
    if (!scope || !loop || !loop_items(run, node, outer, iterable, &items, &n))
        return false;
    bool completed = false;
    *loop = (tpl_loop){.node = node, .outer = outer, .items = items, .n = n, .depth0 = depth0};
    tpl_value self = {.kind = TPL_LOOP, .trust = 1, .loop = loop};
    for (size_t i = 0; i < n; i++) {
        loop->at = i;
        scope->n = 0;
        if (!set(run, scope, TPL_NAME_LOOP, self) || !assign(run, node->a, scope, items[i]))
            return false;
        flow f = execute(run, &node->body, scope);
        if (f == FLOW_FAIL)
            return false;
        if (f == FLOW_BREAK)
            break;
        completed |= f == FLOW_NEXT;
    }
    if (completed)
        return true;
    scope->n = 0;
    *end = execute(run, &node->other, scope);
    return *end != FLOW_FAIL;
}

static flow execute_for(tpl_run *run, const tpl_node *node, tpl_scope *scope)
{
    tpl_value iterable;
    flow end;
    return eval(run, node->b, scope, &iterable) && run_loop(run, node, scope, iterable, 0, &end) ? end : FLOW_FAIL;
}

static flow execute_if(tpl_run *run, const tpl_node *node, tpl_scope *scope)
{
    for (;; node = node->d) {
        tpl_value test;
        if (!eval(run, node->a, scope, &test))
            return FLOW_FAIL;
        if (pm_tpl_truth(test))
            return execute(run, &node->body, scope);
        if (!node->d)
            return execute(run, &node->other, scope);
    }
}

/* set, filter and with blocks: a break or continue that leaves one drops what it captured. */
static flow execute_block(tpl_run *run, const tpl_node *node, tpl_scope *scope)
{
    tpl_value text;
    if (node->kind == TPL_N_WITH) {
        tpl_scope *inner = new_scope(run, scope);
        for (size_t i = 0; inner && i + 1 < node->items.n; i += 2) {
            if (!eval(run, node->items.items[i + 1], scope, &text) || !assign(run, node->items.items[i], inner, text))
                return FLOW_FAIL;
        }
        return inner ? execute(run, &node->body, inner) : FLOW_FAIL;
    }
    tpl_scope *inner = new_scope(run, scope);
    flow f = inner ? capture(run, &node->body, inner, &text) : FLOW_FAIL;
    if (f != FLOW_NEXT)
        return f;
    if (!apply_filters(run, node->b, inner, text, &text)) /* their arguments belong to the body too */
        return FLOW_FAIL;
    if (node->kind == TPL_N_SET_BLOCK)
        return assign(run, node->a, scope, text) ? FLOW_NEXT : FLOW_FAIL;
    pm_tpl_put_value(run, text);
    return run->status == PM_OK ? FLOW_NEXT : FLOW_FAIL;
}

static bool make_closure(tpl_run *run, const tpl_node *node, tpl_scope *scope, tpl_value *out)
{
    tpl_closure *closure = pm_tpl_new(run, 1, sizeof(*closure));
    if (!closure)
        return false;
    *closure = (tpl_closure){node->macro, scope};
    *out = (tpl_value){.kind = TPL_MACRO, .trust = 1, .macro = closure};
    return true;
}

/* A call whose `caller` argument is the body of the block. */
static bool execute_call(tpl_run *run, const tpl_node *node, tpl_scope *scope)
{
    tpl_value callee, caller, result;
    tpl_args args;
    if (!eval(run, node->a->a, scope, &callee) || !eval_args(run, &node->a->args, scope, &args) ||
        !make_closure(run, node, scope, &caller) || !add_keyword(run, &args, "caller", caller) ||
        !pm_tpl_call(run, callee, &args, &result))
        return false;
    pm_tpl_put_value(run, result);
    return run->status == PM_OK;
}

static flow execute_node(tpl_run *run, const tpl_node *node, tpl_scope *scope)
{
    tpl_value value;
    bool ok;
    run->place = node->place;
    switch ((tpl_node_kind)node->kind) {
    case TPL_N_OUTPUT: ok = output(run, node, scope); break;
    case TPL_N_FOR: return execute_for(run, node, scope);
    case TPL_N_IF: return execute_if(run, node, scope);
    case TPL_N_SET: ok = eval(run, node->b, scope, &value) && assign(run, node->a, scope, value); break;
    case TPL_N_SET_BLOCK:
    case TPL_N_FILTER_BLOCK:
    case TPL_N_WITH: return execute_block(run, node, scope);
    case TPL_N_MACRO: ok = make_closure(run, node, scope, &value) && assign(run, node->a, scope, value); break;
    case TPL_N_CALL_BLOCK: ok = execute_call(run, node, scope); break;
    case TPL_N_GENERATION: {
        tpl_scope *inner = new_scope(run, scope);
        return inner ? execute(run, &node->body, inner) : FLOW_FAIL;
    }
    case TPL_N_BREAK: return FLOW_BREAK;
    case TPL_N_CONTINUE: return FLOW_CONTINUE;
    default: ok = pm_tpl_fail(run, PM_ERR_INVALID, "an expression where a statement was expected"); break;
    }
    return ok ? FLOW_NEXT : FLOW_FAIL;
}

static flow execute(tpl_run *run, const tpl_block *body, tpl_scope *scope)
{
    flow f = enter(run) ? FLOW_NEXT : FLOW_FAIL;
    for (size_t i = 0; f == FLOW_NEXT && i < body->n_unset; i++)
        f = unset(run, scope, body->unset[i]) ? FLOW_NEXT : FLOW_FAIL;
    for (size_t i = 0; f == FLOW_NEXT && i < body->n; i++)
        f = execute_node(run, body->items[i], scope);
    run->depth--;
    return f;
}

bool pm_tpl_execute(tpl_run *run, const tpl_block *body, tpl_scope *scope)
{
    return execute(run, body, scope) != FLOW_FAIL;
}
