#include "files/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files/config.h"

/* The reference implementation's limit on the bytes of a header. */
enum { MAX_HEADER = 100 * 1000 * 1000 };

/* A mapped file. The descriptor stays open, so that a check sees the file that is mapped and not a later one of the
 * same name. */
typedef struct shard {
    const char *path; /* in the arena */
    int fd;
    const char *map; /* MAP_FAILED until mapped */
    size_t size;     /* of the whole file when it was mapped */
    size_t data;     /* where the data begins */
} shard;

struct pm_checkpoint {
    pm_arena arena; /* paths and names */
    shard *shards;
    size_t n_shards, cap_shards;
    pm_stored *tensors; /* ascending by name once open */
    size_t n, cap;
    uint64_t bytes;
};

/* What the index says; all NULL when there is only the one file. */
typedef struct shard_index {
    char *path;
    json_t *root;
    const json_t *weight_map; /* tensor name -> file name */
} shard_index;

static const struct {
    const char *name;
    size_t size;
} dtypes[PM_DTYPES] = {
    [PM_F32] = {"F32", 4},         [PM_F16] = {"F16", 2},         [PM_BF16] = {"BF16", 2},
    [PM_F8_E4M3] = {"F8_E4M3", 1}, [PM_F8_E5M2] = {"F8_E5M2", 1}, [PM_F8_E8M0] = {"F8_E8M0", 1},
    [PM_U8] = {"U8", 1},           [PM_I8] = {"I8", 1},           [PM_U16] = {"U16", 2},
    [PM_I16] = {"I16", 2},         [PM_U32] = {"U32", 4},         [PM_I32] = {"I32", 4},
    [PM_U64] = {"U64", 8},         [PM_I64] = {"I64", 8},         [PM_BOOL] = {"BOOL", 1},
};

size_t pm_dtype_size(pm_dtype dtype)
{
    return dtypes[dtype].size;
}

const char *pm_dtype_name(pm_dtype dtype)
{
    return dtypes[dtype].name;
}

/* ---- one file ---- */

/* Reads exactly n bytes at `offset`. The header goes through here and not through the mapping, so that a file that
 * shrinks meanwhile is an error. */
