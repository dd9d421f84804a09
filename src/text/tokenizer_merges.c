/* Loading a BPE model: its switches and its merges. */
#include "text/tokenizer_bpe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Reads the two halves of a merge, in `pairs` form ["a", "b"] and otherwise "a b", into `joined` without a gap. *left
 * is the length of the first, 0 for the comment "#version: ..." that older lists start with. */
static int read_merge(pm_reader *reader, bool pairs, char *joined, size_t *left, size_t *len)
{
    static const char fault[] = "a merge that is not a pair";
    if (pairs) {
        size_t right = 0;
        if (!pm_reader_takes(reader, '['))
            return pm_reader_fail(reader, fault);
        int status = pm_reader_string(reader, joined, left);
        if (status == PM_OK && !pm_reader_takes(reader, ','))
            return pm_reader_fail(reader, fault);
        if (status == PM_OK)
            status = pm_reader_string(reader, joined + *left, &right);
        if (status == PM_OK && (!pm_reader_takes(reader, ']') || !*left || !right))
            return pm_reader_fail(reader, fault);
        *len = *left + right;
        return status;
    }
    int status = pm_reader_string(reader, joined, len);
    if (status != PM_OK)
        return status;
    *left = 0;
    if (*len >= 8 && memcmp(joined, "#version", 8) == 0)
        return PM_OK;
    char *space = memchr(joined, ' ', *len);
    size_t after = space ? *len - (size_t)(space - joined) - 1 : 0;
    if (!after || space == joined || memchr(space + 1, ' ', after))
        return pm_reader_fail(reader, fault);
    *left = (size_t)(space - joined);
    memmove(space, space + 1, after);
    --*len;
    return PM_OK;
}

/* The id of a token that merge `rank` names; -1 after filling the error. */
static pm_token merge_token(const pm_vocab *vocab, const pm_tok_file *file, const char *text, size_t len, int32_t rank)
{
    pm_token id = pm_map_get(&vocab->ids, text, len, -1);
    if (id < 0)
        pm_fail(file->err, PM_ERR_FORMAT, "%s: model.merges: entry %d names '%.*s', which is not in model.vocab",
                file->path, (int)rank, (int)(len < 256 ? len : 256), text);
    return id;
}

/* Reads one merge and puts it into the table. A pair that is listed twice has the rank of the later entry, as in the
 * library. `joined` is memory for its texts. */
static int load_merge(pm_bpe *bpe, const pm_vocab *vocab, pm_reader *reader, bool pairs, int32_t rank, char *joined)
{
    size_t split = 0, len = 0;
    int status = read_merge(reader, pairs, joined, &split, &len);
    if (status != PM_OK || !split)
        return status;
    pm_token left = merge_token(vocab, reader->file, joined, split, rank);
    pm_token right = left < 0 ? -1 : merge_token(vocab, reader->file, joined + split, len - split, rank);
    pm_token result = right < 0 ? -1 : merge_token(vocab, reader->file, joined, len, rank);
    if (result < 0)
        return PM_ERR_FORMAT;
    *pm_find_merge(bpe, left, right) = (pm_merge){left, right, rank, result};
    return PM_OK;
}

/* No list of this text has more merges: each of them has two quotes, or four as a pair. */
static size_t count_merges(const pm_span *span, bool pairs)
{
    size_t quotes = 0;
    for (const char *p = span->text, *end = p + span->len; p < end && (p = memchr(p, '"', (size_t)(end - p))); p++)
        quotes++;
    return quotes / (pairs ? 4 : 2) + 1;
}

static int load_merges(pm_bpe *bpe, const pm_vocab *vocab, const pm_tok_file *file, const pm_span *span)
{
    pm_reader reader;
    size_t cap = 64;
    pm_reader_start(&reader, file, "model.merges", span);
    if (!pm_reader_takes(&reader, '['))
        return pm_fail(file->err, PM_ERR_FORMAT, "%s: model.merges is %s", file->path,
                       span->text ? "not a list" : "missing");
    pm_reader first = reader;
    bool pairs = pm_reader_takes(&first, '['); /* all are what the first is */
    size_t n = count_merges(span, pairs);
    if (n > INT32_MAX / 4)
        return pm_fail(file->err, PM_ERR_LIMIT, "%s: model.merges has too many entries", file->path);
    while (cap < 2 * n)
        cap *= 2;
    bpe->merges = malloc(cap * sizeof(*bpe->merges));
    char *joined = malloc(span->len);
    if (!bpe->merges || !joined) {
        free(joined);
        return pm_fail_memory(file->err);
    }
    bpe->mask = cap - 1;
    for (size_t i = 0; i < cap; i++)
        bpe->merges[i].left = -1;
    int status = PM_OK;
    if (!pm_reader_takes(&reader, ']')) {
        int32_t rank = 0;
        do
            status = load_merge(bpe, vocab, &reader, pairs, rank++, joined);
        while (status == PM_OK && pm_reader_takes(&reader, ','));
        if (status == PM_OK && !pm_reader_takes(&reader, ']'))
            status = pm_reader_fail(&reader, "no comma");
    }
    free(joined);
    return status;
}

