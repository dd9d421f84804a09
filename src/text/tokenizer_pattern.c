/* Patterns. The `tokenizers` library matches with Oniguruma (syntax: ONIG_SYNTAX_DEFAULT); we match with PCRE2. Most of
 * the two languages is the same; here what differs is rewritten, and what has no equal is refused by name:
 *
 *   \p{..} \d    PCRE2 may know fewer characters (tokenizer_class.c).
 *   \s \S        White_Space. PCRE2 also counts U+180E.
 *   \w \W \b \B  Alphabetic, marks, decimal digits, connectors. PCRE2 leaves marks out.
 *   \h \H        a hexadecimal digit. In PCRE2: horizontal space.
 *   \v           a vertical tab. In PCRE2: any vertical space.
 *   \uHHHH       a code point.
 *   x{n,m}+      a repeated repeat. In PCRE2: possessive. x{n}? is an optional x{n}.
 *   x{,n}        x{0,n}.
 *   \p{Han}      the script. In PCRE2: the script's extensions. Long names of general categories.
 *   ^ $          at every line. */
#include "text/tokenizer_parts.h"

#include <stdio.h>
#include <string.h>

#define NONE SIZE_MAX

enum { GROUPS_MAX = 100, PATTERN_MAX = 1 << 16 };

typedef struct translation {
    const char *in;
    size_t len, at;
    pm_buf out, *to; /* what is written, and where to: `out`, or the class in the making */
    size_t atom;     /* where in `out` the last thing that can be repeated starts */
    size_t groups[GROUPS_MAX];
    int depth;
    char why[128]; /* what is not supported */
} translation;

/* What a letter after a backslash becomes, outside and inside of brackets. */
static const struct escape {
    char letter;
    const char *outside, *inside; /* NULL: not supported there */
} escapes[] = {
    {'b', NULL, "\\x08"},    {'R', "\\R", NULL},  {'X', "\\X", NULL},  {'A', "\\A", NULL},  {'z', "\\z", NULL},
    {'Z', "\\Z", NULL},      {'t', "\\t", "\\t"}, {'n', "\\n", "\\n"}, {'r', "\\r", "\\r"}, {'f', "\\f", "\\f"},
    {'v', "\\x0b", "\\x0b"}, {'a', "\\a", "\\a"}, {'e', "\\e", "\\e"},
};

static int put(translation *t, const char *s)
{
    return pm_buf_add(t->to, s, strlen(s));
}

/* Records what is not supported. */
static int refuse(translation *t, const char *what, const char *s, size_t len)
{
    snprintf(t->why, sizeof(t->why), "%s%.*s", what, (int)(len < 64 ? len : 64), s);
    return PM_ERR_UNSUPPORTED;
}

static bool more(const translation *t)
{
    return t->at < t->len;
}

static bool next_is(const translation *t, const char *s)
{
    size_t n = strlen(s);
    return t->len - t->at >= n && memcmp(t->in + t->at, s, n) == 0;
}

/* Copies one character as itself. */
static int literal(translation *t)
{
    size_t n;
    pm_char_at(t->in + t->at, &n);
    t->at += n;
    if (n == 1 && strchr("\\^$.[]|()?*+{}-#&~", t->in[t->at - 1]) && put(t, "\\") != PM_OK)
        return PM_ERR_MEMORY;
    return pm_buf_add(t->to, t->in + t->at - n, n);
}

/* \p{Name}, \p{^Name} or \P{Name}; t->at is behind the letter. */
static int property(translation *t, char letter, pm_class *class)
{
    const char *end = more(t) && t->in[t->at] == '{' ? memchr(t->in + t->at, '}', t->len - t->at) : NULL;
    if (!end)
        return refuse(t, "\\p without {name}", "", 0);
    const char *name = t->in + t->at + 1;
    bool negative = letter == 'P';
    if (*name == '^') {
        negative = !negative;
        name++;
    }
    t->at += (size_t)(end - (t->in + t->at)) + 1;
    int status = pm_class_property(class, name, (size_t)(end - name), negative);
    return status == PM_ERR_UNSUPPORTED ? refuse(t, "property ", name, (size_t)(end - name)) : status;
}

