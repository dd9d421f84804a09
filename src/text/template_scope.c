/* Which names a scope hides from its start. Jinja settles before rendering where each name of a scope lives: one that
 * the scope assigns before it reads it is the scope's own from the start, so that what runs before the assignment (the
 * body of a loop above it, say) finds it undefined, whatever the variables are. This follows jinja2/idtracking.py. */
#include "text/template_impl.h"

#include <stdlib.h>
#include <string.h>

/* What a name is at the start of its scope. */
enum { NO_NAME, PARAMETER, RESOLVED, ALIAS, UNSET };

typedef struct names {
    const struct names *parent;
    uint8_t *load;   /* [names of the template]: one of the above */
    uint8_t *stored; /* [names of the template] */
} names;

typedef struct analysis {
    tpl_parser *parser;
    size_t n; /* names of the template */
} analysis;

static bool scope_of(analysis *a, const names *parent, tpl_node *node);
static bool visit_block(analysis *a, names *scope, const tpl_block *block);

/* ---- the names of one scope ---- */

static bool names_new(analysis *a, names *out, const names *parent)
{
    *out = (names){parent, calloc(a->n + 1, 2), NULL};
    out->stored = out->load + a->n;
    return out->load || pm_tpl_no_memory(a->parser);
}

static bool known(const names *scope, int name)
{
    for (; scope; scope = scope->parent)
        if (scope->load[name])
            return true;
    return false;
}

static void load(names *scope, int name)
{
    if (!known(scope, name))
        scope->load[name] = RESOLVED;
}

static void store(names *scope, int name)
{
    scope->stored[name] = 1;
    if (!scope->load[name])
        scope->load[name] = known(scope->parent, name) ? ALIAS : UNSET;
}

static void declare(names *scope, int name)
{
    scope->stored[name] = 1;
    scope->load[name] = PARAMETER;
}

/* Stores to a target, or declares its names. A namespace is only read. */
static void target(names *scope, const tpl_node *node, bool parameter)
{
    if (node->kind == TPL_N_NS_ATTR)
        load(scope, node->name);
    else if (node->kind == TPL_N_NAME)
        (parameter ? declare : store)(scope, node->name);
    for (size_t i = 0; node->kind == TPL_N_TUPLE && i < node->items.n; i++)
        target(scope, node->items.items[i], parameter);
}

/* ---- what a scope reads and assigns ---- */

/* Every name in an expression is read. Chains of operators and filters go down on the left, where this does not
 * recurse. */
static void expression(names *scope, const tpl_node *node)
{
    for (; node; node = node->a) {
        if (node->kind == TPL_N_NAME)
            load(scope, node->name);
        for (size_t i = 0; i < node->items.n; i++)
            expression(scope, node->items.items[i]);
        for (size_t i = 0; i < node->args.n; i++)
            expression(scope, node->args.pos[i]);
        for (size_t i = 0; i < node->args.n_kw; i++)
            expression(scope, node->args.kw[i]);
        expression(scope, node->args.star);
        expression(scope, node->args.star_star);
        expression(scope, node->b);
        expression(scope, node->c);
        expression(scope, node->d);
    }
}

/* The branches of an if work on copies. What they assign starts as what it is outside. */
static bool visit_if(analysis *a, names *scope, const tpl_node *node, bool chain)
{
    enum { BRANCHES = 3 };
    names branch[BRANCHES] = {{0}};
    bool ok = true;
    expression(scope, node->a);
    for (int i = 0; ok && i < BRANCHES; i++) {
        ok = names_new(a, &branch[i], scope->parent);
        if (ok)
            memcpy(branch[i].load, scope->load, a->n * 2);
    }
    const tpl_node *last = node;
    ok = ok && visit_block(a, &branch[0], &node->body);
    for (; ok && chain && last->d; last = last->d)
        ok = visit_if(a, &branch[1], last->d, false);
    ok = ok && (!chain || visit_block(a, &branch[2], &last->other));
    for (size_t name = 0; ok && name < a->n; name++) {
        bool before = scope->stored[name];
        for (int i = 0; i < BRANCHES; i++) {
            scope->stored[name] |= branch[i].stored[name];
            if (branch[i].load[name])
                scope->load[name] = branch[i].load[name];
        }
        if (!before && scope->stored[name])
            scope->load[name] = known(scope->parent, (int)name) ? ALIAS : RESOLVED;
    }
    for (int i = 0; i < BRANCHES; i++)
        free(branch[i].load);
    return ok;
}

