/* The streaming detokeniser: bytes of tokens become text as soon as they are whole characters. */
#include "text/tokenizer_parts.h"
#include "text/tokenizer_state.h"

static const char REPLACEMENT[] = "\xEF\xBF\xBD";

void pm_detok_init(pm_detok *detok, const pm_tokenizer *tokenizer, bool special)
{
    *detok = (pm_detok){.tokenizer = tokenizer, .special = special};
}

/* How many bytes the character that starts with `byte` has; 0 when none starts so (Unicode Standard, table 3-7). */
static int character_length(uint8_t byte)
{
    return byte < 0x80 ? 1 : byte < 0xC2 ? 0 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : byte < 0xF5 ? 4 : 0;
}

/* True when `byte` may follow the held bytes: only the second byte has limits of its own. */
static bool continues(const pm_detok *detok, uint8_t byte)
{
    uint8_t first = detok->held[0], low = 0x80, high = 0xBF;
    if (detok->n_held == 1) {
        low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
        high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
    }
    return byte >= low && byte <= high;
}

/* One U+FFFD for each maximal part of an ill-formed sequence, the practice that the Unicode Standard recommends. */
static int push_byte(pm_detok *detok, uint8_t byte, pm_buf *out)
{
    if (detok->n_held && !continues(detok, byte)) {
        detok->n_held = 0;
        if (pm_buf_add(out, REPLACEMENT, 3) != PM_OK)
            return PM_ERR_MEMORY;
    }
    if (!detok->n_held && character_length(byte) == 0)
        return pm_buf_add(out, REPLACEMENT, 3);
    detok->held[detok->n_held++] = byte;
    if (detok->n_held < character_length(detok->held[0]))
        return PM_OK;
    int n = detok->n_held;
    detok->n_held = 0;
    return pm_buf_add(out, detok->held, (size_t)n);
}

int pm_detok_push(pm_detok *detok, pm_token id, pm_buf *out, pm_error *err)
{
    const pm_vocab *vocab = &detok->tokenizer->vocab;
    if (id < 0 || (size_t)id >= vocab->n || !vocab->entries[id].text)
        return pm_fail(err, PM_ERR_INVALID, "token id %d is not in the vocabulary of %zu tokens", (int)id, vocab->n);
    const pm_vocab_entry *entry = &vocab->entries[id];
    if (entry->special && !detok->special)
        return PM_OK;
    pm_detok next = *detok;
    size_t before = out->len;
    next.started = true;
    for (uint32_t i = 0; i < entry->n_bytes; i++) {
        if (push_byte(&next, (uint8_t)entry->bytes[i], out) != PM_OK) {
            out->len = before;
            return pm_fail_memory(err);
        }
    }
    *detok = next;
    return PM_OK;
}

int pm_detok_finish(pm_detok *detok, pm_buf *out, pm_error *err)
{
    if (detok->n_held && pm_buf_add(out, REPLACEMENT, 3) != PM_OK)
        return pm_fail_memory(err);
    detok->n_held = 0;
    return PM_OK;
}
