/* What a rendering stands on: memory, failure, and the end of the output as the place where strings are made. */
#include "text/template_impl.h"

#include <stdio.h>
#include <string.h>

/* ---- memory ---- */

void *pm_tpl_alloc(tpl_heap *heap, size_t n, size_t size)
{
    enum { ALIGN = 16, BLOCK = 16384 };
    size_t bytes;
    if (!pm_mul(n, size, &bytes) || bytes > SIZE_MAX / 2) {
        heap->full = true;
        return NULL;
    }
    bytes = (bytes + ALIGN) / ALIGN * ALIGN; /* never 0 */
    heap->full = bytes > heap->limit - heap->used;
    if (heap->full)
        return NULL;
    heap->used += bytes;
    if (bytes > BLOCK / 4)
        return pm_arena_alloc(&heap->arena, bytes, 1);
    if (bytes > heap->left) {
        heap->at = pm_arena_alloc(&heap->arena, BLOCK, 1);
        heap->left = heap->at ? BLOCK : 0;
        if (!heap->at)
            return NULL;
    }
    char *p = heap->at;
    heap->at += bytes;
    heap->left -= bytes;
    return p;
}

void *pm_tpl_new(tpl_run *run, size_t n, size_t size)
{
    void *p = pm_tpl_alloc(&run->heap, n, size);
    if (!p && run->heap.full)
        pm_tpl_report(run, PM_ERR_MEMORY, "rendering needs more than %d MB of memory", TPL_MAX_MEMORY >> 20);
    else if (!p)
        pm_tpl_report_memory(run);
    return p;
}

/* ---- failure ---- */

void pm_tpl_report(tpl_run *run, pm_status code, const char *format, ...)
{
    if (run->status != PM_OK)
        return;
    char text[1000];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    run->status = pm_fail(run->err, code, "%s:%d:%d: %s", run->tmpl->name, run->place.line, run->place.column, text);
}

void pm_tpl_report_memory(tpl_run *run)
{
    if (run->status == PM_OK)
        run->status = pm_fail_memory(run->err);
}

void pm_tpl_report_undefined(tpl_run *run, tpl_value value)
{
    const tpl_undefined *u = value.undefined;
    if (u->hint && u->name)
        pm_tpl_report(run, PM_ERR_INVALID, "'%.100s' is undefined: %s", u->name, u->hint);
    else if (u->hint)
        pm_tpl_report(run, PM_ERR_INVALID, "%s", u->hint);
    else if (u->owner)
        pm_tpl_report(run, PM_ERR_INVALID, "'%s object' has no attribute '%.100s'", u->owner, u->name);
    else
        pm_tpl_report(run, PM_ERR_INVALID, "'%.100s' is undefined", u->name);
}

bool pm_tpl_step(tpl_run *run, size_t n)
{
    run->steps += (int64_t)(n < TPL_MAX_STEPS ? n : TPL_MAX_STEPS);
    if (run->steps > TPL_MAX_STEPS)
        return pm_tpl_fail(run, PM_ERR_INVALID, "rendering takes more than %d steps", TPL_MAX_STEPS);
    return run->status == PM_OK;
}

/* ---- putting strings together ---- */

size_t pm_tpl_mark(const tpl_run *run)
{
    return run->text.len;
}

/* Makes room for `n` more bytes of text and trust; false after filling the error. */
static bool room(tpl_run *run, size_t n)
{
    if (run->status != PM_OK)
        return false;
    if (n > TPL_MAX_OUTPUT - run->text.len)
        return pm_tpl_fail(run, PM_ERR_MEMORY, "the text is longer than %d MB", TPL_MAX_OUTPUT >> 20);
    if (pm_buf_reserve(&run->text, n) != PM_OK || pm_buf_reserve(&run->trust, n) != PM_OK)
        return pm_tpl_fail_memory(run);
    return pm_tpl_step(run, 1 + n / 64);
}

/* Counts `n` bytes, written into both buffers, as theirs. */
static void extend(tpl_run *run, size_t n)
{
    run->text.len += n;
    run->trust.len += n;
}

void pm_tpl_fill(tpl_run *run, char c, size_t n, uint8_t trust)
{
    if (!room(run, n))
        return;
    memset(run->text.data + run->text.len, c, n);
    memset(run->trust.data + run->trust.len, trust, n);
    extend(run, n);
}

void pm_tpl_put(tpl_run *run, const char *data, size_t len, uint8_t trust)
{
    if (!len || !room(run, len))
        return;
    memcpy(run->text.data + run->text.len, data, len);
    memset(run->trust.data + run->trust.len, trust, len);
    extend(run, len);
}

void pm_tpl_puts(tpl_run *run, const char *text, uint8_t trust)
{
    pm_tpl_put(run, text, strlen(text), trust);
}

void pm_tpl_put_piece(tpl_run *run, const tpl_str *s, size_t from, size_t to)
{
    size_t n = to - from;
    if (!n || !room(run, n))
        return;
    memcpy(run->text.data + run->text.len, s->data + from, n);
    if (s->trust)
        memcpy(run->trust.data + run->trust.len, s->trust + from, n);
    else
        memset(run->trust.data + run->trust.len, s->uniform, n);
    extend(run, n);
}

void pm_tpl_put_str(tpl_run *run, const tpl_str *s)
{
    pm_tpl_put_piece(run, s, 0, s->len);
}

void pm_tpl_put_code(tpl_run *run, int32_t code, uint8_t trust)
{
    uint32_t c = (uint32_t)code;
    char out[4];
    size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n; i-- > 1; c >>= 6)
        out[i] = (char)(0x80 | (c & 63));
    out[0] = (char)(n == 1 ? c : (0xF00u >> n & 0xFF) | c);
    pm_tpl_put(run, out, n, trust);
}

void pm_tpl_put_escaped(tpl_run *run, const tpl_str *s)
{
    static const char special[] = "&<>'\"";
    static const char *const entities[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    size_t plain = 0;
    if (!pm_tpl_step(run, s->len / 16))
        return;
    for (size_t i = 0; i < s->len; i++) {
        const char *found = s->data[i] ? strchr(special, s->data[i]) : NULL;
        if (!found)
            continue;
        pm_tpl_put_piece(run, s, plain, i);
        pm_tpl_puts(run, entities[found - special], pm_tpl_byte_trust(s, i));
        plain = i + 1;
    }
    pm_tpl_put_piece(run, s, plain, s->len);
}

bool pm_tpl_take(tpl_run *run, size_t mark, bool markup, tpl_value *out)
{
    if (run->status != PM_OK)
        return false;
    size_t n = run->text.len - mark;
    tpl_str *s = pm_tpl_new(run, 1, sizeof(*s));
    char *data = pm_tpl_new(run, n + 1, 1);
    if (!s || !data)
        return false;
    *s = (tpl_str){.data = data, .len = n, .uniform = 1, .markup = markup};
    if (n) {
        const char *trust = run->trust.data + mark;
        memcpy(data, run->text.data + mark, n);
        s->uniform = (uint8_t)trust[0];
        if (memchr(trust, !trust[0], n)) {
            uint8_t *copy = pm_tpl_new(run, n, 1);
            if (!copy)
                return false;
            memcpy(copy, trust, n);
            s->trust = copy;
        }
        run->text.len = run->trust.len = mark;
    }
    *out = (tpl_value){.kind = TPL_STR, .s = s};
    return true;
}
