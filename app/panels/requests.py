"""Requests: one row each, its numbers at the left, its life at the right on the step columns of the budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from app.palette import (
    BRIGHT,
    DIM,
    FAINT,
    KIND_COLORS,
    KIND_GLYPHS,
    PREEMPTED,
    PREEMPTED_GLYPH,
    PREFILL,
    RECOMPUTE,
    TEXT,
    WAITING,
    owner_cell,
    owner_letter,
    style,
)
from app.panels.axis import WIDE_GUTTER, gutter, num_columns
from app.panels.panel import Panel, Part, heading
from app.text import fit
from app.view import RequestView
from app.words import waits

HINTS = (
    ("s", "a short request"),
    ("l", "a long one, some 500 tokens"),
    ("b", "a burst of short ones"),
    ("llll b", "more than the memory holds: somebody will be preempted"),
    ("?", "what all this means"),
)


@dataclass(frozen=True, slots=True)
class Pending:
    """A request that was sent and has not been in a trace yet."""

    request_id: str
    label: str
    state: str


UNLISTED = ""
"""Stands for the requests that the trace does not name, where other rows have an id."""
Row = tuple[str | None, Callable[[], list[Part]]]
"""A row's request, if it has one, and how to draw it; only rows in sight are drawn."""


class RequestsPanel(Panel):
    """Rows are in the scheduler's order: running, a divider, waiting, sent, then those that ended last."""

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self.selected: str | None = None
        self.pending: tuple[Pending, ...] = ()
        self.aborting: frozenset[str] = frozenset()
        """Requests whose abort takes effect with the next step."""

    def order(self) -> list[str]:
        """Ids of all rows that can be selected, from the top."""
        trace = self.view.trace
        alive = [r for r in (*trace.running, *trace.waiting) if not self._ended(r)] if trace else []
        return [*alive, *(pending.request_id for pending in self.pending), *reversed(self.view.finished)]

    def draw(self, width: int, height: int) -> list[list[Part]]:
        trace = self.view.trace
        running = [r for r in trace.running if not self._ended(r)] if trace else []
        waiting = [r for r in trace.waiting if not self._ended(r)] if trace else []
        more = trace.num_waiting - len(trace.waiting) if trace else 0
        counts = f"running {len(running)} · waiting {len(waiting) + more} · finished {self.view.num_finished}"
        if self.pending:
            counts = f"sent {len(self.pending)} · {counts}"
        note = f"{counts} · last {num_columns(width)} steps" if width >= WIDE_GUTTER * 3 else counts
        lines = [heading("Requests", note, width)]
        if not running and not waiting and not self.view.finished and not self.pending:
            return (
                lines + [[]] + [[(f"  {key:<8}", style(BRIGHT, bold=True)), (text, style(TEXT))] for key, text in HINTS]
            )
        rows: list[Row] = [(r, partial(self._row, r, width, "running")) for r in running]
        if waiting or self.pending:
            rows.append((None, partial(self._divider, width)))
            rows += [(r, partial(self._row, r, width, "waiting")) for r in waiting]
            if more:
                rows.append((UNLISTED, partial(_note, f"and {more:,} more waiting")))
            rows += [(pending.request_id, partial(self._pending_row, pending)) for pending in self.pending]
        rows += [(r, partial(self._row, r, width, "ended")) for r in reversed(self.view.finished)]
        return lines + self._window(rows, height - 1, more)

    def _window(self, rows: Sequence[Row], height: int, num_unlisted: int) -> list[list[Part]]:
        """As many rows as fit, with the selected one among them. `num_unlisted` requests have no row of their own."""
        position = next((i for i, (request_id, _) in enumerate(rows) if request_id == self.selected), 0)
        first = max(0, min(position - height // 2, len(rows) - height)) if position >= height - 1 else 0
        shown = [draw() for _, draw in rows[first : first + height]]

        def count(hidden: Sequence[Row]) -> str:
            return f"{sum(num_unlisted if r == UNLISTED else r is not None for r, _ in hidden):,}"

        # A row at the edge makes way for the note, and is one of those that it counts.
        if len(rows) > first + height > first:
            shown[-1] = _note(f"j, k: {count(rows[first + height - 1 :])} more below")
        if first and shown:
            shown[0] = _note(f"j, k: {count(rows[: first + 1])} more above")
        return shown

    def _ended(self, request_id: str) -> bool:
        return self.view.requests[request_id].finished is not None

    def _divider(self, width: int) -> list[Part]:
        trace = self.view.trace
        text = ""
        if trace and trace.blocked and not self._ended(trace.blocked.request_id):
            text = f" {self.view.letter(trace.blocked.request_id)} {waits(trace.blocked, trace.config)} "
        text = fit(text, min(len(text), width - 4))
        return [("─" * 3, style(FAINT)), (text, style(WAITING)), ("─" * (width - 4 - len(text)), style(FAINT))]

    def _pending_row(self, pending: Pending) -> list[Part]:
        selected = pending.request_id == self.selected
        look = style(BRIGHT, bold=True) if selected else style(DIM)
        state = "aborting" if pending.request_id in self.aborting else pending.state
        return [("▸" if selected else " ", look), (" …  ", look), (fit(pending.label, 6), look), (f" {state}", look)]

    def _row(self, request_id: str, width: int, state: Literal["running", "waiting", "ended"]) -> list[Part]:
        request = self.view.requests[request_id]
        selected = request_id == self.selected
        letter = owner_cell(request.number) if state == "running" else owner_letter(request.number)
        text = style(BRIGHT if selected else TEXT if state == "running" else DIM, bold=selected)
        line: list[Part] = [("▸" if selected else " ", style(BRIGHT, bold=True)), (f" {request.letter} ", letter)]
        progress, color = self._progress(request, state)
        if request_id in self.aborting and not request.finished:
            progress, color = "aborting", PREEMPTED
        look = text if color is None else style(color, bold=selected)
        times = f"{PREEMPTED_GLYPH}{len(request.preempted_at)}" if request.preempted_at else ""
        if gutter(width) == WIDE_GUTTER:
            blocks = f"{request.num_blocks}▦" if request.num_blocks else ""
            line += [(fit(f" {request.label}", 7), text), (fit(progress, 10), look), (blocks.rjust(4), style(DIM))]
        else:
            line.append((fit(f" {progress}", 10), look))
        line.append((f"{times:>3} ", style(PREEMPTED)))
        return line + self._life(request, num_columns(width), dim=state == "ended")

    @staticmethod
    def _progress(request: RequestView, state: str) -> tuple[str, str | None]:
        """Output against its limit; of a prefill, computed against needed. And its colour, if it has one."""
        if request.finished:
            return ("abort" if request.finished.reason == "abort" else "done") + f" {request.num_output_tokens}", None
        if state == "waiting":
            return f"{_short(max(request.target, request.num_prompt_tokens))} tok", None
        if request.is_prefilling and request.last:
            color = RECOMPUTE if request.last.kind == "recompute" else PREFILL
            return f"{_short(request.num_computed_tokens)}/{_short(request.target)}", color
        return f"{_short(request.num_output_tokens)}/{_short(request.max_tokens)}", None

    def _life(self, request: RequestView, count: int, *, dim: bool) -> list[Part]:
        """What it did in each of the last `count` steps."""
        assert self.view.trace is not None
        newest = self.view.trace.step
        oldest = newest - count + 1
        cells: list[Part] = [(" ", style())] * count
        for span in reversed(request.spans):
            last = newest if span.last is None else span.last
            if last < oldest:
                break
            cell = (KIND_GLYPHS[span.kind], style(FAINT if span.kind == "waiting" and dim else KIND_COLORS[span.kind]))
            for step in range(max(span.first, oldest), last + 1):
                cells[step - oldest] = cell
        for step in request.preempted_at:
            if step >= oldest:
                cells[step - oldest] = (PREEMPTED_GLYPH, style(PREEMPTED, bold=True))
        return cells


def _short(count: int) -> str:
    """Four characters at most, up to a million."""
    return str(count) if count < 10_000 else f"{count / 1000:.0f}k"


def _note(text: str) -> list[Part]:
    return [(f"    {text}", style(DIM))]
