/* Normalisers: a text is changed step by step, and with every byte goes whether it may become part of a control token.
 */
#include "text/tokenizer_parts.h"

#include <stdlib.h>
#include <string.h>

/* ---- loading ---- */

static int load_text(pm_normalizer *normalizer, pm_normal_step *step, const pm_tok_file *file, const json_t *component,
                     const char *where, const char *name)
{
    const char *text;
    int status = pm_tok_string(file, component, where, name, &text, &step->len);
    if (status == PM_OK && !(step->text = pm_arena_strdup(&normalizer->arena, text, step->len)))
        status = pm_fail_memory(file->err);
    return status;
}

/* The fields of one step, whose kind is set; `where` names it. */
static int load_fields(pm_normalizer *normalizer, pm_normal_step *step, const pm_tok_file *file,
                       const json_t *component, const char *where)
{
    int status;
    switch (step->kind) {
    case PM_NORMAL_STRIP:
        status = pm_tok_object(file, component, where, "type strip_left strip_right");
        if (status == PM_OK)
            status = pm_tok_bool(file, component, where, "strip_left", true, &step->left);
        return status == PM_OK ? pm_tok_bool(file, component, where, "strip_right", true, &step->right) : status;
    case PM_NORMAL_PREPEND:
        status = pm_tok_object(file, component, where, "type prepend");
        return status == PM_OK ? load_text(normalizer, step, file, component, where, "prepend") : status;
    case PM_NORMAL_REPLACE:
        status = pm_tok_object(file, component, where, "type pattern content");
        if (status == PM_OK)
            status = load_text(normalizer, step, file, component, where, "content");
        return status == PM_OK ? pm_pattern_load(&step->pattern, &normalizer->arena, file,
                                                 json_object_get(component, "pattern"), where)
                               : status;
    default: return pm_tok_object(file, component, where, "type");
    }
}

static int load_step(void *into, const pm_tok_file *file, const json_t *component, const char *where)
{
    static const char *const kinds[] = {
        [PM_NORMAL_NFC] = "NFC",
        [PM_NORMAL_NFD] = "NFD",
        [PM_NORMAL_NFKC] = "NFKC",
        [PM_NORMAL_NFKD] = "NFKD",
        [PM_NORMAL_LOWERCASE] = "Lowercase",
        [PM_NORMAL_STRIP] = "Strip",
        [PM_NORMAL_STRIP_ACCENTS] = "StripAccents",
        [PM_NORMAL_REPLACE] = "Replace",
        [PM_NORMAL_PREPEND] = "Prepend",
        [PM_NORMAL_BYTE_LEVEL] = "ByteLevel",
    };
    pm_normalizer *normalizer = into;
    const char *type;
    char of[64];
    int status = pm_tok_type(file, component, where, &type);
    if (status != PM_OK)
        return status;
    if (normalizer->n == PM_STEPS_MAX)
        return pm_fail(file->err, PM_ERR_UNSUPPORTED, "%s: %s has more than %d steps", file->path, where, PM_STEPS_MAX);
    size_t k = 0;
    while (k < PM_COUNT(kinds) && strcmp(kinds[k], type) != 0)
        k++;
    if (k == PM_COUNT(kinds))
        return pm_tok_unsupported(file, where, type);
    pm_normal_step *step = &normalizer->steps[normalizer->n++];
    step->kind = (pm_normal_kind)k;
    snprintf(of, sizeof(of), "%s %s", where, type);
    return load_fields(normalizer, step, file, component, of);
}

int pm_normalizer_load(pm_normalizer *normalizer, const pm_tok_file *file, const json_t *component)
{
    return pm_tok_each(file, component, "normalizer", "normalizers", load_step, normalizer);
}

void pm_normalizer_free(pm_normalizer *normalizer)
{
    for (int i = 0; i < normalizer->n; i++)
        pm_pattern_free(&normalizer->steps[i].pattern);
    pm_arena_free(&normalizer->arena);
    *normalizer = (pm_normalizer){0};
}

void pm_normalizer_work_free(pm_normalizer_work *work)
{
    for (int i = 0; i < 2; i++) {
        pm_buf_free(&work->text[i]);
        pm_buf_free(&work->trust[i]);
    }
    free(work->chars);
    free(work->sorted);
    pm_matcher_free(&work->matcher);
    *work = (pm_normalizer_work){0};
}

/* ---- the steps ---- */

int pm_normal_put(pm_normalizer_work *work, const pm_section *in, size_t start, size_t end, const char *text,
                  size_t len)
{
    pm_buf *trust = &work->trust[work->made], *made = &work->text[work->made];
    work->lost = work->lost || (len && !made->len && start > 0);
    if (len > work->limit || made->len > work->limit - len)
        return PM_ERR_LIMIT;
    if (pm_buf_add(made, text, len) != PM_OK)
        return PM_ERR_MEMORY;
    if (!in->trust)
        return PM_OK;
    if (len == end - start && memcmp(text, in->text + start, len) == 0)
        return pm_buf_add(trust, in->trust + start, len);
    if (pm_buf_reserve(trust, len) != PM_OK)
        return PM_ERR_MEMORY;
    bool whole = memchr(in->trust + start, 0, end - start) == NULL;
    memset(trust->data + trust->len, whole, len);
    trust->len += len;
    return PM_OK;
}

/* Puts in[start..end) as it is. */
static int put_same(pm_normalizer_work *work, const pm_section *in, size_t start, size_t end)
{
    return start < end ? pm_normal_put(work, in, start, end, in->text + start, end - start) : PM_OK;
}

