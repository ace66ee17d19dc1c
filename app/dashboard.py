"""Dashboard: the Textual app. It asks for traces many times a second, folds them into a view, and shows the panels."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import ClassVar, Protocol

from textual.app import App, ComposeResult, SystemCommand
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.notifications import SeverityLevel
from textual.screen import Screen
from textual.widgets import Footer, Static

from app import prompts, protocol
from app.commands import COMMANDS
from app.engine_process import EngineProcess
from app.panels.banner import Banner
from app.panels.blocks import BlocksPanel
from app.panels.budget import BudgetPanel
from app.panels.events import EventsPanel
from app.panels.header import DEAD, IDLE, LOADING, PAUSED, RUNNING, Header
from app.panels.output import OutputPanel
from app.panels.panel import Panel
from app.panels.requests import Pending, RequestsPanel
from app.panels.step import StepPanel
from app.protocol import Command, EngineOptions, Event
from app.screens.help import HelpScreen
from app.text import printable
from app.view import EngineView
from engine.request import SamplingParams

FRAMES_PER_SECOND = 20
BURST = 6
SPEEDS = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 0.0)
"""Steps a second; the last, 0, is as fast as it goes."""
BANNER_MARGIN = 2
MIN_WIDTH, MIN_HEIGHT = 60, 16
WIDTHS = [(0, "-too-narrow"), (MIN_WIDTH, "-narrow"), (100, "-normal"), (160, "-wide")]
HEIGHTS = [(0, "-too-short"), (MIN_HEIGHT, "-shortest"), (23, "-short"), (34, "-medium"), (46, "-tall")]
"""From how many columns and rows on the screen gets which class; dashboard.tcss says what follows."""


class Source(Protocol):
    """Where events come from and commands go to: the engine's process, or a script in a test."""

    def send(self, message: Command, /) -> None: ...
    def drain(self) -> list[Event]: ...
    def close(self) -> None: ...


