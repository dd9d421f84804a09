/* The parser of statements: what stands in {% %}. */
#include "text/template_impl.h"

#include <stdlib.h>
#include <string.h>

typedef bool parse_fn(tpl_parser *parser, tpl_node **out);

static bool parse_body(tpl_parser *parser, const char *const *ends, tpl_block *out);

/* The text of a statement up to one of the names `ends`, which is left as the current token. */
static bool parse_until(tpl_parser *parser, const char *const *ends, tpl_block *out)
{
    pm_tpl_skip_op(parser, TPL_COLON);
    if (parser->token->type != TPL_T_BLOCK_END)
        return pm_tpl_unexpected(parser, "'%}'");
    parser->token++;
    return parse_body(parser, ends, out);
}

/* The same for a body with a scope of its own. In it an unknown filter or test is an error even when the whole stands
 * inside a condition, as in Jinja. */
static bool parse_scoped(tpl_parser *parser, const char *const *ends, tpl_block *out)
{
    int soft = parser->soft;
    parser->soft = 0;
    bool ok = parse_until(parser, ends, out);
    parser->soft = soft;
    return ok;
}

/* A scoped body with one end, which is passed. */
static bool parse_to(tpl_parser *parser, const char *end, tpl_block *out)
{
    const char *const ends[] = {end, NULL};
    bool ok = parse_scoped(parser, ends, out);
    parser->token += ok;
    return ok;
}

static bool store_name(tpl_parser *parser, const char *name, tpl_place place, tpl_node **out)
{
    static const char *const constants[] = {"true", "false", "none", "True", "False", "None"};
    for (size_t i = 0; i < PM_COUNT(constants); i++)
        if (!strcmp(name, constants[i]))
            return pm_tpl_syntax(parser, place, PM_ERR_FORMAT, "cannot assign to '%s'", name);
    tpl_node *node = *out = pm_tpl_node(parser, TPL_N_NAME, place);
    if (!node)
        return false;
    node->name = pm_tpl_name(parser, name);
    const tpl_builtin *global = pm_tpl_global(name);
    parser->shadows |= global && !global->call;
    return node->name >= 0;
}

/* One target: a name, ns.attribute, or targets in brackets. */
static bool parse_one_target(tpl_parser *parser, bool with_namespace, tpl_node **out)
{
    tpl_place place = parser->token->place;
    const char *name;
    if (pm_tpl_skip_op(parser, TPL_LPAREN)) {
        if (++parser->nest > TPL_MAX_NEST)
            return pm_tpl_syntax(parser, place, PM_ERR_UNSUPPORTED, "nested more than %d deep", TPL_MAX_NEST);
        bool ok = pm_tpl_parse_target(parser, with_namespace, NULL, out) && pm_tpl_expect_op(parser, TPL_RPAREN);
        parser->nest--;
        return ok;
    }
    if (!pm_tpl_expect_name(parser, &name) || !store_name(parser, name, place, out))
        return false;
    if (!with_namespace || !pm_tpl_skip_op(parser, TPL_DOT))
        return true;
    (*out)->kind = TPL_N_NS_ATTR;
    if (!pm_tpl_expect_name(parser, &name))
        return false;
    tpl_str *s = pm_tpl_alloc(parser->heap, 1, sizeof(*s));
    if (!s)
        return pm_tpl_no_memory(parser);
    *s = (tpl_str){.data = name, .len = strlen(name), .uniform = 1};
    (*out)->value = (tpl_value){.kind = TPL_STR, .trust = 1, .s = s};
    return true;
}

bool pm_tpl_parse_target(tpl_parser *parser, bool with_namespace, const char *stop, tpl_node **out)
{
    tpl_place place = parser->token->place;
    if (!parse_one_target(parser, with_namespace, out))
        return false;
    if (parser->fors && (*out)->kind == TPL_N_NAME && (*out)->name == TPL_NAME_LOOP)
        return pm_tpl_syntax(parser, place, PM_ERR_FORMAT, "cannot assign to 'loop' in a loop");
    if (!pm_tpl_is_op(parser, TPL_COMMA))
        return true;
    tpl_node *tuple = pm_tpl_node(parser, TPL_N_TUPLE, place), *target = *out;
    tpl_nodes list = {0};
    bool ok = tuple && pm_tpl_push(parser, &list, target);
    while (ok && pm_tpl_skip_op(parser, TPL_COMMA)) {
        if (parser->token->type == TPL_T_BLOCK_END || pm_tpl_is_op(parser, TPL_RPAREN) ||
            pm_tpl_is_op(parser, TPL_ASSIGN) || (stop && pm_tpl_is_name(parser, stop)))
            break;
        ok = parse_one_target(parser, with_namespace, &target) && pm_tpl_push(parser, &list, target);
    }
    *out = tuple;
    return pm_tpl_seal(parser, &list, ok, tuple ? &tuple->items : NULL);
}

