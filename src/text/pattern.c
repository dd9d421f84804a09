/* Patterns of strings: the regular part of ECMA-262's expressions. */
#include "text/pattern_parts.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PARTS_MAX = 1 << 14,
    REPEAT_MAX = 1000,
    NEST_MAX = 64,
    LENGTH_MAX = 1 << 28 /* of what matches: more is as much */
};

typedef enum part_kind { PART_EMPTY, PART_SET, PART_CAT, PART_ALT, PART_REPEAT } part_kind;

/* A part of an expression; `a` and `b` are the numbers of others. */
typedef struct part {
    part_kind kind;
    int a, b;
    int least, most;       /* of PART_REPEAT; most < 0: no limit */
    int shortest, longest; /* of what it matches, in characters; longest < 0: no limit */
    pm_char_set set;
} part;

typedef struct expression {
    const char *text;
    size_t len, at;
    part *parts;
    size_t n, cap;
    int depth;
    int status;
    char *why; /* [128] */
} expression;

/* ---- parts ---- */

static int refuse(expression *e, const char *why)
{
    if (e->status == PM_OK) {
        snprintf(e->why, 128, "%s at byte %zu", why, e->at);
        e->status = PM_ERR_UNSUPPORTED;
    }
    return 0;
}

static int add_part(expression *e, part made)
{
    void *parts = e->parts;
    if (e->status == PM_OK && e->n >= PARTS_MAX)
        refuse(e, "it is too long");
    if (e->status == PM_OK && pm_grow(&parts, &e->cap, e->n + 1, sizeof(*e->parts)) != PM_OK)
        e->status = PM_ERR_MEMORY;
    e->parts = parts;
    if (e->status != PM_OK) {
        pm_char_set_free(&made.set);
        return 0;
    }
    e->parts[e->n] = made;
    return (int)e->n++;
}

static int limit(int64_t length)
{
    return length < LENGTH_MAX ? (int)length : LENGTH_MAX;
}

static int add_set(expression *e, pm_char_set set)
{
    pm_char_set_order(&set);
    return add_part(e, (part){.kind = PART_SET, .set = set, .shortest = 1, .longest = 1});
}

static int add_pair(expression *e, part_kind kind, int a, int b)
{
    if (e->status != PM_OK)
        return 0;
    const part *x = &e->parts[a], *y = &e->parts[b];
    bool endless = x->longest < 0 || y->longest < 0;
    part made = {.kind = kind, .a = a, .b = b};
    if (kind == PART_CAT) {
        made.shortest = limit((int64_t)x->shortest + y->shortest);
        made.longest = endless ? -1 : limit((int64_t)x->longest + y->longest);
    } else {
        made.shortest = x->shortest < y->shortest ? x->shortest : y->shortest;
        made.longest = endless ? -1 : x->longest > y->longest ? x->longest : y->longest;
    }
    return add_part(e, made);
}

static int add_repeat(expression *e, int a, int least, int most)
{
    if (e->status != PM_OK)
        return 0;
    const part *x = &e->parts[a];
    part made = {.kind = PART_REPEAT, .a = a, .least = least, .most = most};
    made.shortest = limit((int64_t)x->shortest * least);
    made.longest = x->longest == 0 ? 0 : x->longest < 0 || most < 0 ? -1 : limit((int64_t)x->longest * most);
    if (most == 0)
        made.longest = 0;
    return add_part(e, made);
}

/* Any characters, in any number. */
static int add_rest(expression *e)
{
    pm_char_set all = {0};
    if (pm_char_set_add(&all, 0, PM_CHAR_LAST) != PM_OK)
        e->status = PM_ERR_MEMORY;
    return add_repeat(e, add_set(e, all), 0, -1);
}

/* ---- reading ---- */

static bool more(const expression *e)
{
    return e->status == PM_OK && e->at < e->len;
}

