/* Whether tokens stand for bytes of their own. */
#include "text/tokenizer_state.h"

/* Whether a step of the decoder makes the same of a token whatever comes before and after it, but for a space that the
 * very first one may lose. */
static bool is_free(const pm_decode_step *step)
{
    switch (step->kind) {
    case PM_DECODE_REPLACE:
    case PM_DECODE_BYTE_FALLBACK:
    case PM_DECODE_FUSE:
    case PM_DECODE_METASPACE: return true;
    case PM_DECODE_STRIP: return step->stop == 0;
    default: return false;
    }
}

static bool is_byte_level(const pm_tok_decoder *decoder)
{
    return decoder->n == 1 && decoder->steps[0].kind == PM_DECODE_BYTE_LEVEL;
}

bool pm_tokenizer_has_bytes(const pm_tokenizer *tokenizer)
{
    const pm_tok_decoder *decoder = &tokenizer->decoder;
    bool all = true;
    for (int k = 0; k < decoder->n; k++)
        all = all && is_free(&decoder->steps[k]);
    return all || is_byte_level(decoder);
}

bool pm_tokenizer_added(const pm_tokenizer *tokenizer, pm_token id)
{
    for (size_t i = 0; i < tokenizer->added.n; i++)
        if (tokenizer->added.tokens[i].id == id)
            return true;
    return false;
}
