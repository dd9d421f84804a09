#include "base/base.h"

/* Table 3-7 of the Unicode Standard: the ranges of the second byte depend on the first. */
bool pm_utf8_valid(const char *s, size_t len, size_t *bad)
{
    const unsigned char *p = (const unsigned char *)s;
    size_t i = 0;
    while (i < len) {
        unsigned c = p[i];
        if (c < 0x80) {
            i++;
            continue;
        }
        int more = c >= 0xC2 && c <= 0xDF ? 1 : c >= 0xE0 && c <= 0xEF ? 2 : c >= 0xF0 && c <= 0xF4 ? 3 : 0;
        unsigned low = c == 0xE0 ? 0xA0 : c == 0xF0 ? 0x90 : 0x80, high = c == 0xED ? 0x9F : c == 0xF4 ? 0x8F : 0xBF;
        bool ok = more > 0 && (size_t)more < len - i && p[i + 1] >= low && p[i + 1] <= high;
        for (int k = 2; ok && k <= more; k++)
            ok = (p[i + k] & 0xC0) == 0x80;
        if (!ok) {
            if (bad)
                *bad = i;
            return false;
        }
        i += (size_t)more + 1;
    }
    return true;
}
