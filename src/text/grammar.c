#include "text/grammar.h"

#include <stdlib.h>
#include <string.h>

/* ---- building ---- */

static void fail(pm_grammar *grammar, int status)
{
    if (grammar->status == PM_OK)
        grammar->status = status;
}

/* Room for one more element. */
static bool room(pm_grammar *grammar, void **array, size_t *cap, size_t n, size_t max, size_t size)
{
    if (grammar->status == PM_OK && n >= max)
        fail(grammar, PM_ERR_LIMIT);
    if (grammar->status == PM_OK && pm_grow(array, cap, n + 1, size) != PM_OK)
        fail(grammar, PM_ERR_MEMORY);
    return grammar->status == PM_OK;
}

static int32_t add_node(pm_grammar *grammar, pm_node node)
{
    void *nodes = grammar->nodes;
    bool ok = room(grammar, &nodes, &grammar->nodes_cap, grammar->n_nodes, PM_NODES_MAX, sizeof(node));
    grammar->nodes = nodes;
    if (!ok)
        return 0;
    node.rule = grammar->rule;
    node.edges = node.kind <= PM_NODE_SPLIT ? -1 : 0;
    grammar->nodes[grammar->n_nodes] = node;
    return (int32_t)grammar->n_nodes++;
}

int pm_grammar_init(pm_grammar *grammar)
{
    *grammar = (pm_grammar){0};
    pm_rule_new(grammar, false);
    add_node(grammar, (pm_node){.kind = PM_NODE_BYTES});
    if (grammar->status == PM_OK)
        return PM_OK;
    pm_grammar_free(grammar);
    return PM_ERR_MEMORY;
}

void pm_grammar_free(pm_grammar *grammar)
{
    free(grammar->nodes);
    free(grammar->edges);
    free(grammar->rules);
    *grammar = (pm_grammar){0};
}

int32_t pm_rule_new(pm_grammar *grammar, bool nests)
{
    void *rules = grammar->rules;
    bool ok = room(grammar, &rules, &grammar->rules_cap, grammar->n_rules, PM_NODES_MAX, sizeof(*grammar->rules));
    grammar->rules = rules;
    if (!ok)
        return 0;
    grammar->rules[grammar->n_rules] = (pm_rule){.nests = nests, .most_high = -1};
    return (int32_t)grammar->n_rules++;
}

int32_t pm_rule_enter(pm_grammar *grammar, int32_t rule)
{
    int32_t outer = grammar->rule;
    grammar->rule = rule;
    return outer;
}

void pm_rule_leave(pm_grammar *grammar, int32_t outer)
{
    grammar->rule = outer;
}

int32_t pm_node_bytes(pm_grammar *grammar)
{
    return add_node(grammar, (pm_node){.kind = PM_NODE_BYTES});
}

int32_t pm_node_split(pm_grammar *grammar)
{
    return add_node(grammar, (pm_node){.kind = PM_NODE_SPLIT});
}

void pm_edge_add(pm_grammar *grammar, int32_t node, uint8_t low, uint8_t high, int32_t to)
{
    void *edges = grammar->edges;
    bool ok = room(grammar, &edges, &grammar->edges_cap, grammar->n_edges, PM_EDGES_MAX, sizeof(*grammar->edges));
    grammar->edges = edges;
    if (!ok || node == 0 || to == 0 || low > high)
        return;
    pm_node *from = &grammar->nodes[node];
    grammar->edges[grammar->n_edges] = (pm_edge){.low = low, .high = high, .to = to, .next = from->edges};
    from->edges = (int32_t)grammar->n_edges++;
    from->n++;
}

void pm_way_add(pm_grammar *grammar, int32_t split, int32_t to)
{
    pm_edge_add(grammar, split, 0, 0, to);
}

int32_t pm_edge_find(const pm_grammar *grammar, int32_t node, uint8_t byte)
{
    for (int32_t i = grammar->nodes[node].edges; i >= 0; i = grammar->edges[i].next)
        if (grammar->edges[i].low <= byte && byte <= grammar->edges[i].high)
            return grammar->edges[i].to;
    return -1;
}

int32_t pm_node_call(pm_grammar *grammar, int32_t rule, int32_t next)
{
    return add_node(grammar, (pm_node){.kind = PM_NODE_CALL, .called = rule, .next = next});
}

int32_t pm_node_return(pm_grammar *grammar)
{
    return add_node(grammar, (pm_node){.kind = PM_NODE_RETURN});
}