static bool next_is(const expression *e, const char *text)
{
    size_t n = strlen(text);
    return e->status == PM_OK && e->len - e->at >= n && memcmp(e->text + e->at, text, n) == 0;
}

static bool takes(expression *e, const char *text)
{
    bool is = next_is(e, text);
    e->at += is ? strlen(text) : 0;
    return is;
}

/* The character at the place, which is valid UTF-8. */
static int32_t take_char(expression *e)
{
    uint8_t first = (uint8_t)e->text[e->at++];
    int n = first < 0x80 ? 0 : first < 0xE0 ? 1 : first < 0xF0 ? 2 : 3;
    int32_t c = n ? first & (0x3F >> n) : first;
    for (; n > 0 && e->at < e->len; n--)
        c = c << 6 | ((uint8_t)e->text[e->at++] & 0x3F);
    return c;
}

/* n hexadecimal digits, -1 when there are none. */
static int32_t take_hex(expression *e, int n)
{
    int32_t value = 0;
    for (int i = 0; i < n; i++, e->at++) {
        char c = e->at < e->len ? e->text[e->at] : 0;
        if (!isxdigit((unsigned char)c))
            return refuse(e, "an escape without its digits"), -1;
        value = value * 16 + (isdigit((unsigned char)c) ? c - '0' : tolower((unsigned char)c) - 'a' + 10);
    }
    return value;
}

/* What an escape behind its backslash means as one character; -1 and refused when it is none. */
static int32_t take_escape(expression *e, bool in_class)
{
    static const char from[] = "fnrtv", to[] = "\f\n\r\t\v";
    if (!more(e))
        return refuse(e, "a backslash at the end"), -1;
    int32_t c = take_char(e);
    const char *simple = c > 0 && c < 0x80 ? strchr(from, (int)c) : NULL;
    if (simple)
        return to[simple - from];
    if (c == 'x')
        return take_hex(e, 2);
    if (c == 'b' && in_class)
        return '\b';
    if (c == 'u') {
        c = take_hex(e, 4);
        if (c >= 0xD800 && c < 0xDC00 && takes(e, "\\u"))
            c = 0x10000 + ((c - 0xD800) << 10) + ((take_hex(e, 4) - 0xDC00) & 0x3FF);
        return c;
    }
    if (c < 0x80 && isalnum((int)c))
        return refuse(e, "an escape that is not known, or no character"), -1;
    return c;
}

/* \d, \w, \s and the like; false when something else comes. */
static bool take_class_escape(expression *e, pm_char_set *set)
{
    int status = PM_OK;
    if (!next_is(e, "\\") || e->at + 1 >= e->len || !pm_char_set_add_class(set, e->text[e->at + 1], &status))
        return false;
    e->at += 2;
    if (status != PM_OK)
        e->status = status;
    return true;
}

/* A set in brackets, behind the first one. */
static int read_brackets(expression *e)
{
    pm_char_set set = {0};
    bool negative = takes(e, "^");
    while (more(e) && !takes(e, "]")) {
        if (take_class_escape(e, &set))
            continue;
        int32_t low = takes(e, "\\") ? take_escape(e, true) : take_char(e), high = low;
        if (next_is(e, "-") && e->at + 1 < e->len && e->text[e->at + 1] != ']') {
            e->at++;
            if (next_is(e, "\\d") || next_is(e, "\\w") || next_is(e, "\\s"))
                refuse(e, "a range that ends in a set");
            high = !more(e) ? -1 : takes(e, "\\") ? take_escape(e, true) : take_char(e);
        }
        if (e->status == PM_OK && low > high)
            refuse(e, "a range whose ends are the wrong way round");
        if (e->status == PM_OK && pm_char_set_add(&set, low, high) != PM_OK)
            e->status = PM_ERR_MEMORY;
    }
    if (e->status == PM_OK && e->text[e->at - 1] != ']')
        refuse(e, "a set that does not end");
    pm_char_set_order(&set);
    if (negative && e->status == PM_OK && pm_char_set_invert(&set) != PM_OK)
        e->status = PM_ERR_MEMORY;
    return add_set(e, set);
}

