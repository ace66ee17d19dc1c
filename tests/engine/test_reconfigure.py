"""`LLMEngine.reconfigure`: what each parameter does when it changes while requests run, and what is refused.

`Bench` asserts after every step that no block is lost and that no KV is read that was not computed; `finish` asserts
that everybody gets what the script gives it, whatever has changed on the way. Random sequences of changes are in
`test_scheduler.py`, and with a real model in `test_bitwise.py`.
"""

from __future__ import annotations

from typing import Any

import pytest

from engine.config import ConfigError
from engine.core import RunnerOutput
from engine.policy import POLICIES
from engine.scheduler import Resize, SchedulerOutput
from engine.trace import Blocked, BlockOp, Preemption, StepTrace, Unserved
from tests.engine.support import Bench, ScriptedRunner, by_history, config, prompt


def finish(bench: Bench) -> None:
    """Run to the end, where everybody has got the tokens that the script gives it alone."""
    bench.run_to_end()
    for request_id, request in bench.requests.items():
        history = request.token_ids[: request.num_prompt_tokens]
        for index in range(request.sampling_params.max_tokens):
            if len(history) == bench.engine.config.max_model_len:
                break
            history.append(by_history(request_id, index, tuple(history)))
        assert bench.tokens(request_id) == history[request.num_prompt_tokens :]


def shares(trace: StepTrace) -> list[tuple[str, int]]:
    """Who got how many tokens, in the order of the step."""
    return [(decision.request_id, decision.num_tokens) for decision in trace.scheduled]


def ops(trace: StepTrace, *names: str) -> list[tuple[str, tuple[int, ...]]]:
    """The block operations of these names, without the requests."""
    return [(op.op, op.blocks) for op in trace.blocks if op.op in names]


def table(bench: Bench, request_id: str) -> list[int]:
    return list(bench.engine.scheduler.pool.table(request_id))


def change(bench: Bench, **changes: Any) -> StepTrace:
    """Reconfigure and make the step in which that must show."""
    bench.engine.reconfigure(**changes)
    trace = bench.step()
    assert {name: getattr(trace.config, name) for name in changes} == changes
    return trace


# Budget


def test_the_very_next_step_goes_by_another_budget() -> None:
    bench = Bench(config(16, 4, 16, 4, 64))
    bench.add(prompt(60), "a", max_tokens=2)
    assert shares(bench.step()) == [("a", 16)]
    assert shares(change(bench, max_num_batched_tokens=5)) == [("a", 5)]
    assert shares(bench.step()) == [("a", 5)]
    last = change(bench, max_num_batched_tokens=64)
    assert shares(last) == [("a", 34)]
    assert [trace.scheduled[0].chunk for trace in bench.traces] == [1, 2, 3, 4]
    finish(bench)


def test_a_budget_below_the_number_of_decodes_names_who_gets_nothing() -> None:
    bench = Bench(config(16, 4, 16, 4, 32))
    for seed, request_id in enumerate("abc"):
        bench.add(prompt(4, seed), request_id, max_tokens=4)
    bench.step()
    trace = change(bench, max_num_batched_tokens=2)
    assert shares(trace) == [("a", 1), ("b", 1)]
    assert trace.unserved == (Unserved("budget", ("c",)),)
    assert change(bench, max_num_batched_tokens=3).unserved == ()
    finish(bench)


# Seats


def running_four(policy: str) -> Bench:
    """Four that decode. The least urgent is b; c and d have the fewest outputs, of these c has the longer prompt."""
    bench = Bench(config(32, 4, 32, 4, 32, policy=policy, enable_prefix_caching=False))
    bench.add(prompt(6, 0), "a", priority=1, max_tokens=12)
    bench.add(prompt(6, 1), "b", priority=3, max_tokens=12)
    bench.step()
    bench.add(prompt(7, 2), "c", priority=0, max_tokens=12)
    bench.add(prompt(6, 3), "d", priority=1, max_tokens=12)
    bench.step()
    return bench


@pytest.mark.parametrize(
    ("policy", "victims", "waiting"),
    [
        ("fcfs", "dc", "cd"),
        ("prefill_first", "dc", "cd"),
        ("sarathi", "dc", "cd"),
        ("orca", "dc", "cd"),
        ("priority", "bd", "db"),
        ("sglang", "cd", "cd"),
        ("sglang_lpm", "cd", "cd"),
    ],
)
def test_fewer_seats_preempt_whom_the_policy_names(policy: str, victims: str, waiting: str) -> None:
    bench = running_four(policy)
    tables = {rid: len(table(bench, rid)) for rid in victims}
    computed = {rid: bench.requests[rid].num_computed_tokens for rid in victims}
    free = bench.engine.scheduler.pool.num_free
    trace = change(bench, max_num_seqs=2)
    first, second = list(victims)
    assert trace.preemptions == (
        Preemption(first, "", 0, free, tables[first], computed[first], cause="seats"),
        Preemption(second, "", 0, free + tables[first], tables[second], computed[second], cause="seats"),
    )
    assert trace.waiting == tuple(waiting)
    assert trace.blocked == Blocked(waiting[0], "seats" if policy == "sarathi" else "preemption")
    assert [rid for rid, _ in shares(trace)] == [rid for rid in "abcd" if rid not in victims]
    assert bench.step().blocked is not None
    finish(bench)
    assert {rid: bench.finished(rid).num_preemptions for rid in "abcd"} == {rid: rid in victims for rid in "abcd"}


