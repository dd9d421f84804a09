/* Tokens, as Jinja's lexer cuts them with trim_blocks and lstrip_blocks on and keep_trailing_newline off. */
#include "text/template_impl.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct lexer {
    tpl_heap *heap;
    const char *name;
    const char *s; /* newlines normalised */
    size_t n, at;
    tpl_place place;    /* of s[at] */
    tpl_place token;    /* where the token that is being read starts */
    bool line_starting; /* the last piece ended in a newline (or nothing was read) */
    char open[TPL_MAX_NEST];
    int n_open;
    tpl_token *tokens;
    size_t n_tokens, cap;
    pm_error *err;
} lexer;

static int fail(lexer *lx, pm_status code, const char *format, ...) __attribute__((format(printf, 3, 4)));

static int fail(lexer *lx, pm_status code, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    return pm_fail(lx->err, code, "%s:%d:%d: %s", lx->name, lx->place.line, lx->place.column, text);
}

static int add(lexer *lx, tpl_token token)
{
    void *tokens = lx->tokens;
    int status = pm_grow(&tokens, &lx->cap, lx->n_tokens + 1, sizeof(token));
    lx->tokens = tokens;
    if (status != PM_OK)
        return pm_fail_memory(lx->err);
    token.place = lx->token;
    lx->tokens[lx->n_tokens++] = token;
    return PM_OK;
}

/* Copies text into the heap, terminated. */
static char *keep(lexer *lx, const char *text, size_t len)
{
    char *copy = pm_tpl_alloc(lx->heap, len + 1, 1);
    if (copy && len)
        memcpy(copy, text, len);
    return copy;
}

static int add_text(lexer *lx, tpl_token_type type, const char *text, size_t len)
{
    if (type == TPL_T_DATA && !len)
        return PM_OK;
    char *copy = keep(lx, text, len);
    if (!copy)
        return pm_fail_memory(lx->err);
    return add(lx, (tpl_token){.type = type, .text = copy, .len = len});
}

static size_t space_at(const lexer *lx, size_t at)
{
    size_t next = at;
    return at < lx->n && pm_tpl_is_space(pm_tpl_code(lx->s, lx->n, &next)) ? next - at : 0;
}

/* The end of text[from..to) without trailing white space. */
static size_t trimmed(const lexer *lx, size_t from, size_t to)
{
    size_t end = from;
    for (size_t at = from; at < to;) {
        size_t space = space_at(lx, at);
        if (space) {
            at += space;
        } else {
            pm_tpl_code(lx->s, lx->n, &at);
            end = at;
        }
    }
    return end;
}

static bool starts(const lexer *lx, size_t at, const char *text)
{
    size_t len = strlen(text);
    return lx->n - at >= len && !memcmp(lx->s + at, text, len);
}

/* Moves to `at`, counting lines and columns. */
static void advance(lexer *lx, size_t at)
{
    for (size_t i = lx->at; i < at; i++) {
        if (lx->s[i] == '\n')
            lx->place = (tpl_place){lx->place.line + 1, 1};
        else
            lx->place.column += ((uint8_t)lx->s[i] & 0xC0) != 0x80;
    }
    if (at > lx->at)
        lx->line_starting = lx->s[at - 1] == '\n';
    lx->at = at;
}

static size_t skip_space(const lexer *lx, size_t at)
{
    for (size_t space; (space = space_at(lx, at));)
        at += space;
    return at;
}

/* Where a closing delimiter that starts at `at` ends, with what it swallows after it, or 0 when none is there.
 * `plus`: "+" is allowed before it; `trim`: it swallows one newline. */
static size_t closing(const lexer *lx, size_t at, const char *end, bool plus, bool trim)
{
    size_t len = strlen(end);
    if (starts(lx, at, "-") && starts(lx, at + 1, end))
        return skip_space(lx, at + 1 + len);
    if (plus && starts(lx, at, "+") && starts(lx, at + 1, end))
        return at + 1 + len;
    if (!starts(lx, at, end))
        return 0;
    at += len;
    return trim && at < lx->n && lx->s[at] == '\n' ? at + 1 : at;
}

