/* Upper, lower and title case as Python maps them, and the kinds of characters. */
#include "text/template_impl.h"

#include <string.h>
#include <utf8proc.h>

/* Characters whose upper case is more than one character (Unicode's SpecialCasing). */
static const struct {
    int32_t code, upper[3];
} wide_upper[] = {{0xDF, {0x53, 0x53}},
                  {0x149, {0x2BC, 0x4E}},
                  {0x1F0, {0x4A, 0x30C}},
                  {0x390, {0x399, 0x308, 0x301}},
                  {0x3B0, {0x3A5, 0x308, 0x301}},
                  {0x587, {0x535, 0x552}},
                  {0x1E96, {0x48, 0x331}},
                  {0x1E97, {0x54, 0x308}},
                  {0x1E98, {0x57, 0x30A}},
                  {0x1E99, {0x59, 0x30A}},
                  {0x1E9A, {0x41, 0x2BE}},
                  {0x1F50, {0x3A5, 0x313}},
                  {0x1F52, {0x3A5, 0x313, 0x300}},
                  {0x1F54, {0x3A5, 0x313, 0x301}},
                  {0x1F56, {0x3A5, 0x313, 0x342}},
                  {0x1F80, {0x1F08, 0x399}},
                  {0x1F81, {0x1F09, 0x399}},
                  {0x1F82, {0x1F0A, 0x399}},
                  {0x1F83, {0x1F0B, 0x399}},
                  {0x1F84, {0x1F0C, 0x399}},
                  {0x1F85, {0x1F0D, 0x399}},
                  {0x1F86, {0x1F0E, 0x399}},
                  {0x1F87, {0x1F0F, 0x399}},
                  {0x1F88, {0x1F08, 0x399}},
                  {0x1F89, {0x1F09, 0x399}},
                  {0x1F8A, {0x1F0A, 0x399}},
                  {0x1F8B, {0x1F0B, 0x399}},
                  {0x1F8C, {0x1F0C, 0x399}},
                  {0x1F8D, {0x1F0D, 0x399}},
                  {0x1F8E, {0x1F0E, 0x399}},
                  {0x1F8F, {0x1F0F, 0x399}},
                  {0x1F90, {0x1F28, 0x399}},
                  {0x1F91, {0x1F29, 0x399}},
                  {0x1F92, {0x1F2A, 0x399}},
                  {0x1F93, {0x1F2B, 0x399}},
                  {0x1F94, {0x1F2C, 0x399}},
                  {0x1F95, {0x1F2D, 0x399}},
                  {0x1F96, {0x1F2E, 0x399}},
                  {0x1F97, {0x1F2F, 0x399}},
                  {0x1F98, {0x1F28, 0x399}},
                  {0x1F99, {0x1F29, 0x399}},
                  {0x1F9A, {0x1F2A, 0x399}},
                  {0x1F9B, {0x1F2B, 0x399}},
                  {0x1F9C, {0x1F2C, 0x399}},
                  {0x1F9D, {0x1F2D, 0x399}},
                  {0x1F9E, {0x1F2E, 0x399}},
                  {0x1F9F, {0x1F2F, 0x399}},
                  {0x1FA0, {0x1F68, 0x399}},
                  {0x1FA1, {0x1F69, 0x399}},
                  {0x1FA2, {0x1F6A, 0x399}},
                  {0x1FA3, {0x1F6B, 0x399}},
                  {0x1FA4, {0x1F6C, 0x399}},
                  {0x1FA5, {0x1F6D, 0x399}},
                  {0x1FA6, {0x1F6E, 0x399}},
                  {0x1FA7, {0x1F6F, 0x399}},
                  {0x1FA8, {0x1F68, 0x399}},
                  {0x1FA9, {0x1F69, 0x399}},
                  {0x1FAA, {0x1F6A, 0x399}},
                  {0x1FAB, {0x1F6B, 0x399}},
                  {0x1FAC, {0x1F6C, 0x399}},
                  {0x1FAD, {0x1F6D, 0x399}},
                  {0x1FAE, {0x1F6E, 0x399}},
                  {0x1FAF, {0x1F6F, 0x399}},
                  {0x1FB2, {0x1FBA, 0x399}},
                  {0x1FB3, {0x391, 0x399}},
                  {0x1FB4, {0x386, 0x399}},
                  {0x1FB6, {0x391, 0x342}},
                  {0x1FB7, {0x391, 0x342, 0x399}},
                  {0x1FBC, {0x391, 0x399}},
                  {0x1FC2, {0x1FCA, 0x399}},
                  {0x1FC3, {0x397, 0x399}},
                  {0x1FC4, {0x389, 0x399}},
                  {0x1FC6, {0x397, 0x342}},
                  {0x1FC7, {0x397, 0x342, 0x399}},
                  {0x1FCC, {0x397, 0x399}},
                  {0x1FD2, {0x399, 0x308, 0x300}},
                  {0x1FD3, {0x399, 0x308, 0x301}},
                  {0x1FD6, {0x399, 0x342}},
                  {0x1FD7, {0x399, 0x308, 0x342}},
                  {0x1FE2, {0x3A5, 0x308, 0x300}},
                  {0x1FE3, {0x3A5, 0x308, 0x301}},
                  {0x1FE4, {0x3A1, 0x313}},
                  {0x1FE6, {0x3A5, 0x342}},
                  {0x1FE7, {0x3A5, 0x308, 0x342}},
                  {0x1FF2, {0x1FFA, 0x399}},
                  {0x1FF3, {0x3A9, 0x399}},
                  {0x1FF4, {0x38F, 0x399}},
                  {0x1FF6, {0x3A9, 0x342}},
                  {0x1FF7, {0x3A9, 0x342, 0x399}},
                  {0x1FFC, {0x3A9, 0x399}},
                  {0xFB00, {0x46, 0x46}},
                  {0xFB01, {0x46, 0x49}},
                  {0xFB02, {0x46, 0x4C}},
                  {0xFB03, {0x46, 0x46, 0x49}},
                  {0xFB04, {0x46, 0x46, 0x4C}},
                  {0xFB05, {0x53, 0x54}},
                  {0xFB06, {0x53, 0x54}},
                  {0xFB13, {0x544, 0x546}},
                  {0xFB14, {0x544, 0x535}},
                  {0xFB15, {0x544, 0x53B}},
                  {0xFB16, {0x54E, 0x546}},
                  {0xFB17, {0x544, 0x53D}}};

