#include "engine/scheduler.h"

#include <stdlib.h>
#include <string.h>

enum {
    PARALLEL = 8,       /* default of pm_scheduler_options.parallel */
    QUEUE = 64,         /* and of .queue */
    SMALL_PIECE = 8,    /* tokens of prompts beside answers in a step, at least */
    WORTH_IT = 64,      /* tokens that another prompt must save for one to wait until it has been read */
    FLUSH_SECONDS = 20, /* default of pm_scheduler_options.flush_seconds */
    FETCH_SHARE = 4     /* one part in so many of step_seconds is for reading timelines from the disk */
};

static const uint64_t DISK_BYTES = (uint64_t)10 << 30; /* default of pm_scheduler_options.disk_bytes */

/* ---- memory ---- */

/* What a timeline of `from` tokens may take more when it grows by `more`, at most: a shared block may have to be copied
 * and a snapshot be taken. */
static uint64_t growth(const pm_engine *engine, size_t from, size_t more)
{
    return pm_engine_session_bytes(engine, from + more, 2) - pm_engine_session_bytes(engine, from, 0) +
           pm_engine_session_bytes(engine, 1, 0);
}

/* What a timeline takes that has all snapshots it may have, and grows by a step. */
static uint64_t whole(const pm_engine *engine, size_t tokens)
{
    int snapshots = engine->cache->n_states ? pm_snapshot_limit(engine) : 0;
    return pm_engine_session_bytes(engine, tokens, snapshots) + growth(engine, tokens, (size_t)engine->step_tokens);
}

