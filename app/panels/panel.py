"""Panel: a widget that draws lines from an EngineView and repaints only those that changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.filter import LineFilter
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from app.commands import shown_keys
from app.looks import ASCII, ASCII_IN_PANELS
from app.palette import BACKGROUND, BRIGHT, DIM, FAINT, style
from app.text import chop
from app.view import EngineView

Part = tuple[str, Style]
"""A piece of text, already safe to print, and how it looks."""


class Panel(Widget):
    """Subclasses say what their lines are in `draw`; all text in them is literal."""

    DEFAULT_CSS = "Panel { width: 1fr; height: 1fr; }"
    can_focus = True

    def __init__(self, *, id: str, keys: Mapping[str, str] | None = None) -> None:
        super().__init__(id=id)
        self.view = EngineView()
        self.keys = keys or shown_keys()
        """What the screen calls the keys of the commands."""
        self._lines: list[Strip] = []
        self._parts: list[list[Part]] = []
        """What `_lines` were made of."""
        self._hidden = False

    def draw(self, width: int, height: int) -> Sequence[Sequence[Part]]:
        """The panel's lines from the top; at most `height` of them are shown, each cut to `width`."""
        raise NotImplementedError

    def show(self, view: EngineView) -> None:
        """Draw this view, and repaint the lines that differ from those on the screen."""
        self.view = view
        self.redraw()

    def redraw(self) -> None:
        width, height = self.size
        if not width or not height or self._hidden:
            return
        parts = [list(line) for line in self.draw(width, height)[:height]]
        if self.has_focus and parts:
            parts[0] = chosen(parts[0])
        parts += [[] for _ in range(height - len(parts))]
        if len(self._lines) != height:
            self._lines = [to_strip(line, width) for line in parts]
            self.refresh(Region(0, 0, width, height))
        else:
            # Most lines are the same as before; the costly part is to make strips of them.
            different = [y for y, (line, before) in enumerate(zip(parts, self._parts, strict=True)) if line != before]
            for y in different:
                self._lines[y] = to_strip(parts[y], width)
            if different:
                self.refresh(*(Region(0, y, width, 1) for y in different))
        self._parts = parts

    def forget(self) -> None:
        """Next time draw all lines: what is on the screen has the colours of another palette."""
        self._lines = []

    def watch_has_focus(self, has_focus: bool) -> None:
        super().watch_has_focus(has_focus)
        self.redraw()

    def on_hide(self) -> None:
        self._hidden = True

    def on_resize(self) -> None:
        """Of another size, or shown again."""
        self._hidden = False
        self._lines = []
        self.redraw()

    def get_line_filters(self) -> Sequence[LineFilter]:
        return [ASCII_IN_PANELS if one is ASCII else one for one in super().get_line_filters()]

    def render_line(self, y: int) -> Strip:
        return self._lines[y] if y < len(self._lines) else to_strip((), self.size.width)


def to_strip(parts: Iterable[Part], width: int) -> Strip:
    """Parts as one line of exactly `width` cells; neighbours of one style become one segment."""
    runs: list[tuple[list[str], Style]] = []
    for text, look in parts:
        if runs and runs[-1][1] is look:
            runs[-1][0].append(text)
        else:
            runs.append(([text], look))
    segments = [Segment("".join(texts), look) for texts, look in runs]
    used = sum(cell_len(segment.text) for segment in segments)
    if used > width:
        return Strip(segments, used).crop(0, width)
    if used < width:
        segments.append(Segment(" " * (width - used), style()))
    return Strip(segments, width)


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


def chosen(heading: Iterable[Part]) -> list[Part]:
    """The first line of a panel that has the focus: its title is a block, its rule is double."""
    (title, _), *rest = heading
    return [(title, style(BACKGROUND, BRIGHT, bold=True)), *((text.replace("─", "═"), look) for text, look in rest)]


def wrap_parts(parts: Iterable[Part], width: int, indent: int = 0) -> list[list[Part]]:
    """Break a styled sentence at its spaces, and words that are too long anywhere; later lines are indented."""
    lines: list[list[Part]] = [[]]
    used = 0
    for word in _words(parts):
        room = cell_len("".join(text for text, _ in word).rstrip())
        for text, look in word:
            for piece in chop(text, width - indent):
                if used + max(room, cell_len(piece.rstrip())) > width and used > indent:
                    lines.append([(" " * indent, look)] if indent else [])
                    used = indent
                room = 0  # only the whole word looks ahead; of its pieces each does for itself
                lines[-1].append((piece, look))
                used += cell_len(piece)
    return lines


def _words(parts: Iterable[Part]) -> Iterable[list[Part]]:
    """Words with the spaces behind them, so that joined they are the parts; a word may be of several looks."""
    word: list[Part] = []
    for text, look in parts:
        for piece in _pieces(text):
            if word and word[-1][0].endswith(" "):
                yield word
                word = []
            word.append((piece, look))
    if word:
        yield word


def _pieces(text: str) -> Iterable[str]:
    """A text, divided behind its spaces."""
    word = ""
    for character in text:
        if word and word[-1] == " " and character != " ":
            yield word
            word = ""
        word += character
    if word:
        yield word
