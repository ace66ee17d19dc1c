"""The table of commands: what a person can do, with which key. Keys, footer, help and palette are made from it."""

from __future__ import annotations

from dataclasses import dataclass

from textual.binding import Binding


@dataclass(frozen=True, slots=True)
class Command:
    """`name` is the app's action of that name. `short` stands in the footer; without it the command is not there."""

    name: str
    keys: str
    key_display: str
    title: str
    help: str
    short: str = ""

    def binding(self) -> Binding:
        return Binding(
            self.keys,
            self.name,
            self.short or self.title,
            show=bool(self.short),
            key_display=self.key_display,
            id=self.name,
        )


COMMANDS = (
    Command("short", "s", "s", "Short request", "Send a short chat prompt.", "short"),
    Command("long", "l", "l", "Long request", "Send a prompt of some 500 tokens.", "long"),
    Command("burst", "b", "b", "Burst", "Send six short requests at once.", "burst"),
    Command("abort", "x", "x", "Abort request", "End the selected request now.", "abort"),
    Command("next", "down,j", "↓", "Next request", "Select the request below; its text is shown."),
    Command("previous", "up,k", "↑", "Previous request", "Select the request above."),
    Command("follow", "escape", "esc", "Follow the first row", "Let the selection stay on the first row again."),
    Command("pause", "space", "space", "Pause or go on", "Stop before the next step, or go on.", "pause"),
    Command("restart", "r", "r", "Restart the engine", "Start an engine that has ended again."),
    Command("screenshot", "S", "S", "Save a picture", "Save the screen as an SVG file in this folder."),
    Command("help", "question_mark", "?", "Help", "Keys, and what the panels show.", "help"),
    Command("quit", "q,ctrl+c", "q", "Quit", "Leave; the engine ends with the dashboard.", "quit"),
    Command("step", "full_stop", ".", "One step", "Run one step while paused.", "step"),
    Command("faster", "plus,equals_sign", "+", "Faster", "More steps a second; at the end, no limit.", "faster"),
    Command("slower", "minus", "-", "Slower", "Fewer steps a second."),
)
