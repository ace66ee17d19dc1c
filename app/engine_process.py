"""EngineProcess: the app's handle on the engine's process. Commands in, events out, and a clean end in any case."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import BinaryIO

import platformdirs

from app import protocol
from app.event_queue import EventQueue
from app.protocol import Command, EngineOptions, Event, Failed

CLOSE_SECONDS = 1.0
MAX_LOG_BYTES = 1 << 20


class EngineProcess:
    """Starts the engine in a child process of its own session, so that neither its output nor its keys are ours.

    Nothing here waits for a step: events are read by a thread and lie ready for `drain()`, and the child has a thread
    that takes commands at once.
    """

    def __init__(
        self,
        options: EngineOptions,
        log_path: Path | None = None,
        hear: Callable[[Event], object] = lambda _: None,
    ) -> None:
        """`hear` is told every event as it comes, on the thread that reads them, which waits meanwhile."""
        self.log_path = log_path or default_log_path()
        ours, theirs = socket.socketpair()
        with theirs, _open_log(self.log_path) as log:
            self._process = subprocess.Popen(
                # -P: a folder `app` where the user happens to stand is not ours
                [sys.executable, "-P", "-m", "app.worker", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                # A second thread of torch that spins while it waits takes the core that the screen needs.
                env={"OMP_WAIT_POLICY": "PASSIVE", **os.environ, "TOKENIZERS_PARALLELISM": "false"},
            )
        self._connection = Connection(ours.detach())
        self._sending = threading.Lock()
        self._hear = hear
        self._events = EventQueue()
        self._closing = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.send(options)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: Command | EngineOptions) -> None:
        """Send to the engine, from any thread; one that has died loses it, and says so with a Failed event."""
        with self._sending, suppress(OSError):
            self._connection.send_bytes(protocol.encode(message))

    def drain(self) -> list[Event]:
        """All events since the last call, in order."""
        return self._events.drain()

    def when_news(self, call: Callable[[], object]) -> None:
        """Call this as soon as there is something to drain: once, and from any thread."""
        self._events.when_news(call)

    def close(self) -> None:
        """End the child and all that it started. It has nothing to lose: what it keeps on disk it moves there whole."""
        self._closing = True
        self._kill_group()
        self._process.wait()
        self._reader.join(CLOSE_SECONDS)
        with self._sending:
            self._connection.close()

    def _kill_group(self) -> None:
        """Kill the child's session, unless the child has been waited for: then its number may be somebody else's."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _read(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                self._take(protocol.decode_event(self._connection.recv_bytes()))
        if not self._closing:
            self._take(Failed(self._epitaph()))

    def _take(self, event: Event) -> None:
        self._hear(event)
        self._events.put(event)

    def _epitaph(self) -> str:
        """How a child that closed the connection by itself ended."""
        # What it has started, such as pip, would live on. Its session can be named until it is reaped, so wait first.
        if hasattr(os, "waitid"):
            with suppress(ChildProcessError):
                os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
            self._kill_group()
        code = self._process.wait()
        if code < 0:
            return f"the engine's process was killed by signal {-code} ({signal.Signals(-code).name})."
        return f"the engine's process ended with exit code {code}; its output is in {self.log_path}."


def default_log_path() -> Path:
    return platformdirs.user_log_path("nanoviz") / "worker.log"


def _open_log(path: Path) -> BinaryIO:
    """The log to append to, begun anew when it has grown large; nowhere if it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        large = path.exists() and path.stat().st_size > MAX_LOG_BYTES
        return path.open("wb" if large else "ab")
    except OSError:
        return Path(os.devnull).open("ab")
