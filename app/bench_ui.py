"""`nanoviz bench ui`: what the dashboard costs, measured on the program itself, on a terminal that we play."""

from __future__ import annotations

import re
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count, pairwise
from multiprocessing import Pipe
from statistics import median

import msgspec
import psutil

from app import protocol
from app.bench_report import Heading, Result
from app.engine_process import EngineProcess
from app.latency import percentile
from app.protocol import EngineOptions, Event
from app.pseudo_terminal import COLUMNS, ROWS, Frame, Screen
from app.text import printable
from app.watched import LOADING_PATIENCE, PATIENCE, Steps, WatchedDashboard, steps_of
from engine.progress import ModelError
from engine.request import SamplingParams
from engine.trace import StepTrace

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
QUIET_SECONDS = 3.0
"""Without a step: all requests have ended."""
SELECTED = "▸ "
CROWD_SEATS, CROWD_WAITING, CROWD_BLOCKS, CROWD_TOKENS = 256, 10_000, 4_096, 256
"""Requests that run and that wait; blocks, and tokens that a request may have, so that all who run fit in."""
CROWD_READINGS = 10
"""Messages about steps of which a median is made."""
MAX_TRACED = 256
"""Requests in a trace whose cost is measured: what tells of many more does not fit into a pipe at once."""


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
        return steps_of(self.events())

    def events(self) -> list[Event]:
        time.sleep(0.05)
        return self._process.drain()


def add_requests(engine: WatchedDashboard | BareEngine, num_requests: int, num_tokens: int = MAX_TOKENS) -> None:
    params = SamplingParams(max_tokens=num_tokens, ignore_eos=True)
    for number in range(num_requests):
        text = f"{number}: what would you like to be measured by?"
        engine.send(protocol.AddRequest(f"{next(_ids)}", text, "bench", params))


def tokens_per_second(engine: WatchedDashboard | BareEngine, num_requests: int) -> float:
    """Serve so many requests from the first step to the last, by the engine's own clock."""
    while engine.steps():
        pass  # of what was before
    engine.send(protocol.SetPaused(True))
    add_requests(engine, num_requests)
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


class Drawing(msgspec.Struct, frozen=True):
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


class Drawings(msgspec.Struct, frozen=True, tag=True):
    """By terminal."""

    terminals: dict[str, Drawing]

    def lines(self) -> Iterator[str]:
        rows: list[tuple[str, Callable[[Drawing], str]]] = [
            ("key to frame, p50 and p95", lambda d: f"{_times(d.latencies)} ms"),
            ("keys whose effect was not seen", lambda d: f"{NUM_KEYS - len(d.latencies)} of {NUM_KEYS}"),
            (
                "bytes a frame, median and p95",
                lambda d: f"{median(d.sizes):,.0f} {percentile(sorted(d.sizes), 95):,.0f}",
            ),
            ("frames a second", lambda d: f"{len(d.sizes) / d.seconds:.1f}"),
            ("CPU of the dashboard", lambda d: f"{d.cpu / d.seconds:.1%}"),
            ("it says", lambda d: d.slow_notice),
        ]
        yield f"{'tiny, as fast as it goes, under load':36}" + "".join(f"{name:>18}" for name in self.terminals)
        for what, value in rows:
            yield f"  {what:34}" + "".join(f"{value(drawing):>18}" for drawing in self.terminals.values())


class Rest(msgspec.Struct, frozen=True, tag=True):
    """What the program costs while nothing happens: shares of a core."""

    state: str
    dashboard: float
    engine: float
    num_frames: int

    def lines(self) -> Iterator[str]:
        yield f"{self.state}: {self.dashboard:.1%} of a core, its engine {self.engine:.1%}; {self.num_frames} frames"


class Memory(msgspec.Struct, frozen=True, tag=True):
    """Of the dashboard's process, after so many steps."""

    num_steps: int
    dashboard: int
    """MiB."""

    def lines(self) -> Iterator[str]:
        yield f"memory of the dashboard after {self.num_steps:,} steps: {self.dashboard} MiB"


class Load(msgspec.Struct, frozen=True):
    """Medians of steps under a load."""

    num_running: int
    num_waiting: int
    step: float
    """Seconds."""