def test_fewer_seats_in_a_static_batch() -> None:
    """It takes nobody in, but whoever was of it comes back as soon as there is a seat."""
    bench = Bench(config(32, 4, 32, 4, 32, policy="static"))
    for seed, request_id in enumerate("abc"):
        bench.add(prompt(6, seed), request_id, max_tokens=6)
    bench.step()
    bench.add(prompt(6, 3), "late", max_tokens=6)
    trace = change(bench, max_num_seqs=2)
    assert [(p.request_id, p.cause) for p in trace.preemptions] == [("c", "seats")]
    assert (trace.waiting, trace.blocked) == (("c", "late"), Blocked("c", "seats"))
    trace = change(bench, max_num_seqs=4)
    assert [decision.request_id for decision in trace.scheduled if decision.admitted] == ["c"]
    assert trace.blocked == Blocked("late", "batch")
    finish(bench)


def test_more_seats_are_taken_at_once() -> None:
    bench = Bench(config(32, 4, 32, 1, 32))
    for seed, request_id in enumerate("abcd"):
        bench.add(prompt(6, seed), request_id, max_tokens=6)
    assert bench.step().blocked == Blocked("b", "seats")
    trace = change(bench, max_num_seqs=3)
    assert shares(trace) == [("a", 1), ("b", 6), ("c", 6)]
    assert trace.blocked == Blocked("d", "seats")
    finish(bench)


def test_fewer_seats_than_there_were_but_enough_for_those_that_run_preempt_nobody() -> None:
    bench = running_four("fcfs")
    bench.engine.reconfigure(max_num_seqs=5)
    bench.engine.reconfigure(max_num_seqs=1)
    assert change(bench, max_num_seqs=4).preemptions == ()
    finish(bench)
    assert bench.preemptions() == []


def test_whoever_lost_its_seat_while_half_prefilled_starts_again_behind_what_is_cached() -> None:
    bench = Bench(config(32, 4, 12, 2, 32))
    bench.add(prompt(4), "a", max_tokens=8)
    bench.add(prompt(30, 1), "b", max_tokens=2)
    bench.step()
    trace = change(bench, max_num_seqs=1)
    assert trace.preemptions == (Preemption("b", "", 0, 29, 2, 8, cause="seats"),)
    assert bench.requests["b"].num_computed_tokens == 0
    trace = change(bench, max_num_seqs=2)
    again = trace.scheduled[1]
    assert (again.request_id, again.start, again.num_cached_tokens, again.num_tokens, again.chunk) == ("b", 8, 8, 11, 1)
    finish(bench)


# Blocks


def test_new_blocks_are_drawn_first() -> None:
    bench = Bench(config(8, 4, 16, 4, 32))
    bench.add(prompt(9), "a", max_tokens=4)
    bench.step()
    bench.add(prompt(9, 1), "b", max_tokens=1)
    trace = change(bench, num_blocks=11)
    assert ops(trace, "allocate", "evict") == [("allocate", (9, 10, 4))]
    assert trace.num_free_blocks == 10 - 3
    finish(bench)


def test_cached_blocks_outlive_a_growth_while_there_are_new_ones() -> None:
    bench = Bench(config(4, 4, 16, 4, 16))
    bench.add(prompt(12), "a", max_tokens=1)
    bench.run_to_end()
    bench.add(prompt(12, 1), "b", max_tokens=1)
    trace = change(bench, num_blocks=8)
    assert ops(trace, "allocate", "evict") == [("allocate", (5, 6, 7))]
    bench.run_to_end()
    bench.add(prompt(13), "again", max_tokens=1)
    finish(bench)
    assert bench.cached_tokens("again") == [12]


def test_blocks_that_come_in_time_spare_a_preemption() -> None:
    poor, rich = (Bench(config(5, 4, 16, 2, 20, enable_prefix_caching=False)) for _ in range(2))
    for bench in (poor, rich):
        bench.add(prompt(8), "a", max_tokens=8)
        bench.add(prompt(7, 1), "b", max_tokens=8)
        bench.step()
    rich.engine.reconfigure(num_blocks=9)
    for bench in (poor, rich):
        finish(bench)
    assert [p.request_id for p in poor.preemptions()] == ["b"]
    assert rich.preemptions() == []


def test_unused_blocks_go_without_a_sound() -> None:
    bench = Bench(config(20, 4, 16, 2, 32))
    bench.add(prompt(7), "a", max_tokens=8)
    bench.step()
    trace = change(bench, num_blocks=9)
    assert (trace.blocks, trace.preemptions, trace.num_free_blocks) == (
        (BlockOp("cache", (2,), "a"),),
        (),
        6,
    )
    finish(bench)


def test_cached_blocks_beyond_the_new_end_lose_their_content_and_the_others_keep_it() -> None:
    bench = Bench(config(12, 4, 32, 2, 16))
    for seed in range(4):
        bench.add(prompt(12, seed), f"first {seed}", max_tokens=1)
    bench.run_to_end()
    assert set(bench.engine.scheduler.pool.cached_hashes()) == set(range(1, 13))
    trace = change(bench, num_blocks=9)
    assert trace.blocks == (BlockOp("evict", (9, 10, 11, 12)),)
    assert trace.num_free_blocks == 8
    for seed in range(4):
        bench.add(prompt(12, seed), f"second {seed}", max_tokens=1)
        finish(bench)
    assert [bench.cached_tokens(f"second {seed}") for seed in range(4)] == [[8], [8], [8], [0]]


