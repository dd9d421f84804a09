#include "engine/constraint.h"

#include "engine/engine.h"
#include "text/call_grammar.h"
#include "text/schema.h"

#include <stdlib.h>
#include <string.h>

/* ---- the vocabulary ---- */

void pm_constraint_words_free(pm_constraint_words *words)
{
    pm_vocabulary_free(words->vocabulary);
    for (size_t i = 0; i < words->markers.n; i++)
        free(words->markers.texts[i]);
    free(words->markers.texts);
    *words = (pm_constraint_words){0};
}

/* Whether an added token with this text stands for a marker of answers and not for text. Some that mark are not special
 * by name; but then they are in brackets, as no text is that a tokenizer adds for its own sake. */
static bool is_marker(const pm_engine *engine, pm_token id, const char *text)
{
    size_t n = strlen(text);
    bool bracketed = n > 2 && ((text[0] == '<' && text[n - 1] == '>') || (text[0] == '[' && text[n - 1] == ']'));
    if (!pm_tokenizer_special(engine->tokenizer, id) && !bracketed)
        return false;
    return pm_reply_marker(engine->reply, text) || pm_reply_marker(engine->reply_tools, text);
}

/* Says what an added token is; keeps the text of a marker. */
static int sort_token(const pm_engine *engine, pm_token id, uint8_t *kind, pm_marker_texts *markers, size_t *cap)
{
    char *text;
    size_t len;
    void *texts = markers->texts;
    int status = pm_tokenizer_text(engine->tokenizer, &id, 1, true, &text, &len, NULL);
    if (status != PM_OK)
        return status;
    if (!is_marker(engine, id, text)) {
        *kind = pm_tokenizer_special(engine->tokenizer, id) ? PM_TOKEN_NOTHING : PM_TOKEN_TEXT;
        pm_free(text);
        return PM_OK;
    }
    status = pm_grow(&texts, cap, markers->n + 1, sizeof(*markers->texts));
    markers->texts = texts;
    if (status != PM_OK) {
        pm_free(text);
        return status;
    }
    *kind = PM_TOKEN_MARKER;
    markers->texts[markers->n++] = text;
    return PM_OK;
}

/* Makes the engine's words, once. */
static int need_words(pm_engine *engine, pm_error *err)
{
    pm_constraint_words words = {0};
    int known = pm_tokenizer_vocab(engine->tokenizer), status = PM_OK;
    size_t cap = 0;
    if (engine->words.vocabulary)
        return PM_OK;
    uint8_t *kinds = calloc((size_t)engine->vocab + 1, sizeof(*kinds));
    if (!kinds)
        return pm_fail_memory(err);
    for (pm_token id = 0; id < known && id < engine->vocab && status == PM_OK; id++)
        if (pm_tokenizer_added(engine->tokenizer, id))
            status = sort_token(engine, id, &kinds[id], &words.markers, &cap);
    for (size_t i = 0; i < engine->n_stops; i++)
        if (engine->stops[i] >= 0 && engine->stops[i] < engine->vocab)
            kinds[engine->stops[i]] = PM_TOKEN_NOTHING;
    if (status != PM_OK)
        pm_fail_memory(err);
    else
        status = pm_vocabulary_new(&words.vocabulary, engine->tokenizer, kinds, engine->vocab, err);
    free(kinds);
    if (status == PM_OK)
        engine->words = words;
    else
        pm_constraint_words_free(&words);
    return status;
}

/* ---- the grammar ---- */

/* What a constraint is made of, while it is made. */
typedef struct making {
    pm_constraint *constraint;
    const pm_engine *engine;
    const pm_constraint_options *options;
    json_t *schema, *tools;
    pm_schema_reader reader;
} making;

static int check_options(const pm_constraint_options *options, pm_error *err)
{
    if (options->schema && options->json_object)
        return pm_fail(err, PM_ERR_INVALID, "a constraint has both schema and json_object");
    if (!options->schema && !options->json_object && !options->tools)
        return pm_fail(err, PM_ERR_INVALID, "a constraint has neither schema nor json_object nor tools");
    if (options->function && !options->tools)
        return pm_fail(err, PM_ERR_INVALID, "a constraint has the function '%s' but no tools", options->function);
    return PM_OK;
}

