/* Mixture of experts. Pairs (token, chosen expert) are sorted by expert, so that an expert's matrices are read once for
 * all its tokens; a pair's place in that order is its slot. Each pair is computed on its own and each token adds up its
 * experts in ascending id:
 *     acc = 0; acc = fmaf(weight, expert's output, acc) ...; acc = fmaf(sigmoid(gate) or 1, shared output, acc);
 *     out = residual + acc
 * With latents the sum over the experts goes through latent_out first, and counts once. A token's result does not
 * depend on its company. */
#include "backend/cpu/math.h"
#include "backend/cpu/matrix.h"

#include <string.h>

typedef struct moe {
    pm_cpu *cpu;
    const pm_batch *batch;
    const pm_moe_args *args;
    float limit;
    int experts, top_k; /* 0 without a router */
    int tokens, slots, hidden, width, shared_width, n_active;
    int in; /* of an expert: hidden, or latent */
    pm_input x, h, shared_h, latent_x, latent_sum;
    pm_input *expert_x;             /* x or latent_x */
    float *logits;                  /* [tokens, experts] */
    float *room;                    /* [tokens, PM_ROUTE_ROOM, experts] */
    int32_t *ids;                   /* [tokens, top_k], ascending for each token */
    float *weights;                 /* [tokens, top_k] */
    int32_t *slot;                  /* [tokens, top_k] */
    int32_t *token;                 /* [slots] */
    int32_t *offset;                /* [experts + 1]: an expert's slots are offset[e] .. offset[e + 1] */
    int32_t *active;                /* [n_active] experts that were chosen, ascending */
    float *gate, *up;               /* [slots, width]; gate becomes the activation */
    float *y;                       /* [slots, in] */
    float *latent, *sum, *latent_y; /* [tokens, latent], [tokens, latent], [tokens, hidden] */
    float *shared_gate, *shared_up; /* [tokens, shared_width]; likewise */
    float *shared_y;                /* [tokens, hidden] */
    float *shared_weight;           /* [tokens] */
} moe;

/* Parts of one scratch allocation, each on a multiple of 64 bytes. */
static void *part(char **p, size_t n)
{
    void *here = *p;
    *p += (n * sizeof(float) + 63) / 64 * 64;
    return here;
}

static bool allocate(moe *m)
{
    size_t tokens = (size_t)m->tokens, slots = (size_t)m->slots, experts = (size_t)m->experts, pad = 64;
    size_t hidden = (size_t)m->hidden, in = (size_t)m->in, latent = m->args->latent_in ? in : 0,
           width = (size_t)m->width, shared = (size_t)m->shared_width;
    char *route = pm_cpu_scratch(
        m->cpu, PM_SCRATCH_ROUTE,
        ((1 + PM_ROUTE_ROOM) * tokens * experts + 4 * slots + 2 * experts + 1) * sizeof(float) + 8 * pad);
    char *h = pm_cpu_scratch(m->cpu, PM_SCRATCH_HIDDEN, 2 * slots * width * sizeof(float) + 2 * pad);
    char *y = pm_cpu_scratch(m->cpu, PM_SCRATCH_EXPERTS,
                             (slots * in + tokens * (2 * latent + (latent ? hidden : 0))) * sizeof(float) + 4 * pad);
    char *s = pm_cpu_scratch(m->cpu, PM_SCRATCH_SHARED, tokens * (2 * shared + hidden + 1) * sizeof(float) + 4 * pad);
    if (!route || !h || !y || !s)
        return false;
    m->logits = part(&route, tokens * experts);
    m->room = part(&route, PM_ROUTE_ROOM * tokens * experts);
    m->ids = part(&route, slots);
    m->weights = part(&route, slots);
    m->slot = part(&route, slots);
    m->token = part(&route, slots);
    m->offset = part(&route, experts + 1);
    m->active = part(&route, experts);
    m->gate = part(&h, slots * width);
    m->up = part(&h, slots * width);
    m->y = part(&y, slots * in);
    m->latent = part(&y, tokens * latent);
    m->sum = part(&y, tokens * latent);
    m->latent_y = part(&y, latent ? tokens * hidden : 0);
    m->shared_gate = part(&s, tokens * shared);
    m->shared_up = part(&s, tokens * shared);
    m->shared_y = part(&s, tokens * hidden);
    m->shared_weight = part(&s, tokens);
    return true;
}

