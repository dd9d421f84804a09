/* Byte-pair encoding: a piece starts as its characters, and the neighbours whose merge has the lowest rank are joined,
 * the leftmost first, until no merge applies. Pieces are lists of symbols linked both ways and a heap of the merges
 * that are possible, so n characters cost O(n log n). */
#include "text/tokenizer_bpe.h"

#include <stdlib.h>
#include <string.h>

typedef struct pm_symbol {
    pm_token id;        /* -1: became part of the symbol before */
    int32_t prev, next; /* -1: none */
} pm_symbol;

typedef struct pm_candidate {
    uint64_t order; /* rank, then position of the left symbol */
    pm_token result;
} pm_candidate;

enum {
    RECENT = 1 << 13,      /* slots for recent pieces */
    RECENT_AFTER = 1 << 10 /* pieces of a text before they are worth having */
};

/* A piece and where its tokens are. Words come again and again in a text, and most are short. */
typedef struct pm_recent {
    uint64_t key[2]; /* its bytes, and its length in the last of the 16 */
    uint32_t at, n;  /* in the list of ids; n = 0: an empty slot */
} pm_recent;

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

void pm_bpe_work_free(pm_bpe_work *work)
{
    free(work->symbols);
    free(work->heap);
    free(work->recent);
    pm_buf_free(&work->spelling);
    *work = (pm_bpe_work){0};
}

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
    const pm_merge *merge = pm_find_merge(bpe, symbol->id, work->symbols[symbol->next].id);
    if (merge->left < 0 || merge->result < 0)
        return PM_OK;
    return heap_push(work, (pm_candidate){(uint64_t)merge->rank << 32 | (uint32_t)left, merge->result});
}

/* A piece that is being laid out as symbols. */
typedef struct layout {
    pm_symbol *symbols;
    int32_t n;
    bool unknown; /* one or more unknown characters wait for their symbol */
} layout;

static void add_symbol(layout *l, pm_token id)
{
    l->symbols[l->n] = (pm_symbol){id, l->n - 1, l->n + 1};
    l->n++;
}

/* A character that has no token becomes the unknown token, one together with those before it when they are fused. As in
 * the library its symbol comes when the next known character or the next unknown one is met, which lets the bytes of a
 * character that falls back overtake it. */
static void add_unknown(const pm_bpe *bpe, layout *l)
{
    if (l->unknown && !bpe->fuse_unk)
        add_symbol(l, bpe->unk);
    l->unknown = true;
}

static void add_known(const pm_bpe *bpe, layout *l, pm_token id)
{
    if (l->unknown)
        add_symbol(l, bpe->unk);
    l->unknown = false;
    add_symbol(l, id);
}

/* Adds the tokens of the bytes of a character; false when one of them has none. */
static bool add_fallback(const pm_bpe *bpe, layout *l, const char *c, size_t len)
{
    if (!bpe->byte_fallback)
        return false;
    for (size_t i = 0; i < len; i++)
        if (bpe->fallback[(uint8_t)c[i]] < 0)
            return false;
    for (size_t i = 0; i < len; i++)
        add_symbol(l, bpe->fallback[(uint8_t)c[i]]);
    return true;
}

/* Lays out the symbols of a piece: of its bytes, or of its characters. There are no more than it has bytes, and fewer
 * where there is no unknown token: what the vocabulary lacks is then left out, as in the library. */
static void lay_out(const pm_bpe *bpe, const pm_vocab *vocab, const char *piece, size_t len, layout *l)
{
    for (size_t i = 0, n = 1; i < len; i += n) {
        uint8_t byte = (uint8_t)piece[i];
        pm_token id;
        if (bpe->bytes) {
            id = bpe->byte_id[byte];
        } else if (byte < 0x80) {
            n = 1;
            id = bpe->ascii_id[byte];
        } else {
            pm_char_at(piece + i, &n);
            id = pm_map_get(&vocab->ids, piece + i, n, -1);
        }
        if (id >= 0)
            add_known(bpe, l, id);
        else if (!bpe->bytes && add_fallback(bpe, l, piece + i, n))
            continue;
        else if (bpe->unk >= 0)
            add_unknown(bpe, l);
    }
    if (l->unknown)
        add_symbol(l, bpe->unk);
    if (l->n)
        l->symbols[l->n - 1].next = -1;
}

