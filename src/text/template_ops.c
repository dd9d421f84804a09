/* Python's arithmetic. Integers that leave 64 bits are an error, never another number. */
#include "text/template_impl.h"

#include <math.h>
#include <string.h>

static const char *op_text(tpl_op op)
{
    static const char *const texts[] = {[TPL_ADD] = "+",  [TPL_SUB] = "-",       [TPL_MUL] = "*", [TPL_DIV] = "/",
                                        [TPL_POW] = "**", [TPL_FLOORDIV] = "//", [TPL_MOD] = "%"};
    return texts[op];
}

static bool overflow(tpl_run *run, tpl_op op)
{
    return pm_tpl_fail(run, PM_ERR_UNSUPPORTED, "the result of '%s' does not fit 64 bits", op_text(op));
}

static bool int_power(tpl_run *run, int64_t base, int64_t exponent, int64_t *out)
{
    int64_t result = 1;
    bool over = false; /* of the square, which matters only when it is used */
    for (; exponent > 0; exponent >>= 1) {
        if ((exponent & 1) && (over || __builtin_mul_overflow(result, base, &result)))
            return overflow(run, TPL_POW);
        over |= __builtin_mul_overflow(base, base, &base);
    }
    *out = result;
    return true;
}

/* Division that rounds down, and the remainder that goes with it (it has the sign of the divisor). */
static void int_divmod(int64_t a, int64_t b, int64_t *quotient, int64_t *remainder)
{
    *quotient = a / b;
    *remainder = a % b;
    if (*remainder && (*remainder < 0) != (b < 0)) {
        --*quotient;
        *remainder += b;
    }
}

static double float_mod(double a, double b)
{
    double mod = fmod(a, b);
    if (mod == 0)
        return copysign(0, b);
    return (mod < 0) != (b < 0) ? mod + b : mod;
}

/* As CPython's float_divmod does it, so that the quotient agrees with the remainder. */
static double float_floordiv(double a, double b)
{
    double mod = fmod(a, b), div = (a - mod) / b;
    if (mod != 0 && (b < 0) != (mod < 0))
        div -= 1;
    if (div == 0)
        return copysign(0, a / b);
    double down = floor(div);
    return div - down > 0.5 ? down + 1 : down;
}

static bool int_op(tpl_run *run, tpl_op op, int64_t a, int64_t b, uint8_t trust, tpl_value *out)
{
    int64_t result = 0, other;
    bool over = false;
    switch (op) {
    case TPL_ADD: over = __builtin_add_overflow(a, b, &result); break;
    case TPL_SUB: over = __builtin_sub_overflow(a, b, &result); break;
    case TPL_MUL: over = __builtin_mul_overflow(a, b, &result); break;
    case TPL_POW:
        if (!int_power(run, a, b, &result))
            return false;
        break;
    default:
        over = a == INT64_MIN && b == -1;
        if (!over)
            int_divmod(a, b, op == TPL_MOD ? &other : &result, op == TPL_MOD ? &result : &other);
        break;
    }
    *out = pm_tpl_int(result, trust);
    return !over || overflow(run, op);
}

static bool number_op(tpl_run *run, tpl_op op, tpl_value a, tpl_value b, tpl_value *out)
{
    uint8_t trust = a.trust && b.trust;
    bool integers = pm_tpl_is_int(a) && pm_tpl_is_int(b);
    double x = pm_tpl_as_float(a), y = pm_tpl_as_float(b), result;
    if ((op == TPL_DIV || op == TPL_FLOORDIV || op == TPL_MOD) && y == 0)
        return pm_tpl_fail(run, PM_ERR_INVALID, "division by zero");
    if (integers && op != TPL_DIV && !(op == TPL_POW && pm_tpl_as_int(b) < 0))
        return int_op(run, op, pm_tpl_as_int(a), pm_tpl_as_int(b), trust, out);
    switch (op) {
    case TPL_ADD: result = x + y; break;
    case TPL_SUB: result = x - y; break;
    case TPL_MUL: result = x * y; break;
    case TPL_DIV: result = x / y; break;
    case TPL_FLOORDIV: result = float_floordiv(x, y); break;
    case TPL_MOD: result = float_mod(x, y); break;
    default:
        if ((x == 0 && y < 0) || (x < 0 && y != floor(y)))
            return pm_tpl_fail(run, PM_ERR_INVALID, "'**' of these numbers is not a number");
        result = pow(x, y);
        if (isinf(result) && isfinite(x) && isfinite(y))
            return pm_tpl_fail(run, PM_ERR_INVALID, "the result of '**' is too large");
        break;
    }
    *out = pm_tpl_float(result, trust);
    return true;
}