/* The longest timeline, up to the context, that takes no more than `bytes`. */
static size_t capacity(const pm_engine *engine, uint64_t bytes)
{
    size_t low = 0, high = (size_t)engine->ctx;
    while (low < high) {
        size_t middle = high - (high - low) / 2;
        if (whole(engine, middle) <= bytes)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* Drops kept timelines, but not `spared`, until there is room for `bytes` more: PM_EVICT_DONE. PM_EVICT_NONE: that is
 * not enough; without `must` PM_EVICT_LATER: there will be when they have been written. */
static pm_eviction make_room(pm_scheduler *scheduler, uint64_t bytes, const pm_session *spared, bool must)
{
    while (pm_engine_held(scheduler->engine) + bytes > scheduler->options.cache_bytes) {
        pm_eviction eviction = pm_pasts_evict(&scheduler->pasts, spared, must);
        if (eviction != PM_EVICT_DONE)
            return eviction;
        scheduler->info.evicted++;
    }
    return PM_EVICT_DONE;
}

/* ---- life ---- */

int pm_scheduler_new(pm_scheduler **out, pm_engine *engine, const pm_scheduler_options *options, pm_error *err)
{
    pm_scheduler_options chosen = options ? *options : (pm_scheduler_options){0};
    if (chosen.parallel < 0 || chosen.parallel > engine->step_tokens)
        return pm_fail(err, PM_ERR_INVALID, "parallel is %d, not between 1 and step_tokens, %d", chosen.parallel,
                       engine->step_tokens);
    if (chosen.queue < 0)
        return pm_fail(err, PM_ERR_INVALID, "queue is %d, below 0", chosen.queue);
    if (!(chosen.step_seconds >= 0 && chosen.step_seconds <= 3600))
        return pm_fail(err, PM_ERR_INVALID, "step_seconds is %g, not between 0 and 3600", chosen.step_seconds);
    if (!chosen.parallel)
        chosen.parallel = engine->step_tokens < PARALLEL ? engine->step_tokens : PARALLEL;
    if (!(chosen.flush_seconds >= 0 && chosen.flush_seconds <= 3600))
        return pm_fail(err, PM_ERR_INVALID, "flush_seconds is %g, not between 0 and 3600", chosen.flush_seconds);
    chosen.queue = chosen.queue ? chosen.queue : QUEUE;
    chosen.flush_seconds = chosen.flush_seconds > 0 ? chosen.flush_seconds : FLUSH_SECONDS;
    chosen.step_seconds = chosen.step_seconds > 0 ? chosen.step_seconds : 0.1;
    if (!chosen.cache_bytes) {
        uint64_t most = whole(engine, (size_t)engine->ctx);
        chosen.cache_bytes = most > UINT64_MAX / 2 ? most : most + most / 2;
    }
    size_t fits = capacity(engine, chosen.cache_bytes);
    if (fits == 0)
        return pm_fail(err, PM_ERR_MEMORY, "cache_bytes is %llu; a timeline of this model takes %llu at least",
                       (unsigned long long)chosen.cache_bytes, (unsigned long long)whole(engine, 1));
    pm_scheduler *scheduler = calloc(1, sizeof(*scheduler));
    if (!scheduler)
        return pm_fail_memory(err);
    scheduler->engine = engine;
    scheduler->options = chosen;
    scheduler->options.cache_dir = NULL; /* the caller's, and needed no longer */
    scheduler->capacity = fits;
    scheduler->piece = (size_t)engine->step_tokens;
    scheduler->live = calloc((size_t)chosen.parallel, sizeof(*scheduler->live));
    scheduler->work = calloc((size_t)chosen.parallel, sizeof(*scheduler->work));
    int status = scheduler->live && scheduler->work ? PM_OK : pm_fail_memory(err);
    if (status == PM_OK && chosen.cache_dir)
        status = pm_disk_open(&scheduler->pasts.disk, engine, chosen.cache_dir,
                              chosen.disk_bytes ? chosen.disk_bytes : DISK_BYTES, err);
    if (status == PM_OK)
        *out = scheduler;
    else
        pm_scheduler_free(scheduler);
    return status;
}

/* Frees the requests that have ended, which what is called back may still have cancelled. */
static void bury(pm_scheduler *scheduler)
{
    for (pm_request *request = scheduler->ended, *next; request; request = next) {
        next = request->next;
        pm_generation_free(&request->generation);
        free(request->ids);
        free(request);
    }
    scheduler->ended = NULL;
}

int pm_request_new(pm_request **out, pm_scheduler *scheduler, const pm_prompt *prompt,
                   const pm_generate_options *options, pm_request_end *on_end, pm_error *err)
{
    const pm_engine *engine = scheduler->engine;
    if (!prompt->ids || prompt->n == 0)
        return pm_fail(err, PM_ERR_INVALID, "the prompt is empty");
    if (prompt->n > (size_t)engine->ctx)
        return pm_fail(err, PM_ERR_LIMIT, "the prompt has %zu tokens, more than the context of %d", prompt->n,
                       engine->ctx);
    if (prompt->n > scheduler->capacity)
        return pm_fail(err, PM_ERR_MEMORY, "the prompt has %zu tokens; cache_bytes has room for %zu", prompt->n,
                       scheduler->capacity);
    if (scheduler->info.waiting >= scheduler->options.queue)
        return pm_fail(err, PM_ERR_BUSY, "%d requests wait, as many as may", scheduler->info.waiting);
    int status = pm_engine_check_ids(engine, prompt->ids, prompt->n, err);
    if (status != PM_OK)
        return status;
    pm_request *request = calloc(1, sizeof(*request));
    if (!request)
        return pm_fail_memory(err);
    if (options)
        request->options = *options;
    else
        pm_engine_answer_defaults(engine, &request->options);
    void *ids = NULL;
    status = pm_grow(&ids, &request->cap, prompt->n, sizeof(pm_token));
    request->ids = ids;
    if (status != PM_OK)
        pm_fail_memory(err);
    else
        status = pm_engine_answer(engine, prompt, &request->options, scheduler->capacity, &request->generation, err);
    if (status != PM_OK) {
        free(request->ids);
        free(request);
        return status;
    }
    memcpy(request->ids, prompt->ids, prompt->n * sizeof(pm_token));
    request->n = request->n_prompt = prompt->n;
    request->mark = prompt->mark;
    request->scheduler = scheduler;
    request->on_end = on_end;
    request->queued = pm_now();
    pm_request **last = &scheduler->queue;
    while (*last)
        last = &(*last)->next;
    *last = request;
    scheduler->info.waiting++;
    *out = request;
    return PM_OK;
}

void pm_request_cancel(pm_request *request)
{
    request->cancelled = true;
}

void pm_scheduler_describe(const pm_scheduler *scheduler, pm_scheduler_info *out)
{
    *out = scheduler->info;
    out->live = scheduler->n_live;
    out->kept = (int)scheduler->pasts.n;
    out->held_bytes = pm_engine_held(scheduler->engine);
    out->cache_bytes = scheduler->options.cache_bytes;
    if (scheduler->pasts.disk)
        pm_disk_describe(scheduler->pasts.disk, out);
}

/* ---- the end of a request ---- */

/* Takes a request out of the queue or out of the answers in the making. */
static void take_out(pm_request *request)
{
    pm_scheduler *scheduler = request->scheduler;
    if (scheduler->fetch_for == request)
        scheduler->fetch_for = NULL;
    for (pm_request **at = &scheduler->queue; *at; at = &(*at)->next)
        if (*at == request) {
            *at = request->next;
            scheduler->info.waiting--;
            return;
        }
    int i = 0;
    while (scheduler->live[i] != request)
        i++;
    memmove(&scheduler->live[i], &scheduler->live[i + 1], (size_t)(--scheduler->n_live - i) * sizeof(*scheduler->live));
    scheduler->full = false;
}

static double since(double from, double to)
{
    return from > 0 && to > 0 ? to - from : 0;
}

/* Ends a request: with the answer so far or, unless `status` is PM_OK, the error. Its timeline is kept. */
static void end(pm_request *request, int status, const pm_error *err)
{
    pm_result result = {0};
    double now = pm_now();
    take_out(request);
    if (status == PM_OK) {
        pm_generation_result(&request->generation, &result);
        result.prompt = request->cost;
        result.queue_seconds = (request->started ? request->begun : now) - request->queued;
        result.prompt_seconds = since(request->begun, request->read);
        result.first_token_seconds = since(request->begun, request->first);
        result.decode_seconds = since(request->first, now);
    }
    if (status == PM_OK && request->session) {
        pm_snapshot_take(request->session);
        pm_pasts_keep(&request->scheduler->pasts, request->session);
    } else {
        pm_session_free(request->session);
    }
    request->session = NULL;
    request->next = request->scheduler->ended;
    request->scheduler->ended = request;
    request->on_end(request->options.user, status, err, &result);
}

/* Gives out text that has become final. */
static void deliver(pm_request *request)
{
    size_t len;
    const char *text = pm_generation_take(&request->generation, &len);
    if (len && request->options.on_text && !request->cancelled)
        request->cancelled = request->options.on_text(request->options.user, text, len) != 0;
}

static void end_cancelled(pm_request *request)
{
    pm_error err = {0};
    int status = pm_generation_end(&request->generation, PM_FINISH_CANCELLED, &err);
    end(request, status, &err);
}

void pm_scheduler_free(pm_scheduler *scheduler)
{
    if (!scheduler)
        return;
    while (scheduler->n_live)
        end_cancelled(scheduler->live[0]);
    while (scheduler->queue)
        end_cancelled(scheduler->queue);
    bury(scheduler);
    pm_fetch_free(scheduler->fetch);
    pm_pasts_free(&scheduler->pasts, scheduler->options.flush_seconds);
    free(scheduler->live);
    free(scheduler->work);
    free(scheduler);
}

/* ---- taking up ---- */

/* How much a prompt that is being read will save of ids[0..n) when it has been. A timeline with states is told to
 * remember the place where they part. */
static size_t promise(pm_request *reading, const pm_token *ids, size_t n)
{
    size_t same = 0, length = reading->session->length;
    while (same < n && same < reading->n_prompt && ids[same] == reading->ids[same])
        same++;
    if (reading->scheduler->engine->cache->n_states && same > length && same < reading->n_prompt)
        reading->branch = same;
    return length < same ? same : 0;
}

/* Where the timeline of a request comes from. */
struct source {
    const pm_session *past; /* kept, or */
    const pm_session *live; /* that of an answer in the making; both NULL: from nothing */
    size_t kept;            /* tokens */
    bool promised;          /* more of it is being computed: better to wait */
};

static struct source find_source(pm_scheduler *scheduler, pm_request *request)
{
    struct source source = {0};
    size_t alike = 0;
    source.past = pm_pasts_find(&scheduler->pasts, request->ids, request->n, &source.kept, &alike);
    for (int i = 0; i < scheduler->n_live; i++) {
        pm_session *session = scheduler->live[i]->session;
        size_t keeps = pm_session_keeps(session, request->ids, request->n);
        if (keeps > source.kept)
            source = (struct source){.live = session, .kept = keeps};
    }
    for (int i = 0; i < scheduler->n_live; i++)
        source.promised |= promise(scheduler->live[i], request->ids, request->n) >= source.kept + WORTH_IT;
    if (scheduler->engine->cache->n_states && alike >= source.kept + WORTH_IT)
        request->branch = alike;
    return source;
}

/* Bytes that the timelines in the making will grow by until their prompts have been read. */
static uint64_t outstanding(const pm_scheduler *scheduler)
{
    uint64_t bytes = scheduler->fetch_bytes;
    for (int i = 0; i < scheduler->n_live; i++) {
        const pm_request *request = scheduler->live[i];
        bytes += growth(scheduler->engine, request->session->length, request->n - request->session->length);
    }
    return bytes;
}

/* Makes room for a request's timeline up to the end of its prompt. When nothing else is being answered that may take
 * its source, too. */
static pm_eviction room_for(pm_request *request, struct source *source)
{
    pm_scheduler *scheduler = request->scheduler;
    const pm_engine *engine = scheduler->engine;
    uint64_t bytes = pm_engine_session_bytes(engine, 1, 0) + outstanding(scheduler);
    pm_eviction room =
        make_room(scheduler, bytes + growth(engine, source->kept, request->n - source->kept), source->past, false);
    if (room != PM_EVICT_NONE || scheduler->n_live)
        return room;
    *source = (struct source){0};
    return make_room(scheduler, bytes + growth(engine, 0, request->n), NULL, false);
}

/* Finds a timeline on disk with which less work is left than with `source`: its file is read faster than what it has
 * more is computed. */
static bool find_on_disk(const pm_request *request, const struct source *source, pm_disk_hit *hit)
{
    const pm_scheduler *scheduler = request->scheduler;
    if (!pm_disk_find(scheduler->pasts.disk, request->ids, request->n, hit) || hit->kept < source->kept + WORTH_IT ||
        hit->length > scheduler->capacity)
        return false;
    double seconds = scheduler->token_seconds * (double)(hit->kept - source->kept);
    return !(seconds > 0 && hit->seconds > seconds);
}

/* Begins to read a timeline back from the disk. PM_EVICT_NONE: it cannot be read, or there is no room. */
static pm_eviction begin_fetch(pm_request *request, const pm_disk_hit *hit)
{
    pm_scheduler *scheduler = request->scheduler;
    const pm_engine *engine = scheduler->engine;
    uint64_t bytes = pm_engine_session_bytes(engine, hit->length, hit->snapshots);
    pm_eviction room = make_room(
        scheduler, bytes + outstanding(scheduler) + growth(engine, hit->kept, request->n - hit->kept), NULL, false);
    if (room != PM_EVICT_DONE)
        return room;
    uint64_t before = pm_engine_held(engine);
    if (pm_fetch_begin(&scheduler->fetch, scheduler->pasts.disk, hit, NULL) != PM_OK)
        return PM_EVICT_NONE;
    uint64_t took = pm_engine_held(engine) - before;
    scheduler->fetch_bytes = bytes > took ? bytes - took : 0;
    scheduler->fetch_for = request;
    return PM_EVICT_DONE;
}

static void end_fetch(pm_scheduler *scheduler)
{
    pm_fetch_free(scheduler->fetch);
    scheduler->fetch = NULL;
    scheduler->fetch_for = NULL;
    scheduler->fetch_bytes = 0;
}

/* Reads on, for a part of the time of a step. A complete timeline is one that is kept; with a file that cannot be read
 * nothing is lost but the attempt. */
static void go_on_fetching(pm_scheduler *scheduler)
{
    pm_session *session = NULL;
    if (!scheduler->fetch)
        return;
    uint64_t before = pm_engine_held(scheduler->engine);
    int status = pm_fetch_go_on(scheduler->fetch, scheduler->options.step_seconds / FETCH_SHARE, &session, NULL);
    uint64_t took = pm_engine_held(scheduler->engine) - before;
    scheduler->fetch_bytes -= took < scheduler->fetch_bytes ? took : scheduler->fetch_bytes;
    if (session || status != PM_OK)
        end_fetch(scheduler);
    if (session)
        pm_pasts_keep(&scheduler->pasts, session);
}

/* Gives a request its timeline, cut to what it shares with the source. */
static int give_session(pm_request *request, const struct source *source, pm_error *err)
{
    pm_scheduler *scheduler = request->scheduler;
    pm_session *session;
    int status;
    if (source->past)
        status = pm_pasts_use(&scheduler->pasts, source->past, source->kept, &session, err);
    else if (source->live)
        status = pm_session_fork(&session, source->live, err);
    else
        status = pm_session_new(&session, scheduler->engine, err);
    if (status != PM_OK)
        return status;
    pm_session_keep(session, request->ids, request->n);
    status = pm_session_reserve(session, request->n - session->length, err);
    if (status != PM_OK) {
        pm_session_free(session);
        return status;
    }
    session->turn = (pm_turn){.mark = request->mark, .prompt = request->n_prompt};
    request->session = session;
    return PM_OK;
}

/* Makes a request of the queue one that is being answered. */
static void take_up(pm_request *request)
{
    pm_scheduler *scheduler = request->scheduler;
    bool full = scheduler->full;
    take_out(request);
    scheduler->full = full;
    request->next = NULL;
    scheduler->live[scheduler->n_live++] = request;
    if (request->started)
        return;
    request->started = true;
    request->begun = pm_now();
    request->cost =
        (pm_sync_stats){.reused = request->session->length, .computed = request->n_prompt - request->session->length};
    scheduler->info.reused += request->cost.reused;
}

/* Asks the disk for a request's timeline, once. PM_EVICT_DONE: it is to wait for one; PM_EVICT_NONE: there is none. */
static pm_eviction ask_disk(pm_request *request, const struct source *source)
{
    pm_scheduler *scheduler = request->scheduler;
    pm_disk_hit hit;
    if (!scheduler->pasts.disk)
        return PM_EVICT_NONE;
    if (scheduler->fetch && scheduler->fetch_for == request)
        return PM_EVICT_DONE;
    if (request->fetched || !find_on_disk(request, source, &hit)) {
        request->fetched = true;
        return PM_EVICT_NONE;
    }
    if (scheduler->fetch)
        return PM_EVICT_DONE; /* one after the other */
    pm_eviction begun = begin_fetch(request, &hit);
    request->fetched = begun != PM_EVICT_LATER;
    return begun;
}

/* Takes requests up in order, while there is room. One waits while a prompt is being read that it shares much with, or
 * its timeline from the disk. */
static void admit(pm_scheduler *scheduler)
{
    pm_request *next;
    for (pm_request *request = scheduler->queue; request; request = next) {
        pm_error err = {0};
        next = request->next;
        if (scheduler->full || scheduler->n_live == scheduler->options.parallel)
            return;
        struct source source = find_source(scheduler, request);
        if (source.promised)
            continue;
        pm_eviction room = ask_disk(request, &source);
        if (room == PM_EVICT_DONE)
            continue;
        if (room == PM_EVICT_NONE) {
            source = find_source(scheduler, request); /* asking may have taken its place */
            room = room_for(request, &source);
        }
        if (room == PM_EVICT_LATER) {
            if (!scheduler->n_live)
                pm_pasts_wait(&scheduler->pasts);
            return;
        }
        int status = PM_OK;
        if (room == PM_EVICT_NONE) {
            scheduler->full = scheduler->n_live > 0;
            if (scheduler->full)
                return;
            status =
                pm_fail(&err, PM_ERR_MEMORY, "other sessions of the engine leave no room for %zu tokens", request->n);
        }
        if (status == PM_OK)
            status = give_session(request, &source, &err);
        if (status == PM_OK)
            take_up(request);
        else
            end(request, status, &err);
    }
}

/* ---- computing ---- */

static size_t left(const pm_request *request)
{
    return request->n - request->session->length;
}

/* What there is to do in a step. */
struct load {
    int reading; /* requests whose prompts are being read */
    int writing; /* and those with a token to compute for their answers */
};

static void count(struct load *load, const pm_request *request, int by)
{
    load->reading += left(request) > 1 ? by : 0;
    load->writing += left(request) == 1 ? by : 0;
}

/* Where the timeline is to be remembered next. */
static size_t next_mark(const pm_request *request)
{
    const size_t marks[] = {request->branch, request->mark, request->n_prompt};
    size_t length = request->session->length, next = 0;
    for (size_t i = 0; i < PM_COUNT(marks); i++)
        if (marks[i] > length && marks[i] <= request->n && (!next || marks[i] < next))
            next = marks[i];
    return next;
}

static void set_task(pm_request *request, size_t most)
{
    size_t length = request->session->length;
    request->session->task =
        (pm_task){.tokens = request->ids + length, .n = request->n - length, .most = most, .mark = next_mark(request)};
}

/* Takes the youngest answer out of the making: its timeline is kept as long as there is room, and it is the first that
 * will be taken up when another has ended. */
static void put_back(pm_scheduler *scheduler)
{
    pm_request *request = scheduler->live[--scheduler->n_live];
    pm_pasts_keep(&scheduler->pasts, request->session);
    request->session = NULL;
    request->next = scheduler->queue;
    scheduler->queue = request;
    scheduler->info.waiting++;
    scheduler->info.put_back++;
    scheduler->full = true;
}

/* Gives every timeline its task for a step, prompts equal shares of what there is for them; returns the bytes that all
 * grow by. */
static uint64_t set_tasks(pm_scheduler *scheduler, struct load load)
{
    const pm_engine *engine = scheduler->engine;
    uint64_t bytes = scheduler->fetch_bytes;
    size_t piece = load.writing ? scheduler->piece : (size_t)engine->step_tokens, readers = (size_t)load.reading;
    size_t share = readers && piece > readers ? piece / readers : 1;
    for (int i = 0; i < scheduler->n_live; i++) {
        pm_request *request = scheduler->live[i];
        set_task(request, share);
        bytes += growth(engine, request->session->length, left(request) < share ? left(request) : share);
    }
    return bytes;
}

/* Prepares a step: tasks, and room for what they need. What is being read from the disk goes first when there is none,
 * then the youngest answers wait. */
static struct load prepare(pm_scheduler *scheduler)
{
    struct load load = {0};
    for (int i = 0; i < scheduler->n_live; i++)
        count(&load, scheduler->live[i], 1);
    while (make_room(scheduler, set_tasks(scheduler, load), NULL, true) != PM_EVICT_DONE && scheduler->n_live) {
        pm_request *youngest = scheduler->live[scheduler->n_live - 1];
        if (scheduler->fetch) {
            end_fetch(scheduler);
            continue;
        }
        count(&load, youngest, -1);
        if (scheduler->n_live > 1) {
            put_back(scheduler);
            continue;
        }
        pm_error err;
        int status = pm_fail(&err, PM_ERR_MEMORY, "other sessions of the engine leave no room for more tokens");
        end(youngest, status, &err);
    }
    return load;
}

/* Counts what a step has read of a prompt, and tells its request how far it is. */
static void tell_progress(pm_scheduler *scheduler, const pm_request *request)
{
    size_t done = request->read ? 0 : request->session->task.done;
    scheduler->info.computed += done;
    if (done && request->options.on_prompt)
        request->options.on_prompt(request->options.user, request->session->length, request->n_prompt);
}

/* Learns from how long a step took, with so many tokens of prompts beside so many answers, what those cost, and how
 * many the next may have. */
static void adapt(pm_scheduler *scheduler, size_t reading, size_t writing, double seconds)
{
    if (reading >= SMALL_PIECE) {
        double each = seconds / (double)(reading + writing);
        scheduler->token_seconds = scheduler->token_seconds > 0 ? (3 * scheduler->token_seconds + each) / 4 : each;
    }
    if (!writing || !reading)
        return;
    double factor = scheduler->options.step_seconds / seconds;
    factor = factor < 0.5 ? 0.5 : factor > 2 ? 2 : factor;
    if (factor > 1 && reading < scheduler->piece)
        return; /* it was not the piece that kept the step short */
    double piece = (double)scheduler->piece * factor;
    size_t most = (size_t)scheduler->engine->step_tokens;
    scheduler->piece = piece < SMALL_PIECE ? SMALL_PIECE : piece > (double)most ? most : (size_t)piece;
}

/* Computes a batch. When that fails, each timeline by itself, so that the fault ends only its own request. */
static void compute(pm_scheduler *scheduler, struct load load)
{
    pm_engine *engine = scheduler->engine;
    int n = scheduler->n_live, computed;
    pm_error err = {0};
    for (int i = 0; i < n; i++)
        scheduler->work[i] = (pm_work){.session = scheduler->live[i]->session};
    double start = pm_now();
    if (pm_run_step(engine, scheduler->work, n, &computed, &err) == PM_OK) {
        adapt(scheduler, (size_t)(computed - load.writing), (size_t)load.writing, pm_now() - start);
        for (int i = 0; i < n; i++)
            tell_progress(scheduler, scheduler->live[i]);
        return;
    }
    for (int i = n - 1; i >= 0; i--) {
        pm_request *request = scheduler->live[i];
        set_task(request, scheduler->piece);
        int status = pm_run_step(engine, &scheduler->work[i], 1, &computed, &err);
        if (status == PM_OK)
            tell_progress(scheduler, request);
        else
            end(request, status, &err);
    }
}

/* Samples where everything before is known; false when that ended the request. */
static bool advance(pm_request *request)
{
    pm_error err = {0};
    pm_token id;
    double now = pm_now();
    if (request->cancelled) {
        end_cancelled(request);
        return false;
    }
    if (left(request) > 0)
        return true;
    if (!request->read) {
        pm_snapshot_take(request->session);
        request->read = now;
    }
    void *ids = request->ids;
    int status = pm_grow(&ids, &request->cap, request->n + 1, sizeof(pm_token));
    request->ids = ids;
    if (status != PM_OK)
        pm_fail_memory(&err);
    else
        status = pm_generation_next(&request->generation, pm_session_logits(request->session), &id, &err);
    if (status == PM_OK) {
        if (id >= 0) { /* an answer may end without a token */
            request->ids[request->n++] = id;
            request->scheduler->info.sampled++;
        }
        if (!request->first)
            request->first = now;
        if (!request->cancelled)
            pm_generation_tell(&request->generation, &request->options);
        deliver(request);
    }
    if (status == PM_OK && !request->generation.done)
        status = pm_session_reserve(request->session, 1, &err);
    if (status == PM_OK && !request->generation.done)
        return true;
    end(request, status, &err);
    return false;
}

bool pm_scheduler_step(pm_scheduler *scheduler)
{
    bool any = scheduler->queue || scheduler->n_live || scheduler->fetch;
    pm_request *next;
    for (pm_request *request = scheduler->queue; request; request = next) {
        next = request->next;
        if (request->cancelled)
            end_cancelled(request);
    }
    for (int i = scheduler->n_live; i-- > 0;)
        if (scheduler->live[i]->cancelled)
            end_cancelled(scheduler->live[i]);
    go_on_fetching(scheduler);
    admit(scheduler);
    struct load load = prepare(scheduler);
    if (scheduler->n_live)
        compute(scheduler, load);
    for (int i = 0; i < scheduler->n_live;)
        i += advance(scheduler->live[i]);
    bury(scheduler);
    return any;
}
