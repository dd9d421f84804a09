/* Opening, compiling and rendering of chat templates. */
#include "text/template.h"

#include "files/config.h"
#include "text/template_impl.h"

#include <stdlib.h>
#include <string.h>

/* Parses tokens into the body and names of `tmpl`. */
static int parse(pm_template *tmpl, const tpl_token *tokens, pm_error *err)
{
    static const char *const first[] = {"caller", "varargs", "kwargs", "loop"};
    tpl_parser parser = {.tmpl = tmpl, .heap = &tmpl->heap, .token = tokens, .err = err};
    pm_error own;
    if (!parser.err)
        parser.err = &own; /* the parser tells failures by it */
    bool ok = true;
    for (size_t i = 0; ok && i < PM_COUNT(first); i++)
        ok = pm_tpl_name(&parser, first[i]) >= 0;
    ok = ok && pm_tpl_parse_template(&parser, &tmpl->body);
    if (ok) {
        tmpl->names = pm_tpl_alloc(&tmpl->heap, parser.n_names, sizeof(*tmpl->names));
        tmpl->n_names = parser.n_names;
        if (tmpl->names)
            memcpy(tmpl->names, parser.name_list, parser.n_names * sizeof(*tmpl->names));
        else
            ok = pm_tpl_no_memory(&parser);
    }
    free(parser.name_list);
    pm_map_free(&parser.names);
    return ok ? PM_OK : parser.err->code;
}

int pm_template_new(pm_template **out, const char *name, const char *source, size_t len, pm_error *err)
{
    size_t bad, n;
    tpl_token *tokens;
    if (len > TPL_MAX_SOURCE)
        return pm_fail(err, PM_ERR_UNSUPPORTED, "%s: a template of %zu bytes is over the limit of %d", name, len,
                       TPL_MAX_SOURCE);
    if (!pm_utf8_valid(source, len, &bad))
        return pm_fail(err, PM_ERR_FORMAT, "%s: byte %zu is not UTF-8", name, bad);
    pm_template *tmpl = calloc(1, sizeof(*tmpl));
    if (!tmpl)
        return pm_fail_memory(err);
    tmpl->heap.limit = SIZE_MAX / 2;
    tmpl->name = strdup(name);
    tmpl->source = pm_arena_strdup(&tmpl->heap.arena, source, len);
    tmpl->source_len = len;
    int status = tmpl->name && tmpl->source ? PM_OK : pm_fail_memory(err);
    if (status == PM_OK)
        status = pm_tpl_lex(&tmpl->heap, name, source, len, &tokens, &n, err);
    if (status == PM_OK)
        status = parse(tmpl, tokens, err);
    if (status == PM_OK)
        *out = tmpl;
    else
        pm_template_free(tmpl);
    return status;
}

void pm_template_free(pm_template *tmpl)
{
    if (!tmpl)
        return;
    pm_arena_free(&tmpl->heap.arena);
    json_decref(tmpl->own);
    free(tmpl->name);
    free(tmpl);
}

const char *pm_template_source(const pm_template *tmpl, size_t *len)
{
    *len = tmpl->source_len;
    return tmpl->source;
}

void pm_template_own(pm_template *tmpl, json_t *values)
{
    json_decref(tmpl->own);
    tmpl->own = json_incref(values);
}

/* ---- model directories ---- */

int pm_template_tokens(const json_t *tokenizer_config, json_t **out, pm_error *err)
{
    static const char *const names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};
    json_t *tokens = json_object();
    bool whole = tokens != NULL;
    for (size_t i = 0; whole && i < PM_COUNT(names); i++) {
        json_t *value = json_object_get(tokenizer_config, names[i]);
        if (json_is_object(value)) /* an added token, with what else is to be known of it */
            value = json_object_get(value, "content");
        whole = !json_is_string(value) || json_object_set(tokens, names[i], value) == 0;
    }
    if (!whole) {
        json_decref(tokens);
        return pm_fail_memory(err);
    }
    *out = tokens;
    return PM_OK;
}

/* The template of a list of {name, template}. */
static int choose(const json_t *list, bool tools, const char *path, const json_t **out, pm_error *err)
{
    const json_t *found = NULL;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *entry = json_array_get(list, i), *text = json_object_get(entry, "template");
        const char *name = json_string_value(json_object_get(entry, "name"));
        if (!name || !json_is_string(text))
            return pm_fail(err, PM_ERR_FORMAT, "%s: chat_template[%zu] is not a name and a template", path, i);
        if (!strcmp(name, "tool_use") ? tools : !strcmp(name, "default") && !(tools && found))
            found = text;
    }
    *out = found;
    return found ? PM_OK : pm_fail(err, PM_ERR_UNSUPPORTED, "%s: chat_template has no template named 'default'", path);
}