class Crowd(msgspec.Struct, frozen=True, tag=True):
    """Very many requests at once. Medians of what was seen; times in seconds."""

    alone: Load
    """All seats taken, nobody waiting."""
    crowded: Load
    num_blocks: int
    drawing: Drawing

    def lines(self) -> Iterator[str]:
        drawing, alone, crowded = self.drawing, self.alone, self.crowded
        yield f"tiny with {self.num_blocks:,} blocks:"
        for load in (alone, crowded):
            yield f"  {load.num_running} running, {load.num_waiting:,} waiting: a step takes {1000 * load.step:.1f} ms"
        yield (
            f"  then key to frame, p50 and p95 {_times(drawing.latencies)} ms ({NUM_KEYS - len(drawing.latencies)} of "
            f"{NUM_KEYS} keys without effect), {len(drawing.sizes) / drawing.seconds:.1f} frames a second"
        )


class TraceCost(msgspec.Struct, frozen=True, tag=True):
    """What it takes to tell the dashboard of a step: medians, in seconds, of steps in which as many as ever decode."""

    model: str
    num_bytes: int
    encoding: float
    piping: float
    decoding: float
    step: float

    def lines(self) -> Iterator[str]:
        parts = (self.encoding, self.piping, self.decoding)
        encoding, piping, decoding = (f"{1e6 * seconds:.0f}" for seconds in parts)
        yield (
            f"{printable(self.model)}: a trace is {self.num_bytes:,} bytes; {encoding} us to encode, {piping} to pipe, "
            f"{decoding} to decode: {sum(parts) / self.step:.1%} of its step of {1000 * self.step:.1f} ms"
        )


class Tax(msgspec.Struct, frozen=True, tag=True):
    """Tokens a second of the engine without the dashboard and with it, in pairs."""

    model: str
    pairs: list[tuple[float, float]]

    def lines(self) -> Iterator[str]:
        without, with_it = (median(speeds) for speeds in zip(*self.pairs, strict=True))
        taxes = [1 - seen / alone for alone, seen in self.pairs]
        yield (
            f"{printable(self.model)}: {without:,.0f} tokens/s without the dashboard, {with_it:,.0f} with it:"
            f" a tax of {median(taxes):.1%} (median of {len(taxes)} pairs: {', '.join(f'{tax:.1%}' for tax in taxes)})"
        )


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


def bench_ui(options: EngineOptions) -> Iterator[Result]:
    """Everything: drawing and a crowd with the model `tiny`, and traces and the tax, also with that of the settings."""
    tiny = msgspec.structs.replace(options, model="tiny")
    yield Heading(f"the dashboard at {COLUMNS}x{ROWS}, on a terminal of its own")
    dashboard = WatchedDashboard(tiny)
    try:
        yield from _drawing(dashboard)
    finally:
        dashboard.close()
    yield _crowd(tiny)
    for one in (tiny, options) if options.model != "tiny" else (tiny,):
        yield from _compared(one)


def _drawing(dashboard: WatchedDashboard) -> Iterator[Result]:
    dashboard.wait_for("idle")
    yield _rest(dashboard, "idle")
    dashboard.terminal.press(LOAD_KEYS)
    time.sleep(LOAD_SECONDS)
    yield Drawings({name: measure_drawing(dashboard, speed) for name, speed in TERMINALS.items()})
    dashboard.terminal.press(" ")
    dashboard.wait_for("paused")
    yield _rest(dashboard, "paused, under load")
    last = 0
    while steps := dashboard.steps():
        last = steps.last
    yield Memory(last + 1, dashboard.process.memory_info().rss >> 20)


def _rest(dashboard: WatchedDashboard, state: str) -> Rest:
    time.sleep(1)
    processes = (dashboard.process, dashboard.engine)
    before, num_frames = [cpu_seconds(process) for process in processes], len(dashboard.terminal.frames)
    time.sleep(IDLE_SECONDS)
    took = [(cpu_seconds(process) - had) / IDLE_SECONDS for process, had in zip(processes, before, strict=True)]
    return Rest(state, took[0], took[1], len(dashboard.terminal.frames) - num_frames)


