/* Numbers. Without bounds they have as many digits as fit 64 bits, or a double without overflow. Between bounds they
 * are written without exponent, and read digit by digit beside both bounds. */
#include "text/schema_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WHOLE = PM_INTEGER_DIGITS, FRACTION = PM_FRACTION_DIGITS, DIGITS = WHOLE + FRACTION };

/* ---- without bounds ---- */

/* Up to n more digits. */
static int32_t more_digits(pm_grammar *grammar, int n, int32_t next)
{
    int32_t after = next;
    for (; n > 0; n--)
        after = pm_node_either(grammar, pm_node_range(grammar, '0', '9', after), next);
    return after;
}

/* One to n digits. */
static int32_t digits(pm_grammar *grammar, int n, int32_t next)
{
    return pm_node_range(grammar, '0', '9', more_digits(grammar, n - 1, next));
}

static int32_t exponent(pm_grammar *grammar, int32_t next)
{
    int32_t number = digits(grammar, PM_EXPONENT_DIGITS, next), sign = pm_node_range(grammar, '+', '+', number);
    int32_t node = pm_node_bytes(grammar);
    pm_edge_add(grammar, sign, '-', '-', number);
    int32_t after = pm_node_either(grammar, sign, number);
    pm_edge_add(grammar, node, 'e', 'e', after);
    pm_edge_add(grammar, node, 'E', 'E', after);
    return node;
}

/* A minus sign or none, then a number that begins at `zero` when its first digit is 0, else at `other`. */
static int32_t with_sign(pm_grammar *grammar, int32_t zero, int32_t minus_zero, int32_t other)
{
    int32_t first = pm_node_bytes(grammar), minus = pm_node_bytes(grammar);
    pm_edge_add(grammar, first, '0', '0', zero);
    pm_edge_add(grammar, minus, '0', '0', minus_zero);
    pm_edge_add(grammar, first, '1', '9', other);
    pm_edge_add(grammar, minus, '1', '9', other);
    pm_edge_add(grammar, first, '-', '-', minus);
    return first;
}

static int32_t unbounded(pm_grammar *grammar, bool integer)
{
    int32_t end = pm_node_return(grammar);
    if (integer)
        return with_sign(grammar, end, 0, more_digits(grammar, PM_INTEGER_DIGITS - 1, end));
    int32_t after = pm_node_either(grammar, exponent(grammar, end), end);
    int32_t point = pm_node_range(grammar, '.', '.', digits(grammar, PM_FRACTION_DIGITS, after));
    int32_t whole = pm_node_either(grammar, point, after);
    return with_sign(grammar, whole, point, more_digits(grammar, PM_INTEGER_DIGITS - 1, whole));
}

/* ---- decimal numbers ---- */

typedef struct decimal {
    bool given, negative;
    bool open;          /* the bound itself is outside */
    char digit[DIGITS]; /* 0 to 9: whole digits, then those of the fraction */
} decimal;

static int compare_size(const decimal *a, const decimal *b)
{
    return memcmp(a->digit, b->digit, DIGITS);
}

static int compare(const decimal *a, const decimal *b)
{
    if (a->negative != b->negative)
        return a->negative ? -1 : 1;
    return a->negative ? compare_size(b, a) : compare_size(a, b);
}

static bool is_zero_from(const decimal *d, int from)
{
    for (int i = from; i < DIGITS; i++)
        if (d->digit[i])
            return false;
    return true;
}

static int fraction_digits(const decimal *d)
{
    int n = FRACTION;
    while (n > 0 && !d->digit[WHOLE + n - 1])
        n--;
    return n;
}

static int whole_digits(const decimal *d)
{
    int first = 0;
    while (first < WHOLE - 1 && !d->digit[first])
        first++;
    return WHOLE - first;
}

/* The decimal that prints a JSON number as short as gives it back. *huge: its size is beyond all that is written. False
 * when it has more digits behind the point than are compared. */
