/* Walks through constrained answers for pytest.
 *
 * Argument: the directory of a tokenizer. JSON lines on stdin, for each an answer line:
 * {"schema", "seed", "walks", "texts"}: `schema` is JSON text; that many random answers, which take every allowed
 *     token alike or every first byte, and whether each of `texts` is in the language, taken byte by byte;
 *     {"answers", "accepted"}. With "tools" (JSON text), "format", "function" and "parallel" instead: random calls,
 * taken apart by the parser, {"answers", "calls"}.
 *     "timed" is a text in the language: the seconds that masks take on the way through it in the largest tokens, at
 *     first and again, {"first": [...], "again": [...]}.
 * {"keywords": true}: the tables, {"keywords": [[name, kind], ...], "formats": [name, ...]}.
 * Where the schema is refused: {"error", "code"}. */
#include "engine/sampler.h"
#include "files/config.h"
#include "text/call_grammar.h"
#include "text/guide.h"
#include "text/schema.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LONG = 150 /* tokens of an answer, from which on it goes where it ends */, TOO_LONG = 20000 };

typedef struct language {
    pm_grammar grammar;
    pm_guide_masks masks;
    int32_t rule;
} language;

static pm_vocabulary *vocabulary;
static uint64_t random_state[4];

static size_t below(size_t n)
{
    return (size_t)(pm_random_next(random_state) % n);
}

/* ---- building ---- */

static pm_reply_format find_format(const char *name)
{
    pm_reply_format format = {0};
    for (size_t i = 0; i < pm_n_call_formats; i++)
        if (strcmp(pm_call_formats[i].name, name) == 0)
            format.calls = &pm_call_formats[i];
    return format;
}

static int32_t build(pm_schema_reader *reader, const json_t *line, json_t *schema, json_t *tools, int32_t end)
{
    static const pm_marker_texts no_markers = {0};
    if (!tools) {
        reader->root = schema;
        return pm_schema_value(reader, schema, PM_TYPE_ANY, end);
    }
    pm_call_language calls = {find_format(json_string_value(json_object_get(line, "format"))).calls, &no_markers, tools,
                              json_string_value(json_object_get(line, "function")),
                              json_is_true(json_object_get(line, "parallel"))};
    return pm_call_grammar(reader, &calls, end);
}

static int make(language *l, const json_t *line, json_t *schema, json_t *tools, pm_error *err)
{
    *l = (language){0};
    pm_grammar *grammar = &l->grammar;
    if (pm_grammar_init(grammar) != PM_OK)
        return pm_fail_memory(err);
    pm_schema_reader reader = {.grammar = grammar, .err = err, .what = "schema"};
    l->rule = pm_rule_new(grammar, false);
    int32_t outer = pm_rule_enter(grammar, l->rule),
            start = build(&reader, line, schema, tools, pm_node_return(grammar));
    grammar->rules[l->rule].start = start;
    pm_rule_leave(grammar, outer);
    int status = pm_schema_finish(&reader);
    pm_schema_free(&reader);
    if (status != PM_OK)
        return status;
    if ((status = pm_grammar_finish(grammar, l->rule)) != PM_OK)
        return pm_fail(err, status, "nothing satisfies the schema");
    return pm_guide_masks_init(&l->masks, grammar, vocabulary);
}

static void unmake(language *l)
{
    pm_guide_masks_free(&l->masks);
    pm_grammar_free(&l->grammar);
}

/* ---- walking ---- */

static bool allowed(const pm_guide *guide, pm_token id)
{
    return guide->bits[id / 64] >> (id % 64) & 1;
}

/* How near to the end of an answer a token leads, by its first byte. */
static int rank(pm_token id)
{
    size_t len;
    const char *bytes = pm_vocabulary_bytes(vocabulary, id, &len), *place = strchr("\"}])<", bytes[0]);
    return place ? (len == 1 ? 3 : 2) : len == 1 && !strchr("[{ \n\t,", bytes[0]);
}

/* The longest allowed token that `hint` begins with, whose bytes it loses; -1 and it is empty: none. */
static pm_token follow(const pm_guide *guide, const char **hint)
{
    pm_token found = -1;
    size_t longest = 0, len;
    for (pm_token id = 0; id < vocabulary->vocab; id++) {
        const char *bytes = pm_vocabulary_bytes(vocabulary, id, &len);
        if (len > longest && allowed(guide, id) && strncmp(*hint, bytes, len) == 0) {
            longest = len;
            found = id;
        }
    }
    *hint = found >= 0 ? *hint + longest : "";
    return found;
}