def test_held_blocks_move_into_the_pool_that_is_left() -> None:
    """Unused blocks are taken first, then those whose content was of use longest ago."""
    bench = Bench(config(10, 4, 32, 4, 16))
    bench.add(prompt(9), "a", max_tokens=1)
    bench.run_to_end()
    bench.add(prompt(9, 1), "b", max_tokens=5)
    bench.add(prompt(9, 1), "twin", max_tokens=5)
    bench.step()
    assert (table(bench, "b"), table(bench, "twin")) == ([3, 4, 5], [3, 4, 6])
    bench.step()
    trace = change(bench, num_blocks=5)
    assert trace.preemptions == ()
    # Blocks 1 and 2 hold the prompt of `a`; the latter, its tail, is of less use.
    assert ops(trace, "evict", "move") == [("evict", (2, 1)), ("move", (5, 2)), ("move", (6, 1))]
    assert (table(bench, "b"), table(bench, "twin")) == ([3, 4, 2], [3, 4, 1])
    assert trace.num_free_blocks == 0
    finish(bench)


def test_a_move_takes_all_holders_and_the_place_in_the_cache_along() -> None:
    bench = Bench(config(9, 4, 32, 3, 16, enable_prefix_caching=True))
    bench.add(prompt(12), "a", max_tokens=1)
    bench.run_to_end()
    for request_id in ("b", "twin"):
        bench.add(prompt(9, 1), request_id, max_tokens=4)
    bench.step()
    assert (table(bench, "b"), table(bench, "twin")) == ([4, 5, 6], [4, 5, 7])
    trace = change(bench, num_blocks=5)
    assert ops(trace, "move") == [("move", (5, 3)), ("move", (6, 2)), ("move", (7, 1))]
    assert (table(bench, "b"), table(bench, "twin")) == ([4, 3, 2], [4, 3, 1])
    finish(bench)
    bench.add(prompt(9, 1), "later", max_tokens=1)
    bench.step()
    assert bench.cached_tokens("later") == [8]
    assert ops(bench.traces[-1], "hit") == [("hit", (4, 3))]
    finish(bench)


def test_preemption_only_for_what_is_held_and_cannot_stay() -> None:
    bench = Bench(config(12, 4, 32, 3, 16, enable_prefix_caching=False))
    for seed, request_id in enumerate("abc"):
        bench.add(prompt(9, seed), request_id, max_tokens=4)
    bench.step()
    trace = change(bench, num_blocks=10)
    assert (trace.preemptions, trace.num_free_blocks) == ((), 0)
    trace = change(bench, num_blocks=9)
    assert trace.preemptions == (Preemption("c", "", 0, 0, 3, 10, cause="pool"),)
    assert trace.blocked == Blocked("c", "preemption")
    assert trace.num_free_blocks == 2
    trace = change(bench, num_blocks=5)
    assert trace.preemptions == (Preemption("b", "", 0, 2, 3, 11, cause="pool"),)
    assert (trace.running, trace.waiting) == (("a",), ("b", "c"))
    finish(bench)


def test_blocks_of_an_aborted_request_make_room_before_anybody_is_thrown_out() -> None:
    bench = Bench(config(12, 4, 32, 3, 16, enable_prefix_caching=False))
    for seed, request_id in enumerate("abc"):
        bench.add(prompt(9, seed), request_id, max_tokens=4)
    bench.step()
    bench.engine.reconfigure(num_blocks=7)
    bench.engine.abort("a")
    trace = bench.step()
    assert (trace.preemptions, trace.running) == ((), ("b", "c"))
    assert [op for op, _ in ops(trace, "release", "move")] == ["release", "move", "move", "move"]
    assert (table(bench, "b"), table(bench, "c")) == ([4, 5, 6], [3, 2, 1])
    bench.requests.pop("a")
    finish(bench)


@pytest.mark.parametrize(("policy", "victim"), [("priority", "a"), ("sglang", "a"), ("orca", "b"), ("static", "b")])
def test_a_smaller_pool_preempts_whom_the_policy_names(policy: str, victim: str) -> None:
    bench = Bench(config(12, 4, 32, 2, 16, policy=policy, enable_prefix_caching=False))
    bench.add(prompt(10), "a", priority=1, max_tokens=6)
    bench.add(prompt(9, 1), "b", priority=0, max_tokens=6)
    bench.step()
    trace = change(bench, num_blocks=6)
    assert [(p.request_id, p.cause, p.num_freed_blocks) for p in trace.preemptions] == [(victim, "pool", 3)]
    finish(bench)


def test_a_victim_that_shares_its_blocks_makes_little_room() -> None:
    """So the next one has to go as well."""
    bench = Bench(config(12, 4, 32, 3, 16))
    bench.add(prompt(13), "a", max_tokens=3)
    bench.add(prompt(9, 1), "b", max_tokens=7)
    bench.step()
    bench.add(prompt(9, 1), "c", max_tokens=7)
    bench.step()
    assert (table(bench, "b"), table(bench, "c")) == ([5, 6, 7], [5, 6, 8])
    trace = change(bench, num_blocks=6)
    assert [(p.request_id, p.num_freed_blocks) for p in trace.preemptions] == [("c", 1), ("b", 3)]
    assert {p.cause for p in trace.preemptions} == {"pool"}
    finish(bench)


