"""What each policy decides, on workloads small enough to follow by hand.

`config(blocks, bs, budget, seqs, len)` counts usable blocks. `finish` holds every output against what the script
gives that prompt alone. Blocks of one token make the arithmetic of policy sglang plain.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import count, pairwise
from typing import Any

import pytest
import torch

from engine.config import ConfigError, EngineConfig
from engine.core import LLMEngine
from engine.policy import POLICIES
from engine.request import FinishReason, Request, SamplingParams
from engine.runner import ModelRunner
from engine.scheduler import Scheduler
from engine.trace import Blocked, BlockOp, Preemption, StepTrace, Unserved
from tests.engine.support import Bench, FakeClock, ScriptedRunner, by_history, config, prompt, tiny_model
from tests.engine.test_bitwise import RecordingSampler


def shares(trace: StepTrace) -> list[tuple[str, int]]:
    """Who computed how many tokens."""
    return [(decision.request_id, decision.num_tokens) for decision in trace.scheduled]


def admissions(bench: Bench) -> list[tuple[int, str]]:
    """(step, request id) of every admission."""
    return [(trace.step, d.request_id) for trace in bench.traces for d in trace.scheduled if d.admitted]


def alone(request: Request, max_model_len: int) -> list[int]:
    """The script's tokens for this prompt, without any engine."""
    num_prompt_tokens = request.num_prompt_tokens
    history = request.token_ids[:num_prompt_tokens]
    while len(history) < min(num_prompt_tokens + request.sampling_params.max_tokens, max_model_len):
        history.append(by_history("", 0, tuple(history)))
    return history[num_prompt_tokens:]


def finish(bench: Bench) -> list[StepTrace]:
    """Run to the end; everybody has got what it gets alone."""
    steps = bench.run_to_end()
    for request_id, request in bench.requests.items():
        assert bench.tokens(request_id) == alone(request, bench.engine.config.max_model_len)
    return steps


def num_computed(bench: Bench) -> int:
    return sum(trace.num_scheduled_tokens for trace in bench.traces)


def longest_stall(bench: Bench) -> int:
    """The most steps in a row in which a request between its first token and its last got none."""
    longest = 0
    for request_id in bench.requests:
        steps = [trace.step for trace in bench.traces for o in trace.outputs if o.request_id == request_id]
        longest = max([longest, *(later - step - 1 for step, later in pairwise(steps))])
    return longest


def recording_bench(engine_config: EngineConfig) -> tuple[Bench, RecordingSampler]:
    """A bench on the tiny model, and what remembers its logits."""
    sampler = RecordingSampler()
    return Bench(engine_config, ModelRunner(tiny_model().model, engine_config, sampler)), sampler


# priority


def stream_of_urgent(aging: float, priority: int, clock: Callable[[], float] | None = None) -> Bench:
    """Case 8: one seat, L at step 0, and an H of priority 0 and 4 steps at every fourth step up to step 36."""
    bench = Bench(config(8, 4, 16, 1, 16, policy="priority", priority_aging=aging), clock=clock)
    bench.add(prompt(4), "L", priority=priority, max_tokens=4)
    for step in range(40):
        if step % 4 == 0:
            bench.add(prompt(4, 1 + step), f"H{step}", priority=0, max_tokens=4)
        bench.step()
    return bench


def test_case_08_without_ageing_the_less_urgent_starve() -> None:
    bench = stream_of_urgent(0.0, priority=10)
    assert admissions(bench) == [(step, f"H{step}") for step in range(0, 40, 4)]
    finish(bench)
    assert admissions(bench)[-1] == (40, "L")


@pytest.mark.parametrize(("priority", "start"), [(8, 8), (9, 12), (10, 12), (12, 12), (13, 16)])
def test_case_08_with_ageing_they_wait_for_their_priority_and_one_service(priority: int, start: int) -> None:
    """8 and 12 are as urgent as the H of their step when it comes, and arrived before it."""
    bench = stream_of_urgent(1.0, priority)
    assert (start, "L") in admissions(bench)
    finish(bench)


@pytest.mark.parametrize("aging", [0.0, 1.0])
def test_case_08_the_order_is_the_same_whatever_the_clock_says(aging: float) -> None:
    backwards = count(1000, -7)
    benches = [stream_of_urgent(aging, 10, clock) for clock in (FakeClock(), lambda: float(next(backwards)))]
    standing, running_back = ([shares(trace) for trace in bench.traces] for bench in benches)
    assert standing == running_back


def test_case_09_the_urgent_is_next_before_older_ones_that_are_less_urgent() -> None:
    bench = Bench(config(18, 4, 16, 1, 72, policy="priority"))
    for seed, (request_id, priority, max_tokens) in enumerate([("L", 5, 64), ("M", 6, 2), ("N", 9, 2)]):
        bench.add(prompt(4, seed), request_id, priority=priority, max_tokens=max_tokens)
        bench.step()
    bench.steps(7)
    bench.add(prompt(4, 3), "H", priority=0, max_tokens=2)
    assert bench.step().blocked == Blocked("H", "seats")
    finish(bench)
    assert admissions(bench) == [(0, "L"), (64, "H"), (66, "M"), (68, "N")]


