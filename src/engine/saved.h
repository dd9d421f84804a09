/* Saved sessions in parts, for who keeps many of them (saved.c has the layout of the file). */
#ifndef PM_SAVED_H
#define PM_SAVED_H

#include "engine/session.h"
#include "files/stream.h"

#include <stdatomic.h>

/* Whose sessions: what a file and an engine must have in common. */
typedef struct pm_owner {
    uint32_t kv_type, precision;
    char model_type[64];
    uint64_t checkpoint, layout; /* hashes: of config and tensors; of what a session keeps */
} pm_owner;

int pm_owner_of(const pm_engine *engine, pm_owner *out, pm_error *err);

/* Bytes of the file of such a session; false when they are beyond counting. */
bool pm_saved_bytes(const pm_session *session, size_t note_len, uint64_t *out);

/* Writes all of the file but its end, which is pm_writer_commit's. The session is only read: another thread than the
 * engine's may do this with one that nobody changes meanwhile. PM_ERR_CANCELLED soon after *stop (may be NULL) has
 * become true. */
int pm_saved_put(const pm_session *session, const pm_owner *owner, const void *note, size_t note_len, pm_writer *writer,
                 const _Atomic bool *stop, pm_error *err);

/* A session that is being read. */
typedef struct pm_loading pm_loading;

int pm_loading_begin(pm_loading **out, pm_engine *engine, const pm_owner *owner, const char *path, pm_error *err);

/* Goes on for so many seconds, about; 0: to the end. *out becomes the session when it is complete, and stays as it was
 * before. */
int pm_loading_go_on(pm_loading *loading, double seconds, pm_session **out, pm_error *err);

/* NULL is allowed. */
void pm_loading_free(pm_loading *loading);

/* What the beginning of a file says. Its header agrees with itself and with the file's length; nothing else has been
 * checked. */
typedef struct pm_saved_head {
    bool own; /* of this owner; false: the fields below but for `tokens` are empty */
    uint64_t size;
    size_t tokens;
    pm_token *ids; /* [tokens], malloc'ed */
    char *note;    /* malloc'ed */
    size_t note_len;
    bool has_logits;
    int snapshots;
} pm_saved_head;

int pm_saved_peek(const pm_engine *engine, const pm_owner *owner, const char *path, pm_saved_head *out, pm_error *err);

#endif
