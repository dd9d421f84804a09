/* The tokeniser's contract: what it refuses and how, how long it may take, and threads. That its ids are right is shown
 * by tests/text, against the library that defines them. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "text/tokenizer_parts.h"

/* The limits of time are for optimised code; they are of processor time, so that a busy machine does not matter. */
#ifdef NDEBUG
enum { SLOWER = 1 };
#else
enum { SLOWER = 15 };
#endif

static char directory[] = "tokenizer-XXXXXX", path[64], config_path[64];

static int make_directory(void **state)
{
    (void)state;
    if (!mkdtemp(directory))
        return -1;
    snprintf(path, sizeof(path), "%s/tokenizer.json", directory);
    snprintf(config_path, sizeof(config_path), "%s/tokenizer_config.json", directory);
    return 0;
}

static int remove_directory(void **state)
{
    (void)state;
    unlink(path);
    unlink(config_path);
    return rmdir(directory);
}

/* ---- tokenizers to test with ---- */

/* Parts of a tokenizer.json; NULL is the usual one. */
typedef struct parts {
    const char *vocab; /* members after the 256 bytes, which have the ids 0..255 */
    const char *merges, *added, *normalizer, *pre, *post, *decoder;
    const char *model;  /* further members of the model, each with a comma before it */
    const char *top;    /* further members of the top level, likewise */
    const char *config; /* tokenizer_config.json; NULL: none */
} parts;

#define BYTE_LEVEL                                                                                                     \
    "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": false}"
#define SPLIT(pattern)                                                                                                 \
    "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": {\"Regex\": \"" pattern           \
    "\"}, \"behavior\": \"Isolated\", \"invert\": false}, " BYTE_LEVEL "]}"
#define DECODERS(one, two)  "{\"type\": \"Sequence\", \"decoders\": [" one ", " two "]}"
#define TEMPLATE            "{\"type\": \"TemplateProcessing\", \"single\": [{\"Sequence\": {\"id\": \"A\"}}]}"
#define REPLACE(kind, what) "{\"type\": \"Replace\", \"pattern\": {\"" kind "\": \"" what "\"}, \"content\": \"-\"}"
#define SPECIAL(id, content)                                                                                           \
    "{\"id\": " #id ", \"content\": \"" content                                                                        \
    "\", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, \"special\": true}"

static void write_file(const char *name, const char *text, size_t len)
{
    FILE *f = fopen(name, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, len, f), len);
    assert_int_equal(fclose(f), 0);
}

static const char *or_else(const char *given, const char *usual)
{
    return given ? given : usual;
}

/* The vocabulary's members for the 256 bytes. */
static void add_bytes(pm_buf *out)
{
    for (int byte = 0; byte < 256; byte++) {
        char c[5] = "";
        pm_char_put(pm_byte_char((uint8_t)byte), c);
        const char *quote = *c == '"' || *c == '\\' ? "\\" : "";
        assert_int_equal(pm_buf_printf(out, "%s\"%s%s\": %d", byte ? ", " : "", quote, c, byte), PM_OK);
    }
}

static void write_parts(const parts *p)
{
    pm_buf out = {0};
    pm_buf_printf(&out, "{\n\"version\": \"1.0\",\n\"added_tokens\": [%s],\n\"normalizer\": %s,\n",
                  or_else(p->added, ""), or_else(p->normalizer, "null"));
    pm_buf_printf(&out, "\"pre_tokenizer\": %s,\n\"post_processor\": %s,\n\"decoder\": %s,\n",
                  or_else(p->pre, BYTE_LEVEL), or_else(p->post, "null"), or_else(p->decoder, BYTE_LEVEL));
    pm_buf_printf(&out, "\"model\": {\"type\": \"BPE\", \"vocab\": {");
    add_bytes(&out);
    pm_buf_printf(&out, "%s},\n\"merges\": %s%s}%s}\n", or_else(p->vocab, ""), or_else(p->merges, "[]"),
                  or_else(p->model, ""), or_else(p->top, ""));
    write_file(path, out.data, out.len);
    pm_buf_free(&out);
    unlink(config_path);
    if (p->config)
        write_file(config_path, p->config, strlen(p->config));
}

static pm_tokenizer *open_parts(const parts *p)
{
    pm_tokenizer *tokenizer = NULL;
    pm_error err = {0};
    write_parts(p);
    if (pm_tokenizer_open(&tokenizer, directory, &err) != PM_OK)
        fail_msg("does not open: %s", err.message);
    return tokenizer;
}

/* Asserts that opening fails with `code` and a message that has all the words, which are parted by '|'. */
static void expect_refusal(pm_status code, const char *words)
{
    pm_tokenizer *tokenizer = (pm_tokenizer *)words;
    pm_error err = {0};
    int status = pm_tokenizer_open(&tokenizer, directory, &err);
    if (status != (int)code || err.code != code)
        fail_msg("status %d (%s) instead of %d for: %s", status, err.message, code, words);
    assert_ptr_equal(tokenizer, words);
    char copy[256], *save = NULL;
    snprintf(copy, sizeof(copy), "%s", words);
    for (char *word = strtok_r(copy, "|", &save); word; word = strtok_r(NULL, "|", &save))
        if (!strstr(err.message, word))
            fail_msg("the message does not name '%s': %s", word, err.message);
}