@pytest.mark.parametrize(("steps_between", "order"), [(9, ["later", "first"]), (10, ["first", "later"])])
def test_priority_fractions_of_ageing_add_up_to_whole_ones(steps_between: int, order: list[str]) -> None:
    """33 and 43 steps of 0.1 are 1.0 apart on paper; as floats they are not."""
    assert 1 + 0.1 * 33 > 0.1 * 43
    bench = Bench(config(16, 4, 16, 1, 64, policy="priority", priority_aging=0.1))
    bench.add(prompt(4), "running", priority=-9, max_tokens=60)
    bench.steps(33)
    bench.add(prompt(4, 1), "first", priority=1, max_tokens=1)
    bench.steps(steps_between)
    bench.add(prompt(4, 2), "later", priority=0, max_tokens=1)
    finish(bench)
    assert [request_id for _, request_id in admissions(bench)][1:] == order


@pytest.mark.parametrize(("aging", "waiting"), [(0.0, ("new", "old")), (1.0, ("old", "new"))])
def test_priority_a_preempted_request_keeps_what_it_gained_by_waiting(aging: float, waiting: tuple[str, ...]) -> None:
    """`old` came with priority 3 and waited 6 steps for a seat, `new` came with 0 and waits for one."""
    engine = config(6, 4, 16, 2, 24, policy="priority", priority_aging=aging, enable_prefix_caching=False)
    bench = Bench(engine)
    for seed, (request_id, priority, max_tokens) in enumerate([("top", -20, 20), ("short", -20, 6), ("old", 3, 20)]):
        bench.add(prompt(1, seed), request_id, priority=priority, max_tokens=max_tokens)
    bench.steps(13)
    bench.add(prompt(1, 3), "new", priority=0, max_tokens=2)
    trace = bench.run_to_preemption()
    assert [preemption.request_id for preemption in trace.preemptions] == ["old"]
    assert trace.waiting == waiting
    finish(bench)


@pytest.mark.parametrize(("aging", "victim"), [(0.0, "old"), (1.0, "new")])
def test_priority_ageing_counts_for_who_has_to_go_as_well(aging: float, victim: str) -> None:
    engine = config(6, 4, 16, 2, 24, policy="priority", priority_aging=aging, enable_prefix_caching=False)
    bench = Bench(engine)
    for seed, (request_id, priority, max_tokens) in enumerate([("top", -20, 6), ("short", -20, 5), ("old", 3, 20)]):
        bench.add(prompt(1, seed), request_id, priority=priority, max_tokens=max_tokens)
    bench.steps(6)
    bench.add(prompt(1, 3), "new", priority=0, max_tokens=20)
    trace = bench.run_to_preemption()
    assert [preemption.request_id for preemption in trace.preemptions] == [victim]
    finish(bench)


def test_priority_ageing_gets_the_less_urgent_through_a_stream_that_throws_it_out() -> None:
    """Two urgent ones are alive at all times, and memory is short: with every step L gains on those who come later."""
    engine = config(12, 1, 2, 2, 12, policy="priority", priority_aging=1.0, enable_prefix_caching=False)
    bench = Bench(replace(engine, long_prefill_token_threshold=1))
    bench.add(prompt(8), "L", priority=10, max_tokens=2)
    num_added = 0
    while bench.requests["L"].finish_reason is None:
        while len(bench.engine.scheduler.requests) < 3:
            num_added += 1
            bench.add(prompt(4, num_added), f"H{num_added}", priority=0, max_tokens=6)
        bench.step()
        assert num_added < 50
    assert bench.finished("L").num_preemptions > 0
    finish(bench)


@pytest.mark.parametrize("prefix_caching", [False, True])
@pytest.mark.parametrize("admit", [False, True])
def test_priority_two_equals_do_not_throw_each_other_out_for_ever(prefix_caching: bool, admit: bool) -> None:
    """Each has waited while the other ran, and both are admitted before there is room for all that they have."""
    engine = config(4, 2, 2, 2, 8, policy="priority", priority_aging=1.0, reserve_full_sequence=False)
    bench = Bench(
        replace(
            engine,
            long_prefill_token_threshold=1,
            enable_prefix_caching=prefix_caching,
            admit_after_preemption=admit,
        )
    )
    for seed, request_id in enumerate("AB"):
        bench.add(prompt(2, seed), request_id, max_tokens=8)
    finish(bench)


def test_priority_a_victim_gives_back_what_it_got_in_this_step() -> None:
    """V got its token, which fills a block, when U needs one. Of the budget of 4, W gets 3 instead of 2."""
    bench = Bench(config(4, 4, 4, 3, 16, policy="priority", reserve_full_sequence=False))
    bench.add(prompt(4, 1), "V", priority=5, max_tokens=6)
    bench.steps(2)
    bench.add(prompt(3, 2), "U", priority=0, max_tokens=6)
    bench.step()
    bench.add(prompt(8, 3), "W", priority=1, max_tokens=2)
    assert shares(bench.step()) == [("V", 1), ("U", 1), ("W", 2)]
    second_block = bench.engine.scheduler.pool.table("V")[1]

    trace = bench.step()
    assert trace.preemptions == (Preemption("V", "U", 1, 0, 2, num_lost_tokens=7, num_returned_tokens=1),)
    assert shares(trace) == [("U", 1), ("W", 3)]
    assert trace.blocked == Blocked("V", "preemption")
    cached, evicted = BlockOp("cache", (second_block,), "V"), BlockOp("evict", (second_block,))
    assert trace.blocks.index(cached) < trace.blocks.index(evicted)
    finish(bench)


