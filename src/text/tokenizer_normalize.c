/* Normalisers: NFC, and sequences of it. */
#include "text/tokenizer_parts.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

static int load_step(void *into, const pm_tok_file *file, const json_t *component, const char *where)
{
    pm_normalizer *normalizer = into;
    const char *type;
    int status = pm_tok_type(file, component, where, &type);
    if (status == PM_OK && strcmp(type, "NFC") != 0)
        return pm_tok_unsupported(file, where, type);
    if (status == PM_OK)
        status = pm_tok_object(file, component, "normalizer NFC", "type");
    if (status == PM_OK)
        normalizer->nfc = true;
    return status;
}

int pm_normalizer_load(pm_normalizer *normalizer, const pm_tok_file *file, const json_t *component)
{
    return pm_tok_each(file, component, "normalizer", "normalizers", load_step, normalizer);
}

void pm_normalizer_work_free(pm_normalizer_work *work)
{
    pm_buf_free(&work->text);
    pm_buf_free(&work->trust);
    free(work->chars);
    free(work->sorted);
    *work = (pm_normalizer_work){0};
}

/* Code points below U+0300 are composed already and never the second part of a composition (UAX 15), so text can be cut
 * before any of them. In UTF-8 they start with a byte below 0xCC. */
static bool starts_stretch(char byte)
{
    unsigned char c = (unsigned char)byte;
    return c < 0x80 || (c >= 0xC0 && c < 0xCC);
}

/* Sorts every run of combining marks by combining class, keeping the order within a class. Counting makes a long run
 * cost no more than many short ones. */
static void sort_marks(int32_t *chars, int32_t *sorted, size_t n)
{
    for (size_t i = 0, end; i < n; i = end) {
        size_t count[257] = {0};
        for (end = i; end < n && utf8proc_get_property(chars[end])->combining_class; end++)
            count[utf8proc_get_property(chars[end])->combining_class + 1]++;
        if (end - i > 1) {
            for (int class = 1; class < 257; class ++)
                count[class] += count[class - 1];
            for (size_t k = i; k < end; k++)
                sorted[count[utf8proc_get_property(chars[k])->combining_class]++] = chars[k];
            memcpy(chars + i, sorted, (end - i) * sizeof(*chars));
        }
        end += end == i;
    }
}

static int grow_chars(int32_t **chars, size_t *cap, size_t n)
{
    void *p = *chars;
    int status = pm_grow(&p, cap, n, sizeof(**chars));
    *chars = p;
    return status;
}

/* Appends the NFC of text[0..len) to work->text: decompose, order, compose. */
static int compose(const char *text, size_t len, pm_normalizer_work *work)
{
    enum { LONGEST = 32 }; /* no character decomposes into more (the longest is 4) */
    size_t n = 0;
    for (size_t i = 0, k; i < len; i += k) {
        int boundary = 0;
        if (grow_chars(&work->chars, &work->chars_cap, n + LONGEST) != PM_OK)
            return PM_ERR_MEMORY;
        utf8proc_ssize_t m = utf8proc_decompose_char(pm_char_at(text + i, &k), work->chars + n, LONGEST,
                                                     UTF8PROC_DECOMPOSE | UTF8PROC_STABLE, &boundary);
        n += m > 0 ? (size_t)m : 0;
    }
    if (grow_chars(&work->sorted, &work->sorted_cap, n) != PM_OK || pm_buf_reserve(&work->text, 4 * n) != PM_OK)
        return PM_ERR_MEMORY;
    sort_marks(work->chars, work->sorted, n);
    utf8proc_ssize_t m = utf8proc_normalize_utf32(work->chars, (utf8proc_ssize_t)n, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    for (utf8proc_ssize_t i = 0; i < m; i++)
        work->text.len += pm_char_put(work->chars[i], work->text.data + work->text.len);
    work->text.data[work->text.len] = 0;
    return PM_OK;
}

/* Appends the trust of in[start..end), of which the normalised form was appended to work->text from `from` on. */
static int carry_trust(const pm_section *in, size_t start, size_t end, size_t from, pm_normalizer_work *work)
{
    size_t len = work->text.len - from;
    if (!in->trust)
        return PM_OK;
    if (len == end - start && memcmp(work->text.data + from, in->text + start, len) == 0)
        return pm_buf_add(&work->trust, in->trust + start, len);
    if (pm_buf_reserve(&work->trust, len) != PM_OK)
        return PM_ERR_MEMORY;
    bool whole = memchr(in->trust + start, 0, end - start) == NULL;
    memset(work->trust.data + work->trust.len, whole, len);
    work->trust.len += len;
    return PM_OK;
}

/* The first byte at or after `at` that starts or belongs to a character from U+0300 on. */
static size_t next_high(const pm_section *in, size_t at)
{
    while (at < in->len && (unsigned char)in->text[at] < 0xCC)
        at++;
    return at;
}

int pm_normalize(const pm_normalizer *normalizer, const pm_section *in, pm_normalizer_work *work, pm_section *out,
                 pm_error *err)
{
    size_t high = normalizer->nfc ? next_high(in, 0) : in->len;
    if (high == in->len) {
        *out = *in;
        return PM_OK;
    }
    work->text.len = work->trust.len = 0;
    int status = PM_OK;
    for (size_t at = 0, end; at < in->len && status == PM_OK; at = end) {
        /* As it is: everything before the last character that comes before `high`, to which marks may belong. */
        end = high == in->len ? high : high > at ? pm_char_before(in->text, high) : at;
        size_t from = work->text.len;
        if (end > at)
            status = pm_buf_add(&work->text, in->text + at, end - at);
        if (end > at && status == PM_OK)
            status = carry_trust(in, at, end, from, work);
        if (end == in->len || status != PM_OK)
            break;
        at = end;
        from = work->text.len;
        for (end = high + 1; end < in->len && !starts_stretch(in->text[end]);)
            end++;
        status = compose(in->text + at, end - at, work);
        if (status == PM_OK)
            status = carry_trust(in, at, end, from, work);
        high = next_high(in, end);
    }
    if (status != PM_OK)
        return pm_fail_memory(err);
    *out = (pm_section){work->text.data, work->text.len, in->trust ? (const uint8_t *)work->trust.data : NULL};
    return PM_OK;
}
