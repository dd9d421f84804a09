"""Writes src/text/tokenizer_unicode.c: how the `tokenizers` package sees characters otherwise than PCRE2 and utf8proc do.

    tools/unicode.py            writes the file; takes some minutes

The package brings several versions of the Unicode database (Oniguruma's, Rust's, those of its crates), and PCRE2 and
utf8proc have their own. Every code point is shown to both sides, and where they differ the package's answer is written
down. Made with Debian 12's PCRE2 and utf8proc; with newer ones it stays right for every character that it lists.
"""

import ctypes
import sys
from pathlib import Path

import tokenizers
from tokenizers import Regex, normalizers, pre_tokenizers

FILE = Path(__file__).resolve().parent.parent / "src/text/tokenizer_unicode.c"
POINTS = [c for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000]
TEXT = "".join(map(chr, POINTS))

# Properties that a pattern may name, by all names that both know: short first. Scripts are marked.
CATEGORIES = (
    "L Lu Ll Lt Lm Lo M Mn Mc Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po S Sm Sc Sk So Z Zs Zl Zp C Cc Cf Co Cn"
).split()
BINARY = [
    "Alphabetic Alpha", "Uppercase Upper", "Lowercase Lower", "White_Space space", "Bidi_Control Bidi_C",
    "Case_Ignorable CI", "Cased", "Changes_When_Casefolded CWCF", "Changes_When_Casemapped CWCM",
    "Changes_When_Lowercased CWL", "Changes_When_Titlecased CWT", "Changes_When_Uppercased CWU", "Dash",
    "Default_Ignorable_Code_Point DI", "Deprecated Dep", "Diacritic Dia", "Emoji", "Emoji_Component EComp",
    "Emoji_Modifier EMod", "Emoji_Modifier_Base EBase", "Emoji_Presentation EPres", "Extended_Pictographic ExtPict",
    "Extender Ext", "Grapheme_Base Gr_Base", "Grapheme_Extend Gr_Ext", "Grapheme_Link Gr_Link", "ID_Continue IDC",
    "ID_Start IDS", "Ideographic Ideo", "IDS_Binary_Operator IDSB", "IDS_Trinary_Operator IDST",
    "Logical_Order_Exception LOE", "Math", "Noncharacter_Code_Point NChar", "Pattern_Syntax Pat_Syn",
    "Pattern_White_Space Pat_WS", "Quotation_Mark QMark", "Radical", "Regional_Indicator RI", "Sentence_Terminal STerm",
    "Soft_Dotted SD", "Terminal_Punctuation Term", "Unified_Ideograph UIdeo", "Variation_Selector VS",
    "XID_Continue XIDC", "XID_Start XIDS",
]  # fmt: skip
SCRIPTS = [
    "Arabic Arab", "Armenian Armn", "Balinese Bali", "Bengali Beng", "Bopomofo Bopo", "Canadian_Aboriginal Cans",
    "Cherokee Cher", "Common Zyyy", "Cyrillic Cyrl", "Devanagari Deva", "Egyptian_Hieroglyphs Egyp", "Ethiopic Ethi",
    "Georgian Geor", "Greek Grek", "Gujarati Gujr", "Gurmukhi Guru", "Han Hani", "Hangul Hang", "Hebrew Hebr",
    "Hiragana Hira", "Inherited Zinh Qaai", "Kannada Knda", "Katakana Kana", "Khitan_Small_Script Kits", "Khmer Khmr",
    "Khojki Khoj", "Lao Laoo", "Latin Latn", "Malayalam Mlym", "Mongolian Mong", "Myanmar Mymr", "Oriya Orya",
    "Sinhala Sinh", "Syriac Syrc", "Tamil Taml", "Telugu Telu", "Thaana Thaa", "Thai", "Tibetan Tibt", "Unknown Zzzz",
]  # fmt: skip


def ranges(points):
    out = []
    for c in sorted(points):
        if out and c == out[-1][1] + 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


# ---- PCRE2 and utf8proc ----

pcre2 = ctypes.CDLL("libpcre2-8.so.0")
utf8proc = ctypes.CDLL("libutf8proc.so.2")
pointer, size = ctypes.c_void_p, ctypes.c_size_t
pcre2.pcre2_compile_8.restype = pointer
pcre2.pcre2_compile_8.argtypes = [ctypes.c_char_p, size, ctypes.c_uint32, pointer, pointer, pointer]
pcre2.pcre2_jit_compile_8.argtypes = [pointer, ctypes.c_uint32]
pcre2.pcre2_match_data_create_8.restype = pointer
pcre2.pcre2_match_data_create_8.argtypes = [ctypes.c_uint32, pointer]
pcre2.pcre2_get_ovector_pointer_8.restype = ctypes.POINTER(size)
pcre2.pcre2_get_ovector_pointer_8.argtypes = [pointer]
pcre2.pcre2_match_8.argtypes = [pointer, ctypes.c_char_p, size, size, ctypes.c_uint32, pointer, pointer]
PCRE2_UTF, PCRE2_UCP, PCRE2_NO_UTF_CHECK, PCRE2_JIT_COMPLETE = 0x00080000, 0x00020000, 0x40000000, 1