static int read_choice(expression *e);

/* A group, behind its parenthesis. */
static int read_group(expression *e)
{
    if (takes(e, "?") && !takes(e, ":")) {
        if (!takes(e, "<") || next_is(e, "=") || next_is(e, "!"))
            return refuse(e, "looking ahead or behind");
        while (more(e) && !takes(e, ">"))
            e->at++;
    }
    int inner = read_choice(e);
    if (!takes(e, ")"))
        return refuse(e, "a group that does not end");
    return inner;
}

static int read_atom(expression *e)
{
    pm_char_set set = {0};
    if (takes(e, "("))
        return read_group(e);
    if (takes(e, "["))
        return read_brackets(e);
    if (next_is(e, "^") || next_is(e, "$"))
        return refuse(e, "an anchor inside");
    if (next_is(e, "*") || next_is(e, "+") || next_is(e, "?"))
        return refuse(e, "a quantifier of nothing");
    if (take_class_escape(e, &set))
        return add_set(e, set);
    int status = PM_OK;
    if (takes(e, ".")) {
        if (pm_char_set_add(&set, '\n', '\n') || pm_char_set_add(&set, '\r', '\r') ||
            pm_char_set_add(&set, 0x2028, 0x2029) || pm_char_set_invert(&set))
            status = PM_ERR_MEMORY;
    } else {
        int32_t c = takes(e, "\\") ? take_escape(e, false) : take_char(e);
        status = c < 0 ? PM_OK : pm_char_set_add(&set, c, c);
    }
    if (status != PM_OK)
        e->status = status;
    return add_set(e, set);
}

/* Reads the {m,n} at the place; false, and nothing is taken, when it is none. */
static bool take_counts(expression *e, int *least, int *most)
{
    size_t at = e->at + 1;
    int values[2] = {0, -1}, n = 0;
    if (!next_is(e, "{"))
        return false;
    for (; n < 2; n++) {
        int value = 0;
        size_t start = at;
        for (; at < e->len && isdigit((unsigned char)e->text[at]); at++)
            value = value <= REPEAT_MAX ? value * 10 + e->text[at] - '0' : value;
        if (at > start)
            values[n] = value;
        else if (n == 0)
            return false;
        if (n == 0 && (at >= e->len || e->text[at] != ',')) {
            values[1] = values[0];
            break;
        }
        at += n == 0;
    }
    if (at >= e->len || e->text[at] != '}')
        return false;
    e->at = at + 1;
    *least = values[0];
    *most = values[1];
    return true;
}

static int read_repeated(expression *e)
{
    int atom = read_atom(e), least = 0, most = -1;
    while (more(e)) {
        if (takes(e, "*"))
            least = 0, most = -1;
        else if (takes(e, "+"))
            least = 1, most = -1;
        else if (takes(e, "?"))
            least = 0, most = 1;
        else if (!take_counts(e, &least, &most))
            break;
        takes(e, "?"); /* what is preferred makes no difference to what matches */
        if (least > REPEAT_MAX || most > REPEAT_MAX)
            return refuse(e, "more than 1000 repetitions");
        if (most >= 0 && most < least)
            return refuse(e, "repetitions the wrong way round");
        atom = add_repeat(e, atom, least, most);
    }
    return atom;
}

/* One alternative. Of the whole expression each may be anchored at its ends; where it is not, anything may come. */
static int read_sequence(expression *e)
{
    bool outermost = e->depth == 1, end = false;
    int sequence = 0;
    if (outermost && !takes(e, "^"))
        sequence = add_rest(e);
    while (more(e) && !next_is(e, "|") && !next_is(e, ")") && !end) {
        size_t rest = e->len - e->at;
        end = outermost && next_is(e, "$") && (rest == 1 || e->text[e->at + 1] == '|');
        e->at += end;
        if (!end)
            sequence = add_pair(e, PART_CAT, sequence, read_repeated(e));
    }
    return outermost && !end ? add_pair(e, PART_CAT, sequence, add_rest(e)) : sequence;
}

