/* Inside the template engine: source -> tokens -> tree -> text. The files of this folder named template_*.c share it;
 * nothing else does.
 *
 * A compiled template is immutable. A rendering (tpl_run) owns an arena and everything that it computes, so many may
 * run at once over one template. Functions that can fail return false after filling the run's error. */
#ifndef PM_TEMPLATE_IMPL_H
#define PM_TEMPLATE_IMPL_H

#include "text/template.h"

/* Limits of one template or rendering. The size of range() is that of Jinja's sandbox. */
enum {
    TPL_MAX_SOURCE = 1 << 20, /* bytes */
    TPL_MAX_NAMES = 4096,     /* variables of a template */
    TPL_MAX_NEST = 200,       /* brackets and blocks inside one another, in the source */
    TPL_MAX_DEPTH = 1000,     /* evaluations inside one another */
    TPL_MAX_DATA_DEPTH = 600, /* containers inside one another */
    TPL_MAX_STEPS = 10000000,
    TPL_MAX_OUTPUT = 64 << 20, /* bytes */
    TPL_MAX_MEMORY = 512 << 20,
    TPL_MAX_RANGE = 100000
};

typedef struct tpl_run tpl_run;
typedef struct tpl_node tpl_node;
typedef struct tpl_scope tpl_scope;

/* ---- memory ---- */

/* Small pieces out of an arena, with a limit. */
typedef struct tpl_heap {
    pm_arena arena;
    char *at;
    size_t left, used, limit;
    bool full; /* the last request was refused for the limit */
} tpl_heap;
void *pm_tpl_alloc(tpl_heap *heap, size_t n, size_t size); /* zeroed, 16-byte aligned; NULL past the limit */

/* ---- values ---- */

typedef enum tpl_kind {
    TPL_MISSING, /* an argument that was not given; never seen by a template */
    TPL_UNDEFINED,
    TPL_NONE,
    TPL_BOOL,
    TPL_INT,
    TPL_FLOAT,
    TPL_STR,
    TPL_SEQ,
    TPL_DICT,
    TPL_NAMESPACE,
    TPL_LOOP,
    TPL_MACRO,
    TPL_FUNCTION,
    TPL_METHOD
} tpl_kind;

/* Text with the origin of every byte. Pieces share `data` with what they were cut from. */
typedef struct tpl_str {
    const char *data;
    const uint8_t *trust; /* [len], or NULL when all bytes have the trust of `uniform` */
    size_t len;
    uint8_t uniform;
    bool markup; /* Python's Markup: went through `safe` or `escape`; escapes what is added to it */
} tpl_str;

/* Everything that Python can iterate and that is no string or dict. Generators are computed at once but can be read
 * once only, as in Python. */
typedef enum tpl_flavour { TPL_LIST, TPL_TUPLE, TPL_VIEW, TPL_GENERATOR, TPL_RANGE } tpl_flavour;

typedef struct tpl_value {
    uint8_t kind;
    uint8_t trust; /* of scalars, and of the punctuation around a container's elements */
    union {
        bool b;
        int64_t i;
        double f;
        const struct tpl_undefined *undefined;
        const tpl_str *s;
        struct tpl_seq *seq;
        struct tpl_dict *dict; /* TPL_DICT and TPL_NAMESPACE */
        struct tpl_loop *loop;
        const struct tpl_closure *macro;
        const struct tpl_builtin *function;
        const struct tpl_bound *method;
    };
} tpl_value;

/* Why a value is undefined: a hint, or a name (not found in `owner`, when not NULL). */
typedef struct tpl_undefined {
    const char *hint, *owner, *name;
} tpl_undefined;

typedef struct tpl_seq {
    tpl_flavour flavour;
    tpl_value *items;
    size_t n, cap;
    int depth;                /* of containers inside; bounded, so that walking a value may recurse */
    size_t start;             /* of a generator: elements already read */
    int64_t first, end, step; /* of a range */
    const char *view;         /* of a view: Python's name of its type */
    bool group;               /* a tuple of groupby, which has attributes grouper and list */
} tpl_seq;

