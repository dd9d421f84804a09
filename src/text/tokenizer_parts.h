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
    PM_TEXT_MAX = (1 << 30) - 1, /* bytes of one text to encode */
    PM_GROWN_MAX = 1 << 20,      /* bytes that steps may make of one token; of a text, beside a multiple of its own */
    PM_GROWTH_MAX = 64           /* that multiple; the forms of Unicode make 11 of 1 at most */
};

/* The bytes that steps may make of a text of `len` bytes: a pipeline of replacements could otherwise make any number.
 */
static inline size_t pm_grown_max(size_t len)
{
    return len < (PM_TEXT_MAX - PM_GROWN_MAX) / PM_GROWTH_MAX ? PM_GROWN_MAX + len * PM_GROWTH_MAX : PM_TEXT_MAX;
}

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

/* What Rust's libraries know of a character (tokenizer_unicode.c has what utf8proc sees otherwise). */
enum {
    PM_CHAR_SPACE = 1,   /* White_Space */
    PM_CHAR_WORD = 2,    /* \w of UTS 18: Alphabetic, marks, decimal digits, connectors, joiners */
    PM_CHAR_NUMERIC = 4, /* Nd, Nl, No */
    PM_CHAR_PUNCT = 8,   /* P, and all of ASCII that is neither letter nor digit nor blank */
    PM_CHAR_MARK = 16,   /* M */
    PM_CHAR_WHOLE = 32   /* too new to have a decomposition */
};
unsigned pm_char_kind(int32_t c);
int pm_char_class(int32_t c);                    /* Canonical_Combining_Class */
size_t pm_char_lower(int32_t c, int32_t out[2]); /* the number of characters, 1 or 2 */

/* The differences, generated: ranges and pairs in ascending order. */
typedef struct pm_char_range {
    int32_t first, last;
    int value;
} pm_char_range;
typedef struct pm_char_pair {
    int32_t from, to;
} pm_char_pair;
extern const pm_char_range pm_char_kinds[], pm_char_classes[];
extern const pm_char_pair pm_char_lowers[];
extern const size_t pm_char_kinds_n, pm_char_classes_n, pm_char_lowers_n;

/* The byte-level alphabet of GPT-2: every byte is spelt as one printable character. */
int32_t pm_byte_char(uint8_t byte);
int pm_char_byte(int32_t c); /* -1 when c is not in the alphabet */
/* Appends the spelling of bytes; PM_OK or PM_ERR_MEMORY. */
int pm_bytes_spell(const char *bytes, size_t n, pm_buf *out);

/* ---- vocabulary (tokenizer_vocab.c) ---- */

