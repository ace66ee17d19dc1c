"""Help: where to begin, every key, every sign, every panel and every term; all of it can be searched."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical, VerticalScroll
from textual.events import Key
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Input, Static, TabbedContent, TabPane, Tabs

from app.commands import COMMANDS, Command, bindings, shown_keys
from app.glossary import PANELS, TERMS
from app.palette import BRIGHT, CACHED, DECODE, DIM, PREEMPTED, PREFILL, RECOMPUTE, TEXT, WAITING, ink

ABOUT = "A real language model runs here, and each of its steps is shown: what it computed for whom, and why."
BEGIN = (
    ("{short} {long} {burst}", "Send a request: a short one, a long one, or several at once."),
    ("{presets}", "Play a preset: a workload made to show one thing, which says what to watch."),
    ("{long} {long} {long} {long} {burst}", "Ask for more memory than there is: somebody will be preempted (×)."),
    (
        "{previous_preemption}",
        "Go back to the last preemption. The panel Step says who was thrown out, for whom, and what it costs.",
    ),
    ("{why}", "Read all that there is to say about this step, with the words explained."),
    ("{step_back} {step_forward}", "Walk through the steps; all panels show the one that you are at."),
    ("{live} {pause}", "Back to the newest step; let the engine go on."),
    ("{parameters}", "Change the rules while it runs: the budget, the memory, the policy."),
    ("tab {help}", "Choose a panel, and ask what it shows. A click chooses one as well."),
)
"""What to try first, with the commands whose keys do it."""
ABOUT_SERVER = "A server elsewhere is looked at, again and again. What it tells is shown; what it does not tell is not."
BEGIN_SERVER = (
    ("{short} {long} {burst}", "Send it a request: a short one, a long one, or several at once. Only these have rows."),
    ("{previous_preemption}", "Go back to the last preemption that it counted."),
    ("{why}", "Read all that it told in one poll, with the words explained."),
    ("{step_back} {step_forward}", "Walk through the polls; it goes on meanwhile, and so do they."),
    ("{live} {pause}", "Back to the newest poll; stop asking, or go on."),
    ("{faster} {slower}", "Ask more or less often."),
    ("{measures}", "Latency and waste, of all its requests and of yours."),
    ("tab {help}", "Choose a panel, and ask what it shows. A click chooses one as well."),
)
"""The same in front of a server elsewhere."""
SIGNS = (
    ("▪ decode", DECODE, "a request computes one token: the one that it got in the step before."),
    ("█ prefill", PREFILL, "a prompt is computed; a long one in chunks, as the token budget of a step allows."),
    ("▒ recompute", RECOMPUTE, "a preempted request computes again what it had lost."),
    ("× preempted", PREEMPTED, "KV blocks ran out: the request lost its blocks and went back to the queue."),
    ("· waiting", WAITING, "in the queue. The head of it says what it waits for; nobody passes it."),
    ("▼", PREEMPTED, "under the budget and in the history: a request was preempted in that step."),
    ("± ‡", WAITING, "under the budget, in the history and the events: a parameter was changed; ‡ is both."),
    (
        "░",
        CACHED,
        "the prefix cache: tokens that it saved, steps in which it did, and free blocks that it still knows.",
    ),
    ("▦", TEXT, "KV blocks that a request holds."),
    ("▸", DECODE, "in the events: the first token of a request; among the requests: the selected one."),
    ("↺", RECOMPUTE, "in the events: a preempted request is back, and what it has to compute again."),
    ("✓ ■", DECODE, "in the events: a request is done, or was aborted."),
    ("✗", PREEMPTED, "in the events: a server elsewhere does not answer, and why; ↺ it answers again."),
    ("▪ ▣ └", CACHED, "a server's prefix cache: blocks, those stored just now, and what follows the one above."),
    ("a", TEXT, "a request: its letter and its colour are the same everywhere, and its own until it has ended."),
)
SECTIONS = ("Begin", "Keys", "Signs", "Panels", "Terms")


@dataclass(frozen=True, slots=True)
class Row:
    """One thing that is explained."""

    name: str
    text: str
    color: str = BRIGHT

    def has(self, words: Iterable[str]) -> bool:
        return all(word in f"{self.name} {self.text}".casefold() for word in words)


class HelpScreen(ModalScreen[None]):
    """Opens at the panel with the id `topic`, if there is one. Closes on Escape, `?` or `q`.

    `of_server`: what is looked at is a server elsewhere.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        ("escape", "leave", "Close"),
        *bindings("dismiss", "help", "quit"),
        ("right,l", "turn(1)", "Next section"),
        ("left,h", "turn(-1)", "Section before"),
        ("down,j", "scroll(1)", "Down"),
        ("up,k", "scroll(-1)", "Up"),
        ("pagedown,space", "page(1)", "Page down"),
        ("pageup", "page(-1)", "Page up"),
        ("home", "end(-1)", "To the top"),
        ("end", "end(1)", "To the end"),
        ("slash", "search", "Search"),
    ]
    AUTO_FOCUS = ""

    def __init__(
        self,
        commands: Iterable[Command] = COMMANDS,
        keys: Mapping[str, str] | None = None,
        topic: str | None = None,
        *,
        of_server: bool = False,
    ) -> None:
        super().__init__()
        self._about = ABOUT_SERVER if of_server else ABOUT
        self._begin: tuple[tuple[str, str], ...] = BEGIN_SERVER if of_server else BEGIN
        self._commands = tuple(commands)
        self._keys = keys or shown_keys(self._commands)
        self._topic = topic if topic in PANELS else None
        self._input = Input(placeholder="search", compact=True, id="help-search")
        self._found = Static(id="help-found")

    def compose(self) -> ComposeResult:
        self._input.display = False
        with Vertical(id="help") as box:
            box.border_title = "Help"
            box.border_subtitle = "← → sections · / searches · esc closes"
            with TabbedContent(initial=f"help-{'panels' if self._topic else 'begin'}"):
                for section in SECTIONS:
                    with TabPane(section, id=f"help-{section.lower()}"), VerticalScroll(can_focus=False):
                        yield Static(_drawn(section, self.rows(section)))
            with VerticalScroll(id="help-results", can_focus=False):
                yield self._found
            yield self._input

    def on_mount(self) -> None:
        self.query_one(Tabs).can_focus = False
        self.query_one("#help-results").display = False
        self.app.theme_changed_signal.subscribe(self, lambda _: self._draw_again())

    def _draw_again(self) -> None:
        """In the colours of another theme."""
        for section in SECTIONS:
            self.query_one(f"#help-{section.lower()} Static", Static).update(_drawn(section, self.rows(section)))

    def rows(self, section: str) -> Iterator[Row]:
        """All that one section explains."""
        match section:
            case "Begin":
                yield Row("", self._about)
                yield from (Row(hint.format(**self._keys), text, DECODE) for hint, text in self._begin)
            case "Keys":
                yield from (
                    Row(" ".join(_names(command, self._keys[command.name])), command.help, DECODE)
                    for command in self._commands
                    if command.help
                )
                yield Row("ctrl+p", "All commands by name.", DECODE)
                yield Row("tab", "Choose the next panel.", DECODE)
            case "Signs":
                yield from (Row(sign, text, color) for sign, color, text in SIGNS)
            case "Panels":
                # The one that was asked about comes first.
                for panel_id in sorted(PANELS, key=lambda panel_id: panel_id != self._topic):
                    yield Row(PANELS[panel_id].name, PANELS[panel_id].text)
            case "Terms":
                yield from (Row(entry.name, entry.text) for entry in TERMS)

    def action_turn(self, by: int) -> None:
        tabs = self.query_one(TabbedContent)
        sections = [f"help-{section.lower()}" for section in SECTIONS]
        tabs.active = sections[(sections.index(tabs.active) + by) % len(sections)]

    @property
    def _shown(self) -> Widget:
        """What scrolls: the section, or what was found."""
        results = self.query_one("#help-results")
        pane = self.query_one(TabbedContent).active_pane
        return results if results.display or pane is None else pane.query_one(VerticalScroll)

    def action_scroll(self, by: int) -> None:
        self._shown.scroll_relative(y=by, animate=False)

    def action_page(self, by: int) -> None:
        self.action_scroll(by * max(1, self._shown.size.height - 1))

    def action_end(self, direction: int) -> None:
        self.action_scroll(direction * self._shown.virtual_size.height)

    def action_search(self) -> None:
        self._input.display = True
        self.set_focus(self._input)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """What is typed into the search is no command, also if it was on its way before the search had the focus."""
        is_letter = action in ("turn", "scroll", "page", "dismiss", "search")
        return not (is_letter and self.focused is self._input) and super().check_action(action, parameters)

    def take(self, key: Key) -> None:
        """Write what was typed when the search did not have the focus yet."""
        if self.focused is self._input and key.character and key.is_printable:
            self._input.insert_text_at_cursor(key.character)

    def action_leave(self) -> None:
        """One thing at a time: the search, then the help."""
        if not self._input.display:
            self.dismiss()
            return
        self._input.value = ""
        self._input.display = False
        self.set_focus(None)

    def on_input_changed(self, event: Input.Changed) -> None:
        words = event.value.casefold().split()
        self.query_one(TabbedContent).display = not words
        self.query_one("#help-results").display = bool(words)
        found = [(section, [row for row in self.rows(section) if row.has(words)]) for section in SECTIONS]
        parts = [(Text(section, ink(DIM)), _drawn(section, rows), Text()) for section, rows in found if rows]
        nothing = Text("nothing is called like this", ink(DIM))
        self._found.update(Group(*(one for part in parts for one in part)) if parts else nothing)

    def on_input_submitted(self) -> None:
        """Leave the box, so that the keys scroll through what was found."""
        self.set_focus(None)


def _drawn(section: str, rows: Iterable[Row]) -> Table | Group:
    """Short names stand beside their texts, long ones above; what has no name comes first."""
    if section in ("Panels", "Terms"):
        return Group(*(part for row in rows for part in _paragraph(row)))
    rows = list(rows)
    if rows and not rows[0].name:
        return Group(Text(rows[0].text, ink(BRIGHT)), Text(), _drawn(section, rows[1:]))
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(max_width=14)
    table.add_column()
    for row in rows:
        table.add_row(Text(row.name, ink(row.color, bold=True)), Text(row.text, ink(TEXT)))
    return table


def _paragraph(row: Row) -> tuple[Text, Padding]:
    return Text(row.name, ink(row.color, bold=True)), Padding(Text(row.text, ink(TEXT)), (0, 0, 1, 2))


def _names(command: Command, shown: str) -> Iterable[str]:
    """The command's keys as people call them: those whose name is their own character, else the one displayed."""
    plain = [key for key in command.keys.split(",") if len(key) == 1 or key.startswith("ctrl+")]
    return dict.fromkeys([shown, *plain] if len(shown) == 1 else [*plain, shown])
