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
from math import inf
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from app import protocol
from app.protocol import Command, EngineOptions, Event
from app.script import Script
from engine.config import ConfigError, EngineConfig
from engine.progress import ModelError
from engine.request import RequestError

if TYPE_CHECKING:
    from engine.build import BuiltEngine


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


Serve = Callable[[EngineConfig, EngineClock], "BuiltEngine"]
"""Makes an engine around the model that is loaded. Raises ConfigError if the model cannot follow the configuration."""


class Worker:
    """The loop around the engine: commands first, then a step if there is one to make and the pace allows it.

    `built` is the engine of the first run; `serve` makes those of the others, around the same model.
    """

    def __init__(
        self,
        built: BuiltEngine,
        serve: Serve,
        clock: EngineClock,
        commands: queue.SimpleQueue[Received],
        connection: Connection,
    ) -> None:
        self._serve = serve
        self._commands = commands
        self._connection = connection
        self._paused = False
        self._steps_per_second = 0.0
        self._single_steps = 0
        self._next_step_at = 0.0
        self._start(built, clock, None)

    def _start(self, built: BuiltEngine, clock: EngineClock, asked: protocol.Begin | None) -> None:
        """Begin a run, and say so. Nobody has asked for the first one."""
        self._engine = built.engine
        self._tokenizer = built.loaded.tokenizer
        self._clock = clock
        self._began = time.perf_counter()
        self._began_at = clock()
        """The same moment on the engine's clock."""
        self._script = Script(asked.cues) if asked else None
        if self._paused:
            clock.stop()
        send(self._connection, ready(built, asked))

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
            if not self._has_work:
                self._single_steps = 0

    def _obey_all(self) -> None:
        """Obey what has come and what the script says, and go on waiting for more until a step is due."""
        while True:
            self._follow_script()
            try:
                self._obey(*self._commands.get(timeout=self._wait()))
            except queue.Empty:
                if self._engine.has_news and self._wait() == 0:
                    return

    @property
    def _has_work(self) -> bool:
        """There is a step to make, or the script will bring one about."""
        return self._engine.has_news or (self._script is not None and not self._script.is_over)

    @property
    def _is_held(self) -> bool:
        return self._paused and not self._single_steps

    def _wait(self) -> float | None:
        """Seconds until the next step, or until the script goes on; None if only a command can bring one about."""
        if self._is_held or not self._has_work:
            return None
        until_cue = self._script.seconds_until_next(self._clock() - self._began_at) if self._script else inf
        if not self._engine.has_news:
            return min(LONGEST_WAIT, until_cue)
        if self._paused or not self._steps_per_second:
            return 0
        return min(LONGEST_WAIT, until_cue, max(0.0, self._next_step_at - time.monotonic()))

    def _follow_script(self) -> None:
        """Obey what is due before the next step, and tell when the script has nothing left and nobody is there."""
        while self._script is not None and (not self._is_held or not self._has_work):
            now = self._clock() - self._began_at
            cue = self._script.next_due(self._engine.num_steps, now, idle=not self._engine.has_news)
            if cue is not None:
                late = 0.0 if cue.second is None else now - cue.second
                self._obey(time.perf_counter() - late, cue.command)
            elif self._has_work:
                return
            else:
                self._script = None
                self._single_steps = 0
                if self._paused:
                    self._clock.stop()
                send(self._connection, protocol.ScriptEnded())

    def _obey(self, received: float, command: Command) -> None:
        """`received`: when it came. What came while the model was being loaded waits only from then on."""
        match command:
            case protocol.AddRequest():
                self._add(received, command)
                return
            case protocol.Note(text):
                self._engine.note(text)
                return
            case protocol.Begin():
                self._begin(command)
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
                self._single_steps += self._paused and self._has_work
                if self._single_steps and not self._engine.has_news:
                    self._clock.go_on()  # the script may wait for a second
            case protocol.SetSpeed(steps_per_second):
                self._steps_per_second = steps_per_second
                self._next_step_at = time.monotonic()
        send(self._connection, protocol.PaceSet(self._paused, self._steps_per_second))

    def _add(self, received: float, asked: protocol.AddRequest) -> None:
        prompt = [token_id for piece in asked.pieces for token_id in self._token_ids(piece)] or asked.prompt
        try:
            self._engine.add_request(
                prompt,
                asked.params,
                request_id=asked.request_id,
                priority=asked.priority,
                chat=not asked.raw,
                label=asked.label,
                truncate_prompt_tokens=asked.max_prompt_tokens,
                arrival_time=self._clock() - (time.perf_counter() - max(received, self._began)),
            )
        except RequestError as error:
            send(self._connection, protocol.Refused(asked.request_id, str(error), error.parameter, asked.from_client))
        else:
            request = self._engine.scheduler.requests[asked.request_id]
            if asked.from_client:
                send(self._connection, protocol.FromClient(asked))
            send(self._connection, protocol.Accepted(asked.request_id, request.num_prompt_tokens))

    def _token_ids(self, piece: protocol.Piece) -> list[int]:
        token_ids = self._tokenizer.encode(piece.text)
        return (token_ids * -(-piece.num_tokens // len(token_ids)))[: piece.num_tokens] if token_ids else []

    def _begin(self, asked: protocol.Begin) -> None:
        """Another engine, which may have the memory of the one before it."""
        del self._engine
        self._single_steps = 0  # those that are still owed were meant for the run before
        clock = EngineClock()
        self._start(self._serve(asked.config, clock), clock, asked)


def ready(built: BuiltEngine, asked: protocol.Begin | None) -> protocol.Ready:
    """What the screen says of a model and its engine, and of what was asked to be played."""
    import torch

    model = built.loaded.model
    return protocol.Ready(
        model=built.loaded.name,
        num_parameters=built.loaded.num_parameters,
        dtype=str(model.dtype).removeprefix("torch."),
        device=str(model.device),
        threads=torch.get_num_threads(),
        exactness=str(built.exactness),
        bitwise=built.exactness.bitwise,
        random_weights=built.loaded.random_weights,
        run=asked.run if asked else 0,
        preset=asked.preset if asked else "",
        scene=asked.scene if asked else "",
    )


def send(connection: Connection, event: Event) -> None:
    connection.send_bytes(protocol.encode(event))


def serve(connection: Connection) -> None:
    """Load what the app asks for and run it until the app is gone."""
    options = protocol.decode_options(connection.recv_bytes())
    commands: queue.SimpleQueue[Received] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(connection, commands), daemon=True).start()
    try:
        clock = EngineClock()
        Worker(*_load(options, connection, clock), clock, commands, connection).run()
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


def _load(options: EngineOptions, connection: Connection, clock: EngineClock) -> tuple[BuiltEngine, Serve]:
    send(connection, protocol.Loading("starting the engine"))
    # Imports make a million objects that stay: looking for garbage among them costs a quarter of the loading time.
    gc.disable()
    from engine.build import build_engine, serve_model

    built = build_engine(
        options.model,
        options.config,
        dtype=options.dtype,
        device=options.device,
        threads=options.threads,
        report=lambda progress: send(connection, protocol.Loading(progress.what, progress.done, progress.total)),
        clock=clock,
    )
    gc.freeze()
    gc.enable()
    loaded = built.loaded  # and not the engine as well, whose memory another one is to have
    return built, lambda config, clock: serve_model(loaded, config, clock=clock)


if __name__ == "__main__":
    # The app answers Ctrl+C and closes the connection; the signal itself must not cut a step short.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        serve(Connection(int(sys.argv[1])))
    except (BrokenPipeError, ConnectionResetError, EOFError):
        sys.exit(0)