static bool to_decimal(const json_t *value, decimal *out, bool *huge)
{
    char text[512];
    double real = json_number_value(value);
    *huge = real >= 1e18 || real <= -1e18;
    *out = (decimal){.given = true, .negative = real < 0};
    if (*huge)
        return true;
    if (json_is_integer(value)) {
        snprintf(text, sizeof(text), "%lld", (long long)json_integer_value(value));
    } else {
        int places = 0;
        do
            snprintf(text, sizeof(text), "%.*f", places, real);
        while (strtod(text, NULL) != real && places++ < FRACTION);
        if (places > FRACTION)
            return false;
    }
    const char *start = text + (text[0] == '-'), *point = strchr(start, '.');
    size_t whole = point ? (size_t)(point - start) : strlen(start);
    for (size_t i = 0; i < whole && whole <= WHOLE; i++)
        out->digit[WHOLE - whole + i] = (char)(start[i] - '0');
    for (size_t i = 0; point && point[i + 1]; i++)
        out->digit[WHOLE + i] = (char)(point[i + 1] - '0');
    out->negative = out->negative && !is_zero_from(out, 0);
    return true;
}

/* Narrows a bound by one keyword; false when no number is left. */
static bool narrow(pm_schema_reader *reader, const json_t *schema, const char *name, bool lower, bool open,
                   decimal *bound)
{
    const json_t *value = json_object_get(schema, name);
    decimal made;
    bool huge;
    if (!value)
        return true;
    if (!json_is_number(value)) {
        pm_schema_fail(reader, PM_ERR_UNSUPPORTED, "'%s' is not a number", name);
        return false;
    }
    if (!to_decimal(value, &made, &huge)) {
        pm_schema_fail(reader, PM_ERR_UNSUPPORTED, "'%s' with more than %d digits behind the point is not supported",
                       name, FRACTION);
        return false;
    }
    if (huge)
        return lower == made.negative;
    made.open = open;
    int order = bound->given ? compare(&made, bound) : lower ? 1 : -1;
    if (order == 0)
        bound->open |= open;
    else if ((order > 0) == lower)
        *bound = made;
    return true;
}

/* ---- between bounds ---- */

/* Sizes between two decimals that are not negative. */
typedef struct range {
    pm_grammar *grammar;
    const decimal *low, *high;
    int fraction; /* digits behind the point, at most; 0: integers */
    int first;    /* the digit that is written first */
    int32_t end;
    int32_t after[DIGITS + 1][4]; /* nodes that there are, by digits written and bounds followed; 0: none */
} range;

static int32_t after_digits(range *r, int n, bool low, bool high);

/* The digit with the number n. `low`, `high`: those before are the same as those of the bound. */
static int32_t one_digit(range *r, int n, bool low, bool high)
{
    int32_t node = pm_node_bytes(r->grammar);
    for (char d = 0; d <= 9; d++) {
        bool leading = d == 0 && n == r->first && r->first < WHOLE - 1;
        if (leading || (low && d < r->low->digit[n]) || (high && d > r->high->digit[n]))
            continue;
        int32_t to = after_digits(r, n + 1, low && d == r->low->digit[n], high && d == r->high->digit[n]);
        pm_edge_add(r->grammar, node, (uint8_t)('0' + d), (uint8_t)('0' + d), to);
    }
    return node;
}

/* Whether the number may end behind n digits. */
static bool may_end(const range *r, int n, bool low, bool high)
{
    if (low && (!is_zero_from(r->low, n) || r->low->open))
        return false;
    return !(high && is_zero_from(r->high, n) && r->high->open);
}

static int32_t after_digits(range *r, int n, bool low, bool high)
{
    int32_t *made = &r->after[n][low * 2 + high];
    if (r->grammar->status != PM_OK) /* node 0 is not remembered, and without memory all would be tried anew */
        return 0;
    if (n < WHOLE)
        return *made ? *made : (*made = one_digit(r, n, low, high));
    if (*made)
        return *made;
    int32_t node = *made = pm_node_split(r->grammar);
    if (may_end(r, n, low, high))
        pm_way_add(r->grammar, node, r->end);
    if (n < WHOLE + r->fraction) {
        int32_t digit = one_digit(r, n, low, high);
        pm_way_add(r->grammar, node, n == WHOLE ? pm_node_range(r->grammar, '.', '.', digit) : digit);
    }
    return node;
}