/* Router logits and the shared expert's first half, which do not wait for the choice. */
static bool first_products(moe *m)
{
    const pm_moe_args *args = m->args;
    pm_norm norm = {.w = args->norm->data, .eps = args->eps};
    pm_product products[5];
    int n = 0;
    if (args->router)
        products[n++] = (pm_product){args->router, {m->logits, NULL, m->experts}};
    if (args->latent_in)
        products[n++] = (pm_product){args->latent_in, {m->latent, NULL, m->in}};
    if (args->shared_gate_proj)
        products[n++] = (pm_product){args->shared_gate_proj, {m->shared_gate, NULL, m->shared_width}};
    if (args->shared_up_proj) {
        products[n++] = (pm_product){args->shared_up_proj, {m->shared_up, NULL, m->shared_width}};
        if (args->shared_expert_gate)
            products[n++] = (pm_product){args->shared_expert_gate, {m->shared_weight, NULL, 1}};
    }
    unsigned need = 0, expert_need = 0;
    for (int i = 0; i < n; i++)
        pm_input_need(m->cpu, products[i].w, &need);
    for (int e = 0; e < m->experts; e++) {
        if (args->gate)
            pm_input_need(m->cpu, &args->gate[e], &expert_need);
        pm_input_need(m->cpu, &args->up[e], &expert_need);
    }
    if (!pm_input_prepare(m->cpu, &m->x, &norm, args->latent_in ? need : need | expert_need))
        return false;
    pm_products(m->cpu, &m->x, products, n);
    return !args->latent_in || pm_input_prepare(m->cpu, &m->latent_x, NULL, expert_need);
}

static void route_tokens(void *arg, int worker, int64_t first, int64_t last)
{
    (void)worker;
    moe *m = arg;
    const pm_route *route = &m->args->route;
    for (int64_t t = first; t < last; t++)
        pm_moe_route(m->cpu->mixer, route, m->logits + t * route->experts,
                     route->token_experts ? m->batch->tokens[t] : 0, m->room + t * PM_ROUTE_ROOM * route->experts,
                     m->ids + t * route->top_k, m->weights + t * route->top_k);
}

/* Sorts the pairs by expert (counting sort: within an expert tokens ascend). */
static void assign_slots(moe *m)
{
    int experts = m->experts, top_k = m->top_k;
    memset(m->offset, 0, ((size_t)experts + 1) * sizeof(*m->offset));
    for (int i = 0; i < m->slots; i++)
        m->offset[m->ids[i] + 1]++;
    m->n_active = 0;
    for (int e = 0; e < experts; e++) {
        if (m->offset[e + 1])
            m->active[m->n_active++] = e;
        m->offset[e + 1] += m->offset[e];
    }
    for (int i = 0; i < m->slots; i++) { /* offset[e] runs up to the end of e's slots, */
        m->slot[i] = m->offset[m->ids[i]]++;
        m->token[m->slot[i]] = i / top_k;
    }
    for (int e = experts; e > 0; e--) /* and is moved back to their beginning. */
        m->offset[e] = m->offset[e - 1];
    m->offset[0] = 0;
}

/* The rows [first, last) of one of an expert's matrices for all its slots, to y [slots, width]. */
static void expert_rows(const moe *m, int expert, const pm_weight *w, int first, int last, float *y)
{
    int from = m->offset[expert];
    pm_columns columns = pm_input_columns(m->cpu, m->expert_x, w);
    columns.n = m->offset[expert + 1] - from;
    columns.index = m->token + from;
    pm_multiply(m->cpu, w, first, last, &columns, &(pm_results){y + (int64_t)from * m->width, NULL, m->width});
}

/* What n elements of gate and up, or of up alone, become; written over the gate. */
static void activate(const moe *m, bool gated, float *gate, const float *up, int64_t n)
{
    if (gated) {
        m->cpu->matrix->swiglu(gate, up, m->limit, n, gate);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        float positive = up[i] < 0 ? 0 : up[i]; /* NaN stays */
        gate[i] = positive * positive;
    }
}

/* The rows [first, last) of an expert's gate and up for all its slots, and the activation. */
static void gate_up_rows(moe *m, int expert, int first, int last)
{
    const pm_weight *gate = m->args->gate;
    if (gate)
        expert_rows(m, expert, &gate[expert], first, last, m->gate);
    expert_rows(m, expert, &m->args->up[expert], first, last, m->up);
    for (int64_t i = m->offset[expert]; i < m->offset[expert + 1]; i++) {
        int64_t at = i * m->width + first;
        activate(m, gate, m->gate + at, m->up + at, last - first);
    }
}

/* Indices count the rows of gate of the active experts. */
static void gate_up_piece(void *arg, int worker, int64_t first, int64_t last)
{
    (void)worker;
    moe *m = arg;
    while (first < last) {
        int64_t base = first / m->width * m->width, end = last - base < m->width ? last - base : m->width;
        gate_up_rows(m, m->active[first / m->width], (int)(first - base), (int)end);
        first = base + end;
    }
}

