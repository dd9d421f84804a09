/* precision MODEL FILE: what rounding activations costs.
 *
 * Computes a text in each precision and, as the reference, with the same weights and activations of f32; the cache is
 * f32 everywhere, so that nothing else differs. Prints lines of comma-separated values: of the reference
 *
 *     f32,tokens,perplexity
 *
 * and of each precision, where KL is KL(reference || precision),
 *
 *     exact|fast,tokens,perplexity,mean KL,largest KL,share of tokens before which the likeliest is the reference's
 *
 * FILE is UTF-8 text, cut into windows of 512 tokens, of which all but the first are judged; or, when its name ends in
 * .ids, lines of token ids, a window each, of which those with a + before them are judged. A token is judged at the
 * position before it, and so are the distributions there compared. */
#include "backend/cpu/matrix.h"
#include "backend/cpu/mixer.h"
#include "engine/engine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WINDOW = 512, SUBJECTS = 3 };

static const char *const names[SUBJECTS] = {"f32", "exact", "fast"};

/* One engine and what was found of it. */
typedef struct subject {
    pm_engine *engine;
    float *logits; /* [WINDOW, vocab] */
    double loss, kl, most;
    size_t same;
} subject;

static subject subjects[SUBJECTS];
static pm_matrix_kernels f32_kernels; /* of the reference */
static int vocab;
static size_t judged;

static _Noreturn void fail(const char *what)
{
    fprintf(stderr, "precision: %s\n", what);
    exit(1);
}

static void *must(void *memory)
{
    if (!memory)
        fail("out of memory");
    return memory;
}

/* ---- the reference ---- */

/* Rows of a quantised matrix, as floats, times columns of f32. */
static void multiply_f32(const pm_weight *w, int first, int last, const pm_columns *columns, const pm_results *results)
{
    float *row = must(malloc((size_t)w->in * sizeof(*row)));
    const pm_cpu *cpu = (const pm_cpu *)subjects[0].engine->backend;
    for (int i = first; i < last; i++) {
        f32_kernels.dequantise(w, i, 0, w->in, row);
        for (int c = 0; c < columns->n; c++) {
            const float *x = columns->x + (size_t)(columns->index ? columns->index[c] : c) * (size_t)w->in;
            size_t at = (size_t)c * (size_t)results->stride + (size_t)i;
            float y = cpu->mixer->dot(row, x, w->in);
            results->y[at] = results->add ? y + results->add[at] : y;
        }
    }
    free(row);
}

/* Makes an engine of PM_PRECISION_EXACT multiply activations as they are. */
static void use_f32(pm_engine *engine)
{
    pm_cpu *cpu = (pm_cpu *)engine->backend;
    f32_kernels = *cpu->matrix;
    pm_quantised_kernels *kernels = &f32_kernels.quantised[PM_PRECISION_EXACT];
    for (int bits = 0; bits <= PM_MAX_BITS; bits++)
        if (kernels->affine[bits].multiply)
            kernels->affine[bits].multiply = multiply_f32;
    kernels->e2m1.multiply = multiply_f32;
    cpu->matrix = &f32_kernels;
}

static void open_subjects(const char *dir)
{
    for (int i = 0; i < SUBJECTS; i++) {
        pm_error err;
        pm_info info;
        pm_engine_options options = {.kv_type = PM_KV_F32,
                                     .precision = i == 2 ? PM_PRECISION_FAST : PM_PRECISION_EXACT};
        if (pm_engine_open(&subjects[i].engine, dir, &options, &err) != PM_OK)
            fail(err.message);
        pm_engine_info(subjects[i].engine, &info);
        vocab = info.vocab;
        subjects[i].logits = must(calloc(WINDOW, (size_t)vocab * sizeof(float)));
    }
    use_f32(subjects[0].engine);
}

/* ---- judging ---- */

static void compute(subject *s, const pm_token *ids, size_t n)
{
    pm_session *session;
    pm_error err;
    if (pm_session_new(&session, s->engine, &err) != PM_OK ||
        pm_step(s->engine, &(pm_work){.session = session, .tokens = ids, .n = n, .logits = s->logits}, 1, &err) !=
            PM_OK)
        fail(err.message);
    pm_session_free(session);
}