static int lowercase(const pm_section *in, pm_normalizer_work *work)
{
    int status = PM_OK;
    size_t same = 0; /* where what is not put yet starts */
    for (size_t at = 0, len; at < in->len && status == PM_OK; at += len) {
        int32_t c = pm_char_at(in->text + at, &len), lower[2];
        size_t n = pm_char_lower(c, lower);
        if (n == 1 && lower[0] == c)
            continue;
        char text[8];
        size_t bytes = pm_char_put(lower[0], text);
        if (n == 2)
            bytes += pm_char_put(lower[1], text + bytes);
        status = put_same(work, in, same, at);
        if (status == PM_OK)
            status = pm_normal_put(work, in, at, at + len, text, bytes);
        same = at + len;
    }
    return status == PM_OK ? put_same(work, in, same, in->len) : status;
}

static int strip_accents(const pm_section *in, pm_normalizer_work *work)
{
    int status = PM_OK;
    size_t same = 0;
    for (size_t at = 0, len; at < in->len && status == PM_OK; at += len) {
        if (!(pm_char_kind(pm_char_at(in->text + at, &len)) & PM_CHAR_MARK))
            continue;
        status = put_same(work, in, same, at);
        same = at + len;
    }
    return status == PM_OK ? put_same(work, in, same, in->len) : status;
}

static int strip(const pm_normal_step *step, const pm_section *in, pm_normalizer_work *work)
{
    size_t start = 0, end = in->len, len;
    while (step->left && start < end && pm_char_kind(pm_char_at(in->text + start, &len)) & PM_CHAR_SPACE)
        start += len;
    while (step->right && end > start) {
        size_t before = pm_char_before(in->text, end);
        if (!(pm_char_kind(pm_char_at(in->text + before, &len)) & PM_CHAR_SPACE))
            break;
        end = before;
    }
    return put_same(work, in, start, end);
}

/* What a step's status comes to. */
static int failed(int status, const pm_normalizer_work *work, pm_error *err)
{
    if (status == PM_ERR_LIMIT)
        return pm_fail(err, status, "tokenizer.json: the normalizer makes more than %zu bytes of this text",
                       work->limit);
    return status == PM_OK ? PM_OK : pm_fail_memory(err);
}

static int replace(const pm_normal_step *step, const pm_section *in, pm_normalizer_work *work, pm_error *err)
{
    pm_matches matches = {&step->pattern, &work->matcher, in->text, in->len, in->len, 0, 0, false};
    pm_range match;
    size_t same = 0;
    int found;
    while ((found = pm_matches_next(&matches, &match, err)) > 0) {
        int status = put_same(work, in, same, match.start);
        if (status == PM_OK)
            status = pm_normal_put(work, in, match.start, match.end, step->text, step->len);
        if (status != PM_OK)
            return failed(status, work, err);
        same = match.end;
    }
    return found < 0 ? found : failed(put_same(work, in, same, in->len), work, err);
}

static int spell_bytes(const pm_section *in, pm_normalizer_work *work)
{
    int status = PM_OK;
    for (size_t at = 0; at < in->len && status == PM_OK; at++) {
        char text[4];
        size_t len = pm_char_put(pm_byte_char((uint8_t)in->text[at]), text);
        status = pm_normal_put(work, in, at, at + 1, text, len);
    }
    return status;
}

/* Runs one step; *changed tells whether work->text[made] is what it made, else it leaves `in` as it is. */
static int run_step(const pm_normal_step *step, const pm_section *in, pm_normalizer_work *work, bool *changed,
                    pm_error *err)
{
    int status = PM_OK;
    *changed = true;
    switch (step->kind) {
    case PM_NORMAL_NFC:
    case PM_NORMAL_NFD:
    case PM_NORMAL_NFKC:
    case PM_NORMAL_NFKD: status = pm_normal_form(step->kind, in, work, changed); break;
    case PM_NORMAL_LOWERCASE: status = lowercase(in, work); break;
    case PM_NORMAL_STRIP: status = strip(step, in, work); break;
    case PM_NORMAL_STRIP_ACCENTS: status = strip_accents(in, work); break;
    case PM_NORMAL_BYTE_LEVEL: status = spell_bytes(in, work); break;
    case PM_NORMAL_REPLACE: return replace(step, in, work, err);
    case PM_NORMAL_PREPEND: /* nothing goes before nothing */
        *changed = in->len > 0;
        if (*changed)
            status = pm_normal_put(work, in, 0, 0, step->text, step->len);
        if (*changed && status == PM_OK)
            status = put_same(work, in, 0, in->len);
        break;
    }
    return failed(status, work, err);
}

int pm_normalize(const pm_normalizer *normalizer, const pm_section *in, pm_normalizer_work *work, pm_section *out,
                 pm_error *err)
{
    pm_section now = *in;
    work->lost = false;
    work->limit = pm_grown_max(in->len);
    for (int i = 0; i < normalizer->n; i++) {
        pm_buf *text = &work->text[work->made], *trust = &work->trust[work->made];
        bool changed;
        text->len = trust->len = 0;
        if (pm_buf_reserve(text, 0) != PM_OK || pm_buf_reserve(trust, 0) != PM_OK)
            return pm_fail_memory(err);
        int status = run_step(&normalizer->steps[i], &now, work, &changed, err);
        if (status != PM_OK)
            return status;
        if (!changed)
            continue;
        now = (pm_section){text->data, text->len, in->trust ? (const uint8_t *)trust->data : NULL};
        work->made = !work->made;
    }
    *out = now;
    return PM_OK;
}
