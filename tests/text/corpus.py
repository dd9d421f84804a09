"""Text to compare tokenizers over, made of what a Debian machine with Python has, and of hard cases."""

import gettext
import gzip
import random
from pathlib import Path

PIECE = 50_000  # characters of a text at most


def readable(path):
    """The text of a file; nothing when it is not UTF-8."""
    try:
        data = gzip.open(path).read() if path.suffix == ".gz" else path.read_bytes()
        return data.decode()
    except (OSError, EOFError, UnicodeDecodeError, gzip.BadGzipFile):
        return ""


def translations(path):
    """The messages of a catalogue."""
    try:
        with open(path, "rb") as file:
            catalogue = gettext.GNUTranslations(file)._catalog
        return "\n".join(str(text) for text in catalogue.values())
    except (OSError, ValueError, UnicodeDecodeError, IndexError):
        return ""


# Where each kind of text is looked for: a folder, the names there, and how a file is read.
SOURCES = {
    "licences": [("/usr/share/common-licenses", "*", readable), ("/usr/share/doc", "*/copyright", readable)],
    "manuals": [("/usr/share/man", "**/*.gz", readable), ("/usr/share/perl", "**/*.pod", readable)],
    "code": [(gzip.__file__ + "/..", "**/*.py", readable), ("/usr/include", "**/*.h", readable)],
    "languages": [("/usr/share/locale", "*/LC_MESSAGES/*.mo", translations), ("/usr/share/i18n", "locales/*", readable)],
    "unicode": [("/usr/share/unicode", "**/*.txt", readable), ("/usr/share/perl", "**/unicore/**/*.*", readable)],
}


def texts_of(kind, characters, rng):
    """Texts of one kind, from files in a random order, until there are enough."""
    out, n = [], 0
    for folder, pattern, read in SOURCES[kind]:
        paths = sorted(path for path in Path(folder).resolve().glob(pattern) if path.is_file() and not path.is_symlink())
        rng.shuffle(paths)
        for path in paths:
            text = read(path)[:1_000_000]
            for i in range(0, len(text), PIECE):
                if n >= characters:
                    return out
                out.append(text[i : i + PIECE][: characters - n])
                n += len(out[-1])
    return out


def corpus(megabytes):
    """At least so many megabytes of text: a share of every kind, and code in place of what the machine lacks."""
    wanted, rng = megabytes * 1_000_000, random.Random(megabytes)
    texts = [text for kind in SOURCES for text in texts_of(kind, wanted // len(SOURCES), rng)]
    have = sum(len(text.encode()) for text in texts)
    while have < wanted:
        more = texts_of("code", wanted - have, rng)
        texts += more
        have += sum(len(text.encode()) for text in more)
    return texts


DIGITS = "0123456789٠١٢٣٤٥٦٧٨٩०१२३४५६७८९๐๑๒๓๔๕๖๗๘๙０１２３４５６７８９𝟎𝟏𝟐²³¼½ⅧⅫ①㊿一二三"
MARKS = "".join(map(chr, [*range(0x300, 0x370), *range(0x591, 0x5C8), *range(0x1AB0, 0x1ACF), *range(0x20D0, 0x20F1)]))
EMOJI = ["👩‍👩‍👧‍👦", "🏳️‍🌈", "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f", "👍🏽", "🇩🇪🇫🇷", "1️⃣", "❤️‍🔥", "🫠", "\U0001fae8"]


def hard_cases(special):
    """Texts that tokenizers are known to differ over; `special` are control tokens."""
    rng = random.Random(1)

    def mixed(parts, n):
        return "".join(rng.choice(parts) for _ in range(n))

    cases = ["\r\n" * 7, "a\r\nb\rc\n\r\n", "\t\t x\t", " " * 257 + "x" + " " * 64, "\n\n\n   \n  x", "\u2028x\u2029\u0085y"]
    cases += ["1234567 12,345.67 1e-9 0x7fff 3.14159 1_000", "I'LL don't WE'VE it's 'Tis ‘quoted’ o'clock"]
    cases += ["🜁é <0x41> <0xFF>", "  Hi", " Hi", "Hi", "čaj 😀 漢字", "Việt  Việt", "x\u180ey\u200bz\ufeff"]
    cases += [mixed(DIGITS, n) for n in (1, 2, 3, 4, 10, 1000)]
    cases += ["e" + mixed(MARKS, n) + "x" for n in (1, 2, 3, 10, 300)]
    cases += [mixed([*EMOJI, " ", "a"], n) for n in (1, 5, 200)]
    cases += [mixed([" ", "  ", "\t", "\n", "\r\n", "\u3000", "\u00a0", "x"], n) for n in (5, 50, 2000)]
    for token in special:
        cases += [token, f"a{token}b", f" {token} ", f"{token}{token}\n{token}", token[:-1], token.upper(), "x" + token[1:]]
    return cases
