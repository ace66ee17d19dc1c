"""Life: what a request spent its steps on since it arrived, as one bar."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from app.palette import BACKGROUND, DIM, KIND_COLORS, KIND_GLYPHS, PREEMPTED, PREEMPTED_GLYPH, TEXT, style
from app.panels.panel import Part
from app.view import RequestView, Span, SpanKind
from app.words import plural

STRETCH = 8
"""Cells of the screen for a step of a short life, at most."""
KINDS: tuple[SpanKind, ...] = ("waiting", "prefill", "decode", "recompute")
PAINTED: tuple[SpanKind, ...] = ("waiting", "decode", "prefill", "recompute")
"""Where a cell stands for several steps, the last of these that it holds is seen."""

OF_POLLS = {
    "waiting": "before its first token",
    "prefill": "prefill",
    "decode": "with tokens",
    "recompute": "recompute",
}
"""What the kinds of steps are called where they are polls, in which nothing else is seen of a request."""


class Life:
    """A request's life until a step, on a bar of at most `width` cells."""

    def __init__(self, request: RequestView, until: int, width: int, unit: str = "step") -> None:
        self._unit = unit
        self._spans = request.spans
        self._preempted_at = request.preempted_at
        self._first = request.spans[0].first
        end = request.spans[-1].last if request.finished else until
        self._last = max(self._first, until if end is None else end)
        self._num_steps = self._last - self._first + 1
        stretch = min(STRETCH, width // self._num_steps)
        self._width = self._num_steps * stretch or max(1, width)

    def lines(self) -> list[list[Part]]:
        """The bar, and numbers of steps below it."""
        return [self._bar(), self._steps()]

    def legend(self) -> list[Part]:
        """How many steps it spent in which way, and the scale."""
        parts: list[Part] = []
        counts = {kind: sum(len(self._range(span)) for span in self._spans if span.kind == kind) for kind in KINDS}
        for kind, count in counts.items():
            if count:
                name = OF_POLLS[kind] if self._unit == "poll" else kind
                parts += [(f"{KIND_GLYPHS[kind]} ", style(KIND_COLORS[kind])), (f"{count:,} {name}   ", style(TEXT))]
        if unserved := self._num_steps - sum(counts.values()):
            parts.append((f"{unserved:,} without a token   ", style(TEXT)))
        if times := len(self._preempted_at):
            parts += [(f"{PREEMPTED_GLYPH} ", style(PREEMPTED, bold=True)), (f"{times} preempted   ", style(TEXT))]
        per_cell = self._num_steps / self._width
        scale = f", {per_cell:.1f} to a cell" if per_cell > 1 else ""
        return [*parts, (f"{plural(self._num_steps, self._unit)} in all{scale}", style(DIM))]

    def step_at(self, cell: int) -> int | None:
        """The step that stands in a cell of the bar."""
        return self._first + cell * self._num_steps // self._width if 0 <= cell < self._width else None

    def _range(self, span: Span) -> range:
        """The steps of a span, as far as they are on the bar."""
        return range(span.first, min(self._last, self._last if span.last is None else span.last) + 1)

    def _cell(self, step: int) -> int:
        """The cell in which a step begins."""
        return min(self._width - 1, (step - self._first) * self._width // self._num_steps)

    def _cells(self, steps: range) -> range:
        """The cells in which these steps are, one at least."""
        first = self._cell(steps[0])
        end = (steps[-1] + 1 - self._first) * self._width // self._num_steps
        return range(first, max(first + 1, end))

    def _bar(self) -> list[Part]:
        cells: list[Part] = [(" ", style())] * self._width
        for kind in PAINTED:
            for span in self._spans:
                if span.kind == kind and (steps := self._range(span)):
                    for cell in self._cells(steps):
                        cells[cell] = (KIND_GLYPHS[kind], style(KIND_COLORS[kind]))
        if self._width >= self._num_steps:
            for is_prefill, spans in groupby(self._spans, key=lambda span: span.kind in ("prefill", "recompute")):
                if is_prefill:
                    self._number_chunks(spans, cells)
        for step in self._preempted_at:
            cells[self._cell(step)] = (PREEMPTED_GLYPH, style(PREEMPTED, bold=True))
        return cells

    def _number_chunks(self, spans: Iterable[Span], cells: list[Part]) -> None:
        """Write their numbers into the pieces of a prefill that took several steps."""
        pieces = [(step, span.kind) for span in spans for step in self._range(span)]
        if len(pieces) < 2:
            return
        for number, (step, kind) in enumerate(pieces, 1):
            room = self._cells(range(step, step + 1))
            for cell, digit in zip(room, str(number)[-len(room) :], strict=False):
                cells[cell] = (digit, style(BACKGROUND, KIND_COLORS[kind], bold=True))

    def _steps(self) -> list[Part]:
        """Numbers of the steps at which something changes, as many as have room: the ends and preemptions first."""
        wanted = [self._first, self._last, *self._preempted_at, *(span.first for span in self._spans)]
        labels: dict[int, Part] = {}
        is_free = [True] * (self._width + 1)
        for step in dict.fromkeys(wanted):
            text = f"{step:,}"
            start = max(0, min(self._cell(step), self._width - len(text)))
            room = slice(max(0, start - 1), start + len(text) + 1)
            if step <= self._last and all(is_free[start : start + len(text)]):
                labels[start] = (text, style(PREEMPTED if step in self._preempted_at else DIM))
                is_free[room] = [False] * len(is_free[room])
        line: list[Part] = []
        used = 0
        for start, label in sorted(labels.items()):
            line += [(" " * (start - used), style()), label]
            used = start + len(label[0])
        return line