int pm_template_open(pm_template **out, const char *dir, bool tools, pm_error *err)
{
    enum { MAX_PATH_TAIL = 32 };
    size_t room;
    pm_buf source = {0};
    json_t *config = NULL;
    int status = PM_OK;
    char *path = pm_add(strlen(dir), MAX_PATH_TAIL, &room) ? malloc(room) : NULL;
    if (!path)
        return pm_fail_memory(err);
    snprintf(path, room, "%s/chat_template.jinja", dir);
    if (pm_is_there(path)) {
        status = pm_read_file(path, TPL_MAX_SOURCE, &source, err);
        if (status == PM_OK)
            status = pm_template_new(out, path, source.data ? source.data : "", source.len, err);
        goto done;
    }
    snprintf(path, room, "%s/tokenizer_config.json", dir);
    const json_t *text = NULL;
    if (pm_is_there(path)) {
        if ((status = pm_json_file(path, 0, &config, err)) != PM_OK)
            goto done;
        text = json_object_get(config, "chat_template");
    }
    if (json_is_array(text) && (status = choose(text, tools, path, &text, err)) != PM_OK)
        goto done;
    if (!text || json_is_null(text))
        *out = NULL;
    else if (!json_is_string(text))
        status = pm_fail(err, PM_ERR_FORMAT, "%s: chat_template is neither a string nor a list", path);
    else
        status = pm_template_new(out, path, json_string_value(text), json_string_length(text), err);
done:
    json_decref(config);
    pm_buf_free(&source);
    free(path);
    return status;
}

/* ---- rendering ---- */

/* Gives every name of the template its value from outside: one of the model's own, a variable, a global function, or
 * undefined. */
static bool fill_context(tpl_run *run, const json_t *vars)
{
    size_t n = run->tmpl->n_names;
    run->context = pm_tpl_new(run, n, sizeof(*run->context));
    for (size_t i = 0; run->context && i < n; i++) {
        const char *name = run->tmpl->names[i];
        tpl_value *value = &run->context[i];
        const json_t *own = json_object_get(run->tmpl->own, name), *var = json_object_get(vars, name);
        const tpl_builtin *function = pm_tpl_global(name);
        bool ok = true;
        if (json_is_string(own))
            ok = pm_tpl_text(run, json_string_value(own), json_string_length(own), 1, value);
        else if (var)
            ok = pm_tpl_from_json(run, var, 0, value);
        else if (function)
            *value = (tpl_value){.kind = TPL_FUNCTION, .trust = 1, .function = function};
        else
            ok = pm_tpl_undefined(run, NULL, NULL, name, value);
        if (!ok)
            return false;
    }
    return run->context != NULL;
}

int pm_template_render(const pm_template *tmpl, const json_t *vars, pm_rendered *out, pm_error *err)
{
    tpl_scope top = {0};
    if (!json_is_object(vars))
        return pm_fail(err, PM_ERR_INVALID, "%s: the variables of a template must be a JSON object", tmpl->name);
    tpl_run *run = calloc(1, sizeof(*run));
    if (!run)
        return pm_fail_memory(err);
    run->tmpl = tmpl;
    run->heap.limit = TPL_MAX_MEMORY;
    run->place = (tpl_place){1, 1};
    run->err = err;
    bool ok = pm_buf_reserve(&run->text, 0) == PM_OK && pm_buf_reserve(&run->trust, 0) == PM_OK;
    if (!ok)
        pm_tpl_report_memory(run);
    ok = ok && fill_context(run, vars) && pm_tpl_execute(run, &tmpl->body, &top);
    int status = run->status;
    if (ok) {
        run->text.data[run->text.len] = 0;
        run->trust.data[run->trust.len] = 0;
        *out = (pm_rendered){run->text, run->trust};
    } else {
        pm_buf_free(&run->text);
        pm_buf_free(&run->trust);
    }
    pm_arena_free(&run->heap.arena);
    free(run);
    return status;
}

void pm_rendered_free(pm_rendered *rendered)
{
    pm_buf_free(&rendered->text);
    pm_buf_free(&rendered->trust);
}
