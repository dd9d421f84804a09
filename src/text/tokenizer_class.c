/* Sets of characters as the `tokenizers` library sees them, in PCRE2's language. What stands between brackets in PCRE2
 * can only be added to, so a set that lacks something that PCRE2's property has, and a complement, is written as an
 * expression of its own. */
#include "text/tokenizer_parts.h"

#include <stdio.h>
#include <string.h>

void pm_class_free(pm_class *class)
{
    pm_buf_free(&class->brackets);
    pm_buf_free(&class->alone);
}

static int put(pm_buf *out, const char *text)
{
    return text ? pm_buf_add(out, text, strlen(text)) : PM_OK;
}

/* General categories by the names that PCRE2 does not know. */
static const char *const categories[][2] = {
    {"Letter", "L"},
    {"Uppercase_Letter", "Lu"},
    {"Lowercase_Letter", "Ll"},
    {"Titlecase_Letter", "Lt"},
    {"Modifier_Letter", "Lm"},
    {"Other_Letter", "Lo"},
    {"Mark", "M"},
    {"Nonspacing_Mark", "Mn"},
    {"Spacing_Mark", "Mc"},
    {"Enclosing_Mark", "Me"},
    {"Number", "N"},
    {"Decimal_Number", "Nd"},
    {"Digit", "Nd"},
    {"Letter_Number", "Nl"},
    {"Other_Number", "No"},
    {"Punctuation", "P"},
    {"Connector_Punctuation", "Pc"},
    {"Dash_Punctuation", "Pd"},
    {"Open_Punctuation", "Ps"},
    {"Close_Punctuation", "Pe"},
    {"Initial_Punctuation", "Pi"},
    {"Final_Punctuation", "Pf"},
    {"Other_Punctuation", "Po"},
    {"Symbol", "S"},
    {"Math_Symbol", "Sm"},
    {"Currency_Symbol", "Sc"},
    {"Modifier_Symbol", "Sk"},
    {"Other_Symbol", "So"},
    {"Separator", "Z"},
    {"Space_Separator", "Zs"},
    {"Line_Separator", "Zl"},
    {"Paragraph_Separator", "Zp"},
    {"Other", "C"},
    {"Control", "Cc"},
    {"Format", "Cf"},
    {"Surrogate", "Cs"},
    {"Private_Use", "Co"},
    {"Unassigned", "Cn"},
};

/* True when name[0..len) is known[0..n) but for case, spaces, hyphens and underscores, which do not count in names. */
static bool same_name(const char *known, size_t n, const char *name, size_t len)
{
    size_t k = 0, i = 0;
    for (;; k++, i++) {
        while (k < n && known[k] == '_')
            k++;
        while (i < len && (name[i] == '_' || name[i] == ' ' || name[i] == '-'))
            i++;
        if (k == n || i == len)
            return k == n && i == len;
        if ((known[k] | 32) != (name[i] | 32))
            return false;
    }
}

/* True when PCRE2 knows the property. */
static bool known_property(const char *prefix, const char *name, size_t len)
{
    char pattern[96];
    int error;
    PCRE2_SIZE offset;
    int n = snprintf(pattern, sizeof(pattern), "\\p{%s%.*s}", prefix, (int)len, name);
    if (n < 0 || (size_t)n >= sizeof(pattern))
        return false;
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)pattern, (PCRE2_SIZE)n, PCRE2_UTF, &error, &offset, NULL);
    pcre2_code_free(code);
    return code != NULL;
}

/* What is known of a property; NULL when PCRE2 sees it as the library does. */
static const pm_property *find_property(const char *name, size_t len)
{
    for (size_t k = 0; k < pm_properties_n; k++) {
        for (const char *p = pm_properties[k].names; *p;) {
            size_t n = strcspn(p, " ");
            if (same_name(p, n, name, len))
                return &pm_properties[k];
            p += n + (p[n] == ' ');
        }
    }
    return NULL;
}

/* The letters and digits of ASCII that a common property has: PCRE2 looks up those that are listed fastest. */
static const char *ascii_part(const char *name, size_t len)
{
    static const char *const parts[][2] = {{"L", "A-Za-z"}, {"Lu", "A-Z"}, {"Ll", "a-z"}, {"N", "0-9"}, {"Nd", "0-9"}};
    for (size_t k = 0; k < PM_COUNT(parts); k++)
        if (strlen(parts[k][0]) == len && memcmp(parts[k][0], name, len) == 0)
            return parts[k][1];
    return NULL;
}

int pm_class_property(pm_class *class, const char *name, size_t len, bool negative)
{
    for (size_t k = 0; k < PM_COUNT(categories); k++) {
        if (same_name(categories[k][0], strlen(categories[k][0]), name, len)) {
            name = categories[k][1];
            len = strlen(name);
        }
    }
    const char *prefix = len > 2 && known_property("sc:", name, len) ? "sc:" : "";
    if (!*prefix && !known_property("", name, len))
        return PM_ERR_UNSUPPORTED;
    const pm_property *property = find_property(name, len);
    const char *more = property ? property->more : NULL, *less = property ? property->less : NULL;
    if (!negative && !less) {
        int status = put(&class->brackets, ascii_part(name, len));
        if (status == PM_OK)
            status = pm_buf_printf(&class->brackets, "\\p{%s%.*s}", prefix, (int)len, name);
        return status == PM_OK ? put(&class->brackets, more) : status;
    }
    if (!property) /* nothing to add or to take away */
        return pm_buf_printf(&class->brackets, "\\%c{%s%.*s}", negative ? 'P' : 'p', prefix, (int)len, name);
    int status = put(&class->alone, class->alone.len ? "|" : "");
    if (status == PM_OK && less)
        status = pm_buf_printf(&class->alone, negative ? "[%s]|" : "(?![%s])", less);
    if (status == PM_OK)
        status = pm_buf_printf(&class->alone, "[%s\\p{%s%.*s}", negative ? "^" : "", prefix, (int)len, name);
    if (status == PM_OK)
        status = put(&class->alone, more);
    return status == PM_OK ? put(&class->alone, "]") : status;
}

/* Alphabetic, marks, decimal digits, connectors. Outside of brackets Oniguruma goes by a table for Latin-1, in which
 * superscripts and fractions are word characters. */
int pm_class_word(pm_class *class, bool outside, bool negative)
{
    static const char *const parts[] = {"Alphabetic", "M", "Nd", "Pc"};
    pm_class word = {0}, *into = negative ? &word : class;
    int status = put(&into->brackets, outside ? "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}" : NULL);
    for (size_t k = 0; k < PM_COUNT(parts) && status == PM_OK; k++)
        status = pm_class_property(into, parts[k], strlen(parts[k]), false);
    if (negative && status == PM_OK)
        status = put(&class->alone, class->alone.len ? "|" : "");
    if (negative && status == PM_OK)
        status = pm_class_write(&word, true, &class->alone);
    pm_class_free(&word);
    return status;
}

int pm_class_write(const pm_class *class, bool negative, pm_buf *out)
{
    const char *brackets = class->brackets.len ? class->brackets.data : NULL;
    const char *alone = class->alone.len ? class->alone.data : NULL;
    if (!alone)
        return pm_buf_printf(out, "[%s%s]", negative ? "^" : "", brackets);
    if (!brackets)
        return negative ? pm_buf_printf(out, "(?:(?!%s)(?s:.))", alone) : pm_buf_printf(out, "(?:%s)", alone);
    return negative ? pm_buf_printf(out, "(?:(?!%s)[^%s])", alone, brackets)
                    : pm_buf_printf(out, "(?:[%s]|%s)", brackets, alone);
}