def test_priority_no_entry_of_the_prefix_cache_outlives_the_step_that_would_have_filled_it() -> None:
    """vLLM's phantom: there L comes back with 176 cached tokens, of which the last 16 were never computed."""
    crowded_config = config(13, 16, 96, 8, 208, policy="priority", long_prefill_token_threshold=32)
    crowded, crowded_sampler = recording_bench(crowded_config)
    crowded.add(prompt(200), "L", priority=9, max_tokens=4)
    crowded.step()
    crowded.add(prompt(15, 1), "H", priority=0, max_tokens=10)
    (preemption,) = crowded.run_to_preemption().preemptions
    assert (preemption.request_id, preemption.num_lost_tokens, preemption.num_returned_tokens) == ("L", 160, 32)
    crowded.run_to_end()
    assert crowded.cached_tokens("L") == [0, 160]

    quiet, quiet_sampler = recording_bench(config(64, 16, 512, 1, 512))
    quiet.add(prompt(200), "L", max_tokens=4)
    quiet.run_to_end()
    assert quiet.tokens("L") == crowded.tokens("L")
    assert torch.equal(torch.stack(quiet_sampler.logits["L"]), torch.stack(crowded_sampler.logits["L"]))


@pytest.mark.parametrize(
    ("arrivals", "served", "unserved"),
    [([("X",), ("Y", "Z")], [], ("Y", "Z")), ([("Y", "X"), ("Z",)], [("Y", 1)], ("Z",))],
)
def test_priority_who_gives_way_to_itself_ends_the_pass(
    arrivals: list[tuple[str, ...]], served: list[tuple[str, int]], unserved: tuple[str, ...]
) -> None:
    """Three blocks, one each: X, the least urgent, is the first to need another."""
    bench = Bench(config(3, 4, 16, 3, 12, policy="priority"))
    for group in arrivals:
        for request_id in group:
            length, priority = (3, 5) if request_id == "X" else (1, 0)
            bench.add(prompt(length, ord(request_id)), request_id, priority=priority, max_tokens=4)
        bench.step()
    trace = bench.step()
    assert trace.preemptions == (Preemption("X", "X", 1, 0, 1, num_lost_tokens=4),)
    assert shares(trace) == served
    assert trace.unserved == (Unserved("preemption", unserved),)
    assert trace.waiting == ("X",)
    finish(bench)


# admit_after_preemption


@pytest.mark.parametrize(("admit", "admitted"), [(False, []), (True, ["C"])])
def test_a_step_that_preempts_admits_only_if_told_to(admit: bool, admitted: list[str]) -> None:
    """A needs one of the two blocks that B gives up; the other would be enough for C, which has just come."""
    bench = Bench(config(4, 4, 16, 3, 16, policy="priority", admit_after_preemption=admit))
    bench.add(prompt(8), "A", priority=0, max_tokens=4)
    bench.add(prompt(6, 1), "B", priority=9, max_tokens=4)
    bench.step()
    bench.add(prompt(3, 2), "C", priority=5, max_tokens=1)
    trace = bench.step()
    assert [preemption.request_id for preemption in trace.preemptions] == ["B"]
    assert [d.request_id for d in trace.scheduled if d.admitted] == admitted
    assert trace.blocked == (Blocked("B", "blocks", needed=2, available=0) if admit else Blocked("C", "preemption"))
    finish(bench)


def test_admission_after_preemption_thrashes() -> None:
    """Each token of A throws B out, and B comes right back with as much as fits."""
    calm, thrashing = (
        Bench(
            config(
                *(8, 4, 16, 2, 32),
                enable_prefix_caching=False,
                reserve_full_sequence=False,
                admit_after_preemption=admit,
            )
        )
        for admit in (False, True)
    )
    for bench in (calm, thrashing):
        bench.add(prompt(8), "A", max_tokens=16)
        bench.add(prompt(20, 1), "B", max_tokens=4)
        finish(bench)
    assert (len(calm.preemptions()), num_computed(calm)) == (4, 111)
    assert (len(thrashing.preemptions()), num_computed(thrashing)) == (8, 171)


# sglang


def sglang(blocks: int, budget: int = 0, *, bs: int = 1, seqs: int = 8, **others: Any) -> Bench:
    """A bench whose pool holds one request of the greatest length."""
    length = blocks * bs
    return Bench(config(blocks, bs, budget or length, seqs, length, **{"policy": "sglang", **others}))


@pytest.mark.parametrize(("conservativeness", "decay", "start"), [(1.0, 60, 0.7), (0.5, 10, 0.35), (2.0, 4, 1.0)])
def test_sglang_ratio_falls_with_every_decode_step_down_to_its_floor(
    conservativeness: float, decay: int, start: float
) -> None:
    bench = sglang(100, schedule_conservativeness=conservativeness, new_token_ratio_decay_steps=decay)
    bench.add(prompt(4), "A", max_tokens=decay + 4)
    step = (start - 0.14 * start) / decay
    assert bench.step().new_token_ratio == pytest.approx(start), "a prefill step changes nothing"
    assert [t.new_token_ratio for t in bench.steps(2)] == pytest.approx([start - step, start - 2 * step])
    bench.add(prompt(4, 1), "B", max_tokens=1)
    trace = bench.step()
    assert shares(trace) == [("B", 4)]
    assert trace.new_token_ratio == pytest.approx(start - 2 * step), "a prefill step changes nothing"
    ratios = [t.new_token_ratio for t in finish(bench)]
    assert ratios == pytest.approx([max(0.14 * start, start - n * step) for n in range(3, decay + 4)])
    assert ratios[-1] == ratios[-2] == pytest.approx(0.14 * start)


