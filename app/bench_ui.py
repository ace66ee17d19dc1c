"""`nanoviz bench ui`: what the dashboard costs, measured on the program itself, on a terminal that we play."""

from __future__ import annotations

import re
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from statistics import median

import msgspec
import psutil

from app import protocol
from app.engine_process import EngineProcess
from app.latency import percentile
from app.protocol import EngineOptions
from app.pseudo_terminal import COLUMNS, ROWS, Frame, Screen
from app.watched import LOADING_PATIENCE, PATIENCE, Steps, WatchedDashboard, steps_of
from engine.progress import ModelError
from engine.request import SamplingParams

TERMINALS = {"fast terminal": None, "200 kB/s": 200_000, "20 kB/s": 20_000}
"""Bytes a second that they read."""
LOAD_KEYS = "b" * 8 + ">" * 6
"""More than there are seats for, and then about as many as are served."""
LOAD_SECONDS = 9.0
"""Until all seats are taken and the notes about the load are gone."""
IDLE_SECONDS = 6.0
NUM_KEYS = 40
KEY_SECONDS = 0.21
"""No multiple of the time between two frames: keys come at every moment of it."""
KEY_PATIENCE = 2.0
"""Seconds after which a key counts as lost."""
NUM_PAIRS = 9
RUN_SECONDS = 1.5
"""How long the engine works in each half of a pair, if every seat is taken."""
MAX_TOKENS = 20
SELECTED = "▸ "


class BareEngine:
    """An engine whose events are read and thrown away."""

    def __init__(self, options: EngineOptions) -> None:
        self._process = EngineProcess(options)
        self.send = self._process.send
        self.close = self._process.close

    def wait(self) -> None:
        end = time.monotonic() + LOADING_PATIENCE
        while time.monotonic() < end:
            for event in self._process.drain():
                if isinstance(event, protocol.Failed):
                    raise ModelError(event.error)
                if isinstance(event, protocol.Ready):
                    return
            time.sleep(0.05)
        raise ModelError("the engine did not start.")

    def steps(self) -> Steps | None:
        time.sleep(0.05)
        return steps_of(self._process.drain())


def tokens_per_second(engine: WatchedDashboard | BareEngine, num_requests: int) -> float:
    """Serve so many requests from the first step to the last, by the engine's own clock."""
    while engine.steps():
        pass  # of what was before
    engine.send(protocol.SetPaused(True))
    params = SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True)
    for number in range(num_requests):
        text = f"{number}: what would you like to be measured by?"
        engine.send(protocol.AddRequest(f"{next(_ids)}", text, "bench", params))
    engine.send(protocol.SetPaused(False))
    num_tokens, first, last = 0, None, 0.0
    end = time.monotonic() + PATIENCE
    while num_tokens < num_requests * MAX_TOKENS:
        if steps := engine.steps():
            first = steps.started if first is None else first
            last = steps.ended
            num_tokens += steps.num_tokens
        elif time.monotonic() > end:
            raise ModelError("the engine does not answer.")
    assert first is not None
    return num_tokens / (last - first)


_ids = (f"bench {number}" for number in count())


@dataclass(frozen=True, slots=True)
class Drawing:
    """How a terminal of some speed was served while the engine ran as fast as it can. Times in seconds."""

    latencies: list[float]
    """From a key to the frame that shows what it did; of keys whose effect was seen."""
    sizes: list[int]
    """Bytes of each frame."""
    seconds: float
    cpu: float
    """What the dashboard's process took of them."""
    slow_notice: str
    """What the screen says about the terminal."""