/* Adds to the class what the letter after a backslash, which t->at is behind, stands for when that is a set of
 * characters; *is_set tells whether it is. */
static int set_escape(translation *t, char letter, bool inside, pm_class *class, bool *is_set)
{
    *is_set = memchr("pPsSdDwWhH", letter, 10) != NULL;
    switch (letter) {
    case 'p':
    case 'P': return property(t, letter, class);
    case 's':
    case 'S': return pm_class_property(class, "White_Space", 11, letter == 'S');
    case 'd':
    case 'D': return pm_class_property(class, "Nd", 2, letter == 'D');
    case 'w':
    case 'W': return pm_class_word(class, !inside, letter == 'W');
    case 'h': return pm_buf_printf(&class->brackets, "0-9A-Fa-f");
    case 'H': return pm_buf_printf(&class->alone, "%s[^0-9A-Fa-f]", class->alone.len ? "|" : "");
    default: return PM_OK;
    }
}

/* \b or with `negative` \B. */
static int word_border(translation *t, bool negative)
{
    pm_class class = {0};
    pm_buf word = {0};
    int status = pm_class_word(&class, true, false);
    if (status == PM_OK)
        status = pm_class_write(&class, false, &word);
    if (status == PM_OK)
        status = pm_buf_printf(t->to, "(?:(?<=%s)(?%c%s)|(?<!%s)(?%c%s))", word.data, negative ? '=' : '!', word.data,
                               word.data, negative ? '!' : '=', word.data);
    pm_buf_free(&word);
    pm_class_free(&class);
    return status;
}

/* \x{H...}, \xHH, \uHHHH; t->at is behind the letter. */
static int code_point(translation *t, char letter)
{
    static const char hex[] = "0123456789abcdefABCDEF";
    bool braces = letter == 'x' && more(t) && t->in[t->at] == '{';
    t->at += braces;
    size_t n = 0, most = letter == 'u' ? 4 : braces ? 6 : 2;
    unsigned value = 0;
    for (; n < most && more(t) && memchr(hex, t->in[t->at], sizeof(hex) - 1); n++) {
        char c = t->in[t->at++];
        value = value * 16 + (unsigned)(c <= '9' ? c - '0' : (c | 32) - 'a' + 10);
    }
    bool closed = !braces || (more(t) && t->in[t->at++] == '}');
    /* \xHH is a byte of UTF-8 to Oniguruma. */
    if (!n || !closed || (letter == 'u' && n < 4) || value > 0x10FFFF || (letter == 'x' && !braces && value > 0x7F) ||
        (value >= 0xD800 && value < 0xE000))
        return refuse(t, "escape \\", &letter, 1);
    return pm_buf_printf(t->to, "\\x{%x}", value);
}

/* A backslash and what belongs to it. Inside of brackets a set goes to `class`, and *is_set tells whether it was one:
 * no range can end with it. */
