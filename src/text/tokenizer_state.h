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
    pm_ids before, after; /* what the post-processor puts around the text */
    pm_token eos;
};

#endif