class Dashboard(App[int]):
    """Watch one engine. `start` starts it; the dashboard starts it again after a failure if asked to."""

    CSS_PATH = "dashboard.tcss"
    TITLE = "nanoviz"
    BINDINGS: ClassVar[list[BindingType]] = [
        *(command.binding() for command in COMMANDS),
        Binding("ctrl+c", "quit", show=False, priority=True),  # on every screen, whatever has the focus
    ]
    HORIZONTAL_BREAKPOINTS = WIDTHS
    VERTICAL_BREAKPOINTS = HEIGHTS

    def __init__(self, options: EngineOptions, start: Callable[[EngineOptions], Source] = EngineProcess) -> None:
        super().__init__()
        self.options = options
        self._start = start
        self._num_sent = 0
        self._num_prompts: dict[prompts.Label, int] = {"short": 0, "long": 0}
        self._begin()

    def _begin(self) -> None:
        """A new engine, of which nothing is known yet."""
        self.view = EngineView()
        self.ready: protocol.Ready | None = None
        self.loading: protocol.Loading | None = protocol.Loading("starting the engine")
        self.failed: protocol.Failed | None = None
        self.paused = False
        self.speed = 0.0
        self._unanswered = 0
        """Commands about the pace that the engine has not acknowledged yet."""
        self.aborting: set[str] = set()
        self.selected: str | None = None
        self.following = True
        """Nobody has chosen a request: the selection stays on the first row."""
        self.pending: dict[str, Pending] = {}
        self.source = self._start(self.options)

    def compose(self) -> ComposeResult:
        yield Header(id="header")
        yield Banner(id="banner")
        with Horizontal(id="body"):
            with Vertical(id="left"):
                yield BudgetPanel(id="budget")
                yield RequestsPanel(id="requests")
            with Vertical(id="right"):
                yield StepPanel(id="step")
                yield BlocksPanel(id="blocks")
                yield EventsPanel(id="events")
                yield OutputPanel(id="output")
        yield Static(f"nanoviz needs {MIN_WIDTH} columns and {MIN_HEIGHT} rows; q leaves", id="too-small", markup=False)
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):  # without it they would leave the terminal as it is now
            loop.add_signal_handler(number, self.exit, 128 + number)
        self.set_interval(1 / FRAMES_PER_SECOND, self.tick)
        self.call_after_refresh(self.show)
        for warning in self.options.config.warnings():
            self._say(warning, "warning")

    def on_resize(self) -> None:
        self.call_after_refresh(self.show)

    def tick(self) -> None:
        """Take all that has come; draw once if there was anything."""
        events = self.source.drain()
        for event in events:
            self._take(event)
        if events:
            self.show()

    def _take(self, event: Event) -> None:
        match event:
            case protocol.Stepped(trace):
                for arrival in trace.arrivals:
                    self.pending.pop(arrival.request_id, None)
                self.aborting.difference_update(finished.request_id for finished in trace.finished)
                self.view.apply(trace)
            case protocol.Loading():
                self.loading = event
            case protocol.Ready():
                self.ready, self.loading = event, None
                if not event.bitwise:
                    self._say(f"Results are {event.exactness}.", "warning")
            case protocol.Accepted(request_id, num_prompt_tokens):
                if request_id in self.pending:
                    label = self.pending[request_id].label
                    state = f"{num_prompt_tokens} tokens, accepted for the next step"
                    self.pending[request_id] = Pending(request_id, label, state)
            case protocol.Refused(request_id, reason):
                self.pending.pop(request_id, None)
                self.aborting.discard(request_id)
                self._say(f"Refused: {reason}", "warning")
            case protocol.PaceSet(paused, steps_per_second):
                self._unanswered = max(0, self._unanswered - 1)
                if not self._unanswered:  # an answer to an older key must not undo a newer one
                    self.paused, self.speed = paused, steps_per_second
            case protocol.Failed():
                # The first failure is the cause; what follows only says that the process is gone as well.
                self.failed = self.failed or event
                self.loading = None
                self.pending.clear()
                self.aborting.clear()

    def show(self) -> None:
        """Bring every panel up to the view."""
        requests = self.query_one(RequestsPanel)
        requests.view = self.view
        requests.pending = tuple(self.pending.values())
        order = requests.order()
        self.following = self.following or self.selected not in order
        if self.following:
            self.selected = next(iter(order), None)
        requests.selected = self.query_one(OutputPanel).selected = self.selected
        requests.aborting = frozenset(self.aborting)
        header = self.query_one(Header)
        header.ready, header.state, header.steps_per_second = self.ready, self._state(), self.speed
        header.paused = self.paused
        header.config = self.view.config or self.options.config
        banner = self.query_one(Banner)
        banner.progress, banner.failed = self.loading, self.failed
        num_lines = len(banner.lines(self.size.width - BANNER_MARGIN))
        banner.set_class(num_lines > 0, "-shown")
        banner.styles.height = num_lines
        for panel in self.query(Panel):
            panel.show(self.view)

    def _state(self) -> str:
        if self.failed:
            return DEAD
        if self.ready is None:
            return LOADING
        if self.paused:
            return PAUSED
        trace = self.view.trace
        busy = trace is not None and (
            trace.num_waiting or any(self.view.requests[r].finished is None for r in trace.running)
        )
        return RUNNING if busy or self.pending else IDLE

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        for command in COMMANDS:
            yield SystemCommand(command.title, command.help, lambda name=command.name: self.run_action(name))

    def action_short(self) -> None:
        self._inject("short")

    def action_long(self) -> None:
        self._inject("long")

    def action_burst(self) -> None:
        self._inject("short", BURST)

    def action_abort(self) -> None:
        request = self.view.requests.get(self.selected or "")
        if self.selected is None or self.failed or (request is not None and request.finished):
            self._say("There is nothing to abort: select a request that was sent, waits or runs.")
            return
        self.source.send(protocol.Abort(self.selected))
        self.aborting.add(self.selected)
        self.show()

    def action_next(self) -> None:
        self._select(1)

    def action_previous(self) -> None:
        self._select(-1)

    def action_follow(self) -> None:
        self.following = True
        self.show()

    def action_pause(self) -> None:
        self._set_paused(not self.paused)

    def action_step(self) -> None:
        if not self.paused:
            self._set_paused(True)
        self._set_pace(protocol.StepOnce())

    def action_faster(self) -> None:
        self._change_speed(1)

    def action_slower(self) -> None:
        self._change_speed(-1)

    def action_restart(self) -> None:
        if not self.failed:
            self._say("The engine is alive; r starts one that has ended.")
            return
        paused, speed = self.paused, self.speed
        self.source.close()
        self._begin()
        if paused:
            self._set_paused(True)
        if speed:
            self.speed = speed
            self._set_pace(protocol.SetSpeed(speed))
        self.show()

    def action_help(self) -> None:
        self.push_screen(HelpScreen())

    def action_screenshot(self, filename: str | None = None, path: str | None = None) -> None:
        """Save into the folder that the program was started in, which a server has too."""
        try:
            saved = self.save_screenshot(filename, path or str(Path.cwd()))
        except OSError as error:
            self._say(f"The picture cannot be saved: {error.strerror}.", "error")
        else:
            self._say(f"Saved {saved}")

    async def action_quit(self) -> None:
        """Exit code 1 if the engine never came up: whoever called has not seen anything."""
        self.exit(1 if self.failed and self.ready is None else 0)

    def _say(self, text: str, severity: SeverityLevel = "information") -> None:
        """A note at the edge of the screen, drawn literally."""
        self.notify(printable(text), severity=severity, timeout=8, markup=False)

    def _inject(self, label: prompts.Label, count: int = 1) -> None:
        if self.failed:
            self._say("The engine has ended; r starts it again.", "warning")
            return
        # A model with a byte tokenizer needs many more tokens for the same text: it gets the end of it.
        longest = self.options.config.max_model_len * 3 // 5
        for _ in range(count):
            prompt = prompts.prompt(label, self._num_prompts[label])
            self._num_prompts[label] += 1
            self._num_sent += 1
            request_id = str(self._num_sent)
            params = SamplingParams(max_tokens=prompt.max_tokens)
            self.source.send(protocol.AddRequest(request_id, prompt.text, label, params, longest))
            self.pending[request_id] = Pending(request_id, label, "sent" if self.ready else "waits for the model")
        self.show()

    def _select(self, by: int) -> None:
        order = self.query_one(RequestsPanel).order()
        if order:
            position = order.index(self.selected) if self.selected in order else 0
            self.selected = order[max(0, min(len(order) - 1, position + by))]
            self.following = False
            self.show()

    def _set_paused(self, paused: bool) -> None:
        self.paused = paused
        self._set_pace(protocol.SetPaused(paused))

    def _change_speed(self, by: int) -> None:
        position = SPEEDS.index(self.speed)
        self.speed = SPEEDS[max(0, min(len(SPEEDS) - 1, position + by))]
        self._set_pace(protocol.SetSpeed(self.speed))

    def _set_pace(self, command: protocol.SetPaused | protocol.StepOnce | protocol.SetSpeed) -> None:
        self._unanswered += 1
        self.source.send(command)
        self.show()
