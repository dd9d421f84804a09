/* The parser: tokens to tree. Expressions here, in Jinja's order of precedence; statements in template_statement.c. */
#include "text/template_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void pm_tpl_report_syntax(tpl_parser *parser, tpl_place place, pm_status code, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    pm_fail(parser->err, code, "%s:%d:%d: %s", parser->tmpl->name, place.line, place.column, text);
}

tpl_node *pm_tpl_node(tpl_parser *parser, tpl_node_kind kind, tpl_place place)
{
    tpl_node *node = pm_tpl_alloc(parser->heap, 1, sizeof(*node));
    if (!node) {
        pm_fail_memory(parser->err);
        return NULL;
    }
    node->kind = (uint8_t)kind;
    node->place = place;
    node->name = -1;
    return node;
}

int pm_tpl_name(tpl_parser *parser, const char *name)
{
    int index = pm_map_get(&parser->names, name, strlen(name), -1);
    if (index >= 0)
        return index;
    if (parser->n_names == TPL_MAX_NAMES) {
        pm_tpl_report_syntax(parser, parser->token->place, PM_ERR_UNSUPPORTED, "more than %d variables", TPL_MAX_NAMES);
        return -1;
    }
    void *list = parser->name_list;
    int status = pm_grow(&list, &parser->cap_names, parser->n_names + 1, sizeof(*parser->name_list));
    parser->name_list = list;
    if (status == PM_OK)
        status = pm_map_set(&parser->names, name, strlen(name), (int)parser->n_names);
    if (status != PM_OK) {
        pm_fail_memory(parser->err);
        return -1;
    }
    parser->name_list[parser->n_names] = name;
    return (int)parser->n_names++;
}

/* ---- tokens ---- */

bool pm_tpl_is_op(const tpl_parser *parser, tpl_op op)
{
    return parser->token->type == TPL_T_OP && parser->token->op == op;
}

bool pm_tpl_is_name(const tpl_parser *parser, const char *name)
{
    return parser->token->type == TPL_T_NAME && !strcmp(parser->token->text, name);
}

bool pm_tpl_skip_op(tpl_parser *parser, tpl_op op)
{
    bool is = pm_tpl_is_op(parser, op);
    parser->token += is;
    return is;
}

bool pm_tpl_skip_name(tpl_parser *parser, const char *name)
{
    bool is = pm_tpl_is_name(parser, name);
    parser->token += is;
    return is;
}

void pm_tpl_report_unexpected(tpl_parser *parser, const char *wanted)
{
    static const char *const ops[] = {"",   "+", "-", "*", "/", "//", "%", "**", "~", "==", "!=", "<", "<=", ">",
                                      ">=", "=", ".", ":", "|", ",",  ";", "(",  ")", "[",  "]",  "{", "}"};
    static const char *const types[] = {"the end of the template",
                                        "text",
                                        "{{",
                                        "}}",
                                        "{%",
                                        "%}",
                                        "a name",
                                        "a string",
                                        "an integer",
                                        "a float",
                                        "an operator"};
    const tpl_token *token = parser->token;
    const char *got = token->type == TPL_T_NAME ? token->text
                      : token->type == TPL_T_OP ? ops[token->op]
                                                : types[token->type];
    pm_tpl_report_syntax(parser, token->place, PM_ERR_FORMAT, "expected %s, got '%.80s'", wanted, got);
}

bool pm_tpl_expect_op(tpl_parser *parser, tpl_op op)
{
    static const char *const wanted[] = {[TPL_ASSIGN] = "'='",   [TPL_COLON] = "':'",  [TPL_COMMA] = "','",
                                         [TPL_LPAREN] = "'('",   [TPL_RPAREN] = "')'", [TPL_LBRACKET] = "'['",
                                         [TPL_RBRACKET] = "']'", [TPL_LBRACE] = "'{'", [TPL_RBRACE] = "'}'"};
    return pm_tpl_skip_op(parser, op) || pm_tpl_unexpected(parser, wanted[op]);
}

