"""Compare: finished runs side by side, as figures, plots and timelines, over the whole screen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.geometry import Size
from textual.screen import ModalScreen

from app.commands import bindings
from app.comparison.axis import AXIS_KINDS, AxisKind
from app.comparison.page import comparison
from app.palette import BRIGHT, DIM, FAINT, TEXT, style
from app.panels.panel import Panel, Part, wrap_parts
from app.results import wrap_intro
from app.run import Run
from app.text import printable

MOST_DIGITS = 9
NOTHING = (
    "There is no finished run to compare yet: nothing was played to its end. A preset plays several runs of one "
    "workload; what was sent by hand can be played once more under other parameters; nanoviz compare FILE FILE "
    "compares recordings."
)


class ComparePanel(Panel):
    """As high as its lines; the screen scrolls it. They are made once for each width and each thing that is chosen."""

    DEFAULT_CSS = "ComparePanel { height: auto; }"
    can_focus = False

    def __init__(self, runs: Sequence[Run], intro: Sequence[Sequence[Part]], axis: AxisKind) -> None:
        super().__init__(id="compare-text")
        self._runs = tuple(runs)
        self._intro = intro
        self._axis = axis
        self._hidden_runs: frozenset[int] = frozenset()
        self._drawn: list[list[Part]] = []
        self._drawn_for: object = None

    @property
    def axis(self) -> AxisKind:
        return self._axis

    def switch_axis(self) -> None:
        """Seconds instead of steps, or steps instead of seconds."""
        self._axis = AXIS_KINDS[1 - AXIS_KINDS.index(self._axis)]
        self._changed()

    def toggle(self, index: int) -> None:
        """Hide a run, or show it again. Of two there is nothing to hide, and one stays in any case."""
        hidden = self._hidden_runs ^ {index}
        if self.has_choice and index < len(self._runs) and len(hidden) < len(self._runs):
            self._hidden_runs = hidden
            self._changed()

    @property
    def has_choice(self) -> bool:
        """Whether there are so many runs that some can be hidden."""
        return len(self._runs) > 2

    @property
    def num_choices(self) -> int:
        return min(len(self._runs), MOST_DIGITS)

    def forget(self) -> None:
        super().forget()
        self._drawn_for = None

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self.draw(width, 0))

    def draw(self, width: int, height: int) -> list[list[Part]]:
        key = (width, self._axis, self._hidden_runs)
        if self._drawn_for != key:
            self._drawn, self._drawn_for = self._lines_for(width), key
        return self._drawn

    def _lines_for(self, width: int) -> list[list[Part]]:
        lines = [wrapped for line in self._intro for wrapped in wrap_intro(line, width)]
        if lines:
            lines.append([])
        if not self._runs:
            return [*lines, *wrap_parts([(NOTHING, style(DIM))], width)]
        if self.has_choice:
            lines += [*wrap_parts(self._choice(), width), []]
        shown = [run for index, run in enumerate(self._runs) if index not in self._hidden_runs]
        return [*lines, *comparison(shown, width, self._axis)]

    def _choice(self) -> list[Part]:
        """The keys that hide runs, and which are hidden."""
        parts: list[Part] = [("Runs  ", style(DIM))]
        for index, run in enumerate(self._runs[:MOST_DIGITS]):
            is_hidden = index in self._hidden_runs
            parts.append((f"{index + 1} ", style(DIM if is_hidden else BRIGHT, bold=True)))
            parts.append((printable(run.name) + (" (hidden)" if is_hidden else ""), style(DIM if is_hidden else TEXT)))
            parts.append(("   ", style(FAINT)))
        return parts

    def _changed(self) -> None:
        if self.size.width and len(self.draw(self.size.width, 0)) != self.size.height:
            self.refresh(layout=True)
        self.redraw()


class CompareScreen(ModalScreen[None]):
    """Shows these runs, as they are when it opens; over them `intro`, lines that are wrapped to the width.

    The timelines stand on `axis` until somebody wants the other one.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        ("escape", "dismiss", "Close"),
        ("a", "axis", "Seconds or steps"),
        *((str(digit), f"toggle_run({digit - 1})", "Hide or show a run") for digit in range(1, MOST_DIGITS + 1)),
        ("down,j", "scroll(1)", "Down"),
        ("up,k", "scroll(-1)", "Up"),
        ("pagedown,space", "page(1)", "Page down"),
        ("pageup", "page(-1)", "Page up"),
        ("home", "end(-1)", "To the top"),
        ("end", "end(1)", "To the end"),
        *bindings("dismiss", "compare", "quit"),
    ]
    AUTO_FOCUS = ""

    def __init__(
        self,
        runs: Sequence[Run],
        intro: Sequence[Sequence[Part]] = (),
        title: str = "Compare",
        axis: AxisKind = "seconds",
    ) -> None:
        super().__init__()
        self._panel = ComparePanel(runs, intro, axis)
        self._heading = title
        self._has_runs = bool(runs)

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="compare", can_focus=False):
            yield self._panel

    def on_mount(self) -> None:
        self.app.theme_changed_signal.subscribe(self, lambda _: self._panel.redraw())
        self._say_keys()

    def _say_keys(self) -> None:
        box = self.query_one("#compare")
        box.border_title = printable(self._heading).replace("[", r"\[")
        other = next(kind for kind in AXIS_KINDS if kind != self._panel.axis)
        keys = [f"a in {other}"] if self._has_runs else []
        keys += [f"1-{self._panel.num_choices} hide or show"] if self._panel.has_choice else []
        box.border_subtitle = " · ".join([*keys, "esc closes"])

    def action_axis(self) -> None:
        self._panel.switch_axis()
        self._say_keys()

    def action_toggle_run(self, index: int) -> None:
        self._panel.toggle(index)

    def action_scroll(self, by: int) -> None:
        self.query_one("#compare").scroll_relative(y=by, animate=False)

    def action_page(self, by: int) -> None:
        self.action_scroll(by * max(1, self.query_one("#compare").size.height - 1))

    def action_end(self, direction: int) -> None:
        self.action_scroll(direction * self.query_one("#compare").virtual_size.height)