static void expect_ids(const pm_tokenizer *tokenizer, const char *text, bool control, bool post, const pm_token *ids,
                       size_t n)
{
    pm_encode_options options = {control, NULL, post};
    pm_token *got = NULL;
    size_t n_got = 0;
    pm_error err = {0};
    if (pm_tokenizer_encode(tokenizer, text, strlen(text), &options, &got, &n_got, &err) != PM_OK)
        fail_msg("'%s': %s", text, err.message);
    assert_int_equal(n_got, n);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(got[i], ids[i]);
    free(got);
}

#define EXPECT_IDS(tokenizer, text, control, post, ...)                                                                \
    expect_ids(tokenizer, text, control, post, (const pm_token[]){__VA_ARGS__},                                        \
               PM_COUNT(((const pm_token[]){__VA_ARGS__})))

/* ---- refusals ---- */

static void test_malformed_files(void **state)
{
    (void)state;
    static const struct {
        parts p;
        const char *words;
    } cases[] = {
        {{.vocab = ", \"ab\": 256, \"ac\": 256"}, "tokenizer.json|model.vocab|'ab'|'ac'|256"},
        {{.vocab = ", \"ab\": 256, \"ab\": 257"}, "model.vocab|'ab' twice"},
        {{.vocab = ", \"ab\": -1"}, "model.vocab|-1|'ab'"},
        {{.vocab = ", \"ab\": 4194304"}, "model.vocab|4194304|'ab'"},
        {{.vocab = ", \"ab\": 99999999999999999999"}, "model.vocab|99999999999999999999|'ab'"},
        {{.vocab = ", \"ab\": 1.5"}, "model.vocab|'ab'|not an integer"},
        {{.vocab = ", \"ab\": 1e3"}, "model.vocab|'ab'|not an integer"},
        {{.vocab = ", \"ab\": \"256\""}, "model.vocab|'ab'|not an integer"},
        {{.vocab = ", \"ab\": null"}, "model.vocab|'ab'|not an integer"},
        {{.vocab = ", \"ab\": 0256"}, "model.vocab|'ab'|not an integer"},
        {{.vocab = ", \"\": 256"}, "model.vocab|256|0 bytes"},
        {{.vocab = ", \"a\\u0000b\": 256"}, "model.vocab|escape"},
        {{.vocab = ", \"a\\ud800b\": 256"}, "model.vocab|escape"},
        {{.vocab = ", \"a\\x\": 256"}, "model.vocab|escape"},
        {{.vocab = ", \"a\tb\": 256"}, "model.vocab|control character"},
        {{.vocab = ", \"ab\" 256"}, "model.vocab|colon"},
        {{.vocab = ", 256"}, "model.vocab|no string"},
        {{.vocab = ","}, "model.vocab|no string"},
        {{.vocab = ", \"ab\": 256", .merges = "[[\"a\", \"c\"]]"}, "model.merges|entry 0|'ac'"},
        {{.vocab = ", \"ab\": 256", .merges = "[\"a b\", \"ab zz\"]"}, "model.merges|entry 1|'zz'"},
        {{.vocab = ", \"ab\": 256", .merges = "[\"a b\", [\"a\", \"b\"]]"}, "model.merges"},
        {{.vocab = ", \"ab\": 256", .merges = "[[\"a\", \"b\"], \"a b\"]"}, "model.merges|pair"},
        {{.merges = "[\"ab\"]"}, "model.merges|pair"},
        {{.merges = "[\"a b c\"]"}, "model.merges|pair"},
        {{.merges = "[\" b\"]"}, "model.merges|pair"},
        {{.merges = "[[\"a\"]]"}, "model.merges|pair"},
        {{.merges = "[[\"a\", \"b\", \"c\"]]"}, "model.merges|pair"},
        {{.merges = "[[\"a\", \"\"]]"}, "model.merges|pair"},
        {{.merges = "[1]"}, "model.merges|no string"},
        {{.merges = "[\"a b\" \"a b\"]"}, "model.merges"},
        {{.merges = "{}"}, "model.merges|not a list"},
        {{.merges = "null"}, "model.merges|not a list"},
        {{.model = ", \"vocab\": {}"}, "line"},
        {{.model = ", \"unk_token\": \"nope\""}, "unk_token|nope"},
        {{.model = ", \"unk_token\": 5"}, "unk_token"},
        {{.model = ", \"fuse_unk\": \"yes\""}, "fuse_unk"},
        {{.model = ", \"ignore_merges\": 1"}, "ignore_merges"},
        {{.added = "5"}, "added_tokens"},
        {{.added = "{\"content\": \"<a>\"}"}, "added_tokens|<a>|not an integer"},
        {{.added = "{\"id\": 300}"}, "added_tokens|content"},
        {{.added = SPECIAL(300, "")}, "added_tokens|300"},
        {{.added = SPECIAL(-2, "<a>")}, "added_tokens|-2|<a>"},
        {{.added = SPECIAL(99999999, "<a>")}, "added_tokens|99999999|<a>"},
        {{.added = SPECIAL(64, "<a>")}, "added_tokens|<a>|64|'@'"},
        {{.added = SPECIAL(300, "a")}, "added_tokens|'a'|300|97"},
        {{.added = SPECIAL(300, "<a>") ", " SPECIAL(301, "<a>")}, "added_tokens|<a>|300|301"},
        {{.pre = "[]"}, "pre_tokenizer"},
        {{.pre = "{\"type\": 5}"}, "pre_tokenizer|type"},
        {{.pre = "{\"type\": \"Sequence\"}"}, "pretokenizers"},
        {{.pre = "{\"type\": \"Sequence\", \"pretokenizers\": [5]}"}, "pretokenizers|entry 0"},
        {{.pre = "{\"type\": \"Split\", \"behavior\": \"Isolated\", \"pattern\": \"a\"}"}, "Split|pattern"},
        {{.pre = "{\"type\": \"Split\", \"behavior\": \"Isolated\"}"}, "Split|pattern"},
        {{.pre = "{\"type\": \"Split\", \"behavior\": 1, \"pattern\": {\"Regex\": \"a\"}}"}, "Split|behavior"},
        {{.pre = "{\"type\": \"ByteLevel\", \"use_regex\": 3}"}, "ByteLevel|use_regex"},
        {{.pre = "{\"type\": \"Metaspace\", \"replacement\": \"__\"}"}, "Metaspace|replacement|'__'"},
        {{.pre = "{\"type\": \"Metaspace\"}"}, "Metaspace|replacement"},
        {{.pre = "{\"type\": \"Metaspace\", \"replacement\": \"_\", \"add_prefix_space\": false, "
                 "\"prepend_scheme\": \"always\"}"},
         "Metaspace|add_prefix_space|always"},
        {{.normalizer = "{\"type\": \"Prepend\"}"}, "normalizer Prepend|prepend"},
        {{.normalizer = "{\"type\": \"Strip\", \"strip_left\": 1}"}, "normalizer Strip|strip_left"},
        {{.normalizer = "{\"type\": \"Replace\", \"content\": \"a\"}"}, "normalizer Replace|pattern"},
        {{.decoder = "{\"type\": \"Strip\", \"content\": \"\", \"start\": 1, \"stop\": 0}"}, "decoder Strip|content"},
        {{.decoder = "{\"type\": \"Strip\", \"content\": \"a\", \"start\": -1, \"stop\": 0}"}, "decoder Strip|start"},
        {{.decoder = "{\"type\": \"BPEDecoder\"}"}, "decoder BPEDecoder|suffix"},
        {{.post = "{\"type\": \"TemplateProcessing\", \"single\": 5}"}, "TemplateProcessing|single"},
        {{.post = "{\"type\": \"TemplateProcessing\", \"single\": [5]}"}, "TemplateProcessing: single|not an object"},
        {{.post = "{\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"<s>\"}}]}"}, "<s>"},
        {{.post = "{\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"<s>\"}}], "
                  "\"special_tokens\": {\"<s>\": {\"id\": \"<s>\", \"ids\": [400], \"tokens\": [\"<s>\"]}}}"},
         "TemplateProcessing|400|<s>"},
        {{.config = "[]"}, "tokenizer_config.json"},
        {{.config = "{\"eos_token\": \"<nope>\"}"}, "tokenizer_config.json|eos_token|<nope>"},
        {{.config = "{\"eos_token\": 5}"}, "tokenizer_config.json|eos_token|neither a string"},
        {{.config = "{\"bos_token\": {\"special\": true}}"}, "tokenizer_config.json|bos_token|content"},
        {{.config = "{\"additional_special_tokens\": \"<a>\"}"}, "additional_special_tokens|neither a list"},
        {{.config = "{\"extra_special_tokens\": [[]]}"}, "extra_special_tokens|neither a string"},
        {{.config = "{\"added_tokens_decoder\": {\"x\": {\"content\": \"<a>\"}}}"}, "added_tokens_decoder|'x'"},
        {{.config = "{\"added_tokens_decoder\": {\"9999999999\": {\"content\": \"<a>\"}}}"}, "9999999999"},
        {{.config = "{\"added_tokens_decoder\": {\"97\": {\"content\": \"<a>\"}}}"}, "added_tokens_decoder|<a>|97|'a'"},
    };
    for (size_t i = 0; i < PM_COUNT(cases); i++) {
        write_parts(&cases[i].p);
        expect_refusal(PM_ERR_FORMAT, cases[i].words);
    }
}

