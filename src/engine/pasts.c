/* The timelines that are kept. A list that is searched from end to end: comparing tokens costs little beside computing
 * them, and what timelines share is shared by their rows and snapshots. */
#include "engine/scheduler.h"

#include <stdlib.h>
#include <string.h>

static void drop(pm_pasts *pasts, size_t i)
{
    pm_session_free(pasts->list[i].session);
    memmove(&pasts->list[i], &pasts->list[i + 1], (--pasts->n - i) * sizeof(*pasts->list));
}

static void appraise(pm_pasts *pasts, pm_past *past)
{
    past->value = pasts->level + past->gain;
    past->used = pasts->clock++;
}

void pm_pasts_keep(pm_pasts *pasts, pm_session *session)
{
    size_t shared = 0;
    for (size_t i = pasts->n; i-- > 0;) {
        size_t p = pm_session_common(pasts->list[i].session, session->ids, session->length);
        if (p == pasts->list[i].session->length)
            drop(pasts, i);
        else if (p > shared)
            shared = p;
    }
    void *list = pasts->list;
    int status = pm_grow(&list, &pasts->cap, pasts->n + 1, sizeof(*pasts->list));
    pasts->list = list;
    if (session->length == 0 || status != PM_OK) {
        pm_session_free(session);
        return;
    }
    /* Tokens that would have to be computed again, for the memory that they take. */
    double bytes = (double)pm_engine_session_bytes(session->engine, session->length - shared, session->n_snapshots);
    double saved = (double)(session->length - shared);
    pasts->list[pasts->n] = (pm_past){.session = session, .gain = saved / bytes};
    appraise(pasts, &pasts->list[pasts->n++]);
}

bool pm_pasts_evict(pm_pasts *pasts, const pm_session *spared)
{
    size_t least = pasts->n;
    for (size_t i = 0; i < pasts->n; i++) {
        const pm_past *a = &pasts->list[i], *b = least < pasts->n ? &pasts->list[least] : NULL;
        if (a->session != spared && (!b || a->value < b->value || (a->value == b->value && a->used < b->used)))
            least = i;
    }
    if (least == pasts->n)
        return false;
    pasts->level = pasts->list[least].value;
    drop(pasts, least);
    return true;
}

const pm_session *pm_pasts_find(const pm_pasts *pasts, const pm_token *ids, size_t n, size_t *kept, size_t *alike)
{
    const pm_session *best = NULL;
    *kept = *alike = 0;
    for (size_t i = 0; i < pasts->n; i++) {
        const pm_session *session = pasts->list[i].session;
        size_t keeps = pm_session_keeps(session, ids, n), common = pm_session_common(session, ids, n);
        *alike = common > *alike ? common : *alike;
        if (keeps > *kept) {
            *kept = keeps;
            best = session;
        }
    }
    return best;
}

int pm_pasts_use(pm_pasts *pasts, const pm_session *past, size_t kept, pm_session **out, pm_error *err)
{
    size_t i = 0;
    while (pasts->list[i].session != past)
        i++;
    if (kept < past->length) {
        appraise(pasts, &pasts->list[i]);
        return pm_session_fork(out, past, err);
    }
    *out = pasts->list[i].session;
    memmove(&pasts->list[i], &pasts->list[i + 1], (--pasts->n - i) * sizeof(*pasts->list));
    return PM_OK;
}

void pm_pasts_free(pm_pasts *pasts)
{
    while (pasts->n)
        drop(pasts, pasts->n - 1);
    free(pasts->list);
    *pasts = (pm_pasts){0};
}