def test_a_pool_that_shrinks_and_grows_again_and_again_loses_nothing() -> None:
    bench = Bench(config(16, 4, 8, 3, 32))
    for seed in range(6):
        bench.add(prompt(5 + 3 * seed, seed % 2), str(seed), max_tokens=10)
    sizes = [17, 12, 9, 40, 9, 10, 11, 9, 30, 13, 9] * 2
    for num_blocks in sizes:
        trace = change(bench, num_blocks=num_blocks)
        held = {block for rid in bench.engine.scheduler.requests for block in table(bench, rid)}
        assert trace.num_free_blocks + len(held) == num_blocks - 1
        assert max(held, default=1) < num_blocks
    assert {p.cause for p in bench.preemptions()} >= {"pool"}
    assert any(ops(trace, "move") for trace in bench.traces)
    finish(bench)


def test_what_is_taken_back_before_a_step_never_happened() -> None:
    bench = Bench(config(12, 4, 32, 3, 16))
    bench.add(prompt(12, 3), "before", max_tokens=1)
    bench.run_to_end()
    for seed, request_id in enumerate("abc"):
        bench.add(prompt(9, seed), request_id, max_tokens=4)
    bench.step()
    cached = bench.engine.scheduler.pool.cached_hashes()
    for num_blocks in (5, 60, 7):
        bench.engine.reconfigure(num_blocks=num_blocks)
    trace = change(bench, num_blocks=13)
    assert (trace.preemptions, ops(trace, "evict", "move", "release")) == ((), [])
    assert cached.items() <= bench.engine.scheduler.pool.cached_hashes().items()
    assert shares(trace) == [("a", 1), ("b", 1), ("c", 1)]
    finish(bench)


class Recording(ScriptedRunner):
    """A runner that keeps what it was told of the pool's size, step by step."""

    def __init__(self, block_size: int) -> None:
        super().__init__(block_size)
        self.resizes: list[Resize | None] = []

    def execute(self, output: SchedulerOutput) -> RunnerOutput:
        self.resizes.append(output.resize)
        return super().execute(output)


def test_the_runner_is_told_the_size_and_the_moves_once() -> None:
    runner = Recording(4)
    bench = Bench(config(10, 4, 32, 4, 16, enable_prefix_caching=False), runner)
    bench.add(prompt(9), "a", max_tokens=1)
    bench.add(prompt(9, 1), "b", max_tokens=5)
    bench.step()
    change(bench, num_blocks=5)
    change(bench, num_blocks=30)
    change(bench, max_num_seqs=2)
    finish(bench)
    assert runner.resizes == [None, Resize(5, ((5, 3), (6, 2))), Resize(30, ()), None, None]


# Chunking


def test_chunking_off_completes_a_half_prefilled_request_and_cuts_nobody_else() -> None:
    bench = Bench(config(32, 4, 8, 4, 32))
    bench.add(prompt(30), "half", max_tokens=2)
    bench.add(prompt(28, 1), "next", max_tokens=2)
    assert shares(bench.step()) == [("half", 8)]
    trace = change(bench, enable_chunked_prefill=False, max_num_batched_tokens=32)
    assert shares(trace) == [("half", 22)]
    assert trace.blocked == Blocked("next", "chunking", needed=28, available=10)
    trace = change(bench, enable_chunked_prefill=True, max_num_batched_tokens=16)
    assert shares(trace) == [("half", 1), ("next", 15)]
    assert trace.scheduled[1].cut_by == "budget"
    finish(bench)


def test_chunking_on_cuts_who_was_blocked() -> None:
    bench = Bench(config(32, 4, 32, 4, 32, enable_chunked_prefill=False))
    bench.add(prompt(20), "a", max_tokens=2)
    bench.add(prompt(31, 1), "b", max_tokens=1)
    bench.add(prompt(4, 2), "c", max_tokens=2)
    assert bench.step().blocked == Blocked("b", "chunking", needed=31, available=12)
    assert shares(change(bench, enable_chunked_prefill=True, max_num_batched_tokens=8)) == [("a", 1), ("b", 7)]
    finish(bench)


# Prefix cache


def test_the_prefix_cache_is_emptied_when_it_goes_off() -> None:
    bench = Bench(config(12, 4, 32, 2, 32))
    bench.add(prompt(12), "before", max_tokens=1)
    bench.run_to_end()
    bench.add(prompt(9, 1), "held", max_tokens=12)
    bench.step()
    assert set(bench.engine.scheduler.pool.cached_hashes()) == {1, 2, 3, 4, 5}
    bench.add(prompt(13), "again", max_tokens=1)
    trace = change(bench, enable_prefix_caching=False)
    (evicted,) = ops(trace, "evict")
    assert sorted(evicted[1]) == [1, 2, 3, 4, 5]
    assert trace.blocks[0].op == "evict", "before anything of the step is decided"
    assert shares(trace) == [("held", 1), ("again", 13)]
    assert table(bench, "held") == [4, 5, 6]
    bench.add(prompt(13), "once more", max_tokens=1)
    finish(bench)
    assert bench.cached_tokens("again") == bench.cached_tokens("once more") == [0]
    assert bench.engine.scheduler.pool.cached_hashes() == {}