static int escape(translation *t, pm_class *class, bool *is_set)
{
    bool inside = class != NULL;
    pm_class alone = {0};
    *is_set = false;
    t->at++;
    if (!more(t))
        return refuse(t, "a backslash at the end", "", 0);
    char letter = t->in[t->at];
    bool alphanumeric =
        (letter >= '0' && letter <= '9') || (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z');
    if (!alphanumeric)
        return literal(t);
    t->at++;
    if (letter == 'x' || letter == 'u')
        return code_point(t, letter);
    if (!inside && (letter == 'b' || letter == 'B'))
        return word_border(t, letter == 'B');
    int status = set_escape(t, letter, inside, inside ? class : &alone, is_set);
    if (*is_set && !inside && status == PM_OK)
        status = pm_class_write(&alone, false, t->to);
    pm_class_free(&alone);
    if (*is_set || status != PM_OK)
        return status;
    for (size_t k = 0; k < PM_COUNT(escapes); k++)
        if (escapes[k].letter == letter && (inside ? escapes[k].inside : escapes[k].outside))
            return put(t, inside ? escapes[k].inside : escapes[k].outside);
    return refuse(t, inside ? "in brackets, escape \\" : "escape \\", &letter, 1);
}

/* What stands between brackets, into `class`. Oniguruma's nested classes and intersections have no equal in PCRE2. */
static int class_members(translation *t, pm_class *class)
{
    bool set = false;
    int status = PM_OK;
    while (status == PM_OK && more(t) && t->in[t->at] != ']') {
        if (next_is(t, "["))
            return refuse(t, "a class inside a class", "", 0);
        if (next_is(t, "&&"))
            return refuse(t, "intersection (&&) of classes", "", 0);
        if (next_is(t, "\\")) {
            status = escape(t, class, &set);
        } else if (next_is(t, "-") && !set) {
            status = put(t, "-");
            t->at++;
        } else {
            status = literal(t);
            set = false;
        }
    }
    return status == PM_OK && !more(t) ? refuse(t, "a class without its ]", "", 0) : status;
}

static int brackets(translation *t)
{
    pm_class class = {0};
    t->at++;
    bool negative = next_is(t, "^");
    t->at += negative;
    if (next_is(t, "]"))
        return refuse(t, "an empty class or ] as its first character", "", 0);
    t->to = &class.brackets;
    int status = class_members(t, &class);
    t->to = &t->out;
    t->at++;
    if (status == PM_OK)
        status = pm_class_write(&class, negative, t->to);
    pm_class_free(&class);
    return status;
}

/* The start of a group. */
static int open_group(translation *t)
{
    static const char *const kinds[] = {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?-i:"};
    if (t->depth == GROUPS_MAX)
        return refuse(t, "groups nested so deep", "", 0);
    /* Behind something else, Oniguruma lets a bare option also govern the alternatives that follow; PCRE2 does too, but
     * without making them a group. */
    if (next_is(t, "(?i)") && t->at == 0) {
        t->at += 4;
        return put(t, "(?i)");
    }
    const char *kind = next_is(t, "(?") || next_is(t, "(*") ? NULL : "(";
    for (size_t k = 0; k < PM_COUNT(kinds) && !kind; k++)
        if (next_is(t, kinds[k]))
            kind = kinds[k];
    if (!kind)
        return refuse(t, "group ", t->in + t->at, t->len - t->at < 3 ? t->len - t->at : 3);
    t->groups[t->depth++] = t->out.len;
    t->atom = NONE;
    t->at += strlen(kind);
    return put(t, kind);
}

static int close_group(translation *t)
{
    if (!t->depth)
        return refuse(t, "a ) without its (", "", 0);
    t->atom = t->groups[--t->depth];
    t->at++;
    return put(t, ")");
}

/* Makes the last thing and its quantifier a group, so that another quantifier can follow. */
static int wrap_atom(translation *t)
{
    static const char open[] = "(?:";
    int status = pm_buf_reserve(&t->out, sizeof(open));
    if (status != PM_OK)
        return status;
    memmove(t->out.data + t->atom + 3, t->out.data + t->atom, t->out.len - t->atom);
    memcpy(t->out.data + t->atom, open, 3);
    t->out.len += 3;
    return put(t, ")");
}

/* Reads {n}, {n,}, {,m} or {n,m}: its length, or 0 when the brace is only a character. */
static size_t interval(const translation *t, int *least, int *most)
{
    size_t i = t->at + 1;
    int bound[2] = {-1, -1}, k = 0;
    for (; i < t->len && t->in[i] != '}'; i++) {
        char c = t->in[i];
        if (c == ',' && k == 0)
            k = 1;
        else if (c >= '0' && c <= '9' && bound[k] < 10000)
            bound[k] = (bound[k] < 0 ? 0 : bound[k] * 10) + (c - '0');
        else
            return 0;
    }
    if (i == t->len || (bound[0] < 0 && bound[1] < 0))
        return 0;
    *least = bound[0] < 0 ? 0 : bound[0];
    *most = k ? bound[1] : *least;
    return i + 1 - t->at;
}

static int quantifier(translation *t)
{
    if (t->atom == NONE)
        return refuse(t, "a quantifier with nothing to repeat", "", 0);
    int least = 0, most = 0, status;
    if (t->in[t->at] != '{') {
        char text[3] = {t->in[t->at++]};
        if (more(t) && (t->in[t->at] == '?' || t->in[t->at] == '+')) /* lazy; possessive */
            text[1] = t->in[t->at++];
        status = put(t, text);
    } else {
        t->at += interval(t, &least, &most);
        status = most < 0        ? pm_buf_printf(&t->out, "{%d,}", least)
                 : most == least ? pm_buf_printf(&t->out, "{%d}", least)
                                 : pm_buf_printf(&t->out, "{%d,%d}", least, most);
        char then = more(t) ? t->in[t->at] : 0;
        if (status == PM_OK && (then == '+' || (then == '?' && most == least)))
            status = wrap_atom(t);
        if (status == PM_OK && (then == '?' || then == '+')) {
            t->at++;
            status = pm_buf_add(&t->out, &then, 1);
        }
    }
    t->atom = NONE;
    return status;
}

/* The next element of the pattern. */
static int element(translation *t)
{
    char c = t->in[t->at];
    int least, most;
    bool set;
    if (c == '(')
        return open_group(t);
    if (c == ')')
        return close_group(t);
    if (c == '|') {
        t->at++;
        t->atom = NONE;
        return put(t, "|");
    }
    if (c == '*' || c == '+' || c == '?' || (c == '{' && interval(t, &least, &most)))
        return quantifier(t);
    t->atom = t->out.len;
    if (c == '[')
        return brackets(t);
    if (c == '\\')
        return escape(t, NULL, &set);
    if (c == '^' || c == '$' || c == '.') {
        t->at++;
        return pm_buf_add(&t->out, &c, 1);
    }
    return literal(t);
}

/* Compiles what was translated. Without JIT, matching is interpreted, with the same results. */
static int compile(pcre2_code **out, const char *pattern, size_t len, uint32_t options, char *why, size_t why_size)
{
    int error = 0;
    PCRE2_SIZE offset;
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (!context)
        return PM_ERR_MEMORY;
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    pcre2_set_bsr(context, PCRE2_BSR_UNICODE);
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)pattern, len, PCRE2_UTF | options, &error, &offset, context);
    pcre2_compile_context_free(context);
    if (!code) {
        pcre2_get_error_message(error, (PCRE2_UCHAR *)why, why_size);
        return PM_ERR_UNSUPPORTED;
    }
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
    *out = code;
    return PM_OK;
}

