/* Pre-tokenisers: loading their steps. */
#include "text/tokenizer_parts.h"

#include <stdio.h>
#include <string.h>

/* encoder.py of GPT-2. */
static const char gpt2_pattern[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

static const char *const behaviors[] = {
    [PM_SPLIT_ISOLATED] = "Isolated",
    [PM_SPLIT_REMOVED] = "Removed",
    [PM_SPLIT_MERGED_WITH_PREVIOUS] = "MergedWithPrevious",
    [PM_SPLIT_MERGED_WITH_NEXT] = "MergedWithNext",
    [PM_SPLIT_CONTIGUOUS] = "Contiguous",
};

static int load_behavior(pm_split_step *step, const pm_tok_file *file, const json_t *component, const char *where)
{
    const char *behavior;
    int status = pm_tok_string(file, component, where, "behavior", &behavior, NULL);
    if (status != PM_OK)
        return status;
    size_t k = 0;
    while (k < PM_COUNT(behaviors) && strcmp(behaviors[k], behavior) != 0)
        k++;
    if (k == PM_COUNT(behaviors))
        return pm_fail(file->err, PM_ERR_UNSUPPORTED, "%s: %s: behavior '%s' is not supported", file->path, where,
                       behavior);
    step->behavior = (pm_behavior)k;
    return PM_OK;
}

static int load_split(pm_splitter *splitter, pm_split_step *step, const pm_tok_file *file, const json_t *component,
                      const char *where)
{
    int status = pm_tok_object(file, component, where, "type pattern behavior invert");
    if (status == PM_OK)
        status = pm_tok_bool(file, component, where, "invert", false, &step->invert);
    if (status == PM_OK)
        status = load_behavior(step, file, component, where);
    return status == PM_OK
               ? pm_pattern_load(&step->pattern, &splitter->arena, file, json_object_get(component, "pattern"), where)
               : status;
}

static int load_digits(pm_splitter *splitter, pm_split_step *step, const pm_tok_file *file, const json_t *component,
                       const char *where)
{
    bool individual = false;
    int status = pm_tok_object(file, component, where, "type individual_digits");
    (void)splitter;
    if (status == PM_OK)
        status = pm_tok_bool(file, component, where, "individual_digits", false, &individual);
    step->kinds = PM_CHAR_NUMERIC;
    step->behavior = individual ? PM_SPLIT_ISOLATED : PM_SPLIT_CONTIGUOUS;
    return status;
}

static int load_punctuation(pm_splitter *splitter, pm_split_step *step, const pm_tok_file *file,
                            const json_t *component, const char *where)
{
    int status = pm_tok_object(file, component, where, "type behavior");
    (void)splitter;
    step->kinds = PM_CHAR_PUNCT;
    step->behavior = PM_SPLIT_ISOLATED;
    if (status == PM_OK && json_object_get(component, "behavior"))
        status = load_behavior(step, file, component, where);
    return status;
}

static int load_whitespace(pm_splitter *splitter, pm_split_step *step, const pm_tok_file *file, const json_t *component,
                           const char *where)
{
    (void)splitter;
    step->words = true;
    return pm_tok_object(file, component, where, "type");
}

static int load_whitespace_split(pm_splitter *splitter, pm_split_step *step, const pm_tok_file *file,
                                 const json_t *component, const char *where)
{
    (void)splitter;
    step->kinds = PM_CHAR_SPACE;
    step->behavior = PM_SPLIT_REMOVED;
    return pm_tok_object(file, component, where, "type");
}

/* When spaces are put before pieces: prepend_scheme, or add_prefix_space of older files. */
static int load_prefix(pm_split_step *step, const pm_tok_file *file, const json_t *component, const char *where)
{
    static const char *const schemes[] = {
        [PM_PREFIX_NEVER] = "never", [PM_PREFIX_FIRST] = "first", [PM_PREFIX_ALWAYS] = "always"};
    const char *scheme = "always";
    bool add = true;
    int status = pm_tok_bool(file, component, where, "add_prefix_space", true, &add);
    if (status == PM_OK && json_object_get(component, "prepend_scheme"))
        status = pm_tok_string(file, component, where, "prepend_scheme", &scheme, NULL);
    else if (!add)
        scheme = "never";
    if (status != PM_OK)
        return status;
    size_t k = 0;
    while (k < PM_COUNT(schemes) && strcmp(schemes[k], scheme) != 0)
        k++;
    if (k == PM_COUNT(schemes))
        return pm_fail(file->err, PM_ERR_UNSUPPORTED, "%s: %s: prepend_scheme '%s' is not supported", file->path, where,
                       scheme);
    if (!add && k != PM_PREFIX_NEVER)
        return pm_fail(file->err, PM_ERR_FORMAT, "%s: %s: add_prefix_space false contradicts prepend_scheme '%s'",
                       file->path, where, scheme);
    step->prefix = (pm_prefix)k;
    return PM_OK;
}

int pm_metaspace_load(const pm_tok_file *file, const json_t *component, const char *where, pm_split_step *step,
                      const char **replacement)
{
    bool split = true;
    size_t len, one = 0;
    int status =
        pm_tok_object(file, component, where, "type replacement prepend_scheme add_prefix_space split str_rep");
    if (status == PM_OK)
        status = pm_tok_string(file, component, where, "replacement", replacement, &len);
    if (status == PM_OK && len)
        pm_char_at(*replacement, &one);
    if (status == PM_OK && (!len || one != len))
        return pm_fail(file->err, PM_ERR_FORMAT, "%s: %s: replacement '%s' is not one character", file->path, where,
                       *replacement);
    if (status == PM_OK)
        status = load_prefix(step, file, component, where);
    if (status == PM_OK)
        status = pm_tok_bool(file, component, where, "split", true, &split);
    step->no_split = !split;
    return status;
}

/* Spaces become the replacement, and a piece starts before each. */
static int load_metaspace(pm_splitter *splitter, pm_split_step *step, const pm_tok_file *file, const json_t *component,
                          const char *where)
{
    const char *replacement;
    int status = pm_metaspace_load(file, component, where, step, &replacement);
    if (status != PM_OK)
        return status;
    char *copy = pm_arena_strdup(&splitter->arena, replacement, strlen(replacement));
    if (!copy)
        return pm_fail_memory(file->err);
    snprintf(step->space, sizeof(step->space), "%s", copy);
    step->behavior = PM_SPLIT_MERGED_WITH_NEXT;
    return pm_pattern_compile(&step->pattern, file, copy, strlen(copy), where, true);
}

static int load_byte_level(pm_splitter *splitter, pm_split_step *step, const pm_tok_file *file, const json_t *component,
                           const char *where)
{
    bool prefix = true, use_regex = true, trim;
    int status = pm_tok_object(file, component, where, "type add_prefix_space trim_offsets use_regex");
    if (status == PM_OK)
        status = pm_tok_bool(file, component, where, "add_prefix_space", true, &prefix);
    if (status == PM_OK) /* of offsets, which are not kept */
        status = pm_tok_bool(file, component, where, "trim_offsets", true, &trim);
    if (status == PM_OK)
        status = pm_tok_bool(file, component, where, "use_regex", true, &use_regex);
    splitter->byte_level = true;
    step->prefix = prefix ? PM_PREFIX_ALWAYS : PM_PREFIX_NEVER;
    step->no_split = !use_regex;
    step->behavior = PM_SPLIT_ISOLATED;
    if (status == PM_OK && use_regex)
        status = pm_pattern_compile(&step->pattern, file, gpt2_pattern, strlen(gpt2_pattern), where, false);
    return status;
}

static int load_step(void *into, const pm_tok_file *file, const json_t *component, const char *where)
{
    static const struct {
        const char *type;
        int (*load)(pm_splitter *, pm_split_step *, const pm_tok_file *, const json_t *, const char *);
    } kinds[] = {
        {"Split", load_split},
        {"Digits", load_digits},
        {"ByteLevel", load_byte_level},
        {"Metaspace", load_metaspace},
        {"Whitespace", load_whitespace},
        {"WhitespaceSplit", load_whitespace_split},
        {"Punctuation", load_punctuation},
    };
    pm_splitter *splitter = into;
    const char *type;
    char of[64];
    int status = pm_tok_type(file, component, where, &type);
    if (status != PM_OK)
        return status;
    if (splitter->n == PM_STEPS_MAX)
        return pm_fail(file->err, PM_ERR_UNSUPPORTED, "%s: %s has more than %d steps", file->path, where, PM_STEPS_MAX);
    pm_splitter_spell(splitter); /* the next step sees what ByteLevel spelt */
    snprintf(of, sizeof(of), "%s %s", where, type);
    for (size_t k = 0; k < PM_COUNT(kinds); k++)
        if (strcmp(kinds[k].type, type) == 0)
            return kinds[k].load(splitter, &splitter->steps[splitter->n++], file, component, of);
    return pm_tok_unsupported(file, where, type);
}

int pm_splitter_load(pm_splitter *splitter, const pm_tok_file *file, const json_t *component)
{
    return pm_tok_each(file, component, "pre_tokenizer", "pretokenizers", load_step, splitter);
}

void pm_splitter_spell(pm_splitter *splitter)
{
    if (splitter->byte_level)
        splitter->steps[splitter->n - 1].spell = true;
    splitter->byte_level = false;
}

void pm_splitter_free(pm_splitter *splitter)
{
    for (int i = 0; i < splitter->n; i++)
        pm_pattern_free(&splitter->steps[i].pattern);
    pm_arena_free(&splitter->arena);
    *splitter = (pm_splitter){0};
}
