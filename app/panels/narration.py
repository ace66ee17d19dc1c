"""Narration: what is to be watched now, while a preset is played or one that was recorded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rich.cells import cell_len

from app.palette import BACKGROUND, BRIGHT, DECODE, DIM, TEXT, WAITING, style
from app.panels.panel import Panel, Part, wrap_parts
from app.text import printable, shortened

MAX_LINES = 3
"""Of what is said."""


@dataclass(frozen=True, slots=True)
class Programme:
    """Which preset is played, and where it is."""

    title: str
    scenes: tuple[str, ...]
    index: int
    hint: str = ""
    """What a key does now."""


class Narration(Panel):
    """Nothing to see while nobody has anything to say."""

    can_focus = False

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self.programme: Programme | None = None

    def lines(self, width: int, *, most: int = MAX_LINES) -> list[list[Part]]:
        """The preset and its scenes, and at most so many lines of what is said."""
        lines = [_title(self.programme, width)] if self.programme else []
        if note := " ".join(printable(self.view.note, newlines=True).split()):
            told = wrap_parts([("▎ ", style(DECODE)), (note, style(BRIGHT))], width, indent=2)
            lines += told[:most]
        return lines

    def draw(self, width: int, height: int) -> list[list[Part]]:
        return self.lines(width, most=MAX_LINES if self.programme is None else height - 1)


def _title(programme: Programme, width: int) -> list[Part]:
    """The title at the left, the scenes with their digits at the right, all of them if they fit; what is too much goes:
    the other scenes, the hint, the end of the title."""
    title = printable(programme.title)
    hint = f"  {programme.hint}" if programme.hint else ""
    scenes: list[Part] = []
    for number, name in enumerate(programme.scenes, 1):
        is_here = number == programme.index + 1
        scenes.append((f" {number} {name} ", style(BACKGROUND, TEXT, bold=True) if is_here else style(DIM)))
    if _cells(scenes) + cell_len(title) + cell_len(hint) >= width:
        scenes = [(f"{programme.index + 1} of {len(scenes)} ", style(DIM)), scenes[programme.index]]
    if _cells(scenes) + cell_len(title) + cell_len(hint) >= width:
        hint = ""
    room = max(0, width - _cells(scenes) - 1)
    title = shortened(title, room) if cell_len(title) > room else title
    gap = " " * (width - _cells(scenes) - cell_len(title) - cell_len(hint))
    return [(title, style(BRIGHT, bold=True)), (hint, style(WAITING)), (gap, style()), *scenes]


def _cells(parts: Iterable[Part]) -> int:
    return sum(cell_len(text) for text, _ in parts)