bool pm_tpl_expect_name(tpl_parser *parser, const char **name)
{
    if (parser->token->type != TPL_T_NAME)
        return pm_tpl_unexpected(parser, "a name");
    *name = parser->token->text;
    parser->token++;
    return true;
}

/* ---- lists of nodes ---- */

bool pm_tpl_push(tpl_parser *parser, tpl_nodes *list, tpl_node *node)
{
    void *items = list->items;
    int status = pm_grow(&items, &list->cap, list->n + 1, sizeof(void *));
    list->items = items;
    if (status != PM_OK)
        return pm_tpl_no_memory(parser);
    list->items[list->n++] = node;
    return true;
}

bool pm_tpl_seal(tpl_parser *parser, tpl_nodes *list, bool ok, tpl_block *out)
{
    if (ok && list->n) {
        out->items = pm_tpl_alloc(parser->heap, list->n, sizeof(void *));
        if (out->items)
            memcpy(out->items, list->items, list->n * sizeof(void *));
        else
            ok = pm_tpl_no_memory(parser);
        out->n = list->n;
    }
    free(list->items);
    *list = (tpl_nodes){0};
    return ok;
}

/* Brackets and blocks may nest only so far, because this parser and the evaluator recurse. */
static bool enter(tpl_parser *parser)
{
    if (++parser->nest <= TPL_MAX_NEST)
        return true;
    return pm_tpl_syntax(parser, parser->token->place, PM_ERR_UNSUPPORTED, "nested more than %d deep", TPL_MAX_NEST);
}

/* ---- primary expressions ---- */

static bool constant(tpl_parser *parser, tpl_place place, tpl_value value, tpl_node **out)
{
    tpl_node *node = *out = pm_tpl_node(parser, TPL_N_CONST, place);
    if (node)
        node->value = value;
    return node != NULL;
}

/* A trusted string: it stands in the template's own source. */
static bool literal(tpl_parser *parser, const char *text, size_t len, tpl_value *out)
{
    tpl_str *s = pm_tpl_alloc(parser->heap, 1, sizeof(*s));
    if (!s)
        return pm_tpl_no_memory(parser);
    *s = (tpl_str){.data = text, .len = len, .uniform = 1};
    *out = (tpl_value){.kind = TPL_STR, .trust = 1, .s = s};
    return true;
}

/* Adjacent string literals are one. */
static bool parse_string(tpl_parser *parser, tpl_node **out)
{
    const tpl_token *first = parser->token;
    size_t len = 0;
    for (; parser->token->type == TPL_T_STRING; parser->token++)
        len += parser->token->len;
    char *text = pm_tpl_alloc(parser->heap, len + 1, 1);
    if (!text)
        return pm_tpl_no_memory(parser);
    size_t at = 0;
    for (const tpl_token *token = first; token < parser->token; token++) {
        if (token->len)
            memcpy(text + at, token->text, token->len);
        at += token->len;
    }
    tpl_value value;
    return literal(parser, text, len, &value) && constant(parser, first->place, value, out);
}

/* Elements up to `close`; for a dict, keys and values in turn. */
static bool parse_elements(tpl_parser *parser, tpl_node_kind kind, tpl_op close, tpl_node **out)
{
    tpl_node *node = *out = pm_tpl_node(parser, kind, parser->token->place), *element;
    if (!node)
        return false;
    tpl_nodes list = {0};
    bool ok = true;
    parser->token++;
    while (ok && !pm_tpl_is_op(parser, close)) {
        if (list.n && (!(ok = pm_tpl_expect_op(parser, TPL_COMMA)) || pm_tpl_is_op(parser, close)))
            break;
        ok = pm_tpl_parse_expression(parser, &element) && pm_tpl_push(parser, &list, element);
        if (ok && kind == TPL_N_DICT)
            ok = pm_tpl_expect_op(parser, TPL_COLON) && pm_tpl_parse_expression(parser, &element) &&
                 pm_tpl_push(parser, &list, element);
    }
    ok = ok && pm_tpl_expect_op(parser, close);
    return pm_tpl_seal(parser, &list, ok, &node->items);
}

