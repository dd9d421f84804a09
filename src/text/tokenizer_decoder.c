/* Decoders: loading their steps. */
#include "text/tokenizer_parts.h"

#include <stdio.h>
#include <string.h>

enum { STRIP_MAX = 1 << 20 };

static const char *const kinds[] = {
    [PM_DECODE_BYTE_LEVEL] = "ByteLevel",
    [PM_DECODE_BYTE_FALLBACK] = "ByteFallback",
    [PM_DECODE_FUSE] = "Fuse",
    [PM_DECODE_METASPACE] = "Metaspace",
    [PM_DECODE_REPLACE] = "Replace",
    [PM_DECODE_STRIP] = "Strip",
    [PM_DECODE_BPE] = "BPEDecoder",
    [PM_DECODE_WORDPIECE] = "WordPiece",
    [PM_DECODE_CTC] = "CTC",
};

static int load_text(pm_tok_decoder *decoder, const pm_tok_file *file, const json_t *component, const char *where,
                     const char *name, const char **out, size_t *len)
{
    const char *text;
    int status = pm_tok_string(file, component, where, name, &text, len);
    if (status == PM_OK && !(*out = pm_arena_strdup(&decoder->arena, text, *len)))
        status = pm_fail_memory(file->err);
    return status;
}

static int load_metaspace(pm_tok_decoder *decoder, pm_decode_step *step, const pm_tok_file *file,
                          const json_t *component, const char *where)
{
    pm_split_step fields = {0};
    const char *replacement;
    int status = pm_metaspace_load(file, component, where, &fields, &replacement);
    step->flag = fields.prefix != PM_PREFIX_NEVER;
    return status == PM_OK ? load_text(decoder, file, component, where, "replacement", &step->from, &step->from_len)
                           : status;
}

/* The lengths of the borders by which a search in a stream goes on (Knuth, Morris and Pratt, 1977). */
static int find_borders(pm_tok_decoder *decoder, pm_decode_step *step)
{
    size_t *border = pm_arena_alloc(&decoder->arena, step->from_len + 1, sizeof(*border));
    if (!border)
        return PM_ERR_MEMORY;
    for (size_t i = 1, k = 0; i < step->from_len; i++) {
        while (k && step->from[i] != step->from[k])
            k = border[k];
        k += step->from[i] == step->from[k];
        border[i + 1] = k;
    }
    step->border = border;
    return PM_OK;
}

static int load_replace(pm_tok_decoder *decoder, pm_decode_step *step, const pm_tok_file *file, const json_t *component,
                        const char *where)
{
    const json_t *pattern = json_object_get(component, "pattern");
    int status = pm_tok_object(file, component, where, "type pattern content");
    if (status == PM_OK)
        status = load_text(decoder, file, component, where, "content", &step->to, &step->to_len);
    if (status == PM_OK)
        status = pm_pattern_load(&step->pattern, &decoder->arena, file, pattern, where);
    if (status != PM_OK || decoder->fused == 0)
        return status;
    /* Of a text that comes bit by bit a pattern could want to see all. */
    if (!json_object_get(pattern, "String"))
        return pm_fail(file->err, PM_ERR_UNSUPPORTED, "%s: %s: a Regex behind Fuse or ByteLevel is not supported",
                       file->path, where);
    status = load_text(decoder, file, pattern, where, "String", &step->from, &step->from_len);
    if (status == PM_OK && !step->from_len)
        return pm_fail(file->err, PM_ERR_UNSUPPORTED,
                       "%s: %s: an empty String behind Fuse or ByteLevel is not supported", file->path, where);
    return status == PM_OK && find_borders(decoder, step) != PM_OK ? pm_fail_memory(file->err) : status;
}

static int load_count(const pm_tok_file *file, const json_t *component, const char *where, const char *name,
                      size_t *out)
{
    const json_t *value = json_object_get(component, name);
    json_int_t n = json_is_integer(value) ? json_integer_value(value) : -1;
    if (n < 0 || n > STRIP_MAX)
        return pm_fail(file->err, PM_ERR_FORMAT, "%s: %s: %s is not a whole number from 0 to %d", file->path, where,
                       name, STRIP_MAX);
    *out = (size_t)n;
    return PM_OK;
}