static int read_at(const shard *s, void *to, size_t n, size_t offset, pm_error *err)
{
    for (size_t done = 0; done < n;) {
        ssize_t got = pread(s->fd, (char *)to + done, n - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return pm_fail(err, PM_ERR_IO, "cannot read %s: %s", s->path, got ? strerror(errno) : "it became shorter");
        done += (size_t)got;
    }
    return PM_OK;
}

/* Opens the file and learns its size. O_NONBLOCK keeps a FIFO from blocking here; regular files do not heed it. */
static int open_file(shard *s, pm_error *err)
{
    struct stat st;
    s->fd = open(s->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (s->fd < 0 || fstat(s->fd, &st) != 0)
        return pm_fail(err, PM_ERR_IO, "cannot open %s: %s", s->path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return pm_fail(err, PM_ERR_IO, "%s is not a regular file", s->path);
    if ((uint64_t)st.st_size > SIZE_MAX)
        return pm_fail(err, PM_ERR_MEMORY, "%s is too large for the address space", s->path);
    s->size = (size_t)st.st_size;
    return PM_OK;
}

/* Reads and parses the header: eight bytes of length, least significant first, then a JSON object of that length. */
static int read_header(shard *s, json_t **out, pm_error *err)
{
    unsigned char prefix[8];
    char *text = NULL;
    json_t *root = NULL;
    json_error_t json_err;
    bool no_memory;
    uint64_t len = 0;
    if (s->size < sizeof(prefix))
        return pm_fail(err, PM_ERR_FORMAT, "%s has %zu bytes, too few for a safetensors header", s->path, s->size);
    int status = read_at(s, prefix, sizeof(prefix), 0, err);
    if (status != PM_OK)
        return status;
    for (size_t i = sizeof(prefix); i-- > 0;)
        len = len << 8 | prefix[i];
    if (len > MAX_HEADER)
        return pm_fail(err, PM_ERR_FORMAT, "%s gives its header %llu bytes, more than the %d allowed", s->path,
                       (unsigned long long)len, MAX_HEADER);
    if (len > s->size - sizeof(prefix))
        return pm_fail(err, PM_ERR_FORMAT, "%s gives its header %llu bytes, but has only %zu in all", s->path,
                       (unsigned long long)len, s->size);
    s->data = sizeof(prefix) + (size_t)len;
    text = malloc((size_t)len + 1);
    if (!text)
        return pm_fail_memory(err);
    status = read_at(s, text, (size_t)len, sizeof(prefix), err);
    if (status != PM_OK)
        goto done;
    if (!len || *text != '{') {
        status = pm_fail(err, PM_ERR_FORMAT, "the header of %s does not begin with '{'", s->path);
        goto done;
    }
    root = pm_json_load(text, (size_t)len, JSON_REJECT_DUPLICATES, &json_err, &no_memory);
    if (root)
        *out = root;
    else
        status = no_memory ? pm_fail_memory(err)
                           : pm_fail(err, PM_ERR_FORMAT, "the header of %s is not valid: %s", s->path, json_err.text);
done:
    free(text);
    return status;
}

static int parse_dtype(const shard *s, const char *name, const json_t *entry, pm_dtype *out, pm_error *err)
{
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    if (!dtype)
        return pm_fail(err, PM_ERR_FORMAT, "%s: tensor %s has no dtype", s->path, name);
    for (int i = 0; i < PM_DTYPES; i++) {
        if (strcmp(dtype, dtypes[i].name) == 0) {
            *out = (pm_dtype)i;
            return PM_OK;
        }
    }
    return pm_fail(err, PM_ERR_UNSUPPORTED, "%s: tensor %s has dtype %s, which is not supported", s->path, name, dtype);
}

/* Fills rank and shape, and the bytes that they make with the dtype. */
static int parse_shape(const shard *s, const char *name, const json_t *entry, pm_stored *out, pm_error *err)
{
    const json_t *shape = json_object_get(entry, "shape");
    if (!json_is_array(shape))
        return pm_fail(err, PM_ERR_FORMAT, "%s: tensor %s has no shape", s->path, name);
    if (json_array_size(shape) > PM_MAX_RANK)
        return pm_fail(err, PM_ERR_UNSUPPORTED, "%s: tensor %s has %zu dimensions, more than the %d supported", s->path,
                       name, json_array_size(shape), PM_MAX_RANK);
    out->rank = (int)json_array_size(shape);
    out->bytes = pm_dtype_size(out->dtype);
    for (int i = 0; i < out->rank; i++) {
        const json_t *dim = json_array_get(shape, (size_t)i);
        if (!json_is_integer(dim) || json_integer_value(dim) < 0)
            return pm_fail(err, PM_ERR_FORMAT, "%s: tensor %s: dimension %d of its shape is not a whole number >= 0",
                           s->path, name, i);
        out->shape[i] = json_integer_value(dim);
        if ((uint64_t)out->shape[i] > SIZE_MAX || !pm_mul(out->bytes, (size_t)out->shape[i], &out->bytes))
            return pm_fail(err, PM_ERR_FORMAT, "%s: the shape of tensor %s is too large", s->path, name);
    }
    return PM_OK;
}

/* Reads data_offsets, compares them with file and shape, and sets `data`. */
static int parse_offsets(const shard *s, const char *name, const json_t *entry, pm_stored *out, pm_error *err)
{
    const json_t *offsets = json_object_get(entry, "data_offsets");
    const json_t *first = json_array_get(offsets, 0), *second = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(first) || !json_is_integer(second))
        return pm_fail(err, PM_ERR_FORMAT, "%s: the data_offsets of tensor %s are not two whole numbers", s->path,
                       name);
    long long begin = json_integer_value(first), end = json_integer_value(second);
    if (begin < 0 || end < begin)
        return pm_fail(err, PM_ERR_FORMAT, "%s: the data_offsets of tensor %s, [%lld, %lld], are not a range", s->path,
                       name, begin, end);
    if ((uint64_t)end > s->size - s->data)
        return pm_fail(err, PM_ERR_FORMAT, "%s: tensor %s ends at byte %lld of the data, but the file has %zu of them",
                       s->path, name, end, s->size - s->data);
    if ((uint64_t)(end - begin) != out->bytes)
        return pm_fail(err, PM_ERR_FORMAT, "%s: tensor %s has %lld bytes, but its shape of %s makes %zu", s->path, name,
                       end - begin, pm_dtype_name(out->dtype), out->bytes);
    out->data = s->map + s->data + begin;
    return PM_OK;
}

static int by_place(const void *a, const void *b)
{
    const pm_stored *x = a, *y = b;
    if (x->data != y->data)
        return (const char *)x->data < (const char *)y->data ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* Sorts a file's tensors by place and checks that they cover its data: no byte twice, none left out, as the format
 * demands. */
static int check_cover(const shard *s, pm_stored *tensors, size_t n, pm_error *err)
{
    const char *at = s->map + s->data, *end = s->map + s->size;
    if (n)
        qsort(tensors, n, sizeof(*tensors), by_place);
    for (size_t i = 0; i < n; i++) {
        const char *data = tensors[i].data;
        if (data < at)
            return pm_fail(err, PM_ERR_FORMAT, "%s: the data of tensors %s and %s overlap", s->path,
                           tensors[i - 1].name, tensors[i].name);
        if (data > at)
            return pm_fail(err, PM_ERR_FORMAT, "%s: the %zu bytes before tensor %s belong to no tensor", s->path,
                           (size_t)(data - at), tensors[i].name);
        at = data + tensors[i].bytes;
    }
    if (at != end)
        return pm_fail(err, PM_ERR_FORMAT, "%s: the last %zu bytes belong to no tensor", s->path, (size_t)(end - at));
    return PM_OK;
}

/* Parses every entry of the header into *out (malloc'ed, in the order of the data); names are the header's. */
static int parse_tensors(const shard *s, int file, json_t *header, pm_stored **out, size_t *n_out, pm_error *err)
{
    int status = PM_OK;
    size_t n = 0;
    const char *name;
    json_t *entry;
    pm_stored *tensors = calloc(json_object_size(header) + 1, sizeof(*tensors));
    if (!tensors)
        return pm_fail_memory(err);
    json_object_foreach(header, name, entry)
    {
        if (strcmp(name, "__metadata__") == 0)
            continue;
        pm_stored *t = &tensors[n++];
        t->name = name;
        t->file = file;
        if (!json_is_object(entry))
            status = pm_fail(err, PM_ERR_FORMAT, "%s: the entry of tensor %s is not an object", s->path, name);
        if (status == PM_OK)
            status = parse_dtype(s, name, entry, &t->dtype, err);
        if (status == PM_OK)
            status = parse_shape(s, name, entry, t, err);
        if (status == PM_OK)
            status = parse_offsets(s, name, entry, t, err);
        if (status != PM_OK)
            goto done;
    }
    status = check_cover(s, tensors, n, err);
    if (status != PM_OK)
        goto done;
    *out = tensors;
    *n_out = n;
    tensors = NULL;
done:
    free(tensors);
    return status;
}

/* ---- the directory ---- */

static char *join_path(pm_arena *arena, const char *dir, const char *name)
{
    size_t room = strlen(dir) + strlen(name) + 2;
    char *path = pm_arena_alloc(arena, room, 1);
    if (path)
        snprintf(path, room, "%s/%s", dir, name);
    return path;
}

/* Maps and validates one file and takes its tensors: all of them, or with an index those that it places here. Others
 * are passed over, so that a copy in a second shard or a stray tensor changes nothing; whether all that the model needs
 * was listed is for the loader of weights to say. */
static int add_shard(pm_checkpoint *c, const char *dir, const char *name, const shard_index *index, pm_error *err)
{
    json_t *header = NULL;
    pm_stored *tensors = NULL;
    size_t n = 0;
    void *grown = c->shards;
    int status = pm_grow(&grown, &c->cap_shards, c->n_shards + 1, sizeof(*c->shards));
    c->shards = grown;
    char *path = join_path(&c->arena, dir, name);
    if (status != PM_OK || !path)
        return pm_fail_memory(err);
    int file = (int)c->n_shards++;
    shard *s = &c->shards[file];
    *s = (shard){.path = path, .fd = -1, .map = MAP_FAILED};

    status = open_file(s, err);
    if (status == PM_OK)
        status = read_header(s, &header, err);
    if (status != PM_OK)
        goto done;
    s->map = mmap(NULL, s->size, PROT_READ, MAP_PRIVATE, s->fd, 0);
    if (s->map == MAP_FAILED) {
        status = pm_fail(err, errno == ENOMEM ? PM_ERR_MEMORY : PM_ERR_IO, "cannot map %s: %s", path, strerror(errno));
        goto done;
    }
    status = parse_tensors(s, file, header, &tensors, &n, err);
    if (status != PM_OK)
        goto done;

    void *list = c->tensors;
    status = pm_grow(&list, &c->cap, c->n + n, sizeof(*c->tensors));
    c->tensors = list;
    for (size_t i = 0; i < n && status == PM_OK; i++) {
        const pm_stored *t = &tensors[i];
        const char *home = index->weight_map ? json_string_value(json_object_get(index->weight_map, t->name)) : name;
        if (!home || strcmp(home, name) != 0)
            continue;
        const char *copy = pm_arena_strdup(&c->arena, t->name, strlen(t->name));
        status = copy ? PM_OK : PM_ERR_MEMORY;
        c->tensors[c->n] = *t;
        c->tensors[c->n++].name = copy;
        c->bytes += t->bytes;
    }
    if (status != PM_OK)
        pm_fail_memory(err);
done:
    free(tensors);
    json_decref(header);
    return status;
}

/* Reads model.safetensors.index.json when there is one; even a broken link counts, and is then an error. */
static int open_index(pm_checkpoint *c, const char *dir, shard_index *out, pm_error *err)
{
    struct stat st;
    const char *name;
    json_t *value;
    char *path = join_path(&c->arena, dir, "model.safetensors.index.json");
    if (!path)
        return pm_fail_memory(err);
    if (lstat(path, &st) != 0 && (errno == ENOENT || errno == ENOTDIR))
        return PM_OK;
    int status = pm_json_file(path, 0, &out->root, err);
    if (status != PM_OK)
        return status;
    out->path = path;
    out->weight_map = json_object_get(out->root, "weight_map");
    if (!json_object_size(out->weight_map))
        return pm_fail(err, PM_ERR_FORMAT, "%s has no weight_map with tensors", path);
    json_object_foreach((json_t *)out->weight_map, name, value)
    {
        const char *file = json_string_value(value);
        if (!file || !*file || strchr(file, '/') || strcmp(file, ".") == 0 || strcmp(file, "..") == 0)
            return pm_fail(err, PM_ERR_FORMAT,
                           "%s: weight_map places tensor %s in '%s', which is not a plain file name", path, name,
                           file ? file : "");
    }
    return PM_OK;
}

/* Adds the files that the index names, each once, in the order of first mention; then every tensor of the index must
 * have been found where it says. */
static int add_indexed(pm_checkpoint *c, const char *dir, const shard_index *index, pm_map *seen, pm_error *err)
{
    json_t *value;
    const char *name;
    json_object_foreach((json_t *)index->weight_map, name, value)
    {
        const char *file = json_string_value(value);
        if (pm_map_get(seen, file, strlen(file), 0))
            continue;
        if (pm_map_set(seen, file, strlen(file), 1) != PM_OK)
            return pm_fail_memory(err);
        int status = add_shard(c, dir, file, index, err);
        if (status != PM_OK)
            return status;
    }
    return PM_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const pm_stored *)a)->name, ((const pm_stored *)b)->name);
}

