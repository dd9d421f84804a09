/* polymath tokenize: text to tokens and back, with the tokenizer of a checkpoint and without its weights. */
#include "cli.h"

#include <ctype.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct request {
    const char *model; /* NULL: bundled */
    const char *name;  /* what messages call the text */
    char *text;        /* malloc'ed */
    size_t len;
};

/* Sorts out MODEL and TEXT and reads the text; an exit code. */
static int read_request(const pm_args *args, struct request *request)
{
    bool one = args->n_words == 1, model = args->n_words == 2 || (one && pm_is_directory(args->words[0]));
    const char *text = args->n_words > (model ? 1 : 0) ? args->words[args->n_words - 1] : "-";
    *request = (struct request){.model = model ? args->words[0] : NULL, .name = "stdin"};
    if (strcmp(text, "-") == 0)
        return pm_read_stdin(&request->text, &request->len);
    request->name = "TEXT";
    request->text = strdup(text);
    request->len = strlen(text);
    return request->text ? PM_EXIT_OK : pm_cli_fail("out of memory");
}

/* The ids in the text, in *out; an exit code. */
static int parse_list(const struct request *request, pm_prompt *out)
{
    pm_token *ids = malloc((request->len + 1) * sizeof(*ids));
    size_t n = 0;
    const char *p = request->text, *end = p + request->len;
    if (!ids)
        return pm_cli_fail("out of memory");
    while (p < end) {
        if (isspace((unsigned char)*p) || *p == ',') {
            p++;
            continue;
        }
        char *stop = (char *)p;
        errno = 0;
        long id = isdigit((unsigned char)*p) ? strtol(p, &stop, 10) : -1;
        size_t len = strcspn(p, ", \t\r\n");
        if (stop != p + len || errno || id > INT32_MAX) {
            int shown = (int)(len < 40 ? len : 40);
            free(ids);
            return pm_cli_fail("%s: '%.*s' is not a token id", request->name, shown, p);
        }
        ids[n++] = (pm_token)id;
        p = stop;
    }
    *out = (pm_prompt){.ids = ids, .n = n, .mark = n};
    return PM_EXIT_OK;
}

/* Prints the one object of --json; an exit code. */
static int print_json(const pm_tokenizer *tokenizer, const pm_prompt *tokens, const char *text, size_t len)
{
    json_t *ids = json_array(), *pieces = json_array();
    bool whole = ids && pieces;
    for (size_t i = 0; i < tokens->n && whole; i++)
        whole = json_array_append_new(ids, json_integer(tokens->ids[i])) == 0 &&
                json_array_append_new(pieces, json_string(pm_tokenizer_token(tokenizer, tokens->ids[i]))) == 0;
    json_t *object = json_pack("{s:o, s:o, s:s%}", "ids", ids, "tokens", pieces, "text", text, len);
    char *out = whole && object ? json_dumps(object, JSON_COMPACT) : NULL;
    json_decref(object);
    if (!out)
        return pm_cli_fail("out of memory");
    puts(out); /* main reports what cannot be written */
    free(out);
    return PM_EXIT_OK;
}

/* The lines of the tokens, malloc'ed; a line break in a token is written as \n or \r. NULL without memory. */
static char *token_lines(const pm_tokenizer *tokenizer, const pm_prompt *tokens, size_t *len)
{
    char *lines = NULL;
    FILE *out = open_memstream(&lines, len);
    for (size_t i = 0; out && i < tokens->n; i++) {
        fprintf(out, "%d\t", (int)tokens->ids[i]);
        for (const char *c = pm_tokenizer_token(tokenizer, tokens->ids[i]); *c; c++) {
            if (*c == '\n' || *c == '\r')
                fputs(*c == '\n' ? "\\n" : "\\r", out);
            else
                fputc(*c, out);
        }
        fputc('\n', out);
    }
    if (out && fclose(out) == 0)
        return lines;
    free(lines);
    return NULL;
}

/* What the tokens say, malloc'ed, with a line break; NULL after saying what is wrong. */
static char *decoded(const pm_tokenizer *tokenizer, const pm_args *args, const struct request *request,
                     const pm_prompt *tokens, size_t *len)
{
    bool special = !args->value[PM_OPT_DECODE].given || !args->value[PM_OPT_PLAIN].given;
    char *text;
    pm_error err;
    if (pm_tokenizer_text(tokenizer, tokens->ids, tokens->n, special, &text, len, &err) == PM_OK)
        return text;
    pm_cli_fail("%s: %s", request->name, err.message);
    return NULL;
}

static int print(const pm_tokenizer *tokenizer, const pm_args *args, const struct request *request,
                 const pm_prompt *tokens)
{
    bool json = args->value[PM_OPT_JSON].given, decode = args->value[PM_OPT_DECODE].given;
    size_t len = 0;
    char *text =
        json || decode ? decoded(tokenizer, args, request, tokens, &len) : token_lines(tokenizer, tokens, &len);
    int code = PM_EXIT_OK;
    if (!text)
        return json || decode ? PM_EXIT_FAILED : pm_cli_fail("out of memory");
    if (json)
        code = print_json(tokenizer, tokens, text, len);
    else if (!pm_cli_write(text, len) || (decode && !pm_cli_write("\n", 1)))
        code = pm_cli_fail("cannot write to stdout: %s", strerror(errno));
    free(text);
    return code;
}

int pm_cmd_tokenize(const pm_args *args)
{
    struct request request;
    pm_tokenizer *tokenizer = NULL;
    pm_prompt tokens = {0};
    pm_error err;
    char bundled[4096];
    const char *dir;
    bool decode = args->value[PM_OPT_DECODE].given, plain = args->value[PM_OPT_PLAIN].given;
    if (args->n_words == 2 && pm_check_model(args->words[0]) != PM_EXIT_OK) /* before stdin is read */
        return PM_EXIT_FAILED;
    int code = read_request(args, &request);
    if (code == PM_EXIT_OK)
        code = pm_find_model(request.model, bundled, sizeof(bundled), &dir);
    if (code == PM_EXIT_OK && pm_tokenizer_open(&tokenizer, dir, &err) != PM_OK)
        code = pm_cli_fail("%s", err.message);
    if (code == PM_EXIT_OK && decode)
        code = parse_list(&request, &tokens);
    else if (code == PM_EXIT_OK)
        code = pm_check_utf8(request.name, request.text, request.len);
    if (code == PM_EXIT_OK && !decode &&
        pm_tokenizer_ids(tokenizer, request.text, request.len, plain, &tokens, &err) != PM_OK)
        code = pm_cli_fail("%s: %s", request.name, err.message);
    if (code == PM_EXIT_OK)
        code = print(tokenizer, args, &request, &tokens);
    pm_prompt_free(&tokens);
    pm_tokenizer_close(tokenizer);
    free(request.text);
    return code;
}
