#include "engine/disk_index.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define SUFFIX ".timeline"
enum { DIGITS = 16, NAME = 2 * DIGITS + 1 + sizeof(SUFFIX) - 1, RANDOM = 7 /* ".XXXXXX" */ };

/* ---- names ---- */

static uint64_t hash_of(const void *data, size_t n)
{
    pm_hash hash;
    pm_hash_start(&hash);
    pm_hash_add(&hash, data, n);
    return pm_hash_value(&hash);
}

/* True for the name of a timeline with `more` characters after it. */
static bool is_timeline(const char *name, size_t more)
{
    static const char digits[] = "0123456789abcdef";
    return strlen(name) == NAME + more && strspn(name, digits) == DIGITS && name[DIGITS] == '-' &&
           strspn(name + DIGITS + 1, digits) == DIGITS && strncmp(name + 2 * DIGITS + 1, SUFFIX, strlen(SUFFIX)) == 0 &&
           (!more || name[NAME] == '.');
}

/* DIR/NAME, malloc'ed; NULL when out of memory. */
static char *path_of(const pm_disk *disk, const char *name)
{
    pm_buf path = {0};
    if (pm_buf_printf(&path, "%s/%s", disk->dir, name) != PM_OK)
        pm_buf_free(&path);
    return path.data;
}

/* ---- entries ---- */

void pm_entry_free(pm_entry *entry)
{
    free(entry->name);
    free(entry->ids);
    free(entry->positions);
    *entry = (pm_entry){0};
}

