/* Private to disk*.c: what is known of the files, and what the two threads share. */
#ifndef PM_DISK_INDEX_H
#define PM_DISK_INDEX_H

#include "engine/disk.h"
#include "engine/saved.h"

#include <pthread.h>

#define PM_DISK_LOCK       "lock"
#define PM_DISK_NOTE_MAGIC "timeline"
enum { PM_DISK_NOTE = sizeof(PM_DISK_NOTE_MAGIC) - 1 };

typedef enum pm_entry_kind {
    PM_ENTRY_OWN,
    PM_ENTRY_OTHER,   /* another model's timeline */
    PM_ENTRY_DAMAGED, /* has a timeline's name and is none */
    PM_ENTRY_STRANGE  /* nothing of ours: neither counted nor removed */
} pm_entry_kind;

typedef struct pm_entry {
    char *name;
    pm_entry_kind kind;
    uint64_t bytes;
    double gain, value; /* tokens that it saves, for its bytes; what keeping it is worth: the lowest goes first */
    double used;        /* when that was last told, in seconds of the file system; of equal values the older goes */
    bool seen;          /* by the scan that is running */
    /* own: */
    pm_token *ids; /* [length] */
    size_t length;
    bool has_logits;
    size_t *positions; /* of snapshots, [n_positions] */
    int n_positions;
} pm_entry;

typedef struct pm_offer {
    const pm_session *session;
    bool now;
} pm_offer;

struct pm_disk {
    pm_engine *engine;
    pm_owner owner;
    char *dir;
    uint64_t limit;
    pthread_t thread;
    bool started;
    _Atomic bool stop; /* what is being read is not wanted any more */

    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t work, done;
    pm_offer *offers; /* in order */
    size_t n_offers, cap_offers;
    const pm_session *reading; /* being written; NULL when it is not needed any more */
    bool closing, ended;       /* it is to end when all is written; it has */
    double rest_until;
    pm_entry *entries;
    size_t n, cap;
    uint64_t bytes; /* of all entries but strange ones */
    double level;   /* the value of the last one that went: what comes later is worth so much more */
    double read_rate;
    uint64_t ignored, loads, failed;
};

/* What the file of a session will be. Copies what it needs; PM_ERR_MEMORY. */
int pm_entry_of(const pm_disk *disk, const pm_session *session, size_t note_len, pm_entry *out);
void pm_entry_free(pm_entry *entry);

/* ---- called without the lock, by one thread at a time ---- */

/* Looks at the folder: new files, vanished ones, those that others used. With `locked` files that somebody did not
 * write to the end are removed. */
void pm_index_scan(pm_disk *disk, bool locked);

/* Removes files until there is room for the entry (may be NULL); false when there never will be. */
bool pm_index_room(pm_disk *disk, const pm_entry *entry);

/* The entry's file is there: takes over what it holds, and removes files that it has all of. */
void pm_index_written(pm_disk *disk, pm_entry *entry);

void pm_index_free(pm_disk *disk);

/* ---- called with the lock ---- */

size_t pm_index_keeps(const pm_disk *disk, const pm_token *ids, size_t n);
bool pm_index_find(const pm_disk *disk, const pm_token *ids, size_t n, pm_disk_hit *out);
void pm_index_loaded(pm_disk *disk, const char *name, int status);
void pm_index_describe(const pm_disk *disk, pm_scheduler_info *out);

#endif
