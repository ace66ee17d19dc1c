"""Text from models and users, made safe to draw: it can style nothing and move nothing."""

from __future__ import annotations

import unicodedata

from rich.cells import cell_len, set_cell_size

TAB = "    "
HIDDEN = "·"
"""Stands for a character that has no picture of its own and might do something."""
_CONTROL_PICTURES = {code: chr(0x2400 + code) for code in range(0x20)} | {0x7F: "␡"}
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
    text = unicodedata.normalize("NFC", text)
    return "".join(_printable_character(character, newlines) for character in text)


def fit(text: str, width: int) -> str:
    """One line of `text`, safe, cut or padded to exactly `width` cells."""
    return set_cell_size(printable(text), width)


def wrap(text: str, width: int) -> list[str]:
    """Safe lines of at most `width` cells, broken at spaces where there are any."""
    lines = []
    for paragraph in printable(text, newlines=True).split("\n"):
        line = ""
        for word in paragraph.replace("\t", TAB).split(" "):
            candidate = f"{line} {word}" if line else word
            if cell_len(candidate) <= width:
                line = candidate
                continue
            if line:
                lines.append(line)
            *full, line = _chop(word, width)
            lines += full
        lines.append(line)
    return lines


def _chop(word: str, width: int) -> list[str]:
    pieces, piece, used = [], "", 0
    for character in word:
        cells = cell_len(character)
        if used + cells > width:
            pieces.append(piece)
            piece, used = "", 0
        piece += character
        used += cells
    return [*pieces, piece]


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
    if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"):
        return HIDDEN
    return character