/* In order of insertion; `index` is a hash table of positions + 1, built when there are many keys. */
typedef struct tpl_dict {
    tpl_value *keys, *values;
    size_t n, cap;
    int depth; /* as in tpl_seq */
    uint32_t *index;
    size_t index_cap;
} tpl_dict;

typedef struct tpl_loop {
    const tpl_node *node;
    tpl_scope *outer;
    tpl_value *items;
    size_t n, at;
    int depth0;
    tpl_value changed; /* what loop.changed() saw last */
} tpl_loop;

/* A macro, or the body of a call block, with the scope that it was written in. */
typedef struct tpl_closure {
    const struct tpl_macro *macro;
    tpl_scope *scope;
} tpl_closure;

typedef struct tpl_keyword {
    const char *name;
    tpl_value value;
} tpl_keyword;

typedef struct tpl_args {
    tpl_value *pos;
    size_t n;
    tpl_keyword *kw;
    size_t n_kw;
} tpl_args;

enum { TPL_MAX_PARAMS = 5 };

/* One call of a filter, test, method or global function: its subject, and its arguments bound to parameters
 * (TPL_MISSING where not given) or, for those that take any arguments, as written. */
typedef struct tpl_call {
    tpl_value self;
    tpl_value arg[TPL_MAX_PARAMS];
    const tpl_args *args;
    const char *name;
} tpl_call;

typedef bool tpl_native(tpl_run *run, const tpl_call *call, tpl_value *out);

/* `call` is NULL for what Python or Jinja have and this engine does not: naming it is right, calling it an error. */
typedef struct tpl_builtin {
    const char *name;
    tpl_native *call;
    int required;                       /* -1: any arguments, in call->args */
    const char *params[TPL_MAX_PARAMS]; /* up to the first NULL */
} tpl_builtin;

typedef struct tpl_bound {
    tpl_value self;
    const tpl_builtin *builtin;
} tpl_bound;

/* ---- the tree ---- */

/* Where something starts in the source: both count from 1, columns in characters. */
typedef struct tpl_place {
    int line, column;
} tpl_place;

typedef enum tpl_op {
    TPL_OP_NONE,
    TPL_ADD,
    TPL_SUB,
    TPL_MUL,
    TPL_DIV,
    TPL_FLOORDIV,
    TPL_MOD,
    TPL_POW,
    TPL_TILDE,
    TPL_EQ,
    TPL_NE,
    TPL_LT,
    TPL_LE,
    TPL_GT,
    TPL_GE,
    TPL_ASSIGN,
    TPL_DOT,
    TPL_COLON,
    TPL_PIPE,
    TPL_COMMA,
    TPL_SEMICOLON,
    TPL_LPAREN,
    TPL_RPAREN,
    TPL_LBRACKET,
    TPL_RBRACKET,
    TPL_LBRACE,
    TPL_RBRACE,
    TPL_IN,
    TPL_NOT_IN
} tpl_op;

typedef enum tpl_node_kind {
    /* expressions */
    TPL_N_CONST,
    TPL_N_NAME,
    TPL_N_LIST,
    TPL_N_TUPLE,
    TPL_N_DICT, /* items: key, value, key, value */
    TPL_N_ATTR,
    TPL_N_ITEM,
    TPL_N_SLICE, /* a[b:c:d] */
    TPL_N_CALL,
    TPL_N_FILTER,
    TPL_N_TEST,
    TPL_N_NOT,
    TPL_N_NEG,
    TPL_N_POS,
    TPL_N_BINARY,
    TPL_N_CONCAT,
    TPL_N_COMPARE, /* a, then items: each with an operator and its right side in a */
    TPL_N_AND,
    TPL_N_OR,
    TPL_N_COND,    /* b if a else c */
    TPL_N_NS_ATTR, /* target ns.attr */
    /* statements */
    TPL_N_OUTPUT,
    TPL_N_FOR,       /* for a in b if c */
    TPL_N_IF,        /* if a; d: the elif after it */
    TPL_N_SET,       /* a = b */
    TPL_N_SET_BLOCK, /* a = body through the filters of b */
    TPL_N_MACRO,
    TPL_N_CALL_BLOCK,   /* a: the call */
    TPL_N_FILTER_BLOCK, /* b: the filters */
    TPL_N_WITH,
    TPL_N_GENERATION,
    TPL_N_BREAK,
    TPL_N_CONTINUE
} tpl_node_kind;