def test_sglang_ratio_is_back_at_its_start_after_an_idle_time() -> None:
    bench = sglang(100)
    bench.add(prompt(4), "A", max_tokens=20)
    assert finish(bench)[-1].new_token_ratio == pytest.approx(0.7 - 19 * 0.602 / 60)
    bench.add(prompt(4, 1), "B", max_tokens=1)
    assert bench.step().new_token_ratio == pytest.approx(0.7)
    finish(bench)


@pytest.mark.parametrize(
    ("together", "ignore_eos", "shared", "room"),
    [
        pytest.param(False, False, 0, 28, id="0.7 of what may come"),
        pytest.param(False, True, 0, 25, id="ignore_eos: all that will come"),
        pytest.param(True, False, 0, 23, id="same pass: all that may come and a block"),
        pytest.param(False, False, 5, 28, id="what is cached need not be computed"),
    ],
)
def test_sglang_admits_up_to_the_room_exactly(together: bool, ignore_eos: bool, shared: int, room: int) -> None:
    """Of 40 tokens A holds 5 and may get 10 more, or 11 as long as it has none."""
    for beyond in (0, 1):
        bench = sglang(40)
        bench.add(prompt(5), "A", max_tokens=11, ignore_eos=ignore_eos)
        if not together:
            bench.step()
        max_tokens = room + beyond - (7 - shared) - 1
        bench.add(prompt(5)[:shared] + prompt(7 - shared, 1), "B", max_tokens=max_tokens)
        blocked = bench.step().blocked
        assert blocked == (Blocked("B", "room", needed=room + 1, available=room) if beyond else None)
        finish(bench)


def test_sglang_cached_blocks_that_nobody_holds_are_no_room_for_whoever_hits_them() -> None:
    """Of 40 tokens B hits 6, and A holds 5 and is expected to get 7: B needs 1, its outputs and a block in 22."""
    for beyond in (0, 1):
        bench = sglang(40)
        bench.add(prompt(6, 1), "warm", max_tokens=1)
        bench.run_to_end()
        bench.add(prompt(5), "A", max_tokens=11)
        bench.step()
        bench.add(prompt(7, 1), "B", max_tokens=20 + beyond)
        blocked = bench.step().blocked
        assert blocked == (Blocked("B", "room", needed=23, available=22) if beyond else None)
        finish(bench)


@pytest.mark.parametrize(("blocks", "blocked"), [(515, None), (514, Blocked("B", "room", needed=4128, available=4112))])
def test_sglang_never_expects_more_than_4096_tokens(blocks: int, blocked: Blocked | None) -> None:
    """A holds a block and counts 4,096; B needs its 16, 4,096, and a block."""
    bench = sglang(blocks, 32, bs=16)
    bench.add(prompt(16), "A", max_tokens=5000, ignore_eos=True)
    bench.step()
    bench.add(prompt(16, 1), "B", max_tokens=5000)
    assert bench.step().blocked == blocked


def test_sglang_a_refusal_holds_for_all_until_somebody_leaves() -> None:
    """C would fit, but stands behind B."""
    bench = sglang(40)
    for seed, (request_id, length, max_tokens) in enumerate([("A", 4, 4), ("A2", 4, 8), ("B", 20, 20), ("C", 1, 1)]):
        bench.add(prompt(length, seed), request_id, max_tokens=max_tokens)
    first, *steps = finish(bench)
    # A and A2 are counted whole and with a block: 40 - 4 - (4 + 1) - 4 - (8 + 1) are left.
    assert first.blocked == Blocked("B", "room", needed=41, available=18)
    full = Blocked("B", "full")
    assert [trace.blocked for trace in steps[:3]] == [full, full, full]
    ratio = steps[2].new_token_ratio
    assert ratio is not None
    # A2 holds 7 tokens and has 4 of its 8 outputs.
    assert steps[3].blocked == Blocked("B", "room", needed=41, available=int(33 - 4 * ratio))
    assert [trace.blocked for trace in steps[4:7]] == [full, full, full]
    # C came into question once, in the step that admitted B and counted it whole.
    assert admissions(bench) == [(0, "A"), (0, "A2"), (8, "B"), (28, "C")]


def test_sglang_prefills_run_alone_and_the_half_done_one_goes_first() -> None:
    bench = sglang(100, 8)
    bench.add(prompt(4), "A", max_tokens=9)
    bench.steps(2)
    for seed, request_id in enumerate("PQ", start=1):
        bench.add(prompt(20, seed), request_id, max_tokens=2)
    steps = finish(bench)
    prefills = [[("P", 8)], [("P", 8)], [("P", 4), ("Q", 4)], [("Q", 8)], [("Q", 8)]]
    assert [shares(trace) for trace in steps[:5]] == prefills
    assert [trace.unserved for trace in steps[:5]] == [
        *(3 * [(Unserved("prefill", ("A",)),)]),
        *(2 * [(Unserved("prefill", ("A", "P")),)]),
    ]
    assert shares(steps[5]) == [("A", 1), ("P", 1), ("Q", 1)]


