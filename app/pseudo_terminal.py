"""PseudoTerminal: a program on a terminal that this process plays, fast or slow. For measurements, not for people."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

COLUMNS, ROWS = 120, 40
QUERY, ANSWER = b"\x1b[?2026$p", b"\x1b[?2026;2$y"
"""Whether a frame can be shown at once, and that it can, which present terminals answer."""
FRAME_END = b"\x1b[?2026l"
CHUNK = 1024
"""Bytes that a slow terminal reads at a time."""
SEQUENCE = re.compile(
    r"\x1b\[(\d+);(\d+)H|\x1b\[(\d*)C|\x1b\[[^@-~]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|([^\x1b]+)|\x1b"
)
"""The cursor put somewhere, or to the right; what changes no text; and text."""


@dataclass(frozen=True, slots=True)
class Frame:
    """What was written up to the end of one update of the screen, and when the last of it had come.

    From a program that was not told that updates can be shown at once, any piece.
    """

    at: float
    data: bytes


class PseudoTerminal:
    """Starts the program, and reads what it writes in a thread."""

    def __init__(self, command: Sequence[str], pass_fds: Sequence[int] = (), *, answers: bool = True) -> None:
        self.bytes_per_second: float | None = None
        """How fast it reads: 0 not at all, None as fast as it can."""
        self.answers = answers
        self.frames: list[Frame] = []
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            pass_fds=pass_fds,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"},
        )
        os.close(slave)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def close(self) -> None:
        """End the program; it has given its terminal back or it does not matter."""
        if self.process.poll() is None:
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(5)
            self.process.kill()
            self.process.wait()
        self._reader.join(1)
        os.close(self._master)

    def _read(self) -> None:
        unfinished = b""
        end = b""
        due = time.monotonic()
        with suppress(OSError):  # the program has ended
            while True:
                while (speed := self.bytes_per_second) == 0:
                    time.sleep(0.01)
                data = os.read(self._master, CHUNK if speed else 1 << 16)
                if speed:
                    due = max(due, time.monotonic()) + len(data) / speed
                    time.sleep(max(0.0, due - time.monotonic()))
                ended = [data]
                if self.answers:
                    *ended, unfinished = (unfinished + data).split(FRAME_END)
                    os.write(self._master, ANSWER * (end + data).count(QUERY))
                    end = (end + data)[-len(QUERY) + 1 :]
                self.frames += (Frame(time.monotonic(), frame) for frame in ended)


class Screen:
    """The text that frames leave on a screen; of what moves the cursor it knows only what Textual and we write."""

    def __init__(self) -> None:
        self._rows = [[" "] * COLUMNS for _ in range(ROWS)]
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def show(self, frame: Frame) -> None:
        x = y = 0
        for match in SEQUENCE.finditer(self._decode(frame.data)):
            row, column, right, text = match.groups()
            if row:
                x, y = int(column) - 1, int(row) - 1
            elif right is not None:
                x += int(right or 1)
            elif text and y < ROWS:
                for character in text:
                    if x < COLUMNS:
                        self._rows[y][x] = character
                    x += 1

    @property
    def lines(self) -> list[str]:
        return ["".join(row) for row in self._rows]