/* Reading one of a macro's special names makes the macro collect it. */
static void note_special(tpl_parser *parser, const char *name)
{
    if (!parser->uses)
        return;
    parser->uses->varargs |= !strcmp(name, "varargs");
    parser->uses->kwargs |= !strcmp(name, "kwargs");
    parser->uses->caller |= !strcmp(name, "caller");
}

static bool parse_name(tpl_parser *parser, tpl_node **out)
{
    static const struct {
        const char *name;
        tpl_value value;
    } constants[] = {{"true", {.kind = TPL_BOOL, .trust = 1, .b = true}},
                     {"True", {.kind = TPL_BOOL, .trust = 1, .b = true}},
                     {"false", {.kind = TPL_BOOL, .trust = 1}},
                     {"False", {.kind = TPL_BOOL, .trust = 1}},
                     {"none", {.kind = TPL_NONE, .trust = 1}},
                     {"None", {.kind = TPL_NONE, .trust = 1}}};
    const tpl_token *token = parser->token++;
    for (size_t i = 0; i < PM_COUNT(constants); i++)
        if (!strcmp(token->text, constants[i].name))
            return constant(parser, token->place, constants[i].value, out);
    tpl_node *node = *out = pm_tpl_node(parser, TPL_N_NAME, token->place);
    if (!node)
        return false;
    note_special(parser, token->text);
    node->name = pm_tpl_name(parser, token->text);
    return node->name >= 0;
}

static bool parse_primary(tpl_parser *parser, tpl_node **out)
{
    const tpl_token *token = parser->token;
    bool ok;
    switch (token->type) {
    case TPL_T_NAME: return parse_name(parser, out);
    case TPL_T_STRING: return parse_string(parser, out);
    case TPL_T_INT:
        parser->token++;
        return constant(parser, token->place, (tpl_value){.kind = TPL_INT, .trust = 1, .i = token->i}, out);
    case TPL_T_FLOAT:
        parser->token++;
        return constant(parser, token->place, (tpl_value){.kind = TPL_FLOAT, .trust = 1, .f = token->f}, out);
    default: break;
    }
    if (!enter(parser))
        return false;
    if (pm_tpl_is_op(parser, TPL_LBRACKET))
        ok = parse_elements(parser, TPL_N_LIST, TPL_RBRACKET, out);
    else if (pm_tpl_is_op(parser, TPL_LBRACE))
        ok = parse_elements(parser, TPL_N_DICT, TPL_RBRACE, out);
    else if (pm_tpl_skip_op(parser, TPL_LPAREN))
        ok = pm_tpl_parse_tuple(parser, true, "(", out) && pm_tpl_expect_op(parser, TPL_RPAREN);
    else
        ok = pm_tpl_unexpected(parser, "an expression");
    parser->nest--;
    return ok;
}

/* ---- calls, attributes, items ---- */

static bool parse_keyword(tpl_parser *parser, tpl_nodes *names, tpl_nodes *values)
{
    tpl_node *name = pm_tpl_node(parser, TPL_N_CONST, parser->token->place), *value;
    if (!name)
        return false;
    name->value.s = NULL;
    const char *text = parser->token->text;
    parser->token += 2;
    if (!literal(parser, text, strlen(text), &name->value) || !pm_tpl_parse_expression(parser, &value))
        return false;
    return pm_tpl_push(parser, names, name) && pm_tpl_push(parser, values, value);
}

