"""Polls of a server that never was, for the tests of what draws them: all is made up, and so repeatable."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from hypothesis import strategies as st
from msgspec.structs import replace

from app import protocol
from app.protocol import Event
from engine.config import EngineConfig
from engine.poll import Histogram, Poll, PrefixOp, Rank
from engine.trace import Arrival, Finished, Output, StepTrace
from tests.app.support import HOSTILE, READY

BOUNDS = (0.01, 0.025, 0.05, 0.1, 1.0)
CONFIG = EngineConfig(num_blocks=49, block_size=32, max_num_seqs=12, max_num_batched_tokens=256, max_model_len=1024)
UNKNOWN = ("policy", "mixed_chunk")
NO_BUDGET = (*UNKNOWN, "max_num_batched_tokens", "max_num_seqs")
SERVER = protocol.Server("vLLM", "0.32.0", "http://127.0.0.1:8000")
SERVER_READY = replace(
    READY, model="smollm2", num_parameters=0, dtype="", device="", threads=0, exactness="", bitwise=False, server=SERVER
)
PROBLEM = "http://127.0.0.1:8000 does not answer: connection refused"


def histogram(*values: float) -> Histogram:
    """As a server counts these."""
    counts = [0] * (len(BOUNDS) + 1)
    for value in values:
        counts[next((index for index, bound in enumerate(BOUNDS) if value <= bound), len(BOUNDS))] += 1
    return Histogram(BOUNDS, tuple(counts), sum(values))


def polled(step: int, poll: Poll, config: EngineConfig = CONFIG, **more: Any) -> StepTrace:
    return StepTrace(step=step, started=step * 0.5, config=config, num_free_blocks=0, poll=poll, **more)


def rank(**told: Any) -> Rank:
    """One that tells everything; `told` is what is else than usual."""
    usual = Rank("0", 10, 4, {"capacity": 4}, 0.5, 20, 30, 60, 200, 90, 60, 0, {"length": 1})
    return replace(usual, **told)


def looked(*ranks: Rank, **more: Any) -> Poll:
    """A poll like most."""
    usual = Poll(
        0.5, 0.004, ranks or (rank(),), {"itl": histogram(0.02, 0.03), "ttft": histogram(0.2)}, unknown=UNKNOWN
    )
    return replace(usual, **more)


def first_look() -> Poll:
    """Before there is anything to compare with."""
    return Poll(0.0, 0.004, (Rank("0", 10, 4, {"capacity": 4}, 0.5),), unknown=UNKNOWN)


def series() -> list[StepTrace]:
    """A while in front of a server: a load that is not ours, preemptions, and three requests of our own."""
    store = PrefixOp("store", ("a1", "a2", "a3"))
    forks = tuple(PrefixOp("store", (f"b{number}", f"c{number}"), "a3") for number in range(4))
    traces = [polled(0, replace(first_look(), prefix=(store,), prefix_known="whole"))]
    arrivals = tuple(Arrival(str(n), "short", "What is rain?", 0, 40, 0.6 + n / 100) for n in (1, 2, 3))
    for step in range(1, 24):
        poll = looked(prefix_known="whole")
        more: dict[str, Any] = {"running": ("1", "2"), "waiting": ("3",), "num_waiting": 1}
        if step == 2:
            more = {"arrivals": arrivals, "waiting": ("1", "2", "3"), "num_waiting": 3}
            poll = replace(poll, prefix=forks)
        elif step == 1:
            more = {}
        elif step in (9, 10, 15):
            poll = replace(
                poll, ranks=(rank(num_preemptions=step % 4, kv_usage=0.97),), prefix=(PrefixOp("remove", ("c1",)),)
            )
        if step > 3:
            outputs = [Output(n, -1, f" rain {step}", 1, step * 0.5 - 0.1 + int(n) / 100) for n in ("1", "2")]
            more["outputs"] = tuple(outputs)
        if step == 23:
            more["finished"] = (Finished("1", "length", 20, ttft=1.2, e2e=9.8),)
        traces.append(polled(step, poll, **more))
    return traces


def of_two_ranks() -> list[StepTrace]:
    """Data parallelism, and a prefix cache that is known only since we listen."""
    ops = (PrefixOp("store", ("a", "b"), rank="0"), PrefixOp("store", ("a", "b", "c"), rank="1"))
    poll = looked(rank(), rank(name="1", num_running=2, kv_usage=0.1), prefix=ops, prefix_known="partial")
    return [polled(0, first_look()), polled(1, poll)]


def silent() -> list[StepTrace]:
    """A server that tells next to nothing."""
    ranks = (Rank("0", num_running=3, num_generation_tokens=50, num_prompt_tokens=7),)
    return [
        polled(0, Poll(ranks=ranks, unknown=tuple(asdict(CONFIG)))),
        polled(1, looked(*ranks, latencies={}, unknown=tuple(asdict(CONFIG)))),
    ]


def away() -> list[StepTrace]:
    """It answered, and does no longer."""
    return [
        *series(),
        polled(24, Poll(problem=PROBLEM, unknown=UNKNOWN), running=("2",), waiting=("3",), num_waiting=1),
    ]


def hostile() -> list[StepTrace]:
    """Whatever a server says is text of somebody else."""
    poll = looked(rank(name=HOSTILE, finished={HOSTILE: 2}, waiting_by_reason={HOSTILE: 1}), rank(name="1"))
    asked = Arrival("1", HOSTILE, HOSTILE, 0, 9, 0.1)
    return [
        polled(
            0,
            replace(
                poll, prefix=(PrefixOp("store", (HOSTILE,), rank=HOSTILE),), prefix_known="partial", prefix_hint=HOSTILE
            ),
        ),
        polled(1, poll, arrivals=(asked,), outputs=(Output("1", -1, HOSTILE, 3, 0.3),), running=("1",)),
        polled(2, Poll(problem=HOSTILE)),
    ]


SERIES = {
    "series": series,
    "two ranks": of_two_ranks,
    "silent": silent,
    "away": away,
    "hostile": hostile,
}


def server_events(traces: list[StepTrace], ready: protocol.Ready = SERVER_READY) -> list[Event]:
    """What a dashboard is fed to stand there."""
    return [ready, *map(protocol.Stepped, traces)]


counts = st.none() | st.integers(0, 10**6)
ranks = st.builds(
    Rank,
    st.sampled_from(("0", "1")),
    counts,
    counts,
    st.dictionaries(st.sampled_from(("capacity", "deferred")), st.integers(0, 99), max_size=2),
    st.none() | st.floats(0, 1),
    counts,
    counts,
    counts,
    counts,
    counts,
    counts,
    counts,
    st.none() | st.dictionaries(st.sampled_from(("stop", "length")), st.integers(0, 99), max_size=2),
)
histograms = st.lists(st.integers(0, 50), min_size=6, max_size=6).map(
    lambda numbers: Histogram(BOUNDS, tuple(numbers), 0.03 * sum(numbers))
)
polls = st.builds(
    Poll,
    st.sampled_from((0.0, 0.5, 3.0)),
    st.floats(0, 5),
    st.lists(ranks, max_size=3).map(tuple),
    st.dictionaries(st.sampled_from(("ttft", "itl", "queue", "e2e")), histograms, max_size=4),
    st.sampled_from(("", PROBLEM)),
    st.booleans(),
    st.sampled_from((UNKNOWN, NO_BUDGET, tuple(asdict(CONFIG)))),
)
"""Whatever a server could tell."""