def test_the_prefix_cache_on_again_finds_what_was_computed_since_and_nothing_older() -> None:
    bench = Bench(config(32, 4, 32, 4, 32))
    bench.add(prompt(13), "older", max_tokens=1)
    bench.run_to_end()
    bench.engine.reconfigure(enable_prefix_caching=False)
    bench.add(prompt(13, 1), "off", max_tokens=1)
    bench.run_to_end()
    bench.engine.reconfigure(enable_prefix_caching=True)
    for seed, request_id in enumerate(("older 2", "off 2", "new")):
        bench.add(prompt(13, seed), request_id, max_tokens=1)
    bench.run_to_end()
    for seed in range(3):
        bench.add(prompt(13, seed), f"again {seed}", max_tokens=1)
    finish(bench)
    assert [bench.cached_tokens(rid) for rid in ("older 2", "off 2", "new")] == [[0]] * 3
    assert [bench.cached_tokens(f"again {seed}") for seed in range(3)] == [[12]] * 3


def test_the_prefix_cache_off_and_on_before_a_step_is_empty() -> None:
    bench = Bench(config(12, 4, 32, 2, 32))
    bench.add(prompt(12), "before", max_tokens=1)
    bench.run_to_end()
    bench.engine.reconfigure(enable_prefix_caching=False)
    bench.add(prompt(13), "again", max_tokens=1)
    trace = change(bench, enable_prefix_caching=True)
    assert trace.blocks[0] == BlockOp("evict", (1, 2, 3))
    finish(bench)
    assert bench.cached_tokens("again") == [0]


def test_a_request_that_ran_while_the_cache_was_off_enters_only_what_becomes_full_later() -> None:
    """Its later blocks are of no use to others before its head is cached by somebody; nothing wrong is ever found."""
    bench = Bench(config(16, 4, 32, 2, 32, enable_prefix_caching=False))
    bench.add(prompt(8), "a", max_tokens=9)
    bench.steps(2)
    bench.engine.reconfigure(enable_prefix_caching=True)
    finish(bench)
    assert [blocks for trace in bench.traces for _, blocks in ops(trace, "cache")] == [(3,), (4,)]
    history = bench.requests["a"].token_ids
    for request_id in ("b", "c"):
        bench.add(history[:17], request_id, max_tokens=1)
        finish(bench)
    assert (bench.cached_tokens("b"), bench.cached_tokens("c")) == ([0], [16])


# Thresholds, watermark, and what has to fit


def test_the_long_prefill_threshold_and_its_floor() -> None:
    bench = Bench(config(32, 4, 24, 3, 64))
    for seed, request_id in enumerate("abc"):
        bench.add(prompt(60, seed), request_id, max_tokens=1)
    assert shares(bench.step()) == [("a", 24)]
    trace = change(bench, long_prefill_token_threshold=4)
    assert shares(trace) == [("a", 4), ("b", 4), ("c", 4)]
    assert {decision.cut_by for decision in trace.scheduled} == {"threshold"}
    assert shares(change(bench, long_prefill_token_threshold_adaptive=True)) == [("a", 8), ("b", 8), ("c", 8)]
    trace = change(bench, long_prefill_token_threshold=0)
    assert shares(trace) == [("a", 24)]
    assert trace.unserved == (Unserved("budget", ("b", "c")),)
    finish(bench)


def test_the_watermark() -> None:
    bench = Bench(config(9, 4, 32, 3, 32))
    bench.add(prompt(10), "a", max_tokens=6)
    bench.step()
    bench.add(prompt(12, 1), "b", max_tokens=2)
    trace = change(bench, watermark=0.4)
    assert trace.blocked == Blocked("b", "blocks", needed=3, available=6, kept=4)
    trace = change(bench, watermark=0.3)
    assert (trace.blocked, shares(trace)) == (None, [("a", 1), ("b", 12)])
    finish(bench)


def test_reserving_the_whole_sequence() -> None:
    bench = Bench(config(8, 4, 16, 2, 32))
    bench.add(prompt(12), "a", max_tokens=8)
    bench.add(prompt(24, 1), "b", max_tokens=2)
    assert bench.step().blocked == Blocked("b", "blocks", needed=6, available=5)
    assert shares(change(bench, reserve_full_sequence=False)) == [("a", 1), ("b", 15)]
    finish(bench)


def test_admission_after_a_preemption() -> None:
    bench = Bench(config(4, 4, 16, 3, 16, enable_prefix_caching=False))
    bench.add(prompt(8), "a", max_tokens=4)
    bench.add(prompt(7, 1), "b", max_tokens=4)
    bench.step()
    trace = change(bench, admit_after_preemption=True)
    assert [p.request_id for p in trace.preemptions] == ["b"]
    assert trace.blocked == Blocked("b", "blocks", needed=2, available=1)
    finish(bench)


# Policies


