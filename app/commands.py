"""The table of commands: what a person can do, with which key. Keys, footer, help and palette are made from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal

from textual.binding import Binding
from textual.keys import format_key

from app.preset import MAX_SCENES

LEAVE = "ctrl+c"
"""The key that leaves on every screen, whatever has the focus and whatever the settings say."""


Fact = Literal["a step", "a request", "a preemption", "can send", "can play", "in the past", "paused", "failed"]


@dataclass(frozen=True, slots=True)
class Command:
    """`short` stands in the footer; without it the command is not there.

    Of several that differ in a number, only the first has a `help`.
    """

    name: str
    """What the settings file calls it."""
    keys: str
    """Textual's names of its keys, with commas between them; the screen shows the first."""
    title: str
    help: str
    short: str = ""
    when: Fact | None = None
    """What must be so for it to be of use in the footer; its key works always."""
    renamed: tuple[Fact, str] | None = None
    """While this is so, the footer calls it that."""
    call: str = ""
    """The app's action and its arguments, where the action is not simply called like the command."""

    @property
    def action(self) -> str:
        return self.call or self.name

    @property
    def key_display(self) -> str:
        return displayed(self.keys.split(",")[0])

    def binding(self) -> Binding:
        """For the app; LEAVE it binds itself, in another way."""
        return Binding(
            ",".join(key for key in self.keys.split(",") if key != LEAVE),
            self.action,
            self.short or self.title,
            show=bool(self.short),
            id=self.name,
        )


