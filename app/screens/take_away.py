"""Take away: as what the run is to be saved."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from app.commands import bindings
from app.export import FORMATS
from app.screens.chooser import Chooser

RECORDING = "recording"
CHOICES = {RECORDING: "Recording, for nanoviz replay", **{name: format.title for name, format in FORMATS.items()}}


class TakeAwayScreen(Chooser[str]):
    """Gives back what was chosen: a name of CHOICES."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *bindings("close", "take_away", "quit"),
    ]

    def __init__(self) -> None:
        super().__init__(OptionList(*(Option(title, id=name) for name, title in CHOICES.items()), id="take-away"))
        self.choices.border_title = "Take away"
        self.choices.border_subtitle = "enter saves · esc closes"

    def compose(self) -> ComposeResult:
        yield self.choices

    def on_option_list_option_selected(self, message: OptionList.OptionSelected) -> None:
        self.dismiss(message.option.id)
