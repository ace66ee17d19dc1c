"""`nanoviz bench soak`: a hundred thousand steps under a random load, and whether anything grew, leaked or got lost.

Run as a module it is the program that is watched: the dashboard on its terminal. When it is told to leave, it compares
both ends of its history with the traces, all of which it has written to a file.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import BinaryIO

import msgspec
import psutil

from app import protocol
from app.history import MAX_STEPS, History
from app.inject import LOADS
from app.protocol import EngineOptions, Event
from app.view import EngineView
from app.watched import PATIENCE, WatchedDashboard, WatchedEngine, run_watched
from engine.progress import ModelError
from engine.trace import StepTrace, pack, unpack

NUM_STEPS = 100_000
NUM_READINGS = 50
CONTROL_SECONDS = 5.0
"""Between two looks at the queue."""
QUIET_SECONDS = 3.0
"""Without a step, and everything has been served."""
FEW, MANY = 5, 50
"""Waiting requests at which the load is turned up and down, so that neither the engine nor the queue is ever empty."""
FULL_STEPS = 3 * MAX_STEPS
"""From here on memory must not grow: the history is full, and so are the lists of latencies, of which each state in it
has a copy. It takes some 13,000 steps until 2,000 requests have ended, and a whole history until every copy is full."""
GROWTH = 1.03
"""By which factor the median of the last third of the readings after that may exceed the median of the first: gaps in
the heap come and go by some MiB. Traces that were kept for ever would double the dashboard's memory."""


class Reading(msgspec.Struct, frozen=True):
    """Memory after a step, in bytes."""

    step: int
    dashboard: int
    engine: int


class Findings(msgspec.Struct, frozen=True):
    """What the program says of itself at the end."""

    first_step: int
    last_step: int
    num_finished: int
    num_preemptions: int
    num_leaked_blocks: int
    """Not free, though all requests have ended."""
    first_is_right: bool
    last_is_right: bool


class RecordedEngine(WatchedEngine):
    """Writes all traces to a file."""

    def __init__(self, options: EngineOptions, benchmark: Connection, file: BinaryIO) -> None:
        self._file = file
        super().__init__(options, benchmark)

    def drain(self) -> list[Event]:
        events = super().drain()
        for event in events:
            if isinstance(event, protocol.Stepped):
                write_trace(self._file, event.trace)
        return events


def write_trace(file: BinaryIO, trace: StepTrace) -> None:
    data = pack(trace)
    file.write(len(data).to_bytes(4, "little") + data)


def read_traces(file: BinaryIO) -> Iterator[StepTrace]:
    while size := file.read(4):
        yield unpack(file.read(int.from_bytes(size, "little")))


def check(history: History, path: str) -> Findings:
    """Fold all traces anew, and compare."""
    first, last = history.first_step, history.last_step
    assert first is not None and last is not None
    view = EngineView()
    with Path(path).open("rb") as file:
        traces = read_traces(file)
        for trace in traces:
            view.apply(trace)
            if trace.step == first:
                break
        first_is_right = _state(view) == _state(history.at(first))
        for trace in traces:
            view.apply(trace)
    last_is_right = _state(view) == _state(history.at(last))
    assert view.trace is not None
    num_leaked = view.trace.config.num_usable_blocks - view.trace.num_free_blocks
    return Findings(first, last, view.num_finished, view.num_preemptions, num_leaked, first_is_right, last_is_right)


def _state(view: EngineView) -> dict[str, object]:
    """All that a view says, without what it remembers about its own copies."""
    return {name: value for name, value in vars(view).items() if name not in ("_own", "_first_config")}


def growth(readings: Sequence[Reading], process: str) -> float | None:
    """By which factor a process has grown since its history was full; None if there are too few readings to say."""
    sizes = [getattr(reading, process) for reading in readings if reading.step >= FULL_STEPS]
    third = len(sizes) // 3
    return median(sizes[-third:]) / median(sizes[:third]) if third else None


def soak(options: EngineOptions) -> bool:
    """Print how memory goes on while `tiny` runs so many steps, and what was found; True if all is well."""
    options = msgspec.structs.replace(options, model="tiny")
    with tempfile.NamedTemporaryFile(prefix="nanoviz-soak-") as file:
        dashboard = WatchedDashboard(options, __name__, file.name)
        try:
            readings = _run(dashboard)
            findings = dashboard.hear(Findings)
        finally:
            dashboard.close()
    if findings is None:
        raise ModelError("the dashboard does not answer.")
    print(f"{findings.num_finished:,} requests finished, {findings.num_preemptions:,} preemptions")
    results = {
        f"{findings.num_leaked_blocks} blocks have leaked": findings.num_leaked_blocks == 0,
        f"step {findings.first_step:,}, the oldest that is kept, is what the traces say": findings.first_is_right,
        f"step {findings.last_step:,}, the newest, is what the traces say": findings.last_is_right,
    }
    for process in ("dashboard", "engine"):
        if factor := growth(readings, process):
            results[f"memory of the {process} is flat: {factor - 1:+.1%} from step {FULL_STEPS:,} on"] = factor < GROWTH
    for what, holds in results.items():
        print(f"{'yes' if holds else 'NO':>4}  {what}")
    return all(results.values())


def _run(dashboard: WatchedDashboard) -> list[Reading]:
    """Keep the engine busy for NUM_STEPS, let it serve the rest, and leave."""
    dashboard.wait_for("idle")
    engine = dashboard.engine
    print(f"{'seconds':>8}{'steps':>9}{'waiting':>9}{'dashboard, MiB':>16}{'engine, MiB':>13}")
    dashboard.terminal.press(">>>>")
    began = controlled = heard = time.monotonic()
    last = num_waiting = 0
    readings: list[Reading] = []
    is_ending = False
    while not is_ending or time.monotonic() < heard + QUIET_SECONDS:
        if steps := dashboard.steps():
            last, num_waiting, heard = steps.last, steps.num_waiting, time.monotonic()
        elif time.monotonic() > heard + PATIENCE:
            raise ModelError("the engine does not answer.")
        if last >= (len(readings) + 1) * NUM_STEPS // NUM_READINGS:
            readings.append(_read_memory(last, dashboard.process, engine))
            seconds, memory = time.monotonic() - began, (readings[-1].dashboard >> 20, readings[-1].engine >> 20)
            print(f"{seconds:8.0f}{last:9,}{num_waiting:9,}{memory[0]:16,}{memory[1]:13,}", flush=True)
        if last >= NUM_STEPS and not is_ending:
            dashboard.terminal.press("<" * len(LOADS))
            is_ending = True
        if time.monotonic() >= controlled + CONTROL_SECONDS and not is_ending:
            controlled = time.monotonic()
            dashboard.forget_frames()
            if not FEW <= num_waiting <= MANY:
                dashboard.terminal.press("<" if num_waiting > MANY else ">")
    dashboard.terminal.press("q")
    return readings


def _read_memory(step: int, dashboard: psutil.Process, engine: psutil.Process) -> Reading:
    try:
        return Reading(step, dashboard.memory_info().rss, engine.memory_info().rss)
    except psutil.NoSuchProcess:
        raise ModelError("the dashboard or its engine has ended.") from None


def _run_recorded(options: str, benchmark: Connection, path: str) -> None:
    with Path(path).open("wb") as file:
        dashboard = run_watched(options, benchmark, partial(RecordedEngine, file=file))
    benchmark.send_bytes(msgspec.msgpack.encode(check(dashboard.session.history, path)))


if __name__ == "__main__":
    _run_recorded(sys.argv[1], Connection(int(sys.argv[2])), sys.argv[3])