/* One of the allowed tokens, -1: there is none. Mostly it is any; else, and always in long answers, one of those that
 * lead to an end, or of those that have one byte. */
static pm_token draw(const pm_guide *guide, size_t step)
{
    static pm_token list[1 << 18];
    size_t n = 0;
    int best = 0, least = 0;
    for (pm_token id = 0; id < vocabulary->vocab; id++)
        if (allowed(guide, id))
            list[n++] = id;
    if (!n)
        return -1;
    for (size_t i = 0; i < n; i++)
        best = rank(list[i]) > best ? rank(list[i]) : best;
    if (step > LONG || below(4) == 0)
        least = below(2) ? best : best > 1 ? 1 : best;
    for (;;) {
        pm_token id = list[below(n)];
        if (rank(id) >= least)
            return id;
    }
}

/* A random answer in `text`. */
static int walk(language *l, const char *end, pm_buf *text, pm_error *err)
{
    pm_guide guide;
    const char *hint = "";
    int status = pm_guide_init(&guide, &l->masks, l->rule, err);
    if (status != PM_OK)
        return status;
    for (size_t step = 0; status == PM_OK; step++) {
        if ((status = pm_guide_allow(&guide, err)) != PM_OK)
            break;
        if (!*hint && (step > LONG || below(16) == 0))
            hint = end;
        pm_token id = *hint ? follow(&guide, &hint) : -1;
        id = id < 0 ? draw(&guide, step) : id;
        if (guide.now.done && (id < 0 || step > LONG || below(3) == 0))
            break;
        if (id < 0 || step > TOO_LONG) {
            status = pm_fail(err, PM_ERR_FORMAT, id < 0 ? "nothing is allowed" : "no end");
            break;
        }
        bool refused;
        size_t len;
        const char *bytes = pm_vocabulary_bytes(vocabulary, id, &len);
        status = pm_guide_take(&guide, id, &refused, err);
        if (status == PM_OK && !refused)
            status = pm_buf_add(text, bytes, len);
    }
    pm_guide_free(&guide);
    return status;
}

/* The seconds of each mask on the way through a text in the largest tokens. */
static int time_masks(language *l, const char *text, json_t *seconds, pm_error *err)
{
    pm_guide guide;
    int status = pm_guide_init(&guide, &l->masks, l->rule, err);
    if (status != PM_OK)
        return status;
    while (status == PM_OK && *text) {
        bool refused;
        double start = pm_now();
        status = pm_guide_allow(&guide, err);
        json_array_append_new(seconds, json_real(pm_now() - start));
        pm_token id = follow(&guide, &text);
        if (status == PM_OK && id >= 0)
            status = pm_guide_take(&guide, id, &refused, err);
    }
    bool done = guide.now.done;
    pm_guide_free(&guide);
    return status == PM_OK && !done ? pm_fail(err, PM_ERR_INVALID, "the text is not in the language") : status;
}

/* Whether a text is in the language. */
static bool accepts(language *l, const char *text, size_t len)
{
    pm_automaton automaton;
    if (pm_automaton_init(&automaton, &l->grammar) != PM_OK)
        return false;
    pm_set set = pm_automaton_start(&automaton, l->rule, PM_FRAME_END), next;
    bool ok = true;
    for (size_t i = 0; ok && i < len; i++) {
        ok = pm_automaton_step(&automaton, &set, (uint8_t)text[i], &next);
        set = next;
    }
    pm_automaton_free(&automaton);
    return ok && set.done;
}

/* ---- the parser of calls ---- */

static void on_event(void *user, const pm_event *event)
{
    static const char *const kinds[] = {"text", "reasoning", "call", "arguments", "end"};
    json_array_append_new(user, json_pack("[s, s%]", kinds[event->kind], event->len ? event->text : "", event->len));
}

static json_t *take_apart(const json_t *line, const pm_buf *text)
{
    json_t *events = json_array();
    pm_parser *parser;
    pm_parser_options options = {
        .tools = json_string_value(json_object_get(line, "tools")), .on_event = on_event, .user = events};
    pm_reply_format format = find_format(json_string_value(json_object_get(line, "format")));
    if (pm_reply_new(&parser, format, &options, NULL) == PM_OK) {
        pm_parser_feed(parser, text->data ? text->data : "", text->len, NULL);
        pm_parser_end(parser, NULL);
        pm_parser_free(parser);
    }
    return events;
}

/* ---- lines ---- */

