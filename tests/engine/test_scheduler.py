"""Random workloads under random configurations: whatever the schedule, invariants hold and outputs are the script's.

`Bench` asserts the invariants, the truth of every reason and that `schedule()` changes no request, at every step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import ConfigError, EngineConfig
from engine.core import LLMEngine
from engine.policy import POLICIES
from engine.request import Request, SamplingParams
from engine.scheduler import Scheduler
from engine.trace import Blocked, PhaseTimes, Preemption, StepTrace
from tests.engine.support import Bench, ScriptedRunner, by_history, config, prompt

STOP_TOKEN = 7


@dataclass(frozen=True)
class Job:
    """A request of a random workload."""

    step: int
    prompt: tuple[int, ...]
    max_tokens: int
    priority: int
    ignore_eos: bool
    abort_after: int | None
    """Steps after its arrival."""


@dataclass(frozen=True)
class Workload:
    """Requests, and at which steps an engine changes to which configuration."""

    config: EngineConfig
    jobs: list[Job]
    changes: dict[int, EngineConfig] = field(default_factory=dict)


@st.composite
def configs(draw: st.DrawFn, block_size: int, length: int, policies: Sequence[str]) -> EngineConfig:
    """Any configuration that an engine accepts, small and tight."""
    policy = draw(st.sampled_from(policies))
    chunked = draw(st.booleans())
    whole = not chunked or POLICIES[policy].whole_prompts
    return config(
        blocks=-(-length // block_size) + draw(st.integers(0, 8)),
        bs=block_size,
        budget=draw(st.integers(length, length + 16)) if whole else draw(st.integers(1, 48)),
        seqs=draw(st.integers(1, 6)),
        length=length,
        enable_chunked_prefill=chunked,
        enable_prefix_caching=draw(st.booleans()),
        long_prefill_token_threshold=draw(st.sampled_from([0, 0, 1, 3, 10])),
        long_prefill_token_threshold_adaptive=draw(st.booleans()),
        watermark=draw(st.sampled_from([0.0, 0.0, 0.1, 0.4, 0.9])),
        reserve_full_sequence=draw(st.booleans()),
        policy=policy,
        priority_aging=draw(st.sampled_from([0.0, 0.0, 0.1, 1.0])),
        admit_after_preemption=draw(st.booleans()),
        schedule_conservativeness=draw(st.sampled_from([0.1, 1.0, 2.0])),
        new_token_ratio_decay_steps=draw(st.sampled_from([1, 10, 60])),
        mixed_chunk=draw(st.booleans()),
    )


@st.composite
def jobs(draw: st.DrawFn, length: int) -> Job:
    """A request that fits; many start alike, so that there is something to share."""
    num_prompt_tokens = draw(st.integers(1, length - 1))
    num_shared = draw(st.integers(0, num_prompt_tokens))
    own = prompt(num_prompt_tokens, seed=draw(st.integers(2, 5)))
    return Job(
        step=draw(st.integers(0, 8)),
        prompt=(*prompt(num_shared, seed=draw(st.integers(0, 1))), *own[num_shared:]),
        max_tokens=draw(st.integers(1, 20)),
        priority=draw(st.integers(-2, 3)),
        ignore_eos=draw(st.booleans()),
        abort_after=draw(st.none() | st.none() | st.integers(0, 15)),
    )


@st.composite
def workloads(draw: st.DrawFn, policies: Sequence[str] = tuple(POLICIES), max_changes: int = 0) -> Workload:
    block_size, length = draw(st.integers(1, 8)), draw(st.integers(2, 40))
    any_config = configs(block_size, length, policies)
    return Workload(
        draw(any_config),
        draw(st.lists(jobs(length), min_size=1, max_size=8)),
        draw(st.dictionaries(st.integers(0, 24), any_config, max_size=max_changes)),
    )


def alone(job: Job, max_model_len: int) -> list[int]:
    """What the script gives this job, without any engine."""
    history = list(job.prompt)
    while len(history) < max_model_len and len(history) - len(job.prompt) < job.max_tokens:
        history.append(by_history("", 0, tuple(history)))
        if history[-1] == STOP_TOKEN:
            break
    return history[len(job.prompt) :]


def serve(workload: Workload) -> Bench:
    """Serve a workload to its end; request ids are the jobs' numbers."""
    bench = Bench(workload.config)
    last = max([*workload.changes, *(job.step + (job.abort_after or 0) for job in workload.jobs)])
    for step in range(last + 1):
        if step in workload.changes:
            bench.engine.reconfigure(**asdict(workload.changes[step]))
        for number, job in enumerate(workload.jobs):
            if job.abort_after is not None and job.step + job.abort_after == step:
                bench.engine.abort(str(number))
            if job.step == step:
                bench.add(
                    job.prompt,
                    str(number),
                    priority=job.priority,
                    max_tokens=job.max_tokens,
                    ignore_eos=job.ignore_eos,
                    stop_token_ids=(STOP_TOKEN,),
                )
        bench.step()
    bench.run_to_end()
    return bench