/* Emits text[lx->at..to) before a tag whose whitespace sign is `sign`. `strip`: lstrip_blocks applies. */
static int text_before(lexer *lx, size_t to, char sign, bool strip)
{
    size_t from = lx->at, end = to;
    if (sign == '-') {
        end = trimmed(lx, from, to);
    } else if (sign != '+' && strip) {
        size_t line = to;
        while (line > from && lx->s[line - 1] != '\n')
            line--;
        if ((line > from || lx->line_starting) && trimmed(lx, line, to) == line)
            end = line;
    }
    return add_text(lx, TPL_T_DATA, lx->s + from, end - from);
}

static char sign_at(const lexer *lx, size_t at)
{
    return at < lx->n && (lx->s[at] == '-' || lx->s[at] == '+') ? lx->s[at] : 0;
}

/* {% raw %} at `at`: the end of its opening tag, or 0. */
static size_t raw_begin(const lexer *lx, size_t at)
{
    if (!starts(lx, at, "{%"))
        return 0;
    at += 2;
    at = skip_space(lx, sign_at(lx, at) ? at + 1 : at);
    if (!starts(lx, at, "raw"))
        return 0;
    at = skip_space(lx, at + 3);
    return closing(lx, at, "%}", false, false);
}

/* The raw text after its opening tag, which ends at `from`, up to and past {% endraw %}. */
static int lex_raw(lexer *lx, size_t from)
{
    for (size_t at = from; at < lx->n; at++) {
        if (!starts(lx, at, "{%"))
            continue;
        char sign = sign_at(lx, at + 2);
        size_t word = skip_space(lx, at + 2 + (sign != 0)), end;
        if (!starts(lx, word, "endraw") || !(end = closing(lx, skip_space(lx, word + 6), "%}", true, true)))
            continue;
        advance(lx, from);
        int status = text_before(lx, at, sign, true);
        advance(lx, end);
        return status;
    }
    return fail(lx, PM_ERR_FORMAT, "a raw block is not closed");
}

static int lex_comment(lexer *lx, size_t from)
{
    for (size_t at = from; at < lx->n; at++) {
        size_t end = closing(lx, at, "#}", true, true);
        if (end) {
            advance(lx, end);
            return PM_OK;
        }
    }
    return fail(lx, PM_ERR_FORMAT, "a comment is not closed");
}