static int read_choice(expression *e)
{
    if (++e->depth > NEST_MAX)
        return refuse(e, "groups too deep inside one another");
    int choice = read_sequence(e);
    while (takes(e, "|"))
        choice = add_pair(e, PART_ALT, choice, read_sequence(e));
    e->depth--;
    return choice;
}

/* ---- building ---- */

typedef struct build {
    pm_grammar *grammar;
    const part *parts;
    pm_spelling spelling;
    int32_t most; /* < 0: no limit */
} build;

/* Where a part begins that `next` comes after, which takes at least `after` characters more. */
static int32_t build_part(const build *b, int number, int32_t next, int after);

/* The copies of a repeated part that may be left out, behind those that may not. */
static int32_t build_optional(const build *b, const part *p, int32_t next, int after)
{
    pm_grammar *grammar = b->grammar;
    if (p->most < 0) {
        int32_t loop = pm_node_split(grammar);
        pm_way_add(grammar, loop, build_part(b, p->a, loop, after));
        pm_way_add(grammar, loop, next);
        return loop;
    }
    int32_t node = next;
    for (int i = p->least; i < p->most && grammar->status == PM_OK; i++)
        node = pm_node_either(grammar, build_part(b, p->a, node, after), next);
    return node;
}

static int32_t build_part(const build *b, int number, int32_t next, int after)
{
    pm_grammar *grammar = b->grammar;
    const part *p = &b->parts[number];
    if (grammar->status != PM_OK)
        return 0;
    switch (p->kind) {
    case PART_SET: {
        int32_t node = pm_char_set_build(grammar, &p->set, b->spelling, next);
        if (b->most < 0)
            return node;
        return b->most > after ? pm_node_count(grammar, b->most - after, node) : 0;
    }
    case PART_CAT:
        next = build_part(b, p->b, next, after);
        return build_part(b, p->a, next, limit((int64_t)after + b->parts[p->b].shortest));
    case PART_ALT: {
        int32_t one = build_part(b, p->a, next, after);
        return pm_node_either(grammar, one, build_part(b, p->b, next, after));
    }
    case PART_REPEAT: {
        int32_t node = build_optional(b, p, next, after);
        for (int i = 0; i < p->least && grammar->status == PM_OK; i++)
            node = build_part(b, p->a, node, limit((int64_t)after + (int64_t)i * b->parts[p->a].shortest));
        return node;
    }
    default: return next;
    }
}

int32_t pm_pattern_build(pm_grammar *grammar, const char *pattern, size_t len, pm_spelling spelling, int32_t least,
                         int32_t most, int32_t next, char why[128])
{
    expression e = {.text = pattern, .len = len, .why = why};
    int32_t node = 0;
    add_part(&e, (part){.kind = PART_EMPTY});
    int whole = read_choice(&e);
    if (e.status == PM_OK && e.at < e.len)
        refuse(&e, "a parenthesis without its other one");
    if (e.status == PM_OK && least > e.parts[whole].shortest)
        snprintf(why, 128, "it matches what is shorter than minLength");
    else if (e.status == PM_ERR_MEMORY && grammar->status == PM_OK)
        grammar->status = PM_ERR_MEMORY;
    else if (e.status == PM_OK) {
        int longest = e.parts[whole].longest;
        build b = {grammar, e.parts, spelling, longest >= 0 && longest <= most ? -1 : most};
        node = build_part(&b, whole, next, 0);
    }
    for (size_t i = 0; i < e.n; i++)
        pm_char_set_free(&e.parts[i].set);
    free(e.parts);
    return node;
}
