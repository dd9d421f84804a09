/* Sets of characters in patterns. */
#include "text/pattern_parts.h"

#include <stdlib.h>
#include <string.h>

void pm_char_set_free(pm_char_set *set)
{
    free(set->spans);
    *set = (pm_char_set){0};
}

int pm_char_set_add(pm_char_set *set, int32_t low, int32_t high)
{
    void *spans = set->spans;
    int status = pm_grow(&spans, &set->cap, set->n + 1, sizeof(*set->spans));
    set->spans = spans;
    if (status == PM_OK)
        set->spans[set->n++] = (pm_span_of_chars){low, high};
    return status;
}

static int by_low(const void *a, const void *b)
{
    const pm_span_of_chars *x = a, *y = b;
    return x->low < y->low ? -1 : x->low > y->low;
}

void pm_char_set_order(pm_char_set *set)
{
    size_t n = 0;
    if (set->n)
        qsort(set->spans, set->n, sizeof(*set->spans), by_low);
    for (size_t i = 0; i < set->n; i++) {
        pm_span_of_chars span = set->spans[i];
        if (n && span.low <= set->spans[n - 1].high + 1) {
            if (span.high > set->spans[n - 1].high)
                set->spans[n - 1].high = span.high;
        } else {
            set->spans[n++] = span;
        }
    }
    set->n = n;
}

int pm_char_set_invert(pm_char_set *set)
{
    pm_char_set out = {0};
    int32_t low = 0;
    int status = PM_OK;
    for (size_t i = 0; i <= set->n && status == PM_OK; i++) {
        int32_t end = i < set->n ? set->spans[i].low : PM_CHAR_LAST + 1;
        if (low < end)
            status = pm_char_set_add(&out, low, end - 1);
        low = i < set->n ? set->spans[i].high + 1 : low;
    }
    pm_char_set_free(status == PM_OK ? set : &out);
    if (status == PM_OK)
        *set = out;
    return status;
}

/* The classes of ECMA-262. Of white space all that some engine takes for it is outside of \S, and only what every
 * engine does is in \s. */
static const struct {
    char letter;
    pm_span_of_chars spans[12]; /* up to the first that is {0, 0} */
} classes[] = {
    {'d', {{'0', '9'}}},
    {'w', {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}}},
    {'s', {{'\t', '\r'}, {' ', ' '}}},
    {'S',
     {{'\t', '\r'},
      {0x1C, ' '},
      {0x85, 0x85},
      {0xA0, 0xA0},
      {0x1680, 0x1680},
      {0x180E, 0x180E},
      {0x2000, 0x200B},
      {0x2028, 0x2029},
      {0x202F, 0x202F},
      {0x205F, 0x205F},
      {0x3000, 0x3000}}},
};

bool pm_char_set_add_class(pm_char_set *set, char letter, int *status)
{
    bool negative = letter == 'D' || letter == 'W' || letter == 'S';
    char name = letter == 'D' ? 'd' : letter == 'W' ? 'w' : letter;
    for (size_t i = 0; i < PM_COUNT(classes); i++) {
        pm_char_set class = {0};
        if (classes[i].letter != name)
            continue;
        *status = PM_OK;
        for (const pm_span_of_chars *span = classes[i].spans; span->high && *status == PM_OK; span++)
            *status = pm_char_set_add(&class, span->low, span->high);
        if (letter == 'S' && *status == PM_OK)
            *status = pm_char_set_add(&class, 0xFEFF, 0xFEFF);
        if (negative && *status == PM_OK)
            *status = pm_char_set_invert(&class);
        for (size_t k = 0; k < class.n && *status == PM_OK; k++)
            *status = pm_char_set_add(set, class.spans[k].low, class.spans[k].high);
        pm_char_set_free(&class);
        return true;
    }
    return false;
}

/* ---- bytes ---- */

static bool has(const pm_char_set *set, int32_t c)
{
    for (size_t i = 0; i < set->n; i++)
        if (set->spans[i].low <= c && c <= set->spans[i].high)
            return true;
    return false;
}