def in_the_middle(policy: str) -> Bench:
    """`run` decodes, `half` is half prefilled (orca does no such thing) and three wait for a seat.

    These arrive in the order of their names; most urgent is w3, and only w2 finds something in the cache.
    """
    budget = 32 if policy == "orca" else 8
    bench = Bench(config(24, 4, budget, 2, 32, policy=policy))
    bench.add(prompt(5), "run", max_tokens=12)
    bench.add(prompt(24, 1), "half", max_tokens=8)
    bench.steps(2)
    for number, (seed, priority) in enumerate([(2, 5), (0, 3), (4, 1)], start=1):
        bench.add(prompt(9, seed), f"w{number}", priority=priority, max_tokens=3)
    trace = bench.step()
    assert trace.running == ("run", "half")
    assert bench.requests["half"].is_prefilling == (policy != "orca")
    return bench


WAITING = {"priority": ("w3", "w2", "w1"), "sglang_lpm": ("w2", "w1", "w3")}
"""Who is next where it is not first come, first served."""


@pytest.mark.parametrize("new", POLICIES)
@pytest.mark.parametrize("old", POLICIES)
def test_from_any_policy_to_any_other(old: str, new: str) -> None:
    bench = in_the_middle(old)
    in_order = ("w1", "w2", "w3")
    assert bench.traces[-1].waiting == WAITING.get(old, in_order)
    trace = change(bench, policy=new, max_num_batched_tokens=32)
    assert (trace.running, trace.waiting) == (("run", "half"), WAITING.get(new, in_order))
    assert trace.blocked == Blocked(trace.waiting[0], "batch" if new == "static" else "seats")
    assert trace.preemptions == ()
    assert (trace.new_token_ratio is None) == (not new.startswith("sglang"))
    bench.add(prompt(9, 6), "w4", priority=0, max_tokens=3)
    waiting = ("w4", "w3", "w2", "w1") if new == "priority" else (*trace.waiting, "w4")
    assert bench.step().waiting == waiting, "who comes later joins the new order"
    finish(bench)
    admitted = [d.request_id for t in bench.traces for d in t.scheduled if d.admitted]
    assert admitted == ["run", "half", *waiting]


def test_the_passes_of_the_new_policy_are_walked_at_once() -> None:
    """The older request is prefilled while the other one decodes: before it, after it, or not at all."""
    bench = Bench(config(24, 4, 9, 2, 32, long_prefill_token_threshold=4))
    bench.add(prompt(31), "half", max_tokens=1)
    bench.add(prompt(4, 1), "run", max_tokens=12)
    assert shares(bench.step()) == [("half", 4), ("run", 4)]
    assert shares(bench.step()) == [("half", 4), ("run", 1)]
    assert shares(change(bench, policy="sarathi")) == [("run", 1), ("half", 4)]
    trace = change(bench, policy="prefill_first")
    assert (shares(trace), trace.unserved) == ([("half", 9)], (Unserved("prefill", ("run",)),))
    trace = change(bench, policy="fcfs")
    assert (shares(trace), trace.unserved) == ([("half", 4), ("run", 1)], ())
    finish(bench)


def test_a_retracted_request_stands_where_the_policy_in_force_puts_it() -> None:
    """SGLang puts it behind, vLLM where it was; who waits is sorted anew with every switch."""
    bench = Bench(config(24, 4, 32, 2, 32, policy="sglang"))
    for seed, request_id in enumerate(("a", "b", "c")):
        bench.add(prompt(6 + seed, seed), request_id, max_tokens=12)
    bench.steps(2)
    trace = change(bench, max_num_seqs=1)
    assert (trace.running, trace.waiting) == (("a",), ("c", "b"))
    for policy, waiting in [("fcfs", ("b", "c")), ("sglang", ("c", "b")), ("sglang_lpm", ("b", "c"))]:
        assert change(bench, policy=policy).waiting == waiting
    finish(bench)


def test_a_switch_to_static_lets_those_that_run_end_before_it_forms_a_batch() -> None:
    bench = in_the_middle("fcfs")
    bench.engine.reconfigure(policy="static", max_num_seqs=5)
    while {"run", "half"} & bench.engine.scheduler.requests.keys():
        assert bench.step().blocked == Blocked("w1", "batch")
    bench.step()
    trace = bench.step()
    assert trace.running == ("w1", "w2", "w3")
    finish(bench)


def test_a_switch_to_orca_counts_what_those_that_run_may_become() -> None:
    bench = Bench(config(9, 4, 32, 3, 32))
    bench.add(prompt(6), "a", max_tokens=20)
    bench.step()
    bench.add(prompt(6, 1), "b", max_tokens=10)
    trace = change(bench, policy="orca")
    # `a` holds 2 blocks and may come to 7, `b` may come to 4.
    assert trace.blocked == Blocked("b", "reserved", needed=4, available=7, kept=5)
    assert change(bench, num_blocks=12).blocked is None
    finish(bench)
    assert bench.preemptions() == []


def test_a_request_that_outgrows_what_an_earlier_policy_gave_it_is_still_served_by_orca() -> None:
    """Orca never throws out whom it has admitted; those that came before it have reserved nothing."""
    bench = Bench(config(5, 4, 20, 2, 20, enable_prefix_caching=False))
    bench.add(prompt(8), "a", max_tokens=10)
    bench.add(prompt(7, 1), "b", max_tokens=10)
    bench.step()
    bench.engine.reconfigure(policy="orca")
    finish(bench)
    assert [p.request_id for p in bench.preemptions()] == ["b"]


