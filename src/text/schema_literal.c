/* Values that are given one by one, and what is none of them: trees of bytes. */
#include "text/schema_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The digits that give a real number back; 17 of any other value. */
static size_t digits_of(const json_t *value)
{
    char text[64];
    double number = json_real_value(value);
    for (int digits = 1; json_is_real(value) && digits < 17; digits++) {
        snprintf(text, sizeof(text), "%.*g", digits, number);
        if (strtod(text, NULL) == number)
            return (size_t)digits;
    }
    return 17;
}

int pm_json_literal(json_t *value, bool no_angle, pm_buf *out)
{
    size_t flags = JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(digits_of(value));
    char *text = value ? json_dumps(value, flags) : NULL;
    int status = text ? PM_OK : PM_ERR_MEMORY;
    json_decref(value);
    for (const char *p = text; status == PM_OK && *p; p++) {
        bool angle = no_angle && *p == '<'; /* it is in a string */
        status = pm_buf_add(out, angle ? "\\u003c" : p, angle ? 6 : 1);
    }
    free(text);
    return status;
}

/* ---- one of some texts ---- */

/* A byte of a text leads to a node that branches, right behind the one that takes the next byte. */
static int32_t grow_branch(pm_grammar *grammar)
{
    int32_t bytes = pm_node_bytes(grammar), branch = pm_node_split(grammar);
    if (grammar->status != PM_OK)
        return 0;
    pm_way_add(grammar, branch, bytes);
    return branch;
}

void pm_choice_add(pm_grammar *grammar, int32_t choice, const char *text, size_t len, int32_t next)
{
    int32_t branch = choice;
    for (size_t i = 0; i < len && branch; i++) {
        int32_t to = pm_edge_find(grammar, branch - 1, (uint8_t)text[i]);
        if (to < 0) {
            to = grow_branch(grammar);
            pm_edge_add(grammar, branch - 1, (uint8_t)text[i], (uint8_t)text[i], to);
        }
        branch = to;
    }
    if (branch)
        pm_way_add(grammar, branch, next);
}

int32_t pm_choice_new(pm_grammar *grammar)
{
    return grow_branch(grammar);
}

static void add_literal(pm_schema_reader *reader, int32_t choice, json_t *value, int types, int32_t next)
{
    pm_buf text = {0};
    if (!(pm_type_of(value) & types))
        return;
    if (pm_json_literal(json_incref(value), reader->no_angle, &text) != PM_OK)
        pm_schema_fail_memory(reader);
    else
        pm_choice_add(reader->grammar, choice, text.data, text.len, next);
    pm_buf_free(&text);
}

int32_t pm_schema_literals(pm_schema_reader *reader, const json_t *schema, int types)
{
    json_t *list = json_object_get(schema, "enum"), *constant = json_object_get(schema, "const"), *value;
    int32_t end = pm_node_return(reader->grammar), choice = pm_choice_new(reader->grammar);
    size_t i;
    if (list && !json_array_size(list))
        return pm_schema_fail(reader, PM_ERR_INVALID, "'enum' is not a list of values");
    json_array_foreach(list, i, value) add_literal(reader, choice, value, types, end);
    if (constant)
        add_literal(reader, choice, constant, types, end);
    return choice;
}

/* ---- none of some names ---- */

/* A node of the tree of names. */
typedef struct name_node {
    int32_t free;  /* where other keys are behind the same bytes; -1: no other key begins so */
    bool complete; /* a name ends here */
} name_node;

typedef struct name_tree {
    pm_grammar *grammar;
    int32_t first; /* nodes of the grammar stand side by side from here on */
    name_node *nodes;
    size_t n, cap;
} name_tree;

static int32_t grow_tree(name_tree *tree, int32_t free_key)
{
    void *nodes = tree->nodes;
    int32_t node = pm_node_bytes(tree->grammar);
    if (tree->grammar->status == PM_OK && pm_grow(&nodes, &tree->cap, tree->n + 1, sizeof(*tree->nodes)) != PM_OK)
        tree->grammar->status = PM_ERR_MEMORY;
    tree->nodes = nodes;
    if (tree->grammar->status == PM_OK)
        tree->nodes[tree->n++] = (name_node){.free = free_key};
    return node;
}

/* Adds a name as JSON spells it, without its quotes. */
static void add_name(name_tree *tree, const char *text, size_t len)
{
    pm_grammar *grammar = tree->grammar;
    int32_t at = tree->first;
    for (size_t i = 0; i < len && grammar->status == PM_OK; i++) {
        uint8_t byte = (uint8_t)text[i];
        int32_t to = pm_edge_find(grammar, at, byte), free_key = tree->nodes[at - tree->first].free;
        if (to < 0) {
            to = grow_tree(tree, free_key < 0 ? -1 : pm_edge_find(grammar, free_key, byte));
            pm_edge_add(grammar, at, byte, byte, to);
        }
        at = to;
    }
    if (grammar->status == PM_OK)
        tree->nodes[at - tree->first].complete = true;
}

/* Characters of a key, each spelt in one way only, so that keys are equal when their bytes are. */
static int32_t build_free(pm_grammar *grammar, bool no_angle, int32_t end)
{
    int32_t node = pm_node_bytes(grammar), escape = pm_node_bytes(grammar);
    pm_edge_add(grammar, node, '"', '"', end);
    pm_edge_add(grammar, node, ' ', '!', node);
    pm_edge_add(grammar, node, '#', no_angle ? '<' - 1 : '[', node);
    if (no_angle)
        pm_edge_add(grammar, node, '<' + 1, '[', node);
    pm_edge_add(grammar, node, ']', 0x7F, node);
    pm_edge_add(grammar, node, '\\', '\\', escape);
    for (const char *p = "\"\\bfnrt"; *p; p++)
        pm_edge_add(grammar, escape, (uint8_t)*p, (uint8_t)*p, node);
    pm_edges_utf8(grammar, node, node);
    return node;
}

int32_t pm_key_body(pm_schema_reader *reader, const json_t *names)
{
    pm_grammar *grammar = reader->grammar;
    name_tree tree = {.grammar = grammar};
    const char *name;
    json_t *value;
    int32_t free_key = build_free(grammar, reader->no_angle, pm_node_return(grammar));
    tree.first = grow_tree(&tree, free_key);
    json_object_foreach((json_t *)names, name, value)
    {
        pm_buf text = {0};
        if (pm_json_literal(json_string(name), reader->no_angle, &text) != PM_OK)
            pm_schema_fail_memory(reader);
        else
            add_name(&tree, text.data + 1, text.len - 2);
        pm_buf_free(&text);
    }
    for (size_t i = 0; i < tree.n && grammar->status == PM_OK; i++)
        if (tree.nodes[i].free >= 0)
            pm_edges_others(grammar, tree.first + (int32_t)i, tree.nodes[i].free, tree.nodes[i].complete ? '"' : -1);
    free(tree.nodes);
    return tree.first;
}
