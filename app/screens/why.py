"""Why: all that there is to say about one step, and what the words in it mean."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.geometry import Size
from textual.screen import ModalScreen

from app.commands import COMMANDS, bindings
from app.glossary import term
from app.palette import BRIGHT, DIM, style
from app.panels.panel import Panel, Part, heading, wrap_parts
from app.server_words import told
from app.view import EngineView
from app.words import explain
from engine.trace import StepTrace

TRAVEL = (
    *("step_back", "step_forward", "back_ten", "forward_ten", "first", "live"),
    *("previous_preemption", "next_preemption", "step", "pause"),
)
"""Commands that lead to another step: their keys work here as well."""


class WhyPanel(Panel):
    """As high as its text; the screen scrolls it."""

    DEFAULT_CSS = "WhyPanel { height: auto; }"
    can_focus = False

    def show(self, view: EngineView) -> None:
        self.view = view
        if self.size.width and len(self.draw(self.size.width, 0)) != self.size.height:
            self.refresh(layout=True)
        self.redraw()

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self.draw(width, 0))

    def draw(self, width: int, height: int) -> list[list[Part]]:
        trace = self.view.trace
        if trace is None:
            return [heading("Why", "esc closes", width), [("no step yet", style(DIM))]]
        note = f"{self.keys['step_back']} {self.keys['step_forward']} other steps · esc closes"
        lines = [heading(f"Why: {self.view.unit} {trace.step:,}", note, width)]
        for sentence in told(trace, trace.poll, self.view) if trace.poll else explain(trace, self.view):
            lines += wrap_parts(sentence, width, indent=2)
        lines.append([])
        for entry in filter(None, map(term, dict.fromkeys(_terms(trace)))):
            parts = [(f"{entry.name}: ", style(BRIGHT, bold=True)), (entry.text, style(DIM))]
            lines += wrap_parts(parts, width, indent=2)
        return lines


class WhyScreen(ModalScreen[None]):
    """Stays open while one walks through the history. `keys` are what the screen calls the keys of the commands."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("escape", "dismiss", "Close"),
        ("down,j", "scroll(1)", "Down"),
        ("up,k", "scroll(-1)", "Up"),
        ("pagedown", "scroll(10)", "Page down"),
        ("pageup", "scroll(-10)", "Page up"),
        *(replace(c.binding(), action=f"travel({c.action!r})") for c in COMMANDS if c.name in TRAVEL),
        *bindings("dismiss", "why", "quit"),
    ]
    AUTO_FOCUS = ""

    def __init__(self, keys: dict[str, str]) -> None:
        super().__init__()
        self._panel = WhyPanel(id="why-text", keys=keys)

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="why", can_focus=False):
            yield self._panel

    def show(self, view: EngineView) -> None:
        """Say what there is to say about the step of this view."""
        self._panel.show(view)

    async def action_travel(self, action: str) -> None:
        self.query_one("#why").scroll_home(animate=False)
        await self.app.run_action(action)

    def action_scroll(self, by: int) -> None:
        self.query_one("#why").scroll_relative(y=by, animate=False)


def _terms(trace: StepTrace) -> Iterator[str]:
    """The terms that one has to know to follow the sentences about this step."""
    if trace.poll:
        yield "poll"
    if trace.preemptions or (trace.poll and trace.poll.num_preemptions):
        yield "preemption"
    if trace.poll and (trace.poll.num_hit_tokens or trace.poll.prefix_known):
        yield "prefix cache"
    kinds = {item.kind for item in trace.scheduled}
    yield from (kind for kind in ("recompute", "prefill", "decode") if kind in kinds)
    cuts = {item.cut_by for item in trace.scheduled}
    reason = trace.blocked.reason if trace.blocked else None
    if any(item.chunk for item in trace.scheduled) or reason == "chunking":
        yield "chunked prefill"
    if "budget" in cuts or reason in ("budget", "chunking"):
        yield "token budget"
    if "threshold" in cuts:
        yield "long_prefill_token_threshold"
    if any(item.num_cached_tokens for item in trace.scheduled):
        yield "prefix cache"
    if reason == "seats":
        yield "seats"
    if trace.preemptions or reason in ("blocks", "reserved"):
        yield "KV block"
    if trace.blocked and reason == "blocks" and trace.blocked.kept:
        yield "watermark"
    if trace.new_token_ratio is not None:
        yield "new_token_ratio"
    if trace.blocked:
        yield "admission"
    if reason in ("reserved", "batch", "room", "full") or any(item.reason != "budget" for item in trace.unserved):
        yield trace.config.policy
