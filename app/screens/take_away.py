"""Take away: as what the run is to be saved."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.screen import ModalScreen
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from app.commands import bindings
from app.export import FORMATS

RECORDING = "recording"
CHOICES = {RECORDING: "Recording, for nanoviz replay", **{name: format.title for name, format in FORMATS.items()}}


class TakeAwayScreen(ModalScreen[str]):
    """Gives back what was chosen: a name of CHOICES."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("escape", "close", "Close"),
        *bindings("close", "take_away", "quit"),
        ("j", "move(1)", "Next"),
        ("k", "move(-1)", "Previous"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._list = OptionList(*(Option(title, id=name) for name, title in CHOICES.items()), id="take-away")
        self._list.border_title = "Take away"
        self._list.border_subtitle = "enter saves · esc closes"

    def compose(self) -> ComposeResult:
        yield self._list

    def on_option_list_option_selected(self, message: OptionList.OptionSelected) -> None:
        self.dismiss(message.option.id)

    def on_resize(self) -> None:
        """On a screen that was too small for the list it has lost the focus."""
        self.call_after_refresh(self.set_focus, self._list)

    def action_move(self, by: int) -> None:
        if by > 0:
            self._list.action_cursor_down()
        else:
            self._list.action_cursor_up()

    def action_close(self) -> None:
        self.dismiss()