static void test_unsupported_components(void **state)
{
    (void)state;
    static const struct {
        parts p;
        const char *words;
    } cases[] = {
        {{.normalizer = "{\"type\": \"BertNormalizer\"}"}, "tokenizer.json|component 'BertNormalizer'|normalizer"},
        {{.normalizer = "{\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"NFC\"}, {\"type\": \"Nmt\"}]}"},
         "'Nmt'|normalizer"},
        {{.normalizer = "{\"type\": \"NFC\", \"more\": 1}"}, "normalizer NFC|'more'"},
        {{.normalizer = "{\"type\": \"Precompiled\"}"}, "'Precompiled'|normalizer"},
        {{.normalizer = "{\"type\": \"Replace\", \"pattern\": {\"Regex\": \"(\"}, \"content\": \"\"}"},
         "normalizer Replace|'('"},
        {{.normalizer = "{\"type\": \"Replace\", \"pattern\": {\"Glob\": \"*\"}, \"content\": \"\"}"},
         "normalizer Replace|'Glob'"},
        {{.pre = "{\"type\": \"UnicodeScripts\"}"}, "'UnicodeScripts'|pre_tokenizer"},
        {{.pre = "{\"type\": \"Sequence\", \"pretokenizers\": [" BYTE_LEVEL ", {\"type\": \"BertPreTokenizer\"}]}"},
         "'BertPreTokenizer'|pre_tokenizer"},
        {{.pre = "{\"type\": \"Metaspace\", \"replacement\": \"_\", \"prepend_scheme\": \"last\"}"},
         "Metaspace|'last'"},
        {{.pre = "{\"type\": \"Punctuation\", \"behavior\": \"Odd\"}"}, "Punctuation|'Odd'"},
        {{.pre = "{\"type\": \"Whitespace\", \"more\": 1}"}, "Whitespace|'more'"},
        {{.pre = "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"a\"}, \"behavior\": \"Odd\"}"}, "Split|'Odd'"},
        {{.pre = "{\"type\": \"Split\", \"pattern\": {\"Glob\": \"a\"}, \"behavior\": \"Isolated\"}"}, "'Glob'"},
        {{.pre = "{\"type\": \"ByteLevel\", \"extra\": true}"}, "ByteLevel|'extra'"},
        {{.pre = SPLIT("(a")}, "(a"},
        {{.pre = SPLIT("[a")}, "[a"},
        {{.pre = SPLIT("*a")}, "*a|quantifier"},
        {{.pre = SPLIT("a\\\\")}, "backslash"},
        {{.pre = SPLIT("(*UTF)a")}, "(*U"},
        {{.pre = SPLIT("(?R)")}, "(?R"},
        {{.pre = SPLIT("(?C1)")}, "(?C"},
        {{.pre = SPLIT("\\\\p{Klingon}")}, "Klingon"},
        {{.pre = SPLIT("\\\\x{110000}")}, "escape"},
        {{.decoder = "{\"type\": \"Novel\"}"}, "'Novel'|decoder"},
        {{.decoder = "{\"type\": \"Fuse\", \"more\": 1}"}, "decoder Fuse|'more'"},
        {{.decoder = DECODERS("{\"type\": \"Fuse\"}", "{\"type\": \"ByteFallback\"}")}, "ByteFallback|Fuse"},
        {{.decoder = DECODERS(BYTE_LEVEL, "{\"type\": \"WordPiece\", \"prefix\": \"#\"}")}, "WordPiece|ByteLevel"},
        {{.decoder = DECODERS(BYTE_LEVEL, REPLACE("Regex", "a+"))}, "Replace|Regex"},
        {{.decoder = DECODERS(BYTE_LEVEL, REPLACE("String", ""))}, "Replace|empty"},
        {{.post = "{\"type\": \"BertProcessing\"}"}, "'BertProcessing'|post_processor"},
        {{.post = "{\"type\": \"TemplateProcessing\", \"single\": [{\"Sequence\": {\"id\": \"B\"}}]}"}, "single"},
        {{.post = "{\"type\": \"TemplateProcessing\", \"single\": []}"}, "single"},
        {{.post = "{\"type\": \"Sequence\", \"processors\": [" TEMPLATE ", " TEMPLATE "]}"},
         "second|TemplateProcessing"},
        {{.model = ", \"dropout\": 0.1"}, "'dropout'"},
        {{.model = ", \"continuing_subword_prefix\": \"##\""}, "'continuing_subword_prefix'"},
        {{.model = ", \"end_of_word_suffix\": \"</w>\""}, "'end_of_word_suffix'"},
        {{.model = ", \"novelty\": 1"}, "model BPE|'novelty'"},
        {{.top = ", \"novelty\": 1"}, "'novelty'"},
        {{.added = "{\"id\": 300, \"content\": \"<a>\", \"novelty\": 1}"}, "added_tokens|'novelty'"},
        {{.config = "{\"split_special_tokens\": true}"}, "tokenizer_config.json|split_special_tokens"},
    };
    for (size_t i = 0; i < PM_COUNT(cases); i++) {
        write_parts(&cases[i].p);
        expect_refusal(PM_ERR_UNSUPPORTED, cases[i].words);
    }
}