@pytest.mark.parametrize("policy", POLICIES)
@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_any_workload_ends_with_the_outputs_of_the_script(policy: str, data: st.DataObject) -> None:
    check_outputs(data.draw(workloads([policy])))


@settings(deadline=None, max_examples=500)
@given(workloads(max_changes=6))
def test_no_sequence_of_changes_changes_an_output(workload: Workload) -> None:
    check_outputs(workload)


def check_outputs(workload: Workload) -> None:
    """Serve it; everybody gets what the script gives it alone."""
    bench = serve(workload)
    for number, job in enumerate(workload.jobs):
        expected = alone(job, workload.config.max_model_len)
        tokens, finished = bench.tokens(str(number)), bench.finished(str(number))
        assert finished.num_output_tokens == len(tokens)
        if finished.reason == "abort":
            assert job.abort_after is not None
            assert tokens == expected[: len(tokens)]
        else:
            assert tokens == expected
            assert finished.reason == ("stop" if tokens[-1] == STOP_TOKEN else "length")
        assert bench.requests[str(number)].output_token_ids == tokens
        assert finished.num_preemptions == sum(p.request_id == str(number) for p in bench.preemptions())


@settings(deadline=None, max_examples=60)
@given(workloads())
def test_a_schedule_is_reproducible(workload: Workload) -> None:
    first, second = (serve(workload) for _ in range(2))
    assert [untimed(trace) for trace in first.traces] == [untimed(trace) for trace in second.traces]


def untimed(trace: StepTrace) -> StepTrace:
    """The trace without what a real clock measured."""
    return msgspec.structs.replace(trace, times=PhaseTimes())


@settings(deadline=None, max_examples=60)
@given(workloads())
def test_each_token_is_computed_once_without_memory_pressure(workload: Workload) -> None:
    """Nothing is computed twice and nothing is left out, however a prompt is cut."""
    roomy = replace(workload.config, num_blocks=500, enable_prefix_caching=False, watermark=0.0)
    work = [replace(job, abort_after=None) for job in workload.jobs]
    bench = serve(Workload(roomy, work))
    assert bench.preemptions() == []
    for number, job in enumerate(work):
        shares = [d for trace in bench.traces for d in trace.scheduled if d.request_id == str(number)]
        assert [d.start for d in shares] == [0, *(d.end for d in shares[:-1])]
        assert shares[-1].end == len(job.prompt) + len(bench.tokens(str(number))) - 1


def test_schedule_is_a_frozen_decision() -> None:
    scheduler = Scheduler(config(8, 4, 16, 4, 32))
    request = Request("a", prompt(20), SamplingParams())
    scheduler.add_request(request)
    output = scheduler.schedule()
    assert request.num_computed_tokens == 0
    assert request.status == "waiting"
    for part, name in [(output, "blocked"), (output.scheduled[0], "token_ids")]:
        with pytest.raises(AttributeError):
            setattr(part, name, None)
    scheduler.update_from_output(output, {})
    assert request.num_computed_tokens == 16
    assert request.status == "running"


def test_blocked_by_seats() -> None:
    bench = Bench(config(8, 4, 16, 1, 32))
    bench.add(prompt(4), "a", max_tokens=2)
    bench.add(prompt(4, 1), "b", max_tokens=1)
    assert bench.step().blocked == Blocked("b", "seats")
    bench.run_to_end()


def test_blocked_by_budget() -> None:
    bench = Bench(config(8, 4, 16, 2, 32))
    bench.add(prompt(16), "a", max_tokens=2)
    bench.add(prompt(4, 1), "b", max_tokens=1)
    assert bench.step().blocked == Blocked("b", "budget")
    bench.run_to_end()


def test_blocked_by_chunking_that_is_off() -> None:
    bench = Bench(config(16, 4, 32, 2, 32, enable_chunked_prefill=False))
    bench.add(prompt(20), "a", max_tokens=2)
    bench.add(prompt(20, 1), "b", max_tokens=1)
    assert bench.step().blocked == Blocked("b", "chunking", needed=20, available=12)
    bench.run_to_end()


@pytest.mark.parametrize(("watermark", "max_blocks"), [(0.0, 3), (0.3, 1)])
def test_blocked_by_blocks_and_watermark(watermark: float, max_blocks: int) -> None:
    """9 blocks with the null block: a watermark of 0.3 keeps 2 of the 3 that `a` leaves."""
    bench = Bench(config(8, 4, 64, 3, 32, watermark=watermark))
    bench.add(prompt(19), "a", max_tokens=2)
    bench.add(prompt(4 * max_blocks + 1, 1), "b", max_tokens=1)
    kept = int(watermark * 9)
    assert bench.step().blocked == Blocked("b", "blocks", needed=max_blocks + 1, available=3, kept=kept)
    bench.run_to_end()

    bench = Bench(config(8, 4, 64, 3, 32, watermark=watermark))
    bench.add(prompt(19), "a", max_tokens=2)
    bench.add(prompt(4 * max_blocks, 1), "b", max_tokens=1)
    assert bench.step().blocked is None
    bench.run_to_end()


