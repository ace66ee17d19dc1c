"""Panels: which of them are shown."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.screen import ModalScreen
from textual.widgets import OptionList

from app.commands import bindings

TITLES = {
    "budget": "Token budget",
    "requests": "Requests",
    "latency": "Latency",
    "waste": "Waste",
    "step": "Step",
    "blocks": "KV blocks",
    "events": "Events",
    "output": "Output",
    "timeline": "History",
}
"""By the widgets' ids, in the order of the screen."""


class PanelList(OptionList):
    """All panels, with a mark at each that is in `shown`."""

    # Not Textual's list of selections: what is not selected has the same sign there in another colour.
    BINDINGS: ClassVar[list[BindingType]] = [
        ("space", "select", "Show or hide"),
        ("j", "cursor_down", "Next"),
        ("k", "cursor_up", "Previous"),
    ]

    def __init__(self, shown: Iterable[str], *, id: str) -> None:
        self.shown = set(shown)
        super().__init__(*map(self._prompt, TITLES), id=id, markup=False)
        self.border_title = "Panels"
        self.border_subtitle = "space changes · esc done"

    def _prompt(self, panel_id: str) -> str:
        return f"{'✓' if panel_id in self.shown else ' '} {TITLES[panel_id]}"

    def action_select(self) -> None:
        """Show or hide the chosen panel: at once, not by a message, which the next key might overtake."""
        if self.highlighted is not None:
            panel_id = list(TITLES)[self.highlighted]
            self.shown ^= {panel_id}
            self.replace_option_prompt_at_index(self.highlighted, self._prompt(panel_id))


class PanelsScreen(ModalScreen[frozenset[str]]):
    """Gives back the ids of the panels that are to be shown."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "done", "Done"), *bindings("done", "panels", "quit")]

    def __init__(self, shown: Iterable[str]) -> None:
        super().__init__()
        self._list = PanelList(shown, id="panels")

    def compose(self) -> ComposeResult:
        yield self._list

    def action_done(self) -> None:
        """Close, and give back what is marked now."""
        self.dismiss(frozenset(self._list.shown))
