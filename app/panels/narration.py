"""Narration: what is to be watched now, while a preset is played or one that was recorded."""

from __future__ import annotations

from dataclasses import dataclass

from rich.cells import cell_len

from app.palette import BACKGROUND, BRIGHT, DECODE, DIM, TEXT, WAITING, style
from app.panels.panel import Panel, Part, wrap_parts
from app.text import printable

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
    """The title at the left, the scenes with their digits at the right: all of them if they fit."""
    title = printable(programme.title)
    hint = f"  {programme.hint}" if programme.hint else ""
    scenes: list[Part] = []
    for number, name in enumerate(programme.scenes, 1):
        is_here = number == programme.index + 1
        scenes.append((f" {number} {name} ", style(BACKGROUND, TEXT, bold=True) if is_here else style(DIM)))
    room = width - cell_len(title) - cell_len(hint) - 1
    if sum(cell_len(text) for text, _ in scenes) > room:
        count = f" {programme.index + 1} of {len(scenes)} "
        scenes = [(count, style(DIM)), scenes[programme.index]]
    used = cell_len(title) + cell_len(hint) + sum(cell_len(text) for text, _ in scenes)
    gap = " " * max(1, width - used)
    return [(title, style(BRIGHT, bold=True)), (hint, style(WAITING)), (gap, style()), *scenes]
