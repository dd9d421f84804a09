/* From text to tokens and back. */
#include "engine/chat.h"
#include "engine/engine.h"

#include <stdlib.h>
#include <string.h>

/* ---- chat ---- */

static bool has_tools(const json_t *variables)
{
    return json_array_size(json_object_get(variables, "tools")) > 0;
}

static pm_reply_format reply_of(const pm_engine *engine, const json_t *variables)
{
    return has_tools(variables) ? engine->reply_tools : engine->reply;
}

/* The variables of a chat, as this model's template takes them. */
static int chat_variables(const pm_engine *engine, const pm_chat *chat, json_t **out, pm_error *err)
{
    json_t *variables = NULL;
    int status = pm_chat_variables(chat, &variables, err);
    const pm_call_format *calls = status == PM_OK ? reply_of(engine, variables).calls : NULL;
    if (calls && calls->short_ids)
        status = pm_chat_short_ids(variables, err);
    if (status == PM_OK)
        *out = variables;
    else
        json_decref(variables);
    return status;
}

/* Renders the chat template over the variables. */
static int render(const pm_engine *engine, const json_t *variables, pm_rendered *out, pm_error *err)
{
    const pm_template *chat = has_tools(variables) ? engine->chat_tools : engine->chat;
    if (!chat)
        return pm_fail(err, PM_ERR_UNSUPPORTED, "the model has no chat template; use --raw");
    return pm_template_render(chat, variables, out, err);
}

/* Renders and encodes. The template writes all control tokens, so the post-processor stays out, as in transformers; but
 * a BOS that it would add is not lost when the template leaves it to it. */
static int encode_chat(const pm_engine *engine, const json_t *variables, pm_prompt *out, pm_error *err)
{
    pm_rendered rendered = {0};
    pm_token *ids = NULL;
    size_t n = 0;
    int status = render(engine, variables, &rendered, err);
    if (status != PM_OK)
        goto done;
    pm_encode_options options = {.control = true, .trust = (const uint8_t *)rendered.trust.data};
    status = pm_tokenizer_encode(engine->tokenizer, rendered.text.data ? rendered.text.data : "", rendered.text.len,
                                 &options, &ids, &n, err);
    if (status == PM_OK && engine->bos >= 0 && (n == 0 || ids[0] != engine->bos)) {
        pm_token *more = realloc(ids, (n + 1) * sizeof(*more));
        if (!more) {
            status = pm_fail_memory(err);
            goto done;
        }
        ids = more;
        memmove(ids + 1, ids, n * sizeof(*ids));
        ids[0] = engine->bos;
        n++;
    }
    if (status == PM_OK) {
        pm_reply_format reply = reply_of(engine, variables);
        bool reasoning = pm_reply_opened(reply, rendered.text.data, rendered.trust.data, rendered.text.len);
        *out = (pm_prompt){.ids = ids, .n = n, .mark = n, .reasoning = reasoning};
        ids = NULL;
    }
done:
    free(ids);
    pm_rendered_free(&rendered);
    return status;
}

/* How many tokens the prompt shares with the same one without the generation prompt. */
static int find_mark(const pm_engine *engine, json_t *variables, pm_prompt *prompt, pm_error *err)
{
    pm_prompt without;
    size_t shared = 0;
    if (json_object_set(variables, "add_generation_prompt", json_false()) != 0)
        return pm_fail_memory(err);
    int status = encode_chat(engine, variables, &without, err);
    if (status != PM_OK)
        return status;
    while (shared < without.n && shared < prompt->n && without.ids[shared] == prompt->ids[shared])
        shared++;
    prompt->mark = shared;
    pm_prompt_free(&without);
    return PM_OK;
}

/* Hands a prompt over, when it is one that the model can take. */
static int finish_prompt(const pm_engine *engine, int status, pm_prompt *prompt, pm_prompt *out, pm_error *err)
{
    if (status == PM_OK && prompt->n == 0)
        status = pm_fail(err, PM_ERR_INVALID, "the prompt is empty");
    if (status == PM_OK)
        status = pm_engine_check_ids(engine, prompt->ids, prompt->n, err);
    if (status == PM_OK)
        *out = *prompt;
    else
        pm_prompt_free(prompt);
    return status;
}

