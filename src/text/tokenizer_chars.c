/* Characters: UTF-8 that is known to be valid, the classes the tokeniser asks for, and the byte-level alphabet. */
#include "text/tokenizer_parts.h"

#include <utf8proc.h>

int32_t pm_char_at(const char *s, size_t *len)
{
    const unsigned char *p = (const unsigned char *)s;
    if (p[0] < 0x80) {
        *len = 1;
        return p[0];
    }
    if (p[0] < 0xE0) {
        *len = 2;
        return (p[0] & 0x1F) << 6 | (p[1] & 0x3F);
    }
    if (p[0] < 0xF0) {
        *len = 3;
        return (p[0] & 0x0F) << 12 | (p[1] & 0x3F) << 6 | (p[2] & 0x3F);
    }
    *len = 4;
    return (p[0] & 0x07) << 18 | (p[1] & 0x3F) << 12 | (p[2] & 0x3F) << 6 | (p[3] & 0x3F);
}

size_t pm_char_before(const char *s, size_t at)
{
    do
        at--;
    while (at > 0 && ((unsigned char)s[at] & 0xC0) == 0x80);
    return at;
}

size_t pm_char_put(int32_t c, char *out)
{
    return (size_t)utf8proc_encode_char(c, (utf8proc_uint8_t *)out);
}

/* The row of the range that holds c; NULL when there is none. */
static const pm_char_range *find_range(const pm_char_range *ranges, size_t n, int32_t c)
{
    size_t low = 0, high = n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (ranges[middle].last < c)
            low = middle + 1;
        else
            high = middle;
    }
    return low < n && ranges[low].first <= c ? &ranges[low] : NULL;
}

/* The symbols that are Alphabetic (circled and squared letters), and Join_Control. */
static bool is_word_symbol(int32_t c)
{
    return (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
           (c >= 0x1F170 && c <= 0x1F189) || c == 0x200C || c == 0x200D;
}

unsigned pm_char_kind(int32_t c)
{
    const pm_char_range *listed = c < 0x80 ? NULL : find_range(pm_char_kinds, pm_char_kinds_n, c);
    if (listed)
        return (unsigned)listed->value;
    unsigned kind = (c >= '\t' && c <= '\r') || c == 0x85 ? PM_CHAR_SPACE : 0;
    switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO: return PM_CHAR_WORD;
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_ND: return PM_CHAR_WORD | PM_CHAR_NUMERIC;
    case UTF8PROC_CATEGORY_NO: return PM_CHAR_NUMERIC;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME: return PM_CHAR_WORD | PM_CHAR_MARK;
    case UTF8PROC_CATEGORY_PC: return PM_CHAR_WORD | PM_CHAR_PUNCT;
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO: return PM_CHAR_PUNCT;
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP: return PM_CHAR_SPACE;
    default: break;
    }
    if (c < 0x80 && c > ' ' && c < 0x7F) /* $+<=>^`|~ */
        kind |= PM_CHAR_PUNCT;
    return is_word_symbol(c) ? kind | PM_CHAR_WORD : kind;
}

int pm_char_class(int32_t c)
{
    const pm_char_range *listed =
        c < pm_char_classes[0].first ? NULL : find_range(pm_char_classes, pm_char_classes_n, c);
    return listed ? listed->value : utf8proc_get_property(c)->combining_class;
}

size_t pm_char_lower(int32_t c, int32_t out[2])
{
    out[0] = c >= 'A' && c <= 'Z' ? c + 32 : c;
    if (c < 0x80)
        return 1;
    if (c == 0x130) { /* the only one with two (SpecialCasing.txt, without conditions) */
        out[0] = 'i';
        out[1] = 0x307;
        return 2;
    }
    size_t low = 0, high = pm_char_lowers_n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (pm_char_lowers[middle].from < c)
            low = middle + 1;
        else
            high = middle;
    }
    out[0] = low < pm_char_lowers_n && pm_char_lowers[low].from == c ? pm_char_lowers[low].to : utf8proc_tolower(c);
    return 1;
}

/* Printable Latin-1 stands for itself; the other 68 bytes are, in order, the characters from U+0100 on
 * (bytes_to_unicode in GPT-2's encoder.py). */
int32_t pm_byte_char(uint8_t byte)
{
    if ((byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE)
        return byte;
    int32_t before = byte <= 0x20 ? byte : byte <= 0xA0 ? byte - 0x7F + 0x21 : 0x21 + 0x22;
    return 0x100 + before;
}

int pm_char_byte(int32_t c)
{
    if (c < 0x100)
        return pm_byte_char((uint8_t)c) == c ? c : -1;
    int32_t k = c - 0x100;
    if (k <= 0x20)
        return k;
    if (k < 0x21 + 0x22)
        return k - 0x21 + 0x7F;
    return k == 0x21 + 0x22 ? 0xAD : -1;
}

int pm_bytes_spell(const char *bytes, size_t n, pm_buf *out)
{
    if (pm_buf_reserve(out, 2 * n) != PM_OK)
        return PM_ERR_MEMORY;
    for (size_t i = 0; i < n; i++)
        out->len += pm_char_put(pm_byte_char((uint8_t)bytes[i]), out->data + out->len);
    out->data[out->len] = 0;
    return PM_OK;
}