class Property(ctypes.Structure):
    """The start of utf8proc_property_t."""

    _fields_ = [("category", ctypes.c_int16), ("combining_class", ctypes.c_int16)]


utf8proc.utf8proc_get_property.restype = ctypes.POINTER(Property)
utf8proc.utf8proc_decompose_char.restype = ctypes.c_ssize_t
utf8proc.utf8proc_category_string.restype = ctypes.c_char_p
utf8proc.utf8proc_unicode_version.restype = ctypes.c_char_p
STABLE, COMPAT, DECOMPOSE = 2, 4, 16


def seen_by_pcre2(name):
    """The code points of a property."""
    pattern, unused = rf"\p{{{name}}}+".encode(), (size * 2)()
    error = ctypes.byref(unused)
    code = pcre2.pcre2_compile_8(pattern, len(pattern), PCRE2_UTF | PCRE2_UCP, error, error, None)
    assert code, name
    pcre2.pcre2_jit_compile_8(code, PCRE2_JIT_COMPLETE)
    match = pcre2.pcre2_match_data_create_8(1, None)
    ends, text, at, out = pcre2.pcre2_get_ovector_pointer_8(match), TEXT.encode(), 0, set()
    while pcre2.pcre2_match_8(code, text, len(text), at, PCRE2_NO_UTF_CHECK, match, None) > 0:
        out.update(map(ord, text[ends[0] : ends[1]].decode()))
        at = ends[1]
    return out


def decomposition(c, flags):
    out = (ctypes.c_int32 * 32)()
    n = utf8proc.utf8proc_decompose_char(c, out, 32, flags, ctypes.byref(ctypes.c_int()))
    return "".join(map(chr, out[:n]))


def category(c):
    return utf8proc.utf8proc_category_string(c).decode()


def combining_class(c):
    return utf8proc.utf8proc_get_property(c).contents.combining_class


# ---- the package ----


def seen_by_package(name):
    split = pre_tokenizers.Split(Regex(rf"\p{{{name}}}+"), "removed", invert=True)
    return {ord(c) for piece, _ in split.pre_tokenize_str(TEXT) for c in piece}


def alone(pre_tokenizer, points):
    """The characters that become pieces of their own between letters."""
    text = "a" + "".join(chr(c) + "a" for c in points)
    return {ord(piece) for piece, _ in pre_tokenizer.pre_tokenize_str(text) if len(piece) == 1} - {ord("a")}


def undecomposed():
    """The characters that utf8proc decomposes and the package does not; no other difference is known."""
    out = set()
    for normalizer, flags in ((normalizers.NFD(), STABLE | DECOMPOSE), (normalizers.NFKD(), STABLE | DECOMPOSE | COMPAT)):
        for c in POINTS:
            ours = decomposition(c, flags)
            if (theirs := normalizer.normalize_str(chr(c))) != ours:
                assert theirs == chr(c), f"U+{c:04X} has a decomposition of its own"
                out.add(c)
            if ours != chr(c) and flags & COMPAT == 0 and c not in out:
                composed = normalizers.NFC().normalize_str(ours)
                assert len(composed) == len(decomposition_composed(ours)), f"U+{c:04X} composes otherwise"
    return out


def decomposition_composed(text):
    """NFC as utf8proc has it."""
    out = (ctypes.c_int32 * len(text))(*map(ord, text))
    n = utf8proc.utf8proc_normalize_utf32(out, len(text), 8 | STABLE)
    return "".join(map(chr, out[:n]))


def package_classes():
    """The combining class of every character to which one side gives one: what it may and may not stand before."""
    nfd = normalizers.NFD().normalize_str
    old = {}
    for c in POINTS:
        k = combining_class(c)
        if k and k not in old and nfd(chr(c)) == chr(c) and (k == 1 or nfd(chr(c) + chr(0x334)) != chr(c) + chr(0x334)):
            old[k] = c  # the package knows its class to be above that of U+0334, which is 1
    out = {}
    for c in POINTS:
        if nfd(chr(c)) != chr(c) or (category(c)[0] not in "MC" and not combining_class(c)):
            continue
        before = [k for k, p in old.items() if nfd(chr(p) + chr(c)) != chr(p) + chr(c)]  # c has a lower class
        after = [k for k, p in old.items() if nfd(chr(c) + chr(p)) != chr(c) + chr(p)]  # a higher one
        if not before and not after:
            out[c] = 0
        else:
            between = [k for k in old if k not in before and k not in after]
            assert len(between) == 1, f"U+{c:04X}: {between}"
            out[c] = between[0]
    return out