def measure_drawing(dashboard: WatchedDashboard, bytes_per_second: float | None) -> Drawing:
    """Go down and up in the list of requests, and look for the frames in which another one is selected."""
    terminal = dashboard.terminal
    terminal.bytes_per_second = bytes_per_second
    time.sleep(1)
    began, cpu = time.monotonic(), cpu_seconds(dashboard.process)
    pressed = []
    for _ in range(NUM_KEYS):
        row, before = selected(dashboard.lines()) or (0, "")
        pressed.append(time.monotonic())
        terminal.press("j" if row < ROWS // 2 else "k")
        now = before
        while now == before and time.monotonic() < pressed[-1] + KEY_PATIENCE:  # a late effect is not the next key's
            time.sleep(KEY_SECONDS)
            _, now = selected(dashboard.lines()) or (0, before)
    ended = time.monotonic()
    cpu = cpu_seconds(dashboard.process) - cpu
    time.sleep(0.5)
    frames = list(terminal.frames)
    sizes = [len(frame.data) for frame in frames if began <= frame.at < ended]
    notice = re.search(r"\d+ fps( slow terminal)?", dashboard.lines()[0])
    terminal.bytes_per_second = None
    return Drawing(latencies(frames, pressed), sizes, ended - began, cpu, notice[0] if notice else "nothing")


def selected(lines: Sequence[str]) -> tuple[int, str] | None:
    """Row and letter of the selected request, if it is in sight."""
    return next(((y, line[len(SELECTED)]) for y, line in enumerate(lines) if line.startswith(SELECTED)), None)


def latencies(frames: list[Frame], pressed: list[float]) -> list[float]:
    """For each key, when the letter of the selected request changed; keys whose effect was not seen are left out."""
    screen = Screen()
    changes: list[float] = []
    before = ""
    for frame in frames:
        screen.show(frame)
        _, letter = selected(screen.lines) or (0, before)
        if letter != before:
            changes.append(frame.at)
            before = letter
    found = []
    for key, following in zip(pressed, [*pressed[1:], pressed[-1] + PATIENCE], strict=True):
        index = bisect_left(changes, key)
        if index < len(changes) and changes[index] < following:
            found.append(changes[index] - key)
    return found


def cpu_seconds(process: psutil.Process) -> float:
    """What a process has had of the processor so far."""
    times = process.cpu_times()
    return float(times.user + times.system)


def bench_ui(options: EngineOptions) -> None:
    """Print everything: drawing with the model `tiny`, and the tax on its engine and on that of the settings."""
    print(f"the dashboard at {COLUMNS}x{ROWS}, on a terminal of its own", flush=True)
    tiny = msgspec.structs.replace(options, model="tiny")
    dashboard = WatchedDashboard(tiny)
    try:
        _print_drawing(dashboard)
    finally:
        dashboard.close()
    for one in (tiny, options) if options.model != "tiny" else (tiny,):
        _print_tax(one)


def _print_drawing(dashboard: WatchedDashboard) -> None:
    dashboard.wait_for("idle")
    _print_rest(dashboard, "idle")
    dashboard.terminal.press(LOAD_KEYS)
    time.sleep(LOAD_SECONDS)
    _print_table({name: measure_drawing(dashboard, speed) for name, speed in TERMINALS.items()})
    dashboard.terminal.press(" ")
    dashboard.wait_for("paused")
    _print_rest(dashboard, "paused, under load")
    last = 0
    while steps := dashboard.steps():
        last = steps.last
    memory = dashboard.process.memory_info().rss >> 20
    print(f"memory of the dashboard after {last + 1:,} steps: {memory} MiB", flush=True)


def _print_rest(dashboard: WatchedDashboard, state: str) -> None:
    """What it costs while nothing happens."""
    time.sleep(1)
    processes = (dashboard.process, dashboard.engine)
    before, num_frames = [cpu_seconds(process) for process in processes], len(dashboard.terminal.frames)
    time.sleep(IDLE_SECONDS)
    shares = [(cpu_seconds(process) - had) / IDLE_SECONDS for process, had in zip(processes, before, strict=True)]
    num_frames = len(dashboard.terminal.frames) - num_frames
    print(f"{state}: {shares[0]:.1%} of a core, its engine {shares[1]:.1%}; {num_frames} frames", flush=True)


def _print_table(drawings: dict[str, Drawing]) -> None:
    rows: list[tuple[str, Callable[[Drawing], str]]] = [
        ("key to frame, p50 and p95", lambda d: f"{_times(d.latencies)} ms"),
        ("keys whose effect was not seen", lambda d: f"{NUM_KEYS - len(d.latencies)} of {NUM_KEYS}"),
        ("bytes a frame, median and p95", lambda d: f"{median(d.sizes):,.0f} {percentile(sorted(d.sizes), 95):,.0f}"),
        ("frames a second", lambda d: f"{len(d.sizes) / d.seconds:.1f}"),
        ("CPU of the dashboard", lambda d: f"{d.cpu / d.seconds:.1%}"),
        ("it says", lambda d: d.slow_notice),
    ]
    print(f"{'tiny, as fast as it goes, under load':36}" + "".join(f"{name:>18}" for name in drawings))
    for what, value in rows:
        print(f"  {what:34}" + "".join(f"{value(drawing):>18}" for drawing in drawings.values()), flush=True)


def _print_tax(options: EngineOptions) -> None:
    """In turns, so that both see the same machine: the one that does not run is paused or has nothing to do."""
    bare = BareEngine(options)
    try:
        dashboard = WatchedDashboard(options)
        try:
            bare.wait()
            dashboard.wait_for("idle")
            pairs = _measure_pairs(bare, dashboard, options.config.max_num_seqs)
        finally:
            dashboard.close()
    finally:
        bare.close()
    without, with_it = (median(speeds) for speeds in zip(*pairs, strict=True))
    taxes = [1 - seen / alone for alone, seen in pairs]
    print(
        f"{options.model}: {without:,.0f} tokens/s without the dashboard, {with_it:,.0f} with it:"
        f" a tax of {median(taxes):.1%} (median of {len(taxes)} pairs: {', '.join(f'{tax:.1%}' for tax in taxes)})",
        flush=True,
    )


def _measure_pairs(bare: BareEngine, dashboard: WatchedDashboard, num_seats: int) -> list[tuple[float, float]]:
    """Tokens a second without the dashboard and with it, measured one right after the other; each begins in turn."""
    speed = min(tokens_per_second(engine, num_seats) for engine in (bare, dashboard))
    num_requests = max(num_seats, round(speed * RUN_SECONDS / MAX_TOKENS))
    pairs = []
    for number in range(NUM_PAIRS):
        first, second = (bare, dashboard) if number % 2 else (dashboard, bare)
        speeds = tokens_per_second(first, num_requests), tokens_per_second(second, num_requests)
        pairs.append(speeds if number % 2 else speeds[::-1])
    return pairs


def _times(seconds: Sequence[float]) -> str:
    if not seconds:
        return "never"
    return f"{1000 * median(seconds):.0f} {1000 * percentile(sorted(seconds), 95):.0f}"
