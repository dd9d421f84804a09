/* The thread that writes, and what the engine's thread asks of it. The lock is held for moments only, never while a
 * file is read or written. */
#include "engine/disk_index.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    WORTH_IT =
        64,    /* tokens that must be new for a timeline to be written at all. What is written again with them may */
    SHARE = 8, /* be so many times as much in turn, */
    LAST_SHARE = 64,   /* and so many when it is about to go */
    WAITING = 4,       /* offers in turn that wait, at most */
    REST = 3,          /* times as long as the last file took are waited before the next */
    OPEN_PATIENCE = 5, /* seconds for another process to let go of the folder */
    WRITE_PATIENCE = 20
};

/* ---- time ---- */

static struct timespec deadline_of(double when)
{
    return (struct timespec){.tv_sec = (time_t)when, .tv_nsec = (long)((when - (double)(time_t)when) * 1e9)};
}

/* ---- the writing thread ---- */

/* Locks the folder against other processes that write or remove: *fd, -1 where that is not possible and there is only
 * this one. False when another keeps the lock for so many seconds, or until what is to be written is not wanted. */
static bool lock_folder(const pm_disk *disk, double seconds, int *fd)
{
    pm_buf path = {0};
    double end = pm_now() + seconds;
    *fd = -1;
    if (pm_buf_printf(&path, "%s/%s", disk->dir, PM_DISK_LOCK) == PM_OK)
        *fd = open(path.data, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    pm_buf_free(&path);
    while (*fd >= 0 && flock(*fd, LOCK_EX | LOCK_NB) != 0) {
        bool taken = errno == EWOULDBLOCK || errno == EINTR;
        if (taken && pm_now() < end && !atomic_load(&disk->stop)) {
            nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
            continue;
        }
        close(*fd);
        *fd = -1;
        return !taken;
    }
    return true;
}

/* The note of a session's file, malloc'ed; NULL when out of memory. */
static char *make_note(const pm_session *session, size_t *len)
{
    *len = PM_DISK_NOTE + 8 * (size_t)session->n_snapshots;
    char *note = malloc(*len);
    if (!note)
        return NULL;
    memcpy(note, PM_DISK_NOTE_MAGIC, PM_DISK_NOTE);
    for (int i = 0; i < session->n_snapshots; i++) {
        uint64_t pos = session->snapshots[i]->pos;
        memcpy(note + PM_DISK_NOTE + 8 * (size_t)i, &pos, 8);
    }
    return note;
}

/* The session is not needed any more. */
static void end_reading(pm_disk *disk)
{
    pthread_mutex_lock(&disk->lock);
    disk->reading = NULL;
    pthread_cond_broadcast(&disk->done);
    pthread_mutex_unlock(&disk->lock);
}

/* Writes a session's file; the folder is locked. */
static int write_file(pm_disk *disk, const pm_session *session, pm_error *err)
{
    pm_buf path = {0};
    pm_writer writer = {.fd = -1};
    pm_entry entry = {0};
    size_t note_len;
    char *note = make_note(session, &note_len);
    int status = note ? pm_entry_of(disk, session, note_len, &entry) : PM_ERR_MEMORY;
    if (status == PM_OK)
        status = pm_buf_printf(&path, "%s/%s", disk->dir, entry.name);
    if (status != PM_OK)
        pm_fail_memory(err);
    if (status == PM_OK && !pm_index_room(disk, &entry))
        status = pm_fail(err, PM_ERR_LIMIT, "%s: is larger than all files together may be", path.data);
    if (status == PM_OK)
        status = pm_writer_open(&writer, path.data, err);
    if (status == PM_OK)
        status = pm_saved_put(session, &disk->owner, note, note_len, &writer, &disk->stop, err);
    end_reading(disk);
    if (status == PM_OK)
        status = pm_writer_commit(&writer, err);
    pm_writer_abandon(&writer);
    if (status == PM_OK)
        pm_index_written(disk, &entry);
    pm_entry_free(&entry);
    pm_buf_free(&path);
    free(note);
    return status;
}

static void store(pm_disk *disk, const pm_session *session)
{
    pm_error err;
    int folder, status = PM_ERR_IO;
    if (lock_folder(disk, WRITE_PATIENCE, &folder)) {
        pm_index_scan(disk, folder >= 0);
        status = write_file(disk, session, &err);
    } else {
        end_reading(disk);
    }
    if (folder >= 0)
        close(folder);
    pthread_mutex_lock(&disk->lock);
    disk->failed += status != PM_OK && status != PM_ERR_CANCELLED;
    pthread_mutex_unlock(&disk->lock);
}

/* Which offer is next: what is urgent, else the oldest when it is time; -1: none yet. */
static int next_offer(const pm_disk *disk)
{
    for (size_t i = 0; i < disk->n_offers; i++)
        if (disk->offers[i].now)
            return (int)i;
    return disk->n_offers && (disk->closing || pm_now() >= disk->rest_until) ? 0 : -1;
}

static void take_offer(pm_disk *disk, size_t i)
{
    memmove(&disk->offers[i], &disk->offers[i + 1], (--disk->n_offers - i) * sizeof(*disk->offers));
}

static void *run(void *argument)
{
    pm_disk *disk = argument;
    pthread_mutex_lock(&disk->lock);
    while (!disk->closing || disk->n_offers) {
        int next = next_offer(disk);
        if (next < 0 && disk->n_offers) {
            struct timespec until = deadline_of(disk->rest_until);
            pthread_cond_timedwait(&disk->work, &disk->lock, &until);
        } else if (next < 0) {
            pthread_cond_wait(&disk->work, &disk->lock);
        } else {
            const pm_session *session = disk->offers[next].session;
            double start = pm_now();
            take_offer(disk, (size_t)next);
            disk->reading = session;
            atomic_store(&disk->stop, false);
            pthread_mutex_unlock(&disk->lock);
            store(disk, session);
            pthread_mutex_lock(&disk->lock);
            disk->rest_until = pm_now() + REST * (pm_now() - start);
        }
    }
    disk->ended = true;
    pthread_cond_broadcast(&disk->done);
    pthread_mutex_unlock(&disk->lock);
    return NULL;
}

/* ---- offers ---- */

static ptrdiff_t find_offer(const pm_disk *disk, const pm_session *session)
{
    for (size_t i = 0; i < disk->n_offers; i++)
        if (disk->offers[i].session == session)
            return (ptrdiff_t)i;
    return -1;
}

/* Tokens of a session that no file keeps, nor will when what has been offered is written. */
static size_t count_new(const pm_disk *disk, const pm_session *session)
{
    size_t n = session->length, most = pm_index_keeps(disk, session->ids, n);
    for (size_t i = 0; i <= disk->n_offers; i++) {
        const pm_session *other = i < disk->n_offers ? disk->offers[i].session : disk->reading;
        size_t keeps = other ? pm_session_keeps(other, session->ids, n) : 0;
        most = keeps > most ? keeps : most;
    }
    return n - most;
}

void pm_disk_offer(pm_disk *disk, const pm_session *session, bool now)
{
    uint64_t bytes;
    size_t note = PM_DISK_NOTE + 8 * (size_t)session->n_snapshots;
    if (session->length < WORTH_IT || !pm_saved_bytes(session, note, &bytes) || bytes > disk->limit)
        return;
    pthread_mutex_lock(&disk->lock);
    ptrdiff_t known = find_offer(disk, session);
    if (known >= 0) {
        disk->offers[known].now |= now;
    } else if (disk->reading != session && (now || disk->n_offers < WAITING)) {
        size_t fresh = count_new(disk, session);
        void *offers = disk->offers;
        if (fresh >= WORTH_IT && fresh >= session->length / (now ? LAST_SHARE : SHARE) &&
            pm_grow(&offers, &disk->cap_offers, disk->n_offers + 1, sizeof(*disk->offers)) == PM_OK) {
            disk->offers = offers;
            disk->offers[disk->n_offers++] = (pm_offer){session, now};
        }
    }
    pthread_cond_signal(&disk->work);
    pthread_mutex_unlock(&disk->lock);
}

bool pm_disk_busy(pm_disk *disk, const pm_session *session)
{
    pthread_mutex_lock(&disk->lock);
    bool busy = disk->reading == session || find_offer(disk, session) >= 0;
    pthread_mutex_unlock(&disk->lock);
    return busy;
}

void pm_disk_wait(pm_disk *disk, const pm_session *session, double seconds)
{
    struct timespec until = deadline_of(pm_now() + seconds);
    int status = 0;
    pthread_mutex_lock(&disk->lock);
    while (status == 0 && (disk->reading == session || find_offer(disk, session) >= 0))
        status = pthread_cond_timedwait(&disk->done, &disk->lock, &until);
    pthread_mutex_unlock(&disk->lock);
}

bool pm_disk_release(pm_disk *disk, const pm_session *session)
{
    pthread_mutex_lock(&disk->lock);
    ptrdiff_t known = find_offer(disk, session);
    if (known >= 0)
        take_offer(disk, (size_t)known);
    bool free = disk->reading != session;
    pthread_mutex_unlock(&disk->lock);
    return free;
}

void pm_disk_forget(pm_disk *disk, const pm_session *session)
{
    pthread_mutex_lock(&disk->lock);
    ptrdiff_t known = find_offer(disk, session);
    if (known >= 0)
        take_offer(disk, (size_t)known);
    if (disk->reading == session)
        atomic_store(&disk->stop, true);
    while (disk->reading == session)
        pthread_cond_wait(&disk->done, &disk->lock);
    pthread_mutex_unlock(&disk->lock);
}

/* ---- reading ---- */

bool pm_disk_find(pm_disk *disk, const pm_token *ids, size_t n, pm_disk_hit *out)
{
    pthread_mutex_lock(&disk->lock);
    bool found = pm_index_find(disk, ids, n, out);
    if (found)
        out->seconds = (double)out->bytes / disk->read_rate;
    pthread_mutex_unlock(&disk->lock);
    return found;
}

struct pm_fetch {
    pm_disk *disk;
    pm_disk_hit hit;
    char *path;
    pm_loading *loading;
    double seconds; /* so far */
};

/* Tells the index what became of a file. */
static void note_end(pm_fetch *fetch, int status)
{
    pm_disk *disk = fetch->disk;
    if (status == PM_OK)
        (void)utimensat(AT_FDCWD, fetch->path, NULL, 0); /* so that other processes know that it is of use */
    pthread_mutex_lock(&disk->lock);
    pm_index_loaded(disk, fetch->hit.name, status);
    if (status == PM_OK) {
        disk->loads++;
        disk->read_rate = (disk->read_rate + (double)fetch->hit.bytes / (fetch->seconds + 1e-6)) / 2;
    }
    pthread_mutex_unlock(&disk->lock);
}

int pm_fetch_begin(pm_fetch **out, pm_disk *disk, const pm_disk_hit *hit, pm_error *err)
{
    pm_buf path = {0};
    pm_fetch *fetch = calloc(1, sizeof(*fetch));
    if (!fetch || pm_buf_printf(&path, "%s/%s", disk->dir, hit->name) != PM_OK) {
        free(fetch);
        return pm_fail_memory(err);
    }
    *fetch = (pm_fetch){.disk = disk, .hit = *hit, .path = path.data};
    double start = pm_now();
    int status = pm_loading_begin(&fetch->loading, disk->engine, &disk->owner, fetch->path, err);
    fetch->seconds = pm_now() - start;
    if (status == PM_OK) {
        *out = fetch;
        return PM_OK;
    }
    note_end(fetch, status);
    pm_fetch_free(fetch);
    return status;
}

int pm_fetch_go_on(pm_fetch *fetch, double seconds, pm_session **out, pm_error *err)
{
    pm_session *session = NULL;
    double start = pm_now();
    int status = pm_loading_go_on(fetch->loading, seconds, &session, err);
    fetch->seconds += pm_now() - start;
    if (session)
        *out = session;
    if (session || status != PM_OK)
        note_end(fetch, status);
    return status;
}

void pm_fetch_free(pm_fetch *fetch)
{
    if (!fetch)
        return;
    pm_loading_free(fetch->loading);
    free(fetch->path);
    free(fetch);
}

void pm_disk_describe(pm_disk *disk, pm_scheduler_info *out)
{
    pthread_mutex_lock(&disk->lock);
    pm_index_describe(disk, out);
    out->fetched = disk->loads;
    out->disk_failed = disk->failed;
    pthread_mutex_unlock(&disk->lock);
}

/* ---- life ---- */

static int open_folder(pm_disk *disk, const char *dir, pm_error *err)
{
    struct stat status;
    if (mkdir(dir, 0700) != 0 && errno != EEXIST)
        return pm_fail(err, PM_ERR_IO, "%s: cannot be made: %s", dir, strerror(errno));
    if (stat(dir, &status) != 0 || !S_ISDIR(status.st_mode))
        return pm_fail(err, PM_ERR_IO, "%s: is not a folder", dir);
    if (access(dir, W_OK | X_OK) != 0)
        return pm_fail(err, PM_ERR_IO, "%s: cannot be written: %s", dir, strerror(errno));
    disk->dir = strdup(dir);
    return disk->dir ? PM_OK : pm_fail_memory(err);
}

static int start_thread(pm_disk *disk, pm_error *err)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&disk->lock, NULL);
    pthread_cond_init(&disk->work, &monotonic);
    pthread_cond_init(&disk->done, &monotonic);
    pthread_condattr_destroy(&monotonic);
    int folder;
    bool ours = lock_folder(disk, OPEN_PATIENCE, &folder);
    pm_index_scan(disk, folder >= 0);
    if (ours)
        pm_index_room(disk, NULL);
    if (folder >= 0)
        close(folder);
    disk->started = pthread_create(&disk->thread, NULL, run, disk) == 0;
    return disk->started ? PM_OK : pm_fail(err, PM_ERR_MEMORY, "the thread that writes timelines cannot be started");
}

