"""The dashboard as benchmarks watch it: a program on a terminal that they play, whose engine obeys them as well.

`WatchedDashboard` is their end; `run_watched` is the program's, in a process of its own.
"""

from __future__ import annotations

import queue
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import TypeVar

import msgspec
import psutil

from app import protocol
from app.dashboard import Dashboard
from app.engine_process import EngineProcess
from app.protocol import EngineOptions, Event
from app.pseudo_terminal import PseudoTerminal, Screen
from engine.progress import ModelError

LOADING_PATIENCE = 600.0
"""Seconds to wait for a model, which may have to be fetched."""
PATIENCE = 60.0
"""Seconds to wait for a step."""
Message = TypeVar("Message", bound=msgspec.Struct)


class Steps(msgspec.Struct, frozen=True):
    """What the steps that came together had in common."""

    started: float
    ended: float
    """On the engine's clock."""
    last: int
    """Number of the last of them."""
    num_tokens: int
    """Output tokens."""
    num_running: int
    """That the last computed."""
    num_waiting: int
    """After the last."""


def steps_of(events: Iterable[Event]) -> Steps | None:
    traces = [event.trace for event in events if isinstance(event, protocol.Stepped)]
    if not traces:
        return None
    ended = traces[-1].started + traces[-1].times.total
    num_tokens = sum(len(trace.outputs) for trace in traces)
    newest = traces[-1]
    return Steps(traces[0].started, ended, newest.step, num_tokens, len(newest.scheduled), newest.num_waiting)


class WatchedEngine(EngineProcess):
    """The dashboard's engine, which the benchmark can send commands to as well, and which it hears of."""

    def __init__(self, options: EngineOptions, benchmark: Connection) -> None:
        self._benchmark = benchmark
        self._lock = threading.Lock()
        super().__init__(options)
        threading.Thread(target=self._obey, daemon=True).start()

    def send(self, message: protocol.Command | EngineOptions) -> None:
        with self._lock:
            super().send(message)

    def drain(self) -> list[Event]:
        events = super().drain()
        if steps := steps_of(events):
            self._benchmark.send_bytes(msgspec.msgpack.encode(steps))
        return events

    def _obey(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                self.send(protocol.decode_command(self._benchmark.recv_bytes()))


def run_watched(options: str, benchmark: Connection, engine: Callable[..., WatchedEngine] = WatchedEngine) -> Dashboard:
    """Be the program, until somebody leaves it; returns what is left of it."""
    dashboard = Dashboard(msgspec.json.decode(options, type=EngineOptions), partial(engine, benchmark=benchmark))
    try:
        dashboard.run()
    finally:
        dashboard.session.close()
    return dashboard


class WatchedDashboard:
    """The program, seen from outside."""

    def __init__(self, options: EngineOptions, module: str = __name__, *arguments: str) -> None:
        """`module` is what runs there; it is told the options, the number of its end of a socket, and `arguments`."""
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-P", "-m", module, msgspec.json.encode(options).decode(), str(theirs.fileno())]
            self.terminal = PseudoTerminal([*command, *arguments], [theirs.fileno()])
        self._engine = Connection(ours.detach())
        self._said: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()
        self.process = psutil.Process(self.terminal.process.pid)
        self._screen = Screen()
        self._num_shown = 0

    @property
    def engine(self) -> psutil.Process:
        """The process of its engine."""
        return self.process.children()[0]

    def lines(self) -> list[str]:
        """What stands on the screen now."""
        frames = self.terminal.frames
        while self._num_shown < len(frames):
            self._screen.show(frames[self._num_shown])
            self._num_shown += 1
        return self._screen.lines

    def forget_frames(self) -> None:
        """Let go of all that was drawn so far, for whoever stays long; `lines` still shows what came of it."""
        self.lines()
        del self.terminal.frames[: self._num_shown]
        self._num_shown = 0

    def wait_for(self, word: str) -> None:
        """Until the first line says so. Raises ModelError with what it says instead."""
        end = time.monotonic() + LOADING_PATIENCE
        while word not in self.lines()[0]:
            self.check()
            if time.monotonic() > end:
                raise ModelError(f"the dashboard does not become {word}.")
            time.sleep(0.1)

    def check(self) -> None:
        """Raises ModelError, with what the screen says, if the program or its engine has ended."""
        if self.terminal.process.poll() is not None or "dead" in self.lines()[0]:
            raise ModelError("the dashboard did not start:\n" + "\n".join(self.lines()).rstrip())

    def send(self, command: protocol.Command) -> None:
        """To its engine."""
        self._engine.send_bytes(protocol.encode(command))

    def steps(self) -> Steps | None:
        """Steps that came together; waits a little for some."""
        return self.hear(Steps, 0.05)

    def hear(self, kind: type[Message], seconds: float = LOADING_PATIENCE) -> Message | None:
        """The next that it says, which is of this kind; None if nothing comes."""
        with suppress(queue.Empty):
            return msgspec.msgpack.decode(self._said.get(timeout=seconds), type=kind)
        return None

    def _listen(self) -> None:
        """Whatever it says is taken from it at once: it must not wait for us."""
        with suppress(EOFError, OSError):
            while True:
                self._said.put(self._engine.recv_bytes())

    def close(self) -> None:
        self.terminal.close()
        self._engine.close()


if __name__ == "__main__":
    run_watched(sys.argv[1], Connection(int(sys.argv[2])))
