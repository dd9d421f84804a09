/* Byte-pair encoding: a piece starts as its bytes, and the neighbours whose merge has the lowest rank are joined, the
 * leftmost first, until no merge applies. Pieces are lists of symbols linked both ways and a heap of the merges that
 * are possible, so n bytes cost O(n log n). */
#include "text/tokenizer_parts.h"

#include <stdlib.h>
#include <string.h>

typedef struct pm_merge {
    pm_token left, right; /* left < 0: an empty slot */
    int32_t rank;
    pm_token result; /* -1: must not be used */
} pm_merge;

typedef struct pm_symbol {
    pm_token id;        /* -1: became part of the symbol before */
    int32_t prev, next; /* -1: none */
} pm_symbol;

typedef struct pm_candidate {
    uint64_t order; /* rank, then position of the left symbol */
    pm_token result;
} pm_candidate;

int pm_ids_add(pm_ids *ids, pm_token id)
{
    if (ids->n == ids->cap) {
        void *p = ids->ids;
        int status = pm_grow(&p, &ids->cap, ids->n + 1, sizeof(*ids->ids));
        ids->ids = p;
        if (status != PM_OK)
            return status;
    }
    ids->ids[ids->n++] = id;
    return PM_OK;
}

/* ---- loading ---- */

/* The slot of the pair, or the empty slot where it belongs. */
static pm_merge *find_merge(const pm_bpe *bpe, pm_token left, pm_token right)
{
    uint64_t hash = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9e3779b97f4a7c15u;
    for (size_t i = (size_t)(hash >> 32) & bpe->mask;; i = (i + 1) & bpe->mask) {
        pm_merge *slot = &bpe->merges[i];
        if (slot->left < 0 || (slot->left == left && slot->right == right))
            return slot;
    }
}

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
    *find_merge(bpe, left, right) = (pm_merge){left, right, rank, result};
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

/* The parts of BPE that byte-level tokenisers do not use. */
static int refuse_fields(const pm_vocab *vocab, const pm_tok_file *file, const json_t *model)
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
    bool byte_fallback = false, whole = true;
    int status = pm_tok_bool(file, model, "model", "byte_fallback", false, &byte_fallback);
    for (int byte = 0; byte < 256; byte++) {
        char c[4];
        whole = whole && pm_map_get(&vocab->ids, c, pm_char_put(pm_byte_char((uint8_t)byte), c), -1) >= 0;
    }
    /* With every byte in the vocabulary there is nothing to fall back from. */
    if (status == PM_OK && byte_fallback && !whole)
        return pm_tok_unsupported(file, "model BPE", "byte_fallback");
    return status;
}