/* The parts of BPE that the families do not use. */
static int refuse_fields(const pm_tok_file *file, const json_t *model)
{
    static const char *const must_be_empty[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    for (size_t k = 0; k < PM_COUNT(must_be_empty); k++) {
        const json_t *value = json_object_get(model, must_be_empty[k]);
        if (value && !json_is_null(value) && !(json_is_string(value) && json_string_length(value) == 0))
            return pm_tok_unsupported(file, "model BPE", must_be_empty[k]);
    }
    const json_t *dropout = json_object_get(model, "dropout");
    if (dropout && !json_is_null(dropout) && !(json_is_number(dropout) && json_number_value(dropout) == 0))
        return pm_tok_unsupported(file, "model BPE", "dropout");
    return PM_OK;
}

/* Looks up the tokens that a piece can start as. */
static void find_symbols(pm_bpe *bpe, const pm_vocab *vocab)
{
    for (int byte = 0; byte < 256; byte++) {
        char text[8];
        bpe->byte_id[byte] = pm_map_get(&vocab->ids, text, pm_char_put(pm_byte_char((uint8_t)byte), text), -1);
        snprintf(text, sizeof(text), "<0x%02X>", (unsigned)byte);
        bpe->fallback[byte] = bpe->byte_fallback ? pm_map_get(&vocab->ids, text, strlen(text), -1) : -1;
        text[0] = (char)byte;
        if (byte < 128)
            bpe->ascii_id[byte] = pm_map_get(&vocab->ids, text, 1, -1);
    }
}

bool pm_bpe_whole(const pm_bpe *bpe)
{
    for (int byte = 0; byte < 256; byte++)
        if (bpe->byte_id[byte] < 0)
            return false;
    return true;
}

int pm_bpe_load(pm_bpe *bpe, const pm_vocab *vocab, const pm_tok_file *file, const json_t *model, const pm_span *merges)
{
    int status = pm_tok_object(file, model, "model BPE",
                               "type dropout unk_token continuing_subword_prefix end_of_word_suffix fuse_unk "
                               "byte_fallback ignore_merges vocab merges");
    if (status == PM_OK)
        status = refuse_fields(file, model);
    if (status == PM_OK)
        status = pm_tok_bool(file, model, "model", "fuse_unk", false, &bpe->fuse_unk);
    if (status == PM_OK)
        status = pm_tok_bool(file, model, "model", "ignore_merges", false, &bpe->ignore_merges);
    if (status == PM_OK)
        status = pm_tok_bool(file, model, "model", "byte_fallback", false, &bpe->byte_fallback);
    if (status != PM_OK)
        return status;
    find_symbols(bpe, vocab);
    const json_t *unk = json_object_get(model, "unk_token");
    bpe->unk = -1;
    if (unk && !json_is_null(unk)) {
        const char *text;
        size_t len;
        if ((status = pm_tok_string(file, model, "model", "unk_token", &text, &len)) != PM_OK)
            return status;
        bpe->unk = pm_map_get(&vocab->ids, text, len, -1);
        if (bpe->unk < 0)
            return pm_fail(file->err, PM_ERR_FORMAT, "%s: model: unk_token '%s' is not in model.vocab", file->path,
                           text);
    }
    return load_merges(bpe, vocab, file, merges);
}

void pm_bpe_finish(pm_bpe *bpe, const pm_vocab *vocab)
{
    for (size_t i = 0; i <= bpe->mask; i++)
        if (bpe->merges[i].left >= 0 && vocab->entries[bpe->merges[i].result].special)
            bpe->merges[i].result = -1;
}

void pm_bpe_free(pm_bpe *bpe)
{
    free(bpe->merges);
    bpe->merges = NULL;
}
