"""Text from models and users, made safe to draw: it can style nothing and move nothing."""

from __future__ import annotations

import unicodedata
from functools import lru_cache

from rich.cells import cell_len, set_cell_size

TAB = "    "
HIDDEN = "·"
"""Stands for a character that has no picture of its own and might do something."""
_CONTROL_PICTURES = {code: chr(0x2400 + code) for code in range(0x20)} | {0x7F: "␡"}
MAX_MARKS = 3
"""On one letter; more of them would be drawn over the lines above."""
_MODIFIERS = frozenset("\ufe0e\ufe0f\u200d\U0001f3fb\U0001f3fc\U0001f3fd\U0001f3fe\U0001f3ff")
"""Variation selectors, the joiner and skin tones change the width of what stands before them, and no two terminals
agree by how much: they go, the picture stays."""
_REGIONAL_A, _REGIONAL_Z = 0x1F1E6, 0x1F1FF
"""Pairs of these make a flag in some terminals and two signs in others: letters are the same everywhere."""


def printable(text: str, *, newlines: bool = False) -> str:
    """The same text with every control, format and unassigned character replaced by a visible sign.

    So neither escape sequences nor direction marks nor zero-width characters reach the terminal. With `newlines`
    line ends stay; otherwise they become signs as well.
    """
    if text.isascii() and text.isprintable():
        return text
    signs: list[str] = []
    num_marks = 0
    for character in text:
        if " " <= character <= "~":
            signs.append(character)
            num_marks = 0
            continue
        is_mark = unicodedata.category(character) in ("Mn", "Me")
        num_marks = num_marks + 1 if is_mark else 0
        if is_mark and (not signs or not signs[-1] or signs[-1].isspace()):
            signs.append(HIDDEN)  # with no letter to sit on, it would sit on what stands before the text
        elif num_marks <= MAX_MARKS:
            signs.append(_printable_character(character, newlines))
    return unicodedata.normalize("NFC", "".join(signs))


def fit(text: str, width: int) -> str:
    """One line of `text`, safe, cut or padded to exactly `width` cells."""
    return set_cell_size(printable(text), width)


def shortened(text: str, width: int) -> str:
    """The same, but of what is too long its beginning and its end, dots between them: either may be what tells it from
    others."""
    text = printable(text)
    if cell_len(text) <= width:
        return set_cell_size(text, width)
    head = set_cell_size(text, max(0, width - 1) // 2).rstrip()
    tail = text
    while cell_len(tail) > max(0, width - 1 - cell_len(head)):
        tail = tail[1:]
    return set_cell_size(f"{head}…{tail}", width)


def wrap(text: str, width: int) -> list[str]:
    """Safe lines of at most `width` cells, broken at spaces where there are any."""
    lines = []
    for paragraph in printable(text, newlines=True).split("\n"):
        line, *words = paragraph.split(" ")
        *full, line = chop(line, width)
        lines += full
        for word in words:
            if cell_len(line) + 1 + cell_len(word) <= width:
                line = f"{line} {word}"
                continue
            *full, rest = chop(word, width)
            lines += [line, *full]
            line = rest
        lines.append(line)
    return lines


def chop(word: str, width: int) -> list[str]:
    """A word in pieces of at most `width` cells; one piece if it fits."""
    pieces, piece, used = [], "", 0
    for character in word:
        cells = cell_len(character)
        if used + cells > width:
            pieces.append(piece)
            piece, used = "", 0
        piece += character
        used += cells
    return [*pieces, piece]


@lru_cache(maxsize=4096)
def _printable_character(character: str, newlines: bool) -> str:
    if character in _MODIFIERS:
        return ""
    if character == "\n" and newlines:
        return character
    if character == "\t":
        return TAB
    code = ord(character)
    if code in _CONTROL_PICTURES:
        return _CONTROL_PICTURES[code]
    if _REGIONAL_A <= code <= _REGIONAL_Z:
        return chr(ord("A") + code - _REGIONAL_A)
    category = unicodedata.category(character)
    if category in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"):
        return HIDDEN
    # Letters without a width of their own, such as half a Hangul syllable: terminals do not agree on it.
    return HIDDEN if cell_len(character) == 0 and not category.startswith("M") else character
