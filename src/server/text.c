/* POST /tokenize, /detokenize and /apply-template: what the model's text is made of. */
#include "ask.h"
#include "state.h"

#include <stdlib.h>
#include <string.h>

/* ---- /tokenize ---- */

struct texts {
    const char *model, *content;
    json_t *tokens;
    bool special;
};

static const pm_field tokenize_fields[] = {
    PM_TEXT("content", offsetof(struct texts, content)),
    PM_TEXT("model", offsetof(struct texts, model)),
    PM_LAST,
};

/* Reads the body into `texts`; the object that it borrows from, or NULL after the exchange has been refused. */
static json_t *read_texts(pm_exchange *exchange, const pm_field *fields, struct texts *texts)
{
    pm_refusal refusal;
    json_t *body = pm_body_read(exchange, &refusal);
    if (body && pm_fields_read(fields, body, NULL, texts, &refusal) &&
        pm_ask_check_model(exchange->server, texts->model, &refusal))
        return body;
    json_decref(body);
    pm_exchange_refuse(exchange, &refusal);
    return NULL;
}

static void refuse_field(pm_exchange *exchange, const char *name, const char *why)
{
    pm_refusal refusal;
    pm_refuse(&refusal, 400, "invalid_value", name, "'%s' %s", name, why);
    pm_exchange_refuse(exchange, &refusal);
}

void pm_work_tokenize(pm_exchange *exchange)
{
    struct texts texts = {0};
    pm_prompt prompt = {0};
    pm_error err;
    json_t *body = read_texts(exchange, tokenize_fields, &texts);
    if (!body)
        return;
    int status = PM_OK;
    if (!texts.content)
        refuse_field(exchange, "content", "is missing");
    else if (*texts.content)
        status = pm_text_prompt(exchange->server->engine, texts.content, strlen(texts.content), &prompt, &err);
    if (status != PM_OK) {
        refuse_field(exchange, "content", err.message);
    } else if (texts.content) {
        json_t *tokens = json_array();
        for (size_t i = 0; i < prompt.n; i++)
            json_array_append_new(tokens, json_integer(prompt.ids[i]));
        pm_exchange_json(exchange, 200, json_pack("{s:o}", "tokens", tokens));
    }
    pm_prompt_free(&prompt);
    json_decref(body);
}

/* ---- /detokenize ---- */

static const pm_field detokenize_fields[] = {
    PM_LIST("tokens", offsetof(struct texts, tokens)),
    PM_BOOL("special", offsetof(struct texts, special)),
    PM_TEXT("model", offsetof(struct texts, model)),
    PM_LAST,
};

/* A list of ids, malloc'ed; NULL when it is none. */
static pm_token *list_ids(const json_t *list)
{
    size_t n = json_array_size(list);
    pm_token *ids = calloc(n + 1, sizeof(*ids));
    for (size_t i = 0; ids && i < n; i++) {
        const json_t *value = json_array_get(list, i);
        json_int_t id = json_integer_value(value);
        if (!json_is_integer(value) || id < 0 || id > INT32_MAX) {
            free(ids);
            return NULL;
        }
        ids[i] = (pm_token)id;
    }
    return ids;
}

void pm_work_detokenize(pm_exchange *exchange)
{
    struct texts texts = {.special = true};
    json_t *body = read_texts(exchange, detokenize_fields, &texts);
    char *text;
    size_t len;
    pm_error err;
    if (!body)
        return;
    pm_token *ids = texts.tokens ? list_ids(texts.tokens) : NULL;
    if (!ids)
        refuse_field(exchange, "tokens", "must be a list of token ids");
    else if (pm_decode(exchange->server->engine, ids, json_array_size(texts.tokens), texts.special, &text, &len,
                       &err) != PM_OK)
        refuse_field(exchange, "tokens", err.message);
    else {
        pm_exchange_json(exchange, 200, json_pack("{s:s%}", "content", text, len));
        pm_free(text);
    }
    free(ids);
    json_decref(body);
}

/* ---- /apply-template ---- */

static bool read_generation_prompt(void *target, const char *name, json_t *value, pm_refusal *refusal)
{
    if (!json_is_boolean(value))
        return pm_refuse(refusal, 400, "invalid_type", name, "'%s' must be true or false", name);
    ((pm_ask *)target)->no_generation_prompt = json_is_false(value);
    return true;
}

static const pm_field template_fields[] = {
    PM_LIST("messages", PM_ASK(messages)),
    PM_LIST("tools", PM_ASK(tools)),
    PM_OBJECT("chat_template_kwargs", PM_ASK(variables)),
    PM_READ("add_generation_prompt", read_generation_prompt),
    PM_TEXT("model", PM_ASK(model)),
    PM_LAST,
};

void pm_work_template(pm_exchange *exchange)
{
    pm_server *server = exchange->server;
    pm_ask ask = {0};
    pm_chat chat = {0};
    pm_refusal refusal;
    pm_error err;
    char *text;
    size_t len;
    json_t *body = pm_body_read(exchange, &refusal);
    bool right = body && pm_fields_read(template_fields, body, NULL, &ask, &refusal) &&
                 pm_ask_check_model(server, ask.model, &refusal) && pm_ask_chat(&ask, &chat, &refusal);
    int status = right ? pm_chat_text(server->engine, &chat, &text, &len, &err) : PM_OK;
    if (status != PM_OK)
        pm_refuse_status(exchange, &refusal, status, &err);
    if (!right || status != PM_OK) {
        pm_exchange_refuse(exchange, &refusal);
    } else {
        pm_exchange_json(exchange, 200, json_pack("{s:s%}", "prompt", text, len));
        pm_free(text);
    }
    pm_ask_chat_free(&chat);
    json_decref(body);
}
