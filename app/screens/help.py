"""Help: every key, and how to read the panels."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from app.commands import COMMANDS, Command
from app.palette import BRIGHT, CACHED, DECODE, PREEMPTED, PREFILL, RECOMPUTE, TEXT, WAITING

SIGNS = (
    ("▪ decode", DECODE, "a request computes one token: the one that it got in the step before."),
    ("█ prefill", PREFILL, "a prompt is computed; a long one in chunks, as the token budget of a step allows."),
    ("▒ recompute", RECOMPUTE, "a preempted request computes again what it had lost."),
    ("× preempted", PREEMPTED, "KV blocks ran out: the request lost its blocks and went back to the queue."),
    ("· waiting", WAITING, "in the queue. The head of it says what it waits for; nobody passes it."),
    ("▼", PREEMPTED, "under the budget: a request was preempted in that step."),
    ("░", CACHED, "the prefix cache: tokens that it saved, and free blocks whose content it still knows."),
    ("▦", TEXT, "KV blocks that a request holds."),
)
PANELS = (
    ("Token budget", TEXT, "A column is a step, its height the tokens computed in it; the dotted line is the budget."),
    (
        "Requests",
        TEXT,
        "Rows in the scheduler's order, lives in the budget's columns. 12/60: output; in blue or orange: computed.",
    ),
    ("Step", TEXT, "Who got how much of the newest step's budget, and why not more."),
    ("KV blocks", TEXT, "Every block of the cache: the letter of who holds it, how full it is, how many share it."),
)


class HelpScreen(ModalScreen[None]):
    """Closes on Escape, `?` or `q`."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,question_mark,q", "dismiss", "Close")]

    def compose(self) -> ComposeResult:
        keys = [(" ".join(_names(command)), DECODE, command.help) for command in COMMANDS]
        keys.append(("ctrl+p", DECODE, "All commands by name."))
        with VerticalScroll(id="help") as scroll:
            scroll.border_subtitle = "Escape closes this"
            for title, rows in (("Keys", keys), ("Signs", SIGNS), ("Panels", PANELS)):
                yield Static(_table(title, rows))


def _table(title: str, rows: Iterable[tuple[str, str, str]]) -> Table:
    table = Table(
        "", "", title=Text(title, f"bold {BRIGHT}"), title_justify="left", show_header=False, box=None, padding=(0, 1)
    )
    for name, color, meaning in rows:
        table.add_row(Text(name, f"bold {color}"), Text(meaning, TEXT))
    return table


def _names(command: Command) -> Iterable[str]:
    """The command's keys as people call them: those whose name is their own character, else the one displayed."""
    plain = [key for key in command.keys.split(",") if len(key) == 1 or key.startswith("ctrl+")]
    return dict.fromkeys(
        [command.key_display, *plain] if len(command.key_display) == 1 else [*plain, command.key_display]
    )
