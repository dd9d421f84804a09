/* The parts of the tokeniser, for the tokeniser's own files only. Each part is loaded once, is read-only afterwards,
 * and is then used by any number of threads; what a call needs to work in belongs to that call. */
#ifndef PM_TOKENIZER_PARTS_H
#define PM_TOKENIZER_PARTS_H

#define PCRE2_CODE_UNIT_WIDTH 8

#include "text/tokenizer.h"

#include <jansson.h>
#include <pcre2.h>

enum {
    PM_TOKEN_MAX = 1 << 22,      /* ids are below this */
    PM_TOKEN_TEXT_MAX = 1 << 16, /* bytes of one token's spelling */
    PM_ADDED_TEXT_MAX = 1 << 10, /* bytes of an added token */
    PM_STEPS_MAX = 32,           /* steps of a pipeline, its nested sequences laid out flat */
    PM_TEXT_MAX = (1 << 30) - 1  /* bytes of one text to encode */
};

/* ---- reading JSON (tokenizer_json.c) ---- */

/* The file that is being read, for messages. */
typedef struct pm_tok_file {
    const char *path;
    pm_error *err;
} pm_tok_file;

/* Checks that `value` is an object with no fields but those of `fields`, a list parted by spaces (NULL: any). `where`
 * says in messages what the object is. */
int pm_tok_object(const pm_tok_file *file, const json_t *value, const char *where, const char *fields);
/* The string `type` of a component. */
int pm_tok_type(const pm_tok_file *file, const json_t *component, const char *where, const char **type);
int pm_tok_bool(const pm_tok_file *file, const json_t *object, const char *where, const char *name, bool absent,
                bool *out);
/* A required string; its length in *len. */
int pm_tok_string(const pm_tok_file *file, const json_t *object, const char *where, const char *name, const char **out,
                  size_t *len);
/* A token id: an integer in [0, PM_TOKEN_MAX). `name` is what the message calls it. */
int pm_tok_id(const pm_tok_file *file, const json_t *value, const char *where, const char *name, pm_token *out);
/* PM_ERR_UNSUPPORTED: "tokenizer component 'X' (where) is not supported". */
int pm_tok_unsupported(const pm_tok_file *file, const char *where, const char *component);

/* Calls `load` for the component, or for each part of it in order when its type is Sequence (its parts are in the field
 * `parts`); null has no parts. */
typedef int pm_tok_load(void *into, const pm_tok_file *file, const json_t *component, const char *where);
int pm_tok_each(const pm_tok_file *file, const json_t *component, const char *where, const char *parts,
                pm_tok_load *load, void *into);

/* ---- the two large values of tokenizer.json (tokenizer_read.c) ---- */

typedef struct pm_span {
    const char *text; /* NULL: absent */
    size_t len;
} pm_span;

/* Finds the text of model.vocab and model.merges in the text of tokenizer.json. */
void pm_cut_large(const char *text, size_t len, pm_span *vocab, pm_span *merges);

/* Reads a span, which is valid UTF-8, from start to end. */
typedef struct pm_reader {
    const pm_tok_file *file;
    const char *where; /* what is read, for messages */
    const char *start, *at, *end;
} pm_reader;
void pm_reader_start(pm_reader *reader, const pm_tok_file *file, const char *where, const pm_span *span);
bool pm_reader_takes(pm_reader *reader, char c); /* passes over c if it comes next, white space before it included */
int pm_reader_fail(const pm_reader *reader, const char *what); /* PM_ERR_FORMAT */
/* A string, into `out`, which has room for what is left of the span. */
int pm_reader_string(pm_reader *reader, char *out, size_t *len);
/* The id of the token `name`: an integer in [0, PM_TOKEN_MAX). */
int pm_reader_id(pm_reader *reader, const char *name, pm_token *out);

/* ---- characters (tokenizer_chars.c) ---- */

/* The code point that starts at s, which is valid UTF-8; *len receives its length. */
int32_t pm_char_at(const char *s, size_t *len);
/* The start of the character that ends at s[at), at > 0. */
size_t pm_char_before(const char *s, size_t at);
/* Writes a code point as UTF-8; the number of bytes, at most 4. */
size_t pm_char_put(int32_t c, char *out);
bool pm_char_is_space(int32_t c);   /* White_Space */
bool pm_char_is_word(int32_t c);    /* \w of UTS 18: Alphabetic, marks, decimal digits, connectors, joiners */
bool pm_char_is_numeric(int32_t c); /* Nd, Nl, No */