typedef struct tpl_block {
    tpl_node **items;
    size_t n;
    int *unset; /* of a body that is a scope: names that are undefined when it starts, whatever they are outside */
    size_t n_unset;
} tpl_block;

typedef struct tpl_arguments {
    tpl_node **pos;
    size_t n;
    const char **kw_names;
    tpl_node **kw;
    size_t n_kw;
    tpl_node *star, *star_star;
} tpl_arguments;

typedef struct tpl_macro {
    const char *name;    /* NULL: the body of a call block */
    int *params;         /* names */
    tpl_node **defaults; /* [n], NULL where there is none */
    size_t n;
    bool varargs, kwargs, caller; /* the body uses these special names */
    tpl_block body;
} tpl_macro;

struct tpl_node {
    uint8_t kind, op;
    bool flag; /* For: recursive */
    tpl_place place;
    int name;        /* an index into the template's names, or -1 */
    tpl_value value; /* of a constant; text of an attribute or of a filter's name */
    tpl_node *a, *b, *c, *d;
    tpl_block items, body, other;
    const tpl_builtin *builtin;
    tpl_arguments args;
    tpl_macro *macro;
};

/* The first names of every template. */
enum { TPL_NAME_CALLER, TPL_NAME_VARARGS, TPL_NAME_KWARGS, TPL_NAME_LOOP };

struct pm_template {
    char *name;
    tpl_heap heap;
    tpl_block body;
    const char **names; /* of variables */
    size_t n_names;
    json_t *own; /* the model's values by name; may be NULL */
    const char *source;
    size_t source_len;
};

/* ---- compiling ---- */

typedef enum tpl_token_type {
    TPL_T_EOF,
    TPL_T_DATA,
    TPL_T_VAR_BEGIN,
    TPL_T_VAR_END,
    TPL_T_BLOCK_BEGIN,
    TPL_T_BLOCK_END,
    TPL_T_NAME,
    TPL_T_STRING,
    TPL_T_INT,
    TPL_T_FLOAT,
    TPL_T_OP
} tpl_token_type;

typedef struct tpl_token {
    tpl_token_type type;
    tpl_op op;
    tpl_place place;  /* of its first character */
    const char *text; /* terminated; of data, names and strings */
    size_t len;
    int64_t i;
    double f;
} tpl_token;

/* The tokens of a source, the last one TPL_T_EOF, in `heap`. */
int pm_tpl_lex(tpl_heap *heap, const char *name, const char *source, size_t len, tpl_token **tokens, size_t *n,
               pm_error *err);

typedef struct tpl_parser {
    pm_template *tmpl;
    tpl_heap *heap;
    const tpl_token *token; /* the current one */
    pm_error *err;
    int nest;
    int fors;                    /* loops around, with macros between or not */
    int loops;                   /* loops that break and continue could end here */
    int soft;                    /* inside a condition: an unknown filter or test fails when it is reached */
    tpl_macro *uses;             /* collects special names used in the macro being read, or NULL */
    const tpl_node *unsupported; /* the name of a called global function that is missing here, or NULL */
    bool shadows;                /* the template has a variable of the name of such a function */
    pm_map names;
    const char **name_list;
    size_t n_names, cap_names;
} tpl_parser;

