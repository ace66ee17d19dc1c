"""Events: what happened to requests, the newest at the bottom."""

from __future__ import annotations

from itertools import islice

from app.palette import DECODE, DIM, PREEMPTED, TEXT, style
from app.panels.panel import Panel, Part, heading
from app.view import EventView
from app.words import FEWER, ended, letters, plural


class EventsPanel(Panel):
    """One line each: step, sign, request, what happened."""

    def draw(self, width: int, height: int) -> list[list[Part]]:
        preemptions = self.view.num_preemptions
        lines = [heading("Events", plural(preemptions, "preemption") if preemptions else "", width)]
        newest = list(islice(reversed(self.view.events), max(0, height - 1)))
        return lines + [self._line(event) for event in reversed(newest)]

    def _line(self, event: EventView) -> list[Part]:
        line: list[Part] = [(f"{event.step:>4} ", style(DIM))]
        who = letters([event.request_id], self.view)
        match event.kind:
            case "preempted":
                assert event.preemption is not None
                line += [("× ", style(PREEMPTED, bold=True)), *who]
                if event.preemption.cause != "blocks":
                    line.append((f"preempted, {FEWER[event.preemption.cause]} ", style(TEXT)))
                elif event.preemption.for_request_id == event.request_id:
                    line.append(("preempted itself ", style(TEXT)))
                else:
                    line.append(("preempted for ", style(TEXT)))
                    line += letters([event.preemption.for_request_id], self.view)
                line.append((f"{event.preemption.num_lost_tokens:,} tok lost", style(TEXT)))
            case "first token":
                line += [("▸ ", style(DECODE)), *who, ("first token", style(DIM))]
            case "finished" | "aborted":
                assert event.finished is not None
                sign: Part = ("✓ ", style(DECODE)) if event.kind == "finished" else ("■ ", style(PREEMPTED))
                line += [sign, *who, (ended(event.finished), style(TEXT))]
        return line
