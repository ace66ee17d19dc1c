"""The engine's process: loads the model, obeys commands, runs steps, sends traces.

Started by `app.engine_process` as `python -m app.worker FD` with one end of a socket pair. It has no terminal, and it
ends with the app: when the app's end of the socket closes, for whatever reason, it kills itself and its children.
"""

from __future__ import annotations

import gc
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from app import protocol
from app.protocol import Command, EngineOptions, Event
from engine.config import ConfigError
from engine.progress import ModelError
from engine.request import RequestError

if TYPE_CHECKING:
    from engine.core import LLMEngine


Received = tuple[float, Command]
"""A command, and when it came, by `time.perf_counter`."""


LONGEST_WAIT = 3600.0
"""Seconds; the system knows no wait of many years."""


class EngineClock:
    """The engine's time. It stands still while somebody has paused the engine: nobody waits for it meanwhile."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._skipped = 0.0
        self._stopped_at: float | None = None

    def __call__(self) -> float:
        return (self._clock() if self._stopped_at is None else self._stopped_at) - self._skipped

    def stop(self) -> None:
        if self._stopped_at is None:
            self._stopped_at = self._clock()

    def go_on(self) -> None:
        if self._stopped_at is not None:
            self._skipped += self._clock() - self._stopped_at
            self._stopped_at = None


class Worker:
    """The loop around the engine: commands first, then a step if there is one to make and the pace allows it."""

    def __init__(
        self, engine: LLMEngine, clock: EngineClock, commands: queue.SimpleQueue[Received], connection: Connection
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._commands = commands
        self._connection = connection
        self._paused = False
        self._steps_per_second = 0.0
        self._single_steps = 0
        self._next_step_at = 0.0
        self._began = time.perf_counter()

    def run(self) -> None:
        while True:
            self._obey_all()
            if self._steps_per_second:
                self._next_step_at = max(self._next_step_at, time.monotonic()) + 1 / self._steps_per_second
            self._clock.go_on()
            trace = self._engine.step()
            if self._paused:
                self._clock.stop()
            send(self._connection, protocol.Stepped(trace))
            self._single_steps = max(0, self._single_steps - 1)
            if not self._engine.has_news:
                self._single_steps = 0

    def _obey_all(self) -> None:
        """Obey what has come, and go on waiting for more until a step is due."""
        while True:
            try:
                self._obey(*self._commands.get(timeout=self._wait()))
            except queue.Empty:
                if self._wait() == 0:
                    return

    def _wait(self) -> float | None:
        """Seconds until the next step; None if only a command can bring one about."""
        if not self._engine.has_news or (self._paused and not self._single_steps):
            return None
        if self._paused or not self._steps_per_second:
            return 0
        return min(LONGEST_WAIT, max(0.0, self._next_step_at - time.monotonic()))

    def _obey(self, received: float, command: Command) -> None:
        """`received`: when it came. What came while the model was being loaded waits only from then on."""
        match command:
            case protocol.AddRequest(request_id, prompt, label, params, max_prompt_tokens, priority):
                try:
                    self._engine.add_request(
                        prompt,
                        params,
                        request_id=request_id,
                        priority=priority,
                        chat=True,
                        label=label,
                        truncate_prompt_tokens=max_prompt_tokens,
                        arrival_time=self._clock() - (time.perf_counter() - max(received, self._began)),
                    )
                except RequestError as error:
                    send(self._connection, protocol.Refused(request_id, str(error)))
                else:
                    request = self._engine.scheduler.requests[request_id]
                    send(self._connection, protocol.Accepted(request_id, request.num_prompt_tokens))
                return
            case protocol.Abort(request_id):
                self._engine.abort(request_id)
                return
            case protocol.Reconfigure(changes):
                try:
                    self._engine.reconfigure(**changes)
                except ConfigError as error:
                    send(self._connection, protocol.ReconfigureRefused(str(error)))
                else:
                    send(self._connection, protocol.Reconfigured(self._engine.config))
                return
            case protocol.SetPaused(paused):
                self._paused = paused
                self._single_steps = 0
                if paused:
                    self._clock.stop()
                else:
                    self._clock.go_on()
            case protocol.StepOnce():
                self._single_steps += self._paused and self._engine.has_news
            case protocol.SetSpeed(steps_per_second):
                self._steps_per_second = steps_per_second
                self._next_step_at = time.monotonic()
        send(self._connection, protocol.PaceSet(self._paused, self._steps_per_second))


def send(connection: Connection, event: Event) -> None:
    connection.send_bytes(protocol.encode(event))


def serve(connection: Connection) -> None:
    """Load what the app asks for and run it until the app is gone."""
    options = protocol.decode_options(connection.recv_bytes())
    commands: queue.SimpleQueue[Received] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(connection, commands), daemon=True).start()
    try:
        clock = EngineClock()
        Worker(_load(options, connection, clock), clock, commands, connection).run()
    except (BrokenPipeError, ConnectionResetError):
        raise  # the app is gone; nobody is there to be told anything
    except Exception as error:  # the process ends here, and its last words go to the screen
        expected = isinstance(error, ConfigError | ModelError)
        text = str(error) if expected else f"the engine stopped: {type(error).__name__}: {error}"
        traceback.print_exc()
        send(connection, protocol.Failed(text))


def _listen(connection: Connection, commands: queue.SimpleQueue[Received]) -> None:
    """Take commands off the pipe at once, so that none is lost and the app never waits for a step to end."""
    try:
        while True:
            command = protocol.decode_command(connection.recv_bytes())
            commands.put((time.perf_counter(), command))
    except (EOFError, OSError):
        pass  # the app is gone
    finally:
        if os.getpgid(0) == os.getpid():  # our own session, as we are started: us and what we started, such as pip
            os.killpg(0, signal.SIGKILL)
        os._exit(1)


def _load(options: EngineOptions, connection: Connection, clock: EngineClock) -> LLMEngine:
    send(connection, protocol.Loading("starting the engine"))
    # Imports make a million objects that stay: looking for garbage among them costs a quarter of the loading time.
    gc.disable()
    import torch

    from engine.build import build_engine

    built = build_engine(
        options.model,
        options.config,
        dtype=options.dtype,
        device=options.device,
        threads=options.threads,
        report=lambda progress: send(connection, protocol.Loading(progress.what, progress.done, progress.total)),
        clock=clock,
    )
    model = built.loaded.model
    ready = protocol.Ready(
        model=built.loaded.name,
        num_parameters=model.num_parameters(),
        dtype=str(model.dtype).removeprefix("torch."),
        device=str(model.device),
        threads=torch.get_num_threads(),
        exactness=str(built.exactness),
        bitwise=built.exactness.bitwise,
        random_weights=built.loaded.random_weights,
    )
    gc.freeze()
    gc.enable()
    send(connection, ready)
    return built.engine


if __name__ == "__main__":
    # The app answers Ctrl+C and closes the connection; the signal itself must not cut a step short.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        serve(Connection(int(sys.argv[1])))
    except (BrokenPipeError, ConnectionResetError, EOFError):
        sys.exit(0)