static void test_files_that_are_not_tokenizers(void **state)
{
    (void)state;
    static const struct {
        const char *text, *words;
        pm_status code;
    } cases[] = {
        {"", "tokenizer.json", PM_ERR_FORMAT},
        {"[]", "top level", PM_ERR_FORMAT},
        {"{", "line 1", PM_ERR_FORMAT},
        {"{\"model\": {\"vocab\": {\n\"a\": 1,\n\"b\": 2},\n\"merges\": [\n]}\n,}", "line 6", PM_ERR_FORMAT},
        {"{\"model\": {\"vocab\": {\"a\": 0", "line", PM_ERR_FORMAT},
        {"{\"model\": {\"vocab\": {\"a", "line", PM_ERR_FORMAT},
        {"{\"model\": {\"vocab\": [], \"merges\": []}", "line", PM_ERR_FORMAT},
        {"{}", "model", PM_ERR_FORMAT},
        {"{\"model\": 5}", "model", PM_ERR_FORMAT},
        {"{\"model\": {\"type\": \"Unigram\", \"vocab\": [[\"a\", 0.5]]}}", "'Unigram'", PM_ERR_UNSUPPORTED},
        {"{\"model\": {\"type\": \"WordPiece\", \"vocab\": {}}}", "'WordPiece'", PM_ERR_UNSUPPORTED},
        {"{\"model\": {\"type\": \"BPE\", \"vocab\": [], \"merges\": []}, \"pre_tokenizer\": " BYTE_LEVEL
         ", \"decoder\": " BYTE_LEVEL "}",
         "model.vocab|not an object", PM_ERR_FORMAT},
        {"{\"model\": {\"type\": \"BPE\", \"merges\": []}, \"pre_tokenizer\": " BYTE_LEVEL ", \"decoder\": " BYTE_LEVEL
         "}",
         "model.vocab|missing", PM_ERR_FORMAT},
        {"{\"model\": {\"vocab\": {}, \"merges\": []}}", "model.vocab is empty", PM_ERR_FORMAT},
        {"{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}}, \"pre_tokenizer\": " BYTE_LEVEL
         ", \"decoder\": " BYTE_LEVEL "}",
         "model.merges|missing", PM_ERR_FORMAT},
        {"{\"model\": {\"vocab\": {\"\xff\": 0}, \"merges\": []}}", "UTF-8 at byte 22", PM_ERR_FORMAT},
    };
    for (size_t i = 0; i < PM_COUNT(cases); i++) {
        unlink(config_path);
        write_file(path, cases[i].text, strlen(cases[i].text));
        expect_refusal(cases[i].code, cases[i].words);
    }
    unlink(path);
    expect_refusal(PM_ERR_IO, "tokenizer.json");
}