/* Fills the error with "NAME:LINE:COLUMN: ..."; the macros also say false, for `return`. */
void pm_tpl_report_syntax(tpl_parser *parser, tpl_place place, pm_status code, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
#define pm_tpl_syntax(parser, ...) (pm_tpl_report_syntax(parser, __VA_ARGS__), false)
#define pm_tpl_no_memory(parser)   (pm_fail_memory((parser)->err), false)
tpl_node *pm_tpl_node(tpl_parser *parser, tpl_node_kind kind, tpl_place place);
int pm_tpl_name(tpl_parser *parser, const char *name); /* its index, or -1 when out of memory */
bool pm_tpl_is_op(const tpl_parser *parser, tpl_op op);
bool pm_tpl_is_name(const tpl_parser *parser, const char *name);
bool pm_tpl_skip_op(tpl_parser *parser, tpl_op op);
bool pm_tpl_skip_name(tpl_parser *parser, const char *name);
bool pm_tpl_expect_op(tpl_parser *parser, tpl_op op);
bool pm_tpl_expect_name(tpl_parser *parser, const char **name);
void pm_tpl_report_unexpected(tpl_parser *parser, const char *wanted);
#define pm_tpl_unexpected(parser, wanted) (pm_tpl_report_unexpected(parser, wanted), false)

/* A growing list of nodes, moved into the heap at the end. */
typedef struct tpl_nodes {
    tpl_node **items;
    size_t n, cap;
} tpl_nodes;
bool pm_tpl_push(tpl_parser *parser, tpl_nodes *list, tpl_node *node);
bool pm_tpl_seal(tpl_parser *parser, tpl_nodes *list, bool ok, tpl_block *out); /* frees the list; returns `ok` */

bool pm_tpl_parse_expression(tpl_parser *parser, tpl_node **out);
/* a, b, ...: one expression or a tuple; `condition`: allow x if y else z; `stop`: a name that ends it, or NULL. */
bool pm_tpl_parse_tuple(tpl_parser *parser, bool condition, const char *stop, tpl_node **out);
/* The filters after `node` (NULL in filter blocks); `named`: the first comes without a '|'. */
bool pm_tpl_parse_filters(tpl_parser *parser, tpl_node *node, bool named, tpl_node **out);
bool pm_tpl_parse_target(tpl_parser *parser, bool with_namespace, const char *stop, tpl_node **out);
bool pm_tpl_parse_template(tpl_parser *parser, tpl_block *out);
/* template_scope.c: fills in `unset` of the whole template. */
bool pm_tpl_find_unset(tpl_parser *parser, tpl_block *body);

/* ---- rendering ---- */

typedef struct tpl_binding {
    int name;
    tpl_value value;
} tpl_binding;

struct tpl_scope {
    tpl_scope *parent;
    tpl_binding *vars;
    size_t n, cap;
};

struct tpl_run {
    const pm_template *tmpl;
    tpl_heap heap;
    tpl_value *context; /* [names of the template]: given variables, then global functions, else undefined */
    pm_buf text, trust; /* the output; its end is also the place where strings are put together */
    int64_t steps;
    int depth;
    tpl_place place; /* of the node being evaluated, for messages */
    int status;
    pm_error *err;
};

/* Fills the error with "NAME:LINE:COLUMN: ..."; the first failure stays. The macros also say false, for `return`. */
void pm_tpl_report(tpl_run *run, pm_status code, const char *format, ...) __attribute__((format(printf, 3, 4)));
void pm_tpl_report_memory(tpl_run *run);
void pm_tpl_report_undefined(tpl_run *run, tpl_value value);
#define pm_tpl_fail(run, ...)             (pm_tpl_report(run, __VA_ARGS__), false)
#define pm_tpl_fail_memory(run)           (pm_tpl_report_memory(run), false)
#define pm_tpl_fail_undefined(run, value) (pm_tpl_report_undefined(run, value), false)
bool pm_tpl_step(tpl_run *run, size_t n);              /* counts work; fails past the limit */
void *pm_tpl_new(tpl_run *run, size_t n, size_t size); /* NULL after filling the error */

/* Putting a string together: remember where the text ends, put, take what came after. A failed put shows in take. */
size_t pm_tpl_mark(const tpl_run *run);
void pm_tpl_put(tpl_run *run, const char *data, size_t len, uint8_t trust);
void pm_tpl_puts(tpl_run *run, const char *text, uint8_t trust);
void pm_tpl_fill(tpl_run *run, char c, size_t n, uint8_t trust);
void pm_tpl_put_str(tpl_run *run, const tpl_str *s);
void pm_tpl_put_piece(tpl_run *run, const tpl_str *s, size_t from, size_t to);
void pm_tpl_put_code(tpl_run *run, int32_t code, uint8_t trust);
void pm_tpl_put_escaped(tpl_run *run, const tpl_str *s); /* HTML */
bool pm_tpl_take(tpl_run *run, size_t mark, bool markup, tpl_value *out);

/* template_value.c */
tpl_value pm_tpl_none(void);
tpl_value pm_tpl_bool(bool b);
tpl_value pm_tpl_int(int64_t i, uint8_t trust);
tpl_value pm_tpl_float(double f, uint8_t trust);
bool pm_tpl_undefined(tpl_run *run, const char *hint, const char *owner, const char *name, tpl_value *out);
bool pm_tpl_text(tpl_run *run, const char *data, size_t len, uint8_t trust, tpl_value *out); /* data is not copied */
bool pm_tpl_piece(tpl_run *run, const tpl_str *s, size_t from, size_t to, tpl_value *out);
bool pm_tpl_seq_new(tpl_run *run, tpl_flavour flavour, size_t cap, uint8_t trust, tpl_value *out);
bool pm_tpl_append(tpl_run *run, tpl_seq *seq, tpl_value value);
bool pm_tpl_pair(tpl_run *run, tpl_value a, tpl_value b, uint8_t trust, tpl_value *out); /* a tuple of two */
bool pm_tpl_dict_new(tpl_run *run, tpl_kind kind, size_t cap, uint8_t trust, tpl_value *out);
bool pm_tpl_dict_set(tpl_run *run, tpl_dict *dict, tpl_value key, tpl_value value);
const tpl_value *pm_tpl_dict_get(tpl_run *run, const tpl_dict *dict, tpl_value key);
const tpl_value *pm_tpl_dict_find(tpl_run *run, const tpl_dict *dict, const char *key);
bool pm_tpl_hashable(tpl_value value);

uint8_t pm_tpl_str_trust(const tpl_str *s); /* 1 when every byte is trusted */
uint8_t pm_tpl_byte_trust(const tpl_str *s, size_t at);
uint8_t pm_tpl_trust(tpl_value value);
bool pm_tpl_str_is(const tpl_str *s, const char *text);
bool pm_tpl_is_number(tpl_value value); /* bool, int, float */
bool pm_tpl_is_int(tpl_value value);    /* bool, int */
int64_t pm_tpl_as_int(tpl_value value);
double pm_tpl_as_float(tpl_value value);
bool pm_tpl_truth(tpl_value value);
bool pm_tpl_equal(tpl_run *run, tpl_value a, tpl_value b);
bool pm_tpl_order(tpl_run *run, tpl_value a, tpl_value b, const char *op, int *out); /* -1, 0, 1; 2: NaN */
bool pm_tpl_contains(tpl_run *run, tpl_value container, tpl_value item, bool *out);
bool pm_tpl_iterable(tpl_value value);
/* The elements of an iterable; a generator is used up. */
bool pm_tpl_items(tpl_run *run, tpl_value value, tpl_value **items, size_t *n);
bool pm_tpl_length(tpl_run *run, tpl_value value, int64_t *out);
const char *pm_tpl_type(tpl_value value); /* Python's name of its type */

/* template_format.c: text of values */
bool pm_tpl_str(tpl_run *run, tpl_value value, tpl_value *out); /* str() */
void pm_tpl_put_value(tpl_run *run, tpl_value value);           /* the same, put */
void pm_tpl_put_repr(tpl_run *run, tpl_value value);
bool pm_tpl_printable(int32_t code); /* str.isprintable */
size_t pm_tpl_float_repr(double f, char out[40]);
bool pm_tpl_percent(tpl_run *run, const tpl_str *format, tpl_value args, tpl_value *out);      /* format % args */
bool pm_tpl_format(tpl_run *run, const tpl_str *format, const tpl_args *args, tpl_value *out); /* format.format() */

/* template_json.c */
bool pm_tpl_from_json(tpl_run *run, const json_t *json, int depth, tpl_value *out);
tpl_native pm_tpl_tojson;

/* template_string.c: characters and methods of strings */
int32_t pm_tpl_code(const char *data, size_t len, size_t *at); /* the code point at *at, which is moved past it */
bool pm_tpl_is_space(int32_t code);
size_t pm_tpl_chars(const char *data, size_t len);
size_t pm_tpl_offset(const char *data, size_t len, size_t chars); /* bytes of the first `chars` characters */
size_t pm_tpl_before(const char *data, size_t at);                /* where the character that ends before `at` starts */
bool pm_tpl_strip(tpl_run *run, const tpl_str *s, const tpl_str *chars, bool left, bool right, tpl_value *out);
bool pm_tpl_replace(tpl_run *run, const tpl_str *s, const tpl_str *from, const tpl_str *to, int64_t count,
                    tpl_value *out);
bool pm_tpl_splitlines(tpl_run *run, const tpl_str *s, bool keep, tpl_value *out);
/* `align` is '<', '>' or '^'; `with` is one character, or NULL for a space. */
bool pm_tpl_pad(tpl_run *run, const tpl_str *s, int64_t width, char align, const tpl_str *with, tpl_value *out);
extern const tpl_builtin pm_tpl_str_methods[];

/* template_case.c */
typedef enum tpl_case { TPL_UPPER, TPL_LOWER, TPL_CAPITALIZE, TPL_TITLE, TPL_TITLE_FILTER, TPL_SWAPCASE } tpl_case;
bool pm_tpl_recase(tpl_run *run, const tpl_str *s, tpl_case to, tpl_value *out);
bool pm_tpl_is_case(const tpl_str *s, bool upper); /* str.isupper, str.islower */
tpl_native pm_tpl_str_isalpha, pm_tpl_str_isdecimal, pm_tpl_str_isdigit, pm_tpl_str_isalnum, pm_tpl_str_isspace,
    pm_tpl_str_isascii, pm_tpl_str_isprintable, pm_tpl_str_istitle, pm_tpl_str_swapcase;

/* template_object.c: attributes, items, methods of other types, global functions */
bool pm_tpl_getattr(tpl_run *run, tpl_value object, const char *name, tpl_value *out);
bool pm_tpl_getitem(tpl_run *run, tpl_value object, tpl_value key, tpl_value *out);
bool pm_tpl_slice(tpl_run *run, tpl_value object, tpl_value from, tpl_value to, tpl_value step, tpl_value *out);
const tpl_builtin *pm_tpl_global(const char *name);
bool pm_tpl_missing_method(const char *name); /* Python's types have it, and none of ours does */

/* template_ops.c */
bool pm_tpl_binary(tpl_run *run, tpl_op op, tpl_value a, tpl_value b, tpl_value *out);
bool pm_tpl_negate(tpl_run *run, tpl_value a, bool minus, tpl_value *out);

/* template_filters.c, template_tests.c */
const tpl_builtin *pm_tpl_filter(const char *name);
const tpl_builtin *pm_tpl_test(const char *name);
bool pm_tpl_given(tpl_value value); /* an argument that is there and not none */
bool pm_tpl_int_arg(tpl_run *run, const tpl_call *call, int i, int64_t absent, int64_t *out);

/* template_sequence.c: filters of sequences */
tpl_native pm_tpl_filter_list, pm_tpl_filter_first, pm_tpl_filter_last, pm_tpl_filter_reverse, pm_tpl_filter_join,
    pm_tpl_filter_items, pm_tpl_filter_map, pm_tpl_filter_select, pm_tpl_filter_reject, pm_tpl_filter_selectattr,
    pm_tpl_filter_rejectattr, pm_tpl_filter_sum, pm_tpl_filter_dictsort, pm_tpl_filter_sort, pm_tpl_filter_unique,
    pm_tpl_filter_min, pm_tpl_filter_max, pm_tpl_filter_groupby, pm_tpl_filter_batch, pm_tpl_filter_slice;

/* template_eval.c */
bool pm_tpl_call(tpl_run *run, tpl_value callee, const tpl_args *args, tpl_value *out);
bool pm_tpl_call_builtin(tpl_run *run, const tpl_builtin *builtin, tpl_value self, const tpl_args *args,
                         tpl_value *out);
bool pm_tpl_execute(tpl_run *run, const tpl_block *body, tpl_scope *scope);

#endif