/* Where the answer itself begins. */
static int32_t build_answer(making *m, int32_t end)
{
    pm_grammar *grammar = &m->constraint->grammar;
    pm_schema_reader *reader = &m->reader;
    int32_t split = pm_node_split(grammar);
    if (m->schema) {
        reader->what = "schema";
        reader->root = m->schema;
        pm_way_add(grammar, split, pm_schema_value(reader, m->schema, PM_TYPE_ANY, end));
        pm_schema_finish(reader);
    }
    if (m->options->json_object)
        pm_way_add(grammar, split, pm_schema_any(reader, PM_TYPE_OBJECT, end));
    if (m->tools) {
        pm_call_language calls = {m->engine->reply_tools.calls, &m->engine->words.markers, m->tools,
                                  m->options->function, m->options->parallel};
        pm_way_add(grammar, split, pm_call_grammar(reader, &calls, end));
    }
    return split;
}

/* Up to two newlines. */
static int32_t build_lines(pm_grammar *grammar, int32_t next)
{
    int32_t one = pm_node_either(grammar, pm_node_range(grammar, '\n', '\n', next), next);
    return pm_node_either(grammar, pm_node_range(grammar, '\n', '\n', one), one);
}

/* The rules of an answer, and of one that begins inside a reasoning block. */
static void build_rules(making *m)
{
    pm_constraint *constraint = m->constraint;
    pm_grammar *grammar = &constraint->grammar;
    const pm_marker_texts *markers = &m->engine->words.markers;
    pm_reply_format format = m->tools ? m->engine->reply_tools : m->engine->reply;
    constraint->start = constraint->reasoning = pm_rule_new(grammar, false);
    int32_t outer = pm_rule_enter(grammar, constraint->start);
    int32_t end = pm_node_return(grammar), answer = build_answer(m, end);
    if (format.reasoning) {
        int32_t after = build_lines(grammar, answer);
        int32_t inside = pm_node_until(grammar, markers, format.reasoning->close, after);
        const char *open = format.reasoning->open;
        grammar->rules[constraint->start].start =
            pm_node_either(grammar, answer, pm_node_marked(grammar, markers, open, strlen(open), inside));
        constraint->reasoning = pm_rule_new(grammar, false);
        grammar->rules[constraint->reasoning].start = inside;
    } else {
        grammar->rules[constraint->start].start = answer;
    }
    pm_rule_leave(grammar, outer);
}

static int build(making *m, pm_error *err)
{
    build_rules(m);
    int status = pm_schema_finish(&m->reader);
    if (status == PM_OK)
        status = pm_grammar_finish(&m->constraint->grammar, m->constraint->start);
    if (status == PM_ERR_INVALID && m->reader.status == PM_OK)
        return pm_fail(err, status, "nothing satisfies the schema");
    if (status == PM_ERR_LIMIT && m->reader.status == PM_OK)
        return pm_fail(err, status, "what satisfies the schema is more than %d deep", PM_DEPTH_MAX);
    return status == PM_ERR_MEMORY ? pm_fail_memory(err) : status;
}

/* Reads the texts of the options. */
static int read_texts(making *m, pm_error *err)
{
    const pm_constraint_options *options = m->options;
    int status = PM_OK;
    if (options->schema)
        status = pm_json_text("schema", options->schema, strlen(options->schema), &m->schema, err);
    if (status == PM_OK && options->tools)
        status = pm_json_text("tools", options->tools, strlen(options->tools), &m->tools, err);
    if (status == PM_OK && options->tools && !json_array_size(m->tools))
        return pm_fail(err, PM_ERR_INVALID, "tools is not a list of tools");
    return status;
}

int pm_constraint_new(pm_constraint **out, pm_engine *engine, const pm_constraint_options *options, pm_error *err)
{
    making m = {.engine = engine, .options = options};
    int status = check_options(options, err);
    if (status == PM_OK)
        status = read_texts(&m, err);
    if (status == PM_OK)
        status = need_words(engine, err);
    m.constraint = status == PM_OK ? calloc(1, sizeof(*m.constraint)) : NULL;
    if (status == PM_OK && (!m.constraint || pm_grammar_init(&m.constraint->grammar) != PM_OK))
        status = pm_fail_memory(err);
    if (status == PM_OK) {
        m.reader = (pm_schema_reader){.grammar = &m.constraint->grammar, .err = err, .what = "schema"};
        status = build(&m, err);
        pm_schema_free(&m.reader);
    }
    if (status == PM_OK &&
        pm_guide_masks_init(&m.constraint->masks, &m.constraint->grammar, engine->words.vocabulary) != PM_OK)
        status = pm_fail_memory(err);
    json_decref(m.schema);
    json_decref(m.tools);
    if (status == PM_OK)
        *out = m.constraint;
    else
        pm_constraint_free(m.constraint);
    return status;
}

void pm_constraint_free(pm_constraint *constraint)
{
    if (!constraint)
        return;
    pm_guide_masks_free(&constraint->masks);
    pm_grammar_free(&constraint->grammar);
    free(constraint);
}