/* Every truncation of a good file is an error or, where only white space is lost, loads. */
static void test_truncated_file(void **state)
{
    (void)state;
    pm_buf text = {0};
    write_parts(&(parts){.vocab = ", \"ab\": 256", .merges = "[[\"a\", \"b\"]]", .added = SPECIAL(257, "<a>")});
    assert_int_equal(pm_read_file(path, 1 << 20, &text, NULL), PM_OK);
    for (size_t len = 0; len + 2 < text.len; len += len < text.len / 2 ? 7 : 1) {
        write_file(path, text.data, len);
        pm_tokenizer *tokenizer = NULL;
        assert_int_equal(pm_tokenizer_open(&tokenizer, directory, NULL), PM_ERR_FORMAT);
    }
    pm_buf_free(&text);
}

static void test_text_that_is_refused(void **state)
{
    (void)state;
    pm_tokenizer *tokenizer = open_parts(&(parts){0});
    pm_encode_options options = {.control = true};
    pm_token keep = 7, *ids = &keep;
    size_t n = 99;
    pm_error err = {0};
    static const char *const bad[] = {"ab\xff", "ab\xed\xa0\x80", "ab\xc3", "ab\xc0\x80", "ab\xf4\x90\x80\x80"};
    for (size_t i = 0; i < PM_COUNT(bad); i++) {
        assert_int_equal(pm_tokenizer_encode(tokenizer, bad[i], strlen(bad[i]), &options, &ids, &n, &err),
                         PM_ERR_INVALID);
        assert_non_null(strstr(err.message, "byte 2"));
        assert_ptr_equal(ids, &keep);
        assert_int_equal(n, 99);
    }
    pm_tokenizer_close(tokenizer);
}

/* ---- what is read ---- */

static void test_vocabulary(void **state)
{
    (void)state;
    pm_tokenizer *tokenizer = open_parts(&(parts){
        .vocab = ", \"ab\": 260, \"\\u0120a\": 261, \"\\ud83d\\ude00\\n\\/\": 262",
        .added = SPECIAL(300, "<s>") ", {\"id\": 301, \"content\": \"<think>\", \"special\": false}, "
                                     "{\"id\": 260, \"content\": \"ab\", \"special\": false}",
        .config = "{\"eos_token\": {\"content\": \"<e>\", \"__type\": \"AddedToken\"}, \"bos_token\": null, "
                  "\"pad_token\": \"<nowhere>\", \"unk_token\": \"ab\", "
                  "\"added_tokens_decoder\": {\"302\": {\"content\": \"<e>\", \"special\": false}}}",
    });
    assert_int_equal(pm_tokenizer_vocab(tokenizer), 303);
    assert_int_equal(pm_tokenizer_id(tokenizer, "ab"), 260);
    assert_int_equal(pm_tokenizer_id(tokenizer, "\xc4\xa0"
                                                "a"),
                     261);
    assert_int_equal(pm_tokenizer_id(tokenizer, "\xf0\x9f\x98\x80\n/"), 262);
    assert_int_equal(pm_tokenizer_id(tokenizer, "<s>"), 300);
    assert_int_equal(pm_tokenizer_id(tokenizer, "<nowhere>"), -1);
    assert_int_equal(pm_tokenizer_eos(tokenizer), 302);
    assert_true(pm_tokenizer_special(tokenizer, 300));
    assert_false(pm_tokenizer_special(tokenizer, 301));
    assert_true(pm_tokenizer_special(tokenizer, 302)); /* the role makes it so */
    assert_true(pm_tokenizer_special(tokenizer, 260));
    assert_false(pm_tokenizer_special(tokenizer, 97));
    assert_false(pm_tokenizer_special(tokenizer, -1));
    assert_false(pm_tokenizer_special(tokenizer, 303));
    EXPECT_IDS(tokenizer, "a<e>ab<s>", true, false, 97, 302, 260, 300);
    pm_tokenizer_close(tokenizer);
    tokenizer = open_parts(&(parts){0});
    assert_int_equal(pm_tokenizer_eos(tokenizer), -1);
    pm_tokenizer_close(tokenizer);
}

