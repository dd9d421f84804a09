/* The timelines that are kept. A list that is searched from end to end: comparing tokens costs little beside computing
 * them, and what timelines share is shared by their rows and snapshots. */
#include "engine/scheduler.h"

#include <stdlib.h>
#include <string.h>

enum {
    PATIENCE_MS = 250, /* for writing that answers have to wait for */
    PATIENCE_MOST = 10 /* seconds, for writing that a request in the queue waits for */
};

static void drop(pm_pasts *pasts, size_t i)
{
    if (pasts->disk)
        pm_disk_forget(pasts->disk, pasts->list[i].session);
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
        if (p < pasts->list[i].session->length)
            shared = p > shared ? p : shared;
        else if (!pasts->disk || pm_disk_release(pasts->disk, pasts->list[i].session))
            drop(pasts, i); /* what is being written goes another time */
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
    if (pasts->disk)
        pm_disk_offer(pasts->disk, session, false);
}

/* True when a past can be dropped without a loss; otherwise it is being written from now on. */
static bool may_go(const pm_pasts *pasts, pm_past *past, bool must)
{
    if (!pasts->disk)
        return true;
    if (past->leaving <= 0) { /* what cannot be written goes after one attempt */
        pm_disk_offer(pasts->disk, past->session, true);
        past->leaving = pm_now();
    }
    if (must)
        pm_disk_wait(pasts->disk, past->session, PATIENCE_MS / 1e3);
    return must || !pm_disk_busy(pasts->disk, past->session) || pm_now() > past->leaving + PATIENCE_MOST;
}

pm_eviction pm_pasts_evict(pm_pasts *pasts, const pm_session *spared, bool must)
{
    size_t least = pasts->n;
    for (size_t i = 0; i < pasts->n; i++) {
        const pm_past *a = &pasts->list[i], *b = least < pasts->n ? &pasts->list[least] : NULL;
        if (a->session != spared && (!b || a->value < b->value || (a->value == b->value && a->used < b->used)))
            least = i;
    }
    if (least == pasts->n)
        return PM_EVICT_NONE;
    if (!may_go(pasts, &pasts->list[least], must))
        return PM_EVICT_LATER;
    pasts->level = pasts->list[least].value;
    drop(pasts, least);
    return PM_EVICT_DONE;
}

void pm_pasts_wait(const pm_pasts *pasts)
{
    for (size_t i = 0; i < pasts->n; i++)
        if (pasts->list[i].leaving > 0 && pm_disk_busy(pasts->disk, pasts->list[i].session)) {
            pm_disk_wait(pasts->disk, pasts->list[i].session, PATIENCE_MS / 1e3);
            return;
        }
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
    if (kept < past->length || (pasts->disk && !pm_disk_release(pasts->disk, past))) {
        appraise(pasts, &pasts->list[i]);
        return pm_session_fork(out, past, err);
    }
    *out = pasts->list[i].session;
    memmove(&pasts->list[i], &pasts->list[i + 1], (--pasts->n - i) * sizeof(*pasts->list));
    return PM_OK;
}

static int by_value(const void *a, const void *b)
{
    const pm_past *x = a, *y = b;
    return (x->value < y->value) - (x->value > y->value);
}

void pm_pasts_free(pm_pasts *pasts, double seconds)
{
    if (pasts->disk && pasts->n)
        qsort(pasts->list, pasts->n, sizeof(*pasts->list), by_value);
    uint64_t room = pasts->disk ? pm_disk_limit(pasts->disk) : 0, bytes;
    for (size_t i = 0; pasts->disk && i < pasts->n; i++) {
        const pm_session *session = pasts->list[i].session;
        bytes = pm_engine_session_bytes(session->engine, session->length, session->n_snapshots);
        if (bytes > room) /* one more would take the place of a better one */
            break;
        room -= bytes;
        pm_disk_offer(pasts->disk, session, true);
    }
    pm_disk_close(pasts->disk, seconds);
    pasts->disk = NULL;
    while (pasts->n)
        drop(pasts, pasts->n - 1);
    free(pasts->list);
    *pasts = (pm_pasts){0};
}
