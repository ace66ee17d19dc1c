"""The detail of a request: over the panels, while the engine goes on and all keys of the dashboard work."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.geometry import Spacing
from textual.screen import Screen
from textual.widgets import Footer
from textual.widgets._footer import FooterKey

from app.commands import COMMANDS
from app.cursor import Cursor
from app.panels.request import RequestPanel
from app.selection import Selection
from app.session import Session

SPOKEN_OF = {"abort": "abort", "only": "only its blocks", "keep": "follow", "previous": "other", "step_back": "past"}
"""Commands that the footer offers while it is open, and what it calls them there."""
OFFERED = {f"app.{command.action}" for command in COMMANDS if command.name in SPOKEN_OF} | {"dismiss"}
"""Their actions, as they are called from this screen."""


class DetailFooter(Footer):
    """Only what belongs to the detail, though all keys of the dashboard work."""

    def compose(self) -> ComposeResult:
        for key in super().compose():
            if isinstance(key, FooterKey) and key.action in OFFERED:
                yield key


class RequestScreen(Screen[None]):
    """No modal screen: time travel, the selection and what is sent are the dashboard's, and go on behind it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter", "dismiss", "close", key_display="esc"),
        *(
            replace(command.binding(), action=f"app.{command.action}", description=SPOKEN_OF[command.name], show=True)
            for command in COMMANDS
            if command.name in SPOKEN_OF
        ),
        Binding("pageup,ctrl+u", "scroll_text(-1)", "Text up", show=False),
        Binding("pagedown,ctrl+d", "scroll_text(1)", "Text down", show=False),
    ]
    AUTO_FOCUS: ClassVar[str | None] = ""

    def __init__(self) -> None:
        super().__init__()
        self.panel = RequestPanel(id="request")
        self._above = 1

    def compose(self) -> ComposeResult:
        yield self.panel
        yield DetailFooter(compact=True, show_command_palette=False)

    def show(self, session: Session, cursor: Cursor, selection: Selection) -> None:
        """Show the selected request as it was at the cursor."""
        self.panel.look_at(selection.request_id)
        self.panel.newest, self.panel.pending = session.view, tuple(session.pending.values())
        notes = {
            "aborting": selection.request_id in session.aborting,
            "followed": not selection.following,
            "only its blocks on the map": selection.only,
        }
        self.panel.notes = tuple(note for note, holds in notes.items() if holds)
        self.panel.show(cursor.view)

    def leave_free(self, lines: int) -> None:
        """So many lines of what is behind it stay in sight at the top; dashboard.tcss says how many at the bottom."""
        self._above = lines
        self._place()

    def on_resize(self) -> None:
        self.call_after_refresh(self._place)

    def _place(self) -> None:
        margin = self.panel.styles.base.margin
        self.panel.styles.margin = Spacing(self._above, margin.right, margin.bottom, margin.left)

    def action_scroll_text(self, pages: int) -> None:
        self.panel.scroll_text(pages * max(1, self.panel.text_height - 1))