/* The flags that a tokenizer_config.json gives to a token count, as in transformers. */
static void test_flags_of_the_config(void **state)
{
    (void)state;
    pm_tokenizer *tokenizer = open_parts(&(parts){
        .added = SPECIAL(300, "<s>"),
        .config = "{\"added_tokens_decoder\": {\"300\": {\"content\": \"<s>\", \"lstrip\": true, \"special\": true}}}",
    });
    EXPECT_IDS(tokenizer, "a  <s> b", true, false, 97, 300, 32, 98);
    pm_tokenizer_close(tokenizer);
}

/* A special token that only tokenizer_config.json knows is matched, and is not made by merges of other text. */
static void test_special_by_config(void **state)
{
    (void)state;
    static const char *const configs[] = {
        "{\"pad_token\": \"ab\"}",
        "{\"additional_special_tokens\": [\"<none>\", \"ab\"]}",
        "{\"extra_special_tokens\": {\"image_token\": {\"content\": \"ab\"}}}",
        "{\"added_tokens_decoder\": {\"256\": {\"content\": \"ab\", \"special\": true}}}",
    };
    for (size_t i = 0; i < PM_COUNT(configs); i++) {
        pm_tokenizer *tokenizer =
            open_parts(&(parts){.vocab = ", \"ab\": 256", .merges = "[\"a b\"]", .config = configs[i]});
        assert_true(pm_tokenizer_special(tokenizer, 256));
        EXPECT_IDS(tokenizer, "abc", true, false, 256, 99);
        EXPECT_IDS(tokenizer, "abc", false, false, 97, 98, 99);
        pm_tokenizer_close(tokenizer);
    }
    /* An added token that is listed again keeps its flags. */
    pm_tokenizer *tokenizer = open_parts(&(parts){
        .added = "{\"id\": 300, \"content\": \"<think>\", \"special\": false}",
        .config = "{\"additional_special_tokens\": [\"<think>\"]}",
    });
    assert_false(pm_tokenizer_special(tokenizer, 300));
    pm_tokenizer_close(tokenizer);
}

/* One BOS where the post-processor says so and is asked, none otherwise; a template's own is not doubled here. */
static void test_post_processor(void **state)
{
    (void)state;
    static const char template[] =
        "{\"type\": \"Sequence\", \"processors\": [{\"type\": \"ByteLevel\", \"trim_offsets\": false}, "
        "{\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"<s>\", \"type_id\": 0}}, "
        "{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}, {\"SpecialToken\": {\"id\": \"<e>\", \"type_id\": 0}}], "
        "\"pair\": [], \"special_tokens\": {\"<s>\": {\"id\": \"<s>\", \"ids\": [300], \"tokens\": [\"<s>\"]}, "
        "\"<e>\": {\"id\": \"<e>\", \"ids\": [301, 300], \"tokens\": [\"<e>\", \"<s>\"]}}}]}";
    pm_tokenizer *tokenizer =
        open_parts(&(parts){.added = SPECIAL(300, "<s>") ", " SPECIAL(301, "<e>"), .post = template});
    EXPECT_IDS(tokenizer, "a", true, true, 300, 97, 301, 300);
    EXPECT_IDS(tokenizer, "<s>a", true, false, 300, 97);
    EXPECT_IDS(tokenizer, "", true, true, 300, 301, 300);
    pm_tokenizer_close(tokenizer);
    tokenizer = open_parts(&(parts){.post = BYTE_LEVEL});
    EXPECT_IDS(tokenizer, "a", true, true, 97);
    pm_tokenizer_close(tokenizer);
}

/* Merges by rank, then from the left; a pair that is listed twice has the later rank. */
static void test_merge_order(void **state)
{
    (void)state;
    const char *vocab = ", \"ab\": 256, \"bc\": 257, \"aa\": 258, \"abc\": 259";
    pm_tokenizer *tokenizer =
        open_parts(&(parts){.vocab = vocab, .merges = "[\"#version: 0.2\", \"b c\", \"a b\", \"a a\", \"a bc\"]"});
    EXPECT_IDS(tokenizer, "abc", false, false, 259);
    EXPECT_IDS(tokenizer, "ab", false, false, 256);
    EXPECT_IDS(tokenizer, "aaab", false, false, 258, 256);
    EXPECT_IDS(tokenizer, "aaa", false, false, 258, 97);
    pm_tokenizer_close(tokenizer);
    tokenizer = open_parts(&(parts){.vocab = vocab, .merges = "[\"b c\", \"a b\", \"b c\"]"});
    EXPECT_IDS(tokenizer, "abc", false, false, 256, 99);
    pm_tokenizer_close(tokenizer);
}

static void test_byte_alphabet(void **state)
{
    (void)state;
    bool seen[512] = {false};
    for (int byte = 0; byte < 256; byte++) {
        int32_t c = pm_byte_char((uint8_t)byte);
        assert_true(c > 0x20 && c < 0x144 && !seen[c]);
        seen[c] = true;
        assert_int_equal(pm_char_byte(c), byte);
    }
    assert_int_equal(pm_byte_char(' '), 0x120);
    assert_int_equal(pm_byte_char('\n'), 0x10A);
    for (int32_t c = 0; c < 512; c++)
        if (!seen[c])
            assert_int_equal(pm_char_byte(c), -1);
}

/* ---- time ---- */