/* ---- inside tags ---- */

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_word(char c)
{
    return is_digit(c) || c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* The end of digits that may have single underscores between them; `at` when there are none. */
static size_t digits(const lexer *lx, size_t at, const char *allowed)
{
    size_t end = at;
    while (at < lx->n) {
        if (lx->s[at] && strchr(allowed, lx->s[at]))
            end = ++at;
        else if (lx->s[at] == '_' && end == at && end > 0 && at + 1 < lx->n && lx->s[at + 1] &&
                 strchr(allowed, lx->s[at + 1]))
            at++;
        else
            break;
    }
    return end;
}

static int lex_integer(lexer *lx, const char *allowed, int base, size_t start)
{
    size_t end = digits(lx, start, allowed);
    int64_t value = 0;
    for (size_t i = start; i < end; i++) {
        char c = lx->s[i];
        if (c == '_')
            continue;
        int digit = is_digit(c) ? c - '0' : (c | 32) - 'a' + 10;
        if (__builtin_mul_overflow(value, base, &value) || __builtin_add_overflow(value, digit, &value))
            return fail(lx, PM_ERR_UNSUPPORTED, "an integer does not fit 64 bits");
    }
    advance(lx, end);
    return add(lx, (tpl_token){.type = TPL_T_INT, .i = value});
}

/* A number at lx->at, which is at a digit. */
static int lex_number(lexer *lx)
{
    static const char decimal[] = "0123456789";
    size_t start = lx->at, end = digits(lx, start, decimal);
    bool is_float = false;
    if (!(start && lx->s[start - 1] == '.')) {
        if (end + 1 < lx->n && lx->s[end] == '.' && is_digit(lx->s[end + 1])) {
            end = digits(lx, end + 1, decimal);
            is_float = true;
        }
        if (end < lx->n && (lx->s[end] | 32) == 'e') {
            size_t exponent = end + 1 + (sign_at(lx, end + 1) != 0);
            if (exponent < lx->n && is_digit(lx->s[exponent])) {
                end = digits(lx, exponent, decimal);
                is_float = true;
            }
        }
    }
    if (is_float) {
        /* Without its point the number reads the same in every locale. */
        char text[400];
        size_t len = 0, point = 0, i = start;
        for (; i < end && (lx->s[i] | 32) != 'e' && len < 300; i++) {
            if (lx->s[i] == '.')
                point = i + 1;
            else if (lx->s[i] != '_') {
                text[len++] = lx->s[i];
            }
        }
        size_t fraction = 0;
        for (size_t k = point; point && k < i; k++)
            fraction += lx->s[k] != '_';
        if (i < end && (lx->s[i] | 32) != 'e')
            return fail(lx, PM_ERR_UNSUPPORTED, "a number is too long");
        long exponent = i < end ? strtol(lx->s + i + 1, NULL, 10) : 0;
        if (exponent > 100000 || exponent < -100000)
            return fail(lx, PM_ERR_UNSUPPORTED, "the exponent of a number is too large");
        snprintf(text + len, sizeof(text) - len, "e%ld", exponent - (long)fraction);
        advance(lx, end);
        return add(lx, (tpl_token){.type = TPL_T_FLOAT, .f = strtod(text, NULL)});
    }
    if (lx->s[start] == '0' && start + 2 < lx->n) {
        static const struct {
            char letter;
            int base;
            const char *allowed;
        } bases[] = {{'x', 16, "0123456789abcdefABCDEF"}, {'o', 8, "01234567"}, {'b', 2, "01"}};
        for (size_t i = 0; i < PM_COUNT(bases); i++)
            if ((lx->s[start + 1] | 32) == bases[i].letter && strchr(bases[i].allowed, lx->s[start + 2]) &&
                lx->s[start + 2])
                return lex_integer(lx, bases[i].allowed, bases[i].base, start + 2);
    }
    return lex_integer(lx, lx->s[start] == '0' ? "0" : decimal, 10, start);
}

static size_t put_utf8(char *out, uint32_t code)
{
    if (code < 0x80)
        return out[0] = (char)code, 1;
    if (code < 0x800)
        return out[0] = (char)(0xC0 | code >> 6), out[1] = (char)(0x80 | (code & 63)), 2;
    if (code < 0x10000)
        return out[0] = (char)(0xE0 | code >> 12), out[1] = (char)(0x80 | (code >> 6 & 63)),
               out[2] = (char)(0x80 | (code & 63)), 3;
    return out[0] = (char)(0xF0 | code >> 18), out[1] = (char)(0x80 | (code >> 12 & 63)),
           out[2] = (char)(0x80 | (code >> 6 & 63)), out[3] = (char)(0x80 | (code & 63)), 4;
}

/* Reads `n` hexadecimal digits; false when there are fewer. */
static bool hex(const char *s, size_t left, size_t n, uint32_t *out)
{
    uint32_t code = 0;
    if (left < n)
        return false;
    for (size_t i = 0; i < n; i++) {
        char letter = (char)(s[i] | 32);
        if (!is_digit(s[i]) && !(letter >= 'a' && letter <= 'f'))
            return false;
        code = code << 4 | (uint32_t)(is_digit(s[i]) ? s[i] - '0' : letter - 'a' + 10);
    }
    *out = code;
    return true;
}

/* One escape of a string literal: s[*at] follows the backslash. Python's "unicode-escape" codec; an escape that it does
 * not know keeps its backslash. */
static int unescape(lexer *lx, const char *s, size_t n, size_t *at, char *out, size_t *len)
{
    static const char plain[] = "\\'\"abfnrtv", meaning[] = "\\'\"\a\b\f\n\r\t\v";
    char c = s[(*at)++];
    const char *known = c ? strchr(plain, c) : NULL;
    uint32_t code = 0;
    if (c == '\n')
        return PM_OK;
    if (known) {
        out[(*len)++] = meaning[known - plain];
        return PM_OK;
    }
    if (c >= '0' && c <= '7') {
        code = (uint32_t)(c - '0');
        for (int i = 0; i < 2 && *at < n && s[*at] >= '0' && s[*at] <= '7'; i++)
            code = code * 8 + (uint32_t)(s[(*at)++] - '0');
        *len += put_utf8(out + *len, code);
        return PM_OK;
    }
    size_t n_hex = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (n_hex) {
        if (!hex(s + *at, n - *at, n_hex, &code) || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
            return fail(lx, PM_ERR_FORMAT, "a string has a bad \\%c escape", c);
        *at += n_hex;
        *len += put_utf8(out + *len, code);
        return PM_OK;
    }
    if (c == 'N')
        return fail(lx, PM_ERR_UNSUPPORTED, "\\N escapes in strings are not supported");
    out[(*len)++] = '\\';
    if ((unsigned char)c < 0x80) {
        out[(*len)++] = c;
        return PM_OK;
    }
    /* Jinja writes other characters as escapes before decoding, so the backslash here escapes that escape. */
    size_t from = *at - 1;
    code = (uint32_t)pm_tpl_code(s, n, &from);
    *at = from;
    *len += (size_t)sprintf(out + *len, code < 0x100 ? "x%02x" : code < 0x10000 ? "u%04x" : "U%08x", code);
    return PM_OK;
}

static int lex_string(lexer *lx)
{
    char quote = lx->s[lx->at];
    size_t from = lx->at + 1, end = from, len = 0;
    while (end < lx->n && lx->s[end] != quote)
        end += lx->s[end] == '\\' ? 2 : 1;
    if (end >= lx->n)
        return fail(lx, PM_ERR_FORMAT, "a string is not closed");
    char *out = pm_tpl_alloc(lx->heap, (end - from) * 4 + 16, 1);
    if (!out)
        return pm_fail_memory(lx->err);
    for (size_t at = from; at < end;) {
        if (lx->s[at] != '\\') {
            out[len++] = lx->s[at++];
            continue;
        }
        at++;
        int status = unescape(lx, lx->s, end, &at, out, &len);
        if (status != PM_OK)
            return status;
    }
    int status = add(lx, (tpl_token){.type = TPL_T_STRING, .text = out, .len = len});
    advance(lx, end + 1);
    return status;
}

static int lex_operator(lexer *lx)
{
    static const struct {
        const char *text;
        tpl_op op;
    } operators[] = {{"//", TPL_FLOORDIV}, {"**", TPL_POW},     {"==", TPL_EQ},    {"!=", TPL_NE},
                     {">=", TPL_GE},       {"<=", TPL_LE},      {"+", TPL_ADD},    {"-", TPL_SUB},
                     {"/", TPL_DIV},       {"*", TPL_MUL},      {"%", TPL_MOD},    {"~", TPL_TILDE},
                     {"[", TPL_LBRACKET},  {"]", TPL_RBRACKET}, {"(", TPL_LPAREN}, {")", TPL_RPAREN},
                     {"{", TPL_LBRACE},    {"}", TPL_RBRACE},   {">", TPL_GT},     {"<", TPL_LT},
                     {"=", TPL_ASSIGN},    {".", TPL_DOT},      {":", TPL_COLON},  {"|", TPL_PIPE},
                     {",", TPL_COMMA},     {";", TPL_SEMICOLON}};
    char c = lx->s[lx->at];
    for (size_t i = 0; i < PM_COUNT(operators); i++) {
        if (!starts(lx, lx->at, operators[i].text))
            continue;
        if (c == '(' || c == '[' || c == '{') {
            if (lx->n_open == TPL_MAX_NEST)
                return fail(lx, PM_ERR_UNSUPPORTED, "more than %d brackets inside one another", TPL_MAX_NEST);
            lx->open[lx->n_open++] = c == '(' ? ')' : c == '[' ? ']' : '}';
        } else if (c == ')' || c == ']' || c == '}') {
            if (!lx->n_open || lx->open[--lx->n_open] != c)
                return fail(lx, PM_ERR_FORMAT, "unexpected '%c'", c);
        }
        advance(lx, lx->at + strlen(operators[i].text));
        return add(lx, (tpl_token){.type = TPL_T_OP, .op = operators[i].op});
    }
    size_t next = lx->at;
    pm_tpl_code(lx->s, lx->n, &next);
    return fail(lx, PM_ERR_FORMAT, "unexpected character '%.*s'", (int)(next - lx->at), lx->s + lx->at);
}

/* The tokens of a tag up to and with its closing delimiter. */
static int lex_tag(lexer *lx, bool block)
{
    lx->n_open = 0;
    for (;;) {
        lx->token = lx->place;
        if (lx->at >= lx->n)
            return fail(lx, PM_ERR_FORMAT, "a tag is not closed");
        size_t end = lx->n_open ? 0 : closing(lx, lx->at, block ? "%}" : "}}", block, block);
        if (end) {
            int status = add(lx, (tpl_token){.type = block ? TPL_T_BLOCK_END : TPL_T_VAR_END});
            advance(lx, end);
            return status;
        }
        char c = lx->s[lx->at];
        int status;
        if (space_at(lx, lx->at)) {
            advance(lx, skip_space(lx, lx->at));
            continue;
        }
        if (is_digit(c)) {
            status = lex_number(lx);
        } else if (is_word(c)) {
            size_t to = lx->at;
            while (to < lx->n && is_word(lx->s[to]))
                to++;
            status = add_text(lx, TPL_T_NAME, lx->s + lx->at, to - lx->at);
            advance(lx, to);
        } else if (c == '\'' || c == '"') {
            status = lex_string(lx);
        } else {
            status = lex_operator(lx);
        }
        if (status != PM_OK)
            return status;
    }
}

/* One piece of the template: text, then the tag, comment or raw block that ends it. */
static int lex_piece(lexer *lx)
{
    size_t at = lx->at;
    lx->token = lx->place;
    while (at < lx->n && !(starts(lx, at, "{%") || starts(lx, at, "{{") || starts(lx, at, "{#")))
        at++;
    if (at >= lx->n) {
        int status = add_text(lx, TPL_T_DATA, lx->s + lx->at, lx->n - lx->at);
        advance(lx, lx->n);
        return status;
    }
    char kind = lx->s[at + 1], sign = sign_at(lx, at + 2);
    int status = text_before(lx, at, sign, kind != '{');
    if (status != PM_OK)
        return status;
    advance(lx, at);
    lx->token = lx->place;
    size_t raw = raw_begin(lx, at), start = raw ? raw : at + 2 + (sign != 0);
    if (raw || kind == '#')
        return raw ? lex_raw(lx, start) : lex_comment(lx, start);
    advance(lx, start);
    status = add(lx, (tpl_token){.type = kind == '%' ? TPL_T_BLOCK_BEGIN : TPL_T_VAR_BEGIN});
    return status == PM_OK ? lex_tag(lx, kind == '%') : status;
}

int pm_tpl_lex(tpl_heap *heap, const char *name, const char *source, size_t len, tpl_token **tokens, size_t *n,
               pm_error *err)
{
    lexer *lx = calloc(1, sizeof(*lx));
    if (!lx)
        return pm_fail_memory(err);
    *lx = (lexer){.heap = heap, .name = name, .place = {1, 1}, .line_starting = true, .err = err};
    int status = PM_OK;
    char *text = pm_tpl_alloc(heap, len + 1, 1);
    if (!text) {
        status = pm_fail_memory(err);
        goto done;
    }
    for (size_t i = 0; i < len; i++) {
        if (source[i] == '\r' && i + 1 < len && source[i + 1] == '\n')
            continue;
        text[lx->n++] = source[i] == '\r' ? '\n' : source[i];
    }
    if (lx->n && text[lx->n - 1] == '\n')
        lx->n--;
    lx->s = text;
    while (status == PM_OK && lx->at < lx->n)
        status = lex_piece(lx);
    if (status == PM_OK)
        status = (lx->token = lx->place, add(lx, (tpl_token){.type = TPL_T_EOF}));
    if (status == PM_OK) {
        *tokens = pm_tpl_alloc(heap, lx->n_tokens, sizeof(**tokens));
        if (!*tokens)
            status = pm_fail_memory(err);
        else
            memcpy(*tokens, lx->tokens, lx->n_tokens * sizeof(**tokens));
        *n = lx->n_tokens;
    }
done:
    free(lx->tokens);
    free(lx);
    return status;
}