def test_sglang_mixed_chunk_lets_decodes_join_within_the_budget() -> None:
    bench = sglang(100, 8, mixed_chunk=True)
    for seed, request_id in enumerate("AB"):
        bench.add(prompt(4, seed), request_id, max_tokens=9)
    bench.steps(2)
    bench.add(prompt(11, 2), "P", max_tokens=2)
    bench.add(prompt(20, 3), "Q", max_tokens=1)
    steps = finish(bench)
    assert [shares(trace) for trace in steps[:4]] == [
        [("A", 1), ("B", 1), ("P", 6)],
        [("A", 1), ("B", 1), ("P", 5), ("Q", 1)],
        [("A", 1), ("B", 1), ("P", 1), ("Q", 5)],
        [("A", 1), ("B", 1), ("Q", 6)],
    ]
    assert all(not trace.unserved for trace in steps)
    before = bench.traces[1].new_token_ratio
    assert [trace.new_token_ratio for trace in steps[:4]] == [before] * 4, "only steps of nothing but decodes count"


def test_sglang_retracts_the_fewest_outputs_to_the_back_of_the_queue() -> None:
    """A comes two steps before B, and B before C; hardly anything is expected of them."""
    bench = sglang(72, schedule_conservativeness=0.1, enable_prefix_caching=False)
    for seed, request_id in enumerate("ABC"):
        bench.add(prompt(2, seed), request_id, max_tokens=50)
        bench.steps(2)
    bench.add(prompt(30, 3), "W", max_tokens=30)
    trace = bench.run_to_preemption()
    assert trace.preemptions == (Preemption("C", "A", 1, 0, 23, num_lost_tokens=23),)
    assert trace.running == ("A", "B")
    assert trace.waiting == ("W", "C")
    outputs = bench.tokens("C")
    # Before this step A had 24 outputs and B had 23, of 50 each.
    assert trace.new_token_ratio == pytest.approx((24 + 23 + 20 * 2) / (50 + 50 + 1))
    following = bench.step()
    assert following.blocked is not None
    assert following.blocked.reason == "room", "somebody has left, so W was looked at again"
    finish(bench)
    (again,) = [
        d for later in bench.traces[following.step :] for d in later.scheduled if d.request_id == "C" and d.admitted
    ]
    assert (again.start, again.target) == (0, 2 + len(outputs))


def test_sglang_retracts_the_longest_prompt_of_equals_also_if_it_got_its_token() -> None:
    bench = sglang(70, schedule_conservativeness=0.1, enable_prefix_caching=False)
    bench.add(prompt(2), "A", max_tokens=60)
    bench.step()
    for seed, (request_id, length) in enumerate([("B", 4), ("C", 5), ("D", 4)], start=1):
        bench.add(prompt(length, seed), request_id, max_tokens=15)
    trace = bench.run_to_preemption()
    assert trace.preemptions == (Preemption("C", "D", 1, 0, 19, num_lost_tokens=18, num_returned_tokens=1),)
    assert shares(trace) == [("A", 1), ("B", 1), ("D", 1)]
    finish(bench)


def test_sglang_the_head_needs_no_expectations_where_nothing_runs() -> None:
    """With the 1,000 tokens that A asks for it would never have room."""
    bench = sglang(20)
    bench.add(prompt(4), "A", max_tokens=1000)
    bench.add(prompt(4, 1), "B", max_tokens=1000)
    finish(bench)
    assert admissions(bench) == [(0, "A"), (16, "B")]
    assert bench.finished("A").num_output_tokens == 16


def test_sglang_a_request_that_outgrows_the_pool_alone_ends_with_an_error() -> None:
    """Below the engine, which would refuse this pool. B, which fits, comes after it."""
    scheduler = Scheduler(config(2, 4, 16, 2, 32, policy="sglang"))
    hopeless = Request("A", prompt(6), SamplingParams(max_tokens=10))
    fitting = Request("B", prompt(6), SamplingParams(max_tokens=2))
    for request in (hopeless, fitting):
        scheduler.add_request(request)
    ended: list[tuple[str, FinishReason | None, int]] = []
    for _ in range(6):
        output = scheduler.schedule()
        sampled = {item.request_id: 1 for item in output.scheduled if item.sampling_params}
        for request in scheduler.update_from_output(output, sampled):
            ended.append((request.request_id, request.finish_reason, request.num_output_tokens))
    assert ended == [("A", FinishReason.ERROR, 3), ("B", FinishReason.LENGTH, 2)]
    assert scheduler.pool.num_free == 2
    assert not scheduler.requests


# sglang_lpm


def test_sglang_lpm_the_longest_cached_prefix_is_next_and_ties_go_by_joining() -> None:
    bench = sglang(32, bs=4, seqs=1, policy="sglang_lpm")
    bench.add(prompt(12), "warm", max_tokens=1)
    bench.run_to_end()
    cached = {"none": 0, "one": 4, "two": 8, "two too": 8, "none either": 0}
    for seed, (request_id, length) in enumerate(cached.items(), start=1):
        bench.add(prompt(length) + prompt(3, seed), request_id, max_tokens=1)
    finish(bench)
    assert [request_id for _, request_id in admissions(bench)[1:]] == ["two", "two too", "one", "none", "none either"]
    assert {request_id: bench.cached_tokens(request_id) for request_id in cached} == {
        request_id: [length] for request_id, length in cached.items()
    }