/* Adds to `split` the numbers of each length that lie in the range. */
static void add_range(pm_grammar *grammar, int32_t split, const decimal *low, const decimal *high, int fraction,
                      int32_t end)
{
    int order = compare_size(low, high), longest = whole_digits(high);
    if (order > 0 || (order == 0 && (low->open || high->open)))
        return;
    for (int length = whole_digits(low); length <= longest; length++) {
        range r = {grammar, low, high, fraction, WHOLE - length, end, {{0}}};
        bool at_low = length == whole_digits(low), at_high = length == longest;
        pm_way_add(grammar, split, one_digit(&r, r.first, at_low, at_high));
    }
}

/* The largest size of so many digits. */
static decimal largest(int n)
{
    decimal d = {.given = true};
    memset(d.digit + WHOLE - n, 9, (size_t)n);
    return d;
}

/* Digits behind the point: enough for the bounds, and where one is open no more than a double tells apart. */
static int choose_fraction(const decimal *low, const decimal *high, int longest)
{
    enum { USUAL = 6, DOUBLE_DIGITS = 15 };
    int n = USUAL;
    n = fraction_digits(low) > n ? fraction_digits(low) : n;
    n = fraction_digits(high) > n ? fraction_digits(high) : n;
    if ((low->open || high->open) && n > DOUBLE_DIGITS - longest)
        n = DOUBLE_DIGITS - longest;
    return n > 0 ? n : 0;
}

/* A bound that is not given becomes the largest number that is written. */
static void complete(decimal *bound, const decimal *other, bool integer, bool negative)
{
    enum { USUAL = 9 };
    int n = integer ? WHOLE : USUAL;
    if (bound->given)
        return;
    if (!integer && other->given && whole_digits(other) >= n)
        n = whole_digits(other) < WHOLE ? whole_digits(other) + 1 : WHOLE;
    *bound = largest(n);
    bound->negative = negative;
}

static int32_t bounded(pm_schema_reader *reader, decimal low, decimal high, bool integer)
{
    pm_grammar *grammar = reader->grammar;
    int32_t end = pm_node_return(grammar), split = pm_node_split(grammar), minus = pm_node_split(grammar);
    const decimal zero = {.given = true};
    decimal above_zero = {.given = true, .open = true};
    bool no_low = !low.given;
    complete(&low, &high, integer, true);
    complete(&high, no_low ? &zero : &low, integer, false);
    int longest = whole_digits(&low) > whole_digits(&high) ? whole_digits(&low) : whole_digits(&high);
    int fraction = integer ? 0 : choose_fraction(&low, &high, longest);
    if (!high.negative)
        add_range(grammar, split, low.negative ? &zero : &low, &high, fraction, end);
    if (low.negative)
        add_range(grammar, minus, high.negative ? &high : &above_zero, &low, fraction, end);
    pm_way_add(grammar, split, pm_node_range(grammar, '-', '-', minus));
    return split;
}

int32_t pm_schema_number(pm_schema_reader *reader, const json_t *schema, bool integer)
{
    decimal low = {0}, high = {0};
    const char *name = json_string_value(json_object_get(schema, "format"));
    const pm_string_format *format = pm_format_find(name);
    if (name && (!format || !(format->type & (PM_TYPE_INTEGER | PM_TYPE_NUMBER))))
        return pm_schema_fail(reader, PM_ERR_UNSUPPORTED, "the format '%.80s' of numbers is not supported", name);
    if (!narrow(reader, schema, "minimum", true, false, &low) ||
        !narrow(reader, schema, "exclusiveMinimum", true, true, &low) ||
        !narrow(reader, schema, "maximum", false, false, &high) ||
        !narrow(reader, schema, "exclusiveMaximum", false, true, &high))
        return 0;
    if (name && strcmp(name, "int32") == 0) {
        json_t *limits = json_pack("{s:I, s:I}", "minimum", (json_int_t)INT32_MIN, "maximum", (json_int_t)INT32_MAX);
        if (!limits)
            return pm_schema_fail_memory(reader);
        narrow(reader, limits, "minimum", true, false, &low);
        narrow(reader, limits, "maximum", false, false, &high);
        json_decref(limits);
    }
    return low.given || high.given ? bounded(reader, low, high, integer) : unbounded(reader->grammar, integer);
}
