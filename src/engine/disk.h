/* Kept timelines on disk: files of saved sessions in a folder that several processes may share.
 *
 *     KEY-IDS.timeline          a saved session (saved.c). KEY is a hash of whose it is, IDS one of its tokens. Its
 * note is "timeline", then the positions of its snapshots, u64 each KEY-IDS.timeline.XXXXXX   one that is being written
 *     lock                      held (flock) by who writes or removes
 *
 * A file is written under its temporary name, synced and renamed, so that whoever looks sees whole files only; what is
 * not whole after all, or another model's, is left alone. All files with such names together, other models' too, stay
 * within a bound; those that save least for their size go first (as in pasts.c). What the files begin with, tokens and
 * positions, is kept in memory.
 *
 * Files are written by a thread of its own, which reads sessions that nobody changes. A session that it may be reading
 * must not be changed or freed before pm_disk_release or pm_disk_forget. All functions are for the engine's thread. */
#ifndef PM_DISK_H
#define PM_DISK_H

#include "engine/session.h"

typedef struct pm_disk pm_disk;

/* Makes the folder where there is none, and looks at what is in it. */
int pm_disk_open(pm_disk **out, pm_engine *engine, const char *dir, uint64_t limit, pm_error *err);

uint64_t pm_disk_limit(const pm_disk *disk);

/* Waits until what was offered is written, for so many seconds at most: what then is not, stays unwritten. NULL is
 * allowed. */
void pm_disk_close(pm_disk *disk, double seconds);

/* ---- writing ---- */

/* Has a session written that the files do not hold: `now`, because it is about to go, or in its turn. Only when some of
 * it, or much of it, is new, so that the same tokens are not written again and again. Writing in turn takes a quarter
 * of the time, at most. */
void pm_disk_offer(pm_disk *disk, const pm_session *session, bool now);

/* True while a session waits to be written or is being read. */
bool pm_disk_busy(pm_disk *disk, const pm_session *session);

/* Waits for that to end, for `seconds` at most. */
void pm_disk_wait(pm_disk *disk, const pm_session *session, double seconds);

/* Takes back an offer; false when the session is being read. */
bool pm_disk_release(pm_disk *disk, const pm_session *session);

/* The same, but a session that is being read is not read any further. */
void pm_disk_forget(pm_disk *disk, const pm_session *session);

/* ---- reading ---- */

typedef struct pm_disk_hit {
    char name[64];
    size_t kept;    /* of the tokens asked for */
    size_t length;  /* of its own */
    int snapshots;  /* of its own */
    uint64_t bytes; /* of the file */
    double seconds; /* that reading it will take, about */
} pm_disk_hit;

/* The file that keeps most of ids[0..n); false when none keeps anything. */
bool pm_disk_find(pm_disk *disk, const pm_token *ids, size_t n, pm_disk_hit *out);

/* A file that is being read, in pieces. */
typedef struct pm_fetch pm_fetch;

/* A file that has vanished or is damaged is an error, here or later, and is not found again. */
int pm_fetch_begin(pm_fetch **out, pm_disk *disk, const pm_disk_hit *hit, pm_error *err);

/* Reads for so many seconds, about. *out becomes the session when it is complete, and stays as it was before. */
int pm_fetch_go_on(pm_fetch *fetch, double seconds, pm_session **out, pm_error *err);

/* NULL is allowed. */
void pm_fetch_free(pm_fetch *fetch);

/* Fills in what the files are and what became of them. */
void pm_disk_describe(pm_disk *disk, pm_scheduler_info *out);

#endif
