"""Events: what happened to requests and parameters, the newest at the bottom."""

from __future__ import annotations

from itertools import islice

from textual import events

from app.palette import DIM, style
from app.panels.axis import GoTo
from app.panels.panel import Panel, Part, heading
from app.view import EventView
from app.words import happened, plural

RULE = 4
"""Cells that the rule between the title and the note needs at least."""
STEP_WIDTH = 5
"""Of the step's number and the space behind it; longer numbers take more."""


class EventsPanel(Panel):
    """One line each: step, sign, request, what happened. A click on it goes to its step."""

    def draw(self, width: int, height: int) -> list[list[Part]]:
        title, preemptions = "Events", self.view.num_preemptions
        note = "per poll, mine exact" if self.view.server else ""
        if preemptions:
            count, key = plural(preemptions, "preemption"), self.keys["previous_preemption"]
            notes = (f"{count}: {key} goes there", f"{count}: {key}", count)
            note = next((note for note in notes if len(title) + len(note) + RULE <= width), "")
        lines: list[list[Part]] = [event_line(event, width) for event in self._shown(height)]
        return [heading(title, note, width), *(lines or [[("what happens is told here", style(DIM))]])]

    def _shown(self, height: int) -> list[EventView]:
        """The events that fit, from the top."""
        return list(islice(reversed(self.view.events), max(0, height - 1)))[::-1]

    def on_click(self, event: events.Click) -> None:
        shown = self._shown(self.size.height)
        if 0 < event.y <= len(shown):
            self.post_message(GoTo(shown[event.y - 1].step, stay=True))


def event_line(event: EventView, width: int) -> list[Part]:
    """An event with its step, in at most `width` cells."""
    step = f"{event.step:>{STEP_WIDTH - 1}} "
    return [(step, style(DIM)), *happened(event, width - len(step))]