# ---- the tables ----


def class_text(points):
    """Code points as they are written between brackets."""
    return "".join(rf"\\x{{{a:x}}}" if a == b else rf"\\x{{{a:x}}}-\\x{{{b:x}}}" for a, b in ranges(points))


def quoted(text, indent):
    """A string literal of several lines."""
    parts, line = [], ""
    for piece in text.replace(r"\\x", "\n\\\\x").split("\n"):
        if len(line) + len(piece) > 100:
            parts.append(line)
            line = ""
        line += piece
    return ("\n" + " " * indent).join(f'"{part}"' for part in [*parts, line]) if text else "NULL"


def properties():
    rows = []
    for kind, all_names in (("", CATEGORIES), ("", BINARY), ("sc:", SCRIPTS)):
        for names in all_names:
            name = names.split()[0]
            theirs, ours = seen_by_package(name), seen_by_pcre2(kind + name)
            if theirs != ours:
                more, less = quoted(class_text(theirs - ours), 9), quoted(class_text(ours - theirs), 9)
                rows.append(f'    {{"{names}",\n         {more},\n         {less}}},')
    return rows


def kinds():
    """The kinds of characters that Rust code asks for, where utf8proc would answer otherwise (pm_char_kind)."""
    spaces = set(POINTS) - {ord(c) for p, _ in pre_tokenizers.WhitespaceSplit().pre_tokenize_str(TEXT) for c in p}
    joined = pre_tokenizers.Whitespace()
    words = set(POINTS) - alone(joined, POINTS) - spaces
    numbers = alone(pre_tokenizers.Digits(True), POINTS)
    punctuation = alone(pre_tokenizers.Punctuation(), POINTS)
    marks = set(POINTS) - {ord(c) for c in normalizers.StripAccents().normalize_str(TEXT)}
    whole = undecomposed()
    letters = {*range(0x24B6, 0x24EA), *range(0x1F130, 0x1F14A), *range(0x1F150, 0x1F16A), *range(0x1F170, 0x1F18A)}
    out = {}
    for c in POINTS:
        gc = category(c)
        ours = (
            (1 if gc[0] == "Z" or c == 0x85 or 9 <= c <= 13 else 0)
            | (2 if gc[0] in "LM" or gc in ("Nl", "Nd", "Pc") or c in letters or c in (0x200C, 0x200D) else 0)
            | (4 if gc[0] == "N" else 0)
            | (8 if gc[0] == "P" or chr(c) in "$+<=>^`|~" else 0)
            | (16 if gc[0] == "M" else 0)
        )
        sets = (spaces, words, numbers, punctuation, marks, whole)
        theirs = sum(1 << i for i, points in enumerate(sets) if c in points)
        if theirs != ours:
            out[c] = theirs
    return out


def value_rows(values):
    out = []
    for c in sorted(values):
        if out and out[-1][1] == c - 1 and out[-1][2] == values[c]:
            out[-1][1] = c
        else:
            out.append([c, c, values[c]])
    return [f"    {{0x{a:04X}, 0x{b:04X}, {value}}}," for a, b, value in out]


def lowercase_rows():
    lower = normalizers.Lowercase().normalize_str
    rows = []
    for c in POINTS:
        theirs = lower(chr(c))
        if theirs != chr(utf8proc.utf8proc_tolower(c)):
            assert len(theirs) == 1 or c == 0x130
            rows += [f"    {{0x{c:04X}, 0x{ord(theirs):04X}}},"] if len(theirs) == 1 else []
    return rows


def main():
    classes = {c: k for c, k in package_classes().items() if k != combining_class(c)}
    head = f"""/* Generated by tools/unicode.py; do not edit. How tokenizers {tokenizers.__version__} sees characters, where PCRE2 (Unicode 14) or
 * utf8proc (Unicode {utf8proc.utf8proc_unicode_version().decode()}) differs. */
#include "text/tokenizer_parts.h"

/* clang-format off */
"""
    tables = [
        ("pm_property pm_properties", properties()),
        ("pm_char_range pm_char_kinds", value_rows(kinds())),
        ("pm_char_range pm_char_classes", value_rows(classes)),
        ("pm_char_pair pm_char_lowers", lowercase_rows()),
    ]
    with FILE.open("w") as file:
        file.write(head)
        for name, rows in tables:
            short = name.split()[1]
            file.write(f"\nconst {name}[] = {{\n" + "\n".join(rows) + f"\n}};\nconst size_t {short}_n = PM_COUNT({short});\n")


if __name__ == "__main__":
    sys.exit(main())
