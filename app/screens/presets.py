"""Presets: all demos that there are, to choose one."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from app.commands import bindings
from app.preset import Preset
from app.preset_files import PresetError, available, load
from app.screens.chooser import Chooser
from app.text import printable
from app.words import plural

LEAVE = "leave"
LEAVING = "An empty engine, with the parameters that the program was started with."


class PresetsScreen(Chooser[Preset | Literal["leave"]]):
    """Gives back the chosen preset. One that cannot be read is listed with the reason.

    With `can_leave` there is a row for playing none any more.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        *bindings("close", "presets", "quit"),
    ]

    def __init__(self, *, can_leave: bool) -> None:
        self._found = [(name, _read(path)) for name, path in available().items()]
        options = [_option(index, found) for index, found in enumerate(self._found)]
        if can_leave:
            options.append(Option("    no preset", id=LEAVE))
        super().__init__(OptionList(*options, id="presets-list", markup=False))
        self._moral = Static(id="presets-moral", markup=False)

    def compose(self) -> ComposeResult:
        with Vertical(id="presets") as frame:
            frame.border_title = "Presets"
            frame.border_subtitle = "enter plays it · esc closes"
            yield self.choices
            yield self._moral

    def on_option_list_option_highlighted(self, message: OptionList.OptionHighlighted) -> None:
        if message.option.id == LEAVE:
            self._moral.update(LEAVING)
            return
        name, preset = self._found[message.option_index]
        if isinstance(preset, str):
            self._moral.update(printable(preset))
            return
        needs = "needs real text" if preset.needs_text else f"made for {preset.model}"
        scenes = plural(len(preset.scene), "scene")
        told = " ".join(preset.moral.split())
        self._moral.update(printable(f"{told}\n{scenes} · {needs} · {name}", newlines=True))

    def on_option_list_option_selected(self, message: OptionList.OptionSelected) -> None:
        if message.option.id == LEAVE:
            self.dismiss("leave")
            return
        preset = self._found[message.option_index][1]
        if isinstance(preset, Preset):
            self.dismiss(preset)


def _read(path: Path) -> Preset | str:
    try:
        return load(path)
    except PresetError as error:
        return str(error)


def _option(index: int, found: tuple[str, Preset | str]) -> Option:
    name, preset = found
    if isinstance(preset, str):
        return Option(f"{'✗':>2}  {printable(name)}: it cannot be read")
    return Option(f"{index + 1:>2}  {printable(preset.title)}")
