"""Output: the text of the selected request, its newest piece marked."""

from __future__ import annotations

from app.palette import BACKGROUND, BRIGHT, DECODE, DIM, TEXT, style
from app.panels.panel import Panel, Part, heading
from app.text import printable, wrap
from app.view import RequestView
from app.words import ended
from engine.trace import StepTrace

WIDE = 38
"""Columns from which the heading has room for more than the state."""
SMALL = 4
"""Lines up to which the text needs the one that the prompt would take."""


class OutputPanel(Panel):
    """The end of the text, as much as fits. Whatever stands in it, it is drawn as plain characters."""

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self.selected: str | None = None

    def draw(self, width: int, height: int) -> list[list[Part]]:
        request = self.view.requests.get(self.selected) if self.selected else None
        if request is None:
            note = "not in a step yet" if self.selected else "the selected request's text"
            return [heading("Output", "", width), [(note, style(DIM))]]
        state = f"{request.letter} · {state_of(request, self.view.trace)}{' · exact' if self.view.poll else ''}"
        lines = [heading("Output", state + (_costs(request) if width >= WIDE else ""), width)]
        if height > SMALL:
            beginning = " ".join(request.prompt[: 2 * width].split())
            lines.append([("› " + printable(beginning), style(DIM))])
        room = max(1, height - len(lines))
        return lines + self._text(request, width, room)[-room:]

    def _text(self, request: RequestView, width: int, height: int) -> list[list[Part]]:
        """At least the last `height` lines of the text; paragraphs that end before them are not even looked at.

        They begin with a whole paragraph: begun anywhere else, the lines would break anew with every token.
        """
        begin = request.text.rfind("\n", 0, max(0, len(request.text) - (height + 1) * width)) + 1
        wrapped = wrap(request.text[begin:], width)
        lines: list[list[Part]] = [[(line, style(TEXT))] for line in wrapped]
        trace = self.view.trace
        is_fresh = trace is not None and request.last_step == trace.step and request.finished is None
        fresh = printable(request.last_text.rsplit("\n", 1)[-1]).lstrip()  # its space may have become a line end
        if is_fresh and fresh and wrapped[-1].endswith(fresh):
            kept = wrapped[-1][: -len(fresh)]
            lines[-1] = [(kept, style(TEXT)), (fresh, style(BACKGROUND, DECODE, bold=True))]
        elif not request.text:
            lines = [[("no text yet", style(DIM))]]
        if request.finished:
            lines.append([(ended(request.finished), style(BRIGHT))])
        return lines


def state_of(request: RequestView, trace: StepTrace | None) -> str:
    """What a request does in the step that is shown, in a word."""
    if request.finished:
        return request.finished.reason
    if trace is not None and request.request_id in trace.running:
        return request.last.kind if request.last and request.is_prefilling else "decode"
    if trace is not None and trace.poll:
        return "no token yet"
    return "preempted" if request.preempted_at else "waiting"


def _costs(request: RequestView) -> str:
    """What the prefix cache saved at its last admission, and what preemptions made it compute again, in tokens."""
    cached = f" · {request.num_cached_tokens} cached" if request.num_cached_tokens else ""
    redone = f" · {request.num_recomputed_tokens} redone" if request.num_recomputed_tokens else ""
    return cached + redone