static int check_index(const pm_checkpoint *c, const shard_index *index, pm_error *err)
{
    json_t *value;
    const char *name;
    json_object_foreach((json_t *)index->weight_map, name, value) if (!pm_checkpoint_find(c, name)) return pm_fail(
        err, PM_ERR_FORMAT, "%s places tensor %s in %s, which lacks it", index->path, name, json_string_value(value));
    return PM_OK;
}

int pm_checkpoint_open(pm_checkpoint **out, const char *dir, pm_error *err)
{
    struct stat st;
    shard_index index = {0};
    pm_map seen = {0};
    if (stat(dir, &st) != 0)
        return pm_fail(err, PM_ERR_IO, "cannot open %s: %s", dir, strerror(errno));
    if (!S_ISDIR(st.st_mode))
        return pm_fail(err, PM_ERR_IO, "%s is not a directory", dir);
    pm_checkpoint *c = calloc(1, sizeof(*c));
    if (!c)
        return pm_fail_memory(err);
    int status = open_index(c, dir, &index, err);
    if (status == PM_OK)
        status =
            index.root ? add_indexed(c, dir, &index, &seen, err) : add_shard(c, dir, "model.safetensors", &index, err);
    if (status != PM_OK)
        goto done;
    if (c->n)
        qsort(c->tensors, c->n, sizeof(*c->tensors), by_name);
    if (index.root)
        status = check_index(c, &index, err);
    if (status != PM_OK)
        goto done;
    *out = c;
    c = NULL;
done:
    pm_map_free(&seen);
    json_decref(index.root);
    pm_checkpoint_close(c);
    return status;
}