/* The characters of the set that are spelt \u00XX: those for which `is` says so. */
static int32_t numbered(pm_grammar *grammar, const pm_char_set *set, bool angle, int32_t next)
{
    int32_t high = pm_node_bytes(grammar);
    bool any = false;
    for (int first = 0; first < 4; first++) {
        int32_t low = pm_node_bytes(grammar);
        for (int second = 0; second < 16; second++) {
            int c = first * 16 + second;
            bool control = c > 0 && c < ' ' && !strchr("\b\t\n\f\r", c);
            if (!has(set, c) || !(control || (angle && c == '<')))
                continue;
            uint8_t digit = (uint8_t)("0123456789abcdef"[second]);
            pm_edge_add(grammar, low, digit, digit, next);
            any = true;
        }
        pm_edge_add(grammar, high, (uint8_t)('0' + first), (uint8_t)('0' + first), low);
    }
    return any ? pm_node_text(grammar, "u00", 3, high) : 0;
}

/* What comes behind a backslash for characters of the set. */
static int32_t escaped(pm_grammar *grammar, const pm_char_set *set, bool angle, int32_t next)
{
    static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
    int32_t node = pm_node_bytes(grammar), number = numbered(grammar, set, angle, next);
    for (size_t i = 0; to[i]; i++)
        if (has(set, from[i]))
            pm_edge_add(grammar, node, (uint8_t)to[i], (uint8_t)to[i], next);
    if (number)
        pm_edge_add(grammar, node, 'u', 'u', pm_edge_find(grammar, number, 'u'));
    return node;
}

static size_t put_utf8(int32_t c, uint8_t out[4])
{
    static const uint8_t first[] = {0, 0, 0xC0, 0xE0, 0xF0};
    size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; i--, c >>= 6)
        out[i] = (uint8_t)(0x80 | (c & 0x3F));
    out[0] = (uint8_t)(first[n] | c);
    return n;
}

/* Adds to `split` the characters of a span, as ranges of bytes: a span is cut where its ends have not the same bytes
 * before ranges that are whole (Thompson 1968, as in RE2). */
static void add_span(pm_grammar *grammar, int32_t split, int32_t low, int32_t high, int32_t next)
{
    static const int32_t borders[] = {0x7FF, 0xD7FF, 0xDFFF, 0xFFFF};
    if (low > high || (low >= 0xD800 && high <= 0xDFFF))
        return;
    for (size_t i = 0; i < PM_COUNT(borders); i++) {
        if (low <= borders[i] && borders[i] < high) {
            add_span(grammar, split, low, borders[i], next);
            add_span(grammar, split, borders[i] + 1, high, next);
            return;
        }
    }
    uint8_t from[4], to[4];
    size_t n = put_utf8(low, from);
    for (size_t i = 1; i < n; i++) {
        int32_t mask = (int32_t)(1 << (6 * i)) - 1, cut = (low & ~mask) == (high & ~mask) ? 0
                                                          : low & mask                    ? (low | mask) + 1
                                                          : (high & mask) != mask         ? high & ~mask
                                                                                          : 0;
        if (cut) {
            add_span(grammar, split, low, cut - 1, next);
            add_span(grammar, split, cut, high, next);
            return;
        }
    }
    put_utf8(high, to);
    for (size_t i = n; i-- > 0;)
        next = pm_node_range(grammar, from[i], to[i], next);
    pm_way_add(grammar, split, next);
}

int32_t pm_char_set_build(pm_grammar *grammar, const pm_char_set *set, pm_spelling spelling, int32_t next)
{
    int32_t node = pm_node_bytes(grammar);
    bool raw = spelling == PM_SPELL_RAW, angle = spelling == PM_SPELL_JSON;
    for (uint8_t c = 1; c < 0x80; c++) {
        bool plain = raw ? c >= ' ' || strchr("\t\n\r", c) : c >= ' ' && c != '"' && c != '\\';
        if (plain && (c != '<' || angle) && has(set, c))
            pm_edge_add(grammar, node, c, c, next);
    }
    if (!raw)
        pm_edge_add(grammar, node, '\\', '\\', escaped(grammar, set, !angle, next));
    const pm_span_of_chars *last = set->n ? &set->spans[set->n - 1] : NULL;
    if (last && last->low <= 0x80 && last->high == PM_CHAR_LAST) {
        pm_edges_utf8(grammar, node, next);
        return node;
    }
    int32_t split = pm_node_split(grammar);
    pm_way_add(grammar, split, node);
    for (size_t i = 0; i < set->n; i++)
        add_span(grammar, split, set->spans[i].low < 0x80 ? 0x80 : set->spans[i].low, set->spans[i].high, next);
    return split;
}