def test_ageing_puts_those_that_have_waited_first() -> None:
    bench = Bench(config(24, 4, 32, 1, 32, policy="priority"))
    bench.add(prompt(6), "run", priority=-9, max_tokens=20)
    bench.add(prompt(6, 1), "patient", priority=5, max_tokens=2)
    bench.steps(6)
    bench.add(prompt(6, 2), "urgent", priority=2, max_tokens=2)
    bench.add(prompt(6, 3), "lazy", priority=9, max_tokens=2)
    assert bench.step().waiting == ("urgent", "patient", "lazy")
    # `patient` came six steps earlier than `urgent` and is less urgent by 3.
    assert change(bench, priority_aging=0.4).waiting == ("urgent", "patient", "lazy")
    assert change(bench, priority_aging=0.6).waiting == ("patient", "urgent", "lazy")
    assert change(bench, priority_aging=0.5).waiting == ("patient", "urgent", "lazy"), "equals go by arrival"
    assert change(bench, priority_aging=0.0).waiting == ("urgent", "patient", "lazy")
    finish(bench)


def test_mixed_chunk_lets_decodes_into_the_prefill_batch() -> None:
    bench = in_the_middle("sglang")
    assert shares(bench.traces[-1]) == [("half", 8)]
    assert bench.traces[-1].unserved == (Unserved("prefill", ("run",)),)
    trace = change(bench, mixed_chunk=True, max_num_batched_tokens=3)
    assert (shares(trace), trace.unserved) == ([("run", 1), ("half", 2)], ())
    trace = change(bench, mixed_chunk=False)
    assert (shares(trace), trace.unserved) == ([("half", 3)], (Unserved("prefill", ("run",)),))
    finish(bench)


def test_sglang_looks_again_at_whom_it_refused_when_there_is_more_room() -> None:
    bench = Bench(config(8, 4, 32, 3, 32, policy="sglang"))
    bench.add(prompt(8), "a", max_tokens=20)
    bench.steps(2)
    bench.add(prompt(8, 1), "b", max_tokens=4)
    assert [blocked.reason for trace in bench.steps(2) if (blocked := trace.blocked)] == ["room", "full"]
    assert shares(change(bench, num_blocks=20)) == [("b", 8)]
    finish(bench)


def test_the_ratio_of_sglang_says_nothing_of_seats_and_pools_that_became_fewer() -> None:
    bench = Bench(config(40, 4, 32, 4, 32, policy="sglang", new_token_ratio_decay_steps=10))
    for seed, request_id in enumerate("abc"):
        bench.add(prompt(6, seed), request_id, max_tokens=20)
    bench.steps(2)
    start, floor = 0.7, 0.14 * 0.7
    trace = change(bench, max_num_seqs=2)
    assert [p.cause for p in trace.preemptions] == ["seats"]
    assert trace.new_token_ratio == pytest.approx(start - 2 * (start - floor) / 10)
    bench.steps(3)
    trace = change(bench, num_blocks=9, max_num_seqs=1)
    assert trace.new_token_ratio == pytest.approx(start - 6 * (start - floor) / 10)
    finish(bench)


def test_the_ratio_of_sglang_falls_by_the_steps_in_force() -> None:
    bench = Bench(config(24, 4, 32, 2, 32, policy="sglang", new_token_ratio_decay_steps=10))
    bench.add(prompt(4), "a", max_tokens=20)
    start, floor = 0.7, 0.14 * 0.7
    assert bench.step().new_token_ratio == pytest.approx(start)
    assert bench.step().new_token_ratio == pytest.approx(start - (start - floor) / 10)
    trace = change(bench, new_token_ratio_decay_steps=4)
    assert trace.new_token_ratio == pytest.approx(start - (start - floor) * (1 / 10 + 1 / 4))
    trace = change(bench, new_token_ratio_decay_steps=1)
    assert trace.new_token_ratio == pytest.approx(floor)
    assert change(bench, schedule_conservativeness=1.4).new_token_ratio == pytest.approx(0.14 * 0.98)
    finish(bench)
    bench.add(prompt(4), "b", max_tokens=2)
    assert bench.step().new_token_ratio == pytest.approx(0.98), "back to the start after an idle time"
    finish(bench)


