"""Panel: a widget that draws lines from an EngineView and repaints only those that changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from app.palette import BRIGHT, DIM, FAINT, style
from app.text import chop
from app.view import EngineView

Part = tuple[str, Style]
"""A piece of text, already safe to print, and how it looks."""


class Panel(Widget):
    """Subclasses say what their lines are in `draw`; all text in them is literal."""

    DEFAULT_CSS = "Panel { width: 1fr; height: 1fr; }"

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self.view = EngineView()
        self._lines: list[Strip] = []

    def draw(self, width: int, height: int) -> Sequence[Sequence[Part]]:
        """The panel's lines from the top; at most `height` of them are shown, each cut to `width`."""
        raise NotImplementedError

    def show(self, view: EngineView) -> None:
        """Draw this view, and repaint the lines that differ from those on the screen."""
        self.view = view
        self.redraw()

    def redraw(self) -> None:
        width, height = self.size
        if not width or not height:
            return
        drawn = [to_strip(line, width) for line in self.draw(width, height)[:height]]
        lines = drawn + [to_strip((), width)] * (height - len(drawn))
        if len(lines) != len(self._lines):
            changed: Iterable[Region] = (Region(0, 0, width, height),)
        else:
            changed = [Region(0, y, width, 1) for y, line in enumerate(lines) if line != self._lines[y]]
        self._lines = lines
        if changed:
            self.refresh(*changed)

    def on_resize(self) -> None:
        self._lines = []
        self.redraw()

    def render_line(self, y: int) -> Strip:
        return self._lines[y] if y < len(self._lines) else to_strip((), self.size.width)


def to_strip(parts: Iterable[Part], width: int) -> Strip:
    """Parts as one line of exactly `width` cells; neighbours of one style become one segment."""
    segments: list[Segment] = []
    for look, run in groupby(parts, key=itemgetter(1)):
        segments.append(Segment("".join([text for text, _ in run]), look))
    return Strip(segments).adjust_cell_length(width, style())


def heading(title: str, note: str, width: int) -> list[Part]:
    """A panel's first line: its title, a quiet rule, and a note at the right end, which goes first if room is short."""
    room = width - cell_len(title) - 4
    if cell_len(note) > room:
        note = ""
    rule = "─" * max(0, width - cell_len(title) - cell_len(note) - (3 if note else 2))
    line: list[Part] = [(title, style(BRIGHT, bold=True)), (f" {rule}", style(FAINT))]
    if note:
        line.append((f" {note}", style(DIM)))
    return line


def wrap_parts(parts: Iterable[Part], width: int, indent: int = 0) -> list[list[Part]]:
    """Break a styled sentence at its spaces, and words that are too long anywhere; later lines are indented."""
    lines: list[list[Part]] = [[]]
    used = 0
    for text, look in parts:
        for word in _words(text):
            for piece in chop(word, width - indent):
                if used + cell_len(piece.rstrip()) > width and used > indent:
                    lines.append([(" " * indent, look)] if indent else [])
                    used = indent
                lines[-1].append((piece, look))
                used += cell_len(piece)
    return lines


def _words(text: str) -> Iterable[str]:
    """Words with the spaces behind them, so that joined they are the text."""
    word = ""
    for character in text:
        if word and word[-1] == " " and character != " ":
            yield word
            word = ""
        word += character
    if word:
        yield word
