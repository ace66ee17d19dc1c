"""The parameter panel: every parameter, what it is now, and keys that change it while the engine runs behind it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from string import ascii_letters, digits
from typing import ClassVar

from rich.cells import cell_len
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input

from app.commands import Command
from app.palette import BRIGHT, DECODE, DIM, PREEMPTED, TEXT, WAITING, style
from app.panels.panel import Panel, Part, heading, wrap_parts
from app.parameters import PARAMETERS, SPEED, Parameter, Parameters
from app.text import fit, printable
from app.words import value as shown

Turn = Callable[[str, int], None]
Enter = Callable[[str, str], None]

MIN_ROWS = 4
"""Of the parameters, whatever there is to say about them."""
MARKER, ARROW = 2, 2
"""Cells at the left of a row, and at either side of a value."""
MOST_TYPED = 24
TYPED = f"{ascii_letters}{digits}_.+-"
"""What values are made of."""
KEYS = (("↑↓", "choose"), ("←→", "change"), ("0-9", "type"), ("esc", "close"))
TYPING_KEYS = (("enter", "send"), ("esc", "leave it"))
OWN_KEYS = frozenset((*digits, "up", "down", "j", "k", "left", "right", "enter", "escape"))


class ParameterList(Panel):
    """All parameters as rows, and below them what there is to know about the chosen one."""

    can_focus = False
    ALLOW_MAXIMIZE = False

    def __init__(self, parameters: Parameters, turn: Turn, reset_key: str, *, id: str) -> None:
        super().__init__(id=id)
        self.parameters = parameters
        self._turn = turn
        self._reset_key = reset_key
        self.speed = 0.0
        self.note = ""
        """Why answers do not come at once."""
        self.typing = False
        self._chosen = 0
        self._first = 0
        """The row at the top, where there is no room for all."""
        self._num_rows = 0

    @property
    def chosen(self) -> Parameter:
        return PARAMETERS[self._chosen]

    @property
    def is_chosen_fixed(self) -> bool:
        return self._is_fixed(self.chosen)

    def choose(self, index: int) -> None:
        self._chosen = max(0, min(len(PARAMETERS) - 1, index))
        self.parameters.message = ""  # it spoke of another one
        self.redraw()

    def move(self, by: int) -> None:
        """Choose the row so many below, or above."""
        self.choose(self._chosen + by)

    def turn(self, by: int) -> None:
        """Ask for the chosen one's next value, up (`by` = 1) or down (-1)."""
        self._turn(self.chosen.name, by)

    def on_click(self, event: events.Click) -> None:
        event.stop()
        index = self._first + event.y - 1
        if not (1 <= event.y <= self._num_rows and index < len(PARAMETERS)):
            return
        if index != self._chosen:
            self.choose(index)
        elif event.x >= self.size.width - ARROW:
            self.turn(1)
        elif event.x >= self.size.width - 2 * ARROW - _width(self._value(index, self.size.width)):
            self.turn(-1)

    def on_mouse_scroll_down(self) -> None:
        self.move(1)

    def on_mouse_scroll_up(self) -> None:
        self.move(-1)

    def draw(self, width: int, height: int) -> list[list[Part]]:
        notes = self._notes(width, height - 1 - MIN_ROWS)
        self._num_rows = max(1, min(len(PARAMETERS), height - 1 - len(notes)))
        self._first = max(self._first, self._chosen - self._num_rows + 1)
        self._first = max(0, min(self._first, self._chosen, len(PARAMETERS) - self._num_rows))
        rows = PARAMETERS[self._first : self._first + self._num_rows]
        note = "as the server was started" if self.parameters.is_elsewhere else f"{self._reset_key} resets all"
        if len(rows) < len(PARAMETERS):
            note = f"{self._chosen + 1} of {len(PARAMETERS)} · {note}"
        lines = [heading(" Parameters", note, width)]
        lines += [self._row(index, width) for index, _ in enumerate(rows, self._first)]
        blank = height - len(lines) - len(notes)
        return [*lines, *([[]] * blank), *notes]

    def _row(self, index: int, width: int) -> list[Part]:
        parameter = PARAMETERS[index]
        is_chosen = index == self._chosen
        is_quiet = self._is_fixed(parameter) or self.parameters.is_ignored(parameter.name)
        look = style(BRIGHT, bold=True) if is_chosen else style(DIM if is_quiet else TEXT)
        value = self._value(index, width)
        left, right = ("◂ ", " ▸") if is_chosen and not self._is_fixed(parameter) else ("", "")
        room = width - MARKER - len(left) - _width(value) - ARROW
        name = _label(index)
        if len(name) >= room:
            name = f"{name[: room - 2]}…"
        line: list[Part] = [("▸ " if is_chosen else "  ", look), (fit(name, room), look)]
        return [*line, (left, style(DECODE)), *value, (right, style(DECODE))]

    def _is_fixed(self, parameter: Parameter) -> bool:
        return parameter.is_fixed or (self.parameters.is_elsewhere and parameter.name != SPEED)

    def _value(self, index: int, width: int) -> list[Part]:
        """What it is; and what it was at the start, or what it was asked to be."""
        parameter = PARAMETERS[index]
        name = parameter.name
        if name == SPEED:
            text = _speed_text(self.speed, of_server=self.parameters.is_elsewhere)
            return [(text, style(TEXT, bold=True))]
        if name in self.parameters.unknown:
            return [("not told", style(DIM))]
        now, start = getattr(self.parameters.config, name), getattr(self.parameters.start, name)
        if parameter.is_fixed and not self.parameters.is_elsewhere:
            return [(f"{shown(now)}, needs a restart", style(DIM))]
        asked = self.parameters.asked(name)
        if asked is not None and asked != now:
            room = width - MARKER - len(_label(index)) - 1 - 2 * ARROW
            texts = (f"{shown(now)}, asked for {shown(asked)}", f"asked for {shown(asked)}", f"asked {shown(asked)}")
            text = next((text for text in texts if len(text) <= room), texts[-1])
            return [(text, style(WAITING, bold=True))]
        if now == start:
            return [(shown(now), style(TEXT, bold=True))]
        return [(f"{shown(start)} → ", style(DIM)), (shown(now), style(BRIGHT, bold=True))]

    def _notes(self, width: int, room: int) -> list[list[Part]]:
        """The chosen one explained, and why something was refused; that in full, also if there is little room."""
        said: list[list[Part]] = []
        if self.parameters.message:
            said = _paragraph("✗ ", self.parameters.message, PREEMPTED, width)
        elif not self.parameters.is_elsewhere:
            for warning in self.parameters.config.warnings():
                said += _paragraph("! ", warning, WAITING, width)
        if self.note:
            said += _paragraph("… ", self.note, WAITING, width)
        keys = TYPING_KEYS if self.typing else KEYS
        hint = [part for key, does in keys for part in ((f" {key}", style(DECODE)), (f" {does}", style(DIM)))]
        end: list[list[Part]] = [*said, hint]
        name = self.chosen.name
        text = f": {self.chosen.help}"
        if name != SPEED and (start := getattr(self.parameters.start, name)) != getattr(self.parameters.config, name):
            text += f"; it was {shown(start)} at the start"
        if self.parameters.is_ignored(name):
            text += f"; policy {self.parameters.config.policy} ignores it"
        help = wrap_parts([(f" {name}", style(BRIGHT, bold=True)), (text, style(TEXT))], width - 1, indent=1)
        spare = room - len(end)
        return [*([[]] if spare > len(help) else []), *help[: max(0, spare)], *end]


