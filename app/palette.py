"""The colours and their meaning: kinds of tokens, owners of blocks, and quiet text."""

from __future__ import annotations

from functools import lru_cache

from rich.style import Style

BACKGROUND = "#11161d"
BRIGHT = "#f2f5f8"
TEXT = "#b9c2cc"
DIM = "#6d7783"
FAINT = "#3a434e"

DECODE = "#4fc48a"
PREFILL = "#4a9eff"
RECOMPUTE = "#ff9f43"
PREEMPTED = "#ff5f57"
WAITING = "#ffc24b"
CACHED = "#7fd6d0"

OWNERS = (
    "#45c4f0",
    "#ffc24b",
    "#8fbc6a",
    "#f5772f",
    "#c7b3ff",
    "#44a58a",
    "#f58ad0",
    "#84ef96",
    "#e07b62",
    "#8ca0ff",
    "#ffd9ab",
    "#c0d860",
)
"""One after another by arrival. There are more letters than hues: the letter says who, the hue helps to find it."""

KIND_COLORS = {"decode": DECODE, "prefill": PREFILL, "recompute": RECOMPUTE, "waiting": WAITING}
KIND_GLYPHS = {"decode": "▪", "prefill": "█", "recompute": "▒", "waiting": "·"}
PREEMPTED_GLYPH = "×"


@lru_cache(maxsize=1024)
def style(color: str = TEXT, background: str = BACKGROUND, bold: bool = False) -> Style:
    return Style(color=color, bgcolor=background, bold=bold)


def owner_color(number: int) -> str:
    return OWNERS[number % len(OWNERS)]


def owner_cell(number: int) -> Style:
    """A filled cell with the owner's letter."""
    return style(BACKGROUND, owner_color(number), bold=True)


def owner_letter(number: int) -> Style:
    """The owner's letter in running text."""
    return style(owner_color(number), bold=True)