/* Takes note of the limits of the rule that is being built. */
static void limit_most(pm_grammar *grammar, int32_t most)
{
    pm_rule *rule = &grammar->rules[grammar->rule];
    if (most >= 0) {
        rule->most_low = rule->most_high < 0 || most < rule->most_low ? most : rule->most_low;
        rule->most_high = most > rule->most_high ? most : rule->most_high;
    }
}

static void limit_least(pm_grammar *grammar, int32_t least)
{
    pm_rule *rule = &grammar->rules[grammar->rule];
    rule->least = least > rule->least ? least : rule->least;
}

void pm_edges_count(pm_grammar *grammar, int32_t node, int32_t most)
{
    for (int32_t i = grammar->nodes[node].edges; node && i >= 0; i = grammar->edges[i].next)
        grammar->edges[i].guard = PM_GUARD_COUNT;
    limit_most(grammar, most);
}

void pm_edge_enough(pm_grammar *grammar, int32_t node, uint8_t byte, int32_t least, int32_t to)
{
    pm_edge_add(grammar, node, byte, byte, to);
    if (grammar->status == PM_OK && node && to && least > 0)
        grammar->edges[grammar->n_edges - 1].guard = PM_GUARD_ENOUGH;
    limit_least(grammar, least);
}

int32_t pm_node_count(pm_grammar *grammar, int32_t most, int32_t next)
{
    limit_most(grammar, most);
    return add_node(grammar, (pm_node){.kind = PM_NODE_COUNT, .limit = most >= 0 ? most : INT32_MAX, .next = next});
}

int32_t pm_node_enough(pm_grammar *grammar, int32_t least, int32_t body, int32_t next)
{
    limit_least(grammar, least);
    return add_node(grammar, (pm_node){.kind = PM_NODE_ENOUGH, .limit = least, .body = body, .next = next});
}

int32_t pm_node_range(pm_grammar *grammar, uint8_t low, uint8_t high, int32_t next)
{
    int32_t node = pm_node_bytes(grammar);
    pm_edge_add(grammar, node, low, high, next);
    return node;
}

int32_t pm_node_text(pm_grammar *grammar, const char *text, size_t len, int32_t next)
{
    while (len-- > 0)
        next = pm_node_range(grammar, (uint8_t)text[len], (uint8_t)text[len], next);
    return next;
}

int32_t pm_node_either(pm_grammar *grammar, int32_t one, int32_t other)
{
    int32_t node = pm_node_split(grammar);
    pm_way_add(grammar, node, one);
    pm_way_add(grammar, node, other);
    return node;
}

/* Well-formed sequences: Unicode Standard, table 3-7. */
void pm_edges_utf8(pm_grammar *grammar, int32_t node, int32_t next)
{
    int32_t one = pm_node_range(grammar, 0x80, 0xBF, next), two = pm_node_range(grammar, 0x80, 0xBF, one),
            three = pm_node_range(grammar, 0x80, 0xBF, two);
    pm_edge_add(grammar, node, 0xC2, 0xDF, one);
    pm_edge_add(grammar, node, 0xE0, 0xE0, pm_node_range(grammar, 0xA0, 0xBF, one));
    pm_edge_add(grammar, node, 0xE1, 0xEC, two);
    pm_edge_add(grammar, node, 0xED, 0xED, pm_node_range(grammar, 0x80, 0x9F, one));
    pm_edge_add(grammar, node, 0xEE, 0xEF, two);
    pm_edge_add(grammar, node, 0xF0, 0xF0, pm_node_range(grammar, 0x90, 0xBF, two));
    pm_edge_add(grammar, node, 0xF1, 0xF3, three);
    pm_edge_add(grammar, node, 0xF4, 0xF4, pm_node_range(grammar, 0x80, 0x8F, two));
}

void pm_edges_others(pm_grammar *grammar, int32_t node, int32_t from, int except)
{
    int32_t run = -1;
    for (int byte = 0, start = 0; byte <= 256; byte++) {
        bool taken = byte == 256 || pm_edge_find(grammar, node, (uint8_t)byte) >= 0 || byte == except;
        int32_t to = taken ? -1 : pm_edge_find(grammar, from, (uint8_t)byte);
        if (to == run)
            continue;
        if (run >= 0)
            pm_edge_add(grammar, node, (uint8_t)start, (uint8_t)(byte - 1), run);
        run = to;
        start = byte;
    }
}
