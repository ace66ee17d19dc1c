"""What the app's tests share: real traces from a scripted engine with a made-up clock, and a dashboard on a script.

The traces come from the real `LLMEngine`, scheduler and block pool; only the model is a script and only the times are
invented, so that whatever is drawn from them is the same in every run.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import settings
from textual._compositor import Compositor
from textual._context import visible_screen_stack
from textual.drivers.headless_driver import HeadlessDriver
from textual.events import Key, Resize
from textual.geometry import Size
from textual.pilot import Pilot
from textual.screen import Screen

from app import cli, protocol
from app.dashboard import Dashboard
from app.panels.panel import Part
from app.protocol import Command, EngineOptions, Event
from app.run import Run
from app.session import Start
from app.view import EngineView
from engine.config import EngineConfig
from engine.core import LLMEngine
from engine.request import SamplingParams
from engine.trace import PhaseTimes, StepTrace
from tests.engine.support import FakeClock, Script, ScriptedRunner, byte_tokenizer, config

STEP_SECONDS = 0.05
TIMES = PhaseTimes(schedule=0.0002, prepare=0.0013, forward=0.0431, sample=0.0011, update=0.0004)
MAX_PAUSES = 200
"""Far more than any condition needs: what is not true by then never will be."""

ROUNDS_AT_REST = 2
"""So often nothing must be left to do: a task that has just been started posts its message a little later."""

HOSTILE = "[bold red]hi[/] \x1b[31m\u202e"
"""Markup, an escape sequence and a direction mark: what a model or a user can write."""
HOSTILE_SHOWN = "[bold red]hi[/] ␛[31m·"

READY = protocol.Ready(
    model="SmolLM2-135M-Instruct",
    num_parameters=134_515_008,
    dtype="float32",
    device="cpu",
    threads=1,
    exactness="bitwise",
    bitwise=True,
    random_weights=False,
)

repeatable = settings(deadline=None, derandomize=True)
"""Hypothesis without a clock, and with the same examples each time: a red test stays red."""

ANSWER = "Rain rinses the dust from the road, and what we smell is what the road had kept. "


def answer(request_id: str, index: int, history: tuple[int, ...]) -> int:
    """The scripted model's token: readable text, begun at another place for each request."""
    return ord(ANSWER[(index + 7 * int(request_id)) % len(ANSWER)])


def saying(text: str) -> Script:
    """A script that makes the model say the bytes of this text, over and over."""
    data = text.encode()
    return lambda request_id, index, history: data[index % len(data)]


class ScriptedEngine:
    """A real engine without a model, whose clock goes on by STEP_SECONDS with each step."""

    def __init__(self, engine_config: EngineConfig, script: Script = answer) -> None:
        self._clock = FakeClock()
        runner = ScriptedRunner(engine_config.block_size, script)
        self.engine = LLMEngine(engine_config, runner, byte_tokenizer(), clock=self._clock)
        self.traces: list[StepTrace] = []
        self._num_requests = 0

    def add(self, prompt: str | Sequence[int] = "What is rain?", max_tokens: int = 8, label: str = "short") -> str:
        """Queue a prompt, a token a byte; ids count from "1", as the dashboard's do."""
        self._num_requests += 1
        params = SamplingParams(max_tokens=max_tokens)
        return self.engine.add_request(prompt, params, request_id=str(self._num_requests), label=label)

    def step(self, count: int = 1) -> StepTrace:
        """Run steps; returns the trace of the last."""
        for _ in range(count):
            started = STEP_SECONDS * len(self.traces)
            self._clock.now = started
            self.traces.append(msgspec.structs.replace(self.engine.step(), started=started, times=TIMES))
        return self.traces[-1]

    def step_until(self, condition: Callable[[StepTrace], object]) -> StepTrace:
        """Step until a trace satisfies the condition; it must within a thousand steps."""
        for _ in range(1000):
            if condition(trace := self.step()):
                return trace
        raise AssertionError("the scenario never got to where it should")

    def run_to_end(self) -> None:
        while self.engine.has_news:
            self.step()


def view_of(traces: Iterable[StepTrace]) -> EngineView:
    view = EngineView()
    for trace in traces:
        view.apply(trace)
    return view