static tpl_node *start(tpl_parser *parser, tpl_node_kind kind, tpl_node **out)
{
    *out = pm_tpl_node(parser, kind, parser->token->place);
    parser->token++;
    return *out;
}

static bool parse_set(tpl_parser *parser, tpl_node **out)
{
    tpl_node *node = start(parser, TPL_N_SET, out);
    if (!node || !pm_tpl_parse_target(parser, true, NULL, &node->a))
        return false;
    if (pm_tpl_skip_op(parser, TPL_ASSIGN))
        return pm_tpl_parse_tuple(parser, true, NULL, &node->b);
    node->kind = TPL_N_SET_BLOCK;
    return pm_tpl_parse_filters(parser, NULL, false, &node->b) && parse_to(parser, "endset", &node->body);
}

static bool parse_for(tpl_parser *parser, tpl_node **out)
{
    static const char *const ends[] = {"endfor", "else", NULL};
    tpl_node *node = start(parser, TPL_N_FOR, out);
    parser->fors++;
    if (!node || !pm_tpl_parse_target(parser, false, "in", &node->a))
        return false;
    if (!pm_tpl_skip_name(parser, "in"))
        return pm_tpl_unexpected(parser, "'in'");
    if (!pm_tpl_parse_tuple(parser, false, "recursive", &node->b))
        return false;
    if (pm_tpl_skip_name(parser, "if") && !pm_tpl_parse_expression(parser, &node->c))
        return false;
    node->flag = pm_tpl_skip_name(parser, "recursive");
    parser->loops++;
    bool ok = parse_scoped(parser, ends, &node->body);
    parser->loops--;
    if (!ok)
        return false;
    bool other = pm_tpl_is_name(parser, "else");
    parser->token++;
    ok = !other || parse_to(parser, "endfor", &node->other);
    parser->fors--;
    return ok;
}

static bool parse_if(tpl_parser *parser, tpl_node **out)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    tpl_node **link = out;
    bool ok = true;
    parser->soft++;
    while (ok) {
        tpl_node *node = start(parser, TPL_N_IF, link);
        ok = node && pm_tpl_parse_tuple(parser, false, NULL, &node->a) && parse_until(parser, ends, &node->body);
        if (!ok || pm_tpl_skip_name(parser, "endif"))
            break;
        if (pm_tpl_skip_name(parser, "else")) {
            ok = parse_until(parser, ends + 2, &node->other);
            parser->token += ok;
            break;
        }
        link = &node->d;
    }
    parser->soft--;
    return ok;
}

static bool parse_with(tpl_parser *parser, tpl_node **out)
{
    tpl_node *node = start(parser, TPL_N_WITH, out), *part;
    tpl_nodes list = {0};
    bool ok = node != NULL;
    while (ok && parser->token->type != TPL_T_BLOCK_END) {
        ok = (!list.n || pm_tpl_expect_op(parser, TPL_COMMA)) && parse_one_target(parser, false, &part) &&
             pm_tpl_push(parser, &list, part) && pm_tpl_expect_op(parser, TPL_ASSIGN) &&
             pm_tpl_parse_expression(parser, &part) && pm_tpl_push(parser, &list, part);
    }
    return pm_tpl_seal(parser, &list, ok, node ? &node->items : NULL) && parse_to(parser, "endwith", &node->body);
}

/* The parameters of a macro or call block, brackets included. */
static bool parse_signature(tpl_parser *parser, tpl_macro *macro)
{
    tpl_nodes params = {0}, defaults = {0};
    tpl_block p = {0}, d = {0};
    bool ok = pm_tpl_expect_op(parser, TPL_LPAREN), optional = false;
    while (ok && !pm_tpl_is_op(parser, TPL_RPAREN)) {
        tpl_node *param = NULL, *value = NULL;
        const char *name = NULL;
        tpl_place place = parser->token->place;
        ok = (!params.n || pm_tpl_expect_op(parser, TPL_COMMA)) && pm_tpl_expect_name(parser, &name) &&
             store_name(parser, name, place, &param);
        if (!ok)
            break;
        if (pm_tpl_skip_op(parser, TPL_ASSIGN)) {
            ok = pm_tpl_parse_expression(parser, &value);
            optional = true;
        } else if (optional) {
            ok = pm_tpl_syntax(parser, place, PM_ERR_FORMAT,
                               "parameter '%.80s' without a default follows one with a default", name);
        }
        ok = ok && pm_tpl_push(parser, &params, param) && pm_tpl_push(parser, &defaults, value);
    }
    ok = ok && pm_tpl_expect_op(parser, TPL_RPAREN);
    ok = pm_tpl_seal(parser, &params, ok, &p);
    ok = pm_tpl_seal(parser, &defaults, ok, &d);
    if (!ok)
        return false;
    macro->params = pm_tpl_alloc(parser->heap, p.n, sizeof(*macro->params));
    if (!macro->params)
        return pm_tpl_no_memory(parser);
    for (size_t i = 0; i < p.n; i++)
        macro->params[i] = p.items[i]->name;
    macro->defaults = d.items;
    macro->n = p.n;
    return true;
}

