"""Timeline: all steps that are kept, in one row: where it was busy, where somebody was preempted, and where one is."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass
from itertools import islice, takewhile
from operator import itemgetter

from textual import events

from app.history import History
from app.palette import (
    BACKGROUND,
    BRIGHT,
    DECODE,
    DIM,
    FAINT,
    KIND_GLYPHS,
    PREEMPTED,
    PREFILL,
    RECOMPUTE,
    WAITING,
    cached,
    is_textured,
    style,
)
from app.panels.axis import GoTo
from app.panels.budget import AWAY_MARK, BOTH_MARK, CHANGED_MARK, EIGHTHS, PREEMPTED_MARK
from app.panels.panel import Panel, Part
from app.view import StepBar
from app.words import plural

GUTTER = 13
"""Cells at the left for the title, and for "10,000 steps"."""
CURSOR_MARK = "▲"
SCALES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50, 60, 80, 100, 120, 150, 200, 250, 300, 400, 500, 600, 800)
"""Steps that a column may stand for: few of them, so that the scale seldom changes, and near each other."""


@dataclass(slots=True)
class Column:
    """Neighbouring steps as one column."""

    first: int
    last: int
    most: int
    """The most tokens of any step."""
    kind: str
    """What most of these were spent on."""
    budget: int
    """The highest of any step."""
    preempted: int | None
    """The first step in which somebody was preempted."""
    changed: int | None
    """The first step from which a parameter had another value."""

    is_away: bool = False
    """A server elsewhere did not answer."""

    @classmethod
    def of(cls, bar: StepBar) -> Column:
        column = cls(bar.step, bar.step, -1, "", 0, None, None)
        column.add(bar)
        return column

    def add(self, bar: StepBar) -> None:
        """Take in the step after the last one."""
        self.last = bar.step
        self.budget = max(self.budget, bar.budget)
        if bar.total > self.most:
            self.most = bar.total
            kinds = (bar.decode, DECODE), (bar.prefill, PREFILL), (bar.recompute, RECOMPUTE)
            self.kind = max(kinds, key=itemgetter(0))[1]
        if self.preempted is None and bar.num_preemptions:
            self.preempted = bar.step
        if self.changed is None and bar.num_changes:
            self.changed = bar.step
        self.is_away = self.is_away or bar.is_away

    @property
    def target(self) -> int:
        """The step that somebody means who points at it: one in which something happened, if there is any."""
        return next((step for step in (self.preempted, self.changed) if step is not None), self.last)


class Columns:
    """Bars, gathered into columns. Each bar is looked at once, however often the columns are asked for."""

    def __init__(self) -> None:
        self._columns: list[Column] = []
        self._bars: deque[StepBar] | None = None
        self._scale = 0

    def update(self, bars: deque[StepBar], width: int) -> list[Column]:
        """These bars in at most `width` columns; steps with the same quotient by the scale share one."""
        if not bars or width < 1:
            return []
        scale = _scale(bars[0].step, bars[-1].step, width)
        columns = self._columns
        if bars is not self._bars or scale != self._scale:
            self._bars, self._scale = bars, scale
            columns.clear()
        self._forget_before(bars)
        for bar in _newer(bars, columns[-1].last if columns else -1):
            if columns and columns[-1].first // scale == bar.step // scale:
                columns[-1].add(bar)
            else:
                columns.append(Column.of(bar))
        return columns

    def _forget_before(self, bars: deque[StepBar]) -> None:
        """Drop what the bars no longer hold. A column that has lost some of its steps is made anew of the others."""
        columns, first = self._columns, bars[0].step
        del columns[: bisect_left(columns, first, key=lambda column: column.last)]
        if columns and columns[0].first < first:
            kept = islice(bars, columns[0].last - first + 1)
            columns[0] = Column.of(next(kept))
            for bar in kept:
                columns[0].add(bar)


class Timeline(Panel):
    """Heights are the most tokens of any step in a column; signs are preemptions and changes. A click goes there."""

    ALLOW_MAXIMIZE = False

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self.history = History()
        self.step: int | None = None
        """The step of the past that is shown, or None for the newest."""
        self._columns = Columns()
        self._asked_for: int | None = None
        """While a button of the mouse is down, the step that was asked for last."""

    def draw(self, width: int, height: int) -> list[list[Part]]:
        bars = self.history.bars
        columns = self._columns.update(bars, width - GUTTER)
        top = max((column.budget for column in columns), default=0)
        title: list[Part] = [("History", style(BRIGHT, bold=True)), (" " * (GUTTER - len("History")), style())]
        heights = [_height(-(-8 * column.most // top), column.kind) for column in columns]
        marks = [_mark(column) for column in columns]
        if self.step is not None and columns:
            here = bisect_left(columns, self.step, key=lambda column: column.last)
            sign = marks[here]
            marks[here] = (sign[0] if sign else CURSOR_MARK, style(BACKGROUND, WAITING, bold=True))
        if height == 1:
            return [[*title, *(mark or cell for mark, cell in zip(marks, heights, strict=True))]]
        count = plural(len(bars), self.view.unit) if bars else "no steps"
        rule: Part = ("─", style(FAINT))
        return [[*title, *heights], [(count.ljust(GUTTER), style(DIM)), *(mark or rule for mark in marks)]]

    def on_mouse_down(self, event: events.MouseDown) -> None:
        if event.x >= GUTTER:
            self.capture_mouse()
            self._asked_for = None
            self._ask_for(event.x)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        if self.app.mouse_captured is self:
            self._ask_for(event.x)

    def on_mouse_up(self) -> None:
        self.release_mouse()

    def _ask_for(self, x: int) -> None:
        """Behind the last column is the newest step."""
        columns = self._columns.update(self.history.bars, self.size.width - GUTTER)
        if not columns:
            return
        index = max(0, x - GUTTER)
        step = columns[index].target if index < len(columns) else columns[-1].last
        if step != self._asked_for:
            self._asked_for = step
            self.post_message(GoTo(step))


def _scale(first: int, last: int, width: int) -> int:
    """Steps in a column, so that these fit."""
    fitting = (scale for scale in SCALES if last // scale - first // scale < width)
    return next(fitting, (last - first + 1) // (width - 1) + 1 if width > 1 else last + 1)


def _newer(bars: deque[StepBar], step: int) -> list[StepBar]:
    """The bars after this step, oldest first."""
    return list(takewhile(lambda bar: bar.step > step, reversed(bars)))[::-1]


@cached
def _height(eighths: int, kind: str) -> Part:
    """In the colour of its kind; where there are no colours, the kind's sign instead of a height."""
    if is_textured() and eighths:
        return (KIND_GLYPHS[kind], style(kind))
    return (EIGHTHS[min(eighths, 8)], style(kind))


def _mark(column: Column) -> Part | None:
    if column.is_away:
        return (AWAY_MARK, style(PREEMPTED, bold=True))
    if column.preempted is not None:
        return (PREEMPTED_MARK if column.changed is None else BOTH_MARK, style(PREEMPTED, bold=True))
    if column.changed is not None:
        return (CHANGED_MARK, style(WAITING, bold=True))
    return None
