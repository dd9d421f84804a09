/* Strings. */
#include "text/schema_parts.h"

#include <string.h>

/* Dates are of the Gregorian calendar; the 29th of February, which not every year has, is left out. */
#define MONTH_DAY                                                                                                      \
    "((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
#define DATE  "[0-9]{4}-" MONTH_DAY
#define TIME  "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
#define LABEL "[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
#define OCTET "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
#define HEX   "[0-9a-fA-F]"

const pm_string_format pm_string_formats[] = {
    {"date", "^" DATE "$", PM_TYPE_STRING},
    {"time", "^" TIME "$", PM_TYPE_STRING},
    {"date-time", "^" DATE "T" TIME "$", PM_TYPE_STRING},
    {"duration", "^P([0-9]{1,4}W|[0-9]{1,4}D|[0-9]{1,4}Y([0-9]{1,4}M)?|T[0-9]{1,4}H([0-9]{1,4}M)?|T[0-9]{1,4}S)$",
     PM_TYPE_STRING},
    {"uuid", "^" HEX "{8}-" HEX "{4}-" HEX "{4}-" HEX "{4}-" HEX "{12}$", PM_TYPE_STRING},
    {"ipv4", "^(" OCTET "\\.){3}" OCTET "$", PM_TYPE_STRING},
    {"hostname", "^" LABEL "(\\." LABEL "){0,5}$", PM_TYPE_STRING},
    {"email", "^[a-zA-Z0-9_+-]+(\\.[a-zA-Z0-9_+-]+)*@" LABEL "(\\." LABEL "){1,5}$", PM_TYPE_STRING},
    {"uri", "^[a-zA-Z][a-zA-Z0-9+.-]*://[a-zA-Z0-9._~:/?#@!$&'()*+,;=-]+$", PM_TYPE_STRING},
    {"int32", NULL, PM_TYPE_INTEGER},
    {"int64", NULL, PM_TYPE_INTEGER}, /* integers have fewer digits than this allows */
    {"float", NULL, PM_TYPE_NUMBER},
    {"double", NULL, PM_TYPE_NUMBER},
};
const size_t pm_n_string_formats = PM_COUNT(pm_string_formats);

/* ---- characters ---- */

static int32_t hex_digits(pm_grammar *grammar, int n, int32_t next)
{
    for (; n > 0; n--) {
        int32_t node = pm_node_bytes(grammar);
        pm_edge_add(grammar, node, '0', '9', next);
        pm_edge_add(grammar, node, 'A', 'F', next);
        pm_edge_add(grammar, node, 'a', 'f', next);
        next = node;
    }
    return next;
}

/* A hexadecimal digit other than 0. */
static int32_t not_zero(pm_grammar *grammar, int32_t zero, int32_t next)
{
    int32_t node = pm_node_bytes(grammar);
    pm_edge_add(grammar, node, '0', '0', zero);
    pm_edge_add(grammar, node, '1', '9', next);
    pm_edge_add(grammar, node, 'A', 'F', next);
    pm_edge_add(grammar, node, 'a', 'f', next);
    return node;
}

static int32_t either_case(pm_grammar *grammar, char letter, int32_t next)
{
    int32_t node = pm_node_range(grammar, (uint8_t)letter, (uint8_t)letter, next);
    pm_edge_add(grammar, node, (uint8_t)(letter - 32), (uint8_t)(letter - 32), next);
    return node;
}

/* The four digits behind \u. Surrogates come in pairs (RFC 8259, section 7), and there is no NUL. */
static int32_t code_unit(pm_grammar *grammar, int32_t next)
{
    int32_t one = hex_digits(grammar, 1, next), two = hex_digits(grammar, 2, next),
            three = hex_digits(grammar, 3, next);
    int32_t low = pm_node_bytes(grammar), after_d = pm_node_bytes(grammar), node = pm_node_bytes(grammar);
    pm_edge_add(grammar, low, 'C', 'F', two);
    pm_edge_add(grammar, low, 'c', 'f', two);
    int32_t second = pm_node_text(grammar, "\\u", 2, either_case(grammar, 'd', low));
    pm_edge_add(grammar, after_d, '0', '7', two);
    pm_edge_add(grammar, after_d, '8', '9', hex_digits(grammar, 2, second));
    pm_edge_add(grammar, after_d, 'A', 'B', hex_digits(grammar, 2, second));
    pm_edge_add(grammar, after_d, 'a', 'b', hex_digits(grammar, 2, second));
    int32_t zeros = not_zero(grammar, not_zero(grammar, not_zero(grammar, 0, next), one), two);
    pm_edge_add(grammar, node, '0', '0', zeros);
    pm_edge_add(grammar, node, '1', '9', three);
    pm_edge_add(grammar, node, 'A', 'C', three);
    pm_edge_add(grammar, node, 'a', 'c', three);
    pm_edge_add(grammar, node, 'D', 'D', after_d);
    pm_edge_add(grammar, node, 'd', 'd', after_d);
    pm_edge_add(grammar, node, 'E', 'F', three);
    pm_edge_add(grammar, node, 'e', 'f', three);
    return node;
}

