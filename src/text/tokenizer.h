/* tokenizer.json as the `tokenizers` library reads it: normaliser, pre-tokeniser, BPE, post-processor, decoder, added
 * tokens. A component of an unknown kind is an error that names it. */
#ifndef PM_TOKENIZER_H
#define PM_TOKENIZER_H

#include "base/base.h"

/* Opening, closing and what works on whole texts is in polymath.h. */

/* The tokenizer of a tokenizer.json that is at hand; `name` is what messages call it. */
int pm_tokenizer_read(pm_tokenizer **out, const char *name, const char *text, size_t len, pm_error *err);

int pm_tokenizer_vocab(const pm_tokenizer *tokenizer);                      /* one more than the largest id */
pm_token pm_tokenizer_id(const pm_tokenizer *tokenizer, const char *token); /* -1 when there is no such token */
pm_token pm_tokenizer_eos(const pm_tokenizer *tokenizer); /* of tokenizer_config.json; -1 when it has none */
bool pm_tokenizer_special(const pm_tokenizer *tokenizer, pm_token id);
bool pm_tokenizer_added(const pm_tokenizer *tokenizer, pm_token id); /* one of added_tokens, special or not */

/* Whether every token stands for the same bytes wherever it stands, a space at the start of a text aside. */
bool pm_tokenizer_has_bytes(const pm_tokenizer *tokenizer);

typedef struct pm_encode_options {
    bool control; /* added tokens are recognised in the text */
    const uint8_t
        *trust; /* with control: NULL, or [len]: an added token is recognised only where all its bytes have trust 1 */
    bool post;  /* run the post-processor (BOS and the like) */
} pm_encode_options;

/* Encodes text[0..len). *ids is malloc'ed. Invalid UTF-8 is an error. Safe to call from several threads. */
int pm_tokenizer_encode(const pm_tokenizer *tokenizer, const char *text, size_t len, const pm_encode_options *options,
                        pm_token **ids, size_t *n, pm_error *err);

/* ---- decoding, one token at a time ---- */

/* Turns tokens into text without ever giving out part of a character, or anything that a later token can change: what
 * was given out so far is always the start of what the whole list decodes to. */
typedef struct pm_detok {
    const pm_tokenizer *tokenizer;
    bool special;    /* write special tokens as text instead of leaving them out */
    uint8_t held[8]; /* bytes of an unfinished character */
    int n_held;
    struct pm_detok_state *states; /* what each step of the decoder remembers; NULL when none has to */
} pm_detok;
int pm_detok_init(pm_detok *detok, const pm_tokenizer *tokenizer, bool special, pm_error *err);
void pm_detok_free(pm_detok *detok); /* a zero-initialised one is allowed */
/* Appends what has become final to `out`. In a byte-level tokenizer an ill-formed sequence becomes one U+FFFD as soon
 * as it is known to be one; with byte fallback every byte of a run becomes one when the run is ill-formed, as in the
 * `tokenizers` library. An id that is not in the vocabulary changes nothing; after PM_ERR_MEMORY, or
 * PM_ERR_LIMIT where a decoder makes too much of a token, the rest of the text is lost. */
int pm_detok_push(pm_detok *detok, pm_token id, pm_buf *out, pm_error *err);
/* The end: an unfinished character becomes U+FFFD. */
int pm_detok_finish(pm_detok *detok, pm_buf *out, pm_error *err);

/* Appends the bytes that a token adds to a text that has begun; nothing for a special one, or where
 * the vocabulary has a hole. */
int pm_tokenizer_bytes(const pm_tokenizer *tokenizer, pm_token id, pm_buf *out, pm_error *err);

#endif
