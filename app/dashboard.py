"""Dashboard: the Textual app. It asks for traces many times a second, folds them into a view, and shows the panels."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from textual.app import SystemCommand
from textual.binding import Binding, BindingType
from textual.events import Key
from textual.notifications import SeverityLevel
from textual.screen import Screen
from textual.timer import Timer

from app import protocol
from app.commands import COMMANDS, LEAVE, Command, displayed, shown_keys
from app.cursor import Cursor
from app.demo import Demo
from app.engine_process import EngineProcess
from app.export import ExportError, name_of_now, save_here
from app.history import MAX_STEPS
from app.inject import URGENT_PRIORITY, Draft, Kind
from app.looks import DARK
from app.pacing import FRAMES_PER_SECOND
from app.panels.axis import GoTo
from app.panels.panel import Panel
from app.panels.requests import RequestsPanel
from app.parameters import POLL_RATES, SPEED, Changes, Value, check, next_poll_rate, next_speed, parse, turned
from app.preset import Preset
from app.protocol import EngineOptions, Event
from app.screens.compare import CompareScreen
from app.screens.events import EventsScreen
from app.screens.help import HelpScreen
from app.screens.main import MIN_HEIGHT, MIN_WIDTH, MainScreen
from app.screens.panels import PanelsScreen
from app.screens.parameters import ParametersScreen
from app.screens.presets import PresetsScreen
from app.screens.prompt import Filled, Form, PromptScreen
from app.screens.request import RequestScreen
from app.screens.take_away import TakeAwayScreen
from app.screens.why import WhyScreen
from app.selection import Selection
from app.session import Session, Start
from app.text import printable
from app.themed import ThemedApp
from app.view import config_changes
from app.words import value as shown
from engine.config import ConfigError, EngineConfig

Opened = TypeVar("Opened", bound=Screen[Any])
Result = TypeVar("Result")

NOT_COMPARED = "A server elsewhere does not tell its steps; runs of our own engine can be compared."
PAUSE = 3.0
"""Seconds between two scenes."""
BRIEFLY = 2.5
"""Seconds for a note that only confirms a key."""
WIDTHS = [(0, "-too-narrow"), (MIN_WIDTH, "-narrow"), (100, "-normal"), (160, "-wide")]
HEIGHTS = [(0, "-too-short"), (MIN_HEIGHT, "-shortest"), (23, "-short"), (34, "-medium"), (46, "-tall")]
"""From how many columns and rows on the screen gets which class; dashboard.tcss says what follows."""


class Dashboard(ThemedApp[int]):
    """Watch one engine. `start` starts it; the dashboard starts it again after a failure if asked to."""

    CSS_PATH = "dashboard.tcss"
    TITLE = "nanoviz"
    BINDINGS: ClassVar[list[BindingType]] = [
        *(command.binding() for command in COMMANDS),
        Binding(LEAVE, "quit", show=False, priority=True),  # on every screen, whatever has the focus
    ]
    HORIZONTAL_BREAKPOINTS = WIDTHS
    VERTICAL_BREAKPOINTS = HEIGHTS

    def __init__(
        self,
        options: EngineOptions,
        start: Start = EngineProcess,
        *,
        commands: Sequence[Command] = COMMANDS,
        history_steps: int = MAX_STEPS,
        theme: str = DARK,
        ascii: bool = False,
        address: str = "",
    ) -> None:
        """`commands` are COMMANDS, some of them with other keys perhaps. `theme` is one of `app.looks.themes()`.

        `address` is where clients reach the engine, if it is served.
        """
        super().__init__(theme, ascii=ascii)
        self.address = address
        self.commands = tuple(commands)
        self.keys = shown_keys(commands, self.looks.key)
        self.session = Session(options, start, history_steps)
        self.cursor = Cursor(self.session.history)
        self.selection = Selection()
        self._own_prompt = Filled(Form())
        """What the box for an own prompt was left with."""
        self._is_behind = False
        """Something has come that is not shown yet."""
        self._was_brief = False
        """The last note only confirmed a key."""
        self.demo = Demo(self.session)
        self._next_scene: Timer | None = None

    def get_default_screen(self) -> Screen[None]:
        return MainScreen(self.commands, self.keys, id="_default")

    @property
    def main_screen(self) -> MainScreen:
        screen = self.default_screen
        assert isinstance(screen, MainScreen)
        return screen

    def on_mount(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):  # without it they would leave the terminal as it is now
            loop.add_signal_handler(number, self.exit, 128 + number)
        usual = {command.name: command.keys for command in COMMANDS}
        self.set_keymap({new.name: new.binding().key for new in self.commands if new.keys != usual[new.name]})
        self._ticker = self.set_interval(1 / FRAMES_PER_SECOND, self.tick)
        self.call_after_refresh(self.redraw)
        self._warn(self.session.config)

    def on_resize(self) -> None:
        self.call_after_refresh(self.redraw)

    # From the engine to the screen.

    def tick(self) -> None:
        """Take all that has come, and send what is due; draw once if there was anything."""
        events = self.session.source.drain()
        for event in events:
            if self.session.is_heard(event):
                self._announce(event)
            self.session.take(event)
        self._note_end_of_run()
        has_sent = self.session.send_load(time.monotonic())
        self._is_behind = self._is_behind or bool(events) or has_sent
        if self._is_behind and not self.is_held:
            self.redraw()
        if not events and not self.session.is_load_on:
            self._ticker.pause()
            loop = asyncio.get_running_loop()
            self.session.source.when_news(lambda: loop.call_soon_threadsafe(self._ticker.resume))

    def catch_up(self) -> None:
        if self._is_behind:
            self.redraw()
        super().catch_up()

    def redraw(self) -> None:
        """Bring everything that is open up to the step at the cursor."""
        self._is_behind = False
        main, detail = self.main_screen, self._opened(RequestScreen)
        rows = main.rows(self.session, self.cursor)
        self.selection.settle(rows, is_past=self.cursor.step is not None, is_looked_at=detail is not None)
        slow = self.pace.slow if self.pace else None
        main.show(
            self.session, self.cursor, self.selection, self.demo.programme(self.keys), slow=slow, address=self.address
        )
        if detail:
            detail.leave_free(1 + main.num_banner_lines + main.num_narration_lines)
            detail.show(self.session, self.cursor, self.selection)
        if parameters := self._opened(ParametersScreen):
            parameters.show(self.session.speed, self._why_no_answer())
        if why := self._opened(WhyScreen):
            why.show(self.cursor.view)

    def _opened(self, kind: type[Opened]) -> Opened | None:
        """The screen of this kind, if it is open."""
        return next((screen for screen in self.screen_stack if isinstance(screen, kind)), None)

    def _announce(self, event: Event) -> None:
        """Tell what a person has to be told at once, before it is taken."""
        match event:
            case protocol.Ready(run=0, server=None) if not event.bitwise:
                self._say(f"Results are {event.exactness}.", "warning")
            case protocol.Notice(text):
                self._say(text, "warning")
            case protocol.Refused(reason=reason, from_client=False):
                self._say(f"Refused: {reason}", "warning")
            case protocol.Reconfigured(config) if not self._opened(ParametersScreen):
                changes = {change.name: change.new for change in config_changes(self.session.config, config)}
                if changes:
                    self._say(_listed(changes), timeout=BRIEFLY)
                self._warn(config, known=self.session.config)
            case protocol.ReconfigureRefused(reason) if not self._opened(ParametersScreen):
                self._say(reason, "warning")

    def _warn(self, config: EngineConfig, known: EngineConfig | None = None) -> None:
        """Say what these parameters will lead to, unless it was so before."""
        before = known.warnings() if known else ()
        for warning in config.warnings():
            if warning not in before:
                self._say(warning, "warning")

    def _say(self, text: str, severity: SeverityLevel = "information", timeout: float = 8) -> None:
        """A note at the edge of the screen, drawn literally. Brief ones take each other's place: a key may be held."""
        if self._was_brief:
            self.clear_notifications()
        self._was_brief = timeout == BRIEFLY
        self.notify(printable(text), severity=severity, timeout=timeout, markup=False)

    async def _open(self, screen: Screen[Result], take: Callable[[Result | None], None] | None = None) -> None:
        """Waits until the screen is there, so that it gets the next key. The palette may ask for one that is open."""
        if self._opened(type(screen)):
            return
        await self.push_screen(screen, take)
        self.redraw()

    # The table of commands, on every screen.

    def get_key_display(self, binding: Binding) -> str:
        return self.keys.get(binding.id or "") or self.looks.key(binding.key_display or displayed(binding.key))

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        for command in self.commands:
            told = f"{self.keys[command.name]} · {command.help}"
            yield SystemCommand(command.title, told, lambda action=command.action: self.run_action(action))

    async def action_help(self) -> None:
        """About the panel that has the focus, or the screen that is open."""
        focused = self.screen.focused
        topics = {RequestScreen: "request", ParametersScreen: "parameters"}
        topic = focused.id if isinstance(focused, Panel) else topics.get(type(self.screen))
        of_server = self.session.server is not None
        await self._open(HelpScreen(self.commands, self.keys, topic, of_server=of_server))

    def action_screenshot(self, filename: str | None = None, path: str | None = None) -> None:
        """Save into the folder that the program was started in, which a server has too."""
        try:
            saved = self.save_screenshot(filename or f"{name_of_now()}.svg", path or str(Path.cwd()))
        except OSError as error:
            self._say(f"The picture cannot be saved: {error.strerror}.", "error")
        else:
            self._say(f"Saved {saved}")

    async def action_take_away(self) -> None:
        await self._open(TakeAwayScreen(), self._take_away)

    def _take_away(self, choice: str | None) -> None:
        if choice == "svg":
            self.call_after_refresh(self.action_screenshot)
        elif choice:
            self.run_worker(self._save_run(choice))

    async def _save_run(self, choice: str) -> None:
        """Write all steps into this folder, while the screen goes on, and say what came of it."""
        history, engine = self.session.history, self.session.ready
        if engine is None or history.first_step is None:
            self._say("There is nothing to take away yet: nothing was computed.")
            return
        if history.first_step:
            self._say(
                f"Nothing was saved: it needs all {history.live.unit}s, and the oldest one kept is "
                f"{history.first_step:,}. --record FILE keeps all; history_steps says how many are kept here.",
                "warning",
            )
            return
        try:
            saved = await asyncio.to_thread(save_here, choice, history.traces(), engine)
        except ExportError as error:
            self._say(f"Nothing was saved: {error}", "error")
        else:
            self._say(f"Saved {', '.join(map(str, saved))}")

    async def action_quit(self) -> None:
        """Exit code 1 if the engine never came up: whoever called has not seen anything."""
        self.exit(1 if self.session.failed and not self.session.was_ready else 0)

    # Requests.

    def action_inject(self, kind: Kind) -> None:
        is_ours = self.session.server is None
        if (
            self._send(self.session.injector.drafts(kind))
            and kind == "urgent"
            and self._policy != "priority"
            and is_ours
        ):
            self._say(f"Sent with priority {URGENT_PRIORITY}; policy {self._policy} ignores it.")

    def action_again(self) -> None:
        if self.session.last_sent:
            self._send(self.session.last_sent)
        else:
            self._say("Nothing was sent yet.")

    async def action_prompt(self) -> None:
        if self._is_refused(self.session.why_not_sent):
            return
        await self._open(PromptScreen(self._own_prompt), self._take_prompt)

    def on_key(self, event: Key) -> None:
        """Nobody has taken it. Whoever types fast has begun to write before the box was there."""
        if isinstance(self.screen, PromptScreen | HelpScreen):
            self.screen.take(event)

    def _take_prompt(self, filled: Filled | None) -> None:
        """Keep what stands in the box, and send it if that was asked for."""
        if filled is None:
            return
        has_sent = filled.draft is not None and self._send((filled.draft,))
        self._own_prompt = filled if has_sent else Filled(filled.form)

    def _send(self, drafts: Iterable[Draft]) -> bool:
        """Send these requests, and show the newest step, where they will be; False if there is no engine."""
        if self._has_ended() or self._is_refused(self.session.why_not_sent):
            return False
        self.cursor.live()
        self.session.inject(drafts)
        self.redraw()
        return True

    def _has_ended(self) -> bool:
        """Whether there is no engine to ask for anything; then that is said."""
        if self.session.failed:
            self._say(f"The engine has ended; {self.keys['restart']} starts it again.", "warning")
        return self.session.failed is not None

    def _is_refused(self, why: str) -> bool:
        """Whether there is a reason not to do it; then that is said."""
        if why:
            self._say(why, "warning", timeout=BRIEFLY)
        return bool(why)

    @property
    def _policy(self) -> str:
        return self.session.config.policy

    def action_load(self, by: int) -> None:
        """More arrivals by themselves, or fewer."""
        if self._has_ended():
            return
        self._ticker.resume()
        if self._is_refused(self.session.why_not_sent):
            return
        load = self.session.load
        load.change(by)
        self._say(f"Load: {load.rate:g} requests a second." if load.rate else "Load: off.", timeout=BRIEFLY)
        self.redraw()

    def action_abort(self) -> None:
        if self._is_refused(self.session.why_not_sent):
            return
        request_id = self.selection.request_id
        if request_id is not None and self.session.can_abort(request_id):
            self.session.abort(request_id)
            self.redraw()
        else:
            self._say("There is nothing to abort: select a request that was sent, waits or runs.")

    # Presets, and runs that are played once more.

    def play(self, preset: Preset, overrides: Mapping[str, Any] | None = None) -> None:
        """Play a preset. Raises ConfigError if the engine could not take its parameters."""
        self.demo.play(preset, overrides)
        self._watch_from_the_start()

    def _watch_from_the_start(self) -> None:
        """Another run has begun."""
        if self._next_scene:
            self._next_scene.stop()
        self.cursor = Cursor(self.session.history)
        self.selection = Selection()
        if self.is_running:
            self._ticker.resume()
            self.redraw()

    def _note_end_of_run(self) -> None:
        """After a scene comes the next one, in a while; after the last one, what came of it."""
        run = self.demo.note_end()
        if run is None:
            return
        if self.demo.is_between_scenes:
            self._next_scene = self.set_timer(PAUSE, self._play_next_scene)
        elif self.demo.player and len(self.screen_stack) == 1:
            self.call_later(self.action_compare)
        else:
            self._say(f"{run.name} has come to its end; {self.keys['compare']} compares.")

    def _play_next_scene(self) -> None:
        """Unless somebody still looks at the last one."""
        is_watched = self.session.paused or not self.cursor.is_live or len(self.screen_stack) > 1
        if self.demo.is_between_scenes and not is_watched and not self.session.failed:
            self.demo.play_next_scene()
            self._watch_from_the_start()

    async def action_presets(self) -> None:
        if not self._has_ended() and not self._is_refused(self.session.why_not_changed):
            await self._open(PresetsScreen(can_leave=not self.session.is_first_run), self._play_chosen)

    def _play_chosen(self, preset: Preset | Literal["leave"] | None) -> None:
        ready = self.session.ready
        if preset is None:
            return
        if preset == "leave":
            self.demo.leave()
            self._watch_from_the_start()
            return
        model = ready.model if ready else self.session.options.model
        if preset.needs_text and (ready.random_weights if ready else model == "tiny"):
            self._say(f"{preset.title} needs a model that writes text; {model} has random weights.", "warning")
            return
        self.play(preset)

    def action_scene(self, number: int) -> None:
        """Play scene `number`, from 1, from its start."""
        player = self.demo.player
        if self._is_refused(self.session.why_not_changed):
            return
        if player is None:
            self._say(f"No preset is played; {self.keys['presets']} lists them.")
        elif number > len(player.parts):
            self._say(f"There are {len(player.parts)} scenes.")
        elif not self._has_ended():
            self.demo.play_scene(number - 1)
            self._watch_from_the_start()

    def action_once_more(self) -> None:
        if self._has_ended() or self._is_refused(self.session.why_not_changed):
            return
        try:
            self.demo.play_once_more()
        except ValueError as error:
            self._say(f"It cannot be played once more: {error}.", "warning")
        else:
            self._watch_from_the_start()

    async def action_compare(self) -> None:
        if self.session.server:
            self._say(NOT_COMPARED, "warning")
            return
        compared = self.demo.comparison()
        await self._open(CompareScreen(compared.runs, compared.intro, compared.title, compared.axis))

    # The selected request.

    def action_select(self, by: int) -> None:
        self.selection.move(self.main_screen.rows(self.session, self.cursor), by)
        self.main_screen.requests.reveal()
        self.redraw()

    def on_requests_panel_clicked(self, message: RequestsPanel.Clicked) -> None:
        """A click selects, a second one shows the detail."""
        is_second = message.request_id == self.selection.request_id and not self.selection.following
        self.selection.choose(message.request_id)
        self.redraw()
        if is_second:
            self.call_later(self.action_detail)

    async def action_detail(self) -> None:
        if self._opened(RequestScreen) is None:
            await self._open(RequestScreen(), lambda _: self.redraw())

    def action_keep(self) -> None:
        self.selection.following = not self.selection.following
        self.redraw()
        if self._opened(RequestScreen) is None and self.selection.request_id:
            stays = "with the first row" if self.selection.following else "on the selected request"
            self._say(f"The selection stays {stays}.", timeout=BRIEFLY)

    def action_only(self) -> None:
        self.selection.only = not self.selection.only
        if self.selection.only:
            self.selection.following = False
            if "blocks" not in self.main_screen.shown_panels:
                self._say("The map of KV blocks is not on the screen now.")
        self.redraw()

    def action_follow(self) -> None:
        """One thing at a time: back to the newest step first."""
        if self.cursor.step is None:
            self.selection.following = True
            self.main_screen.requests.reveal()
            self.main_screen.set_focus(None)
        self.cursor.live()
        self.redraw()

    # The pace, and the past.

    def action_pause(self) -> None:
        if self._has_ended():
            return
        self.cursor.live()
        if self.demo.is_between_scenes:
            self.demo.play_next_scene()
            self._watch_from_the_start()
            return
        self.session.set_paused(not self.session.paused)
        self.redraw()

    def action_step(self) -> None:
        if self._has_ended():
            return
        self.cursor.live()
        self.session.step_once()
        self.redraw()

    def action_speed(self, by: int) -> None:
        server = self.session.server
        if server:
            self.session.set_speed(next_poll_rate(self.session.speed or 1 / server.interval, by))
        else:
            self.session.set_speed(next_speed(self.session.speed, by))
        self.redraw()

    def action_travel(self, by: int) -> None:
        self._look_back(lambda: self.cursor.move(by))

    def action_first(self) -> None:
        self._look_back(self.cursor.first)

    def action_live(self) -> None:
        self.cursor.live()
        self.redraw()

    def action_seek_preemption(self, direction: int) -> None:
        found = False

        def seek() -> None:
            nonlocal found
            # While it runs, the newest step is the one that somebody has just seen something in.
            found = self.cursor.seek(direction, lambda bar: bar.num_preemptions, newest=not self.session.paused)

        self._look_back(seek)
        if not found:
            self._say(f"There is no preemption {'before' if direction < 0 else 'after'} this step.")

    def on_go_to(self, message: GoTo) -> None:
        first = self.session.history.first_step
        if first is not None and message.step < first:
            self._say(f"{self.session.view.unit.title()} {message.step:,} is no longer kept; this is the oldest one.")
        self._look_back(lambda: self.cursor.go_to(message.step, stay=message.stay))

    def _look_back(self, travel: Callable[[], object]) -> None:
        """Move the cursor. Who looks at the past wants the present to wait; but a server elsewhere goes on in any case,
        and what it does meanwhile should not be missed."""
        travel()
        if not self.cursor.is_live:
            self._let_it_wait()
        self.redraw()

    def _let_it_wait(self) -> None:
        if not self.session.paused and not self.session.failed and not self.session.server:
            self.session.set_paused(True)

    async def action_events(self) -> None:
        last = self.session.history.last_step
        if last is None:
            self._say("There is no event yet: nothing was computed.")
            return
        here = last if self.cursor.step is None else self.cursor.step
        await self._open(EventsScreen(self.session.history.events, here), self._go_to_event)

    def _go_to_event(self, step: int | None) -> None:
        if step is not None:
            self.on_go_to(GoTo(step, stay=True))

    async def action_why(self) -> None:
        """Nobody can read what changes many times a second: it pauses, as looking at the past does."""
        if not self.session.paused and not self.session.failed:
            self.cursor.hold()
        self._let_it_wait()
        await self._open(WhyScreen(self.keys))

    # The engine and its parameters.

    def action_restart(self) -> None:
        if not self.session.failed:
            self._say(f"The engine is alive; {self.keys['restart']} starts one that has ended.")
            return
        if self.session.could_not_begin:
            self.demo.forget_preset()
        self.session.restart()
        if self.demo.player:
            self.demo.play_scene(self.demo.player.index)
        self.cursor = Cursor(self.session.history)
        self.selection = Selection()
        self._ticker.resume()  # it waits for news of the engine that has ended
        self.redraw()

    async def action_parameters(self) -> None:
        reset_key = self.keys["reset_parameters"]
        await self._open(
            ParametersScreen(self.session.parameters, self.commands, reset_key, self.action_turn, self.enter)
        )

    def action_reset_parameters(self) -> None:
        if self.session.why_not_changed:
            self._refuse(self.session.why_not_changed)
        elif changes := self.session.parameters.to_reset():
            self._reconfigure(changes)
        else:
            self._refuse("All parameters are what they were at the start.")

    def action_turn(self, name: str, by: int) -> None:
        """Ask for the next value of a parameter up (`by` = 1) or down (-1)."""
        if name == SPEED:
            self.action_speed(by)
            return
        if self.session.why_not_changed:
            self._refuse(self.session.why_not_changed)
            return
        try:
            value, passed = turned(self.session.parameters.expected, name, by)
        except ConfigError as error:
            self._refuse(str(error))
            return
        self._reconfigure({name: value})
        if passed:
            self._refuse(passed)

    def enter(self, name: str, text: str) -> None:
        """Ask for the value that somebody has typed."""
        try:
            value: Value = parse(name, text)
            if name != SPEED:
                check(self.session.parameters.expected, name, value)
        except ConfigError as error:
            self._refuse(str(error))
            return
        if name == SPEED:
            most = POLL_RATES[-1] if self.session.server else inf
            self.session.set_speed(min(float(value), most))
            self.redraw()
        else:
            self._reconfigure({name: value})

    def _reconfigure(self, changes: Changes) -> None:
        if self.session.failed:
            self._refuse(f"The engine has ended; {self.keys['restart']} starts it again.")
            return
        if self.session.why_not_changed:
            self._refuse(self.session.why_not_changed)
            return
        self.session.reconfigure(changes)
        if not self.session.ready and not self._opened(ParametersScreen):
            self._say(f"{_listed(changes)}: asked for; the engine answers when the model is loaded", timeout=BRIEFLY)
        self.redraw()

    def _refuse(self, reason: str) -> None:
        """Say why a parameter does not change: in the panel if it is open."""
        self.session.parameters.message = reason
        if self._opened(ParametersScreen):
            self.redraw()
        else:
            self._say(reason, "warning")

    def _why_no_answer(self) -> str:
        """Why the engine does not answer at once what it is asked."""
        if self.session.failed:
            return f"the engine has ended; {self.keys['restart']} starts it again, with these values."
        if not self.session.ready and self.session.parameters.has_asked:
            return "the engine answers when the model is loaded."
        return ""

    # Which panels are seen.

    def action_measures(self) -> None:
        self.main_screen.toggle_measures()

    async def action_panels(self) -> None:
        await self._open(PanelsScreen(self.main_screen.shown_panels), self._show_panels)

    def _show_panels(self, shown: Collection[str] | None) -> None:
        if shown is not None:
            self.main_screen.show_panels(shown)

    def action_maximize(self) -> None:
        if not self.main_screen.toggle_maximized():
            self._say(f"Choose a panel with tab or a click; {self.keys['maximize']} then lets it fill the screen.")


def _listed(changes: Changes) -> str:
    return ", ".join(f"{name} {shown(value)}" for name, value in changes.items())