class ValueInput(Input):
    """Takes a character also from a key that was on its way before this had the focus."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(character, f"screen.type({character!r})", show=False) for character in TYPED
    ]

    def __init__(self, *, id: str) -> None:
        allowed = f"[{re.escape(TYPED)}]*"
        super().__init__(compact=True, max_length=MOST_TYPED, restrict=allowed, select_on_focus=False, id=id)

    async def action_submit(self) -> None:
        """At once, not by a message, which the next key might overtake."""
        assert isinstance(self.screen, ParametersScreen)
        self.screen.send_value(self.value)


class ParametersScreen(ModalScreen[None]):
    """Lies over the lower right, so that budget, requests and step are seen. Keys that it has no use for go through.

    What it is told to change it passes on at once, so that keys take effect in their order: `turn` gets a name and a
    direction, `enter` a name and what was typed. What has become of it `show` draws.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        ("down,j", "move(1)", "Next"),
        ("up,k", "move(-1)", "Previous"),
        ("right", "turn(1)", "More"),
        ("left", "turn(-1)", "Less"),
        ("enter", "type('')", "Type a value"),
        *((digit, f"type({digit!r})", "Type a value") for digit in digits),
        ("escape", "leave", "Close"),
    ]
    AUTO_FOCUS = ""

    def __init__(
        self, parameters: Parameters, commands: Iterable[Command], reset_key: str, turn: Turn, enter: Enter
    ) -> None:
        super().__init__()
        for command in commands:  # those that have a key which means nothing else here; what opens the panel closes it
            action = "dismiss" if command.name in ("parameters", "quit") else f"app.{command.action}"
            for key in set(command.binding().key.split(",")) - OWN_KEYS:
                self._bindings.bind(key, action, show=False)
        parameters.message = ""
        self._enter = enter
        self._list = ParameterList(parameters, turn, reset_key, id="parameter-list")
        self._input = ValueInput(id="parameter-value")

    def compose(self) -> ComposeResult:
        self._input.display = False
        with Vertical(id="parameters"):
            yield self._list
            yield self._input

    def show(self, speed: float, note: str) -> None:
        """Draw the parameters as they are now; `note` says why answers do not come at once."""
        self._list.speed, self._list.note = speed, note
        self._list.redraw()

    def on_click(self, event: events.Click) -> None:
        """A click beside the panel closes it; those on it do not come here."""
        if self.get_widget_at(event.screen_x, event.screen_y)[0] is self:
            self.dismiss()

    def action_move(self, by: int) -> None:
        self._stop_typing()
        self._list.move(by)

    def action_turn(self, by: int) -> None:
        self._list.turn(by)

    def action_type(self, text: str) -> None:
        """Type a value, or begin to; what cannot be changed says so at once."""
        if self._list.is_chosen_fixed:
            self._list.turn(1)
            return
        if not self._list.typing:
            self._list.typing = self._input.display = True
            self._input.clear()
            self._list.redraw()
        self.set_focus(self._input)
        self._input.insert_text_at_cursor(text)

    def action_leave(self) -> None:
        """One thing at a time: what is being typed, then the panel."""
        if self._list.typing:
            self._stop_typing()
        else:
            self.dismiss()

    def send_value(self, value: str) -> None:
        """What was typed is complete."""
        self._stop_typing()
        if value:
            self._enter(self._list.chosen.name, value)

    def _stop_typing(self) -> None:
        self._list.typing = self._input.display = False
        self.set_focus(None)
        self._list.redraw()


def _label(index: int) -> str:
    """A parameter's name; of one that only adds to the name above it, what it adds."""
    name, above = PARAMETERS[index].name, PARAMETERS[index - 1].name
    return f"  …{name.removeprefix(above)}" if name.startswith(f"{above}_") else name


def _width(parts: Iterable[Part]) -> int:
    return sum(cell_len(text) for text, _ in parts)


def _paragraph(sign: str, text: str, color: str, width: int) -> list[list[Part]]:
    parts: list[Part] = [(f" {sign}", style(color, bold=True)), (printable(text), style(color))]
    return wrap_parts(parts, width - 1, indent=3)


def _speed_text(speed: float, *, of_server: bool) -> str:
    if of_server:
        return f"{speed:g} polls/s" if speed else "as usual"
    return f"{speed:g} steps/s" if speed else "no limit"
