/* How fast a model decodes far into a context that nobody computed: the rows of its cache are random, its states zero.
 *
 *     far_decode CHECKPOINT CONTEXT [ROUNDS]
 *
 * Prints as JSON what a token took and which fraction that is of what the machine can do, as `polymath bench --ops
 * --json` does for contexts that it computes. Each of the rounds (9) measures the machine, then TOKENS tokens; figures
 * are medians over the rounds. */
#include "engine/session.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 4, MOST_ROUNDS = 99, PIECE = 4096 };

typedef struct round_result {
    double seconds, read, integer, floats;
    pm_profile profile;
} round_result;

/* A number in [-1.75, 1.75), whose variance is about that of a normalised key. */
static float chance(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u; /* Knuth's MMIX generator */
    return (float)(int32_t)(*state >> 32) * (1.75f / 2147483648.0f);
}

/* An IEEE binary16 near x, |x| < 2. */
static uint16_t half_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    int exponent = (int)(bits >> 23 & 255) - 112;
    return (uint16_t)((bits >> 16 & 0x8000) | (exponent > 0 ? (uint32_t)exponent << 10 | (bits >> 13 & 1023) : 0));
}

/* Appends n random rows. */
static int fill_rows(pm_backend *backend, pm_rows *rows, const pm_rows_spec *spec, int64_t n, uint64_t *state,
                     pm_error *err)
{
    size_t width = (size_t)spec->planes * (size_t)spec->width;
    uint16_t *data = malloc(PIECE * width * sizeof(*data));
    if (!data)
        return pm_fail_memory(err);
    int status = PM_OK;
    for (int64_t done = 0; status == PM_OK && done < n; done += PIECE) {
        int64_t count = n - done < PIECE ? n - done : PIECE;
        for (size_t i = 0; i < (size_t)count * width; i++)
            data[i] = half_of(chance(state));
        status = backend->ops->rows_import(backend, rows, count, data, err);
    }
    free(data);
    return status;
}

/* A session of so many tokens. */
static int fill_session(pm_session *session, size_t context, pm_error *err)
{
    pm_engine *engine = session->engine;
    const pm_cache_spec *cache = engine->cache;
    uint64_t state = 1;
    int status = pm_session_reserve(session, context, err);
    for (int i = 0; status == PM_OK && i < cache->n_rows; i++)
        status = fill_rows(engine->backend, session->rows[i], &cache->rows[i], (int64_t)context / cache->rows[i].ratio,
                           &state, err);
    if (status != PM_OK)
        return status;
    for (size_t i = 0; i < context; i++)
        session->ids[i] = (pm_token)(i % (size_t)engine->vocab);
    session->length = context;
    return PM_OK;
}

static int run_round(pm_engine *engine, pm_session *session, round_result *out, pm_error *err)
{
    pm_limits limits;
    int status = pm_engine_measure(engine, &limits, err);
    pm_engine_profile_reset(engine);
    double start = pm_now();
    for (int i = 0; status == PM_OK && i < TOKENS; i++)
        status = pm_step(engine, &(pm_work){session, (pm_token[]){17 * i + 5}, 1, NULL}, 1, err);
    out->seconds = (pm_now() - start) / TOKENS;
    out->read = limits.read_bytes_per_second;
    out->integer = limits.integer_ops_per_second;
    out->floats = limits.float_ops_per_second;
    return status ? status : pm_engine_profile(engine, &out->profile, err);
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median of a member of the rounds; at most MOST_ROUNDS of them. */
static double median(const round_result *rounds, int n, size_t member)
{
    double values[MOST_ROUNDS];
    for (int i = 0; i < n; i++)
        memcpy(&values[i], (const char *)&rounds[i] + member, sizeof(values[i]));
    qsort(values, (size_t)n, sizeof(*values), ascending);
    return values[n / 2];
}

/* The limits, and the operations of a token: medians of their times. */
static void print(const round_result *rounds, int n, size_t context)
{
    double read = median(rounds, n, offsetof(round_result, read));
    double integer = median(rounds, n, offsetof(round_result, integer));
    double floats = median(rounds, n, offsetof(round_result, floats));
    double seconds = median(rounds, n, offsetof(round_result, seconds)), reading = 0, computing = 0;
    json_t *ops = json_array();
    for (int i = 0; i < rounds[0].profile.n; i++) {
        const pm_op_profile *op = &rounds[0].profile.op[i];
        double bytes = (double)op->bytes / TOKENS / read;
        double arithmetic = ((double)op->integer_ops / integer + (double)op->float_ops / floats) / TOKENS;
        double took = median(rounds, n, offsetof(round_result, profile.op[i].seconds)) / TOKENS;
        reading += bytes;
        computing += arithmetic;
        json_array_append_new(ops, json_pack("{s:s, s:f, s:f}", "name", op->name, "seconds_per_token", took, "fraction",
                                             (bytes > arithmetic ? bytes : arithmetic) / took));
    }
    json_t *object =
        json_pack("{s:I, s:f, s:f, s:f, s:f, s:f, s:o}", "context", (json_int_t)context, "seconds_per_token", seconds,
                  "fraction", (reading > computing ? reading : computing) / seconds, "read_gbs", read / 1e9,
                  "integer_gops", integer / 1e9, "float_gops", floats / 1e9, "ops", ops);
    json_dumpf(object, stdout, JSON_COMPACT | JSON_REAL_PRECISION(6));
    putchar('\n');
    json_decref(object);
}

int main(int argc, char **argv)
{
    static round_result rounds[MOST_ROUNDS + 1];
    pm_engine *engine = NULL;
    pm_session *session = NULL;
    pm_error err = {0};
    long context = argc > 2 ? strtol(argv[2], NULL, 10) : 0, n = argc > 3 ? strtol(argv[3], NULL, 10) : 9;
    if (argc < 3 || argc > 4 || context < 1 || n < 1 || n > MOST_ROUNDS) {
        fprintf(stderr, "usage: far_decode CHECKPOINT CONTEXT [ROUNDS]\n");
        return 2;
    }
    int status = pm_engine_open(&engine, argv[1], &(pm_engine_options){.profile = true}, &err);
    if (status == PM_OK)
        status = pm_session_new(&session, engine, &err);
    if (status == PM_OK)
        status = fill_session(session, (size_t)context, &err);
    if (status == PM_OK) /* maps pages and grows buffers, and does not count */
        status = run_round(engine, session, &rounds[MOST_ROUNDS], &err);
    for (int i = 0; status == PM_OK && i < n; i++)
        status = run_round(engine, session, &rounds[i], &err);
    if (status == PM_OK)
        print(rounds, (int)n, (size_t)context);
    else
        fprintf(stderr, "far_decode: %s\n", err.message);
    pm_session_free(session);
    pm_engine_close(engine);
    return status ? 1 : 0;
}
