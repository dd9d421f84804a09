/* Mixture of experts. Pairs (token, chosen expert) are sorted by expert, so that an expert's matrices are read once for
 * all its tokens; a pair's place in that order is its slot. Each pair is computed on its own and each token adds up its
 * experts in ascending id:
 *     acc = 0; acc = fmaf(weight, expert's output, acc) ...; acc = fmaf(sigmoid(gate) or 1, shared output, acc);
 *     out = residual + acc
 * so a token's result does not depend on its company. */
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
    pm_input x, h, shared_h;
    float *logits;                  /* [tokens, experts] */
    float *room;                    /* [tokens, PM_ROUTE_ROOM, experts] */
    int32_t *ids;                   /* [tokens, top_k], ascending for each token */
    float *weights;                 /* [tokens, top_k] */
    int32_t *slot;                  /* [tokens, top_k] */
    int32_t *token;                 /* [slots] */
    int32_t *offset;                /* [experts + 1]: an expert's slots are offset[e] .. offset[e + 1] */
    int32_t *active;                /* [n_active] experts that were chosen, ascending */
    float *gate, *up;               /* [slots, width]; gate becomes the activation */
    float *y;                       /* [slots, hidden] */
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
    size_t hidden = (size_t)m->hidden, width = (size_t)m->width, shared = (size_t)m->shared_width;
    char *route = pm_cpu_scratch(
        m->cpu, PM_SCRATCH_ROUTE,
        ((1 + PM_ROUTE_ROOM) * tokens * experts + 4 * slots + 2 * experts + 1) * sizeof(float) + 8 * pad);
    char *h = pm_cpu_scratch(m->cpu, PM_SCRATCH_HIDDEN, 2 * slots * width * sizeof(float) + 2 * pad);
    char *y = pm_cpu_scratch(m->cpu, PM_SCRATCH_EXPERTS, slots * hidden * sizeof(float) + pad);
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
    m->y = part(&y, slots * hidden);
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
    pm_product products[4];
    int n = 0;
    if (args->router)
        products[n++] = (pm_product){args->router, {m->logits, NULL, m->experts}};
    if (args->shared_gate_proj) {
        products[n++] = (pm_product){args->shared_gate_proj, {m->shared_gate, NULL, m->shared_width}};
        products[n++] = (pm_product){args->shared_up_proj, {m->shared_up, NULL, m->shared_width}};
        if (args->shared_expert_gate)
            products[n++] = (pm_product){args->shared_expert_gate, {m->shared_weight, NULL, 1}};
    }
    unsigned need = 0;
    for (int i = 0; i < n; i++)
        pm_input_need(m->cpu, products[i].w, &need);
    for (int e = 0; e < m->experts; e++) {
        pm_input_need(m->cpu, &args->gate[e], &need);
        pm_input_need(m->cpu, &args->up[e], &need);
    }
    if (!pm_input_prepare(m->cpu, &m->x, &norm, need))
        return false;
    pm_products(m->cpu, &m->x, products, n);
    return true;
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