/* One argument: f(x), f(name=x), f(*x) or f(**x), in Jinja's order. */
static bool parse_argument(tpl_parser *parser, tpl_arguments *args, tpl_nodes *pos, tpl_nodes *names, tpl_nodes *values)
{
    tpl_place place = parser->token->place;
    bool right = true;
    if (pm_tpl_is_op(parser, TPL_MUL)) {
        right = !args->star && !args->star_star;
        parser->token++;
        return (right || pm_tpl_syntax(parser, place, PM_ERR_FORMAT, "a call has arguments in a wrong order")) &&
               pm_tpl_parse_expression(parser, &args->star);
    }
    if (pm_tpl_is_op(parser, TPL_POW)) {
        right = !args->star_star;
        parser->token++;
        return (right || pm_tpl_syntax(parser, place, PM_ERR_FORMAT, "a call has arguments in a wrong order")) &&
               pm_tpl_parse_expression(parser, &args->star_star);
    }
    bool keyword =
        parser->token->type == TPL_T_NAME && parser->token[1].type == TPL_T_OP && parser->token[1].op == TPL_ASSIGN;
    right = !args->star_star && (keyword || (!args->star && !names->n));
    if (!right)
        return pm_tpl_syntax(parser, place, PM_ERR_FORMAT, "a call has arguments in a wrong order");
    if (keyword)
        return parse_keyword(parser, names, values);
    tpl_node *node;
    return pm_tpl_parse_expression(parser, &node) && pm_tpl_push(parser, pos, node);
}

/* The arguments of a call, brackets included. */
static bool parse_arguments(tpl_parser *parser, tpl_arguments *args)
{
    tpl_nodes pos = {0}, names = {0}, values = {0};
    tpl_block p = {0}, k = {0}, v = {0};
    bool ok = pm_tpl_expect_op(parser, TPL_LPAREN), first = true;
    while (ok && !pm_tpl_is_op(parser, TPL_RPAREN)) {
        if (!first && (!(ok = pm_tpl_expect_op(parser, TPL_COMMA)) || pm_tpl_is_op(parser, TPL_RPAREN)))
            break;
        first = false;
        ok = parse_argument(parser, args, &pos, &names, &values);
    }
    ok = ok && pm_tpl_expect_op(parser, TPL_RPAREN);
    ok = pm_tpl_seal(parser, &pos, ok, &p);
    ok = pm_tpl_seal(parser, &names, ok, &k);
    ok = pm_tpl_seal(parser, &values, ok, &v);
    if (!ok)
        return false;
    args->pos = p.items;
    args->n = p.n;
    args->kw = v.items;
    args->n_kw = v.n;
    args->kw_names = pm_tpl_alloc(parser->heap, k.n, sizeof(*args->kw_names));
    if (!args->kw_names)
        return pm_tpl_no_memory(parser);
    for (size_t i = 0; i < k.n; i++)
        args->kw_names[i] = k.items[i]->value.s->data;
    return true;
}

static bool parse_attribute(tpl_parser *parser, tpl_node *object, tpl_node **out)
{
    tpl_place place = parser->token->place;
    parser->token++;
    const tpl_token *token = parser->token;
    bool number = token->type == TPL_T_INT;
    if (!number && token->type != TPL_T_NAME)
        return pm_tpl_unexpected(parser, "a name or a number");
    tpl_node *node = *out = pm_tpl_node(parser, number ? TPL_N_ITEM : TPL_N_ATTR, place);
    if (!node)
        return false;
    parser->token++;
    node->a = object;
    if (number)
        return constant(parser, place, (tpl_value){.kind = TPL_INT, .trust = 1, .i = token->i}, &node->b);
    return literal(parser, token->text, token->len, &node->value);
}

/* One part of a slice, which may be missing. */
static bool parse_bound(tpl_parser *parser, tpl_node **out)
{
    *out = NULL;
    return pm_tpl_is_op(parser, TPL_COLON) || pm_tpl_is_op(parser, TPL_RBRACKET) ||
           pm_tpl_parse_expression(parser, out);
}

