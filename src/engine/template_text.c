/* What a chat template makes of a request, and which parts of it are control tokens: for people to look at. */
#include "engine/chat.h"
#include "files/config.h"
#include "text/reply.h"
#include "text/template.h"
#include "text/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SETTINGS_FILE_MAX = 64 << 20 };

/* Renders the template of `dir`, after its ids of calls are such as the template takes. */
static int render(const char *dir, json_t *variables, pm_rendered *out, pm_error *err)
{
    bool tools = json_array_size(json_object_get(variables, "tools")) > 0;
    pm_template *tmpl = NULL;
    json_t *config = NULL, *own = NULL;
    pm_buf path = {0};
    int status = pm_template_open(&tmpl, dir, tools, err);
    if (status == PM_OK && !tmpl)
        status = pm_fail(err, PM_ERR_UNSUPPORTED, "%s: has no chat template", dir);
    if (status == PM_OK) {
        size_t len;
        const char *source = pm_template_source(tmpl, &len);
        const pm_call_format *calls = pm_reply_detect(source, len).calls;
        if (calls && calls->short_ids)
            status = pm_chat_short_ids(variables, err);
    }
    if (status == PM_OK && pm_buf_printf(&path, "%s/tokenizer_config.json", dir) != PM_OK)
        status = pm_fail_memory(err);
    if (status == PM_OK && pm_is_there(path.data))
        status = pm_json_file(path.data, SETTINGS_FILE_MAX, &config, err);
    if (status == PM_OK)
        status = pm_template_tokens(config, &own, err);
    if (status == PM_OK) {
        pm_template_own(tmpl, own);
        status = pm_template_render(tmpl, variables, out, err);
    }
    json_decref(own);
    json_decref(config);
    pm_buf_free(&path);
    pm_template_free(tmpl);
    return status;
}

/* The text of a token that is recognised in text as a whole, in `out`; empty for one that is made of its characters. */
static int control_text(const pm_tokenizer *tokenizer, pm_token id, pm_buf *out, pm_error *err)
{
    pm_detok detok = {0};
    int status = pm_detok_init(&detok, tokenizer, true, err);
    if (status == PM_OK)
        status = pm_detok_push(&detok, id, out, err);
    if (status == PM_OK)
        status = pm_detok_finish(&detok, out, err);
    pm_detok_free(&detok);
    bool alone[2] = {false, false}; /* whether its text is this one token without, with control tokens */
    for (int control = 0; status == PM_OK && control < 2; control++) {
        pm_token *ids = NULL;
        size_t n = 0;
        pm_encode_options options = {.control = control == 1};
        status = pm_tokenizer_encode(tokenizer, out->data ? out->data : "", out->len, &options, &ids, &n, err);
        alone[control] = status == PM_OK && n == 1 && ids[0] == id;
        free(ids);
    }
    if (alone[0] || !alone[1])
        out->len = 0;
    return status;
}

/* Marks the places where the template wrote `token`. */
static void mark(const pm_rendered *rendered, const pm_buf *token, uint8_t *control)
{
    const pm_buf *text = &rendered->text, *trust = &rendered->trust;
    for (size_t at = 0; token->len && at + token->len <= text->len;) {
        bool here = !memcmp(text->data + at, token->data, token->len) && !memchr(trust->data + at, 0, token->len);
        if (here)
            memset(control + at, 1, token->len);
        at += here ? token->len : 1;
    }
}

static int by_id(const void *a, const void *b)
{
    pm_token x = *(const pm_token *)a, y = *(const pm_token *)b;
    return (x > y) - (x < y);
}

/* Marks the control tokens among those that the text becomes. */
static int mark_control(const pm_tokenizer *tokenizer, const pm_rendered *rendered, uint8_t *control, pm_error *err)
{
    pm_token *ids = NULL;
    size_t n = 0;
    pm_encode_options options = {.control = true, .trust = (const uint8_t *)rendered->trust.data};
    int status = pm_tokenizer_encode(tokenizer, rendered->text.data, rendered->text.len, &options, &ids, &n, err);
    if (status == PM_OK && n > 0)
        qsort(ids, n, sizeof(*ids), by_id);
    for (size_t i = 0; status == PM_OK && i < n; i++) {
        pm_buf token = {0};
        if (i > 0 && ids[i] == ids[i - 1])
            continue;
        status = control_text(tokenizer, ids[i], &token, err);
        if (status == PM_OK)
            mark(rendered, &token, control);
        pm_buf_free(&token);
    }
    free(ids);
    return status;
}

int pm_template_text(const char *dir, const pm_chat *chat, char **text, size_t *len, uint8_t **control, pm_error *err)
{
    json_t *variables = NULL;
    pm_rendered rendered = {0};
    pm_tokenizer *tokenizer = NULL;
    uint8_t *marks = NULL;
    int status = pm_chat_variables(chat, &variables, err);
    if (status == PM_OK)
        status = render(dir, variables, &rendered, err);
    if (status == PM_OK && control) {
        marks = calloc(rendered.text.len + 1, 1);
        status = marks ? pm_tokenizer_open(&tokenizer, dir, err) : pm_fail_memory(err);
        if (status == PM_OK)
            status = mark_control(tokenizer, &rendered, marks, err);
    }
    if (status == PM_OK) {
        *text = rendered.text.data;
        *len = rendered.text.len;
        rendered.text = (pm_buf){0};
        if (control)
            *control = marks;
        marks = NULL;
    }
    free(marks);
    pm_tokenizer_close(tokenizer);
    pm_rendered_free(&rendered);
    json_decref(variables);
    return status;
}
