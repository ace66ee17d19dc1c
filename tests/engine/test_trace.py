"""StepTrace: what is written is what is read, and nobody can change it."""

from __future__ import annotations

import json
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.config import EngineConfig
from engine.trace import (
    MAX_WAITING_IDS,
    TRACE_VERSION,
    Arrival,
    Blocked,
    BlockOp,
    BlockReason,
    CutBy,
    Finished,
    Kind,
    Output,
    PhaseTimes,
    Preemption,
    Scheduled,
    StepTrace,
    decode,
    encode,
)
from tests.engine.support import Bench, config, prompt

IDS = st.text(max_size=5)
COUNTS = st.integers(0, 10**6)
SECONDS = st.floats(0, 1e9)


def tuples(part: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(part, max_size=3).map(tuple)


CONFIGS = st.builds(
    EngineConfig, max_num_batched_tokens=COUNTS, enable_chunked_prefill=st.booleans(), watermark=st.floats(0, 1)
)
SCHEDULED = st.builds(
    Scheduled,
    request_id=IDS,
    kind=st.sampled_from(get_args(Kind)),
    start=COUNTS,
    num_tokens=COUNTS,
    target=COUNTS,
    admitted=st.booleans(),
    num_cached_tokens=COUNTS,
    num_recomputed_tokens=COUNTS,
    chunk=COUNTS,
    cut_by=st.sampled_from(get_args(CutBy)),
)
TRACES = st.builds(
    StepTrace,
    step=COUNTS,
    started=SECONDS,
    config=CONFIGS,
    arrivals=tuples(st.builds(Arrival, IDS, IDS, st.text(), COUNTS, COUNTS, SECONDS)),
    scheduled=tuples(SCHEDULED),
    preemptions=tuples(st.builds(Preemption, IDS, IDS, COUNTS, COUNTS, COUNTS, COUNTS)),
    blocked=st.none() | st.builds(Blocked, IDS, st.sampled_from(get_args(BlockReason)), COUNTS, COUNTS, COUNTS),
    running=tuples(IDS),
    waiting=tuples(IDS),
    num_waiting=COUNTS,
    outputs=tuples(st.builds(Output, IDS, COUNTS, st.text())),
    finished=tuples(
        st.builds(
            Finished,
            request_id=IDS,
            reason=st.sampled_from(["stop", "length", "abort"]),
            num_output_tokens=COUNTS,
            num_preemptions=COUNTS,
            queue_time=st.none() | SECONDS,
            ttft=st.none() | SECONDS,
            e2e=st.none() | SECONDS,
        )
    ),
    blocks=tuples(
        st.builds(
            BlockOp, st.sampled_from(["hit", "allocate", "release", "cache", "evict"]), tuples(st.integers(1, 99)), IDS
        )
    ),
    num_free_blocks=COUNTS,
    times=st.builds(PhaseTimes, SECONDS, SECONDS, SECONDS, SECONDS, SECONDS),
)


@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(TRACES)
def test_round_trip(trace: StepTrace) -> None:
    line = encode(trace)
    assert b"\n" not in line
    assert decode(line) == decode(line.decode()) == trace


@pytest.fixture
def trace() -> StepTrace:
    """A step with a bit of everything: arrivals, a chunk, outputs, an end, somebody who waits."""
    bench = Bench(config(8, 4, 16, 2, 32))
    bench.add(prompt(4), "a", max_tokens=1)
    bench.add(prompt(20, 1), "b", max_tokens=1)
    bench.add(prompt(4, 2), "c", max_tokens=1)
    trace = bench.step()
    bench.run_to_end()
    return trace


def parts(value: Any) -> list[Any]:
    """A trace and all structs inside it."""
    if isinstance(value, tuple):
        return [part for item in value for part in parts(item)]
    if isinstance(value, msgspec.Struct):
        return [value, *(part for name in value.__struct_fields__ for part in parts(getattr(value, name)))]
    return []


def test_nothing_in_it_can_be_changed(trace: StepTrace) -> None:
    everything = parts(trace)
    assert {type(part) for part in everything} >= {StepTrace, Arrival, Scheduled, Blocked, Output, Finished, BlockOp}
    for part in everything:
        for name in part.__struct_fields__:
            with pytest.raises(AttributeError):
                setattr(part, name, getattr(part, name))
    with pytest.raises(AttributeError):
        trace.config.max_num_seqs = 1  # type: ignore[misc]
    hash(trace)  # no list or dict anywhere in it


def test_the_version_is_written(trace: StepTrace) -> None:
    assert json.loads(encode(trace))["version"] == TRACE_VERSION


@pytest.mark.parametrize("version", [TRACE_VERSION + 1, TRACE_VERSION - 1, str(TRACE_VERSION), None])
def test_another_version_is_refused(trace: StepTrace, version: object) -> None:
    fields = json.loads(encode(trace)) | {"version": version}
    with pytest.raises(msgspec.ValidationError):
        decode(json.dumps(fields))


@pytest.mark.parametrize(
    "change",
    [
        {"step": "one"},
        {"scheduled": [{"request_id": "a"}]},
        {"scheduled": [{"request_id": "a", "kind": "guess", "start": 0, "num_tokens": 1, "target": 1}]},
        {"blocked": {"request_id": "a", "reason": "mood"}},
        {"config": {"max_num_seqs": "many"}},
        {"running": "ab"},
    ],
)
def test_wrong_fields_are_refused(trace: StepTrace, change: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        decode(json.dumps(json.loads(encode(trace)) | change))


@pytest.mark.parametrize("line", ["[]", "1", "{}", '"trace"', "null"])
def test_something_else_is_refused(line: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        decode(line)


@pytest.mark.parametrize("line", ["", "{", b"\x80"])
def test_half_a_line_is_refused(line: str | bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        decode(line)


@pytest.mark.parametrize("num_waiting", [0, 1, MAX_WAITING_IDS - 1, MAX_WAITING_IDS, MAX_WAITING_IDS + 1, 200])
def test_a_long_queue_is_counted_but_not_listed(num_waiting: int) -> None:
    bench = Bench(config(8, 4, 16, 1, 32))
    bench.add(prompt(4), "runs", max_tokens=2)
    waiting = [bench.add(prompt(4, seed), f"waits {seed}", max_tokens=1) for seed in range(num_waiting)]
    trace = bench.step()
    assert trace.running == ("runs",)
    assert trace.num_waiting == num_waiting
    assert list(trace.waiting) == waiting[:MAX_WAITING_IDS]
    assert len(trace.arrivals) == num_waiting + 1
    for request_id in waiting:
        bench.engine.abort(request_id)
    bench.run_to_end()


def test_tokens_are_counted_by_kind() -> None:
    def scheduled(kind: Kind, num_tokens: int, recomputed: int = 0) -> Scheduled:
        return Scheduled("a", kind, 3, num_tokens, 99, num_recomputed_tokens=recomputed)

    trace = StepTrace(
        step=0,
        started=0.0,
        config=EngineConfig(),
        scheduled=(
            scheduled("decode", 1),
            scheduled("decode", 1),
            scheduled("prefill", 20),
            scheduled("recompute", 9, 7),
        ),
        num_free_blocks=1,
    )
    assert trace.num_scheduled_tokens == 31
    kinds: tuple[Kind, ...] = ("decode", "prefill", "recompute")
    assert {kind: trace.num_tokens_of(kind) for kind in kinds} == {"decode": 2, "prefill": 22, "recompute": 7}
    assert trace.scheduled[2].end == 23


def test_arrivals_and_aborts_are_told_once() -> None:
    bench = Bench(config(8, 4, 16, 1, 32))
    bench.engine.add_request(prompt(4), request_id="a", label="first")
    bench.engine.abort("a")
    assert bench.engine.has_news
    first, second = bench.steps(2)
    told = [(arrival.request_id, arrival.label, arrival.num_prompt_tokens) for arrival in first.arrivals]
    assert told == [("a", "first", 4)]
    assert [(finished.request_id, finished.reason) for finished in first.finished] == [("a", "abort")]
    assert (second.arrivals, second.finished) == ((), ())
    bench.run_to_end()


def test_times_are_those_of_the_phases() -> None:
    times = PhaseTimes(schedule=1.0, prepare=2.0, forward=4.0, sample=8.0, update=16.0)
    assert times.total == 31.0