/* The body of a macro: loops outside it cannot be broken from it, and the special names it uses are collected. */
static bool parse_macro_body(tpl_parser *parser, tpl_macro *macro, const char *end)
{
    tpl_macro *outer = parser->uses;
    int loops = parser->loops;
    parser->uses = macro;
    parser->loops = 0;
    bool ok = parse_to(parser, end, &macro->body);
    parser->uses = outer;
    parser->loops = loops;
    for (size_t i = 0; i < macro->n; i++) { /* a parameter of that name is just a parameter */
        macro->caller &= macro->params[i] != TPL_NAME_CALLER;
        macro->varargs &= macro->params[i] != TPL_NAME_VARARGS;
        macro->kwargs &= macro->params[i] != TPL_NAME_KWARGS;
    }
    if (outer) {
        outer->varargs |= macro->varargs;
        outer->kwargs |= macro->kwargs;
        outer->caller |= macro->caller;
    }
    return ok;
}

static tpl_macro *new_macro(tpl_parser *parser, tpl_node *node, const char *name)
{
    node->macro = pm_tpl_alloc(parser->heap, 1, sizeof(*node->macro));
    if (node->macro)
        node->macro->name = name;
    else
        pm_fail_memory(parser->err);
    return node->macro;
}

static bool parse_macro(tpl_parser *parser, tpl_node **out)
{
    tpl_node *node = start(parser, TPL_N_MACRO, out);
    const char *name;
    tpl_place place = parser->token->place;
    if (!node || !pm_tpl_expect_name(parser, &name) || !store_name(parser, name, place, &node->a) ||
        !new_macro(parser, node, name))
        return false;
    return parse_signature(parser, node->macro) && parse_macro_body(parser, node->macro, "endmacro");
}

static bool parse_call_block(tpl_parser *parser, tpl_node **out)
{
    tpl_node *node = start(parser, TPL_N_CALL_BLOCK, out);
    if (!node || !new_macro(parser, node, NULL))
        return false;
    if (pm_tpl_is_op(parser, TPL_LPAREN) && !parse_signature(parser, node->macro))
        return false;
    if (!pm_tpl_parse_expression(parser, &node->a))
        return false;
    if (node->a->kind != TPL_N_CALL)
        return pm_tpl_syntax(parser, node->place, PM_ERR_FORMAT, "a call block needs a call");
    return parse_macro_body(parser, node->macro, "endcall");
}

static bool parse_filter_block(tpl_parser *parser, tpl_node **out)
{
    tpl_node *node = start(parser, TPL_N_FILTER_BLOCK, out);
    return node && pm_tpl_parse_filters(parser, NULL, true, &node->b) && parse_to(parser, "endfilter", &node->body);
}

/* transformers marks what the assistant says with this tag; it renders its body. */
static bool parse_generation(tpl_parser *parser, tpl_node **out)
{
    tpl_node *node = start(parser, TPL_N_GENERATION, out);
    int loops = parser->loops;
    parser->loops = 0;
    bool ok = node && parse_to(parser, "endgeneration", &node->body);
    parser->loops = loops;
    return ok;
}

static bool parse_print(tpl_parser *parser, tpl_node **out)
{
    tpl_node *node = start(parser, TPL_N_OUTPUT, out), *value;
    tpl_nodes list = {0};
    bool ok = node != NULL;
    while (ok && parser->token->type != TPL_T_BLOCK_END)
        ok = (!list.n || pm_tpl_expect_op(parser, TPL_COMMA)) && pm_tpl_parse_expression(parser, &value) &&
             pm_tpl_push(parser, &list, value);
    return pm_tpl_seal(parser, &list, ok, node ? &node->items : NULL);
}

static bool parse_jump(tpl_parser *parser, tpl_node **out)
{
    bool is_break = pm_tpl_is_name(parser, "break");
    tpl_place place = parser->token->place;
    if (!parser->loops)
        return pm_tpl_syntax(parser, place, PM_ERR_FORMAT, "'%s' outside a loop", parser->token->text);
    return start(parser, is_break ? TPL_N_BREAK : TPL_N_CONTINUE, out) != NULL;
}

