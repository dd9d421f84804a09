/* Chat templates: the part of Jinja2 that models use, rendered as transformers does (trim_blocks, lstrip_blocks, loop
 * controls, raise_exception, strftime_now, its tojson), with the origin of every byte.
 *
 * A template that cannot be compiled is an error at load; there is no fallback. Rendering is bounded in steps, depth
 * and output. */
#ifndef PM_TEMPLATE_H
#define PM_TEMPLATE_H

#include "base/base.h"

#include <jansson.h>

typedef struct pm_template pm_template;

/* Compiles `source`; `name` is used in messages, which give the line. */
int pm_template_new(pm_template **out, const char *name, const char *source, size_t len, pm_error *err);
void pm_template_free(pm_template *tmpl);

/* The source as it was given. */
const char *pm_template_source(const pm_template *tmpl, size_t *len);

/* The chat template of a model directory: chat_template.jinja, else tokenizer_config.json's chat_template (a string, or
 * a list of {name, template}: "default", and "tool_use" when `tools`). *out = NULL when the model has none. */
int pm_template_open(pm_template **out, const char *dir, bool tools, pm_error *err);

/* The special tokens of a tokenizer_config.json (NULL: there is none) by name, such as bos_token, each as text: an
 * object that is the caller's. */
int pm_template_tokens(const json_t *tokenizer_config, json_t **out, pm_error *err);

/* Gives the template the model's own values, a JSON object of strings: its special tokens. They count as written by the
 * template, and a variable does not replace one of the same name. */
void pm_template_own(pm_template *tmpl, json_t *values);

typedef struct pm_rendered {
    pm_buf text;
    pm_buf trust; /* as long as text: 1 where the byte was written by the template, 0 where it came from a variable */
} pm_rendered;

/* Renders with the variables of `vars` (a JSON object). What the template itself complains of (raise_exception) is
 * PM_ERR_INVALID with its message. */
int pm_template_render(const pm_template *tmpl, const json_t *vars, pm_rendered *out, pm_error *err);
void pm_rendered_free(pm_rendered *rendered);

#endif