int pm_bpe_load(pm_bpe *bpe, const pm_vocab *vocab, const pm_tok_file *file, const json_t *model, const pm_span *merges)
{
    int status = pm_tok_object(file, model, "model BPE",
                               "type dropout unk_token continuing_subword_prefix end_of_word_suffix fuse_unk "
                               "byte_fallback ignore_merges vocab merges");
    if (status == PM_OK)
        status = refuse_fields(vocab, file, model);
    if (status == PM_OK)
        status = pm_tok_bool(file, model, "model", "fuse_unk", false, &bpe->fuse_unk);
    if (status == PM_OK)
        status = pm_tok_bool(file, model, "model", "ignore_merges", false, &bpe->ignore_merges);
    if (status != PM_OK)
        return status;
    for (int byte = 0; byte < 256; byte++) {
        char c[4];
        bpe->byte_id[byte] = pm_map_get(&vocab->ids, c, pm_char_put(pm_byte_char((uint8_t)byte), c), -1);
    }
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

void pm_bpe_work_free(pm_bpe_work *work)
{
    free(work->symbols);
    free(work->heap);
    pm_buf_free(&work->spelling);
    *work = (pm_bpe_work){0};
}

/* ---- encoding ---- */

static int heap_push(pm_bpe_work *work, pm_candidate new)
{
    if (work->heap_n == work->heap_cap) {
        void *p = work->heap;
        int status = pm_grow(&p, &work->heap_cap, work->heap_n + 1, sizeof(*work->heap));
        work->heap = p;
        if (status != PM_OK)
            return status;
    }
    size_t i = work->heap_n++;
    for (; i > 0 && work->heap[(i - 1) / 2].order > new.order; i = (i - 1) / 2)
        work->heap[i] = work->heap[(i - 1) / 2];
    work->heap[i] = new;
    return PM_OK;
}

static pm_candidate heap_pop(pm_bpe_work *work)
{
    pm_candidate top = work->heap[0], last = work->heap[--work->heap_n];
    size_t i = 0, child;
    while ((child = 2 * i + 1) < work->heap_n) {
        child += child + 1 < work->heap_n && work->heap[child + 1].order < work->heap[child].order;
        if (last.order <= work->heap[child].order)
            break;
        work->heap[i] = work->heap[child];
        i = child;
    }
    work->heap[i] = last;
    return top;
}

/* Puts the merge of the symbol at `left` with its neighbour into the heap, if there is one. */
static int consider(const pm_bpe *bpe, pm_bpe_work *work, int32_t left)
{
    const pm_symbol *symbol = &work->symbols[left];
    if (symbol->next < 0)
        return PM_OK;
    const pm_merge *merge = find_merge(bpe, symbol->id, work->symbols[symbol->next].id);
    if (merge->left < 0 || merge->result < 0)
        return PM_OK;
    return heap_push(work, (pm_candidate){(uint64_t)merge->rank << 32 | (uint32_t)left, merge->result});
}

/* Lays out the symbols of the piece's bytes; *n receives their number, lower than len where unknown ones are fused. */
static int lay_out(const pm_bpe *bpe, const char *piece, size_t len, pm_bpe_work *work, int32_t *n, pm_error *err)
{
    void *p = work->symbols;
    int status = pm_grow(&p, &work->symbols_cap, len, sizeof(*work->symbols));
    work->symbols = p;
    if (status != PM_OK)
        return pm_fail_memory(err);
    bool unknown = false;
    *n = 0;
    for (size_t i = 0; i < len; i++) {
        pm_token id = bpe->byte_id[(uint8_t)piece[i]];
        if (id < 0 && bpe->unk < 0)
            return pm_fail(err, PM_ERR_UNSUPPORTED,
                           "the tokenizer's vocabulary has no token for the byte 0x%02X and no unk_token",
                           (uint8_t)piece[i]);
        bool fused = id < 0 && unknown && bpe->fuse_unk;
        unknown = id < 0;
        if (fused)
            continue;
        work->symbols[*n] = (pm_symbol){id < 0 ? bpe->unk : id, *n - 1, *n + 1};
        ++*n;
    }
    work->symbols[*n - 1].next = -1;
    return PM_OK;
}

/* The id of a piece that is one token as a whole; -1 when it is not. */
static int whole_piece(const pm_vocab *vocab, const char *piece, size_t len, pm_bpe_work *work, pm_token *id)
{
    work->spelling.len = 0;
    if (pm_buf_reserve(&work->spelling, 2 * len) != PM_OK)
        return PM_ERR_MEMORY;
    for (size_t i = 0; i < len; i++)
        work->spelling.len += pm_char_put(pm_byte_char((uint8_t)piece[i]), work->spelling.data + work->spelling.len);
    *id = pm_map_get(&vocab->ids, work->spelling.data, work->spelling.len, -1);
    if (*id >= 0 && vocab->entries[*id].special)
        *id = -1;
    return PM_OK;
}

int pm_bpe_encode(const pm_bpe *bpe, const pm_vocab *vocab, const char *piece, size_t len, pm_bpe_work *work,
                  pm_ids *out, pm_error *err)
{
    int32_t n = 0;
    if (!len)
        return PM_OK;
    if (bpe->ignore_merges && len <= PM_TOKEN_TEXT_MAX) {
        pm_token id;
        if (whole_piece(vocab, piece, len, work, &id) != PM_OK)
            return pm_fail_memory(err);
        if (id >= 0)
            return pm_ids_add(out, id) == PM_OK ? PM_OK : pm_fail_memory(err);
    }
    int status = lay_out(bpe, piece, len, work, &n, err);
    if (status != PM_OK)
        return status;
    pm_symbol *symbols = work->symbols;
    work->heap_n = 0;
    for (int32_t i = 0; i + 1 < n && status == PM_OK; i++)
        status = consider(bpe, work, i);
    while (work->heap_n && status == PM_OK) {
        pm_candidate top = heap_pop(work);
        int32_t at = (int32_t)(uint32_t)top.order, right = symbols[at].next;
        if (symbols[at].id < 0 || right < 0)
            continue;
        /* A pair only grows, so what it would become tells whether it is still the pair that was put in. */
        const pm_merge *merge = find_merge(bpe, symbols[at].id, symbols[right].id);
        if (merge->left < 0 || merge->result != top.result)
            continue;
        symbols[at].id = top.result;
        symbols[at].next = symbols[right].next;
        symbols[right].id = -1;
        if (symbols[at].next >= 0)
            symbols[symbols[at].next].prev = at;
        if (symbols[at].prev >= 0)
            status = consider(bpe, work, symbols[at].prev);
        if (status == PM_OK)
            status = consider(bpe, work, at);
    }
    for (int32_t i = 0; i >= 0 && status == PM_OK; i = symbols[i].next)
        status = pm_ids_add(out, symbols[i].id);
    return status == PM_OK ? PM_OK : pm_fail_memory(err);
}