def test_without_reserve_only_the_chunk_has_to_fit() -> None:
    reserved, simple = (Bench(config(8, 4, 16, 2, 32, reserve_full_sequence=reserve)) for reserve in (True, False))
    for bench in (reserved, simple):
        bench.add(prompt(12), "a", max_tokens=8)
        bench.add(prompt(24, 1), "b", max_tokens=2)
    assert reserved.step().blocked == Blocked("b", "blocks", needed=6, available=5)
    assert [(d.request_id, d.num_tokens) for d in simple.step().scheduled] == [("a", 12), ("b", 4)]
    for bench in (reserved, simple):
        bench.run_to_end()
    assert reserved.preemptions() == []
    assert len(simple.preemptions()) > 0


@pytest.mark.parametrize(("asker", "lengths", "lost"), [("a", (8, 7), 7), ("b", (7, 8), 8)])
def test_preemption_says_for_whom_and_what_it_cost(asker: str, lengths: tuple[int, int], lost: int) -> None:
    """Four blocks, two each: whoever first needs a third one, `b` has to go, be it for itself."""
    bench = Bench(config(4, 4, 16, 2, 16, enable_prefix_caching=False))
    for seed, (request_id, length) in enumerate(zip("ab", lengths, strict=True)):
        bench.add(prompt(length, seed), request_id, max_tokens=4)
    _, trace, *_ = bench.run_to_end()
    assert trace.preemptions == (Preemption("b", asker, 1, 0, 2, lost),)
    assert trace.blocked == Blocked("b", "preemption")
    again = [d for later in bench.traces[2:] for d in later.scheduled if d.request_id == "b"]
    assert [(d.kind, d.num_recomputed_tokens) for d in again] == [("recompute", lost), ("decode", 0), ("decode", 0)]


@pytest.mark.parametrize(
    ("adaptive", "shares"), [(False, [("a", 4), ("b", 4), ("c", 4)]), (True, [("a", 8), ("b", 8), ("c", 8)])]
)
def test_long_prompts_are_capped_when_others_wait(adaptive: bool, shares: list[tuple[str, int]]) -> None:
    bench = Bench(
        config(64, 4, 24, 3, 32, long_prefill_token_threshold=4, long_prefill_token_threshold_adaptive=adaptive)
    )
    for seed, request_id in enumerate("abc"):
        bench.add(prompt(20, seed), request_id, max_tokens=1)
    trace = bench.step()
    assert [(d.request_id, d.num_tokens) for d in trace.scheduled] == shares
    assert {d.cut_by for d in trace.scheduled} == {"threshold"}
    bench.run_to_end()


def test_one_request_alone_is_not_capped() -> None:
    bench = Bench(config(64, 4, 24, 3, 32, long_prefill_token_threshold=4))
    bench.add(prompt(20), "a", max_tokens=1)
    assert [d.num_tokens for d in bench.step().scheduled] == [20]
    bench.run_to_end()


def test_an_idle_step_does_nothing() -> None:
    bench = Bench(config(8, 4, 16, 4, 32))
    trace = bench.step()
    assert not bench.engine.has_news
    assert (trace.scheduled, trace.blocked, trace.outputs, trace.num_free_blocks) == ((), None, (), 8)


@pytest.mark.parametrize(
    ("change", "numbers"),
    [
        ({"max_num_batched_tokens": 0}, ["max_num_batched_tokens", "0"]),
        ({"max_num_seqs": 0}, ["max_num_seqs", "0"]),
        ({"block_size": 0}, ["block_size", "0"]),
        ({"num_blocks": 1}, ["num_blocks", "1"]),
        ({"max_model_len": 1}, ["max_model_len", "1"]),
        ({"long_prefill_token_threshold": -1}, ["long_prefill_token_threshold", "-1"]),
        ({"watermark": 1.0}, ["watermark", "1.0"]),
        ({"watermark": -0.1}, ["watermark", "-0.1"]),
        ({"max_model_len": 33}, ["32 tokens", "8 usable blocks", "33", "at least 10 blocks"]),
        ({"enable_chunked_prefill": False}, ["16", "32"]),
    ],
)
def test_a_configuration_that_cannot_work_is_refused_with_its_numbers(
    change: dict[str, Any], numbers: list[str]
) -> None:
    works = config(8, 4, 16, 4, 32)
    works.validate()
    with pytest.raises(ConfigError) as refusal:
        LLMEngine(replace(works, **change), ScriptedRunner(4))
    assert all(number in str(refusal.value) for number in numbers)