@pytest.mark.parametrize(("num_cold", "order"), [(127, ["hit", "0", "1"]), (128, ["0", "hit", "1"])])
def test_sglang_lpm_more_than_128_are_left_as_they_stand(num_cold: int, order: list[str]) -> None:
    bench = sglang(32, bs=4, seqs=1, policy="sglang_lpm")
    bench.add(prompt(9), "warm", max_tokens=1)
    bench.run_to_end()
    for number in range(num_cold):
        bench.add([number], str(number), max_tokens=1)
    bench.add(prompt(9), "hit", max_tokens=1)
    bench.steps(3)
    assert [request_id for _, request_id in admissions(bench)[1:]] == order


# static and orca


def test_static_forms_a_batch_prefills_it_and_decodes_until_its_last_one_ends() -> None:
    bench = Bench(config(32, 4, 8, 3, 32, policy="static"))
    bench.add(prompt(6), "A", max_tokens=3)
    bench.add(prompt(6, 1), "B", max_tokens=5)
    bench.step()
    bench.add(prompt(4, 2), "C", max_tokens=2)
    finish(bench)
    assert [shares(trace) for trace in bench.traces] == [
        [("A", 6), ("B", 2)],
        [("B", 4)],
        *(2 * [[("A", 1), ("B", 1)]]),
        *(2 * [[("B", 1)]]),
        [("C", 4)],
        [("C", 1)],
    ]
    assert [trace.unserved for trace in bench.traces] == [(), (Unserved("prefill", ("A",)),), *(6 * [()])]
    assert [trace.blocked for trace in bench.traces] == [None, *(5 * [Blocked("C", "batch")]), None, None]


def test_static_a_batch_has_no_more_than_the_seats() -> None:
    bench = Bench(config(32, 4, 32, 2, 32, policy="static"))
    for seed, (request_id, max_tokens) in enumerate([("A", 2), ("B", 4), ("C", 2), ("D", 2)]):
        bench.add(prompt(4, seed), request_id, max_tokens=max_tokens)
    finish(bench)
    assert admissions(bench) == [(0, "A"), (0, "B"), (4, "C"), (4, "D")]
    assert [trace.blocked for trace in bench.traces[:4]] == 4 * [Blocked("C", "batch")]


@pytest.mark.parametrize(
    ("policy", "step", "later"),
    [("orca", 8, Blocked("C", "reserved", needed=2, available=4, kept=3)), ("static", 10, Blocked("C", "batch"))],
)
def test_memory_is_reserved_up_to_the_greatest_length(policy: str, step: int, later: Blocked) -> None:
    """A takes 3 blocks in the end, B 4, C 2: of 8, A and B hold 3 and have yet to get 4 when C asks.

    Orca takes C in when A has ended, static batching when B has too. D would fit, but stands behind C.
    """
    bench = Bench(config(8, 4, 32, 4, 32, policy=policy))
    for seed, (request_id, length, max_tokens) in enumerate([("A", 4, 8), ("B", 5, 10), ("C", 6, 2), ("D", 1, 1)]):
        bench.add(prompt(length, seed), request_id, max_tokens=max_tokens)
    finish(bench)
    assert bench.traces[0].blocked == Blocked("C", "reserved", needed=2, available=5, kept=4)
    assert bench.traces[1].blocked == later
    assert admissions(bench)[2] == (step, "C")


def test_orca_reserves_no_more_than_the_longest_sequence() -> None:
    bench = Bench(config(8, 4, 16, 4, 16, policy="orca"))
    for seed, request_id in enumerate("ABC"):
        bench.add(prompt(4, seed), request_id, max_tokens=1000)
    assert bench.step().blocked == Blocked("C", "reserved", needed=4, available=6, kept=6)
    finish(bench)


@pytest.mark.parametrize(("policy", "preempts"), [("orca", False), ("static", False), ("fcfs", True)])
def test_whoever_reserves_never_preempts(policy: str, preempts: bool) -> None:
    bench = Bench(config(8, 4, 32, 4, 32, policy=policy))
    for seed in range(5):
        bench.add(prompt(4 + seed, seed), max_tokens=20 - seed)
    finish(bench)
    assert bool(bench.preemptions()) == preempts


def test_orca_computes_prompts_whole() -> None:
    bench = Bench(config(64, 4, 32, 4, 32, policy="orca"))
    bench.add(prompt(4), "A", max_tokens=6)
    bench.step()
    for seed, request_id in enumerate("BC", start=1):
        bench.add(prompt(20, seed), request_id, max_tokens=3)
    trace = bench.step()
    assert shares(trace) == [("A", 1), ("B", 20)]
    assert trace.blocked == Blocked("C", "chunking", needed=20, available=11)
    assert shares(bench.step()) == [("A", 1), ("B", 1), ("C", 20)]
    finish(bench)


def test_orca_refuses_a_budget_below_the_longest_sequence() -> None:
    with pytest.raises(ConfigError, match=r"orca .*max_num_batched_tokens \(31\) .*max_model_len \(32\)"):
        LLMEngine(config(8, 4, 31, 4, 32, policy="orca"), ScriptedRunner(4))
    config(8, 4, 31, 4, 32, policy="static").validate()


# prefill_first and sarathi