int pm_pattern_compile(pm_pattern *pattern, const pm_tok_file *file, const char *text, size_t len, const char *where,
                       bool plain)
{
    translation t = {.in = text, .len = len, .atom = NONE};
    t.to = &t.out;
    int status = len > PATTERN_MAX ? refuse(&t, "its length", "", 0) : PM_OK;
    while (status == PM_OK && !plain && more(&t))
        status = element(&t);
    if (status == PM_OK && t.depth)
        status = refuse(&t, "a ( without its )", "", 0);
    if (status == PM_OK && !plain)
        status = pm_buf_reserve(&t.out, 0);
    if (status == PM_OK)
        status = plain ? compile(&pattern->code, text, len, PCRE2_LITERAL, t.why, sizeof(t.why))
                       : compile(&pattern->code, t.out.data, t.out.len,
                                 PCRE2_MULTILINE | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, t.why, sizeof(t.why));
    pm_buf_free(&t.out);
    pattern->name = text;
    if (status == PM_ERR_UNSUPPORTED)
        return pm_fail(file->err, status, "%s: %s: the pattern '%.400s' is not supported: %s", file->path, where, text,
                       t.why);
    return status == PM_OK ? PM_OK : pm_fail_memory(file->err);
}

int pm_pattern_load(pm_pattern *pattern, pm_arena *arena, const pm_tok_file *file, const json_t *value,
                    const char *where)
{
    char of[64];
    const char *text;
    size_t len;
    bool literal = json_object_get(value, "String") != NULL;
    snprintf(of, sizeof(of), "%s: pattern", where);
    int status = pm_tok_object(file, value, of, literal ? "String" : "Regex");
    if (status == PM_OK)
        status = pm_tok_string(file, value, of, literal ? "String" : "Regex", &text, &len);
    if (status != PM_OK)
        return status;
    char *copy = pm_arena_strdup(arena, text, len);
    return copy ? pm_pattern_compile(pattern, file, copy, len, where, literal) : pm_fail_memory(file->err);
}

void pm_pattern_free(pm_pattern *pattern)
{
    pcre2_code_free(pattern->code);
    pattern->code = NULL;
}