/* What comes behind a backslash. A slash needs none, and Python does not take it for one. */
static int32_t escape(pm_grammar *grammar, int32_t next)
{
    int32_t node = pm_node_bytes(grammar);
    for (const char *p = "\"\\bfnrt"; *p; p++)
        pm_edge_add(grammar, node, (uint8_t)*p, (uint8_t)*p, next);
    pm_edge_add(grammar, node, 'u', 'u', code_unit(grammar, next));
    return node;
}

void pm_char_edges(pm_grammar *grammar, int32_t node, pm_spelling spelling, int32_t next)
{
    bool raw = spelling == PM_SPELL_RAW;
    if (raw) {
        pm_edge_add(grammar, node, '\t', '\n', next);
        pm_edge_add(grammar, node, '\r', '\r', next);
        pm_edge_add(grammar, node, '"', '"', next);
        pm_edge_add(grammar, node, '\\', '\\', next);
    } else {
        pm_edge_add(grammar, node, '\\', '\\', escape(grammar, next));
    }
    pm_edge_add(grammar, node, ' ', '!', next);
    pm_edge_add(grammar, node, '#', '<' - 1, next);
    if (spelling == PM_SPELL_JSON)
        pm_edge_add(grammar, node, '<', '<', next);
    pm_edge_add(grammar, node, '<' + 1, '[', next);
    pm_edge_add(grammar, node, ']', 0x7F, next);
    pm_edges_utf8(grammar, node, next);
}

/* ---- what schemas say of them ---- */

const pm_string_format *pm_format_find(const char *name)
{
    for (size_t i = 0; name && i < pm_n_string_formats; i++)
        if (strcmp(pm_string_formats[i].name, name) == 0)
            return &pm_string_formats[i];
    return NULL;
}

/* The pattern that a schema gives by `pattern` or `format`; NULL: none, or a failure. */
static const char *find_pattern(pm_schema_reader *reader, const json_t *schema, size_t *len)
{
    const json_t *pattern = json_object_get(schema, "pattern"), *name = json_object_get(schema, "format");
    const pm_string_format *format = pm_format_find(json_string_value(name));
    if (pattern && !json_is_string(pattern))
        pm_schema_fail(reader, PM_ERR_INVALID, "'pattern' is not a string");
    if (name && !format)
        pm_schema_fail(reader, PM_ERR_UNSUPPORTED, "the format '%.80s' is not supported",
                       json_is_string(name) ? json_string_value(name) : "");
    if (pattern && format && format->pattern)
        pm_schema_fail(reader, PM_ERR_UNSUPPORTED, "'format' beside 'pattern' is not supported");
    if (format && format->pattern && format->type == PM_TYPE_STRING) {
        *len = strlen(format->pattern);
        return format->pattern;
    }
    *len = json_string_length(pattern);
    return json_string_value(pattern);
}

/* What a schema says about the length. */
static bool read_lengths(pm_schema_reader *reader, const json_t *schema, int32_t *least, int32_t *most)
{
    *least = pm_schema_count(reader, schema, "minLength", 0);
    *most = pm_schema_count(reader, schema, "maxLength", -1);
    return *most < 0 || *least <= *most;
}

/* Characters by a pattern. */
static int32_t by_pattern(pm_schema_reader *reader, const char *pattern, size_t len, pm_spelling spelling,
                          int32_t least, int32_t most, int32_t next)
{
    char why[128] = "";
    int32_t node = pm_pattern_build(reader->grammar, pattern, len, spelling, least, most, next, why);
    if (*why)
        return pm_schema_fail(reader, PM_ERR_UNSUPPORTED, "the pattern '%.100s' is not supported: %s", pattern, why);
    return node;
}

int32_t pm_schema_chars(pm_schema_reader *reader, const json_t *schema, pm_spelling spelling, int32_t next)
{
    pm_grammar *grammar = reader->grammar;
    int32_t least, most;
    size_t len;
    const char *pattern = find_pattern(reader, schema, &len);
    if (!read_lengths(reader, schema, &least, &most) || reader->status != PM_OK)
        return 0;
    if (pattern)
        return by_pattern(reader, pattern, len, spelling, least, most, next);
    int32_t loop = pm_node_split(grammar), character = pm_node_bytes(grammar);
    pm_char_edges(grammar, character, spelling, loop);
    pm_way_add(grammar, loop, pm_node_count(grammar, most, character));
    pm_way_add(grammar, loop, pm_node_enough(grammar, least, next, next));
    return loop;
}

/* Without a pattern one node takes every character and the last quote, which makes the walk over a vocabulary fast. */
int32_t pm_schema_string(pm_schema_reader *reader, const json_t *schema)
{
    pm_grammar *grammar = reader->grammar;
    int32_t end = pm_node_return(grammar), least, most;
    size_t len;
    if (find_pattern(reader, schema, &len))
        return pm_node_range(
            grammar, '"', '"',
            pm_schema_chars(reader, schema, pm_schema_spelling(reader), pm_node_range(grammar, '"', '"', end)));
    if (!read_lengths(reader, schema, &least, &most) || reader->status != PM_OK)
        return 0;
    int32_t node = pm_node_bytes(grammar);
    pm_char_edges(grammar, node, pm_schema_spelling(reader), node);
    if (least > 0 || most >= 0)
        pm_edges_count(grammar, node, most);
    pm_edge_enough(grammar, node, '"', least, end);
    return pm_node_range(grammar, '"', '"', node);
}
