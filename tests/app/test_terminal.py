"""The program on a terminal of its own: it draws, it leaves when asked in every phase, and gives the terminal back."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pyte
import pytest

from app.recording import Recording
from tests.app.test_worker import PATIENCE, is_alive, wait_for

COLUMNS, ROWS = 120, 40
ALTERNATE_SCREEN, CURSOR_HIDDEN, MOUSE = 1049, 25, 1000


class Terminal:
    """nanoviz on a pty, with a screen that understands what it writes."""

    def __init__(self, *arguments: str, environment: dict[str, str] | None = None) -> None:
        self.screen = pyte.Screen(COLUMNS, ROWS)
        self._stream = pyte.ByteStream(self.screen)
        self.written = b""
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self.settings_before = termios.tcgetattr(slave)
        self._slave = slave
        self.process = subprocess.Popen(
            [sys.executable, "-m", "app.cli", *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", **(environment or {})},
        )

    def read(self) -> None:
        while select.select([self._master], [], [], 0.02)[0]:
            data = os.read(self._master, 65536)
            self.written += data
            # pyte does not know private sequences with > or $ and would print them
            self._stream.feed(_without_queries(data))

    @property
    def text(self) -> str:
        self.read()
        return "\n".join(self.screen.display)

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def wait_for(self, *words: str) -> str:
        try:
            wait_for(lambda: all(word in self.text for word in words))
        except AssertionError:
            raise AssertionError(f"{words} never came; the screen:\n{self.text}") from None
        return self.text

    def worker_pids(self) -> list[int]:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [int(pid) for pid in children if "app.worker" in Path(f"/proc/{pid}/cmdline").read_text()]

    def wait(self) -> int:
        end = time.monotonic() + PATIENCE
        while self.process.poll() is None:
            self.read()
            assert time.monotonic() < end, "it does not leave"
        self.read()
        return self.process.returncode

    def assert_restored(self) -> None:
        assert termios.tcgetattr(self._slave) == self.settings_before
        for mode in (ALTERNATE_SCREEN, MOUSE):
            assert self.written.rfind(b"\x1b[?%dl" % mode) > self.written.rfind(b"\x1b[?%dh" % mode)
        assert self.written.rfind(b"\x1b[?25h") > self.written.rfind(b"\x1b[?25l")
        assert b"Traceback" not in self.written

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._master)
        os.close(self._slave)


def _without_queries(data: bytes) -> bytes:
    for query in (b"\x1b[>1u", b"\x1b[<u", b"\x1b[?2026$p", b"\x1b[?2048$p"):
        data = data.replace(query, b"")
    return data


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    terminal = Terminal("--model", "tiny")
    yield terminal
    terminal.close()


@pytest.mark.parametrize(
    ("phase", "key"),
    [
        *(("loading", "q"), ("loading", "\x03"), ("running", "q"), ("running", "\x03")),
        *(("paused", "q"), ("dead", "\x03"), ("help", "q"), ("help", "\x03")),
    ],
    ids=lambda value: {"\x03": "ctrl+c"}.get(value, value),
)
def test_leaves_in_every_phase(terminal: Terminal, phase: str, key: str) -> None:
    terminal.wait_for("nanoviz")
    workers = terminal.worker_pids()
    assert len(workers) == 1
    if phase != "loading":
        terminal.wait_for("idle")
    if phase in ("running", "paused"):
        terminal.press("ll")
        terminal.wait_for("1 token")
    if phase == "paused":
        terminal.press(" ")
        terminal.wait_for("paused")
    if phase == "dead":
        os.kill(workers[0], signal.SIGKILL)
        terminal.wait_for("dead", "SIGKILL", "starts it again")
    if phase == "help":
        terminal.press("?")
        terminal.wait_for("esc closes")
        terminal.press("\x1b" if key == "q" else "")
        if key == "q":
            wait_for(lambda: "esc closes" not in terminal.text)
    terminal.press(key)
    assert terminal.wait() == 0
    terminal.assert_restored()
    wait_for(lambda: not any(is_alive(pid) for pid in workers))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_gives_the_terminal_back(terminal: Terminal, number: signal.Signals) -> None:
    terminal.wait_for("idle")
    workers = terminal.worker_pids()
    terminal.process.send_signal(number)
    assert terminal.wait() == 128 + number
    terminal.assert_restored()
    wait_for(lambda: not any(is_alive(pid) for pid in workers))


def test_keys_typed_before_the_model_is_there_are_not_lost(terminal: Terminal) -> None:
    terminal.wait_for("nanoviz")
    terminal.press("sl")
    terminal.wait_for("finished 2")


def test_a_killed_worker_can_be_started_again(terminal: Terminal) -> None:
    terminal.wait_for("idle")
    os.kill(terminal.worker_pids()[0], signal.SIGKILL)
    terminal.wait_for("dead")
    terminal.press("r")
    terminal.wait_for("idle")
    terminal.press("s")
    terminal.wait_for("finished 1")


def test_what_the_model_writes_neither_styles_nor_moves_anything(terminal: Terminal) -> None:
    """Random weights on a byte tokenizer write control characters all the time."""
    terminal.wait_for("idle")
    terminal.press("bb")
    text = terminal.wait_for("finished 12")
    assert text.splitlines()[0].startswith(" nanoviz ")
    body = text.splitlines()[1:-3]  # between the header and the timeline, which goes across, like the footer
    border = body[0].index("▏")
    assert all(line[border] == "▏" for line in body), text
    # Textual ends commands to the terminal with a bell; no other may ring.
    assert b"\x07" not in re.sub(rb"\x1b\][^\x07\x1b]*\x07", b"", terminal.written)


@pytest.mark.parametrize(
    "environment",
    [{"COLORTERM": "", "TERM": "xterm"}, {"COLORTERM": "", "TERM": "xterm-256color"}],
    ids=["16 colors", "256 colors"],
)
def test_other_terminals(environment: dict[str, str]) -> None:
    terminal = Terminal("--model", "tiny", environment=environment)
    try:
        terminal.wait_for("idle")
        terminal.press("s")
        terminal.wait_for("finished 1", "done: ")
        terminal.press("q")
        assert terminal.wait() == 0
        terminal.assert_restored()
    finally:
        terminal.close()


@pytest.mark.parametrize("name", ["run.jsonl", "run.gz"])
def test_what_was_recorded_is_there_after_the_program_was_killed(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    terminal = Terminal("--model", "tiny", "--record", str(path))
    try:
        terminal.wait_for("idle")
        terminal.press("s")
        terminal.wait_for("finished 1", "done: ")
        wait_for(lambda: bool(Recording(path).traces[-1].finished))
    finally:
        terminal.close()
    traces = Recording(path).traces
    assert traces[0].arrivals and traces[-1].finished
    replay = Terminal("replay", str(path), "--step", str(len(traces)))
    try:
        replay.wait_for("recording", "finished 1", "paused")
        replay.press("q")
        assert replay.wait() == 0
        replay.assert_restored()
    finally:
        replay.close()