static bool parse_subscript(tpl_parser *parser, tpl_node *object, tpl_node **out)
{
    tpl_node *node = *out = pm_tpl_node(parser, TPL_N_ITEM, parser->token->place);
    if (!node)
        return false;
    parser->token++;
    node->a = object;
    if (!parse_bound(parser, &node->b))
        return false;
    if (pm_tpl_skip_op(parser, TPL_COLON)) {
        node->kind = TPL_N_SLICE;
        if (!parse_bound(parser, &node->c))
            return false;
        if (pm_tpl_skip_op(parser, TPL_COLON) && !parse_bound(parser, &node->d))
            return false;
    } else if (!node->b) {
        return pm_tpl_unexpected(parser, "an index");
    }
    if (node->kind == TPL_N_ITEM && pm_tpl_is_op(parser, TPL_COMMA)) {
        tpl_node *tuple = pm_tpl_node(parser, TPL_N_TUPLE, node->place), *element;
        tpl_nodes list = {0};
        bool ok = tuple && pm_tpl_push(parser, &list, node->b);
        while (ok && pm_tpl_skip_op(parser, TPL_COMMA))
            ok = pm_tpl_parse_expression(parser, &element) && pm_tpl_push(parser, &list, element);
        if (!pm_tpl_seal(parser, &list, ok, tuple ? &tuple->items : NULL))
            return false;
        node->b = tuple;
    }
    return pm_tpl_expect_op(parser, TPL_RBRACKET);
}

/* A call of what Python or Jinja have and this engine does not is refused here, not when it is reached. Methods go by
 * their name alone: nothing else that a template can call has the name of one. A global function may yet turn out to be
 * the name of a macro, so it is only noted. */
static bool check_callee(tpl_parser *parser, const tpl_node *callee)
{
    if (callee->kind == TPL_N_ATTR && pm_tpl_missing_method(callee->value.s->data))
        return pm_tpl_syntax(parser, callee->place, PM_ERR_UNSUPPORTED, "method '%.80s' is not supported",
                             callee->value.s->data);
    if (callee->kind == TPL_N_NAME && !parser->unsupported && !parser->shadows) {
        const tpl_builtin *global = pm_tpl_global(parser->name_list[callee->name]);
        if (global && !global->call)
            parser->unsupported = callee;
    }
    return true;
}

static bool parse_call(tpl_parser *parser, tpl_node *callee, tpl_node **out)
{
    tpl_node *node = *out = pm_tpl_node(parser, TPL_N_CALL, parser->token->place);
    if (!node || !check_callee(parser, callee))
        return false;
    node->a = callee;
    return parse_arguments(parser, &node->args);
}

/* Calls, attributes and items after an expression. */
static bool parse_postfix(tpl_parser *parser, tpl_node **out)
{
    bool ok = enter(parser);
    while (ok && parser->token->type == TPL_T_OP) {
        if (parser->token->op == TPL_DOT)
            ok = parse_attribute(parser, *out, out);
        else if (parser->token->op == TPL_LBRACKET)
            ok = parse_subscript(parser, *out, out);
        else if (parser->token->op == TPL_LPAREN)
            ok = parse_call(parser, *out, out);
        else
            break;
    }
    parser->nest--;
    return ok;
}

/* ---- filters and tests ---- */

/* Names may be dotted; none of ours is, so that they end up unknown. */
static bool parse_dotted(tpl_parser *parser, const char **out)
{
    const char *part = "";
    if (!pm_tpl_expect_name(parser, out))
        return false;
    while (pm_tpl_skip_op(parser, TPL_DOT)) {
        if (!pm_tpl_expect_name(parser, &part))
            return false;
        size_t n = strlen(*out) + strlen(part) + 2;
        char *joined = pm_tpl_alloc(parser->heap, n, 1);
        if (!joined)
            return pm_tpl_no_memory(parser);
        snprintf(joined, n, "%s.%s", *out, part);
        *out = joined;
    }
    return true;
}

/* Finds the filter or test of a node. As in Jinja, one inside a condition may be unknown until it is reached. */
static bool resolve(tpl_parser *parser, tpl_node *node, const char *name)
{
    bool filter = node->kind == TPL_N_FILTER;
    node->builtin = filter ? pm_tpl_filter(name) : pm_tpl_test(name);
    bool known = node->builtin && node->builtin->call;
    if (!known && (node->builtin || !parser->soft))
        return pm_tpl_syntax(parser, node->place, PM_ERR_UNSUPPORTED, "%s '%.80s' is not supported",
                             filter ? "filter" : "test", name);
    return literal(parser, name, strlen(name), &node->value);
}