static void shared_activation(void *arg, int worker, int64_t first, int64_t last)
{
    (void)worker;
    moe *m = arg;
    activate(m, m->args->shared_gate_proj, m->shared_gate + first, m->shared_up + first, last - first);
}

/* acc[0 .. n) = the elements from `from` on of the experts' outputs for a token, weighted and added up. */
static void add_experts(const moe *m, int token, int from, int n, float *acc)
{
    memset(acc, 0, (size_t)n * sizeof(*acc));
    for (int i = token * m->top_k; i < (token + 1) * m->top_k; i++)
        m->cpu->matrix->add_scaled(acc, m->y + (int64_t)m->slot[i] * m->in + from, m->weights[i], n);
}

/* The rows [first, last) of an expert's down for all its slots. */
static void down_rows(const moe *m, int expert, int first, int last)
{
    const pm_weight *down = &m->args->down[expert];
    int64_t from = m->offset[expert];
    int groups = pm_is_quantised(down) ? m->width / down->group : 0;
    pm_columns columns = pm_input_columns(m->cpu, &m->h, down);
    columns.n = m->offset[expert + 1] - (int)from;
    columns.x += from * m->width;
    if (groups)
        columns.quantised = pm_quantised_rows(&columns.quantised, (size_t)from, (size_t)m->width, (size_t)groups);
    pm_multiply(m->cpu, down, first, last, &columns, &(pm_results){m->y + from * m->in, NULL, m->in});
}

/* Indices count the rows of down of the active experts, then of the shared one. */
static void down_piece(void *arg, int worker, int64_t first, int64_t last)
{
    (void)worker;
    const moe *m = arg;
    int64_t all = (int64_t)m->n_active * m->in;
    while (first < last && first < all) {
        int64_t base = first / m->in * m->in, end = last - base < m->in ? last - base : m->in;
        down_rows(m, m->active[first / m->in], (int)(first - base), (int)end);
        first = base + end;
    }
    if (first < last) {
        pm_columns columns = pm_input_columns(m->cpu, &m->shared_h, m->args->shared_down_proj);
        pm_results results = {m->shared_y, NULL, m->hidden};
        pm_multiply(m->cpu, m->args->shared_down_proj, (int)(first - all), (int)(last - all), &columns, &results);
    }
}

/* The sums of the experts' latent outputs for each token. Indices count their elements. */
static void latent_piece(void *arg, int worker, int64_t first, int64_t last)
{
    (void)worker;
    const moe *m = arg;
    while (first < last) {
        int64_t base = first / m->in * m->in, end = last - base < m->in ? last - base : m->in;
        add_experts(m, (int)(first / m->in), (int)(first - base), (int)(base + end - first), m->sum + first);
        first = base + end;
    }
}

/* The part [first, last) of a token's output. */
static void combine(moe *m, int token, int first, int last)
{
    enum { CHUNK = 256 };
    float acc[CHUNK], *out = m->args->out->data + (int64_t)token * m->hidden;
    const float *residual = m->args->residual ? m->args->residual->data + (int64_t)token * m->hidden : NULL;
    for (int from = first; from < last; from += CHUNK) {
        int n = last - from < CHUNK ? last - from : CHUNK;
        if (m->args->latent_out)
            memcpy(acc, m->latent_y + (int64_t)token * m->hidden + from, (size_t)n * sizeof(*acc));
        else
            add_experts(m, token, from, n, acc);
        if (m->shared_width) {
            float weight = m->args->shared_expert_gate ? pm_sigmoid(m->shared_weight[token]) : 1;
            m->cpu->matrix->add_scaled(acc, m->shared_y + (int64_t)token * m->hidden + from, weight, n);
        }
        for (int i = 0; i < n; i++)
            out[from + i] = residual ? residual[from + i] + acc[i] : acc[i];
    }
}

/* Indices count the elements of the output. */
static void combine_piece(void *arg, int worker, int64_t first, int64_t last)
{
    (void)worker;
    moe *m = arg;
    while (first < last) {
        int64_t base = first / m->hidden * m->hidden, end = last - base < m->hidden ? last - base : m->hidden;
        combine(m, (int)(first / m->hidden), (int)(first - base), (int)end);
        first = base + end;
    }
}

/* Quantises the activations of the experts and of the shared expert for their second halves. */
static bool prepare_down(moe *m)
{
    unsigned need = 0, shared_need = 0;
    for (int i = 0; i < m->n_active; i++)
        pm_input_need(m->cpu, &m->args->down[m->active[i]], &need);
    if (!pm_input_prepare(m->cpu, &m->h, NULL, need))
        return false;
    if (!m->shared_width)
        return true;
    int64_t n = (int64_t)m->tokens * m->shared_width;
    pm_pool_run(m->cpu->pool, n, pm_grain(1), shared_activation, m);
    pm_input_need(m->cpu, m->args->shared_down_proj, &shared_need);
    return pm_input_prepare(m->cpu, &m->shared_h, NULL, shared_need);
}

