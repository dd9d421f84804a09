/* Pre-tokenisers: a text is cut into pieces, step by step; BPE never joins across pieces. */
#include "text/tokenizer_parts.h"

#include <stdlib.h>
#include <string.h>

void pm_pieces_free(pm_pieces *pieces)
{
    free(pieces->ranges);
    free(pieces->spare);
    pm_buf_free(&pieces->respelt[0]);
    pm_buf_free(&pieces->respelt[1]);
    pm_matcher_free(&pieces->matcher);
    *pieces = (pm_pieces){0};
}

/* ---- splitting ---- */

/* The pieces of one range so far, in pieces->spare from `base` on. */
typedef struct splitting {
    const pm_split_step *step;
    pm_pieces *pieces;
    size_t base, n;
    uint64_t effort; /* the length of the text */
    bool was_match;  /* the last part */
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

/* Splits [range.start, range.end) at the matches of the step's pattern. */
static int split_by_pattern(splitting *s, pm_range range, pm_error *err)
{
    pm_matches matches = {.pattern = &s->step->pattern,
                          .matcher = &s->pieces->matcher,
                          .text = s->pieces->text + range.start,
                          .len = range.end - range.start,
                          .effort = s->effort};
    size_t last = 0;
    pm_range match;
    int found;
    while ((found = pm_matches_next(&matches, &match, err)) > 0) {
        if (last < match.start && add_part(s, range.start + last, range.start + match.start, false) != PM_OK)
            return pm_fail_memory(err);
        if (add_part(s, range.start + match.start, range.start + match.end, true) != PM_OK)
            return pm_fail_memory(err);
        last = match.end;
    }
    if (found == 0 && last < matches.len && add_part(s, range.start + last, range.end, false) != PM_OK)
        return pm_fail_memory(err);
    return found;
}

/* Splits at the characters of the step's kinds, each a match of its own. */
static int split_by_kinds(splitting *s, pm_range range, pm_error *err)
{
    const char *text = s->pieces->text;
    size_t last = range.start;
    for (size_t at = range.start, len; at < range.end; at += len) {
        if (!(pm_char_kind(pm_char_at(text + at, &len)) & s->step->kinds))
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

/* Splits into runs of word characters and runs of others; white space is left out. */
static int split_words(splitting *s, pm_range range, pm_error *err)
{
    enum { MASK = PM_CHAR_SPACE | PM_CHAR_WORD };
    const char *text = s->pieces->text;
    size_t start = range.start, len = 1;
    unsigned run = PM_CHAR_SPACE;
    for (size_t at = range.start; at <= range.end; at += len) {
        unsigned kind = at < range.end ? pm_char_kind(pm_char_at(text + at, &len)) & MASK : MASK;
        if (kind != run && run != PM_CHAR_SPACE && add_part(s, start, at, true) != PM_OK)
            return pm_fail_memory(err);
        if (kind != run)
            start = at;
        run = kind;
        len = at < range.end ? len : 1;
    }
    return PM_OK;
}

/* ---- respelling ---- */

/* Makes room for text to be spelt anew, the other of the two buffers than the one the pieces are in. */
static pm_buf *other_buffer(pm_pieces *pieces)
{
    pm_buf *into = &pieces->respelt[pieces->respelt[0].data && pieces->text == pieces->respelt[0].data];
    into->len = 0;
    return into;
}

/* Copies the text with a space before the pieces that do not start with one and are to have one; with `space` it takes
 * the place of every space. */
static int respell_spaces(const pm_split_step *step, bool first, pm_pieces *pieces)
{
    const char *space = *step->space ? step->space : " ";
    size_t space_len = strlen(space);
    pm_buf *into = other_buffer(pieces);
    for (size_t i = 0; i < pieces->n; i++) {
        pm_range *range = &pieces->ranges[i];
        const char *at = pieces->text + range->start, *end = pieces->text + range->end, *next;
        bool starts =
            at < end && (*at == ' ' || ((size_t)(end - at) >= space_len && memcmp(at, space, space_len) == 0));
        bool wanted = step->prefix == PM_PREFIX_ALWAYS || (step->prefix == PM_PREFIX_FIRST && first && !range->start);
        size_t start = into->len;
        if (at < end && wanted && !starts && pm_buf_add(into, space, space_len) != PM_OK)
            return PM_ERR_MEMORY;
        for (; at < end; at = next) {
            next = *step->space ? memchr(at, ' ', (size_t)(end - at)) : NULL;
            if (pm_buf_add(into, at, (size_t)((next ? next : end) - at)) != PM_OK ||
                (next && pm_buf_add(into, space, space_len) != PM_OK))
                return PM_ERR_MEMORY;
            next = next ? next + 1 : end;
        }
        *range = (pm_range){start, into->len};
    }
    pieces->text = into->data;
    return pieces->text ? PM_OK : pm_buf_reserve(into, 0);
}

/* Copies the text with every byte spelt in the byte-level alphabet. */
static int spell_pieces(pm_pieces *pieces)
{
    pm_buf *into = other_buffer(pieces);
    for (size_t i = 0; i < pieces->n; i++) {
        pm_range *range = &pieces->ranges[i];
        size_t start = into->len;
        if (pm_bytes_spell(pieces->text + range->start, range->end - range->start, into) != PM_OK)
            return PM_ERR_MEMORY;
        *range = (pm_range){start, into->len};
    }
    pieces->text = into->data;
    return PM_OK;
}

/* ---- the steps ---- */

/* Splits every piece. */
static int split_pieces(const pm_split_step *step, uint64_t effort, pm_pieces *pieces, pm_error *err)
{
    splitting s = {.step = step, .pieces = pieces, .effort = effort};
    for (size_t i = 0; i < pieces->n; i++) {
        pm_range range = pieces->ranges[i];
        if (range.start == range.end)
            continue;
        s.base = s.n;
        s.was_match = false;
        int status = step->words   ? split_words(&s, range, err)
                     : step->kinds ? split_by_kinds(&s, range, err)
                                   : split_by_pattern(&s, range, err);
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

int pm_split(const pm_splitter *splitter, const char *text, size_t len, bool first, pm_pieces *pieces, pm_error *err)
{
    void *p = pieces->ranges;
    int status = pm_grow(&p, &pieces->cap, 1, sizeof(*pieces->ranges));
    pieces->ranges = p;
    if (status != PM_OK)
        return pm_fail_memory(err);
    pieces->text = text;
    pieces->ranges[0] = (pm_range){0, len};
    pieces->n = 1;
    for (int i = 0; i < splitter->n && status == PM_OK; i++) {
        const pm_split_step *step = &splitter->steps[i];
        first = first && pieces->n && pieces->ranges[0].start == 0;
        if ((step->prefix || *step->space) && respell_spaces(step, first, pieces) != PM_OK)
            return pm_fail_memory(err);
        if (!step->no_split)
            status = split_pieces(step, len, pieces, err);
        if (status == PM_OK && step->spell && spell_pieces(pieces) != PM_OK)
            return pm_fail_memory(err);
        if (status == PM_OK && pieces->n && pieces->ranges[pieces->n - 1].end > pm_grown_max(len))
            return pm_fail(err, PM_ERR_LIMIT,
                           "tokenizer.json: the pre_tokenizer makes more than %zu bytes of this text",
                           pm_grown_max(len));
    }
    return status;
}