def sentence(length: int) -> str:
    """A readable prompt of so many bytes."""
    return (ANSWER * (length // len(ANSWER) + 1))[:length]


def _busy() -> ScriptedEngine:
    """Six decode, one has ended, and a long prompt is in its fourth chunk."""
    stage = ScriptedEngine(EngineConfig())
    for max_tokens in (60, 40, 80, 64, 10, 72, 50):
        stage.add(sentence(30 + max_tokens // 4), max_tokens)
    stage.step(16)
    stage.add(sentence(786), 60, "long")
    stage.step(4)
    return stage


def _preempting() -> ScriptedEngine:
    """A pool that is too small for four: somebody is thrown out, waits, and has been recomputed."""
    stage = ScriptedEngine(config(blocks=14, bs=8, budget=32, seqs=4, length=96, enable_prefix_caching=False))
    for max_tokens in (30, 40, 26, 34):
        stage.add(sentence(18 + max_tokens % 9), max_tokens)
    stage.step_until(lambda trace: any(item.kind == "recompute" for item in trace.scheduled))
    stage.step(5)
    return stage


def _sharing() -> ScriptedEngine:
    """Three prompts with one beginning: its blocks have three holders; the first of all has ended and is cached."""
    stage = ScriptedEngine(config(blocks=40, bs=8, budget=64, seqs=8, length=128))
    stage.add(sentence(40), 4)
    stage.run_to_end()
    for question in ("Who?", "Where is it?", "And why?"):
        stage.add(sentence(40) + question, 20)
    stage.step(6)
    return stage


def _evicting() -> ScriptedEngine:
    """Cached blocks of requests that have ended are drawn for new ones, some of them in the last step."""
    stage = ScriptedEngine(config(blocks=16, bs=4, budget=32, seqs=4, length=60))
    for number in range(12):
        stage.add([number] * (14 + number), 9)
    stage.step_until(lambda trace: any(op.op == "evict" for op in trace.blocks))
    return stage


def _seats() -> ScriptedEngine:
    """Two seats, four requests."""
    stage = ScriptedEngine(config(blocks=40, bs=8, budget=64, seqs=2, length=128))
    for _ in range(4):
        stage.add(sentence(20), 12)
    stage.step(4)
    return stage


def _budget() -> ScriptedEngine:
    """A long prefill takes all of every step; somebody waits behind it."""
    stage = ScriptedEngine(config(blocks=40, bs=8, budget=16, seqs=8, length=128))
    stage.add(sentence(70), 12, "long")
    stage.add(sentence(20), 12)
    stage.step(3)
    return stage


def _blocks() -> ScriptedEngine:
    """The head of the queue needs more blocks than are free; one of these must stay free."""
    stage = ScriptedEngine(config(blocks=16, bs=8, budget=64, seqs=8, length=120, watermark=0.1))
    stage.add(sentence(60), 20)
    stage.add([1] * 30, 20)
    stage.add([2] * 50, 20)
    stage.step(3)
    return stage


def _chunking() -> ScriptedEngine:
    """Chunking is off, and the second prompt does not fit into what the first left of the step."""
    stage = ScriptedEngine(config(blocks=40, bs=8, budget=64, seqs=8, length=64, enable_chunked_prefill=False))
    stage.add([1] * 40, 12)
    stage.add([2] * 40, 12)
    stage.step()
    return stage


def _threshold() -> ScriptedEngine:
    """A cap for each request cuts a long prompt though there is budget left."""
    stage = ScriptedEngine(config(blocks=40, bs=8, budget=64, seqs=8, length=128, long_prefill_token_threshold=12))
    stage.add(sentence(70), 12, "long")
    stage.add(sentence(20), 12)
    stage.step(2)
    return stage


def _queue() -> ScriptedEngine:
    """Ten thousand wait."""
    stage = ScriptedEngine(EngineConfig())
    for number in range(10_016):
        stage.add([number % 251, number // 251], 4)
    stage.step(2)
    return stage


def _ended() -> ScriptedEngine:
    """Nobody is left: some are done, one was aborted while it ran and one while it waited."""
    stage = ScriptedEngine(config(blocks=40, bs=8, budget=64, seqs=2, length=128))
    for number in range(4):
        stage.add(sentence(20), 6 + number)
    stage.step(3)
    stage.engine.abort("1")
    stage.engine.abort("4")
    stage.run_to_end()
    return stage


def _hostile() -> ScriptedEngine:
    """Prompts, labels and outputs are what nobody should write to a terminal."""
    return hostile_stage(HOSTILE, HOSTILE)


def hostile_stage(written: str, said: str) -> ScriptedEngine:
    """Two requests with this text as prompt and label, to which the model says another again and again."""
    stage = ScriptedEngine(config(blocks=40, bs=8, budget=64, seqs=2, length=128), saying(said))
    for _ in range(2):
        stage.add(written, 3 * len(said.encode()), written)
    stage.step(2 * len(said.encode()))
    return stage


_BUILDERS: dict[str, Callable[[], ScriptedEngine]] = {
    "empty": lambda: ScriptedEngine(EngineConfig()),
    "busy": _busy,
    "preempting": _preempting,
    "sharing": _sharing,
    "evicting": _evicting,
    "seats": _seats,
    "budget": _budget,
    "blocks": _blocks,
    "chunking": _chunking,
    "threshold": _threshold,
    "queue": _queue,
    "ended": _ended,
    "hostile": _hostile,
}
SCENARIOS = tuple(_BUILDERS)


@cache
def scenario(name: str) -> tuple[StepTrace, ...]:
    """The traces of a scenario, always the same."""
    return tuple(_BUILDERS[name]().traces)


@cache
def scenario_view(name: str) -> EngineView:
    """What its traces add up to; shared, so only to be looked at."""
    return view_of(scenario(name))


@cache
def compared_runs() -> tuple[Run, Run, Run]:
    """One workload three times: four short requests decode when a long one comes, and two more short ones later."""

    def run(name: str, budget: int, policy: str) -> Run:
        stage = ScriptedEngine(config(blocks=200, bs=16, budget=budget, seqs=16, length=1024, policy=policy))
        for number in range(4):
            stage.add(sentence(20 + number), 30)
        stage.step(4)
        stage.add(sentence(600), 8, "long")
        stage.step(4)
        stage.add(sentence(25), 12)
        stage.add(sentence(24), 12)
        stage.run_to_end()
        return Run(name, stage.traces)

    return run("static", 1024, "static"), run("orca", 1024, "orca"), run("budget 64", 64, "fcfs")


class ScriptedSource:
    """In the place of the engine's process: remembers what was sent, and says what it is fed."""

    def __init__(self, options: EngineOptions) -> None:
        self.options = options
        self.sent: list[Command] = []
        self.closed = False
        self._events: list[Event] = []
        self._news: Callable[[], object] | None = None

    def send(self, command: Command) -> None:
        assert not self.closed, f"{command} was sent to a source that is closed"
        self.sent.append(command)

    def drain(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def when_news(self, call: Callable[[], object]) -> None:
        self._news = call
        if self._events:
            self._tell()

    def _tell(self) -> None:
        call, self._news = self._news, None
        if call:
            call()

    def close(self) -> None:
        self.closed = True

    def feed(self, *events: Event) -> None:
        self._events.extend(events)
        self._tell()

    def take_sent(self) -> list[Command]:
        """What was sent since the last call."""
        sent, self.sent = self.sent, []
        return sent


class Stand:
    """A dashboard in front of scripted sources, under a pilot's fingers."""

    def __init__(
        self,
        engine_config: EngineConfig,
        start: Start | None = None,
        server: protocol.Server | None = None,
        **options: Any,
    ) -> None:
        """`options` are the dashboard's own; `start` starts what is to be watched, if that is no script."""
        self.sources: list[ScriptedSource] = []
        watched = EngineOptions("tiny", "auto", "cpu", 1, engine_config, server)
        self.app = Dashboard(watched, start or self._start, **options)
        self.pilot: Pilot[int]
        self._notify = self.app.notify
        setattr(self.app, "notify", self._notify_for_long)  # noqa: B010

    def _notify_for_long(self, message: str, **options: Any) -> None:
        """A notice goes after some seconds: on a busy machine, before a test has looked at it."""
        self._notify(message, **{**options, "timeout": 3600})

    def _start(self, options: EngineOptions) -> ScriptedSource:
        self.sources.append(ScriptedSource(options))
        return self.sources[-1]

    @property
    def source(self) -> ScriptedSource:
        """The one in use: each start of the engine makes another."""
        return self.sources[-1]

    async def feed(self, *events: Event) -> None:
        """Let the source say this, and the dashboard draw it."""
        self.feed_only(*events)
        await self.settle()

    def feed_only(self, *events: Event) -> None:
        """Let the source say this and the dashboard draw it, without waiting for a layout that may follow."""
        if self.sources:  # not of another kind
            self.source.feed(*events)
        self.app.tick()

    async def play(self, traces: Iterable[StepTrace]) -> None:
        await self.feed(*map(protocol.Stepped, traces))

    async def press(self, *keys: str) -> None:
        """Keys by Textual's names, as fast as a stuck key sends them."""
        for key in keys:
            self.app.post_message(Key(key, key if len(key) == 1 else None))
        await self.settle()

    def resize_without_waiting(self, width: int, height: int) -> None:
        """What the pilot does, but for its pause: a window that is dragged does not wait either."""
        assert isinstance(self.app._driver, HeadlessDriver)
        self.app._driver._size = Size(width, height)
        self.app.post_message(Resize(Size(width, height), Size(width, height)))

    async def resize(self, width: int, height: int) -> None:
        await self.pilot.resize_terminal(width, height)
        await self.settle()

    async def settle(self) -> None:
        """Wait until nothing is left to do: no message, no layout, nothing to paint. It never waits for a time."""
        at_rest = 0
        for _ in range(MAX_PAUSES):
            await self.app.animator.wait_for_idle()
            was_at_rest = self._is_at_rest()
            # Not pilot.pause(): that also waits for an idle process, and so for whatever else the machine does.
            await self.pilot._wait_for_screen()
            # What waits for its time comes now: another size of the screen, and the next frame.
            if self.app._resize_event is not None:
                self.app._check_resize()
            for screen in self._screens_to_paint():
                screen._on_timer_update()
            at_rest = at_rest + 1 if was_at_rest and self._is_at_rest() else 0
            if at_rest == ROUNDS_AT_REST or not self.app.is_running:
                return
        raise AssertionError("the screen does not come to rest:\n" + self.text())

    def _is_at_rest(self) -> bool:
        """Whether no part of the dashboard has a message to handle, and all screens are laid out and painted."""
        screens = self.app.screen_stack
        pumps = [self.app, *(pump for screen in screens for pump in screen.walk_children(with_self=True))]
        return not (
            any(pump.message_queue_size or pump._next_callbacks for pump in pumps)
            or any(screen._callbacks for screen in screens)
            or self.app._resize_event is not None
            or self._screens_to_paint()
        )

    def _screens_to_paint(self) -> list[Screen[Any]]:
        """Those that have asked for a frame."""
        return [screen for screen in self.app.screen_stack if screen._update_timer._active.is_set()]

    async def until(self, condition: Callable[[], object]) -> None:
        for _ in range(MAX_PAUSES):
            if condition():
                return
            await self.pilot.pause()
        raise AssertionError("it never came true; the screen:\n" + self.text())

    def lines(self) -> list[str]:
        """The whole screen as text, a line a row, with its trailing spaces."""
        visible_screen_stack.set(self.app._background_screens)  # what shows through the top one
        return [strip.text for strip in self.app.screen._compositor.render_strips()]

    def text(self) -> str:
        return "\n".join(self.lines())


_render_update = Compositor.render_update


def _paint_for_nobody(self: Compositor, full: bool = False, **options: Any) -> Any:
    """A frame takes longer than all else that a key does, and without a terminal nobody gets it."""
    if full:
        return _render_update(self, full, **options)
    self._dirty_regions.clear()
    return None


@asynccontextmanager
async def dashboard(
    size: tuple[int, int] = (120, 40),
    *events: Event,
    engine_config: EngineConfig | None = None,
    toasts: bool = False,
    **options: Any,
) -> AsyncIterator[Stand]:
    """A running dashboard that has taken in these events. `toasts` shows notices, which lie over the panels."""
    configs = (event.trace.config for event in events if isinstance(event, protocol.Stepped))
    stand = Stand(engine_config or next(configs, EngineConfig()), **options)
    with patch.object(Compositor, "render_update", _paint_for_nobody):
        async with stand.app.run_test(size=size, notifications=toasts) as stand.pilot:
            # The footer is the last to come.
            await stand.until(lambda: stand.app.query("FooterKey"))
            await stand.feed(*events)
            yield stand


def stepped(name: str) -> list[Event]:
    """The model is ready and a scenario has been played."""
    return [READY, *map(protocol.Stepped, scenario(name))]


def text_of(parts: Iterable[Part]) -> str:
    return "".join(text for text, _ in parts)


def drawn(lines: Sequence[Sequence[Part]], height: int) -> list[str]:
    """Lines that a panel draws, as far as they are shown."""
    return [text_of(line) for line in lines[:height]]


def panel(kind: type[Any], view: EngineView) -> Any:
    """A panel outside of any app, on this view."""
    made = kind(id="panel")
    made.view = view
    return made


@dataclass(frozen=True)
class CommandResult:
    """How a command line ended, and what it wrote."""

    code: int
    out: str
    err: str

    def check_short(self) -> None:
        """The mistake is told to a person: one line on stderr that begins with our name, no traceback."""
        assert "Traceback" not in self.err
        lines = self.err.strip().splitlines()
        assert len(lines) == 1 and lines[0].startswith("nanoviz: "), self.err


def run_cli(capsys: pytest.CaptureFixture[str], *arguments: str) -> CommandResult:
    """`nanoviz ARGUMENTS` in this process."""
    capsys.readouterr()
    try:
        code = cli.main(arguments)
    except SystemExit as exit:  # argparse, for --help and what it cannot read
        code = exit.code if isinstance(exit.code, int) else 1
    out, err = capsys.readouterr()
    return CommandResult(code, out, err)