static double wall_clock(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

int pm_entry_of(const pm_disk *disk, const pm_session *session, size_t note_len, pm_entry *out)
{
    char name[NAME + 1];
    pm_entry entry = {.length = session->length,
                      .has_logits = session->has_logits,
                      .n_positions = session->n_snapshots,
                      .used = wall_clock()};
    snprintf(name, sizeof(name), "%016llx-%016llx" SUFFIX,
             (unsigned long long)hash_of(&disk->owner, sizeof(disk->owner)),
             (unsigned long long)hash_of(session->ids, session->length * sizeof(pm_token)));
    entry.name = strdup(name);
    entry.ids = malloc(session->length * sizeof(pm_token) + 1);
    entry.positions = calloc((size_t)session->n_snapshots + 1, sizeof(size_t));
    if (!entry.name || !entry.ids || !entry.positions || !pm_saved_bytes(session, note_len, &entry.bytes)) {
        pm_entry_free(&entry);
        return PM_ERR_MEMORY;
    }
    memcpy(entry.ids, session->ids, session->length * sizeof(pm_token));
    for (int i = 0; i < session->n_snapshots; i++)
        entry.positions[i] = session->snapshots[i]->pos;
    *out = entry;
    return PM_OK;
}

static size_t common(const pm_entry *entry, const pm_token *ids, size_t n)
{
    size_t p = 0, end = n < entry->length ? n : entry->length;
    while (p < end && ids[p] == entry->ids[p])
        p++;
    return p;
}

static size_t keeps(const pm_disk *disk, const pm_entry *entry, const pm_token *ids, size_t n)
{
    if (entry->kind != PM_ENTRY_OWN || entry->length > (size_t)disk->engine->ctx)
        return 0;
    pm_timeline timeline = {entry->length, entry->has_logits, entry->positions, entry->n_positions};
    return pm_timeline_keeps(disk->engine, &timeline, common(entry, ids, n), n);
}

static void appraise(const pm_disk *disk, pm_entry *entry, double when)
{
    entry->value = disk->level + entry->gain;
    entry->used = when;
}

static void drop(pm_disk *disk, size_t i)
{
    disk->bytes -= disk->entries[i].kind == PM_ENTRY_STRANGE ? 0 : disk->entries[i].bytes;
    pm_entry_free(&disk->entries[i]);
    memmove(&disk->entries[i], &disk->entries[i + 1], (--disk->n - i) * sizeof(*disk->entries));
}

/* Forgets an entry and removes its file, which takes a while and is done without the lock. */
static void remove_entry(pm_disk *disk, pm_entry *entry)
{
    char *name = entry->name;
    entry->name = NULL;
    drop(disk, (size_t)(entry - disk->entries));
    pthread_mutex_unlock(&disk->lock);
    char *path = path_of(disk, name);
    if (path)
        (void)unlink(path);
    free(path);
    free(name);
    pthread_mutex_lock(&disk->lock);
}

static pm_entry *find_entry(const pm_disk *disk, const char *name)
{
    for (size_t i = 0; i < disk->n; i++)
        if (strcmp(disk->entries[i].name, name) == 0)
            return &disk->entries[i];
    return NULL;
}

/* Takes over an entry, in the place of one with its name. Out of memory, it is forgotten. */
static void add(pm_disk *disk, pm_entry *entry)
{
    pm_entry *old = find_entry(disk, entry->name);
    if (old)
        drop(disk, (size_t)(old - disk->entries));
    void *list = disk->entries;
    int status = pm_grow(&list, &disk->cap, disk->n + 1, sizeof(*disk->entries));
    disk->entries = list;
    if (status != PM_OK) {
        pm_entry_free(entry);
        return;
    }
    appraise(disk, entry, entry->used);
    disk->ignored += entry->kind != PM_ENTRY_OWN;
    disk->bytes += entry->kind == PM_ENTRY_STRANGE ? 0 : entry->bytes;
    disk->entries[disk->n++] = *entry;
    *entry = (pm_entry){0};
}

/* ---- the folder ---- */

/* What the note of a file says: the positions of snapshots, ascending and within the timeline. */
static bool read_positions(const pm_saved_head *head, pm_entry *entry)
{
    size_t before = 0, n = (size_t)head->snapshots;
    if (head->note_len != PM_DISK_NOTE + 8 * n || memcmp(head->note, PM_DISK_NOTE_MAGIC, PM_DISK_NOTE) != 0)
        return false;
    entry->positions = calloc(n + 1, sizeof(size_t));
    for (size_t i = 0; entry->positions && i < n; i++) {
        uint64_t pos;
        memcpy(&pos, head->note + PM_DISK_NOTE + 8 * i, 8);
        if (pos <= before || pos > head->tokens)
            return false;
        before = entry->positions[i] = (size_t)pos;
    }
    entry->n_positions = head->snapshots;
    return entry->positions != NULL;
}

/* Looks into a file of a timeline's name. */
static void look_into(const pm_disk *disk, const char *path, pm_entry *entry)
{
    pm_saved_head head = {0};
    entry->kind = PM_ENTRY_DAMAGED;
    if (pm_saved_peek(disk->engine, &disk->owner, path, &head, NULL) != PM_OK)
        return;
    if (!head.own) {
        entry->kind = PM_ENTRY_OTHER;
    } else if (read_positions(&head, entry)) {
        entry->kind = PM_ENTRY_OWN;
        entry->ids = head.ids;
        entry->length = head.tokens;
        entry->has_logits = head.has_logits;
        head.ids = NULL;
    }
    entry->gain = entry->kind == PM_ENTRY_DAMAGED ? -1e300 : (double)head.tokens / (double)head.size;
    free(head.ids);
    free(head.note);
}

/* True when the file is known as it is. One that was used meanwhile, by whomever, is worth more. */
static bool recognise(pm_disk *disk, const char *name, uint64_t bytes, double when)
{
    pthread_mutex_lock(&disk->lock);
    pm_entry *entry = find_entry(disk, name);
    bool known = entry && entry->bytes == bytes;
    if (known) {
        entry->seen = true;
        if (when > entry->used)
            appraise(disk, entry, when);
    }
    pthread_mutex_unlock(&disk->lock);
    return known;
}

static void see(pm_disk *disk, const char *name, bool locked)
{
    struct stat status;
    pm_entry entry = {.name = strdup(name), .seen = true};
    char *path = path_of(disk, name);
    if (path && entry.name && is_timeline(name, RANDOM)) {
        if (locked)
            (void)unlink(path); /* who holds the lock is the only one to write */
    } else if (path && entry.name && lstat(path, &status) == 0) {
        bool timeline = S_ISREG(status.st_mode) && is_timeline(name, 0);
        entry.bytes = timeline ? (uint64_t)status.st_size : 0;
        entry.used = (double)status.st_mtim.tv_sec + 1e-9 * (double)status.st_mtim.tv_nsec;
        if (!recognise(disk, name, entry.bytes, entry.used)) {
            entry.kind = PM_ENTRY_STRANGE;
            if (timeline)
                look_into(disk, path, &entry);
            pthread_mutex_lock(&disk->lock);
            add(disk, &entry);
            pthread_mutex_unlock(&disk->lock);
        }
    }
    pm_entry_free(&entry);
    free(path);
}

void pm_index_scan(pm_disk *disk, bool locked)
{
    DIR *folder = opendir(disk->dir);
    pthread_mutex_lock(&disk->lock);
    for (size_t i = 0; i < disk->n; i++)
        disk->entries[i].seen = false;
    pthread_mutex_unlock(&disk->lock);
    for (struct dirent *item; folder && (item = readdir(folder));)
        if (strcmp(item->d_name, ".") != 0 && strcmp(item->d_name, "..") != 0 &&
            strcmp(item->d_name, PM_DISK_LOCK) != 0)
            see(disk, item->d_name, locked);
    if (folder)
        closedir(folder);
    pthread_mutex_lock(&disk->lock);
    for (size_t i = disk->n; i-- > 0;)
        if (!disk->entries[i].seen)
            drop(disk, i);
    pthread_mutex_unlock(&disk->lock);
}

/* True when the file `entry` has all that `old` has. */
static bool replaces(const pm_entry *entry, const pm_entry *old)
{
    return old->kind == PM_ENTRY_OWN && old->length <= entry->length &&
           common(entry, old->ids, old->length) == old->length;
}

/* The file to remove next: one that the new one replaces, else the one that is worth least. */
static pm_entry *victim(const pm_disk *disk, const pm_entry *entry)
{
    pm_entry *least = NULL;
    for (size_t i = 0; i < disk->n; i++) {
        pm_entry *e = &disk->entries[i];
        if (e->kind == PM_ENTRY_STRANGE)
            continue;
        if (entry && replaces(entry, e))
            return e;
        if (!least || e->value < least->value || (e->value == least->value && e->used < least->used))
            least = e;
    }
    return least;
}

bool pm_index_room(pm_disk *disk, const pm_entry *entry)
{
    uint64_t bytes = entry ? entry->bytes : 0;
    if (bytes > disk->limit)
        return false;
    pthread_mutex_lock(&disk->lock);
    for (pm_entry *e; disk->bytes > disk->limit - bytes && (e = victim(disk, entry));) {
        if (e->kind != PM_ENTRY_DAMAGED && e->value > disk->level)
            disk->level = e->value;
        remove_entry(disk, e);
    }
    pthread_mutex_unlock(&disk->lock);
    return true;
}

void pm_index_written(pm_disk *disk, pm_entry *entry)
{
    size_t shared = 0;
    pthread_mutex_lock(&disk->lock);
    for (size_t i = disk->n; i-- > 0;) {
        const pm_entry *old = &disk->entries[i];
        if (strcmp(old->name, entry->name) == 0)
            continue;
        if (replaces(entry, old)) {
            remove_entry(disk, &disk->entries[i]);
            i = i < disk->n ? i : disk->n; /* nothing else changes the list meanwhile, but to make it shorter */
        } else if (old->kind == PM_ENTRY_OWN) {
            size_t p = common(old, entry->ids, entry->length);
            shared = p > shared ? p : shared;
        }
    }
    entry->gain = (double)(entry->length - shared) / (double)entry->bytes;
    entry->seen = true;
    add(disk, entry);
    pthread_mutex_unlock(&disk->lock);
}

void pm_index_free(pm_disk *disk)
{
    while (disk->n)
        drop(disk, disk->n - 1);
    free(disk->entries);
}

/* ---- questions ---- */

size_t pm_index_keeps(const pm_disk *disk, const pm_token *ids, size_t n)
{
    size_t most = 0;
    for (size_t i = 0; i < disk->n; i++) {
        size_t kept = keeps(disk, &disk->entries[i], ids, n);
        most = kept > most ? kept : most;
    }
    return most;
}

bool pm_index_find(const pm_disk *disk, const pm_token *ids, size_t n, pm_disk_hit *out)
{
    const pm_entry *best = NULL;
    size_t most = 0;
    for (size_t i = 0; i < disk->n; i++) {
        const pm_entry *e = &disk->entries[i];
        size_t kept = keeps(disk, e, ids, n);
        if (kept > most || (best && kept == most && e->bytes < best->bytes)) {
            most = kept;
            best = e;
        }
    }
    if (!best)
        return false;
    *out = (pm_disk_hit){.kept = most, .length = best->length, .snapshots = best->n_positions, .bytes = best->bytes};
    snprintf(out->name, sizeof(out->name), "%s", best->name);
    return true;
}

void pm_index_loaded(pm_disk *disk, const char *name, int status)
{
    pm_entry *entry = find_entry(disk, name);
    if (!entry || status == PM_ERR_MEMORY)
        return;
    if (status == PM_OK) {
        appraise(disk, entry, wall_clock());
    } else if (status == PM_ERR_IO) {
        drop(disk, (size_t)(entry - disk->entries)); /* it has gone */
    } else if (entry->kind == PM_ENTRY_OWN) {
        entry->kind = PM_ENTRY_DAMAGED;
        entry->value = entry->gain = -1e300;
        disk->ignored++;
    }
}

void pm_index_describe(const pm_disk *disk, pm_scheduler_info *out)
{
    out->stored = 0;
    for (size_t i = 0; i < disk->n; i++)
        out->stored += disk->entries[i].kind == PM_ENTRY_OWN;
    out->stored_bytes = disk->bytes;
    out->disk_bytes = disk->limit;
    out->disk_ignored = disk->ignored;
}
