"""In the place of the engine's process: an engine with a scripted model, which follows scripts as the worker does."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from app import protocol
from app.protocol import Command, EngineOptions, Event
from app.script import Script
from engine.config import EngineConfig
from engine.core import LLMEngine
from engine.request import RequestError
from tests.app.support import READY, STEP_SECONDS, TIMES, answer
from tests.engine.support import FakeClock, ScriptedRunner, byte_tokenizer
from tests.engine.support import Script as Model

MOST_STEPS = 5_000
"""Far more than any preset has: what is not over by then never will be."""


class PlayedEngine:
    """A source whose steps are made when a test says so. A step takes STEP_SECONDS of its clock."""

    def __init__(self, options: EngineOptions, model: Model = answer) -> None:
        self.begun: list[protocol.Begin] = []
        self.sent: list[Command] = []
        self.closed = False
        self._model = model
        self._events: list[Event] = []
        self._news: Callable[[], object] | None = None
        self._script: Script | None = None
        self._paused, self._speed = False, 0.0
        self._start(0, options.config, None)

    def _start(self, run: int, config: EngineConfig, script: Script | None) -> None:
        self._clock = FakeClock()
        runner = ScriptedRunner(config.block_size, self._model)
        self._engine = LLMEngine(config, runner, byte_tokenizer(), clock=self._clock)
        self._script = script
        self.feed(replace(READY, run=run))

    def send(self, command: Command) -> None:
        assert not self.closed
        self.sent.append(command)
        match command:
            case protocol.Begin(run, config, cues):
                self.begun.append(command)
                self._start(run, config, Script(cues))
            case protocol.SetPaused(paused):
                self._paused = paused
                self.feed(protocol.PaceSet(paused, self._speed))
            case protocol.SetSpeed(speed):
                self._speed = speed
                self.feed(protocol.PaceSet(self._paused, speed))
            case protocol.StepOnce():
                self.feed(protocol.PaceSet(self._paused, self._speed))
            case _:
                self._obey(command)

    def _obey(self, command: Command) -> None:
        match command:
            case protocol.AddRequest():
                self._add(command)
            case protocol.Note(text):
                self._engine.note(text)
            case protocol.Reconfigure(changes):
                self._engine.reconfigure(**changes)
                self.feed(protocol.Reconfigured(self._engine.config))
            case protocol.Abort(request_id):
                self._engine.abort(request_id)
            case protocol.SetPaused(paused):
                self._paused = paused
                self.feed(protocol.PaceSet(paused, self._speed))

    def _add(self, asked: protocol.AddRequest) -> None:
        assert isinstance(asked.prompt, str)
        bytes_of = ((piece.text.encode() * piece.num_tokens)[: piece.num_tokens] for piece in asked.pieces)
        try:
            self._engine.add_request(
                list(b"".join(bytes_of) or asked.prompt.encode()),
                asked.params,
                request_id=asked.request_id,
                priority=asked.priority,
                label=asked.label,
                truncate_prompt_tokens=asked.max_prompt_tokens,
            )
        except RequestError as error:
            self.feed(protocol.Refused(asked.request_id, str(error)))

    def run(self, num_steps: int = MOST_STEPS) -> None:
        """Make so many steps, or as many as there are to make until the end or until the script pauses."""
        for _ in range(num_steps):
            self._follow_script()
            if self._paused or not self._engine.has_news:
                break
            started = self._clock.now
            trace = self._engine.step()
            self._clock.now += STEP_SECONDS
            self.feed(protocol.Stepped(replace(trace, started=started, times=TIMES)))
        else:
            assert num_steps < MOST_STEPS, "it does not come to an end"
            return
        self._follow_script()

    def _follow_script(self) -> None:
        while self._script is not None and not self._paused:
            idle = not self._engine.has_news
            cue = self._script.next_due(self._engine.num_steps, self._clock.now, idle=idle)
            if cue is not None:
                self._obey(cue.command)
            elif not idle:
                return
            elif self._script.is_over:
                self._script = None
                self.feed(protocol.ScriptEnded())
            else:
                self._clock.now += self._script.seconds_until_next(self._clock.now)

    def feed(self, *events: Event) -> None:
        self._events.extend(events)
        call, self._news = self._news, None
        if call:
            call()

    def drain(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def when_news(self, call: Callable[[], object]) -> None:
        self._news = call
        if self._events:
            self.feed()

    def close(self) -> None:
        self.closed = True
