"""Writes runtime/text/unicode_table.cpp: the general categories, the script Han and numeric types of Unicode 16.0; and
case_table.cpp beside it: the upper, lower and title case of letters as Python has them.

    pip install unicodedata2==16.0.0 fonttools==4.55.0
    python make_unicode_table.py ../../../runtime/text

16.0 is what Hugging Face tokenizers (Oniguruma) and tiktoken (Rust's regex) split by; compare_tokenizers.py checks every
code point of every property against both. Cases are those of the Python that runs this: of 3.11 to 3.13, whose Unicode
14.0 to 15.1 have the same.
"""
import os
import subprocess
import sys
import unicodedata

import unicodedata2
from fontTools.unicodedata import script

VERSION = "16.0.0"
CASE_VERSIONS = ("14.0.0", "15.0.0", "15.1.0")
# In the order of unicode_table.h.
CATEGORIES = ("Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Cs Co Cn").split()
CHARACTERS = [chr(codepoint) for codepoint in range(0x110000) if not 0xD800 <= codepoint < 0xE000]


def runs(value_of):
    """(first code point, value) wherever the value changes."""
    changes, before = [], None
    for codepoint in range(0x110000):
        value = value_of(chr(codepoint))
        if value != before:
            changes.append((codepoint, value))
            before = value
    return changes


def ranges(holds):
    """(first, last) of the characters for which it holds."""
    changes = runs(lambda character: not "\ud800" <= character < "\ue000" and bool(holds(character)))
    return [(changes[i][0], changes[i + 1][0] - 1) for i in range(len(changes)) if changes[i][1]]


def case_runs(mapped):
    """(first, last, step, offset): every step-th character of the range becomes the one that is offset further."""
    entries = [(ord(c), ord(mapped(c)) - ord(c)) for c in CHARACTERS if mapped(c) != c and len(mapped(c)) == 1]
    made = []
    for codepoint, offset in entries:
        if made and made[-1][3] == offset:
            first, last, step, _ = made[-1]
            if codepoint - last <= 2 and (first == last or codepoint - last == step):
                made[-1] = (first, codepoint, codepoint - last, offset)
                continue
        made.append((codepoint, codepoint, 1, offset))
    return made


def texts(mapped, differs):
    """(code point, up to three code points, 0 for none)"""
    made = [(ord(c), *map(ord, mapped(c)), *[0] * (3 - len(mapped(c)))) for c in CHARACTERS if differs(c)]
    assert all(len(entry) == 4 for entry in made)
    return made


def is_case_ignorable(character):
    """Only what Python makes of a final sigma tells."""
    is_cased = character.isupper() or character.islower() or character.istitle()
    before = "1" if is_cased else "A"
    return ((before + character + "\u03a3").lower()[-1] == "\u03c2") != is_cased


def array(kind, name, entries):
    if kind == "CaseText":
        entries = [(codepoint, "{" + ", ".join(map(hex, text)) + "}") for codepoint, *text in entries]
    written = ", ".join("{" + ", ".join(n if isinstance(n, str) else hex(n) if n >= 0 else str(n) for n in entry) + "}"
                        for entry in entries)
    return f"const std::array<{kind}, {len(entries)}> {name} = {{{{\n{written}}}}};\n\n"


def write(folder, name, version, arrays):
    target = os.path.join(folder, name + ".cpp")
    with open(target, "w", encoding="utf-8") as out:
        out.write(f"// Written by tests/tools/text/make_unicode_table.py from Unicode {version}. Do not edit.\n"
                  f'#include "runtime/text/{name}.h"\n\nnamespace dspack::runtime {{\n\n'
                  + "".join(arrays) + "}  // namespace dspack::runtime\n")
    subprocess.run(["clang-format", "-i", target], check=True)


def main(folder):
    if unicodedata2.unidata_version != VERSION:
        sys.exit(f"unicodedata2 has Unicode {unicodedata2.unidata_version}, not {VERSION}")
    if unicodedata.unidata_version not in CASE_VERSIONS:
        sys.exit(f"this Python has Unicode {unicodedata.unidata_version}, none of {', '.join(CASE_VERSIONS)}")
    category = {c: unicodedata2.category(c) for c in CHARACTERS}
    numeric = {c for c in CHARACTERS if unicodedata2.numeric(c, None) is not None}
    assert all(c in numeric for c in CHARACTERS if category[c][0] == "N")
    categories = [first << 5 | CATEGORIES.index(value) for first, value in runs(unicodedata2.category)]
    old = {c: unicodedata.category(c) for c in CHARACTERS}
    assert all(old[c] != "Lu" or c.isupper() for c in CHARACTERS) and all(old[c] != "Ll" or c.islower() for c in CHARACTERS)
    properties = [
        ("CodepointRange", "kHan", ranges(lambda c: script(c) == "Hani")),
        ("CodepointRange", "kOtherDigits", ranges(lambda c: unicodedata2.digit(c, None) is not None and category[c] != "Nd")),
        ("CodepointRange", "kOtherNumerics", ranges(lambda c: c in numeric and category[c][0] != "N")),
    ]
    cases = [
        ("CodepointRange", "kOtherUppercase", ranges(lambda c: c.isupper() and old[c] not in ("Lu", "Lt"))),
        ("CodepointRange", "kOtherLowercase", ranges(lambda c: c.islower() and old[c] != "Ll")),
        ("CodepointRange", "kOtherCaseIgnorable", ranges(
            lambda c: is_case_ignorable(c) and old[c] not in ("Mn", "Me", "Cf", "Lm", "Sk"))),
        ("CaseRun", "kUpperRuns", case_runs(str.upper)),
        ("CaseRun", "kLowerRuns", case_runs(str.lower)),
        ("CaseText", "kUpperTexts", texts(str.upper, lambda c: len(c.upper()) > 1)),
        ("CaseText", "kLowerTexts", texts(str.lower, lambda c: len(c.lower()) > 1)),
        ("CaseText", "kTitleTexts", texts(str.title, lambda c: c.title() != c.upper())),
    ]
    assert all(is_case_ignorable(c) for c in CHARACTERS if old[c] in ("Mn", "Me", "Cf", "Lm", "Sk"))
    write(folder, "unicode_table", VERSION,
          [f"const std::array<uint32_t, {len(categories)}> kCategoryRuns = {{\n"
           + ", ".join(hex(entry) for entry in categories) + "};\n\n", *(array(*table) for table in properties)])
    write(folder, "case_table", unicodedata.unidata_version, [array(*table) for table in cases])
    for _, name, entries in properties + cases:
        print(f"{name}: {len(entries)}")
    print(f"{len(categories)} runs of a category")


if __name__ == "__main__":
    main(*sys.argv[1:])
