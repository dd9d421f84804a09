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

bool pm_char_is_space(int32_t c)
{
    if (c < 0x80)
        return c == ' ' || (c >= '\t' && c <= '\r');
    utf8proc_category_t category = utf8proc_category(c);
    return c == 0x85 || category == UTF8PROC_CATEGORY_ZS || category == UTF8PROC_CATEGORY_ZL ||
           category == UTF8PROC_CATEGORY_ZP;
}

bool pm_char_is_word(int32_t c)
{
    switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_PC: return true;
    default: break;
    }
    /* The symbols that are Alphabetic (circled and squared letters), and Join_Control. */
    return (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
           (c >= 0x1F170 && c <= 0x1F189) || c == 0x200C || c == 0x200D;
}

bool pm_char_is_numeric(int32_t c)
{
    utf8proc_category_t category = utf8proc_category(c);
    return category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL || category == UTF8PROC_CATEGORY_NO;
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