def test_prefill_first_runs_prefills_alone_and_decodes_if_there_is_none() -> None:
    bench = Bench(config(8, 4, 8, 4, 32, policy="prefill_first"))
    bench.add(prompt(4), "A", max_tokens=6)
    bench.steps(2)
    bench.add(prompt(12, 1), "B", max_tokens=6)
    bench.add(prompt(14, 2), "C", max_tokens=2)
    steps = finish(bench)
    assert [shares(trace) for trace in steps[:4]] == [[("B", 8)], [("B", 4)], *(2 * [[("A", 1), ("B", 1)]])]
    assert [trace.unserved for trace in steps[:4]] == [*(2 * [(Unserved("prefill", ("A",)),)]), (), ()]
    assert steps[1].blocked == Blocked("C", "blocks", needed=4, available=3)


def test_prefill_first_a_preempted_decode_is_next() -> None:
    bench = Bench(config(6, 4, 32, 2, 24, policy="prefill_first", enable_prefix_caching=False))
    for seed, request_id in enumerate("ABC"):
        bench.add(prompt(8, seed), request_id, max_tokens=12)
    trace = bench.run_to_preemption()
    assert trace.preemptions == (Preemption("B", "A", 1, 0, 3, num_lost_tokens=12),)
    assert (trace.running, trace.waiting) == (("A",), ("B", "C"))
    assert trace.blocked == Blocked("B", "preemption")
    finish(bench)
    assert [request_id for _, request_id in admissions(bench)][:4] == ["A", "B", "B", "C"]


@pytest.mark.parametrize("prefix_caching", [False, True])
def test_prefill_first_a_prefill_that_gives_way_to_itself_lets_the_decodes_run(prefix_caching: bool) -> None:
    """The second prompt comes in with its first block and lacks the next, until the first request has ended."""
    engine = config(2, 2, 2, 2, 4, policy="prefill_first", reserve_full_sequence=False, admit_after_preemption=True)
    bench = Bench(replace(engine, enable_prefix_caching=prefix_caching))
    bench.add(prompt(1), "A", max_tokens=3)
    bench.step()
    bench.add(prompt(3, 1), "B", max_tokens=1)
    finish(bench)
    assert bench.preemptions()


@pytest.mark.parametrize(
    ("policy", "capped", "uncapped", "unserved"),
    [
        ("sarathi", [("D", 1), ("P", 4)], [("D", 1), ("P", 7)], ()),
        ("fcfs", [("P", 4), ("D", 1)], [("P", 8)], (Unserved("budget", ("D",)),)),
    ],
)
def test_sarathi_places_decodes_before_an_older_prefill(
    policy: str, capped: list[tuple[str, int]], uncapped: list[tuple[str, int]], unserved: tuple[Unserved, ...]
) -> None:
    """P is half prefilled, since it may get no more than 4 tokens a step; then that cap is taken away."""
    bench = Bench(config(32, 4, 8, 4, 64, policy=policy, long_prefill_token_threshold=4))
    bench.add(prompt(40), "P", max_tokens=2)
    bench.add(prompt(4, 1), "D", max_tokens=8)
    assert shares(bench.step()) == [("P", 4), ("D", 4)]
    assert shares(bench.step()) == capped
    bench.engine.reconfigure(long_prefill_token_threshold=0)
    trace = bench.step()
    assert (shares(trace), trace.unserved) == (uncapped, unserved)
    finish(bench)


def test_sarathi_serves_decodes_then_prefills_then_whoever_waits() -> None:
    bench = Bench(config(64, 4, 8, 8, 64, policy="sarathi"))
    bench.add(prompt(4), "A", max_tokens=12)
    bench.step()
    for seed, (request_id, length) in enumerate([("P", 10), ("Q", 10), ("R", 2)], start=1):
        bench.add(prompt(length, seed), request_id, max_tokens=4)
    steps = finish(bench)
    assert [shares(trace) for trace in steps[:4]] == [
        [("A", 1), ("P", 7)],
        [("A", 1), ("P", 3), ("Q", 4)],
        [("A", 1), ("P", 1), ("Q", 6)],
        [("A", 1), ("P", 1), ("Q", 1), ("R", 2)],
    ]
    assert longest_stall(bench) == 0


# all policies

STALLS = {
    "fcfs": 0,
    "priority": 0,
    "sarathi": 0,
    "orca": 0,
    # A and B wait while C and D are prefilled; nothing comes in later.
    "static": 1,
    # All decodes wait for the five pieces of the long prompt.
    "prefill_first": 5,
    "sglang": 5,
    "sglang_lpm": 5,
}


@pytest.mark.parametrize("policy", STALLS)
def test_a_long_prompt_comes_to_short_ones_that_decode(policy: str) -> None:
    """Orca needs a budget for the longest sequence, and nobody waits; all others have 8 tokens a step for 40."""
    budget = 64 if policy == "orca" else 8
    bench = Bench(config(64, 4, budget, 8, 64, policy=policy))
    for seed, request_id in enumerate("ABCD"):
        bench.add(prompt(4, seed), request_id, max_tokens=12)
    bench.steps(6)
    bench.add(prompt(40, 4), "long", max_tokens=3)
    finish(bench)
    assert longest_stall(bench) == STALLS[policy]
    assert bench.preemptions() == []


# More seats than budget