static int load_strip(pm_tok_decoder *decoder, pm_decode_step *step, const pm_tok_file *file, const json_t *component,
                      const char *where)
{
    size_t one = 0;
    int status = pm_tok_object(file, component, where, "type content start stop");
    if (status == PM_OK)
        status = load_text(decoder, file, component, where, "content", &step->from, &step->from_len);
    if (status == PM_OK && step->from_len)
        pm_char_at(step->from, &one);
    if (status == PM_OK && (!one || one != step->from_len))
        return pm_fail(file->err, PM_ERR_FORMAT, "%s: %s: content '%s' is not one character", file->path, where,
                       step->from);
    if (status == PM_OK)
        status = load_count(file, component, where, "start", &step->start);
    return status == PM_OK ? load_count(file, component, where, "stop", &step->stop) : status;
}

static int load_fields(pm_tok_decoder *decoder, pm_decode_step *step, const pm_tok_file *file, const json_t *component,
                       const char *where)
{
    int status;
    switch (step->kind) {
    case PM_DECODE_BYTE_LEVEL:
        return pm_tok_object(file, component, where, "type add_prefix_space trim_offsets use_regex");
    case PM_DECODE_METASPACE: return load_metaspace(decoder, step, file, component, where);
    case PM_DECODE_REPLACE: return load_replace(decoder, step, file, component, where);
    case PM_DECODE_STRIP: return load_strip(decoder, step, file, component, where);
    case PM_DECODE_BPE:
        status = pm_tok_object(file, component, where, "type suffix");
        return status == PM_OK ? load_text(decoder, file, component, where, "suffix", &step->from, &step->from_len)
                               : status;
    case PM_DECODE_WORDPIECE:
        status = pm_tok_object(file, component, where, "type prefix cleanup");
        if (status == PM_OK)
            status = load_text(decoder, file, component, where, "prefix", &step->from, &step->from_len);
        return status == PM_OK ? pm_tok_bool(file, component, where, "cleanup", true, &step->flag) : status;
    case PM_DECODE_CTC:
        status = pm_tok_object(file, component, where, "type pad_token word_delimiter_token cleanup");
        if (status == PM_OK)
            status = load_text(decoder, file, component, where, "pad_token", &step->from, &step->from_len);
        if (status == PM_OK)
            status = load_text(decoder, file, component, where, "word_delimiter_token", &step->to, &step->to_len);
        return status == PM_OK ? pm_tok_bool(file, component, where, "cleanup", true, &step->flag) : status;
    default: return pm_tok_object(file, component, where, "type");
    }
}

/* True for the steps that can work on a text that comes bit by bit; the others ask where a token ends. */
static bool works_on_streams(pm_decode_kind kind)
{
    return kind == PM_DECODE_FUSE || kind == PM_DECODE_METASPACE || kind == PM_DECODE_REPLACE ||
           kind == PM_DECODE_STRIP;
}

static int load_step(void *into, const pm_tok_file *file, const json_t *component, const char *where)
{
    pm_tok_decoder *decoder = into;
    const char *type;
    char of[64];
    int status = pm_tok_type(file, component, where, &type);
    if (status != PM_OK)
        return status;
    if (decoder->n == PM_STEPS_MAX)
        return pm_fail(file->err, PM_ERR_UNSUPPORTED, "%s: %s has more than %d steps", file->path, where, PM_STEPS_MAX);
    size_t k = PM_DECODE_BYTE_LEVEL;
    while (k < PM_COUNT(kinds) && strcmp(kinds[k], type) != 0)
        k++;
    if (k == PM_COUNT(kinds))
        return pm_tok_unsupported(file, where, type);
    pm_decode_step *step = &decoder->steps[decoder->n++];
    step->kind = (pm_decode_kind)k;
    snprintf(of, sizeof(of), "%s %s", where, type);
    if (decoder->fused && !works_on_streams(step->kind))
        return pm_fail(file->err, PM_ERR_UNSUPPORTED, "%s: %s behind Fuse or ByteLevel is not supported", file->path,
                       of);
    status = load_fields(decoder, step, file, component, of);
    if (!decoder->fused && (step->kind == PM_DECODE_FUSE || step->kind == PM_DECODE_BYTE_LEVEL))
        decoder->fused = decoder->n;
    return status;
}

int pm_tok_decoder_load(pm_tok_decoder *decoder, const pm_tok_file *file, const json_t *component)
{
    if (!component || json_is_null(component))
        decoder->steps[decoder->n++].kind = PM_DECODE_JOIN;
    int status = pm_tok_each(file, component, "decoder", "decoders", load_step, decoder);
    if (!decoder->fused)
        decoder->fused = decoder->n;
    return status;
}

void pm_tok_decoder_free(pm_tok_decoder *decoder)
{
    for (int i = 0; i < decoder->n; i++)
        pm_pattern_free(&decoder->steps[i].pattern);
    pm_arena_free(&decoder->arena);
    *decoder = (pm_tok_decoder){0};
}