void pm_checkpoint_close(pm_checkpoint *checkpoint)
{
    if (!checkpoint)
        return;
    for (size_t i = 0; i < checkpoint->n_shards; i++) {
        shard *s = &checkpoint->shards[i];
        if (s->map != MAP_FAILED)
            munmap((void *)s->map, s->size);
        if (s->fd >= 0)
            close(s->fd);
    }
    free(checkpoint->shards);
    free(checkpoint->tensors);
    pm_arena_free(&checkpoint->arena);
    free(checkpoint);
}

size_t pm_checkpoint_count(const pm_checkpoint *checkpoint)
{
    return checkpoint->n;
}

const pm_stored *pm_checkpoint_at(const pm_checkpoint *checkpoint, size_t i)
{
    return &checkpoint->tensors[i];
}

const pm_stored *pm_checkpoint_find(const pm_checkpoint *checkpoint, const char *name)
{
    pm_stored key = {.name = name};
    return checkpoint->n ? bsearch(&key, checkpoint->tensors, checkpoint->n, sizeof(key), by_name) : NULL;
}

const char *pm_checkpoint_file(const pm_checkpoint *checkpoint, const pm_stored *tensor)
{
    return checkpoint->shards[tensor->file].path;
}

uint64_t pm_checkpoint_bytes(const pm_checkpoint *checkpoint)
{
    return checkpoint->bytes;
}

int pm_checkpoint_check(const pm_checkpoint *checkpoint, pm_error *err)
{
    for (size_t i = 0; i < checkpoint->n_shards; i++) {
        const shard *s = &checkpoint->shards[i];
        struct stat st;
        if (fstat(s->fd, &st) != 0)
            return pm_fail(err, PM_ERR_IO, "cannot examine %s: %s", s->path, strerror(errno));
        if ((uint64_t)st.st_size < s->size)
            return pm_fail(err, PM_ERR_IO, "%s has become shorter while in use: %lld bytes instead of %zu", s->path,
                           (long long)st.st_size, s->size);
    }
    return PM_OK;
}
