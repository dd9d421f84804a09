/* The vocabulary: tokens by id, and ids by spelling. */
#include "text/tokenizer_parts.h"

#include <stdlib.h>
#include <string.h>

/* Room for ids below n. */
static int reserve(pm_vocab *vocab, size_t n)
{
    if (n <= vocab->n)
        return PM_OK;
    void *entries = vocab->entries;
    int status = pm_grow(&entries, &vocab->cap, n, sizeof(*vocab->entries));
    vocab->entries = entries;
    if (status != PM_OK)
        return status;
    memset(vocab->entries + vocab->n, 0, (n - vocab->n) * sizeof(*vocab->entries));
    vocab->n = n;
    return PM_OK;
}

/* One member of the vocabulary: "token": id. *pool is where its text goes, and is moved behind it. */
static int load_entry(pm_vocab *vocab, pm_reader *reader, char **pool)
{
    const pm_tok_file *file = reader->file;
    char *text = *pool;
    size_t len, known = vocab->ids.n;
    pm_token id;
    int status = pm_reader_string(reader, text, &len);
    if (status != PM_OK)
        return status;
    text[len] = 0;
    *pool += len + 1;
    if (!pm_reader_takes(reader, ':'))
        return pm_reader_fail(reader, "no colon");
    if ((status = pm_reader_id(reader, text, &id)) != PM_OK)
        return status;
    if (len == 0 || len > PM_TOKEN_TEXT_MAX)
        return pm_fail(file->err, PM_ERR_FORMAT, "%s: model.vocab: the token with id %d has %zu bytes, not 1..%d",
                       file->path, (int)id, len, PM_TOKEN_TEXT_MAX);
    if (reserve(vocab, (size_t)id + 1) != PM_OK || pm_map_set(&vocab->ids, text, len, id) != PM_OK)
        return pm_fail_memory(file->err);
    if (vocab->ids.n == known)
        return pm_fail(file->err, PM_ERR_FORMAT, "%s: model.vocab has '%s' twice", file->path, text);
    pm_vocab_entry *entry = &vocab->entries[id];
    if (entry->text)
        return pm_fail(file->err, PM_ERR_FORMAT, "%s: model.vocab: '%s' and '%s' have the same id %d", file->path,
                       entry->text, text, (int)id);
    entry->text = text;
    entry->len = (uint32_t)len;
    return PM_OK;
}

int pm_vocab_load(pm_vocab *vocab, const pm_tok_file *file, const pm_span *span)
{
    pm_reader reader;
    pm_reader_start(&reader, file, "model.vocab", span);
    if (!pm_reader_takes(&reader, '{'))
        return pm_fail(file->err, PM_ERR_FORMAT, "%s: model.vocab is %s", file->path,
                       span->text ? "not an object" : "missing");
    /* Unquoted and unescaped, a text and its final 0 are shorter than what the file has for it. */
    char *pool = pm_arena_alloc(&vocab->arena, span->len, 1);
    if (!pool)
        return pm_fail_memory(file->err);
    if (pm_reader_takes(&reader, '}'))
        return pm_fail(file->err, PM_ERR_FORMAT, "%s: model.vocab is empty", file->path);
    int status;
    do
        status = load_entry(vocab, &reader, &pool);
    while (status == PM_OK && pm_reader_takes(&reader, ','));
    if (status == PM_OK && !pm_reader_takes(&reader, '}'))
        return pm_reader_fail(&reader, "no comma");
    return status;
}

int pm_vocab_add(pm_vocab *vocab, const pm_tok_file *file, const char *where, const char *text, size_t len, pm_token id)
{
    int known = pm_map_get(&vocab->ids, text, len, -1);
    if (known == id)
        return PM_OK;
    if (known >= 0)
        return pm_fail(file->err, PM_ERR_FORMAT, "%s: %s: '%s' has the id %d, but %d elsewhere", file->path, where,
                       text, (int)id, known);
    if ((size_t)id < vocab->n && vocab->entries[id].text)
        return pm_fail(file->err, PM_ERR_FORMAT, "%s: %s: '%s' has the id %d, which is the id of '%s'", file->path,
                       where, text, (int)id, vocab->entries[id].text);
    char *copy = pm_arena_strdup(&vocab->arena, text, len);
    if (!copy || reserve(vocab, (size_t)id + 1) != PM_OK || pm_map_set(&vocab->ids, copy, len, id) != PM_OK)
        return pm_fail_memory(file->err);
    vocab->entries[id] = (pm_vocab_entry){.text = copy, .len = (uint32_t)len};
    return PM_OK;
}

void pm_vocab_free(pm_vocab *vocab)
{
    free(vocab->entries);
    pm_map_free(&vocab->ids);
    pm_arena_free(&vocab->arena);
    *vocab = (pm_vocab){0};
}
