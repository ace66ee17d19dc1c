"""Request: all that is known of one request, as of the step that is shown."""

from __future__ import annotations

from rich.cells import cell_len
from textual.events import Click, MouseScrollDown, MouseScrollUp

from app.palette import (
    BRIGHT,
    DIM,
    FAINT,
    TEXT,
    owner_cell,
    style,
)
from app.panels.axis import GoTo
from app.panels.blocks import CELL, held
from app.panels.events import event_line
from app.panels.figures import figures
from app.panels.life import Life
from app.panels.output import state_of
from app.panels.panel import Panel, Part, heading, to_strip, wrap_parts
from app.panels.transcript import Transcript
from app.session import Pending
from app.text import fit, printable
from app.view import MAX_FINISHED, EngineView, RequestView
from app.words import ended

TWO_COLUMNS_FROM = 100
"""Cells of width from which the text stands beside the numbers, and not below them."""
SHORT = 20
"""Lines of height below which what can be seen elsewhere is left out."""
WHEEL_LINES = 3
MAX_LABEL = 12


class RequestPanel(Panel):
    """Follows its request from step to step, whatever becomes of it."""

    can_focus = False

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self.request_id: str | None = None
        self.newest = EngineView()
        """The newest state, where the one that is shown may be of the past."""
        self.pending: tuple[Pending, ...] = ()
        self.notes: tuple[str, ...] = ()
        """What is being done with it, such as "aborting"."""
        self._first_line: int | None = None
        """Of the text, if somebody has scrolled; otherwise it stays where the engine is at work."""
        self._shown_first = 0
        self._text_height = 0
        self._num_lines = 0
        self._life: Life | None = None

    def look_at(self, request_id: str | None) -> None:
        """Show this request; the text of another one begins where the engine is at work on it."""
        if request_id != self.request_id:
            self._first_line = None
        self.request_id = request_id

    def draw(self, width: int, height: int) -> list[list[Part]]:
        self._text_height, self._life = 0, None
        request = self.view.requests.get(self.request_id) if self.request_id else None
        if request is None or self.view.trace is None:
            return [heading("Request", "", width), *wrap_parts([(self._absence(), style(TEXT))], max(1, width))]
        self._life = life = Life(request, self.view.trace.step, width, self.view.unit)
        lines = [self._title(request, width), *life.lines()]
        if height >= SHORT:
            lines += [*wrap_parts(life.legend(), width), []]
        room = height - len(lines)
        if width < TWO_COLUMNS_FROM:
            lines += figures(self.view, request, width, brief=height < SHORT)
            if (height >= SHORT or request.num_blocks) and not self.view.poll:
                lines += self._blocks(request, width, max(2, min(4, height - len(lines) - 4)))
            return [*lines, *self._text(request, width, height - len(lines))]
        left = (width - 3) * 45 // 100
        column = [*figures(self.view, request, left), []]
        if not self.view.poll:
            column += [*self._blocks(request, left, room - len(column)), []]
        column += self._events(request, left, room - len(column))
        text = self._text(request, width - 3 - left, room)
        for row in range(room):
            beside = text[row] if row < len(text) else []
            lines.append([*_exactly(column[row] if row < len(column) else [], left), (" │ ", style(FAINT)), *beside])
        return lines

    def scroll_text(self, by: int) -> None:
        """So many lines down, or up if negative; at the end it goes along with the text again."""
        last = max(0, self._num_lines - self._text_height)
        first = max(0, min(last, self._shown_first + by))
        self._first_line = None if first == last and by > 0 else first
        self.redraw()

    @property
    def text_height(self) -> int:
        """Lines of the text that are in sight."""
        return self._text_height

    def on_click(self, event: Click) -> None:
        """On the bar of its life: go to that step."""
        step = self._life.step_at(event.x) if self._life and 1 <= event.y <= 2 else None
        if step is not None:
            self.post_message(GoTo(step))

    def on_mouse_scroll_down(self, event: MouseScrollDown) -> None:
        event.stop()
        self.scroll_text(WHEEL_LINES)

    def on_mouse_scroll_up(self, event: MouseScrollUp) -> None:
        event.stop()
        self.scroll_text(-WHEEL_LINES)

    def _absence(self) -> str:
        """Why there is nothing to show of it."""
        later = self.newest.requests.get(self.request_id or "")
        pending = next((pending for pending in self.pending if pending.request_id == self.request_id), None)
        if later is not None and self.view.trace is not None:
            arrived = later.spans[0].first
            step = self.view.trace.step
            unit = self.view.unit
            return f"In {unit} {step:,} there is no {later.letter} yet: it arrives in {unit} {arrived:,}."
        if pending is not None:
            return f"{printable(pending.label)}: {printable(pending.state)}."
        if self.request_id is not None:
            gone = f"it was refused, or it has been forgotten, as all but the last {MAX_FINISHED} that ended"
            return f"There is nothing to show of it in this step: {gone}."
        return "There is no request yet."

    def _title(self, request: RequestView, width: int) -> list[Part]:
        letter = f" {request.letter} "
        label = fit(request.label, min(MAX_LABEL, cell_len(printable(request.label))))
        state = f"ended: {request.finished.reason}" if request.finished else state_of(request, self.view.trace)
        priority = f" · priority {request.priority}" if request.priority else ""
        arrived = f"sent before poll {request.spans[0].first:,}" if self.view.poll else ""
        about = f" {state} · {arrived or f'arrived in step {request.spans[0].first:,}'}{priority}"
        used = cell_len(f"{letter} {label}{about}")
        parts: list[Part] = [(letter, owner_cell(request.number)), (f" {label}", style(BRIGHT, bold=True))]
        return [*parts, (about, style(TEXT)), *heading("", " · ".join(self.notes), width - used)]

    def _blocks(self, request: RequestView, width: int, height: int) -> list[list[Part]]:
        """Its table: its blocks in the order of its tokens, each with its number, and its fill or how many share it."""
        config = self.view.config
        table = self.view.tables.get(request.request_id, [])
        if config is None or height < 1:
            return []
        shared = sum(len(self.view.holders[block]) > 1 for block in table)
        note = f"{config.block_size} tokens each" + (f" · {shared} shared" if shared else "")
        lines = [heading(f"KV blocks {len(table)}", note, width)]
        if not table:
            lines.append([("holds none", style(DIM))])
            return lines[:height]
        digits = len(str(config.num_usable_blocks))
        size = digits + 1 + CELL + 1
        per_row = max(1, width // size)
        cells: list[list[Part]] = [
            [(f"{block:>{digits}} ", style(TEXT)), *held(self.view, request, index), (" ", style())]
            for index, block in enumerate(table)
        ]
        room = (height - 1) * per_row
        if len(cells) > room > 1:  # the last one is the one that fills up
            left_out = len(cells) - room + 1
            more: list[Part] = [(f"+{left_out}".ljust(size)[:size], style(DIM))]
            cells = [*cells[: room - 2], more, cells[-1]]
        for first in range(0, len(cells), per_row):
            lines.append([part for cell in cells[first : first + per_row] for part in cell])
        return lines[:height]

    def _events(self, request: RequestView, width: int, height: int) -> list[list[Part]]:
        """What happened to it, as many of the newest as fit."""
        mine = [event for event in self.view.events if event.request_id == request.request_id]
        if height < 2 or not mine:
            return []
        return [heading("Events", "", width), *(event_line(event, width) for event in mine[-(height - 1) :])]

    def _text(self, request: RequestView, width: int, height: int) -> list[list[Part]]:
        if height < 1:
            return []
        assert self.view.trace is not None
        text = Transcript(request, self.view.trace.step, max(1, width))
        self._num_lines = text.num_lines + (1 if request.finished else 0)
        self._text_height = max(0, height - 1)
        last = max(0, self._num_lines - self._text_height)
        # With some of what follows below it, if anything does.
        focus = text.focus - self._text_height * 2 // 3 if text.focus < text.num_lines - 1 else last
        first = max(0, min(last, focus if self._first_line is None else self._first_line))
        self._shown_first = first
        below = self._num_lines - first - self._text_height
        counts = [f"{first:,} above" if first else "", f"{below:,} below" if below > 0 else ""]
        hidden = " and ".join(filter(None, counts))
        note = f"{hidden}: PgUp, PgDn" if hidden else ""
        prompt = f"{request.num_prompt_tokens:,} + " if request.num_prompt_tokens else ""
        title = f"Text {prompt}{request.num_output_tokens:,} of {request.max_tokens:,} tokens"
        lines = [text.line(number) for number in range(first, min(text.num_lines, first + self._text_height))]
        if request.finished and len(lines) < self._text_height:
            lines.append([(ended(request.finished), style(BRIGHT))])
        return [heading(title, note, width), *lines]


def _exactly(parts: list[Part], width: int) -> list[Part]:
    """Cut or filled to a width."""
    return [(segment.text, segment.style or style()) for segment in to_strip(parts, width)]
