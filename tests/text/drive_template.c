/* Renders chat templates for pytest.
 *
 *     drive_template [--trust] TEMPLATE [VARS]   the files of a template and of its variables (a JSON object; stdin)
 *     drive_template --lines                     JSON lines {"template", "vars"} on stdin, an answer line for each:
 *                                                {"text", "runs"} or {"error", "code", "loaded"}
 *
 * Runs are [text, trust] pairs. Failure of a single rendering: exit 1, the message on stderr. */
#include "text/template.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static json_t *runs_of(const pm_rendered *rendered)
{
    json_t *runs = json_array();
    size_t from = 0;
    for (size_t i = 1; i <= rendered->text.len; i++) {
        if (i < rendered->text.len && rendered->trust.data[i] == rendered->trust.data[from])
            continue;
        json_array_append_new(
            runs, json_pack("[s%i]", rendered->text.data + from, (int)(i - from), (int)rendered->trust.data[from]));
        from = i;
    }
    return runs;
}

/* `loaded` (may be NULL) receives whether the template could be compiled. */
static int render(const char *name, const char *source, size_t len, const json_t *vars, pm_rendered *out, bool *loaded,
                  pm_error *err)
{
    pm_template *tmpl = NULL;
    int status = pm_template_new(&tmpl, name, source, len, err);
    if (loaded)
        *loaded = status == PM_OK;
    if (status == PM_OK)
        status = pm_template_render(tmpl, vars, out, err);
    pm_template_free(tmpl);
    return status;
}

static json_t *answer(const json_t *line)
{
    const json_t *source = json_object_get(line, "template"), *vars = json_object_get(line, "vars");
    pm_rendered rendered = {0};
    pm_error err;
    bool loaded;
    if (!json_is_string(source))
        return NULL;
    if (render("test", json_string_value(source), json_string_length(source), vars, &rendered, &loaded, &err) != PM_OK)
        return json_pack("{s:s,s:i,s:b}", "error", err.message, "code", (int)err.code, "loaded", (int)loaded);
    json_t *text = json_stringn(rendered.text.data, rendered.text.len);
    json_t *result = json_pack("{s:o,s:o}", "text", text, "runs", runs_of(&rendered));
    pm_rendered_free(&rendered);
    return result;
}

static int drive_lines(void)
{
    char *line = NULL;
    size_t cap = 0;
    int status = 0;
    for (ssize_t n; !status && (n = getline(&line, &cap, stdin)) > 0;) {
        json_t *in = json_loadb(line, (size_t)n, JSON_ALLOW_NUL, NULL), *out = in ? answer(in) : NULL;
        status = !out || json_dumpf(out, stdout, JSON_COMPACT) != 0;
        putchar('\n');
        fflush(stdout);
        json_decref(in);
        json_decref(out);
    }
    free(line);
    return status;
}

int main(int argc, char **argv)
{
    if (argc == 2 && !strcmp(argv[1], "--lines"))
        return drive_lines();
    bool trust = argc > 1 && !strcmp(argv[1], "--trust");
    if (argc < 2 + trust) {
        fprintf(stderr, "usage: drive_template [--trust] TEMPLATE [VARS] | --lines\n");
        return 2;
    }
    const char *path = argv[1 + trust], *vars_path = argc > 2 + trust ? argv[2 + trust] : NULL;
    pm_buf source = {0};
    pm_rendered rendered = {0};
    pm_error err = {.message = "the variables are not JSON"};
    json_t *vars =
        vars_path ? json_load_file(vars_path, JSON_ALLOW_NUL, NULL) : json_loadf(stdin, JSON_ALLOW_NUL, NULL);
    int status = vars ? pm_read_file(path, 1 << 24, &source, &err) : PM_ERR_INVALID;
    if (status == PM_OK)
        status = render(path, source.data ? source.data : "", source.len, vars, &rendered, NULL, &err);
    if (status != PM_OK) {
        fprintf(stderr, "%s\n", err.message);
    } else if (trust) {
        json_t *runs = runs_of(&rendered);
        json_dumpf(runs, stdout, 0);
        json_decref(runs);
    } else {
        fwrite(rendered.text.data, 1, rendered.text.len, stdout);
    }
    pm_rendered_free(&rendered);
    pm_buf_free(&source);
    json_decref(vars);
    return status == PM_OK ? 0 : 1;
}