static const int32_t *find_wide(int32_t code)
{
    for (size_t i = 0; code >= 0xDF && i < PM_COUNT(wide_upper); i++)
        if (wide_upper[i].code == code)
            return wide_upper[i].upper;
    return NULL;
}

static bool is_letter_case(int32_t code)
{
    utf8proc_category_t category = utf8proc_category(code);
    return category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LL || category == UTF8PROC_CATEGORY_LT;
}

static void put_upper(tpl_run *run, int32_t code, uint8_t trust)
{
    const int32_t *wide = find_wide(code);
    if (!wide)
        pm_tpl_put_code(run, utf8proc_toupper(code), trust);
    for (int i = 0; wide && i < 3 && wide[i]; i++)
        pm_tpl_put_code(run, wide[i], trust);
}

/* The title case of a wide character is its first capital with the rest small, unless it has a capital of its own. */
static void put_title(tpl_run *run, int32_t code, uint8_t trust)
{
    const int32_t *wide = utf8proc_totitle(code) == code ? find_wide(code) : NULL;
    if (!wide)
        pm_tpl_put_code(run, utf8proc_totitle(code), trust);
    for (int i = 0; wide && i < 3 && wide[i]; i++)
        pm_tpl_put_code(run, i ? utf8proc_tolower(wide[i]) : wide[i], trust);
}