def test_more_seats_than_budget_are_warned_about() -> None:
    (warning,) = config(16, 4, 4, 6, 32).warnings()
    assert re.search(r"max_num_seqs \(6\) .*max_num_batched_tokens \(4\)", warning)
    assert config(16, 4, 6, 6, 32).warnings() == ()


@pytest.mark.parametrize("policy", ["prefill_first", "sglang", "static"])
def test_whoever_gets_no_token_is_named_where_prefills_may_outnumber_the_budget(policy: str) -> None:
    bench = Bench(config(32, 4, 4, 6, 32, policy=policy))
    for seed, request_id in enumerate("ABCDEF"):
        bench.add(prompt(1, seed), request_id, max_tokens=6)
    steps = finish(bench)
    assert [shares(trace) for trace in steps[:3]] == [[(rid, 1) for rid in rids] for rids in ("ABCD", "EF", "ABCD")]
    assert steps[1].unserved == (Unserved("prefill", tuple("ABCD")),)
    assert [trace.unserved for trace in steps[2:7]] == 5 * [(Unserved("budget", ("E", "F")),)]
    assert [trace.unserved for trace in steps[7:]] == 5 * [()]


@pytest.mark.parametrize("policy", ["fcfs", "priority", "sarathi"])
def test_where_all_share_one_budget_nobody_is_admitted_beyond_it(policy: str) -> None:
    bench = Bench(config(32, 4, 4, 6, 32, policy=policy))
    for seed, request_id in enumerate("ABCDEF"):
        bench.add(prompt(1, seed), request_id, max_tokens=4)
    steps = finish(bench)
    assert [trace.running for trace in steps] == [*(4 * [tuple("ABCD")]), *(4 * [("E", "F")])]
    assert [trace.blocked for trace in steps[:4]] == 4 * [Blocked("E", "budget")]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_budget_that_shrinks_below_the_running_names_those_that_it_leaves_out(policy: str) -> None:
    length = 3 if policy == "orca" else 32
    bench = Bench(config(32, 4, 6, 6, length, policy=policy))
    for seed, request_id in enumerate("ABCDE"):
        bench.add(prompt(1, seed), request_id, max_tokens=4)
    bench.step()
    bench.engine.reconfigure(max_num_batched_tokens=3)
    trace = bench.step()
    assert shares(trace) == [("A", 1), ("B", 1), ("C", 1)]
    assert trace.unserved == (Unserved("budget", ("D", "E")),)
    finish(bench)


# What is refused


@pytest.mark.parametrize(
    ("change", "texts"),
    [
        ({"policy": "lottery"}, ["lottery", *POLICIES]),
        ({"policy": ""}, ["''", *POLICIES]),
        ({"priority_aging": -0.1}, ["priority_aging", "-0.1"]),
        ({"priority_aging": float("inf")}, ["priority_aging", "inf"]),
        ({"priority_aging": float("nan")}, ["priority_aging", "nan"]),
        ({"schedule_conservativeness": 0.0}, ["schedule_conservativeness", "0.0"]),
        ({"schedule_conservativeness": float("nan")}, ["schedule_conservativeness", "nan"]),
        ({"new_token_ratio_decay_steps": 0}, ["new_token_ratio_decay_steps", "0"]),
    ],
)
def test_parameters_of_policies_that_mean_nothing_are_refused(change: dict[str, Any], texts: list[str]) -> None:
    with pytest.raises(ConfigError) as refusal:
        LLMEngine(config(8, 4, 16, 4, 32, **change), ScriptedRunner(4))
    assert all(text in str(refusal.value) for text in texts)


# What is ignored

OTHER_VALUES = {
    "enable_chunked_prefill": False,
    "long_prefill_token_threshold": 5,
    "long_prefill_token_threshold_adaptive": True,
    "watermark": 0.3,
    "reserve_full_sequence": False,
    "priority_aging": 1.0,
    "admit_after_preemption": True,
    "schedule_conservativeness": 2.0,
    "new_token_ratio_decay_steps": 2,
    "mixed_chunk": True,
}
"""Of all parameters that not every policy looks at, one that changes decisions where it is looked at."""


def decisions(policy: str, **parameters: Any) -> list[tuple[object, ...]]:
    """Of a crowd in a small pool, with long and short prompts, priorities and many preemptions."""
    parameters = {"long_prefill_token_threshold": 0, **parameters}
    if "long_prefill_token_threshold_adaptive" in parameters:
        parameters["long_prefill_token_threshold"] = 5
    bench = Bench(config(24, 4, 64, 6, 64, policy=policy, **parameters))
    for number in range(24):
        bench.add(prompt(3 + 7 * number % 38, number), str(number), max_tokens=4 + 5 * number % 17, priority=number % 3)
        bench.step()
    finish(bench)
    return [(trace.scheduled, trace.preemptions, trace.blocked) for trace in bench.traces]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_parameter_that_a_policy_ignores_changes_no_decision(policy: str) -> None:
    usual = decisions(policy)
    capped = decisions(policy, long_prefill_token_threshold=5)
    for name, value in OTHER_VALUES.items():
        is_same = decisions(policy, **{name: value}) == (capped if name.endswith("_adaptive") else usual)
        is_ignored = name in POLICIES[policy].ignored
        # Some policies admit nobody in a step in which a block can be missing: there this one rarely matters.
        assert is_same == is_ignored or (is_same and name == "admit_after_preemption"), name