bool pm_tpl_parse_filters(tpl_parser *parser, tpl_node *subject, bool named, tpl_node **out)
{
    *out = subject;
    while (named || pm_tpl_skip_op(parser, TPL_PIPE)) {
        named = false;
        const char *name;
        tpl_node *node = pm_tpl_node(parser, TPL_N_FILTER, parser->token->place);
        if (!node || !parse_dotted(parser, &name) || !resolve(parser, node, name))
            return false;
        node->a = *out;
        if (pm_tpl_is_op(parser, TPL_LPAREN) && !parse_arguments(parser, &node->args))
            return false;
        *out = node;
    }
    return true;
}

/* The argument of a test without brackets: x is divisibleby 3. */
static bool test_argument_follows(const tpl_parser *parser)
{
    switch (parser->token->type) {
    case TPL_T_STRING:
    case TPL_T_INT:
    case TPL_T_FLOAT: return true;
    case TPL_T_OP: return pm_tpl_is_op(parser, TPL_LBRACKET) || pm_tpl_is_op(parser, TPL_LBRACE);
    case TPL_T_NAME:
        return !pm_tpl_is_name(parser, "else") && !pm_tpl_is_name(parser, "or") && !pm_tpl_is_name(parser, "and");
    default: return false;
    }
}

static bool parse_test(tpl_parser *parser, tpl_node *subject, tpl_node **out)
{
    tpl_place place = parser->token->place;
    parser->token++;
    bool negated = pm_tpl_skip_name(parser, "not");
    const char *name;
    tpl_node *node = *out = pm_tpl_node(parser, TPL_N_TEST, place);
    if (!node || !parse_dotted(parser, &name) || !resolve(parser, node, name))
        return false;
    node->a = subject;
    if (pm_tpl_is_op(parser, TPL_LPAREN)) {
        if (!parse_arguments(parser, &node->args))
            return false;
    } else if (test_argument_follows(parser)) {
        if (pm_tpl_is_name(parser, "is"))
            return pm_tpl_syntax(parser, place, PM_ERR_FORMAT, "tests cannot be chained with 'is'");
        node->args.pos = pm_tpl_alloc(parser->heap, 1, sizeof(void *));
        if (!node->args.pos)
            return pm_tpl_no_memory(parser);
        node->args.n = 1;
        if (!parse_primary(parser, node->args.pos) || !parse_postfix(parser, node->args.pos))
            return false;
    }
    if (!negated)
        return true;
    *out = pm_tpl_node(parser, TPL_N_NOT, place);
    if (*out)
        (*out)->a = node;
    return *out != NULL;
}

static bool parse_filter_expression(tpl_parser *parser, tpl_node **out)
{
    for (;;) {
        bool ok = true;
        if (pm_tpl_is_op(parser, TPL_PIPE))
            ok = pm_tpl_parse_filters(parser, *out, false, out);
        else if (pm_tpl_is_name(parser, "is"))
            ok = parse_test(parser, *out, out);
        else if (pm_tpl_is_op(parser, TPL_LPAREN))
            ok = parse_call(parser, *out, out);
        else
            return true;
        if (!ok)
            return false;
    }
}

/* ---- operators ---- */

static bool wrap(tpl_parser *parser, tpl_node_kind kind, tpl_place place, tpl_node *a, tpl_node *b, tpl_node **out)
{
    *out = pm_tpl_node(parser, kind, place);
    if (!*out)
        return false;
    (*out)->a = a;
    (*out)->b = b;
    return true;
}