def _crowd(options: EngineOptions) -> Crowd:
    config = replace(
        options.config,
        max_num_seqs=CROWD_SEATS,
        num_blocks=CROWD_BLOCKS + 1,
        block_size=CROWD_TOKENS * CROWD_SEATS // CROWD_BLOCKS,
        max_model_len=CROWD_TOKENS,
        max_num_batched_tokens=max(options.config.max_num_batched_tokens, 2 * CROWD_SEATS),
    )
    dashboard = WatchedDashboard(msgspec.structs.replace(options, config=config))
    try:
        dashboard.wait_for("idle")
        add_requests(dashboard, CROWD_SEATS, CROWD_TOKENS)
        alone = _load(dashboard, lambda steps: steps.num_waiting == 0 and steps.num_running == CROWD_SEATS)
        dashboard.send(protocol.SetPaused(True))  # until they have all come
        add_requests(dashboard, CROWD_WAITING, CROWD_TOKENS)
        dashboard.send(protocol.SetPaused(False))
        crowded = _load(dashboard, lambda steps: steps.num_waiting > CROWD_WAITING // 2)
        drawing = measure_drawing(dashboard, None)
    finally:
        dashboard.close()
    return Crowd(alone, crowded, CROWD_BLOCKS, drawing)


def _load(dashboard: WatchedDashboard, holds: Callable[[Steps], bool]) -> Load:
    """What steps take, as long as `holds` says so of two messages in a row. Raises ModelError if it never does."""
    found: list[tuple[int, int, float]] = []
    last: Steps | None = None
    heard = time.monotonic()
    while len(found) < CROWD_READINGS and time.monotonic() < heard + (QUIET_SECONDS if found else PATIENCE):
        if steps := dashboard.steps():
            heard = time.monotonic()
            if last and holds(last) and holds(steps):
                seconds = (steps.ended - last.ended) / (steps.last - last.last)
                found.append((steps.num_running, steps.num_waiting, seconds))
            last = steps
    if not found:
        raise ModelError("the requests have ended before their steps could be measured.")
    running, waiting, step = (median(column) for column in zip(*found, strict=True))
    return Load(round(running), round(waiting), step)


def _compared(options: EngineOptions) -> Iterator[Result]:
    """In turns, so that both see the same machine: the one that does not run is paused or has nothing to do."""
    bare = BareEngine(options)
    try:
        dashboard = WatchedDashboard(options)
        try:
            bare.wait()
            dashboard.wait_for("idle")
            yield _trace_cost(bare, options)
            yield Tax(options.model, _measure_pairs(bare, dashboard, options.config.max_num_seqs))
        finally:
            dashboard.close()
    finally:
        bare.close()


def _trace_cost(engine: BareEngine, options: EngineOptions) -> TraceCost:
    """Of traces that the engine has really sent, told once more from here to here."""
    num_requests = min(options.config.max_num_seqs, MAX_TRACED)
    add_requests(engine, num_requests)
    traces: list[StepTrace] = []
    end = time.monotonic() + PATIENCE
    while sum(len(trace.outputs) for trace in traces) < num_requests * MAX_TOKENS:
        for event in engine.events():
            if isinstance(event, protocol.Failed | protocol.Refused):
                raise ModelError(event.error if isinstance(event, protocol.Failed) else event.reason)
            if isinstance(event, protocol.Stepped):
                traces.append(event.trace)
                end = time.monotonic() + PATIENCE
        if time.monotonic() > end:
            raise ModelError("the engine does not answer.")
    most = max(len(trace.outputs) for trace in traces)
    decodes = [trace for trace in traces if len(trace.outputs) == trace.num_scheduled_tokens == most]
    here, there = Pipe()
    costs = []
    for trace in decodes:
        moments = [time.perf_counter()]
        data = protocol.encode(protocol.Stepped(trace))
        moments.append(time.perf_counter())
        here.send_bytes(data)
        data = there.recv_bytes()
        moments.append(time.perf_counter())
        protocol.decode_event(data)
        moments.append(time.perf_counter())
        costs.append([later - sooner for sooner, later in pairwise(moments)] + [trace.times.total, len(data)])
    encoding, piping, decoding, step, num_bytes = (median(column) for column in zip(*costs, strict=True))
    return TraceCost(options.model, int(num_bytes), encoding, piping, decoding, step)


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
