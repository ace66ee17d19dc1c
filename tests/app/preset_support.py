"""Presets for tests, and a stage on which they are played in this process: the real worker around a scripted model."""

from __future__ import annotations

import queue
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from app import protocol
from app.player import Part
from app.preset import Preset
from app.preset_files import load
from app.protocol import Cue, Event
from app.run import Run
from app.worker import EngineClock, Received, Worker
from engine.config import EngineConfig
from engine.core import LLMEngine
from engine.trace import StepTrace
from tests.engine.support import ScriptedRunner, byte_tokenizer

HEAD = 'title = "A test"\nmoral = "It holds."\n'
INJECT = "[[script]]\nstep = 0\ninject = { tokens = 5, max_tokens = 4 }\n"
EXPECT = '[[expect]]\ncheck = "served == 1"\n'


def text_of_preset(*, head: str = HEAD, middle: str = "", inject: str = INJECT, expect: str = EXPECT) -> str:
    """A preset that can be played, but for what a test puts in the place of one of its parts."""
    return f"{head}{middle}{inject}{expect}"


def written(folder: Path, text: str, name: str = "test.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def preset_of(folder: Path, **parts: str) -> Preset:
    return load(written(folder, text_of_preset(**parts)))


class _Over(Exception):
    """The script has ended."""


class _Audience:
    """In the place of the pipe to the app: keeps what is said until the script has ended."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def send_bytes(self, data: bytes) -> None:
        self.events.append(protocol.decode_event(data))
        if isinstance(self.events[-1], protocol.ScriptEnded):
            raise _Over


def _built(config: EngineConfig, clock: EngineClock) -> Any:
    tokenizer = byte_tokenizer()
    engine = LLMEngine(config, ScriptedRunner(config.block_size), tokenizer, clock=clock)
    model = SimpleNamespace(dtype="torch.float32", device="cpu")
    loaded = SimpleNamespace(model=model, tokenizer=tokenizer, name="scripted", random_weights=True, num_parameters=1)
    return SimpleNamespace(engine=engine, loaded=loaded, exactness=SimpleNamespace(bitwise=True))


def events_of(config: EngineConfig, cues: Iterable[Cue], run: int = 1) -> list[Event]:
    """All that the worker says of a script, up to its end."""
    commands: queue.SimpleQueue[Received] = queue.SimpleQueue()
    commands.put((0.0, protocol.Begin(run, config, tuple(cues))))
    audience = _Audience()
    clock = EngineClock()
    worker = Worker(_built(EngineConfig(), clock), _built, clock, commands, cast(Any, audience))
    try:
        worker.run()
    except _Over:
        return audience.events
    raise AssertionError("it never ends by itself")


def traces_of(part: Part) -> list[StepTrace]:
    """All steps of a scene; a pause does not hold it up."""
    cues = [cue for cue in part.cues if not isinstance(cue.command, protocol.SetPaused)]
    return [event.trace for event in events_of(part.config, cues) if isinstance(event, protocol.Stepped)]


def run_of(part: Part) -> Run:
    return Run(part.name, traces_of(part))