/* Marks and punctuation that may stand inside a word (Unicode's Case_Ignorable). */
static bool is_ignorable(int32_t code)
{
    static const int32_t others[] = {'\'', '.', ':', 0xB7, 0x387, 0x55F, 0x5F4, 0x2018, 0x2019, 0x2024, 0x2027};
    for (size_t i = 0; i < PM_COUNT(others); i++)
        if (code == others[i])
            return true;
    utf8proc_category_t category = utf8proc_category(code);
    return category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_ME || category == UTF8PROC_CATEGORY_CF ||
           category == UTF8PROC_CATEGORY_LM || category == UTF8PROC_CATEGORY_SK;
}

/* Whether a sigma at s[from..to) ends a word that begins at `start` or after it. */
static bool ends_word(tpl_run *run, const tpl_str *s, size_t start, size_t from, size_t to)
{
    bool before = false, after = false;
    size_t seen = 0;
    for (bool more = true; more && from > start; seen++) {
        size_t at = from = pm_tpl_before(s->data, from);
        int32_t code = pm_tpl_code(s->data, s->len, &at);
        more = is_ignorable(code);
        before = !more && is_letter_case(code);
    }
    for (bool more = before; more && to < s->len; seen++) {
        int32_t code = pm_tpl_code(s->data, s->len, &to);
        more = is_ignorable(code);
        after = !more && is_letter_case(code);
    }
    pm_tpl_step(run, seen / 4);
    return before && !after;
}

/* The small form of the character at `from`; a sigma that ends a word has one of its own. */
static void put_lower(tpl_run *run, const tpl_str *s, size_t start, size_t from, size_t to, uint8_t trust)
{
    size_t at = from;
    int32_t code = pm_tpl_code(s->data, s->len, &at);
    if (code == 0x3A3) {
        pm_tpl_put_code(run, ends_word(run, s, start, from, to) ? 0x3C2 : 0x3C3, trust);
    } else if (code == 0x130) {
        pm_tpl_put_code(run, 'i', trust);
        pm_tpl_put_code(run, 0x307, trust);
    } else {
        pm_tpl_put_code(run, utf8proc_tolower(code), trust);
    }
}

bool pm_tpl_recase(tpl_run *run, const tpl_str *s, tpl_case to, tpl_value *out)
{
    size_t mark = pm_tpl_mark(run);
    size_t start = 0; /* of what is made small as one string: the filter title does it word by word */
    bool in_word = false, was_break = false;
    for (size_t at = 0; at < s->len;) {
        size_t from = at;
        int32_t code = pm_tpl_code(s->data, s->len, &at);
        uint8_t trust = pm_tpl_byte_trust(s, from);
        bool is_break = pm_tpl_is_space(code) || (code && code < 0x80 && strchr("-({[<", code));
        utf8proc_category_t category = utf8proc_category(code);
        if (to == TPL_SWAPCASE && category != UTF8PROC_CATEGORY_LL && category != UTF8PROC_CATEGORY_LU) {
            pm_tpl_put_code(run, code, trust);
            continue;
        }
        bool first = to == TPL_CAPITALIZE     ? from == 0
                     : to == TPL_TITLE        ? !in_word
                     : to == TPL_TITLE_FILTER ? from == 0 || is_break != was_break
                     : to == TPL_SWAPCASE     ? category == UTF8PROC_CATEGORY_LL
                                              : to == TPL_UPPER;
        if (!first)
            put_lower(run, s, start, from, at, trust);
        else if (to == TPL_CAPITALIZE || to == TPL_TITLE)
            put_title(run, code, trust);
        else
            put_upper(run, code, trust);
        if (first && to == TPL_TITLE_FILTER)
            start = at;
        was_break = is_break;
        in_word = to == TPL_TITLE && is_letter_case(code);
    }
    return pm_tpl_step(run, s->len / 4) && pm_tpl_take(run, mark, s->markup, out);
}

bool pm_tpl_is_case(const tpl_str *s, bool upper)
{
    bool any = false;
    for (size_t at = 0; at < s->len;) {
        utf8proc_category_t category = utf8proc_category(pm_tpl_code(s->data, s->len, &at));
        if (category == (upper ? UTF8PROC_CATEGORY_LL : UTF8PROC_CATEGORY_LU) || category == UTF8PROC_CATEGORY_LT)
            return false;
        any |= category == (upper ? UTF8PROC_CATEGORY_LU : UTF8PROC_CATEGORY_LL);
    }
    return any;
}

