/* Keys that an object has already: what no grammar can say. */
#include "text/guide.h"

#include <stdlib.h>
#include <string.h>

void pm_guide_keys_free(pm_guide_keys *keys)
{
    pm_buf_free(&keys->text);
    free(keys->starts);
    free(keys->depths);
    *keys = (pm_guide_keys){0};
}

int pm_guide_keys_copy(const pm_guide_keys *keys, pm_guide_keys *out)
{
    pm_guide_keys copy = {.n = keys->n, .start = keys->start, .depth = keys->depth, .inside = keys->inside};
    if (pm_buf_add(&copy.text, keys->text.data ? keys->text.data : "", keys->text.len) != PM_OK ||
        pm_grow((void **)&copy.starts, &copy.starts_cap, keys->n + 1, sizeof(*copy.starts)) != PM_OK ||
        pm_grow((void **)&copy.depths, &copy.depths_cap, keys->n + 1, sizeof(*copy.depths)) != PM_OK) {
        pm_guide_keys_free(&copy);
        return PM_ERR_MEMORY;
    }
    for (size_t i = 0; i < keys->n; i++) {
        copy.starts[i] = keys->starts[i];
        copy.depths[i] = keys->depths[i];
    }
    *out = copy;
    return PM_OK;
}

/* Whether the object whose key is being written has it. */
static bool has(const pm_guide_keys *keys)
{
    size_t len = keys->text.len - keys->start;
    for (size_t i = keys->n; i-- > 0 && keys->depths[i] == keys->depth;) {
        size_t end = i + 1 < keys->n ? keys->starts[i + 1] : keys->start;
        if (end - keys->starts[i] == len &&
            memcmp(keys->text.data + keys->starts[i], keys->text.data + keys->start, len) == 0)
            return true;
    }
    return false;
}

/* The key that is being written is one of its object's. */
static int add(pm_guide_keys *keys)
{
    if (pm_grow((void **)&keys->starts, &keys->starts_cap, keys->n + 1, sizeof(*keys->starts)) != PM_OK ||
        pm_grow((void **)&keys->depths, &keys->depths_cap, keys->n + 1, sizeof(*keys->depths)) != PM_OK)
        return PM_ERR_MEMORY;
    keys->starts[keys->n] = keys->start;
    keys->depths[keys->n++] = keys->depth;
    return PM_OK;
}

int pm_guide_keys_take(pm_guide_keys *keys, const pm_automaton *automaton, const pm_set *set, char byte, bool *twice)
{
    const pm_grammar *grammar = automaton->grammar;
    bool was = keys->inside;
    int32_t open = 0;
    int status = PM_OK;
    keys->inside = false;
    for (size_t i = 0; i < set->n; i++) {
        const pm_config_at *at = &automaton->configs[set->first + i];
        int32_t depth = automaton->frames[at->frame].depth;
        keys->inside |= grammar->rules[grammar->nodes[at->node].rule].key;
        open = depth > open ? depth : open;
    }
    if (was && keys->inside)
        return pm_buf_add(&keys->text, &byte, 1);
    if (was) {
        *twice = has(keys);
        status = add(keys);
    }
    for (; keys->n && keys->depths[keys->n - 1] > open; keys->n--)
        keys->text.len = keys->starts[keys->n - 1];
    if (keys->inside) {
        keys->start = keys->text.len;
        keys->depth = open;
    }
    return status;
}