static bool parse_unary(tpl_parser *parser, bool filters, tpl_node **out)
{
    tpl_place place = parser->token->place;
    bool minus = pm_tpl_is_op(parser, TPL_SUB), ok;
    if (minus || pm_tpl_is_op(parser, TPL_ADD)) {
        parser->token++;
        ok = enter(parser) && parse_unary(parser, false, out) &&
             wrap(parser, minus ? TPL_N_NEG : TPL_N_POS, place, *out, NULL, out);
        parser->nest--;
    } else {
        ok = parse_primary(parser, out);
    }
    return ok && parse_postfix(parser, out) && (!filters || parse_filter_expression(parser, out));
}

/* Binary operators by binding strength, weakest first; ~ takes many sides at once. */
enum { LEVEL_SUM, LEVEL_CONCAT, LEVEL_PRODUCT, LEVEL_POWER, LEVEL_UNARY };

static bool at_level(const tpl_parser *parser, int level)
{
    static const tpl_op ops[][4] = {
        {TPL_ADD, TPL_SUB}, {TPL_TILDE}, {TPL_MUL, TPL_DIV, TPL_FLOORDIV, TPL_MOD}, {TPL_POW}};
    for (int i = 0; i < 4; i++)
        if (ops[level][i] && pm_tpl_is_op(parser, ops[level][i]))
            return true;
    return false;
}

static bool parse_level(tpl_parser *parser, int level, tpl_node **out)
{
    if (level == LEVEL_UNARY)
        return parse_unary(parser, true, out);
    tpl_place place = parser->token->place;
    if (!parse_level(parser, level + 1, out))
        return false;
    if (level == LEVEL_CONCAT) {
        if (!at_level(parser, level))
            return true;
        tpl_node *node = pm_tpl_node(parser, TPL_N_CONCAT, place), *side = *out;
        tpl_nodes list = {0};
        bool ok = node && pm_tpl_push(parser, &list, side);
        while (ok && pm_tpl_skip_op(parser, TPL_TILDE))
            ok = parse_level(parser, level + 1, &side) && pm_tpl_push(parser, &list, side);
        *out = node;
        return pm_tpl_seal(parser, &list, ok, node ? &node->items : NULL);
    }
    while (at_level(parser, level)) {
        tpl_op op = parser->token->op;
        tpl_node *right;
        parser->token++;
        if (!parse_level(parser, level + 1, &right) || !wrap(parser, TPL_N_BINARY, place, *out, right, out))
            return false;
        (*out)->op = (uint8_t)op;
    }
    return true;
}

static bool parse_comparison(tpl_parser *parser, tpl_node **out)
{
    tpl_place place = parser->token->place;
    if (!parse_level(parser, LEVEL_SUM, out))
        return false;
    tpl_nodes list = {0};
    bool ok = true;
    while (ok) {
        tpl_op op = TPL_OP_NONE;
        const tpl_token *token = parser->token;
        if (token->type == TPL_T_OP && token->op >= TPL_EQ && token->op <= TPL_GE)
            op = token->op;
        else if (pm_tpl_is_name(parser, "in"))
            op = TPL_IN;
        else if (pm_tpl_is_name(parser, "not") && token[1].type == TPL_T_NAME && !strcmp(token[1].text, "in"))
            op = TPL_NOT_IN;
        else
            break;
        parser->token += op == TPL_NOT_IN ? 2 : 1;
        tpl_node *side = pm_tpl_node(parser, TPL_N_COMPARE, place);
        ok = side && parse_level(parser, LEVEL_SUM, &side->a) && pm_tpl_push(parser, &list, side);
        if (ok)
            side->op = (uint8_t)op;
    }
    if (ok && !list.n)
        return true;
    tpl_node *node = NULL;
    ok = ok && wrap(parser, TPL_N_COMPARE, place, *out, NULL, &node);
    *out = node;
    return pm_tpl_seal(parser, &list, ok, node ? &node->items : NULL);
}

static bool parse_not(tpl_parser *parser, tpl_node **out)
{
    tpl_place place = parser->token->place;
    if (!pm_tpl_skip_name(parser, "not"))
        return parse_comparison(parser, out);
    bool ok = enter(parser) && parse_not(parser, out) && wrap(parser, TPL_N_NOT, place, *out, NULL, out);
    parser->nest--;
    return ok;
}