/* ---- kinds of characters ---- */

typedef bool char_test(int32_t code);

static bool is_alpha(int32_t code)
{
    utf8proc_category_t category = utf8proc_category(code);
    return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

static bool is_decimal(int32_t code)
{
    return utf8proc_category(code) == UTF8PROC_CATEGORY_ND;
}

static bool is_alnum(int32_t code)
{
    utf8proc_category_t category = utf8proc_category(code);
    return is_alpha(code) || (category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO);
}

/* True when there are characters and all pass. */
static bool all(tpl_run *run, const tpl_str *s, char_test *test, tpl_value *out)
{
    bool yes = s->len > 0;
    for (size_t at = 0; yes && at < s->len;)
        yes = test(pm_tpl_code(s->data, s->len, &at));
    *out = pm_tpl_bool(yes);
    return pm_tpl_step(run, s->len / 4);
}

bool pm_tpl_str_isalpha(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    return all(run, call->self.s, is_alpha, out);
}

bool pm_tpl_str_isdecimal(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    return all(run, call->self.s, is_decimal, out);
}

/* Unicode's digits that are no decimals, such as superscripts (Numeric_Type=Digit). */
static bool is_digit(int32_t code)
{
    static const int32_t ranges[][2] = {{0xB2, 0xB3},       {0xB9, 0xB9},       {0x1369, 0x1371},   {0x19DA, 0x19DA},
                                        {0x2070, 0x2070},   {0x2074, 0x2079},   {0x2080, 0x2089},   {0x2460, 0x2468},
                                        {0x2474, 0x247C},   {0x2488, 0x2490},   {0x24EA, 0x24EA},   {0x24F5, 0x24FD},
                                        {0x24FF, 0x24FF},   {0x2776, 0x277E},   {0x2780, 0x2788},   {0x278A, 0x2792},
                                        {0x10A40, 0x10A43}, {0x10E60, 0x10E68}, {0x11052, 0x1105A}, {0x1F100, 0x1F10A}};
    for (size_t i = 0; i < PM_COUNT(ranges); i++)
        if (code >= ranges[i][0] && code <= ranges[i][1])
            return true;
    return is_decimal(code);
}

bool pm_tpl_str_isdigit(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    return all(run, call->self.s, is_digit, out);
}

bool pm_tpl_str_isalnum(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    return all(run, call->self.s, is_alnum, out);
}

bool pm_tpl_str_isspace(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    return all(run, call->self.s, pm_tpl_is_space, out);
}

bool pm_tpl_str_isascii(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    const tpl_str *s = call->self.s;
    *out = pm_tpl_bool(pm_tpl_chars(s->data, s->len) == s->len);
    for (size_t i = 0; out->b && i < s->len; i++)
        out->b = (uint8_t)s->data[i] < 0x80;
    return pm_tpl_step(run, s->len / 4);
}

/* The empty string is printable. */
bool pm_tpl_str_isprintable(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    if (call->self.s->len)
        return all(run, call->self.s, pm_tpl_printable, out);
    *out = pm_tpl_bool(true);
    return true;
}

/* Words begin with a capital, and only they do. */
bool pm_tpl_str_istitle(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    const tpl_str *s = call->self.s;
    bool in_word = false, any = false, yes = true;
    for (size_t at = 0; yes && at < s->len;) {
        utf8proc_category_t category = utf8proc_category(pm_tpl_code(s->data, s->len, &at));
        bool capital = category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LT;
        bool small = category == UTF8PROC_CATEGORY_LL;
        yes = !(capital && in_word) && !(small && !in_word);
        in_word = capital || small;
        any |= in_word;
    }
    *out = pm_tpl_bool(yes && any);
    return pm_tpl_step(run, s->len / 4);
}

bool pm_tpl_str_swapcase(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    return pm_tpl_recase(run, call->self.s, TPL_SWAPCASE, out);
}