typedef struct pm_vocab_entry {
    const char *text; /* as the file spells it, terminated; NULL: no such token */
    uint32_t len;
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
void pm_vocab_free(pm_vocab *vocab);

/* ---- BPE (tokenizer_bpe.c) ---- */

typedef struct pm_ids {
    pm_token *ids;
    size_t n, cap;
} pm_ids;
int pm_ids_add(pm_ids *ids, pm_token id); /* PM_OK or PM_ERR_MEMORY */

typedef struct pm_bpe {
    pm_token byte_id[256];   /* of the one-character tokens of the byte-level alphabet; -1: none */
    pm_token ascii_id[128];  /* of the one-character tokens of ASCII; -1: none */
    pm_token fallback[256];  /* byte_fallback: of "<0x00>" to "<0xFF>"; -1: none */
    struct pm_merge *merges; /* hash table of mask + 1 slots by pair of ids */
    size_t mask;
    pm_token unk; /* -1: none */
    bool fuse_unk, ignore_merges, byte_fallback;
    bool bytes; /* pieces are bytes to spell in the byte-level alphabet; else they are text */
} pm_bpe;

/* Memory of one encoding; zero-initialised is ready. */
typedef struct pm_bpe_work {
    struct pm_symbol *symbols;
    struct pm_candidate *heap;
    size_t symbols_cap, heap_n, heap_cap;
    pm_buf spelling;
    struct pm_recent *recent; /* pieces of this text that were encoded; NULL while it is short */
    size_t pieces;            /* so far */
} pm_bpe_work;
void pm_bpe_work_free(pm_bpe_work *work);

/* `model` is the object without its vocab and merges; the latter are the span. */
int pm_bpe_load(pm_bpe *bpe, const pm_vocab *vocab, const pm_tok_file *file, const json_t *model,
                const pm_span *merges);
/* True when the vocabulary has the whole byte-level alphabet. */
bool pm_bpe_whole(const pm_bpe *bpe);
/* Drops the merges that make a special token: text that was not recognised as a control token must not become one by
 * another way. Called once, when all special tokens are known. */
void pm_bpe_finish(pm_bpe *bpe, const pm_vocab *vocab);
void pm_bpe_free(pm_bpe *bpe);
/* Appends the tokens of one piece; `out` is the same for all pieces of one `work`. */
int pm_bpe_encode(const pm_bpe *bpe, const pm_vocab *vocab, const char *piece, size_t len, pm_bpe_work *work,
                  pm_ids *out, pm_error *err);

/* ---- patterns (tokenizer_pattern.c, tokenizer_class.c, tokenizer_match.c) ---- */

typedef struct pm_range {
    size_t start, end;
} pm_range;

typedef struct pm_pattern {
    pcre2_code *code;
    const char *name; /* as the file has it, for messages */
} pm_pattern;

/* Reads {"Regex": ...} or {"String": ...} and compiles it. A Regex is written for Oniguruma, with which the
 * `tokenizers` library matches; what cannot be carried over to PCRE2 is an error that names it. */
int pm_pattern_load(pm_pattern *pattern, pm_arena *arena, const pm_tok_file *file, const json_t *value,
                    const char *where);
/* The same of a text that is at hand and stays. */
int pm_pattern_compile(pm_pattern *pattern, const pm_tok_file *file, const char *text, size_t len, const char *where,
                       bool plain);
void pm_pattern_free(pm_pattern *pattern);

/* How the library sees a property otherwise than PCRE2, as the text of a class; generated (tokenizer_unicode.c). */
typedef struct pm_property {
    const char *names, *more, *less; /* names are parted by spaces; more, less: NULL when there is nothing */
} pm_property;
extern const pm_property pm_properties[];
extern const size_t pm_properties_n;

/* A set of characters in PCRE2's language. `brackets` is what stands for it between brackets; where nothing can, that
 * is empty and `alone` is an expression that takes one character of the set. */
typedef struct pm_class {
    pm_buf brackets, alone;
} pm_class;
void pm_class_free(pm_class *class);
/* Adds \p{name} or with `negative` \P{name}. PM_OK, PM_ERR_MEMORY, or PM_ERR_UNSUPPORTED when there is no such
 * property. */
int pm_class_property(pm_class *class, const char *name, size_t len, bool negative);
int pm_class_word(pm_class *class, bool outside, bool negative); /* \w, \W outside or inside of brackets */
/* Writes the class, or with `negative` its complement, as an expression. PM_OK or PM_ERR_MEMORY. */
int pm_class_write(const pm_class *class, bool negative, pm_buf *out);

/* Memory for matching; zero-initialised is ready. */
typedef struct pm_matcher {
    pcre2_match_data *match;
    pcre2_match_context *limits;
    pcre2_jit_stack *stack;
} pm_matcher;
void pm_matcher_free(pm_matcher *matcher);

/* A walk over the matches of a pattern in a text that is valid UTF-8; zero-initialised but for the first five fields.
 */
typedef struct pm_matches {
    const pm_pattern *pattern;
    pm_matcher *matcher;
    const char *text;
    size_t len;
    uint64_t effort; /* the length of the text that this is part of: what matching may cost grows with it */
    size_t at, last;
    bool any;
} pm_matches;
/* 1 with the next match, 0 when there is none, or an error. An empty match right behind the last one is passed over, as
 * in the `onig` crate. */
int pm_matches_next(pm_matches *matches, pm_range *match, pm_error *err);

/* ---- normaliser (tokenizer_normalize.c) ---- */

/* Text with, for each byte, whether it may become part of a control token; trust may be NULL (all may). */
typedef struct pm_section {
    const char *text;
    size_t len;
    const uint8_t *trust;
} pm_section;

typedef enum pm_normal_kind {
    PM_NORMAL_NFC,
    PM_NORMAL_NFD,
    PM_NORMAL_NFKC,
    PM_NORMAL_NFKD,
    PM_NORMAL_LOWERCASE,
    PM_NORMAL_STRIP,
    PM_NORMAL_STRIP_ACCENTS,
    PM_NORMAL_REPLACE,
    PM_NORMAL_PREPEND,
    PM_NORMAL_BYTE_LEVEL
} pm_normal_kind;

typedef struct pm_normal_step {
    pm_normal_kind kind;
    pm_pattern pattern; /* Replace: what */
    const char *text;   /* Replace: by what; Prepend */
    size_t len;
    bool left, right; /* Strip */
} pm_normal_step;

typedef struct pm_normalizer {
    pm_normal_step steps[PM_STEPS_MAX];
    int n;
    pm_arena arena;
} pm_normalizer;

typedef struct pm_normalizer_work {
    pm_buf text[2], trust[2]; /* what a step made, and what the one before it made */
    int made;                 /* which is which */
    size_t limit;             /* bytes that a step may make */
    bool lost;                /* what the section starts with was taken away */
    int32_t *chars, *sorted;
    size_t chars_cap, sorted_cap;
    pm_matcher matcher;
} pm_normalizer_work;
void pm_normalizer_work_free(pm_normalizer_work *work);

int pm_normalizer_load(pm_normalizer *normalizer, const pm_tok_file *file, const json_t *component);
void pm_normalizer_free(pm_normalizer *normalizer);
/* *out is the normalised section: it points into `in` when nothing changed, else into `work`. A byte of a stretch that
 * changed is trusted only where the whole stretch was; what is put in between is trusted. */
int pm_normalize(const pm_normalizer *normalizer, const pm_section *in, pm_normalizer_work *work, pm_section *out,
                 pm_error *err);

/* For the steps: appends text, which takes the place of in[start..end), to what is made. PM_OK, PM_ERR_MEMORY
 * or PM_ERR_LIMIT. */
int pm_normal_put(pm_normalizer_work *work, const pm_section *in, size_t start, size_t end, const char *text,
                  size_t len);
/* The four forms of UAX 15 (tokenizer_forms.c): *changed tells whether anything was put. As pm_normal_put. */
int pm_normal_form(pm_normal_kind form, const pm_section *in, pm_normalizer_work *work, bool *changed);

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

/* ---- pre-tokeniser (tokenizer_split.c, tokenizer_steps.c) ---- */

typedef enum pm_behavior {
    PM_SPLIT_ISOLATED,
    PM_SPLIT_REMOVED,
    PM_SPLIT_MERGED_WITH_PREVIOUS,
    PM_SPLIT_MERGED_WITH_NEXT,
    PM_SPLIT_CONTIGUOUS
} pm_behavior;

/* Whether a space goes before the pieces that do not start with one. */
typedef enum pm_prefix { PM_PREFIX_NEVER, PM_PREFIX_FIRST, PM_PREFIX_ALWAYS } pm_prefix;

/* One step: first the text is respelt, then it is split. */
typedef struct pm_split_step {
    pm_prefix prefix;
    char space[5]; /* Metaspace: what every space becomes; else "" */
    bool no_split;
    pm_pattern pattern; /* splits by this pattern, */
    unsigned kinds;     /* or by the characters of these kinds, */
    bool words;         /* or into runs of word characters and of others, leaving white space out */
    pm_behavior behavior;
    bool invert;
    bool spell; /* last, bytes are spelt in the byte-level alphabet */
} pm_split_step;

typedef struct pm_splitter {
    pm_split_step steps[PM_STEPS_MAX];
    int n;
    bool byte_level; /* pieces are bytes that have yet to be spelt in the byte-level alphabet */
    pm_arena arena;
} pm_splitter;

/* The pieces of a section, and the memory for finding them; zero-initialised is ready. Ranges may be empty. */
typedef struct pm_pieces {
    const char *text; /* the section, or one of `respelt` */
    pm_range *ranges, *spare;
    size_t n, cap, spare_cap;
    pm_buf respelt[2];
    pm_matcher matcher;
} pm_pieces;
void pm_pieces_free(pm_pieces *pieces);

int pm_splitter_load(pm_splitter *splitter, const pm_tok_file *file, const json_t *component);
/* The fields of a Metaspace, which is a pre-tokeniser and a decoder: prefix and no_split of `step`, and one character.
 */
int pm_metaspace_load(const pm_tok_file *file, const json_t *component, const char *where, pm_split_step *step,
                      const char **replacement);
/* Makes the pieces be spelt, so that byte_level is false. */
void pm_splitter_spell(pm_splitter *splitter);
void pm_splitter_free(pm_splitter *splitter);
/* `first`: the section is the start of what is encoded. */
int pm_split(const pm_splitter *splitter, const char *text, size_t len, bool first, pm_pieces *pieces, pm_error *err);

/* ---- decoder (tokenizer_decoder.c, tokenizer_detok.c) ---- */

typedef enum pm_decode_kind {
    PM_DECODE_JOIN, /* no decoder: a space between tokens */
    PM_DECODE_BYTE_LEVEL,
    PM_DECODE_BYTE_FALLBACK,
    PM_DECODE_FUSE,
    PM_DECODE_METASPACE,
    PM_DECODE_REPLACE,
    PM_DECODE_STRIP,
    PM_DECODE_BPE,
    PM_DECODE_WORDPIECE,
    PM_DECODE_CTC
} pm_decode_kind;

typedef struct pm_decode_step {
    pm_decode_kind kind;
    const char *from; /* what is replaced or stripped: a pad token, suffix, prefix, replacement or content */
    size_t from_len;
    const char *to; /* Replace: the content; CTC: the word delimiter */
    size_t to_len;
    pm_pattern pattern; /* Replace by a pattern */
    size_t start, stop; /* Strip: how many at each end */
    bool flag;          /* WordPiece, CTC: clean up; Metaspace: the first token loses its spaces */
    size_t *border;     /* [from_len + 1] of Replace behind a fusing step: the longest proper border of each prefix */
} pm_decode_step;

typedef struct pm_tok_decoder {
    pm_decode_step steps[PM_STEPS_MAX];
    int n;
    int fused; /* steps from this one on see all tokens as one */
    pm_arena arena;
} pm_tok_decoder;

int pm_tok_decoder_load(pm_tok_decoder *decoder, const pm_tok_file *file, const json_t *component);
void pm_tok_decoder_free(pm_tok_decoder *decoder);

#endif
