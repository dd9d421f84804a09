/* Matching: a walk over the matches of a pattern. */
#include "text/tokenizer_parts.h"

enum {
    MATCH_LIMIT = 10000000,     /* PCRE2's own default; it grows with the text */
    HEAP_LIMIT_KIB = 256 << 10, /* of the interpreter */
    STACK_START = 32 << 10,     /* of compiled patterns */
    STACK_MAX = 32 << 20
};

void pm_matcher_free(pm_matcher *matcher)
{
    pcre2_match_data_free(matcher->match);
    pcre2_match_context_free(matcher->limits);
    pcre2_jit_stack_free(matcher->stack);
    *matcher = (pm_matcher){0};
}

/* Makes what matching needs, at a matcher's first use. */
static int prepare(pm_matcher *matcher)
{
    if (!matcher->match)
        matcher->match = pcre2_match_data_create(1, NULL);
    if (!matcher->limits)
        matcher->limits = pcre2_match_context_create(NULL);
    if (!matcher->match || !matcher->limits)
        return PM_ERR_MEMORY;
    if (!matcher->stack) {
        /* Without a stack of its own a pattern has 32 KiB of the thread's. */
        matcher->stack = pcre2_jit_stack_create(STACK_START, STACK_MAX, NULL);
        if (matcher->stack)
            pcre2_jit_stack_assign(matcher->limits, NULL, matcher->stack);
    }
    pcre2_set_heap_limit(matcher->limits, HEAP_LIMIT_KIB);
    return PM_OK;
}

/* Finds the pattern from matches->at on: 1 with the range, 0 when it is not there, or an error. The text was checked to
 * be UTF-8 as a whole: checking it again here would cost its length for every piece. */
static int find(const pm_matches *matches, pm_range *range, pm_error *err)
{
    const pm_pattern *pattern = matches->pattern;
    pm_matcher *matcher = matches->matcher;
    PCRE2_SPTR text = (PCRE2_SPTR)matches->text;
    int rc = pcre2_match(pattern->code, text, matches->len, matches->at, PCRE2_NO_UTF_CHECK, matcher->match,
                         matcher->limits);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(pattern->code, text, matches->len, matches->at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                         matcher->match, matcher->limits);
    if (rc == PCRE2_ERROR_NOMATCH)
        return 0;
    if (rc < 0) {
        char why[128] = "";
        pcre2_get_error_message(rc, (PCRE2_UCHAR *)why, sizeof(why));
        return pm_fail(err, rc == PCRE2_ERROR_NOMEMORY ? PM_ERR_MEMORY : PM_ERR_LIMIT,
                       "the tokenizer's pattern '%.200s' fails on this text: %s", pattern->name, why);
    }
    PCRE2_SIZE *ends = pcre2_get_ovector_pointer(matcher->match);
    *range = (pm_range){ends[0], ends[1]};
    return range->start <= range->end && range->end <= matches->len
               ? 1
               : pm_fail(err, PM_ERR_UNSUPPORTED, "the tokenizer's pattern '%.200s' ends a match before its start",
                         pattern->name);
}

int pm_matches_next(pm_matches *matches, pm_range *match, pm_error *err)
{
    if (!matches->matcher->stack || !matches->at) {
        if (prepare(matches->matcher) != PM_OK)
            return pm_fail_memory(err);
        uint64_t limit = matches->effort * 64 > MATCH_LIMIT ? matches->effort * 64 : MATCH_LIMIT;
        pcre2_set_match_limit(matches->matcher->limits, limit < UINT32_MAX ? (uint32_t)limit : UINT32_MAX);
    }
    while (matches->at <= matches->len) {
        int found = find(matches, match, err);
        if (found <= 0)
            return found;
        if (match->start < match->end || !matches->any || match->end != matches->last) {
            matches->at = matches->last = match->end;
            matches->any = true;
            return 1;
        }
        size_t step = 1;
        if (matches->at < matches->len)
            pm_char_at(matches->text + matches->at, &step);
        matches->at += step;
    }
    return 0;
}
