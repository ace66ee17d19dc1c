"""Chooser: a screen with a list of which one row is chosen, the same keys wherever there is one."""

from __future__ import annotations

from typing import ClassVar, TypeVar

from textual.binding import BindingType
from textual.screen import ModalScreen
from textual.widgets import OptionList

Chosen = TypeVar("Chosen")


class Chooser(ModalScreen[Chosen]):
    """`choices` is the list; a subclass puts it on the screen, and gives back what was chosen."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("escape", "close", "Close"),
        ("j", "move(1)", "Next"),
        ("k", "move(-1)", "Previous"),
    ]

    def __init__(self, choices: OptionList) -> None:
        super().__init__()
        self.choices = choices

    def on_resize(self) -> None:
        """On a screen that was too small for the list it has lost the focus."""
        self.call_after_refresh(self.set_focus, self.choices)

    def action_move(self, by: int) -> None:
        if by > 0:
            self.choices.action_cursor_down()
        else:
            self.choices.action_cursor_up()

    def action_close(self) -> None:
        self.dismiss()
