#include "text/vocabulary.h"

#include "text/grammar.h"

#include <stdlib.h>
#include <string.h>

enum { TOKEN_BYTES_MAX = UINT16_MAX };

/* A token on its way into the tree. */
typedef struct entry {
    const char *text;
    size_t len;
    pm_token id;
} entry;

/* Appends the text of a marker, which may be a special token. */
static int add_marker(const pm_tokenizer *tokenizer, pm_token id, pm_buf *out)
{
    const char open = (char)PM_MARKER_OPEN, close = (char)PM_MARKER_CLOSE;
    char *text = NULL;
    size_t len = 0;
    int status = pm_tokenizer_text(tokenizer, &id, 1, true, &text, &len, NULL);
    if (status == PM_OK)
        status = pm_buf_add(out, &open, 1);
    if (status == PM_OK)
        status = pm_buf_add(out, text, len);
    if (status == PM_OK)
        status = pm_buf_add(out, &close, 1);
    pm_free(text);
    return status;
}

/* Whether bytes that begin and end markers are among some, as in tokens of single bytes. */
static bool has_marks(const char *bytes, size_t len)
{
    return memchr(bytes, PM_MARKER_OPEN, len) || memchr(bytes, PM_MARKER_CLOSE, len);
}

/* Appends the bytes of a token as grammars have them. No text has the bytes around markers. */
static int add_bytes(const pm_tokenizer *tokenizer, pm_token id, uint8_t kind, pm_buf *out)
{
    size_t before = out->len;
    int status = PM_OK;
    if (kind == PM_TOKEN_MARKER)
        status = add_marker(tokenizer, id, out);
    else if (kind == PM_TOKEN_TEXT && id < pm_tokenizer_vocab(tokenizer))
        status = pm_tokenizer_bytes(tokenizer, id, out, NULL);
    if (status == PM_OK && kind == PM_TOKEN_TEXT && has_marks(out->data + before, out->len - before))
        out->len = before;
    if (status != PM_ERR_MEMORY && (status != PM_OK || out->len - before > TOKEN_BYTES_MAX)) {
        out->len = before; /* what has no text, or more than a tree should be deep, is no token for it */
        status = PM_OK;
    }
    return status;
}

static int by_bytes(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    size_t n = x->len < y->len ? x->len : y->len;
    int order = n ? memcmp(x->text, y->text, n) : 0;
    if (order != 0)
        return order;
    if (x->len != y->len)
        return x->len < y->len ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static size_t shared(const entry *a, const entry *b)
{
    size_t n = 0;
    while (n < a->len && n < b->len && a->text[n] == b->text[n])
        n++;
    return n;
}

/* Sets longest and nesting. */
static void measure(pm_vocabulary *v, const entry *tokens, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        int brackets = 0;
        for (size_t k = 0; k < tokens[i].len; k++)
            brackets += tokens[i].text[k] == '{' || tokens[i].text[k] == '[';
        v->nesting = brackets > v->nesting ? brackets : v->nesting;
        v->longest = (int)tokens[i].len > v->longest ? (int)tokens[i].len : v->longest;
    }
}

/* Lays the tree out. `path` has room for the nodes above one. */
static void fill(pm_vocabulary *v, const entry *tokens, size_t n, uint32_t *path)
{
    size_t depth = 0;
    for (size_t i = 0; i < n; i++) {
        const entry *token = &tokens[i];
        size_t common = i ? shared(&tokens[i - 1], token) : 0;
        if (i && common == token->len && common == tokens[i - 1].len) {
            v->same[token->id] = v->token[path[depth - 1]];
            v->token[path[depth - 1]] = token->id;
            continue;
        }
        while (depth > common)
            v->end[path[--depth]] = (uint32_t)v->n;
        for (; depth < token->len; depth++) {
            path[depth] = (uint32_t)v->n;
            v->byte[v->n] = (uint8_t)token->text[depth];
            v->depth[v->n] = (uint16_t)depth;
            v->token[v->n++] = -1;
        }
        v->token[path[depth - 1]] = token->id;
    }
    while (depth > 0)
        v->end[path[--depth]] = (uint32_t)v->n;
}

