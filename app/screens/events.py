"""Events: the list of all that are kept, to go to the step of one."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from app.commands import bindings
from app.palette import BRIGHT, style
from app.panels.events import event_line
from app.screens.chooser import Chooser
from app.screens.rich_text import rich_text
from app.view import EventView

LINE_WIDTH = 72
MARGIN = 14
"""Cells of the screen's width that a line of the list does not have."""
MOST = 1_000
"""Rows of the list; Textual's takes longer for each the more there are."""


class EventOption(Option):
    """A row of the list."""

    def __init__(self, prompt: Text, event: EventView) -> None:
        super().__init__(prompt)
        self.event = event


class EventsScreen(Chooser[int]):
    """The events of all steps that are kept, as it was when the screen was opened. Gives back the chosen one's step.

    `here` is the step that is shown: the last event up to it is chosen first. Of more than MOST those around it are
    listed.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        *bindings("close", "events", "quit"),
        ("p", "filter", "Preemptions only"),
    ]

    def __init__(self, events: Iterable[EventView], here: int) -> None:
        super().__init__(OptionList(id="events-list", markup=False))
        self._events = tuple(events)
        self._here = here
        self._only_preemptions = False
        self._marked: int | None = None

    def compose(self) -> ComposeResult:
        yield self.choices

    def on_mount(self) -> None:
        self._fill()
        self.app.theme_changed_signal.subscribe(self, lambda _: self._fill())

    def _fill(self) -> None:
        """List the events, and choose the last one up to the step that one looks at."""
        only = self._only_preemptions
        found = [event for event in self._events if event.kind == "preempted" or not only]
        here = bisect_right(found, self._here, key=lambda event: event.step) - 1
        first = max(0, min(here - MOST // 2, len(found) - MOST))
        listed = found[first : first + MOST]
        self._marked = None
        title = "Preemptions, newest last" if only else "Events, newest last"
        some = f": {first + 1:,} to {first + MOST:,} of {len(found):,}" if len(found) > MOST else ""
        self.choices.border_title = title + some
        other = "all events" if only else "only preemptions"
        self.choices.border_subtitle = f"enter goes there · p {other} · esc closes"
        if not listed:
            nothing = "nobody was preempted" if only else "nothing has happened yet"
            self.choices.set_options([Option(nothing, disabled=True)])
            return
        self.choices.set_options(EventOption(self._prompt(event), event) for event in listed)
        self.choices.highlighted = max(0, here - first)

    def _prompt(self, event: EventView, *, marked: bool = False) -> Text:
        mark = ("▸" if marked else " ", style(BRIGHT, bold=True))
        width = min(LINE_WIDTH, self.app.size.width - MARGIN)
        return rich_text([mark, *event_line(event, width)])

    def on_option_list_option_highlighted(self, message: OptionList.OptionHighlighted) -> None:
        """A sign marks the chosen one as well: there may be no colours."""
        index, chosen = message.option_index, message.option
        # The list may be another one by now.
        if self._option(index) is not chosen or not isinstance(chosen, EventOption):
            return
        before = self._option(self._marked)
        if self._marked is not None and isinstance(before, EventOption):
            self.choices.replace_option_prompt_at_index(self._marked, self._prompt(before.event))
        self._marked = index
        self._here = chosen.event.step
        self.choices.replace_option_prompt_at_index(index, self._prompt(chosen.event, marked=True))

    def _option(self, index: int | None) -> Option | None:
        return None if index is None or index >= self.choices.option_count else self.choices.get_option_at_index(index)

    def on_option_list_option_selected(self, message: OptionList.OptionSelected) -> None:
        if isinstance(message.option, EventOption):
            self.dismiss(message.option.event.step)

    def action_filter(self) -> None:
        """Between all events and only the preemptions."""
        self._only_preemptions = not self._only_preemptions
        self._fill()