static json_t *tables(void)
{
    static const char *const kinds[] = {"read", "note", "refused"};
    json_t *keywords = json_array(), *formats = json_array();
    for (size_t i = 0; i < pm_n_keywords; i++)
        json_array_append_new(keywords, json_pack("[s, s]", pm_keywords[i].name, kinds[pm_keywords[i].kind]));
    for (size_t i = 0; i < pm_n_string_formats; i++)
        json_array_append_new(formats, json_string(pm_string_formats[i].name));
    return json_pack("{s:o, s:o}", "keywords", keywords, "formats", formats);
}

static json_t *failure(const pm_error *err)
{
    return json_pack("{s:s, s:i}", "error", err->message, "code", (int)err->code);
}

static json_t *answer(const json_t *line)
{
    json_t *texts = json_object_get(line, "texts"), *entry, *schema = NULL, *tools = NULL;
    const char *schema_text = json_string_value(json_object_get(line, "schema"));
    const char *tools_text = json_string_value(json_object_get(line, "tools"));
    const char *hint = json_string_value(json_object_get(line, "hint"));
    json_t *answers = json_array(), *accepted = json_array(), *calls = json_array(), *out = NULL;
    language l = {0};
    pm_error err = {0};
    size_t i;
    int status = PM_OK;
    if (schema_text)
        status = pm_json_text("schema", schema_text, strlen(schema_text), &schema, &err);
    if (tools_text && status == PM_OK)
        status = pm_json_text("tools", tools_text, strlen(tools_text), &tools, &err);
    if (status == PM_OK)
        status = make(&l, line, schema, tools, &err);
    pm_random_seed(random_state, (uint64_t)json_integer_value(json_object_get(line, "seed")));
    for (json_int_t k = json_integer_value(json_object_get(line, "walks")); k > 0 && status == PM_OK; k--) {
        pm_buf text = {0};
        status = walk(&l, hint ? hint : "", &text, &err);
        json_array_append_new(answers, json_stringn_nocheck(text.data ? text.data : "", text.len));
        if (tools)
            json_array_append_new(calls, take_apart(line, &text));
        pm_buf_free(&text);
    }
    json_array_foreach(texts, i, entry)
        json_array_append_new(accepted, json_boolean(accepts(&l, json_string_value(entry), json_string_length(entry))));
    const char *timed = json_string_value(json_object_get(line, "timed"));
    json_t *first = json_array(), *again = json_array();
    if (timed && status == PM_OK)
        status = time_masks(&l, timed, first, &err);
    if (timed && status == PM_OK)
        status = time_masks(&l, timed, again, &err);
    out = status == PM_OK ? json_pack("{s:O, s:O, s:O, s:O, s:O}", "answers", answers, "accepted", accepted, "calls",
                                      calls, "first", first, "again", again)
                          : failure(&err);
    json_decref(answers);
    json_decref(accepted);
    json_decref(calls);
    json_decref(first);
    json_decref(again);
    unmake(&l);
    json_decref(schema);
    json_decref(tools);
    return out;
}

int main(int argc, char **argv)
{
    char *line = NULL;
    size_t cap = 0;
    int status = 0;
    pm_tokenizer *tokenizer;
    pm_error err;
    if (argc < 2 || pm_tokenizer_open(&tokenizer, argv[1], &err) != PM_OK)
        return 2;
    int vocab = pm_tokenizer_vocab(tokenizer);
    uint8_t *kinds = calloc((size_t)vocab, 1);
    for (pm_token id = 0; kinds && id < vocab; id++)
        kinds[id] = pm_tokenizer_special(tokenizer, id) ? PM_TOKEN_NOTHING : PM_TOKEN_TEXT;
    status = kinds ? pm_vocabulary_new(&vocabulary, tokenizer, kinds, vocab, &err) : PM_ERR_MEMORY;
    free(kinds);
    for (ssize_t n; !status && (n = getline(&line, &cap, stdin)) > 0;) {
        json_t *in = json_loadb(line, (size_t)n, JSON_ALLOW_NUL, NULL), *out = NULL;
        if (in)
            out = json_object_get(in, "keywords") ? tables() : answer(in);
        status = !out || json_dumpf(out, stdout, JSON_COMPACT) != 0;
        putchar('\n');
        fflush(stdout);
        json_decref(in);
        json_decref(out);
    }
    free(line);
    pm_vocabulary_free(vocabulary);
    pm_tokenizer_close(tokenizer);
    return status ? 1 : 0;
}
