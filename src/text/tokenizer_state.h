/* What a tokeniser is made of, for the tokeniser's own files only. */
#ifndef PM_TOKENIZER_STATE_H
#define PM_TOKENIZER_STATE_H

#include "text/tokenizer_parts.h"

struct pm_tokenizer {
    pm_vocab vocab;
    pm_added added;
    pm_normalizer normalizer;
    pm_splitter splitter;
    pm_bpe bpe;
    pm_tok_decoder decoder;
    pm_ids before, after; /* what the post-processor puts around the text */
    bool has_template;
    pm_token eos;
};

/* A pm_tok_load for one post-processor; `into` is the pm_tokenizer, whose vocabulary is loaded. */
int pm_tok_load_post(void *into, const pm_tok_file *file, const json_t *component, const char *where);
/* Takes what tokenizer_config.json says of a tokenizer whose tokenizer.json is loaded. */
int pm_tok_load_config(pm_tokenizer *tokenizer, const pm_tok_file *file, const json_t *root);

#endif