/* The byte-level alphabet of GPT-2: every byte is spelt as one printable character. */
int32_t pm_byte_char(uint8_t byte);
int pm_char_byte(int32_t c); /* -1 when c is not in the alphabet */

/* ---- vocabulary (tokenizer_vocab.c) ---- */

typedef struct pm_vocab_entry {
    const char *text;  /* as the file spells it, terminated; NULL: no such token */
    const char *bytes; /* what it decodes to */
    uint32_t len, n_bytes;
    bool special;
} pm_vocab_entry;

typedef struct pm_vocab {
    pm_vocab_entry *entries; /* [n] by id */
    size_t n, cap;
    pm_map ids; /* text -> id */
    pm_arena arena;
} pm_vocab;

/* Reads the object `vocab` of a BPE model. */
int pm_vocab_load(pm_vocab *vocab, const pm_tok_file *file, const pm_span *span);
/* Gives `text` the id, unless it has it already; an id or a text that is taken otherwise is an error. */
int pm_vocab_add(pm_vocab *vocab, const pm_tok_file *file, const char *where, const char *text, size_t len,
                 pm_token id);
/* Computes what every token decodes to; called once, after the last addition. */
int pm_vocab_finish(pm_vocab *vocab, const pm_tok_file *file);
void pm_vocab_free(pm_vocab *vocab);

/* ---- BPE (tokenizer_bpe.c) ---- */

typedef struct pm_ids {
    pm_token *ids;
    size_t n, cap;
} pm_ids;
int pm_ids_add(pm_ids *ids, pm_token id); /* PM_OK or PM_ERR_MEMORY */

typedef struct pm_bpe {
    pm_token byte_id[256];   /* of the one-character tokens; -1 when the vocabulary has none */
    struct pm_merge *merges; /* hash table of mask + 1 slots by pair of ids */
    size_t mask;
    pm_token unk; /* -1: none */
    bool fuse_unk, ignore_merges;
} pm_bpe;

/* Memory of one encoding; zero-initialised is ready. */
typedef struct pm_bpe_work {
    struct pm_symbol *symbols;
    struct pm_candidate *heap;
    size_t symbols_cap, heap_n, heap_cap;
    pm_buf spelling;
} pm_bpe_work;
void pm_bpe_work_free(pm_bpe_work *work);

/* `model` is the object without its vocab and merges; the latter are the span. */
int pm_bpe_load(pm_bpe *bpe, const pm_vocab *vocab, const pm_tok_file *file, const json_t *model,
                const pm_span *merges);
/* Drops the merges that make a special token: text that was not recognised as a control token must not become one by
 * another way. Called once, when all special tokens are known. */
void pm_bpe_finish(pm_bpe *bpe, const pm_vocab *vocab);
void pm_bpe_free(pm_bpe *bpe);
/* Appends the tokens of one piece of text, given as its raw bytes. */
int pm_bpe_encode(const pm_bpe *bpe, const pm_vocab *vocab, const char *piece, size_t len, pm_bpe_work *work,
                  pm_ids *out, pm_error *err);

/* ---- normaliser (tokenizer_normalize.c) ---- */

/* Text with, for each byte, whether it may become part of a control token; trust may be NULL (all may). */
typedef struct pm_section {
    const char *text;
    size_t len;
    const uint8_t *trust;
} pm_section;

typedef struct pm_normalizer {
    bool nfc;
} pm_normalizer;

typedef struct pm_normalizer_work {
    pm_buf text, trust;
    int32_t *chars, *sorted;
    size_t chars_cap, sorted_cap;
} pm_normalizer_work;
void pm_normalizer_work_free(pm_normalizer_work *work);

int pm_normalizer_load(pm_normalizer *normalizer, const pm_tok_file *file, const json_t *component);
/* *out is the normalised section: it points into `in` when nothing changed, else into `work`. A byte of a stretch that
 * changed is trusted only where the whole stretch was. */