/* Asserts that encoding n bytes of `unit` repeated takes at most `seconds`. */
static void expect_fast(const pm_tokenizer *tokenizer, const char *unit, size_t n, double seconds)
{
    size_t len = strlen(unit), n_ids;
    char *text = malloc(n + 1);
    pm_token *ids = NULL;
    pm_error err = {0};
    pm_encode_options options = {.control = true};
    assert_non_null(text);
    n -= n % len;
    for (size_t i = 0; i < n; i++)
        text[i] = unit[i % len];
    clock_t start = clock();
    if (pm_tokenizer_encode(tokenizer, text, n, &options, &ids, &n_ids, &err) != PM_OK)
        fail_msg("%zu bytes of '%s': %s", n, unit, err.message);
    double took = (double)(clock() - start) / CLOCKS_PER_SEC;
    if (took > seconds * SLOWER)
        fail_msg("%zu bytes of '%s' took %.2f s instead of at most %.2f s", n, unit, took, seconds * SLOWER);
    free(ids);
    free(text);
}

static const char *const long_texts[] = {
    "a",
    " ",
    "\n",
    "1",
    "!",
    "ab",
    "a ",
    " \n",
    "\r\n",
    "\xcc\x81",
    "\xcc\xa3\xcc\x81",
    "\xe6\xbc\xa2",
    "A1 b!\n",
    "\xe1\x84\x92\xe1\x85\xa1\xe1\x86\xab",
    "<|im_start|",
    "<|im_end|>",
    "'s",
    "\t",
    "e\xcc\x81",
    "\xf0\x9f\x98\x80",
};

static void test_long_texts(void **state)
{
    (void)state;
    pm_tokenizer *tokenizer = NULL;
    pm_error err = {0};
    if (pm_tokenizer_open(&tokenizer, SOURCE_DIR "/models/default", &err) != PM_OK)
        fail_msg("%s", err.message);
    for (size_t i = 0; i < PM_COUNT(long_texts); i++)
        expect_fast(tokenizer, long_texts[i], 1 << 20, 2);
    pm_tokenizer_close(tokenizer);
}

/* One piece of a megabyte, in which every merge leads to another. */
static void test_long_piece(void **state)
{
    (void)state;
    pm_tokenizer *tokenizer = open_parts(&(parts){
        .vocab = ", \"aa\": 256, \"aaaa\": 257, \"aaaaaaaa\": 258, \"aaa\": 259",
        .merges = "[\"a a\", \"aa aa\", \"aaaa aaaa\", \"aa a\"]",
    });
    expect_fast(tokenizer, "a", 1 << 20, 2);
    expect_fast(tokenizer, "aaab", 1 << 20, 2);
    pm_tokenizer_close(tokenizer);
}

/* A pattern that backtracks without end is an error of the text, with the pattern named; and does not overflow a stack.
 */
static void test_hostile_patterns(void **state)
{
    (void)state;
    static const char *const patterns[] = {SPLIT("(?:a+)+c"), SPLIT("(?:a|a)*c"), SPLIT("(?:a*a)*(?=c)")};
    char text[64];
    memset(text, 'a', sizeof(text));
    text[sizeof(text) - 2] = 'b'; /* with c behind it, or PCRE2 sees at once that there is none */
    text[sizeof(text) - 1] = 'c';
    for (size_t i = 0; i < PM_COUNT(patterns); i++) {
        pm_tokenizer *tokenizer = open_parts(&(parts){.pre = patterns[i]});
        pm_encode_options options = {0};
        pm_token *ids = NULL;
        size_t n;
        pm_error err = {0};
        assert_int_equal(pm_tokenizer_encode(tokenizer, text, sizeof(text), &options, &ids, &n, &err), PM_ERR_LIMIT);
        assert_null(ids);
        assert_non_null(strstr(err.message, "a"));
        pm_tokenizer_close(tokenizer);
    }
    pm_tokenizer *tokenizer = open_parts(&(parts){.pre = SPLIT("(?:a|b)+")});
    expect_fast(tokenizer, "ab", 1 << 20, 2);
    pm_tokenizer_close(tokenizer);
}

/* Steps that multiply what they are given end at a limit, and the message names the part of the file. */
static void test_growth_is_bounded(void **state)
{
    (void)state;
    static const char grows[] =
        "{\"type\": \"Replace\", \"pattern\": {\"String\": \"a\"}, \"content\": \"aaaaaaaaaaaaaaaa\"}";
    static const struct {
        const char *list, *step; /* in a sequence, and 24 times of these */
    } kinds[] = {{"normalizers", grows}, {"pretokenizers", BYTE_LEVEL}, {"decoders", grows}};
    for (size_t i = 0; i < PM_COUNT(kinds); i++) {
        pm_buf steps = {0};
        pm_buf_printf(&steps, "{\"type\": \"Sequence\", \"%s\": [%s", kinds[i].list, kinds[i].step);
        for (int k = 1; k < 24; k++)
            pm_buf_printf(&steps, ", %s", kinds[i].step);
        assert_int_equal(pm_buf_printf(&steps, "]}"), PM_OK);
        parts p = {.normalizer = i == 0 ? steps.data : NULL, .pre = i == 1 ? steps.data : NULL};
        p.decoder = i == 2 ? steps.data : NULL;
        pm_tokenizer *tokenizer = open_parts(&p);
        pm_encode_options options = {0};
        pm_token *ids = NULL, a = pm_tokenizer_id(tokenizer, "a");
        char *text = NULL;
        size_t n;
        pm_error err = {0};
        int status = i < 2 ? pm_tokenizer_encode(tokenizer, "a\xc3\xa9", 3, &options, &ids, &n, &err)
                           : pm_tokenizer_text(tokenizer, &a, 1, true, &text, &n, &err);
        static const char *const parts_of_file[] = {"the normalizer", "the pre_tokenizer", "the decoder"};
        assert_int_equal(status, PM_ERR_LIMIT);
        assert_non_null(strstr(err.message, "tokenizer.json"));
        assert_non_null(strstr(err.message, parts_of_file[i]));
        assert_true(!ids && !text);
        pm_tokenizer_close(tokenizer);
        pm_buf_free(&steps);
    }
}