/* One statement: bodies that are scopes of their own are left out. */
static bool visit(analysis *a, names *scope, const tpl_node *node)
{
    switch ((tpl_node_kind)node->kind) {
    case TPL_N_IF: return visit_if(a, scope, node, true);
    case TPL_N_FOR: expression(scope, node->b); return true;
    case TPL_N_SET:
        expression(scope, node->b);
        target(scope, node->a, false);
        return true;
    case TPL_N_MACRO:
    case TPL_N_SET_BLOCK: target(scope, node->a, false); return true;
    case TPL_N_WITH:
        for (size_t i = 1; i < node->items.n; i += 2)
            expression(scope, node->items.items[i]);
        return true;
    case TPL_N_GENERATION:
    case TPL_N_BREAK:
    case TPL_N_CONTINUE: return true;
    default: expression(scope, node); return true; /* output, and the calls and filters of blocks */
    }
}

static bool visit_block(analysis *a, names *scope, const tpl_block *block)
{
    for (size_t i = 0; i < block->n; i++)
        if (!visit(a, scope, block->items[i]))
            return false;
    return true;
}

/* ---- scopes inside scopes ---- */

/* The scopes in a block, whose own names are all known by now. */
static bool inner_scopes(analysis *a, const names *scope, const tpl_block *block)
{
    for (size_t i = 0; i < block->n; i++) {
        tpl_node *node = block->items[i];
        bool ok = true;
        for (tpl_node *branch = node; ok && node->kind == TPL_N_IF && branch; branch = branch->d)
            ok = inner_scopes(a, scope, &branch->body) && inner_scopes(a, scope, &branch->other);
        if (!ok || (node->kind != TPL_N_IF && !scope_of(a, scope, node)))
            return false;
    }
    return true;
}

/* Completes a scope with its body, and keeps the names that are unset when it starts. */
static bool finish(analysis *a, names *scope, tpl_block *body)
{
    size_t n = 0;
    if (!visit_block(a, scope, body))
        return false;
    for (size_t name = 0; name < a->n; name++)
        n += scope->load[name] == UNSET;
    if (n && !(body->unset = pm_tpl_alloc(a->parser->heap, n, sizeof(*body->unset))))
        return pm_tpl_no_memory(a->parser);
    for (size_t name = 0; name < a->n; name++)
        if (scope->load[name] == UNSET)
            body->unset[body->n_unset++] = (int)name;
    return inner_scopes(a, scope, body);
}

/* The scope that a node opens, if it does. */
static bool scope_of(analysis *a, const names *parent, tpl_node *node)
{
    names scope, other = {0};
    tpl_block *body = node->macro ? &node->macro->body : &node->body;
    if (node->kind < TPL_N_FOR || node->kind == TPL_N_SET || node->kind >= TPL_N_BREAK)
        return true;
    if (!names_new(a, &scope, parent))
        return false;
    if (node->kind == TPL_N_FOR) {
        declare(&scope, TPL_NAME_LOOP);
        target(&scope, node->a, true);
    }
    for (size_t i = 0; node->kind == TPL_N_WITH && i < node->items.n; i += 2)
        target(&scope, node->items.items[i], true);
    for (size_t i = 0; node->macro && i < node->macro->n; i++)
        declare(&scope, node->macro->params[i]);
    for (size_t i = 0; node->macro && i < node->macro->n; i++)
        expression(&scope, node->macro->defaults[i]);
    bool ok = finish(a, &scope, body);
    if (ok && node->other.n)
        ok = names_new(a, &other, parent) && finish(a, &other, &node->other);
    free(scope.load);
    free(other.load);
    return ok;
}

bool pm_tpl_find_unset(tpl_parser *parser, tpl_block *body)
{
    analysis a = {parser, parser->n_names};
    names top;
    bool ok = names_new(&a, &top, NULL) && finish(&a, &top, body);
    free(top.load);
    return ok;
}
