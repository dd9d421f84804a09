/* The end of building a grammar: how deep its nodes are, and their edges in order. */
#include "text/grammar.h"

#include <stdlib.h>
#include <string.h>

enum {
    NEVER = 255,               /* the depth of what cannot end */
    BEYOND = PM_DEPTH_MAX + 1, /* of what can end, but not in time */
    LISTS = BEYOND + 1
};

/* ---- depths ---- */

/* The least solution, by Knuth's generalization of Dijkstra's algorithm (1977): nodes are taken by their depth, and
 * each gives the nodes that depend on it theirs. */
typedef struct depths {
    pm_grammar *grammar;
    int32_t *users;     /* [nodes] the first link to a node that depends on it, -1: none */
    int32_t *callers;   /* [rules] the same of its calls */
    int32_t *starts;    /* [nodes] a rule that starts there, -1: none */
    int32_t *more;      /* [rules] another rule with the same start */
    int32_t *user;      /* [links] the node that depends */
    int32_t *next_link; /* [links] */
    int32_t n_links;
    int32_t list[LISTS]; /* nodes of each depth that are to be taken, -1: none */
    int32_t *next;       /* [nodes] */
} depths;

static int32_t *new_list(size_t n)
{
    int32_t *list = malloc((n + 1) * sizeof(*list));
    if (list)
        memset(list, 0xFF, (n + 1) * sizeof(*list)); /* -1 */
    return list;
}

static bool depths_init(depths *d, pm_grammar *grammar)
{
    size_t nodes = grammar->n_nodes, rules = grammar->n_rules, links = grammar->n_edges + 2 * nodes;
    *d = (depths){.grammar = grammar};
    d->users = new_list(nodes);
    d->callers = new_list(rules);
    d->starts = new_list(nodes);
    d->more = new_list(rules);
    d->user = new_list(links);
    d->next_link = new_list(links);
    d->next = new_list(nodes);
    memset(d->list, 0xFF, sizeof(d->list));
    return d->users && d->callers && d->starts && d->more && d->user && d->next_link && d->next;
}

static void depths_free(depths *d)
{
    free(d->users);
    free(d->callers);
    free(d->starts);
    free(d->more);
    free(d->user);
    free(d->next_link);
    free(d->next);
}

static void link_user(depths *d, int32_t *first, size_t user)
{
    d->user[d->n_links] = (int32_t)user;
    d->next_link[d->n_links] = *first;
    *first = d->n_links++;
}

/* Finds out who depends on whom. */
static void link_all(depths *d)
{
    const pm_grammar *grammar = d->grammar;
    for (size_t i = 1; i < grammar->n_nodes; i++) {
        const pm_node *node = &grammar->nodes[i];
        if (node->kind <= PM_NODE_SPLIT)
            for (int32_t k = node->edges; k >= 0; k = grammar->edges[k].next)
                link_user(d, &d->users[grammar->edges[k].to], i);
        if (node->kind == PM_NODE_CALL)
            link_user(d, &d->callers[node->called], i);
        if (node->kind == PM_NODE_CALL || node->kind == PM_NODE_COUNT || node->kind == PM_NODE_ENOUGH)
            link_user(d, &d->users[node->next], i);
        if (node->kind == PM_NODE_ENOUGH)
            link_user(d, &d->users[node->body], i);
    }
    for (size_t i = 0; i < grammar->n_rules; i++) {
        int32_t start = grammar->rules[i].start;
        d->more[i] = d->starts[start];
        d->starts[start] = (int32_t)i;
    }
}

static uint8_t deeper(uint8_t a, uint8_t b)
{
    return a > b ? a : b;
}

/* The depth of a node that depends on one whose depth has become known; NEVER while it depends on others too. */
static uint8_t depth_of(const pm_grammar *grammar, const pm_node *node, uint8_t known)
{
    switch ((pm_node_kind)node->kind) {
    case PM_NODE_CALL: return deeper(grammar->rules[node->called].depth, grammar->nodes[node->next].depth);
    case PM_NODE_COUNT: return node->limit > 0 ? known : NEVER;
    case PM_NODE_ENOUGH:
        return deeper(grammar->nodes[node->next].depth, node->limit > 0 ? grammar->nodes[node->body].depth : 0);
    default: return known;
    }
}

