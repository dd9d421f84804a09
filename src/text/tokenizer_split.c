/* Pre-tokenisers: a text is cut into pieces, step by step; BPE never joins across pieces. */
#include "text/tokenizer_parts.h"

#include <stdlib.h>
#include <string.h>

/* encoder.py of GPT-2. */
static const char gpt2_pattern[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/* ---- loading ---- */

static const char *const behaviors[] = {
    [PM_SPLIT_ISOLATED] = "Isolated",
    [PM_SPLIT_REMOVED] = "Removed",
    [PM_SPLIT_MERGED_WITH_PREVIOUS] = "MergedWithPrevious",
    [PM_SPLIT_MERGED_WITH_NEXT] = "MergedWithNext",
    [PM_SPLIT_CONTIGUOUS] = "Contiguous",
};

/* The pattern of a step: {"Regex": ...} or {"String": ...}. */
static int load_pattern(pm_splitter *splitter, pm_split_step *step, const pm_tok_file *file, const json_t *pattern)
{
    const char *text;
    size_t len;
    bool literal = json_object_get(pattern, "String") != NULL;
    int status = pm_tok_object(file, pattern, "pre_tokenizer Split: pattern", literal ? "String" : "Regex");
    if (status == PM_OK)
        status =
            pm_tok_string(file, pattern, "pre_tokenizer Split: pattern", literal ? "String" : "Regex", &text, &len);
    if (status == PM_OK)
        status = pm_pattern_compile(&step->code, file, text, len, literal);
    if (status == PM_OK && !(step->name = pm_arena_strdup(&splitter->arena, text, len)))
        status = pm_fail_memory(file->err);
    return status;
}

static int load_split(pm_splitter *splitter, pm_split_step *step, const pm_tok_file *file, const json_t *component)
{
    const char *where = "pre_tokenizer Split", *behavior;
    int status = pm_tok_object(file, component, where, "type pattern behavior invert");
    if (status == PM_OK)
        status = pm_tok_bool(file, component, where, "invert", false, &step->invert);
    if (status == PM_OK)
        status = pm_tok_string(file, component, where, "behavior", &behavior, NULL);
    if (status != PM_OK)
        return status;
    size_t k = 0;
    while (k < PM_COUNT(behaviors) && strcmp(behaviors[k], behavior) != 0)
        k++;
    if (k == PM_COUNT(behaviors))
        return pm_fail(file->err, PM_ERR_UNSUPPORTED, "%s: %s: behavior '%s' is not supported", file->path, where,
                       behavior);
    step->behavior = (pm_behavior)k;
    return load_pattern(splitter, step, file, json_object_get(component, "pattern"));
}

static int load_digits(pm_splitter *splitter, pm_split_step *step, const pm_tok_file *file, const json_t *component)
{
    bool individual = false;
    int status = pm_tok_object(file, component, "pre_tokenizer Digits", "type individual_digits");
    (void)splitter;
    if (status == PM_OK)
        status = pm_tok_bool(file, component, "pre_tokenizer Digits", "individual_digits", false, &individual);
    if (status == PM_OK)
        step->behavior = individual ? PM_SPLIT_ISOLATED : PM_SPLIT_CONTIGUOUS;
    return status;
}

static int load_byte_level(pm_splitter *splitter, pm_split_step *step, const pm_tok_file *file, const json_t *component)
{
    const char *where = "pre_tokenizer ByteLevel";
    bool use_regex = false, trim;
    int status = pm_tok_object(file, component, where, "type add_prefix_space trim_offsets use_regex");
    if (status == PM_OK)
        status = pm_tok_bool(file, component, where, "add_prefix_space", true, &step->prefix_space);
    if (status == PM_OK) /* of offsets, which are not kept */
        status = pm_tok_bool(file, component, where, "trim_offsets", true, &trim);
    if (status == PM_OK)
        status = pm_tok_bool(file, component, where, "use_regex", true, &use_regex);
    splitter->byte_level = true;
    step->no_split = !use_regex;
    step->name = gpt2_pattern;
    step->behavior = PM_SPLIT_ISOLATED;
    if (status == PM_OK && use_regex)
        status = pm_pattern_compile(&step->code, file, gpt2_pattern, strlen(gpt2_pattern), false);
    return status;
}

static int load_step(void *into, const pm_tok_file *file, const json_t *component, const char *where)
{
    static const struct {
        const char *type;
        int (*load)(pm_splitter *, pm_split_step *, const pm_tok_file *, const json_t *);
    } kinds[] = {{"Split", load_split}, {"Digits", load_digits}, {"ByteLevel", load_byte_level}};
    pm_splitter *splitter = into;
    const char *type;
    int status = pm_tok_type(file, component, where, &type);
    if (status != PM_OK)
        return status;
    if (splitter->byte_level) /* it respells the text, which the next step would have to see */
        return pm_fail(file->err, PM_ERR_UNSUPPORTED,
                       "%s: %s: tokenizer component '%s' after ByteLevel is not supported", file->path, where, type);
    if (splitter->n == PM_STEPS_MAX)
        return pm_fail(file->err, PM_ERR_UNSUPPORTED, "%s: %s has more than %d steps", file->path, where, PM_STEPS_MAX);
    for (size_t k = 0; k < PM_COUNT(kinds); k++)
        if (strcmp(kinds[k].type, type) == 0)
            return kinds[k].load(splitter, &splitter->steps[splitter->n++], file, component);
    return pm_tok_unsupported(file, where, type);
}

int pm_splitter_load(pm_splitter *splitter, const pm_tok_file *file, const json_t *component)
{
    int status = pm_tok_each(file, component, "pre_tokenizer", "pretokenizers", load_step, splitter);
    if (status == PM_OK && !splitter->byte_level)
        return pm_fail(file->err, PM_ERR_UNSUPPORTED, "%s: a pre_tokenizer without ByteLevel is not supported",
                       file->path);
    return status;
}

void pm_splitter_free(pm_splitter *splitter)
{
    for (int i = 0; i < splitter->n; i++)
        pcre2_code_free(splitter->steps[i].code);
    pm_arena_free(&splitter->arena);
    *splitter = (pm_splitter){0};
}

/* ---- matching ---- */

enum {
    MATCH_LIMIT = 10000000,     /* PCRE2's own default; it grows with the text */
    HEAP_LIMIT_KIB = 256 << 10, /* of the interpreter */
    STACK_START = 32 << 10,     /* of compiled patterns */
    STACK_MAX = 32 << 20
};

void pm_pieces_free(pm_pieces *pieces)
{
    free(pieces->ranges);
    free(pieces->spare);
    pm_buf_free(&pieces->spaced);
    pcre2_match_data_free(pieces->match);
    pcre2_match_context_free(pieces->limits);
    pcre2_jit_stack_free(pieces->stack);
    *pieces = (pm_pieces){0};
}

/* Makes what matching needs, once a call of the encoder. */
static int prepare_match(pm_pieces *pieces)
{
    if (!pieces->match)
        pieces->match = pcre2_match_data_create(1, NULL);
    if (!pieces->limits)
        pieces->limits = pcre2_match_context_create(NULL);
    if (!pieces->match || !pieces->limits)
        return PM_ERR_MEMORY;
    if (!pieces->stack) {
        /* Without a stack of its own a pattern has 32 KiB of the thread's. */
        pieces->stack = pcre2_jit_stack_create(STACK_START, STACK_MAX, NULL);
        if (pieces->stack)
            pcre2_jit_stack_assign(pieces->limits, NULL, pieces->stack);
    }
    pcre2_set_heap_limit(pieces->limits, HEAP_LIMIT_KIB);
    return PM_OK;
}

/* Finds the pattern in text from `at` on: 1 with the range, 0 when it is not there, or an error. The text was checked
 * to be UTF-8 as a whole: checking it again here would cost its length for every piece. */
static int find(const pm_split_step *step, const char *text, size_t len, size_t at, pm_pieces *pieces, pm_range *range,
                pm_error *err)
{
    int rc = pcre2_match(step->code, (PCRE2_SPTR)text, len, at, PCRE2_NO_UTF_CHECK, pieces->match, pieces->limits);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(step->code, (PCRE2_SPTR)text, len, at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, pieces->match,
                         pieces->limits);
    if (rc == PCRE2_ERROR_NOMATCH)
        return 0;
    if (rc < 0) {
        char why[128] = "";
        pcre2_get_error_message(rc, (PCRE2_UCHAR *)why, sizeof(why));
        return pm_fail(err, rc == PCRE2_ERROR_NOMEMORY ? PM_ERR_MEMORY : PM_ERR_LIMIT,
                       "the tokenizer's pattern '%.200s' fails on this text: %s", step->name, why);
    }
    PCRE2_SIZE *ends = pcre2_get_ovector_pointer(pieces->match);
    *range = (pm_range){ends[0], ends[1]};
    return range->start <= range->end && range->end <= len
               ? 1
               : pm_fail(err, PM_ERR_UNSUPPORTED, "the tokenizer's pattern '%.200s' ends a match before its start",
                         step->name);
}

/* ---- splitting ---- */

/* The pieces of one range so far, in pieces->spare from `base` on. */
typedef struct splitting {
    const pm_split_step *step;
    pm_pieces *pieces;
    size_t base, n;
    bool was_match; /* the last part */
} splitting;

/* Takes the next part of the range, a match or what lies between two, as the step's behaviour has it. */
static int add_part(splitting *s, size_t start, size_t end, bool is_match)
{
    is_match = is_match != s->step->invert;
    bool joins = false;
    switch (s->step->behavior) {
    case PM_SPLIT_ISOLATED: break;
    case PM_SPLIT_REMOVED:
        if (is_match)
            return PM_OK;
        break;
    case PM_SPLIT_MERGED_WITH_PREVIOUS: joins = is_match && !s->was_match; break;
    case PM_SPLIT_MERGED_WITH_NEXT: joins = !is_match && s->was_match; break;
    case PM_SPLIT_CONTIGUOUS: joins = is_match == s->was_match; break;
    }
    s->was_match = is_match;
    pm_pieces *pieces = s->pieces;
    if (joins && s->n > s->base) {
        pieces->spare[s->n - 1].end = end;
        return PM_OK;
    }
    if (s->n == pieces->spare_cap) {
        void *p = pieces->spare;
        int status = pm_grow(&p, &pieces->spare_cap, s->n + 1, sizeof(*pieces->spare));
        pieces->spare = p;
        if (status != PM_OK)
            return status;
    }
    pieces->spare[s->n++] = (pm_range){start, end};
    return PM_OK;
}

/* Splits [range.start, range.end) at the matches of the step's pattern. An empty match right behind the last one is
 * passed over, as in the `onig` crate. */
static int split_by_pattern(splitting *s, pm_range range, pm_error *err)
{
    const char *text = s->pieces->text + range.start;
    size_t len = range.end - range.start, at = 0, last = 0;
    bool any = false;
    while (at <= len) {
        pm_range match = {0, 0};
        int found = find(s->step, text, len, at, s->pieces, &match, err);
        if (found < 0)
            return found;
        if (!found)
            break;
        if (match.start == match.end && any && match.end == last) {
            size_t step = 1;
            if (at < len)
                pm_char_at(text + at, &step);
            at += step;
            continue;
        }
        if (last < match.start && add_part(s, range.start + last, range.start + match.start, false) != PM_OK)
            return pm_fail_memory(err);
        if (add_part(s, range.start + match.start, range.start + match.end, true) != PM_OK)
            return pm_fail_memory(err);
        at = last = match.end;
        any = true;
    }
    if (last < len && add_part(s, range.start + last, range.end, false) != PM_OK)
        return pm_fail_memory(err);
    return PM_OK;
}

static int split_by_digits(splitting *s, pm_range range, pm_error *err)
{
    const char *text = s->pieces->text;
    size_t last = range.start;
    for (size_t at = range.start, len; at < range.end; at += len) {
        if (!pm_char_is_numeric(pm_char_at(text + at, &len)))
            continue;
        if (last < at && add_part(s, last, at, false) != PM_OK)
            return pm_fail_memory(err);
        if (add_part(s, at, at + len, true) != PM_OK)
            return pm_fail_memory(err);
        last = at + len;
    }
    if (last < range.end && add_part(s, last, range.end, false) != PM_OK)
        return pm_fail_memory(err);
    return PM_OK;
}

/* Copies the text with a space before every piece that does not start with one. */
static int add_spaces(pm_pieces *pieces)
{
    pm_buf *spaced = &pieces->spaced;
    spaced->len = 0;
    for (size_t i = 0; i < pieces->n; i++) {
        pm_range *range = &pieces->ranges[i];
        size_t start = spaced->len, len = range->end - range->start;
        if (len && pieces->text[range->start] != ' ' && pm_buf_add(spaced, " ", 1) != PM_OK)
            return PM_ERR_MEMORY;
        if (pm_buf_add(spaced, pieces->text + range->start, len) != PM_OK)
            return PM_ERR_MEMORY;
        *range = (pm_range){start, spaced->len};
    }
    pieces->text = spaced->data;
    return PM_OK;
}

static int run_step(const pm_split_step *step, pm_pieces *pieces, pm_error *err)
{
    if (step->prefix_space && add_spaces(pieces) != PM_OK)
        return pm_fail_memory(err);
    if (step->no_split)
        return PM_OK;
    splitting s = {.step = step, .pieces = pieces};
    for (size_t i = 0; i < pieces->n; i++) {
        if (pieces->ranges[i].start == pieces->ranges[i].end)
            continue;
        s.base = s.n;
        s.was_match = false;
        int status =
            step->code ? split_by_pattern(&s, pieces->ranges[i], err) : split_by_digits(&s, pieces->ranges[i], err);
        if (status != PM_OK)
            return status;
    }
    pm_range *ranges = pieces->ranges;
    size_t cap = pieces->cap;
    pieces->ranges = pieces->spare;
    pieces->cap = pieces->spare_cap;
    pieces->n = s.n;
    pieces->spare = ranges;
    pieces->spare_cap = cap;
    return PM_OK;
}

int pm_split(const pm_splitter *splitter, const char *text, size_t len, pm_pieces *pieces, pm_error *err)
{
    void *p = pieces->ranges;
    int status = pm_grow(&p, &pieces->cap, 1, sizeof(*pieces->ranges));
    pieces->ranges = p;
    if (status != PM_OK || prepare_match(pieces) != PM_OK)
        return pm_fail_memory(err);
    uint64_t limit = (uint64_t)len * 64 > MATCH_LIMIT ? (uint64_t)len * 64 : MATCH_LIMIT;
    pcre2_set_match_limit(pieces->limits, limit < UINT32_MAX ? (uint32_t)limit : UINT32_MAX);
    pieces->text = text;
    pieces->ranges[0] = (pm_range){0, len};
    pieces->n = 1;
    for (int i = 0; i < splitter->n && status == PM_OK; i++)
        status = run_step(&splitter->steps[i], pieces, err);
    return status;
}
