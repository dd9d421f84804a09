#include "model/names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 4 }; /* of renaming, at most */

bool pm_name_ends(const char *name, const char *tail)
{
    size_t n = strlen(name), m = strlen(tail);
    return n >= m && strcmp(name + n - m, tail) == 0;
}

bool pm_name_with_tail(const char *name, const char *tail, const char *with, char out[PM_NAME_MAX])
{
    if (!pm_name_ends(name, tail))
        return false;
    return snprintf(out, PM_NAME_MAX, "%.*s%s", (int)(strlen(name) - strlen(tail)), name, with) < PM_NAME_MAX;
}

bool pm_name_respell(const char *from, const char *to, const char *name, char out[PM_NAME_MAX])
{
    enum { STARS = 4 };
    const char *number[STARS];
    int digits[STARS], stars = 0, used = 0;
    size_t n = 0;
    for (; *from; from++) {
        if (*from != '*') {
            if (*name++ != *from)
                return false;
            continue;
        }
        int length = (int)strspn(name, "0123456789");
        if (length == 0 || stars == STARS)
            return false;
        number[stars] = name;
        digits[stars++] = length;
        name += length;
    }
    for (; *to && n < PM_NAME_MAX; to++) {
        bool star = *to == '*' && used < stars;
        n += (size_t)snprintf(out + n, PM_NAME_MAX - n, "%.*s", star ? digits[used] : 1, star ? number[used] : to);
        used += star;
    }
    return n < PM_NAME_MAX && snprintf(out + n, PM_NAME_MAX - n, "%s", name) < (int)(PM_NAME_MAX - n);
}

/* True for a tensor of a layer that predicts further tokens, of which the layout allows some: one beyond the model's
 * own, or mtp.N. */
static bool is_beyond(const pm_layout *layout, const char *name)
{
    static const char *const prefixes[] = {"model.layers.", "mtp."};
    for (size_t i = 0; i < PM_COUNT(prefixes); i++) {
        const char *number = name + strlen(prefixes[i]);
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) != 0 || *number < '0' || *number > '9')
            continue;
        long layer = strtol(number, NULL, 10) - (i == 0 ? layout->layers : 0);
        return layer >= 0 && layer < layout->more_layers;
    }
    return false;
}

void pm_name_canonical(const pm_layout *layout, const char *stored, char out[PM_NAME_MAX], bool *dropped)
{
    char next[PM_NAME_MAX];
    const pm_rename *r = layout->renames;
    snprintf(out, PM_NAME_MAX, "%s", stored);
    *dropped = false;
    for (int round = 0; round < ROUNDS && r->from; round++) {
        for (r = layout->renames; r->from && !pm_name_respell(r->from, r->to ? r->to : "", out, next);)
            r++;
        *dropped = r->from && !r->to;
        if (*dropped)
            break;
        if (r->from)
            memcpy(out, next, sizeof(next));
    }
    *dropped = *dropped || is_beyond(layout, out);
}

/* ---- and back ---- */

enum { SPELLINGS = 96 };

typedef struct spellings {
    char name[SPELLINGS][PM_NAME_MAX];
    int n;
} spellings;

static void add(spellings *all, const char *name)
{
    for (int i = 0; i < all->n; i++)
        if (strcmp(all->name[i], name) == 0)
            return;
    if (all->n < SPELLINGS)
        snprintf(all->name[all->n++], PM_NAME_MAX, "%s", name);
}

/* The module and what may be stored in its place: the matrix that it is a part of, or a stack of experts. */
static void add_modules(spellings *all, const pm_layout *layout, const char *module)
{
    char other[PM_NAME_MAX], whole[PM_NAME_MAX];
    const char *last = strrchr(module, '.'), *number = last;
    add(all, module);
    for (const pm_split *split = layout->splits; split && split->name; split++)
        if (pm_name_with_tail(module, split->name, split->stored, other))
            add(all, other);
    while (number && number > module && number[-1] >= '0' && number[-1] <= '9')
        number--;
    if (!number || number == last || number == module)
        return;
    snprintf(whole, sizeof(whole), "%.*s%s", (int)(number - 1 - module), module, last);
    for (const pm_stack *stack = layout->stacks; stack->name; stack++)
        if (pm_name_with_tail(whole, stack->name, stack->stored, other))
            add(all, other);
}

/* Adds what the rules make one of the names from. */
static void add_renamed(spellings *all, const pm_layout *layout)
{
    char from[PM_NAME_MAX], to[PM_NAME_MAX], goal[PM_NAME_MAX];
    bool dropped;
    for (int i = 0; i < all->n; i++) {
        pm_name_canonical(layout, all->name[i], goal, &dropped);
        for (const pm_rename *r = layout->renames; r->from; r++) {
            if (!r->to || !pm_name_respell(r->to, r->from, all->name[i], from) || strlen(from) > PM_NAME_MAX / 2)
                continue;
            pm_name_canonical(layout, from, to, &dropped);
            if (!dropped && strcmp(to, goal) == 0)
                add(all, from);
        }
    }
}

/* How alike two names are: the length of what they have in common from the start, whatever the numbers in it; more than
 * any length when that is all. */
static size_t likeness(const char *a, const char *b)
{
    static const char numbers[] = "0123456789";
    size_t n = 0;
    for (;; n++) {
        size_t x = strspn(a, numbers), y = strspn(b, numbers);
        a += x && y ? x : 0;
        b += x && y ? y : 0;
        if (*a != *b)
            return n;
        if (!*a)
            return PM_NAME_MAX + n;
        a++;
        b++;
    }
}

void pm_name_stored(const pm_layout *layout, const pm_checkpoint *checkpoint, const char *name, bool matrix,
                    char out[PM_NAME_MAX])
{
    static const char *const parts[] = {".weight", ".weight_packed", ""};
    size_t best = 0;
    snprintf(out, PM_NAME_MAX, "%s", name);
    spellings *modules = calloc(2, sizeof(*modules)), *all = modules + 1;
    if (!modules || strlen(name) > PM_NAME_MAX / 2) {
        free(modules);
        return;
    }
    add_modules(modules, layout, name);
    for (int i = 0; i < modules->n; i++)
        for (size_t k = matrix ? 0 : 2; k < PM_COUNT(parts); k++) {
            char whole[PM_NAME_MAX];
            if (snprintf(whole, sizeof(whole), "%s%s", modules->name[i], parts[k]) < PM_NAME_MAX)
                add(all, whole);
        }
    add_renamed(all, layout);
    for (int i = 0; i < all->n; i++)
        for (size_t k = 0; k < pm_checkpoint_count(checkpoint); k++) {
            size_t alike = likeness(all->name[i], pm_checkpoint_at(checkpoint, k)->name);
            if (alike > best) {
                best = alike;
                snprintf(out, PM_NAME_MAX, "%s", all->name[i]);
            }
        }
    free(modules);
}
