"""Requests: one row each, its numbers at the left, its life at the right on the step columns of the budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Literal

from textual.events import Click, MouseScrollDown, MouseScrollUp
from textual.message import Message

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
from app.panels.axis import WIDE_FROM, WIDE_GUTTER, gutter, num_columns
from app.panels.hints import hints
from app.panels.panel import Panel, Part, heading
from app.protocol import Server
from app.session import Pending
from app.text import fit
from app.view import RequestView
from app.words import short, waits
from engine.poll import Poll

WHEEL_ROWS = 3


Kind = Literal["running", "waiting", "sent", "ended", "divider", "unnamed"]
Row = tuple[str | None, Kind]
"""A row's request, if it has one, and what it is; there may be thousands, of which only those in sight are drawn."""


class RequestsPanel(Panel):
    """Rows are in the scheduler's order: running, a divider, waiting, sent, then those that ended last.

    Of a long queue the trace names the first; the others follow in the order in which they arrived.
    """

    class Clicked(Message):
        """Somebody has clicked on the row of a request."""

        def __init__(self, request_id: str) -> None:
            super().__init__()
            self.request_id = request_id

    def __init__(self, *, id: str, keys: Mapping[str, str] | None = None) -> None:
        super().__init__(id=id, keys=keys)
        self.selected: str | None = None
        self.pending: tuple[Pending, ...] = ()
        self.server: Server | None = None
        """If a server elsewhere is looked at: which."""
        self.can_send = True
        self.aborting: frozenset[str] = frozenset()
        """Requests whose abort takes effect with the next step."""
        self._scrolled: int | None = None
        """The first row in sight, if somebody has turned the wheel; otherwise the selected one is in sight."""
        self._first = 0
        self._num_rows = 0
        self._in_sight: list[str | None] = []
        """The request of each row that is drawn, from the top."""

    def order(self) -> list[str]:
        """Ids of all rows that can be selected, from the top."""
        sent = (pending.request_id for pending in self.pending)
        return [*self._runners(), *self._waiters(), *self._unnamed(), *sent, *reversed(self.view.finished)]

    def draw(self, width: int, height: int) -> list[list[Part]]:
        running, waiting, unnamed = self._runners(), self._waiters(), self._unnamed()
        num_waiting = len(waiting) + len(unnamed)
        counts = f"running {len(running)} · waiting {num_waiting:,} · finished {self.view.num_finished:,}"
        if self.pending:
            counts = f"sent {len(self.pending)} · {counts}"
        if self.view.poll:
            counts = _counts(self.view.poll, len(running) + len(waiting) + len(self.pending), width)
        note = f"{counts} · last {num_columns(width)} {self.view.unit}s" if width >= WIDE_GUTTER * 3 else counts
        lines = [heading("Requests", note, width)]
        self._in_sight = []
        if not running and not waiting and not self.view.finished and not self.pending:
            return lines + hints(self.keys, width, height - 1, server=self.server, can_send=self.can_send)
        rows: list[Row] = list(zip(running, repeat("running")))
        if waiting or self.pending:
            rows.append((None, "divider"))
            rows += zip(waiting, repeat("waiting"))
            if unnamed:
                rows.append((None, "unnamed"))
                rows += zip(unnamed, repeat("waiting"))
            rows += [(pending.request_id, "sent") for pending in self.pending]
        rows += zip(reversed(self.view.finished), repeat("ended"))
        return lines + self._window(rows, width, height - 1)

    def _window(self, rows: Sequence[Row], width: int, height: int) -> list[list[Part]]:
        """As many rows as fit, with the selected one among them."""
        if self._scrolled is None:
            position = next((i for i, (request_id, _) in enumerate(rows) if request_id == self.selected), 0)
            first = position - height // 2 if position >= height - 1 else 0
        else:
            first = self._scrolled
        first = max(0, min(first, len(rows) - height))
        self._first, self._num_rows = first, len(rows)
        shown = [self._drawn(row, width) for row in rows[first : first + height]]
        self._in_sight = [request_id for request_id, _ in rows[first : first + height]]

        def count(hidden: Sequence[Row]) -> str:
            return f"{sum(request_id is not None for request_id, _ in hidden):,}"

        keys = f"{self.keys['previous']} {self.keys['next']}"
        # A row at the edge makes way for the note, and is one of those that it counts.
        if len(rows) > first + height > first:
            shown[-1], self._in_sight[-1] = _note(f"{keys}: {count(rows[first + height - 1 :])} more below"), None
        if first and shown:
            shown[0], self._in_sight[0] = _note(f"{keys}: {count(rows[: first + 1])} more above"), None
        return shown

    def _drawn(self, row: Row, width: int) -> list[Part]:
        request_id, kind = row
        if request_id is None:
            return (
                self._divider(width) if kind == "divider" else _note(f"{len(self._unnamed()):,} more, as they arrived")
            )
        if kind == "sent":
            return self._pending_row(next(pending for pending in self.pending if pending.request_id == request_id))
        return self._row(request_id, width, kind)

    def reveal(self) -> None:
        """Bring the selected row back into sight."""
        self._scrolled = None

    def on_mouse_scroll_down(self, event: MouseScrollDown) -> None:
        event.stop()
        self._scroll(WHEEL_ROWS)

    def on_mouse_scroll_up(self, event: MouseScrollUp) -> None:
        event.stop()
        self._scroll(-WHEEL_ROWS)

    def _scroll(self, by: int) -> None:
        self._scrolled = max(0, min(self._first + by, self._num_rows - (self.size.height - 1)))
        self.redraw()

    def on_click(self, event: Click) -> None:
        row = event.y - 1
        request_id = self._in_sight[row] if 0 <= row < len(self._in_sight) else None
        if request_id:
            self.post_message(self.Clicked(request_id))

    def _runners(self) -> list[str]:
        trace = self.view.trace
        return [request_id for request_id in trace.running if not self._ended(request_id)] if trace else []

    def _waiters(self) -> list[str]:
        """Those that the trace names."""
        trace = self.view.trace
        return [request_id for request_id in trace.waiting if not self._ended(request_id)] if trace else []

    def _unnamed(self) -> list[str]:
        """Those that wait so far behind that the trace does not name them."""
        trace = self.view.trace
        if trace is None or trace.num_waiting == len(trace.waiting):
            return []
        named = {*trace.running, *trace.waiting}
        return [r for r, request in self.view.requests.items() if request.finished is None and r not in named]

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

    def _row(self, request_id: str, width: int, state: Kind) -> list[Part]:
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
            line += [(fit(f" {request.label}", 7) + " ", text), (fit(progress, 9), look), (blocks.rjust(4), style(DIM))]
        else:
            line.append((fit(f" {progress}", 10), look))
        line.append((f"{times:>3} ", style(PREEMPTED)))
        return line + self._life(request, num_columns(width), dim=state == "ended")

    @staticmethod
    def _progress(request: RequestView, state: str) -> tuple[str, str | None]:
        """Output against its limit; of a prefill, computed against needed. And its colour, if it has one."""
        if request.finished:
            word = {"abort": "abort", "error": "failed"}.get(request.finished.reason, "done")
            return f"{word} {request.num_output_tokens}", None
        if state == "waiting" and not request.num_prompt_tokens:
            return "sent", None  # a server tells how long it is with the first token
        if state == "waiting":
            return f"{short(request.num_prompt_tokens + request.num_output_tokens)} tok", None
        if request.is_prefilling and request.last:
            color = RECOMPUTE if request.last.kind == "recompute" else PREFILL
            return f"{short(request.num_computed_tokens)}/{short(request.target)}", color
        return f"{short(request.num_output_tokens)}/{short(request.max_tokens)}", None

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


def _counts(poll: Poll, num_own: int, width: int) -> str:
    """Of all requests per poll, and how many of them are our own, the only ones that are known one by one."""
    told = [(poll.num_running, "running"), (poll.num_waiting, "waiting")]
    known = " · ".join(f"{name} {count:,}" for count, name in told if count is not None)
    if not known:
        return f"mine {num_own}, exact"
    if width < WIDE_FROM:
        return f"{known} · mine {num_own}"
    return f"{known}, per poll · mine {num_own}, exact"


def _note(text: str) -> list[Part]:
    return [(f"    {text}", style(DIM))]
