"""`nanoviz bench engine`: our engine against what people would use instead, on the same prompts and threads.

Each contender sits in a process of its own and waits for its turn; they run one after another, round after round, so
that whatever else the machine does meets them all. What is said of two of them is the median of the rounds' ratios.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from statistics import median

import msgspec

from app.bench_report import MAX_SPREAD
from app.text import printable
from engine.contenders import CONTENDERS, Contest, available
from engine.progress import ModelError, one_line

CLOSE_SECONDS = 5.0
SEED = 0
TOKEN_IDS = range(3, 256)
"""Prompts are made of these: any vocabulary has them, and none is special."""


class Workload(msgspec.Struct, frozen=True):
    """`num_requests` prompts of `shortest` to `longest` tokens, each with `num_tokens` more to come."""

    num_requests: int
    shortest: int
    longest: int
    num_tokens: int

    def prompts(self) -> list[list[int]]:
        rng = random.Random(SEED)
        lengths = [rng.randint(self.shortest, self.longest) for _ in range(self.num_requests)]
        return [[rng.choice(TOKEN_IDS) for _ in range(length)] for length in lengths]


class Standing(msgspec.Struct, frozen=True):
    """How a contender did."""

    name: str
    version: str
    tokens_per_second: float
    """Median of the rounds."""
    spread: float
    """Seconds of the slowest round over those of the fastest."""
    ratio: float | None
    """By which factor ours is faster: the median of the rounds' ratios; None for ours."""
    num_same: int
    """Requests whose output is that of transformers for the request alone."""


class Standings(msgspec.Struct, frozen=True, tag=True):
    """The result of a contest."""

    contest: Contest
    workload: Workload
    rounds: int
    standings: list[Standing]
    left_out: list[str]
    """Why others could not take part."""

    def lines(self) -> Iterator[str]:
        workload = self.workload
        lengths = (
            f"{workload.shortest}-{workload.longest}" if workload.longest > workload.shortest else workload.longest
        )
        yield (
            f"{printable(self.contest.model)}, {self.contest.dtype}, {self.contest.threads} CPU threads: "
            f"{workload.num_requests} requests of {lengths} prompt tokens, {workload.num_tokens} new tokens each, "
            f"medians of {self.rounds} rounds"
        )
        yield f"{'':34}{'tok/s':>9}{'spread':>9}{'ours is':>9}{'same':>8}  on"
        for standing in self.standings:
            ratio = "" if standing.ratio is None else f"{standing.ratio:.2f}x"
            same = f"{standing.num_same}/{workload.num_requests}"
            yield (
                f"{printable(standing.name):34}{standing.tokens_per_second:9.1f}{standing.spread:8.2f}x{ratio:>9}"
                f"{same:>8}  {standing.version}"
            )
        for reason in self.left_out:
            yield f"left out: {printable(reason)}"
        noisy = [standing.name for standing in self.standings if standing.spread > MAX_SPREAD]
        if noisy:
            yield f"The machine was noisy: rounds of {', '.join(noisy)} differ by more than {MAX_SPREAD - 1:.0%}."


@dataclass(eq=False)
class Contender:
    """One of them, in its process; `connection` is our end of the pipe to it."""

    name: str
    version: str
    connection: Connection
    seconds: list[float] = field(default_factory=list)
    outputs: list[list[int]] = field(default_factory=list)

    def run(self, workload: Workload) -> None:
        """Let it serve the workload, and keep how it went. Raises ModelError if it cannot, or ours changes its mind."""
        self.connection.send(workload)
        seconds, outputs = _answer(self.name, self.connection)
        if self.outputs and outputs != self.outputs and self.name == next(iter(CONTENDERS)):
            raise ModelError("our own outputs differ from one round to the next; this is a bug.")
        self.outputs = outputs
        self.seconds.append(seconds)


def bench_engine(contest: Contest, workload: Workload, rounds: int) -> Iterator[Standings]:
    """Measure all that can be imported here, of which not every engine runs every model.

    Raises ModelError if ours cannot, or the one that says what outputs should be.
    """
    left_out: list[str] = []
    with contextlib.ExitStack() as stack:
        contenders = [
            Contender(name, version, stack.enter_context(_process(name, contest)))
            for name, version in available().items()
        ]
        ours, alone = contenders[:2]

        def go_on(act: Callable[[Contender], object]) -> None:
            for contender in tuple(contenders):
                try:
                    act(contender)
                except ModelError as error:
                    if contender in (ours, alone):
                        raise
                    contenders.remove(contender)
                    left_out.append(str(error))

        go_on(lambda contender: _answer(contender.name, contender.connection))
        for _ in range(1 + rounds):  # the first one warms up
            go_on(lambda contender: contender.run(workload))
    num_tokens = workload.num_requests * workload.num_tokens
    standings = []
    for contender in contenders:
        seconds = contender.seconds[1:]
        ratios = [theirs / our for theirs, our in zip(seconds, ours.seconds[1:], strict=True)]
        standings.append(
            Standing(
                contender.name,
                contender.version,
                num_tokens / median(seconds),
                max(seconds) / min(seconds),
                None if contender is ours else median(ratios),
                sum(output == own for output, own in zip(contender.outputs, alone.outputs, strict=True)),
            )
        )
    yield Standings(contest, workload, rounds, standings, left_out)


@contextlib.contextmanager
def _process(name: str, contest: Contest) -> Iterator[Connection]:
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(name, contest, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours
    finally:
        ours.close()  # which it takes as the end, if it waits for work
        process.join(CLOSE_SECONDS)
        process.terminate()
        process.join()


def _answer(name: str, connection: Connection) -> tuple[float, list[list[int]]]:
    try:
        error, seconds, outputs = connection.recv()
    except EOFError:
        error = "its process has ended."
    if error:
        raise ModelError(f"{name} cannot be measured: {error}")
    return seconds, outputs


def _serve(name: str, contest: Contest, connection: Connection) -> None:
    """A contender's process: make it, say so, then serve each workload that comes."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.dup2(null, sys.stderr.fileno())
    try:
        generate = CONTENDERS[name][0](contest)
        connection.send(("", 0.0, []))
        while True:
            workload: Workload = connection.recv()
            prompts = workload.prompts()
            begin = time.perf_counter()
            outputs = generate(prompts, workload.num_tokens)
            connection.send(("", time.perf_counter() - begin, outputs))
    except (EOFError, KeyboardInterrupt):
        pass
    except Exception as error:  # whatever a library says
        connection.send((one_line(error, 200) or type(error).__name__, 0.0, []))
