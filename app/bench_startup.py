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
from app.watched import LOADING_PATIENCE, WatchedDashboard
from engine.progress import ModelError

ROUNDS = 5
SHORT_REQUEST = "s"
"""Key of a short request."""
COLUMNS = {"help": "nanoviz --help", "first_frame": "first frame", "first_token": "first token"}


class Start(msgspec.Struct, frozen=True):
    """Seconds after the command, and memory in MiB."""

    help: float
    """Until `nanoviz --help` had ended."""
    first_frame: float
    first_token: float
    """Of a request that was asked for at once."""
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
        yield f"memory then: {dashboard:.0f} MiB the dashboard, {engine:.0f} MiB its engine with {self.model}"
        if noisy:
            yield f"The machine was noisy: {', '.join(noisy)} differ by more than {MAX_SPREAD - 1:.0%}."


def bench_startup(options: EngineOptions) -> Iterator[Starts]:
    """Medians of ROUNDS starts, after one more that brings everything into memory."""
    yield Starts(options.model, [_start(options) for _ in range(1 + ROUNDS)][1:])


def _start(options: EngineOptions) -> Start:
    began = time.monotonic()
    subprocess.run([sys.executable, "-P", "-m", "app", "--help"], stdout=subprocess.DEVNULL, check=True)
    help_seconds = time.monotonic() - began
    began = time.monotonic()
    dashboard = WatchedDashboard(options)
    try:
        dashboard.terminal.press(SHORT_REQUEST)
        while not any(line.strip() for line in dashboard.lines()):
            _wait(dashboard, began)
        first_frame = time.monotonic() - began
        num_tokens = 0
        while not num_tokens:
            steps = dashboard.steps()
            num_tokens = steps.num_tokens if steps else 0
            _wait(dashboard, began)
        first_token = time.monotonic() - began
        memory = [process.memory_info().rss >> 20 for process in (dashboard.process, dashboard.engine)]
    finally:
        dashboard.close()
    return Start(help_seconds, first_frame, first_token, memory[0], memory[1])


def _wait(dashboard: WatchedDashboard, began: float) -> None:
    """A moment. Raises ModelError if it is the last one."""
    if dashboard.terminal.process.poll() is not None or time.monotonic() > began + LOADING_PATIENCE:
        raise ModelError("the dashboard did not start:\n" + "\n".join(dashboard.lines()).rstrip())
    time.sleep(0.002)
