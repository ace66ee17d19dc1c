"""`nanoviz bench startup`: how long until something is there, and how much memory it takes."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from statistics import median

import msgspec

from app.bench_report import MAX_SPREAD
from app.protocol import EngineOptions
from app.pseudo_terminal import PseudoTerminal, Screen
from app.text import printable
from app.watched import LOADING_PATIENCE, Steps, WatchedDashboard
from engine.progress import ModelError

ROUNDS = 5
PROGRAM = [sys.executable, "-P", "-m", "app"]
MOMENT = 0.1
"""Seconds between two looks, which take their share of the processor."""
SHORT_REQUEST = "s"
"""Key of a short request."""
COLUMNS = {"help": "nanoviz --help", "first_frame": "first frame", "first_token": "first token"}


class Start(msgspec.Struct, frozen=True):
    """Seconds after the command, and memory in MiB."""

    help: float
    """Until `nanoviz --help` had ended."""
    first_frame: float
    first_token: float
    """Of a request that was asked for at once; of the program without its command line, which takes as long as help."""
    dashboard: int
    engine: int


class Starts(msgspec.Struct, frozen=True, tag=True):
    """Several, with all that they read from the disk already in the system's memory."""

    model: str
    starts: list[Start]

    def lines(self) -> Iterator[str]:
        noisy = []
        for name, title in COLUMNS.items():
            seconds = [getattr(start, name) for start in self.starts]
            yield f"{title:16}{median(seconds):6.2f} s  ({min(seconds):.2f} to {max(seconds):.2f})"
            if max(seconds) > MAX_SPREAD * min(seconds):
                noisy.append(title)
        dashboard, engine = (median(getattr(start, name) for start in self.starts) for name in ("dashboard", "engine"))
        model = printable(self.model)
        yield f"memory then: {dashboard:.0f} MiB the dashboard, {engine:.0f} MiB its engine with {model}"
        if noisy:
            yield f"The machine was noisy: {', '.join(noisy)} differ by more than {MAX_SPREAD - 1:.0%}."


def bench_startup(options: EngineOptions) -> Iterator[Starts]:
    """Medians of ROUNDS starts, after one more that brings everything into memory."""
    yield Starts(options.model, [_start(options) for _ in range(1 + ROUNDS)][1:])


def _start(options: EngineOptions) -> Start:
    began = time.monotonic()
    if subprocess.run([*PROGRAM, "--help"], stdout=subprocess.DEVNULL, check=False).returncode:
        raise ModelError("`nanoviz --help` has failed.")
    help_seconds = time.monotonic() - began
    return Start(help_seconds, _first_frame(options), *_first_token(options))


def _first_frame(options: EngineOptions) -> float:
    flags = {"model": options.model, "dtype": options.dtype, "device": options.device, "threads": options.threads}
    given = [f"--{name}={value}" for name, value in flags.items() if value is not None]
    began = time.monotonic()
    terminal = PseudoTerminal([*PROGRAM, *given])
    try:
        screen = Screen()
        for _ in range(round(LOADING_PATIENCE / MOMENT)):
            frames = list(terminal.frames)
            for frame in frames:
                screen.show(frame)
                if any(line.strip() for line in screen.lines):
                    return frame.at - began
            if terminal.process.poll() is not None:
                break
            time.sleep(MOMENT)
        raise ModelError("the dashboard did not start:\n" + "\n".join(screen.lines).rstrip())
    finally:
        terminal.close()


def _first_token(options: EngineOptions) -> tuple[float, int, int]:
    """Seconds, and MiB of the dashboard and its engine then."""
    began = time.monotonic()
    dashboard = WatchedDashboard(options)
    try:
        dashboard.terminal.press(SHORT_REQUEST)
        num_tokens = 0
        while not num_tokens:
            steps = dashboard.hear(Steps, MOMENT)
            num_tokens = steps.num_tokens if steps else 0
            dashboard.check()
        seconds = time.monotonic() - began
        memory = [process.memory_info().rss >> 20 for process in (dashboard.process, dashboard.engine)]
    finally:
        dashboard.close()
    return seconds, memory[0], memory[1]
