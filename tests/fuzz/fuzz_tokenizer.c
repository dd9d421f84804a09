/* tokenizer.json: whatever it says, loading ends with a tokenizer or a message, and a tokenizer turns text into tokens
 * of its vocabulary and any of those into text, the same text one by one and together. */
#include "fuzz.h"
#include "text/tokenizer.h"

#include <string.h>

static const char *const texts[] = {
    "",
    " Hi  there\n\n\tI'LL 1234 \xc3\xa9"
    "e\xcc\x81 \xe6\xbc\xa2\xe5\xad\x97 \xf0\x9f\x98\x80 <s>a</s>b <0x41>",
    "aaaaaaaaaaaaaaaaabababab",
    "\xe2\x96\x81x\xe3\x80\x80\xc4\xb0\xef\xac\x81\xe1\x84\x92\xe1\x85\xa1\xe1\x86\xab.,!?\xc2\xb2\xe2\x85\xa7",
};

/* Decodes the tokens one by one: what is given out is whole characters, and together what they say. */
static void check_decoding(const pm_tokenizer *tokenizer, const pm_token *ids, size_t n, bool special)
{
    pm_error err;
    pm_detok detok;
    pm_buf out = {0};
    char *whole;
    size_t len;
    if (pm_tokenizer_text(tokenizer, ids, n, special, &whole, &len, &err) != PM_OK)
        return; /* a pattern that costs too much */
    PM_FUZZ_CHECK(pm_utf8_valid(whole, len, NULL), "the text of %zu tokens is not UTF-8", n);
    PM_FUZZ_CHECK(pm_detok_init(&detok, tokenizer, special, &err) == PM_OK, "%s", err.message);
    for (size_t i = 0; i < n; i++) {
        PM_FUZZ_CHECK(pm_detok_push(&detok, ids[i], &out, &err) == PM_OK, "%s", err.message);
        PM_FUZZ_CHECK(out.len <= len && (!out.len || memcmp(out.data, whole, out.len) == 0),
                      "after %zu of %zu tokens '%s' is not the start of '%s'", i + 1, n, out.data, whole);
    }
    PM_FUZZ_CHECK(pm_detok_finish(&detok, &out, &err) == PM_OK, "%s", err.message);
    PM_FUZZ_CHECK(out.len == len, "'%s' is not all of '%s'", out.data, whole);
    pm_detok_free(&detok);
    pm_buf_free(&out);
    pm_free(whole);
}

/* Up to 64 tokens from all over the vocabulary, in an order that depends on the input. */
static void check_any_tokens(const pm_tokenizer *tokenizer, const uint8_t *data, size_t size)
{
    pm_token ids[64];
    size_t n = 0;
    for (size_t i = 0; i < size && n < PM_COUNT(ids) && pm_tokenizer_vocab(tokenizer) > 0; i++) {
        pm_token id = (pm_token)((data[i] * 251u + i) % (unsigned)pm_tokenizer_vocab(tokenizer));
        if (pm_tokenizer_token(tokenizer, id))
            ids[n++] = id;
    }
    check_decoding(tokenizer, ids, n, true);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    pm_tokenizer *tokenizer = NULL;
    pm_error err = {0};
    int status = pm_tokenizer_read(&tokenizer, "tokenizer.json", (const char *)data, size, &err);
    if (status != PM_OK) {
        PM_FUZZ_CHECK(err.code == (pm_status)status && *err.message, "status %d without a message", status);
        return 0;
    }
    for (size_t i = 0; i < PM_COUNT(texts); i++) {
        pm_prompt prompt;
        for (int plain = 0; plain < 2; plain++) {
            if (pm_tokenizer_ids(tokenizer, texts[i], strlen(texts[i]), plain, &prompt, &err) != PM_OK)
                continue;
            for (size_t k = 0; k < prompt.n; k++)
                PM_FUZZ_CHECK(pm_tokenizer_token(tokenizer, prompt.ids[k]), "token %d is not in the vocabulary",
                              (int)prompt.ids[k]);
            check_decoding(tokenizer, prompt.ids, prompt.n, plain);
            pm_prompt_free(&prompt);
        }
    }
    check_any_tokens(tokenizer, data, size);
    pm_tokenizer_close(tokenizer);
    return 0;
}