/* Nanoseconds of one index of gate_up_piece and of down_piece, on average. */
static void costs(const moe *m, double *gate_up, double *down)
{
    *gate_up = *down = 0;
    for (int i = 0; i < m->n_active; i++) {
        int e = m->active[i], n = m->offset[e + 1] - m->offset[e];
        *gate_up += ((m->args->gate ? 2 : 1) * pm_row_cost(&m->args->up[e], n) + 2 * n) / m->n_active;
        *down += pm_row_cost(&m->args->down[e], n);
    }
    if (m->shared_width)
        *down += pm_row_cost(m->args->shared_down_proj, m->tokens);
    *down /= m->n_active + (m->shared_width > 0);
}

int pm_cpu_moe(pm_backend *backend, const pm_batch *batch, const pm_moe_args *args, pm_error *err)
{
    moe m = {.cpu = (pm_cpu *)backend,
             .batch = batch,
             .args = args,
             .limit = args->limit > 0 ? args->limit : INFINITY,
             .experts = args->router ? args->route.experts : 0,
             .top_k = args->router ? args->route.top_k : 0,
             .tokens = batch->n_tokens,
             .hidden = (int)args->x->cols,
             .width = args->router ? args->up->out : 0,
             .shared_width = args->shared_up_proj ? args->shared_up_proj->out : 0};
    pm_pool *pool = m.cpu->pool;
    m.slots = m.tokens * m.top_k;
    m.in = args->latent_in ? args->latent_in->out : m.hidden;
    if (!allocate(&m))
        return pm_fail_memory(err);
    m.x = (pm_input){args->x->data, m.tokens, m.hidden, PM_SCRATCH_NORM, PM_SCRATCH_QUANT, 0, {{0}}};
    m.h = (pm_input){m.gate, m.slots, m.width, PM_SCRATCH_NORM, PM_SCRATCH_HIDDEN_QUANT, 0, {{0}}};
    m.shared_h =
        (pm_input){m.shared_gate, m.tokens, m.shared_width, PM_SCRATCH_NORM, PM_SCRATCH_SHARED_QUANT, 0, {{0}}};
    m.latent_x = (pm_input){m.latent, m.tokens, m.in, PM_SCRATCH_NORM, PM_SCRATCH_QUANT, 0, {{0}}};
    m.latent_sum = (pm_input){m.sum, m.tokens, m.in, PM_SCRATCH_NORM, PM_SCRATCH_QUANT, 0, {{0}}};
    m.expert_x = args->latent_in ? &m.latent_x : &m.x;
    if (!first_products(&m))
        return pm_fail_memory(err);
    bool plain = args->route.kind == PM_ROUTE_SOFTMAX && args->route.normalise;
    double gate_up_ns, down_ns, route_ns = m.experts * (plain ? 2.0 : 20.0), combine_ns = 0.15 * (m.top_k + 2);
    if (args->router)
        pm_pool_run(pool, m.tokens, pm_grain(route_ns), route_tokens, &m);
    assign_slots(&m);
    for (int e = 0; args->expert_tokens && e < m.experts; e++)
        args->expert_tokens[e] = m.offset[e + 1] - m.offset[e];
    costs(&m, &gate_up_ns, &down_ns);
    int64_t rows = (int64_t)m.n_active * m.width;
    if (rows)
        pm_pool_run(pool, rows, pm_row_tiles(pm_grain(gate_up_ns)), gate_up_piece, &m);
    if (!prepare_down(&m))
        return pm_fail_memory(err);
    rows = (int64_t)m.n_active * m.in + (m.shared_width ? m.hidden : 0);
    if (rows)
        pm_pool_run(pool, rows, pm_row_tiles(pm_grain(down_ns)), down_piece, &m);
    if (args->latent_out) {
        unsigned need = 0;
        pm_product product = {args->latent_out, {m.latent_y, NULL, m.hidden}};
        pm_pool_run(pool, (int64_t)m.tokens * m.in, pm_grain(combine_ns), latent_piece, &m);
        pm_input_need(m.cpu, args->latent_out, &need);
        if (!pm_input_prepare(m.cpu, &m.latent_sum, NULL, need))
            return pm_fail_memory(err);
        pm_products(m.cpu, &m.latent_sum, &product, 1);
    }
    pm_pool_run(pool, (int64_t)m.tokens * m.hidden, pm_grain(combine_ns), combine_piece, &m);
    return PM_OK;
}