/* The rows [first, last) of an expert's gate and up for all its slots, and the activation. */
static void gate_up_rows(moe *m, int expert, int first, int last)
{
    const pm_weight *gate = &m->args->gate[expert], *up = &m->args->up[expert];
    int from = m->offset[expert], n = m->offset[expert + 1] - from;
    pm_columns columns = pm_input_columns(m->cpu, &m->x, gate);
    columns.n = n;
    columns.index = m->token + from;
    pm_results results = {m->gate + (int64_t)from * m->width, NULL, m->width};
    pm_multiply(m->cpu, gate, first, last, &columns, &results);
    columns = pm_input_columns(m->cpu, &m->x, up);
    columns.n = n;
    columns.index = m->token + from;
    results.y = m->up + (int64_t)from * m->width;
    pm_multiply(m->cpu, up, first, last, &columns, &results);
    for (int64_t i = from; i < from + n; i++) {
        float *g = m->gate + i * m->width + first;
        m->cpu->matrix->swiglu(g, m->up + i * m->width + first, m->limit, last - first, g);
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
    m->cpu->matrix->swiglu(m->shared_gate + first, m->shared_up + first, m->limit, last - first,
                           m->shared_gate + first);
}

/* The part [first, last) of a token's output. */
static void combine(moe *m, int token, int first, int last)
{
    enum { CHUNK = 256 };
    float acc[CHUNK], *out = m->args->out->data + (int64_t)token * m->hidden;
    const float *residual = m->args->residual ? m->args->residual->data + (int64_t)token * m->hidden : NULL;
    int top_k = m->top_k;
    for (int from = first; from < last; from += CHUNK) {
        int n = last - from < CHUNK ? last - from : CHUNK;
        memset(acc, 0, sizeof(acc));
        for (int i = token * top_k; i < (token + 1) * top_k; i++)
            m->cpu->matrix->add_scaled(acc, m->y + (int64_t)m->slot[i] * m->hidden + from, m->weights[i], n);
        if (m->shared_width) {
            float weight = m->args->shared_expert_gate ? pm_sigmoid(m->shared_weight[token]) : 1;
            m->cpu->matrix->add_scaled(acc, m->shared_y + (int64_t)token * m->hidden + from, weight, n);
        }
        for (int i = 0; i < n; i++)
            out[from + i] = residual ? residual[from + i] + acc[i] : acc[i];
    }
}

/* Rows [first, last) of every active expert's down, and of the shared one's, then of the output. */
static void down_piece(void *arg, int worker, int64_t first, int64_t last)
{
    (void)worker;
    moe *m = arg;
    for (int i = 0; i < m->n_active; i++) {
        const pm_weight *down = &m->args->down[m->active[i]];
        int64_t from = m->offset[m->active[i]], to = m->offset[m->active[i] + 1];
        int groups = pm_is_quantised(down) ? m->width / down->group : 0;
        pm_columns columns = pm_input_columns(m->cpu, &m->h, down);
        columns.n = (int)(to - from);
        columns.x += from * m->width;
        if (groups)
            columns.quantised = pm_quantised_rows(&columns.quantised, (size_t)from, (size_t)m->width, (size_t)groups);
        pm_results results = {m->y + from * m->hidden, NULL, m->hidden};
        pm_multiply(m->cpu, down, (int)first, (int)last, &columns, &results);
    }
    if (m->shared_width) {
        pm_columns columns = pm_input_columns(m->cpu, &m->shared_h, m->args->shared_down_proj);
        pm_results results = {m->shared_y, NULL, m->hidden};
        pm_multiply(m->cpu, m->args->shared_down_proj, (int)first, (int)last, &columns, &results);
    }
    for (int t = 0; t < m->tokens; t++)
        combine(m, t, (int)first, (int)last);
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
    pm_pool_run(m->cpu->pool, n, pm_grain(m->cpu, n, 1), shared_activation, m);
    pm_input_need(m->cpu, m->args->shared_down_proj, &shared_need);
    return pm_input_prepare(m->cpu, &m->shared_h, NULL, shared_need);
}

/* Nanoseconds of one index of gate_up_piece and of down_piece, on average. */
static void costs(const moe *m, double *gate_up, double *down)
{
    *gate_up = *down = 0;
    for (int i = 0; i < m->n_active; i++) {
        int e = m->active[i], n = m->offset[e + 1] - m->offset[e];
        *gate_up += (2 * pm_row_cost(&m->args->gate[e], n) + 2 * n) / m->n_active;
        *down += pm_row_cost(&m->args->down[e], n) + n;
    }
    if (m->shared_width)
        *down += pm_row_cost(m->args->shared_down_proj, m->tokens) + m->tokens;
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
             .width = args->router ? args->gate->out : 0,
             .shared_width = args->shared_gate_proj ? args->shared_gate_proj->out : 0};
    pm_pool *pool = m.cpu->pool;
    m.slots = m.tokens * m.top_k;
    if (!allocate(&m))
        return pm_fail_memory(err);
    m.x = (pm_input){args->x->data, m.tokens, m.hidden, PM_SCRATCH_NORM, PM_SCRATCH_QUANT, 0, {{0}}};
    m.h = (pm_input){m.gate, m.slots, m.width, PM_SCRATCH_NORM, PM_SCRATCH_HIDDEN_QUANT, 0, {{0}}};
    m.shared_h =
        (pm_input){m.shared_gate, m.tokens, m.shared_width, PM_SCRATCH_NORM, PM_SCRATCH_SHARED_QUANT, 0, {{0}}};
    if (!first_products(&m))
        return pm_fail_memory(err);
    bool plain = args->route.kind == PM_ROUTE_SOFTMAX && args->route.normalise;
    double gate_up_ns, down_ns, route_ns = m.experts * (plain ? 2.0 : 20.0);
    if (args->router)
        pm_pool_run(pool, m.tokens, pm_grain(m.cpu, m.tokens, route_ns), route_tokens, &m);
    assign_slots(&m);
    for (int e = 0; args->expert_tokens && e < m.experts; e++)
        args->expert_tokens[e] = m.offset[e + 1] - m.offset[e];
    costs(&m, &gate_up_ns, &down_ns);
    int64_t rows = (int64_t)m.n_active * m.width;
    if (rows)
        pm_pool_run(pool, rows, (pm_grain(m.cpu, rows, gate_up_ns) + 15) / 16 * 16, gate_up_piece, &m);
    if (!prepare_down(&m))
        return pm_fail_memory(err);
    pm_pool_run(pool, m.hidden, (pm_grain(m.cpu, m.hidden, down_ns) + 15) / 16 * 16, down_piece, &m);
    return PM_OK;
}
