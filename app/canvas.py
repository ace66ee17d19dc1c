"""Canvas: what the terminal shows, cell by cell, so that a frame is written as what differs from the one before.

In a dashboard where everything moves on by one column a step, most lines are repainted and nearly every cell of them
looks as before. Writing only the other cells, and of their looks only what changes from one to the next, takes a
quarter of the bytes: what a slow line needs most.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from itertools import repeat

from rich.cells import cell_len, get_character_cell_size
from rich.color import ColorSystem
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

Cell = tuple[str, str]
"""What is written there, and the SGR codes that it is written with."""
Piece = tuple[int, int, Iterable[Segment]]
"""Column, row, and what stands from there on."""
REVERSE = "7"
UNSEEN_ON_SPACE = frozenset("123")
"""Bold, dim and italic."""
COLOR_CODES = 3
"""Of 38;5;n; a colour as 38;2;r;g;b has five."""
TRUECOLOR_CODES = 5


class Canvas:
    """Of a cell that was never drawn nothing is known: it differs from whatever comes."""

    def __init__(self) -> None:
        self._rows: dict[int, list[Cell | None]] = {}

    def forget(self) -> None:
        """The terminal may show anything: all that comes has to be written."""
        self._rows.clear()

    def draw(self, pieces: Iterable[Piece], colors: ColorSystem) -> str:
        """What to write so that the terminal shows these pieces. It finds and leaves the pen plain."""
        writes: list[str] = []
        pen = ""
        for x, y, segments in pieces:
            cells = _cells(segments, colors)
            row = self._rows.setdefault(y, [])
            row += repeat(None, x + len(cells) - len(row))
            _break(row, x)
            before = row[x : x + len(cells)]
            if before == cells:
                continue
            row[x : x + len(cells)] = cells
            written = None  # the column where the next character would go, if we know
            for column, (old, new) in enumerate(zip(before, cells, strict=True), x):
                text, look = new
                if old == new or not text or _are_alike(old, new):
                    continue
                if column != written:
                    writes.append(f"\x1b[{y + 1};{column + 1}H" if written is None else f"\x1b[{column - written}C")
                if look != pen and (text != " " or _blank(look) != _blank(pen)):
                    writes.append(_turn(pen, look))
                    pen = look
                writes.append(text)
                # Terminals do not agree about how far odd characters take them.
                written = column + 1 if _is_plain(text) else None
        if pen:
            writes.append("\x1b[m")
        return "".join(writes)


def _cells(segments: Iterable[Segment], colors: ColorSystem) -> list[Cell]:
    """One for each column. Text with characters that are not one column wide is one cell, with empty ones behind it."""
    cells: list[Cell] = []
    for text, style, _ in segments:
        look = _look(style, colors) if style else ""
        if _is_plain(text):
            cells += zip(text, repeat(look))
        elif width := cell_len(text):
            cells.append((text, look))
            cells += repeat(("", text), width - 1)
    return cells


def _are_alike(old: Cell | None, new: Cell) -> bool:
    """Spaces of one background: what they would be written with is not seen."""
    return old is not None and old[0] == new[0] == " " and _blank(old[1]) == _blank(new[1])


def _break(row: list[Cell | None], column: int) -> None:
    """Forget text that begins before this column and reaches over it: it is about to be cut."""
    if column < len(row) and _continues(row[column]):
        while _continues(row[column]):
            row[column] = None
            column -= 1
        row[column] = None


def _continues(cell: Cell | None) -> bool:
    return cell is not None and not cell[0]


@lru_cache(maxsize=4096)
def _is_plain(text: str) -> bool:
    """Every character is one column wide."""
    return text.isprintable() and (text.isascii() or all(get_character_cell_size(character) == 1 for character in text))


@lru_cache(maxsize=4096)
def _look(style: Style, colors: ColorSystem) -> str:
    return Strip.render_ansi(style, colors)


@lru_cache(maxsize=4096)
def _turn(pen: str, look: str) -> str:
    """The shortest sequence from one look to another."""
    old, new = _split(pen), _split(look)
    if old[0] - new[0]:  # bold and the like end together or not at all
        return f"\x1b[0;{look}m" if look else "\x1b[m"
    codes = sorted(new[0] - old[0])
    if old[1] != new[1]:
        codes.append(new[1] or "39")
    if old[2] != new[2]:
        codes.append(new[2] or "49")
    return f"\x1b[{';'.join(codes)}m"


@lru_cache(maxsize=4096)
def _blank(look: str) -> str:
    """What can be seen of a look on a space."""
    attributes, foreground, background = _split(look)
    if REVERSE in attributes:
        background += foreground
    return ";".join([*sorted(attributes - UNSEEN_ON_SPACE), background])


def _split(look: str) -> tuple[frozenset[str], str, str]:
    """SGR codes apart: what is no colour, foreground, background."""
    attributes, foreground, background = set(), "", ""
    codes = look.split(";") if look else []
    while codes:
        kind = codes[0]
        size = 1 if kind not in ("38", "48") else TRUECOLOR_CODES if codes[1] == "2" else COLOR_CODES
        code, codes = ";".join(codes[:size]), codes[size:]
        if len(kind) == 2 and kind[0] in "39":
            foreground = code
        elif (len(kind) == 2 and kind[0] == "4") or len(kind) == 3:
            background = code
        else:
            attributes.add(code)
    return frozenset(attributes), foreground, background