static const struct {
    const char *tag;
    parse_fn *parse;
} statements[] = {{"set", parse_set},     {"for", parse_for},         {"if", parse_if},
                  {"macro", parse_macro}, {"call", parse_call_block}, {"filter", parse_filter_block},
                  {"with", parse_with},   {"print", parse_print},     {"generation", parse_generation},
                  {"break", parse_jump},  {"continue", parse_jump}};

static bool parse_statement(tpl_parser *parser, const char *const *ends, tpl_node **out)
{
    const tpl_token *token = parser->token;
    if (token->type != TPL_T_NAME)
        return pm_tpl_unexpected(parser, "a tag");
    for (size_t i = 0; i < PM_COUNT(statements); i++)
        if (!strcmp(token->text, statements[i].tag))
            return statements[i].parse(parser, out);
    if (!strncmp(token->text, "end", 3) || !strcmp(token->text, "else") || !strcmp(token->text, "elif"))
        return pm_tpl_syntax(parser, token->place, PM_ERR_FORMAT, "unexpected tag '%.80s'%s%s%s", token->text,
                             ends ? ", expected '" : "", ends ? ends[0] : "", ends ? "'" : "");
    return pm_tpl_syntax(parser, token->place, PM_ERR_UNSUPPORTED, "tag '%.80s' is not supported", token->text);
}

static bool is_end(const tpl_parser *parser, const char *const *ends)
{
    for (; ends && *ends; ends++)
        if (pm_tpl_is_name(parser, *ends))
            return true;
    return false;
}

/* Text or {{ }}: collected into one output node. */
static bool parse_output(tpl_parser *parser, tpl_node **out)
{
    tpl_node *node = *out = pm_tpl_node(parser, TPL_N_OUTPUT, parser->token->place), *part;
    tpl_nodes list = {0};
    bool ok = node != NULL;
    while (ok) {
        const tpl_token *token = parser->token;
        if (token->type == TPL_T_DATA) {
            tpl_str *s = pm_tpl_alloc(parser->heap, 1, sizeof(*s));
            part = pm_tpl_node(parser, TPL_N_CONST, token->place);
            if (!s || !part) {
                ok = pm_tpl_no_memory(parser);
                break;
            }
            *s = (tpl_str){.data = token->text, .len = token->len, .uniform = 1};
            part->value = (tpl_value){.kind = TPL_STR, .trust = 1, .s = s};
            parser->token++;
        } else if (token->type == TPL_T_VAR_BEGIN) {
            parser->token++;
            ok = pm_tpl_parse_tuple(parser, true, NULL, &part);
            if (ok && parser->token->type != TPL_T_VAR_END)
                ok = pm_tpl_unexpected(parser, "'}}'");
            parser->token += ok;
        } else {
            break;
        }
        ok = ok && pm_tpl_push(parser, &list, part);
    }
    return pm_tpl_seal(parser, &list, ok, node ? &node->items : NULL);
}

/* Nodes up to one of `ends`, which becomes the current token, or to the end of the template when `ends` is NULL. */
static bool parse_body(tpl_parser *parser, const char *const *ends, tpl_block *out)
{
    tpl_nodes list = {0};
    bool ok = ++parser->nest <= TPL_MAX_NEST ||
              pm_tpl_syntax(parser, parser->token->place, PM_ERR_UNSUPPORTED, "nested more than %d deep", TPL_MAX_NEST);
    while (ok) {
        tpl_node *node = NULL;
        if (parser->token->type == TPL_T_EOF) {
            if (ends)
                ok = pm_tpl_syntax(parser, parser->token->place, PM_ERR_FORMAT,
                                   "the template ends where '%s' was expected", ends[0]);
            break;
        }
        if (parser->token->type != TPL_T_BLOCK_BEGIN) {
            ok = parse_output(parser, &node) && pm_tpl_push(parser, &list, node);
            continue;
        }
        parser->token++;
        if (is_end(parser, ends))
            break;
        ok = parse_statement(parser, ends, &node) && pm_tpl_push(parser, &list, node);
        if (ok && parser->token->type != TPL_T_BLOCK_END)
            ok = pm_tpl_unexpected(parser, "'%}'");
        parser->token += ok;
    }
    parser->nest--;
    return pm_tpl_seal(parser, &list, ok, out);
}

bool pm_tpl_parse_template(tpl_parser *parser, tpl_block *out)
{
    if (!parse_body(parser, NULL, out))
        return false;
    const tpl_node *callee = parser->unsupported;
    if (callee && !parser->shadows)
        return pm_tpl_syntax(parser, callee->place, PM_ERR_UNSUPPORTED, "function '%.80s' is not supported",
                             parser->name_list[callee->name]);
    return pm_tpl_find_unset(parser, out);
}