/* The natural logarithm of the sum of exp(logits); *top receives the first of the largest. */
static double log_sum(const float *logits, int *top)
{
    double sum = 0;
    *top = 0;
    for (int i = 1; i < vocab; i++)
        if (logits[i] > logits[*top])
            *top = i;
    for (int i = 0; i < vocab; i++)
        sum += exp((double)logits[i] - logits[*top]);
    return log(sum) + logits[*top];
}

/* A position's logits in each subject; `next` is the token after it. */
static void judge(const float *const logits[SUBJECTS], pm_token next)
{
    int top[SUBJECTS];
    double sum[SUBJECTS];
    for (int i = 0; i < SUBJECTS; i++) {
        subject *s = &subjects[i];
        double kl = 0;
        sum[i] = log_sum(logits[i], &top[i]);
        for (int k = 0; i > 0 && k < vocab; k++) {
            double p = logits[0][k] - sum[0];
            kl += exp(p) * (p - (logits[i][k] - sum[i]));
        }
        s->kl += kl;
        s->most = fmax(s->most, kl);
        s->same += top[i] == top[0];
        s->loss += sum[i] - logits[i][next];
    }
    judged++;
}

/* `marks` says which tokens are judged (NULL: all). */
static void judge_window(const pm_token *ids, const bool *marks, size_t n)
{
    for (int i = 0; i < SUBJECTS; i++)
        compute(&subjects[i], ids, n);
    for (size_t t = 1; t < n; t++) {
        const float *logits[SUBJECTS];
        if (marks && !marks[t])
            continue;
        for (int i = 0; i < SUBJECTS; i++)
            logits[i] = subjects[i].logits + (t - 1) * (size_t)vocab;
        judge(logits, ids[t]);
    }
}

/* ---- texts ---- */

static void judge_text(const char *text, size_t len)
{
    pm_prompt prompt;
    pm_error err;
    if (pm_text_prompt(subjects[0].engine, text, len, &prompt, &err) != PM_OK)
        fail(err.message);
    for (size_t at = 0; at < prompt.n; at += WINDOW)
        judge_window(prompt.ids + at, NULL, prompt.n - at < WINDOW ? prompt.n - at : WINDOW);
    pm_prompt_free(&prompt);
}

static void judge_ids(const char *text)
{
    pm_token ids[WINDOW];
    bool marks[WINDOW];
    size_t n = 0;
    while (*text) {
        char *end;
        long id = strtol(text, &end, 10);
        if (end == text || id < 0 || id >= vocab || n == WINDOW)
            fail("FILE is not lines of at most 512 token ids of this model");
        marks[n] = *text == '+';
        ids[n++] = (pm_token)id;
        text = end + strspn(end, " ");
        if (*text == '\n') {
            judge_window(ids, marks, n);
            n = 0;
            text++;
        }
    }
}

int main(int argc, char **argv)
{
    enum { FILE_MAX = 16 << 20 };
    pm_buf file = {0};
    pm_error err;
    if (argc != 3)
        fail("usage: precision MODEL FILE");
    if (pm_read_file(argv[2], FILE_MAX, &file, &err) != PM_OK || pm_buf_add(&file, "", 1) != PM_OK)
        fail(err.message);
    open_subjects(argv[1]);
    size_t name = strlen(argv[2]);
    if (name > 4 && strcmp(argv[2] + name - 4, ".ids") == 0)
        judge_ids(file.data);
    else
        judge_text(file.data, file.len - 1);
    if (!judged)
        fail("FILE has no token to judge");
    for (int i = 0; i < SUBJECTS; i++) {
        const subject *s = &subjects[i];
        printf("%s,%zu,%.10g", names[i], judged, exp(s->loss / (double)judged));
        if (i > 0)
            printf(",%.4g,%.4g,%.6f", s->kl / (double)judged, s->most, (double)s->same / (double)judged);
        printf("\n");
        pm_engine_close(subjects[i].engine);
        free(subjects[i].logits);
    }
    pm_buf_free(&file);
    return 0;
}