static bool parse_and(tpl_parser *parser, tpl_node **out)
{
    if (!parse_not(parser, out))
        return false;
    for (tpl_node *right; pm_tpl_skip_name(parser, "and");)
        if (!parse_not(parser, &right) || !wrap(parser, TPL_N_AND, (*out)->place, *out, right, out))
            return false;
    return true;
}

static bool parse_or(tpl_parser *parser, tpl_node **out)
{
    if (!parse_and(parser, out))
        return false;
    for (tpl_node *right; pm_tpl_skip_name(parser, "or");)
        if (!parse_and(parser, &right) || !wrap(parser, TPL_N_OR, (*out)->place, *out, right, out))
            return false;
    return true;
}

/* x if y else z. Filters and tests in it may be unknown until they are reached; those of x are read before that is
 * known, so a conditional is looked for first, up to the end of the expression. */
static bool has_condition(const tpl_parser *parser)
{
    int depth = 0;
    for (const tpl_token *token = parser->token;; token++) {
        switch (token->type) {
        case TPL_T_EOF:
        case TPL_T_DATA:
        case TPL_T_VAR_END:
        case TPL_T_BLOCK_END: return false;
        case TPL_T_NAME:
            if (!depth && !strcmp(token->text, "if"))
                return true;
            break;
        case TPL_T_OP:
            if (token->op == TPL_LPAREN || token->op == TPL_LBRACKET || token->op == TPL_LBRACE)
                depth++;
            else if ((token->op == TPL_RPAREN || token->op == TPL_RBRACKET || token->op == TPL_RBRACE) && depth-- == 0)
                return false;
            else if (!depth && (token->op == TPL_COMMA || token->op == TPL_COLON || token->op == TPL_ASSIGN))
                return false;
            break;
        default: break;
        }
    }
}

bool pm_tpl_parse_expression(tpl_parser *parser, tpl_node **out)
{
    bool soft = has_condition(parser), ok = enter(parser);
    parser->soft += soft;
    ok = ok && parse_or(parser, out);
    while (ok && pm_tpl_skip_name(parser, "if")) {
        tpl_node *node;
        ok = wrap(parser, TPL_N_COND, parser->token->place, NULL, *out, &node) && parse_or(parser, &node->a) &&
             (!pm_tpl_skip_name(parser, "else") || pm_tpl_parse_expression(parser, &node->c));
        *out = node;
    }
    parser->soft -= soft;
    parser->nest--;
    return ok;
}

bool pm_tpl_parse_tuple(tpl_parser *parser, bool condition, const char *stop, tpl_node **out)
{
    bool bracketed = stop && !strcmp(stop, "("), tuple = false, ok = true;
    tpl_place place = parser->token->place;
    tpl_nodes list = {0};
    while (ok) {
        if (list.n && !(ok = pm_tpl_expect_op(parser, TPL_COMMA)))
            break;
        if (parser->token->type == TPL_T_VAR_END || parser->token->type == TPL_T_BLOCK_END ||
            pm_tpl_is_op(parser, TPL_RPAREN) || (stop && pm_tpl_is_name(parser, stop)))
            break;
        tpl_node *node;
        ok = (condition ? pm_tpl_parse_expression(parser, &node) : parse_or(parser, &node)) &&
             pm_tpl_push(parser, &list, node);
        if (!ok || !pm_tpl_is_op(parser, TPL_COMMA))
            break;
        tuple = true;
    }
    if (ok && !tuple && list.n) {
        *out = list.items[0];
        free(list.items);
        return true;
    }
    if (ok && !tuple && !bracketed)
        ok = pm_tpl_unexpected(parser, "an expression");
    tpl_node *node = ok ? pm_tpl_node(parser, TPL_N_TUPLE, place) : NULL;
    *out = node;
    return pm_tpl_seal(parser, &list, node != NULL, node ? &node->items : NULL);
}