/* Makes the tree of sorted tokens, none of which is empty. */
static int build(pm_vocabulary *v, const entry *tokens, size_t n)
{
    size_t nodes = 0;
    for (size_t i = 0; i < n; i++)
        nodes += tokens[i].len - (i ? shared(&tokens[i - 1], &tokens[i]) : 0);
    measure(v, tokens, n);
    v->byte = calloc(nodes + 1, sizeof(*v->byte));
    v->depth = calloc(nodes + 1, sizeof(*v->depth));
    v->end = calloc(nodes + 1, sizeof(*v->end));
    v->token = calloc(nodes + 1, sizeof(*v->token));
    v->same = malloc(((size_t)v->vocab + 1) * sizeof(*v->same));
    uint32_t *path = calloc((size_t)v->longest + 1, sizeof(*path));
    bool ok = v->byte && v->depth && v->end && v->token && v->same && path;
    for (int i = 0; ok && i < v->vocab; i++)
        v->same[i] = -1;
    if (ok)
        fill(v, tokens, n, path);
    free(path);
    return ok ? PM_OK : PM_ERR_MEMORY;
}

/* The bytes of all tokens, one behind the other. */
static int spell(pm_vocabulary *v, const pm_tokenizer *tokenizer, const uint8_t *kinds)
{
    pm_buf bytes = {0};
    int status = pm_buf_reserve(&bytes, 0);
    v->start = calloc((size_t)v->vocab + 1, sizeof(*v->start));
    if (!v->start)
        status = PM_ERR_MEMORY;
    for (pm_token id = 0; status == PM_OK && id < v->vocab; id++) {
        status = add_bytes(tokenizer, id, kinds[id], &bytes);
        if (bytes.len > UINT32_MAX)
            status = PM_ERR_MEMORY;
        v->start[id + 1] = (uint32_t)bytes.len;
    }
    v->bytes = bytes.data;
    return status;
}

int pm_vocabulary_new(pm_vocabulary **out, const pm_tokenizer *tokenizer, const uint8_t *kinds, int vocab,
                      pm_error *err)
{
    if (!pm_tokenizer_has_bytes(tokenizer))
        return pm_fail(err, PM_ERR_UNSUPPORTED,
                       "answers cannot be held to a schema: the decoder of tokenizer.json makes tokens' texts depend "
                       "on their neighbours");
    pm_vocabulary *v = calloc(1, sizeof(*v));
    entry *tokens = calloc((size_t)vocab + 1, sizeof(*tokens));
    size_t n = 0;
    int status = v && tokens ? PM_OK : PM_ERR_MEMORY;
    if (status == PM_OK) {
        v->vocab = vocab;
        status = spell(v, tokenizer, kinds);
    }
    for (pm_token id = 0; status == PM_OK && id < vocab; id++) {
        entry token = {.id = id};
        token.text = pm_vocabulary_bytes(v, id, &token.len);
        if (token.len)
            tokens[n++] = token;
    }
    if (status == PM_OK) {
        qsort(tokens, n, sizeof(*tokens), by_bytes);
        status = build(v, tokens, n);
    }
    free(tokens);
    if (status != PM_OK) {
        pm_vocabulary_free(v);
        return pm_fail_memory(err);
    }
    *out = v;
    return PM_OK;
}

void pm_vocabulary_free(pm_vocabulary *vocabulary)
{
    if (!vocabulary)
        return;
    free(vocabulary->byte);
    free(vocabulary->depth);
    free(vocabulary->end);
    free(vocabulary->token);
    free(vocabulary->same);
    free(vocabulary->start);
    free(vocabulary->bytes);
    free(vocabulary);
}