int pm_disk_open(pm_disk **out, pm_engine *engine, const char *dir, uint64_t limit, pm_error *err)
{
    enum { FIRST_RATE = 300000000 }; /* bytes a second, until it has been measured */
    pm_disk *disk = calloc(1, sizeof(*disk));
    if (!disk)
        return pm_fail_memory(err);
    disk->engine = engine;
    disk->limit = limit;
    disk->read_rate = FIRST_RATE;
    int status = pm_owner_of(engine, &disk->owner, err);
    if (status == PM_OK)
        status = open_folder(disk, dir, err);
    if (status == PM_OK)
        status = start_thread(disk, err);
    if (status == PM_OK)
        *out = disk;
    else
        pm_disk_close(disk, 0);
    return status;
}

uint64_t pm_disk_limit(const pm_disk *disk)
{
    return disk->limit;
}

void pm_disk_close(pm_disk *disk, double seconds)
{
    if (!disk)
        return;
    if (disk->started) {
        struct timespec until = deadline_of(pm_now() + seconds);
        pthread_mutex_lock(&disk->lock);
        disk->closing = true;
        pthread_cond_signal(&disk->work);
        while (!disk->ended && pthread_cond_timedwait(&disk->done, &disk->lock, &until) == 0)
            ;
        disk->n_offers = 0;
        atomic_store(&disk->stop, true);
        pthread_mutex_unlock(&disk->lock);
        pthread_join(disk->thread, NULL);
        pthread_mutex_destroy(&disk->lock);
        pthread_cond_destroy(&disk->work);
        pthread_cond_destroy(&disk->done);
    }
    pm_index_free(disk);
    free(disk->offers);
    free(disk->dir);
    free(disk);
}
