/* The normalisation forms of UAX 15, with the characters that the `tokenizers` library knows. */
#include "text/tokenizer_parts.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

static bool composes(pm_normal_kind form)
{
    return form == PM_NORMAL_NFC || form == PM_NORMAL_NFKC;
}

static bool compatible(pm_normal_kind form)
{
    return form == PM_NORMAL_NFKC || form == PM_NORMAL_NFKD;
}

/* Sorts every run of combining marks by combining class, keeping the order within a class. Counting makes a long run
 * cost no more than many short ones. */
static void sort_marks(int32_t *chars, int32_t *sorted, size_t n)
{
    for (size_t i = 0, end; i < n; i = end) {
        size_t count[257] = {0};
        for (end = i; end < n && pm_char_class(chars[end]); end++)
            count[pm_char_class(chars[end]) + 1]++;
        if (end - i > 1) {
            for (int class = 1; class < 257; class ++)
                count[class] += count[class - 1];
            for (size_t k = i; k < end; k++)
                sorted[count[pm_char_class(chars[k])]++] = chars[k];
            memcpy(chars + i, sorted, (end - i) * sizeof(*chars));
        }
        end += end == i;
    }
}

/* What a and b compose to; 0 when they do not. */
static int32_t pair(int32_t a, int32_t b)
{
    int32_t both[3] = {a, b};
    if (utf8proc_normalize_utf32(both, 2, UTF8PROC_COMPOSE | UTF8PROC_STABLE) != 1)
        return 0;
    return pm_char_kind(both[0]) & PM_CHAR_WHOLE ? 0 : both[0];
}

/* True for the characters without a combining class that can be the second of a pair: vowels and finals of Hangul, and
 * some spacing marks. */
static bool second_starter(int32_t c)
{
    if ((c >= 0x1161 && c <= 0x1175) || (c >= 0x11A8 && c <= 0x11C2))
        return true;
    utf8proc_category_t category = utf8proc_category(c);
    return category == UTF8PROC_CATEGORY_MC || category == UTF8PROC_CATEGORY_MN;
}

/* Composes in place: every character with the last starter before it, unless one between the two blocks it. */
static size_t compose(int32_t *chars, size_t n)
{
    size_t kept = 0, starter = SIZE_MAX;
    int last = 0; /* the class of the last one kept */
    for (size_t i = 0; i < n; i++) {
        int32_t c = chars[i], both = 0;
        int class = pm_char_class(c);
        if (starter != SIZE_MAX && (kept - 1 == starter || last < class) && (class || second_starter(c)))
            both = pair(chars[starter], c);
        if (both) {
            chars[starter] = both;
            continue;
        }
        if (!class)
            starter = kept;
        last = class;
        chars[kept++] = c;
    }
    return kept;
}

static int grow_chars(int32_t **chars, size_t *cap, size_t n)
{
    void *p = *chars;
    int status = pm_grow(&p, cap, n, sizeof(**chars));
    *chars = p;
    return status;
}

/* Puts the form of in[start..end): decompose, order, compose. */
static int put_form(pm_normal_kind form, const pm_section *in, size_t start, size_t end, pm_normalizer_work *work,
                    pm_buf *text)
{
    enum { LONGEST = 32 }; /* no character decomposes into more (the longest is 18) */
    utf8proc_option_t options = UTF8PROC_DECOMPOSE | UTF8PROC_STABLE;
    if (compatible(form))
        options |= UTF8PROC_COMPAT;
    size_t n = 0;
    for (size_t i = start, k; i < end; i += k) {
        int boundary = 0;
        if (grow_chars(&work->chars, &work->chars_cap, n + LONGEST) != PM_OK)
            return PM_ERR_MEMORY;
        int32_t c = pm_char_at(in->text + i, &k), *out = work->chars + n;
        utf8proc_ssize_t m = utf8proc_decompose_char(c, out, LONGEST, options, &boundary);
        if (m != 1 && pm_char_kind(c) & PM_CHAR_WHOLE)
            m = 1;
        if (m == 1 && *out != c && pm_char_kind(c) & PM_CHAR_WHOLE)
            *out = c;
        n += m > 0 ? (size_t)m : 0;
    }
    if (grow_chars(&work->sorted, &work->sorted_cap, n) != PM_OK)
        return PM_ERR_MEMORY;
    sort_marks(work->chars, work->sorted, n);
    if (composes(form))
        n = compose(work->chars, n);
    text->len = 0;
    if (pm_buf_reserve(text, 4 * n) != PM_OK)
        return PM_ERR_MEMORY;
    for (size_t i = 0; i < n; i++)
        text->len += pm_char_put(work->chars[i], text->data + text->len);
    return pm_normal_put(work, in, start, end, text->data, text->len);
}

/* In UTF-8, the first bytes below `high` belong to characters that a form leaves alone and that never are the second
 * part of a composition, so that text can be cut before them: those below U+0300 in NFC, ASCII otherwise (UAX 15). */
static unsigned first_high(pm_normal_kind form)
{
    return form == PM_NORMAL_NFC ? 0xCC : 0x80;
}

/* The first byte at or after `at` that is not below `high`. */
static size_t next_high(const pm_section *in, size_t at, unsigned high)
{
    while (at < in->len && (unsigned char)in->text[at] < high)
        at++;
    return at;
}

/* True when a stretch ends before the byte: it starts a character that is left alone. */
static bool ends_stretch(unsigned char byte, unsigned high)
{
    return byte < 0x80 || (byte >= 0xC0 && byte < high);
}

int pm_normal_form(pm_normal_kind form, const pm_section *in, pm_normalizer_work *work, bool *changed)
{
    unsigned limit = first_high(form);
    size_t high = next_high(in, 0, limit);
    pm_buf text = {0};
    int status = PM_OK;
    *changed = high < in->len;
    for (size_t at = 0, end; *changed && at < in->len && status == PM_OK; at = end) {
        /* As it is: everything before the last character that comes before `high`, to which marks may belong. */
        end = high == in->len ? high : high > at ? pm_char_before(in->text, high) : at;
        if (end > at)
            status = pm_normal_put(work, in, at, end, in->text + at, end - at);
        if (end == in->len || status != PM_OK)
            break;
        at = end;
        for (end = high + 1; end < in->len && !ends_stretch((unsigned char)in->text[end], limit);)
            end++;
        status = put_form(form, in, at, end, work, &text);
        high = next_high(in, end, limit);
    }
    pm_buf_free(&text);
    return status;
}