int pm_normalize(const pm_normalizer *normalizer, const pm_section *in, pm_normalizer_work *work, pm_section *out,
                 pm_error *err);

/* ---- added tokens (tokenizer_added.c) ---- */

typedef struct pm_added_token {
    pm_token id;
    const char *text; /* as written */
    size_t len;
    const char *pattern; /* what is looked for: the text, normalised when `normalized` */
    size_t pattern_len;
    size_t rank; /* which of two equal patterns wins: the lower */
    bool single_word, lstrip, rstrip, normalized, special;
} pm_added_token;

/* Patterns in byte order, so that those which share a prefix are neighbours. */
typedef struct pm_added_set {
    const pm_added_token **sorted;
    size_t n;
    bool first[256]; /* whether some pattern starts with the byte */
} pm_added_set;

typedef struct pm_added {
    pm_added_token *tokens;
    size_t n, cap;
    pm_added_set raw, normal; /* looked for before and after normalisation */
    pm_arena arena;
} pm_added;

/* Adds one token; `value` is its object with the content and the flags. One that is known gets the new flags. */
int pm_added_load(pm_added *added, pm_vocab *vocab, const pm_tok_file *file, const json_t *value, const char *where,
                  pm_token id);
/* Makes the vocabulary's token `id` an added, special one; when `only_new`, unless it is an added one. */
int pm_added_special(pm_added *added, pm_vocab *vocab, pm_token id, bool only_new);
/* Builds the two sets; called once, after the last addition. */
int pm_added_finish(pm_added *added, const pm_normalizer *normalizer, pm_error *err);
void pm_added_free(pm_added *added);

/* A search for the tokens of a set through one section; zero-initialised but for `set` and `section`. */
typedef struct pm_added_search {
    const pm_added_set *set;
    pm_section section;
    size_t at;  /* where to look next */
    size_t end; /* of the last match, the white space it swallowed included */
} pm_added_search;

/* The next token, leftmost first and the longest there; it takes the place of text[*start..*stop). NULL: no more. */
const pm_added_token *pm_added_next(pm_added_search *search, size_t *start, size_t *stop);

/* ---- pre-tokeniser (tokenizer_split.c, tokenizer_pattern.c) ---- */

typedef enum pm_behavior {
    PM_SPLIT_ISOLATED,
    PM_SPLIT_REMOVED,
    PM_SPLIT_MERGED_WITH_PREVIOUS,
    PM_SPLIT_MERGED_WITH_NEXT,
    PM_SPLIT_CONTIGUOUS
} pm_behavior;

typedef struct pm_split_step {
    pcre2_code *code; /* NULL: digits */
    const char *name; /* the pattern as the file has it, for messages */
    pm_behavior behavior;
    bool invert;
    bool prefix_space; /* first, a space goes before every piece that does not start with one */
    bool no_split;     /* only that */
} pm_split_step;

typedef struct pm_splitter {
    pm_split_step steps[PM_STEPS_MAX];
    int n;
    bool byte_level; /* ends with ByteLevel: pieces are bytes spelt in the byte-level alphabet */
    pm_arena arena;
} pm_splitter;

typedef struct pm_range {
    size_t start, end;
} pm_range;

/* The pieces of a section, and the memory for finding them; zero-initialised is ready. Ranges may be empty. */
typedef struct pm_pieces {
    const char *text; /* the section, or `spaced` */
    pm_range *ranges, *spare;
    size_t n, cap, spare_cap;
    pm_buf spaced;
    pcre2_match_data *match;
    pcre2_match_context *limits;
    pcre2_jit_stack *stack;
} pm_pieces;
void pm_pieces_free(pm_pieces *pieces);

int pm_splitter_load(pm_splitter *splitter, const pm_tok_file *file, const json_t *component);
void pm_splitter_free(pm_splitter *splitter);
int pm_split(const pm_splitter *splitter, const char *text, size_t len, pm_pieces *pieces, pm_error *err);

/* Compiles a pattern written for Oniguruma, with which the `tokenizers` library matches, so that PCRE2 finds the same;
 * what cannot be carried over is an error that names it. `plain`: a string that stands for itself. */
int pm_pattern_compile(pcre2_code **out, const pm_tok_file *file, const char *pattern, size_t len, bool plain);

#endif