COMMANDS = (
    Command("short", "s", "Short request", "Send a short chat prompt.", "short", "can send", call="inject('short')"),
    Command(
        "long",
        "l",
        "Long request",
        "Send a prompt of some 500 tokens.",
        "long",
        "can send",
        call="inject('long')",
    ),
    Command("burst", "b", "Burst", "Send six short requests at once.", "burst", "can send", call="inject('burst')"),
    Command(
        "pair",
        "d",
        "Double",
        "Send two requests that begin alike: the second can hit the first one's blocks.",
        call="inject('pair')",
    ),
    Command(
        "urgent",
        "u",
        "Urgent request",
        "Send a short request of high priority, for policy priority.",
        call="inject('urgent')",
    ),
    Command("prompt", "i", "Own prompt", "Write or paste a prompt of your own, and send it.", "prompt", "can send"),
    Command("again", "a", "Again", "Send what was sent last once more."),
    Command(
        "more_load",
        "greater_than_sign",
        "More load",
        "Let more requests arrive by themselves, at random.",
        call="load(1)",
    ),
    Command(
        "less_load",
        "less_than_sign",
        "Less load",
        "Let fewer requests arrive by themselves; at the end none.",
        call="load(-1)",
    ),
    Command(
        "presets",
        "D",
        "Presets",
        "Play a preset: a workload that shows one thing, and says what to watch.",
        "presets",
        "can play",
    ),
    *(
        Command(
            f"scene_{number}",
            str(number),
            f"Scene {number}",
            "Play the first scene of the preset from its start; 2 to 9 the others." if number == 1 else "",
            call=f"scene({number})",
        )
        for number in range(1, MAX_SCENES + 1)
    ),
    Command("once_more", "N", "Once more", "Play it from the start, with the parameters that are in force now."),
    Command("abort", "x", "Abort request", "End the selected request now.", "abort", "a request"),
    Command("detail", "enter", "Request", "Show all that is known of the selected request.", "detail", "a request"),
    Command("only", "o", "Only its blocks", "Let the selected request's KV blocks stand out on the map, or all."),
    Command("keep", "f", "Follow request", "Let the selection stay on this request, or with the first row again."),
    Command("next", "down,j", "Next request", "Select the request below; its text is shown.", call="select(1)"),
    Command("previous", "up,k", "Previous request", "Select the request above.", call="select(-1)"),
    Command("follow", "escape", "Let go", "Back to the newest step; there, let the selection stay on the first row."),
    Command(
        "pause",
        "space",
        "Pause or go on",
        "Stop before the next step, or go on.",
        "pause",
        renamed=("paused", "go on"),
    ),
    Command("step", "full_stop", "One step", "Run one step while paused.", "step"),
    Command(
        "faster", "plus,equals_sign", "Faster", "More steps a second; at the end, no limit.", "faster", call="speed(1)"
    ),
    Command("slower", "minus", "Slower", "Fewer steps a second.", call="speed(-1)"),
    Command("step_back", "left", "Step back", "Show the step before, and pause.", "back", "a step", call="travel(-1)"),
    Command(
        "step_forward", "right", "Step forward", "Show the step after.", "forward", "in the past", call="travel(1)"
    ),
    Command("back_ten", "H,shift+left", "Ten steps back", "Show the step ten before.", call="travel(-10)"),
    Command("forward_ten", "L,shift+right", "Ten steps forward", "Show the step ten after.", call="travel(10)"),
    Command("first", "home", "Oldest step", "Show the oldest step that is kept."),
    Command("live", "end", "Newest step", "Show the newest step again.", "live", "in the past"),
    Command(
        "previous_preemption",
        "left_square_bracket",
        "Preemption before",
        "Show the last preemption before.",
        "preempted",
        "a preemption",
        call="seek_preemption(-1)",
    ),
    Command(
        "next_preemption",
        "right_square_bracket",
        "Preemption after",
        "Show the next preemption.",
        "next",
        "in the past",
        call="seek_preemption(1)",
    ),
    Command("events", "e", "Events", "List what has happened, and go back to any of it.", "events", "a step"),
    Command("why", "w", "Why", "Pause, and say all that there is to say about this step.", "why", "a step"),
    Command("compare", "c", "Compare", "Show finished runs side by side."),
    Command("parameters", "p", "Parameters", "Show all parameters, and change them while it runs.", "params"),
    Command(
        "less_budget",
        "left_curly_bracket",
        "Smaller budget",
        "Halve max_num_batched_tokens, a step's budget.",
        call="turn('max_num_batched_tokens', -1)",
    ),
    Command(
        "more_budget",
        "right_curly_bracket",
        "Larger budget",
        "Double max_num_batched_tokens.",
        call="turn('max_num_batched_tokens', 1)",
    ),
    Command(
        "fewer_seats",
        "left_parenthesis",
        "Fewer seats",
        "Lower max_num_seqs, how many run at once.",
        call="turn('max_num_seqs', -1)",
    ),
    Command("more_seats", "right_parenthesis", "More seats", "Raise max_num_seqs.", call="turn('max_num_seqs', 1)"),
    Command(
        "fewer_blocks",
        "v",
        "Fewer KV blocks",
        "Lower num_blocks, the pool of KV blocks.",
        call="turn('num_blocks', -1)",
    ),
    Command("more_blocks", "V", "More KV blocks", "Raise num_blocks.", call="turn('num_blocks', 1)"),
    Command(
        "next_policy",
        "P",
        "Next policy",
        "Let another policy decide who is served and who has to go.",
        call="turn('policy', 1)",
    ),
    Command("reset_parameters", "R", "Reset parameters", "Make all parameters what they were at the start."),
    Command("measures", "t", "Times and waste", "Show or hide the panels Latency and Waste."),
    Command("panels", "T", "Panels", "Choose which panels are shown."),
    Command("maximize", "m", "Maximise", "Let the panel that tab or a click chose fill the screen; put it back."),
    Command("restart", "r", "Restart the engine", "Start an engine that has ended again.", "restart", "failed"),
    Command("screenshot", "S", "Save a picture", "Save the screen as an SVG file in this folder."),
    Command(
        "take_away",
        "E",
        "Take away",
        "Save all steps: a recording, a timeline for Perfetto, CSV, JSON, or a picture.",
    ),
    Command("change_theme", "C", "Colours", "Choose a theme: dark, light, or one of Textual's."),
    Command("help", "question_mark", "Help", "Keys, and what the panels show.", "help"),
    Command("quit", f"q,{LEAVE}", "Quit", "Leave; the engine ends with the dashboard.", "quit"),
)

FOOTER = (
    *("restart", "short", "long", "burst", "presets", "previous_preemption", "next_preemption", "live", "step_back"),
    *("step_forward", "why", "pause", "help", "parameters", "events", "quit", "detail", "abort", "prompt"),
    *("step", "faster"),
)
"""The commands of the footer, by name, what is of most use first: what does not fit is left out."""


def bindings(action: str, *names: str) -> list[Binding]:
    """The keys of these commands, for a screen on which they do something else."""
    return [replace(c.binding(), action=action, show=False) for c in COMMANDS if c.name in names]


def displayed(key: str) -> str:
    """A key as the screen shows it: ? for question_mark."""
    *modifiers, base = key.split("+")
    return "+".join([*modifiers, base if base == "enter" else format_key(base)])


def shown_keys(commands: Iterable[Command] = COMMANDS, name: Callable[[str], str] = str) -> dict[str, str]:
    """What the screen calls the key of each command, by the command's name; `name` has the last word about a key."""
    return {command.name: name(command.key_display) for command in commands}