/* The id of a piece that is one token as a whole; -1 when it is not. */
static int whole_piece(const pm_bpe *bpe, const pm_vocab *vocab, const char *piece, size_t len, pm_bpe_work *work,
                       pm_token *id)
{
    work->spelling.len = 0;
    if (bpe->bytes && pm_bytes_spell(piece, len, &work->spelling) != PM_OK)
        return PM_ERR_MEMORY;
    *id = bpe->bytes ? pm_map_get(&vocab->ids, work->spelling.data, work->spelling.len, -1)
                     : pm_map_get(&vocab->ids, piece, len, -1);
    if (*id >= 0 && vocab->entries[*id].special)
        *id = -1;
    return PM_OK;
}

/* Joins symbols until no merge applies. */
static int merge_symbols(const pm_bpe *bpe, pm_bpe_work *work, int32_t n)
{
    pm_symbol *symbols = work->symbols;
    int status = PM_OK;
    work->heap_n = 0;
    for (int32_t i = 0; i + 1 < n && status == PM_OK; i++)
        status = consider(bpe, work, i);
    while (work->heap_n && status == PM_OK) {
        pm_candidate top = heap_pop(work);
        int32_t at = (int32_t)(uint32_t)top.order, right = symbols[at].next;
        if (symbols[at].id < 0 || right < 0)
            continue;
        /* A pair only grows, so what it would become tells whether it is still the pair that was put in. */
        const pm_merge *merge = pm_find_merge(bpe, symbols[at].id, symbols[right].id);
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
    return status;
}

/* The slot for a piece among the recent ones, with `key` filled in; NULL when it is not kept. */
static pm_recent *find_recent(pm_bpe_work *work, const char *piece, size_t len, uint64_t key[2])
{
    char bytes[16] = {0};
    if (work->pieces++ == RECENT_AFTER)
        work->recent = calloc(RECENT, sizeof(*work->recent)); /* without memory all goes on as before */
    if (!work->recent || len >= sizeof(bytes))
        return NULL;
    memcpy(bytes, piece, len);
    bytes[15] = (char)len;
    memcpy(key, bytes, sizeof(bytes));
    uint64_t hash = (key[0] ^ (key[1] * 0x9e3779b97f4a7c15u)) * 0xd6e8feb86659fd93u;
    return &work->recent[hash >> 51];
}

/* Appends the tokens of a piece that is not among the recent ones. */
static int encode_piece(const pm_bpe *bpe, const pm_vocab *vocab, const char *piece, size_t len, pm_bpe_work *work,
                        pm_ids *out, pm_error *err)
{
    if (bpe->ignore_merges && len <= PM_TOKEN_TEXT_MAX) {
        pm_token id;
        if (whole_piece(bpe, vocab, piece, len, work, &id) != PM_OK)
            return pm_fail_memory(err);
        if (id >= 0)
            return pm_ids_add(out, id) == PM_OK ? PM_OK : pm_fail_memory(err);
    }
    void *p = work->symbols;
    int status = pm_grow(&p, &work->symbols_cap, len, sizeof(*work->symbols));
    work->symbols = p;
    if (status != PM_OK)
        return pm_fail_memory(err);
    layout l = {.symbols = work->symbols};
    lay_out(bpe, vocab, piece, len, &l);
    status = merge_symbols(bpe, work, l.n);
    for (int32_t i = l.n ? 0 : -1; i >= 0 && status == PM_OK; i = work->symbols[i].next)
        status = pm_ids_add(out, work->symbols[i].id);
    return status == PM_OK ? PM_OK : pm_fail_memory(err);
}

int pm_bpe_encode(const pm_bpe *bpe, const pm_vocab *vocab, const char *piece, size_t len, pm_bpe_work *work,
                  pm_ids *out, pm_error *err)
{
    uint64_t key[2] = {0};
    size_t before = out->n;
    if (!len)
        return PM_OK;
    if (len > PM_TEXT_MAX)
        return pm_fail(err, PM_ERR_LIMIT, "a piece of %zu bytes is longer than the %d that can be encoded", len,
                       PM_TEXT_MAX);
    pm_recent *recent = find_recent(work, piece, len, key);
    int status = PM_OK;
    if (recent && recent->n && memcmp(recent->key, key, sizeof(key)) == 0) {
        for (uint32_t i = 0; i < recent->n && status == PM_OK; i++)
            status = pm_ids_add(out, out->ids[recent->at + i]);
        return status == PM_OK ? PM_OK : pm_fail_memory(err);
    }
    status = encode_piece(bpe, vocab, piece, len, work, out, err);
    if (recent && status == PM_OK)
        *recent = (pm_recent){{key[0], key[1]}, (uint32_t)before, (uint32_t)(out->n - before)};
    return status;
}