/* Markup escapes what it is joined with. */
static bool add_strings(tpl_run *run, const tpl_str *a, const tpl_str *b, tpl_value *out)
{
    bool markup = a->markup || b->markup;
    size_t mark = pm_tpl_mark(run);
    for (int i = 0; i < 2; i++) {
        const tpl_str *side = i ? b : a;
        if (markup && !side->markup)
            pm_tpl_put_escaped(run, side);
        else
            pm_tpl_put_str(run, side);
    }
    return pm_tpl_take(run, mark, markup, out);
}

static bool extend(tpl_run *run, tpl_seq *seq, const tpl_seq *with)
{
    for (size_t i = 0; i < with->n; i++)
        if (!pm_tpl_append(run, seq, with->items[i]))
            return false;
    return true;
}

static bool repeat(tpl_run *run, tpl_value value, int64_t times, tpl_value *out)
{
    if (times < 0)
        times = 0;
    if (value.kind == TPL_STR) {
        size_t mark = pm_tpl_mark(run), len = value.s->len;
        if (len && times > TPL_MAX_OUTPUT / (int64_t)len)
            return pm_tpl_fail(run, PM_ERR_MEMORY, "the text is longer than %d MB", TPL_MAX_OUTPUT >> 20);
        for (int64_t i = 0; i < times && len; i++) {
            pm_tpl_put_str(run, value.s);
            if (!pm_tpl_step(run, 1))
                return false;
        }
        return pm_tpl_take(run, mark, value.s->markup, out);
    }
    if (!pm_tpl_seq_new(run, value.seq->flavour, 0, value.trust, out))
        return false;
    for (int64_t i = 0; i < times && value.seq->n; i++)
        if (!extend(run, out->seq, value.seq))
            return false;
    return true;
}

static bool is_list(tpl_value value)
{
    return value.kind == TPL_SEQ && (value.seq->flavour == TPL_LIST || value.seq->flavour == TPL_TUPLE);
}

bool pm_tpl_binary(tpl_run *run, tpl_op op, tpl_value a, tpl_value b, tpl_value *out)
{
    if (pm_tpl_is_number(a) && pm_tpl_is_number(b))
        return number_op(run, op, a, b, out);
    if (op == TPL_MOD && a.kind == TPL_STR)
        return pm_tpl_percent(run, a.s, b, out);
    if (a.kind == TPL_UNDEFINED || b.kind == TPL_UNDEFINED)
        return pm_tpl_fail_undefined(run, a.kind == TPL_UNDEFINED ? a : b);
    if (op == TPL_ADD && a.kind == TPL_STR && b.kind == TPL_STR)
        return add_strings(run, a.s, b.s, out);
    if (op == TPL_ADD && is_list(a) && is_list(b) && a.seq->flavour == b.seq->flavour)
        return pm_tpl_seq_new(run, a.seq->flavour, a.seq->n + b.seq->n, a.trust && b.trust, out) &&
               extend(run, out->seq, a.seq) && extend(run, out->seq, b.seq);
    if (op == TPL_MUL && pm_tpl_is_int(b) && (a.kind == TPL_STR || is_list(a)))
        return repeat(run, a, pm_tpl_as_int(b), out);
    if (op == TPL_MUL && pm_tpl_is_int(a) && (b.kind == TPL_STR || is_list(b)))
        return repeat(run, b, pm_tpl_as_int(a), out);
    return pm_tpl_fail(run, PM_ERR_INVALID, "'%s' is not defined between %s and %s", op_text(op), pm_tpl_type(a),
                       pm_tpl_type(b));
}

bool pm_tpl_negate(tpl_run *run, tpl_value a, bool minus, tpl_value *out)
{
    if (a.kind == TPL_UNDEFINED)
        return pm_tpl_fail_undefined(run, a);
    if (!pm_tpl_is_number(a))
        return pm_tpl_fail(run, PM_ERR_INVALID, "'%s' is not defined for %s", minus ? "-" : "+", pm_tpl_type(a));
    if (a.kind == TPL_FLOAT) {
        *out = pm_tpl_float(minus ? -a.f : a.f, a.trust);
        return true;
    }
    int64_t i = pm_tpl_as_int(a);
    if (minus && i == INT64_MIN)
        return overflow(run, TPL_SUB);
    *out = pm_tpl_int(minus ? -i : i, a.trust);
    return true;
}