static void expect_opens_fast(const char *dir, double seconds)
{
    pm_tokenizer *tokenizer = NULL;
    pm_error err = {0};
    clock_t start = clock();
    if (pm_tokenizer_open(&tokenizer, dir, &err) != PM_OK)
        fail_msg("%s", err.message);
    double took = (double)(clock() - start) / CLOCKS_PER_SEC;
    pm_tokenizer_close(tokenizer);
    if (took > seconds * SLOWER)
        fail_msg("%s took %.0f ms to open instead of at most %.0f ms", dir, took * 1e3, seconds * SLOWER * 1e3);
}

/* 256 bytes, 62 * 62 pairs of letters and digits, and threes of them: 150,000 tokens and as many merges. */
static void write_large(void)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    pm_buf vocab = {0}, merges = {0};
    int id = 256;
    pm_buf_printf(&merges, "[");
    for (int i = 0; i < 62 && id < 150000; i++) {
        for (int j = 0; j < 62; j++) {
            pm_buf_printf(&vocab, ", \"%c%c\": %d", letters[i], letters[j], id++);
            pm_buf_printf(&merges, "%s[\"%c\", \"%c\"]", i + j ? ", " : "", letters[i], letters[j]);
        }
    }
    for (int i = 0; i < 62 * 62 * 62 && id < 150000; i++) {
        char a = letters[i / 62 / 62], b = letters[i / 62 % 62], c = letters[i % 62];
        pm_buf_printf(&vocab, ", \"%c%c%c\": %d", a, b, c, id++);
        pm_buf_printf(&merges, ", [\"%c%c\", \"%c\"]", a, b, c);
    }
    assert_int_equal(pm_buf_printf(&merges, "]"), PM_OK);
    write_parts(&(parts){.vocab = vocab.data, .merges = merges.data});
    pm_buf_free(&vocab);
    pm_buf_free(&merges);
}

static void test_loading_is_fast(void **state)
{
    (void)state;
    expect_opens_fast(SOURCE_DIR "/models/default", 0.015);
    write_large();
    expect_opens_fast(directory, 0.3);
}

/* ---- threads ---- */

enum { THREADS = 4, ROUNDS = 20 };

typedef struct job {
    const pm_tokenizer *tokenizer;
    const char *text;
    pm_token *ids;
    size_t n;
    bool same; /* every round gave what the first did */
} job;

static void *encode_often(void *argument)
{
    job *j = argument;
    pm_encode_options options = {.control = true};
    j->same = true;
    for (int i = 0; i < ROUNDS; i++) {
        pm_token *ids = NULL;
        size_t n = 0;
        if (pm_tokenizer_encode(j->tokenizer, j->text, strlen(j->text), &options, &ids, &n, NULL) != PM_OK)
            j->same = false;
        if (i == 0) {
            j->ids = ids;
            j->n = n;
            continue;
        }
        j->same = j->same && n == j->n && memcmp(ids, j->ids, n * sizeof(*ids)) == 0;
        free(ids);
    }
    return NULL;
}

static void test_threads(void **state)
{
    (void)state;
    static const char text[] = "<|im_start|>user\nWhat is a dog? e\xcc\x81 \xf0\x9f\x98\x80 12345<|im_end|>\n";
    pm_tokenizer *tokenizer = NULL;
    assert_int_equal(pm_tokenizer_open(&tokenizer, SOURCE_DIR "/models/default", NULL), PM_OK);
    job jobs[THREADS];
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) {
        jobs[i] = (job){.tokenizer = tokenizer, .text = text};
        assert_int_equal(pthread_create(&threads[i], NULL, encode_often, &jobs[i]), 0);
    }
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_true(jobs[0].n > 10);
    for (int i = 0; i < THREADS; i++) {
        assert_true(jobs[i].same);
        assert_int_equal(jobs[i].n, jobs[0].n);
        assert_memory_equal(jobs[i].ids, jobs[0].ids, jobs[0].n * sizeof(pm_token));
    }
    for (int i = 0; i < THREADS; i++)
        free(jobs[i].ids);
    pm_tokenizer_close(tokenizer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_malformed_files),
        cmocka_unit_test(test_unsupported_components),
        cmocka_unit_test(test_files_that_are_not_tokenizers),
        cmocka_unit_test(test_truncated_file),
        cmocka_unit_test(test_text_that_is_refused),
        cmocka_unit_test(test_vocabulary),
        cmocka_unit_test(test_flags_of_the_config),
        cmocka_unit_test(test_special_by_config),
        cmocka_unit_test(test_post_processor),
        cmocka_unit_test(test_merge_order),
        cmocka_unit_test(test_byte_alphabet),
        cmocka_unit_test(test_long_texts),
        cmocka_unit_test(test_long_piece),
        cmocka_unit_test(test_hostile_patterns),
        cmocka_unit_test(test_growth_is_bounded),
        cmocka_unit_test(test_loading_is_fast),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests_name("tokenizer", tests, make_directory, remove_directory);
}
