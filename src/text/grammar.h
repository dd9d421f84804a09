/* A language over bytes that an answer can be held to: rules made of nodes, which take bytes, branch, call rules and
 * return, as a recursive transition network (Woods 1970). Grammars are built backwards: whoever builds a piece is given
 * the node that comes after it, and gives the node where it begins.
 *
 * A marker that the vocabulary has as a token of its own is spelt between two bytes that no text has, so that neither a
 * text can hold it nor other tokens spell it. */
#ifndef PM_GRAMMAR_H
#define PM_GRAMMAR_H

#include "base/base.h"

enum {
    PM_NODES_MAX = 1 << 18, /* about two for each character of names and values */
    PM_EDGES_MAX = 1 << 19,
    PM_DEPTH_MAX = 200, /* objects and lists inside one another, as many as the reader of calls takes */
    PM_MARKER_OPEN = 0xFF,
    PM_MARKER_CLOSE = 0xFE
};

typedef enum pm_node_kind {
    PM_NODE_BYTES,  /* takes a byte, by its edges, which do not overlap */
    PM_NODE_SPLIT,  /* goes on at the end of any of its edges */
    PM_NODE_CALL,   /* goes through a rule, then on */
    PM_NODE_RETURN, /* ends a rule */
    PM_NODE_COUNT,  /* goes on when the rule's count is below the limit, and counts */
    PM_NODE_ENOUGH  /* goes on when the rule's count is at least the limit */
} pm_node_kind;

/* What an edge of PM_NODE_BYTES asks of its rule's count. */
typedef enum pm_guard {
    PM_GUARD_NONE,
    PM_GUARD_COUNT, /* that it is below most_low; and it counts */
    PM_GUARD_ENOUGH /* that it is at least `least` */
} pm_guard;

typedef struct pm_edge {
    uint8_t low, high; /* bytes, of PM_NODE_BYTES */
    uint8_t guard;
    int32_t to;
    int32_t next; /* while a grammar is built: the node's next edge, -1: none */
} pm_edge;

typedef struct pm_node {
    uint8_t kind;
    uint8_t depth;    /* objects and lists that must be opened inside one another to end the rule; 255: it cannot end */
    int32_t rule;     /* that it is part of; of PM_NODE_CALL `called` is the other one */
    int32_t edges, n; /* the first edge, and how many */
    int32_t next, called;
    int32_t limit;
    int32_t body; /* of PM_NODE_ENOUGH: a node as deep as what is counted */
} pm_node;

typedef struct pm_rule {
    int32_t start;
    bool nests; /* an object or a list */
    bool key;   /* the key of an object that no other member of it may have */
    uint8_t depth;
    int32_t least, most_low, most_high; /* limits of its nodes that count; most_high < 0: there are none */
} pm_rule;

typedef struct pm_grammar {
    pm_node *nodes; /* the first takes nothing and never ends */
    pm_edge *edges;
    pm_rule *rules;
    size_t n_nodes, n_edges, n_rules, nodes_cap, edges_cap, rules_cap;
    int32_t rule;    /* that nodes are built for */
    bool keys;       /* there are rules that are keys */
    uint8_t deepest; /* the largest depth of a node that can end */
    int status;      /* the first failure: PM_ERR_MEMORY or PM_ERR_LIMIT. Building goes on after it, with node 0 */
} pm_grammar;

int pm_grammar_init(pm_grammar *grammar); /* PM_OK or PM_ERR_MEMORY */
void pm_grammar_free(pm_grammar *grammar);

/* ---- building ---- */

/* A new rule; nodes are built for it between pm_rule_enter, which gives what pm_rule_leave takes back, and that. */
int32_t pm_rule_new(pm_grammar *grammar, bool nests);
int32_t pm_rule_enter(pm_grammar *grammar, int32_t rule);
void pm_rule_leave(pm_grammar *grammar, int32_t outer);

int32_t pm_node_bytes(pm_grammar *grammar);
int32_t pm_node_split(pm_grammar *grammar);
void pm_edge_add(pm_grammar *grammar, int32_t node, uint8_t low, uint8_t high, int32_t to);
void pm_way_add(pm_grammar *grammar, int32_t split, int32_t to);
/* Makes all edges that a node has count up to the limit (< 0: there is none). */
void pm_edges_count(pm_grammar *grammar, int32_t node, int32_t most);
/* An edge that is open from a count of `least` on. */
void pm_edge_enough(pm_grammar *grammar, int32_t node, uint8_t byte, int32_t least, int32_t to);
int32_t pm_edge_find(const pm_grammar *grammar, int32_t node, uint8_t byte); /* where it leads, -1: nowhere */
int32_t pm_node_call(pm_grammar *grammar, int32_t rule, int32_t next);
int32_t pm_node_return(pm_grammar *grammar);
int32_t pm_node_count(pm_grammar *grammar, int32_t most, int32_t next); /* most < 0: no limit */
int32_t pm_node_enough(pm_grammar *grammar, int32_t least, int32_t body, int32_t next);

/* Exactly these bytes. */
int32_t pm_node_text(pm_grammar *grammar, const char *text, size_t len, int32_t next);
/* One byte of a range. */
int32_t pm_node_range(pm_grammar *grammar, uint8_t low, uint8_t high, int32_t next);
/* One of two. */
int32_t pm_node_either(pm_grammar *grammar, int32_t one, int32_t other);
/* Adds edges for every character of more than one byte. */
void pm_edges_utf8(pm_grammar *grammar, int32_t node, int32_t next);

/* Adds to a node the edges of `from` for the bytes that it has none for, but not for `except` (< 0: none). */
void pm_edges_others(pm_grammar *grammar, int32_t node, int32_t from, int except);

/* ---- markers ---- */

/* The markers that the vocabulary has as tokens of their own: terminated texts. */
typedef struct pm_marker_texts {
    char **texts;
    size_t n;
} pm_marker_texts;

/* This text, in which markers are those tokens. */
int32_t pm_node_marked(pm_grammar *grammar, const pm_marker_texts *markers, const char *text, size_t len, int32_t next);

/* Any text up to the first place where this one stands, and this. One that is a marker is never spelt out. */
int32_t pm_node_until(pm_grammar *grammar, const pm_marker_texts *markers, const char *end, int32_t next);

/* ---- the end of building ---- */

/* Computes depths, takes out what cannot end, and puts the edges in order. PM_ERR_INVALID: nothing is in the language
 * of the rule `root`, PM_ERR_LIMIT: or nothing less deep than PM_DEPTH_MAX; else the first failure of building. */
int pm_grammar_finish(pm_grammar *grammar, int32_t root);

#endif