# Refusals


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"max_num_seq": 4}, ["no parameter 'max_num_seq'", "max_num_seqs"]),
        ({"max_num_seqs": 4, "typo": 1}, ["'typo'"]),
        ({"max_num_seqs": "4"}, ["max_num_seqs is '4'", "int"]),
        ({"max_num_seqs": 4.0}, ["max_num_seqs is 4.0", "int"]),
        ({"max_num_seqs": True}, ["max_num_seqs is True", "int"]),
        ({"max_num_seqs": None}, ["max_num_seqs is None", "int"]),
        ({"enable_prefix_caching": 0}, ["enable_prefix_caching is 0", "bool"]),
        ({"watermark": "low"}, ["watermark is 'low'", "float"]),
        ({"policy": 3}, ["policy is 3", "str"]),
        ({"policy": "sjf"}, ["'sjf'", "fcfs", "priority", "sglang_lpm"]),
        ({"block_size": 8}, ["block_size is 4", "restart"]),
        ({"max_model_len": 16}, ["max_model_len is 32", "restart"]),
        ({"num_blocks": 8}, ["28 tokens", "7 usable blocks of 4", "max_model_len is 32", "at least 9 blocks"]),
        ({"num_blocks": 1}, ["num_blocks is 1", "at least 2"]),
        ({"num_blocks": 20, "max_num_batched_tokens": 0}, ["max_num_batched_tokens is 0"]),
        ({"max_num_seqs": 0}, ["max_num_seqs is 0"]),
        ({"enable_chunked_prefill": False}, ["max_num_batched_tokens (16)", "max_model_len (32)"]),
        ({"policy": "orca"}, ["policy orca", "max_num_batched_tokens (16)", "max_model_len (32)"]),
        ({"long_prefill_token_threshold": -1}, ["-1"]),
        ({"watermark": 1}, ["watermark is 1"]),
        ({"watermark": float("nan")}, ["watermark is nan"]),
        ({"priority_aging": -0.5}, ["priority_aging is -0.5"]),
        ({"priority_aging": float("inf")}, ["priority_aging is inf"]),
        ({"schedule_conservativeness": 0}, ["schedule_conservativeness is 0"]),
        ({"new_token_ratio_decay_steps": 0}, ["new_token_ratio_decay_steps is 0"]),
    ],
)
def test_what_cannot_work_is_refused_and_changes_nothing(changes: dict[str, Any], said: list[str]) -> None:
    changed, untouched = (Bench(config(12, 4, 16, 4, 32)) for _ in range(2))
    for bench in (changed, untouched):
        for seed, request_id in enumerate("abc"):
            bench.add(prompt(14, seed), request_id, max_tokens=8)
        bench.step()
    before = changed.engine.config
    with pytest.raises(ConfigError) as refusal:
        changed.engine.reconfigure(**changes)
    assert all(text in str(refusal.value) for text in said), refusal.value
    assert changed.engine.config is before
    assert changed.engine.scheduler.config is before
    for bench in (changed, untouched):
        finish(bench)
    decided = [
        [(trace.config, trace.scheduled, trace.preemptions, trace.blocks) for trace in bench.traces]
        for bench in (changed, untouched)
    ]
    assert decided[0] == decided[1]


class Full(ScriptedRunner):
    """A runner without memory for more than so many blocks."""

    most = 20

    def reserve(self, num_blocks: int) -> None:
        if num_blocks > self.most:
            raise ConfigError(f"there is no memory for num_blocks = {num_blocks}")


def test_a_pool_for_which_there_is_no_memory_is_refused() -> None:
    bench = Bench(config(12, 4, 16, 4, 32), Full(4))
    bench.add(prompt(14), "a", max_tokens=8)
    bench.step()
    before = bench.engine.config
    with pytest.raises(ConfigError, match="num_blocks = 21"):
        bench.engine.reconfigure(num_blocks=21, max_num_seqs=1, policy="priority")
    assert bench.engine.config is bench.engine.scheduler.config is before
    assert bench.step().config is before
    assert change(bench, num_blocks=20).num_free_blocks == 19 - 4
    finish(bench)


def test_a_value_that_is_there_already_is_no_change_of_what_takes_a_restart() -> None:
    bench = Bench(config(12, 4, 16, 4, 32))
    trace = change(bench, block_size=4, max_model_len=32, max_num_seqs=2)
    assert trace.config == config(12, 4, 16, 2, 32)


def test_what_works_only_together_is_changed_together() -> None:
    bench = Bench(config(12, 4, 16, 4, 32))
    for changes in ({"policy": "orca"}, {"enable_chunked_prefill": False}):
        with pytest.raises(ConfigError):
            bench.engine.reconfigure(**changes)
        change(bench, **changes, max_num_batched_tokens=32)
        with pytest.raises(ConfigError):
            bench.engine.reconfigure(max_num_batched_tokens=31)
        change(bench, policy="fcfs", enable_chunked_prefill=True, max_num_batched_tokens=16)


# News


def test_a_change_on_an_idle_engine_is_news_once() -> None:
    bench = Bench(config(12, 4, 16, 4, 32))

    def news() -> tuple[bool, bool]:
        return bench.engine.has_news, bench.engine.has_unfinished_requests

    assert news() == (False, False)
    bench.engine.reconfigure(policy="sglang", num_blocks=30)
    bench.engine.reconfigure(max_num_seqs=2)
    assert news() == (True, False)
    trace = bench.step()
    assert trace.config == config(29, 4, 16, 2, 32, policy="sglang")
    assert (trace.scheduled, trace.blocks, trace.num_free_blocks) == ((), (), 29)
    assert news() == (False, False)


def test_a_refused_change_is_no_news() -> None:
    bench = Bench(config(12, 4, 16, 4, 32))
    with pytest.raises(ConfigError):
        bench.engine.reconfigure(max_num_seqs=0)
    assert not bench.engine.has_news


def test_the_trace_of_the_step_before_keeps_the_configuration_that_it_was_made_with() -> None:
    bench = Bench(config(12, 4, 16, 4, 32))
    bench.add(prompt(20), "a", max_tokens=2)
    before = bench.step()
    change(bench, max_num_batched_tokens=2)
    assert (before.config.max_num_batched_tokens, before.num_scheduled_tokens) == (16, 16)
    finish(bench)