int pm_chat_prompt(const pm_engine *engine, const pm_chat *chat, pm_prompt *out, pm_error *err)
{
    json_t *variables = NULL;
    pm_prompt prompt = {0};
    int status = chat_variables(engine, chat, &variables, err);
    if (status == PM_OK)
        status = encode_chat(engine, variables, &prompt, err);
    if (status == PM_OK && !chat->no_generation_prompt)
        status = find_mark(engine, variables, &prompt, err);
    json_decref(variables);
    return finish_prompt(engine, status, &prompt, out, err);
}

int pm_chat_text(const pm_engine *engine, const pm_chat *chat, char **text, size_t *len, pm_error *err)
{
    json_t *variables = NULL;
    pm_rendered rendered = {0};
    int status = chat_variables(engine, chat, &variables, err);
    if (status == PM_OK)
        status = render(engine, variables, &rendered, err);
    if (status == PM_OK && pm_buf_reserve(&rendered.text, 0) != PM_OK)
        status = pm_fail_memory(err);
    if (status == PM_OK) {
        *text = rendered.text.data;
        *len = rendered.text.len;
        rendered.text = (pm_buf){0};
    }
    pm_rendered_free(&rendered);
    json_decref(variables);
    return status;
}

/* ---- raw ---- */

int pm_text_prompt(const pm_engine *engine, const char *text, size_t len, pm_prompt *out, pm_error *err)
{
    pm_prompt prompt = {0};
    int status = pm_tokenizer_encode(engine->tokenizer, text, len, &(pm_encode_options){.control = true, .post = true},
                                     &prompt.ids, &prompt.n, err);
    prompt.mark = prompt.n;
    return finish_prompt(engine, status, &prompt, out, err);
}

int pm_ids_prompt(const pm_engine *engine, const pm_token *ids, size_t n, pm_prompt *out, pm_error *err)
{
    pm_prompt prompt = {.n = n, .mark = n};
    size_t bytes;
    int status = PM_OK;
    if (n > 0) {
        prompt.ids = pm_mul(n, sizeof(*ids), &bytes) ? malloc(bytes) : NULL;
        if (!prompt.ids)
            return pm_fail_memory(err);
        memcpy(prompt.ids, ids, bytes);
    }
    return finish_prompt(engine, status, &prompt, out, err);
}

void pm_prompt_free(pm_prompt *prompt)
{
    if (!prompt)
        return;
    free(prompt->ids);
    *prompt = (pm_prompt){0};
}

int pm_token_bytes(const pm_engine *engine, pm_token id, char **bytes, size_t *len, pm_error *err)
{
    pm_buf buf = {0};
    int status = pm_engine_check_ids(engine, &id, 1, err);
    if (status == PM_OK && pm_buf_reserve(&buf, 0) != PM_OK)
        status = pm_fail_memory(err);
    if (status == PM_OK && id < pm_tokenizer_vocab(engine->tokenizer)) /* as in pm_decode */
        status = pm_tokenizer_bytes(engine->tokenizer, id, &buf, err);
    if (status != PM_OK) {
        pm_buf_free(&buf);
        return status;
    }
    *bytes = buf.data;
    *len = buf.len;
    return PM_OK;
}

int pm_decode(const pm_engine *engine, const pm_token *ids, size_t n, bool special, char **text, size_t *len,
              pm_error *err)
{
    pm_buf buf = {0};
    pm_detok detok = {0};
    int known = pm_tokenizer_vocab(engine->tokenizer);
    int status = pm_engine_check_ids(engine, ids, n, err);
    if (status == PM_OK && pm_buf_reserve(&buf, 0) != PM_OK)
        status = pm_fail_memory(err);
    if (status == PM_OK)
        status = pm_detok_init(&detok, engine->tokenizer, special, err);
    for (size_t i = 0; status == PM_OK && i < n; i++)
        if (ids[i] < known) /* the model's vocabulary may be the larger one; the rest of it has no text */
            status = pm_detok_push(&detok, ids[i], &buf, err);
    if (status == PM_OK)
        status = pm_detok_finish(&detok, &buf, err);
    pm_detok_free(&detok);
    if (status != PM_OK) {
        pm_buf_free(&buf);
        return status;
    }
    *text = buf.data;
    *len = buf.len;
    return PM_OK;
}

void pm_free(void *memory)
{
    free(memory);
}