static void take_later(depths *d, int32_t node, uint8_t depth)
{
    d->grammar->nodes[node].depth = depth;
    d->next[node] = d->list[depth];
    d->list[depth] = node;
}

/* Gives their depths to nodes of a list of links, which depend on what has this one. */
static void tell(depths *d, int32_t link, uint8_t known)
{
    for (; link >= 0; link = d->next_link[link]) {
        const pm_node *node = &d->grammar->nodes[d->user[link]];
        uint8_t depth = node->depth == NEVER ? depth_of(d->grammar, node, known) : NEVER;
        if (depth != NEVER)
            take_later(d, d->user[link], depth);
    }
}

static void find_depths(depths *d)
{
    pm_grammar *grammar = d->grammar;
    for (size_t i = 0; i < grammar->n_rules; i++)
        grammar->rules[i].depth = NEVER;
    for (size_t i = 0; i < grammar->n_nodes; i++)
        grammar->nodes[i].depth = NEVER;
    for (size_t i = 1; i < grammar->n_nodes; i++)
        if (grammar->nodes[i].kind == PM_NODE_RETURN)
            take_later(d, (int32_t)i, 0);
    for (int depth = 0; depth < LISTS; depth++) {
        while (d->list[depth] >= 0) {
            int32_t node = d->list[depth];
            d->list[depth] = d->next[node];
            tell(d, d->users[node], (uint8_t)depth);
            for (int32_t rule = d->starts[node]; rule >= 0; rule = d->more[rule]) {
                bool nests = grammar->rules[rule].nests && depth < BEYOND;
                grammar->rules[rule].depth = (uint8_t)(depth + nests);
                tell(d, d->callers[rule], grammar->rules[rule].depth);
            }
        }
    }
}

/* ---- edges ---- */

static int by_low(const void *a, const void *b)
{
    return (int)((const pm_edge *)a)->low - (int)((const pm_edge *)b)->low;
}

/* Puts each node's edges that lead somewhere side by side. */
static int order_edges(pm_grammar *grammar)
{
    pm_edge *ordered = calloc(grammar->n_edges + 1, sizeof(*ordered));
    size_t n = 0;
    if (!ordered)
        return PM_ERR_MEMORY;
    for (size_t k = 0; k < grammar->n_nodes; k++) {
        pm_node *node = &grammar->nodes[k];
        size_t first = n;
        if (node->kind > PM_NODE_SPLIT)
            continue;
        for (int32_t i = node->edges; i >= 0; i = grammar->edges[i].next)
            if (grammar->nodes[grammar->edges[i].to].depth != NEVER)
                ordered[n++] = grammar->edges[i];
        node->edges = (int32_t)first;
        node->n = (int32_t)(n - first);
        if (node->kind == PM_NODE_BYTES)
            qsort(ordered + first, n - first, sizeof(*ordered), by_low);
    }
    free(grammar->edges);
    grammar->edges = ordered;
    grammar->n_edges = grammar->edges_cap = n;
    return PM_OK;
}

int pm_grammar_finish(pm_grammar *grammar, int32_t root)
{
    depths d;
    if (grammar->status != PM_OK)
        return grammar->status;
    bool ok = depths_init(&d, grammar);
    if (ok) {
        link_all(&d);
        find_depths(&d);
    }
    depths_free(&d);
    if (!ok)
        return PM_ERR_MEMORY;
    uint8_t depth = grammar->rules[root].depth;
    if (depth > PM_DEPTH_MAX)
        return depth == NEVER ? PM_ERR_INVALID : PM_ERR_LIMIT;
    for (size_t i = 0; i < grammar->n_nodes; i++)
        if (grammar->nodes[i].depth <= PM_DEPTH_MAX)
            grammar->deepest = deeper(grammar->deepest, grammar->nodes[i].depth);
    return order_edges(grammar);
}
