"""The time axis that the token budget and the requests share: one column a step, the newest at the right."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from textual.message import Message

from app.view import EngineView, StepBar

WIDE_GUTTER = 29
NARROW_GUTTER = 18
WIDE_FROM = 66


class GoTo(Message):
    """Somebody has pointed at a step of the past, to see it."""

    def __init__(self, step: int, *, stay: bool = False) -> None:
        super().__init__()
        self.step = step
        self.stay = stay
        """Also if it is the newest step, which newer ones would push aside."""


def gutter(width: int) -> int:
    """Columns at the left of a panel of this width that hold numbers instead of steps."""
    return WIDE_GUTTER if width >= WIDE_FROM else NARROW_GUTTER


def num_columns(width: int) -> int:
    return max(0, width - gutter(width))


def scale(row: int, rows: int, top: float, write: Callable[[float], str]) -> str:
    """What a vertical axis up to `top` says at this row from the top: its ends, and its middle if that is far off."""
    if row == 0:
        return f"{write(top)} ┤"
    if row == rows - 1:
        return "0 ┤"
    if rows >= 5 and row == rows // 2:
        return f"{write(top * (rows - row) / rows)} ┤"
    return "│"


def columns(view: EngineView, width: int) -> list[StepBar]:
    """The steps that fit, oldest first. The last one stands in the panel's last column."""
    return list(islice(reversed(view.bars), num_columns(width)))[::-1]
