"""What polls of a server add up to: totals, latencies, the prefix cache, events, and any past state of them."""

from __future__ import annotations

import dataclasses
from collections import Counter
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from app.history import History
from app.prefix_tree import Branch, PrefixTree
from app.server_view import token_rates
from engine.poll import Histogram, Poll, PrefixOp, Rank
from engine.trace import StepTrace, decode, encode
from tests.app.server_support import (
    BOUNDS,
    CONFIG,
    NO_BUDGET,
    PROBLEM,
    first_look,
    histogram,
    histograms,
    looked,
    polled,
    polls,
    rank,
    series,
)
from tests.app.support import repeatable, view_of


@given(polls)
@repeatable
def test_a_poll_survives_being_recorded(poll: Poll) -> None:
    trace = polled(7, poll)
    assert decode(encode(trace)) == trace


# Histograms.


@given(histograms, histograms)
@repeatable
def test_histograms_add_up(one: Histogram, other: Histogram) -> None:
    both = one + other
    assert both.count == one.count + other.count
    assert both.sum == pytest.approx(one.sum + other.sum)


def test_histograms_of_other_bounds_do_not() -> None:
    with pytest.raises(ValueError, match="bounds"):
        Histogram((1.0,), (1, 2), 3.0) + Histogram((2.0,), (1, 2), 3.0)


@given(histograms, st.floats(0, 1), st.floats(0, 1))
@repeatable
def test_a_quantile_lies_between_the_bounds_of_its_value(counted: Histogram, share: float, other: float) -> None:
    quantile, higher = counted.quantile(min(share, other)), counted.quantile(max(share, other))
    if not counted.count:
        assert quantile is None and counted.mean is None
        return
    assert quantile is not None and higher is not None
    assert 0 <= quantile <= higher
    assert higher <= BOUNDS[-1] or (higher == inf and counted.counts[-1])


def test_a_quantile_is_where_its_share_of_the_values_is_below() -> None:
    counted = histogram(*[0.005] * 50, *[0.04] * 50)
    assert counted.quantile(0.5) == pytest.approx(0.01)
    assert counted.quantile(0.75) == pytest.approx(0.0375)
    assert histogram(5.0, 6.0).quantile(0.5) == inf, "above the last bound nothing else is known"


# Totals.


def test_everything_is_added_up_since_we_look() -> None:
    view = view_of([polled(0, first_look()), *(polled(step, looked()) for step in (1, 2, 3))])
    assert view.server is not None
    assert view.server.latencies["itl"].count == 6
    assert view.server.finished == {"length": 3} == Counter(length=view.num_finished)
    assert (view.server.num_queried_tokens, view.server.num_hit_tokens) == (270, 180)
    assert view.server.num_computed_tokens == view.server.num_budgeted_tokens == 3 * (30 + 200)
    assert view.server.num_budget_tokens == 3 * 20 * CONFIG.max_num_batched_tokens
    assert [bar.total for bar in view.bars] == [0, 12, 12, 12]  # 11.5 tokens an iteration


def test_a_budget_that_is_not_told_is_not_made_up() -> None:
    view = view_of([polled(step, looked(unknown=NO_BUDGET)) for step in (0, 1)])
    assert view.server is not None and view.server.num_budget_tokens == 0
    assert not any(bar.has_budget for bar in view.bars)


def test_without_iterations_tokens_are_told_for_a_second() -> None:
    rates = token_rates(looked(rank(num_iterations=None)))
    assert (rates.unit, rates.decode, rates.prefill) == ("second", 400, 60)


def test_a_server_that_began_anew_has_new_latencies() -> None:
    view = view_of([polled(0, looked()), polled(1, looked(restarted=True, interval=0.0))])
    assert view.server is not None
    assert view.server.latencies["itl"].count == 2
    assert [event.told for event in view.events if event.kind == "server"] == [
        "has begun anew: all counts start from 0"
    ]


def test_preemptions_are_counted_and_of_nobody() -> None:
    view = view_of([polled(0, first_look()), polled(1, looked(rank(num_preemptions=2), rank(num_preemptions=1)))])
    assert view.num_preemptions == view.bars[-1].num_preemptions == 3
    (event,) = view.events
    assert (event.kind, event.count, event.preemption, event.number) == ("preempted", 3, None, None)


def test_trouble_is_told_once_and_so_is_its_end() -> None:
    trouble = Poll(problem=PROBLEM)
    traces = [polled(0, looked()), polled(1, trouble), polled(2, trouble), polled(3, looked()), polled(4, looked())]
    told = [(event.step, event.told, event.is_trouble) for event in view_of(traces).events if event.kind == "server"]
    assert told == [(1, PROBLEM, True), (3, "answers again", False)]


def test_parameters_change_only_where_they_are_known_before_and_after() -> None:
    other = dataclasses.replace(CONFIG, max_num_batched_tokens=512, num_blocks=99)
    hidden = view_of([polled(0, looked(unknown=NO_BUDGET)), polled(1, looked(), other)])
    assert [event.change and event.change.name for event in hidden.events] == ["num_blocks"]


# Our own requests.


def test_our_own_requests_are_timed_by_when_their_tokens_came() -> None:
    view = view_of(series())
    request = view.requests["1"]
    assert request.ttft == pytest.approx(4 * 0.5 - 0.1 + 0.01 - 0.61)
    assert request.itl == pytest.approx([0.5] * 19)
    assert request.num_output_tokens == 20
    assert request.text.startswith(" rain 4 rain 5")
    assert [span.kind for span in request.spans] == ["waiting", "decode"]
    assert view.requests["3"].ttft is None


def test_tokens_that_came_at_once_are_all_counted() -> None:
    traces = series()[:5]
    traces[-1] = replace(traces[-1], outputs=(replace(traces[-1].outputs[0], num_tokens=7),))
    assert view_of(traces).requests["1"].num_output_tokens == 7


# The past.


def test_any_past_poll_can_be_shown_again() -> None:
    history = History(200)
    expected: list[tuple[int, int, int]] = []
    traces = series()
    for trace in traces:
        history.apply(trace)
        server = history.live.server
        assert server is not None
        expected.append((len(server.tree.blocks), server.finished.total(), history.live.num_preemptions))
    assert len({*expected}) > 5
    for step, known in enumerate(expected):
        view = history.at(step)
        assert view.server is not None
        assert (len(view.server.tree.blocks), view.server.finished.total(), view.num_preemptions) == known


# The prefix cache.

names = st.integers(0, 12).map(lambda number: f"{number:x}")
ops = st.lists(
    st.builds(PrefixOp, st.just("store"), st.lists(names, min_size=1, max_size=4, unique=True).map(tuple), st.just(""))
    | st.builds(PrefixOp, st.just("store"), st.lists(names, min_size=1, max_size=4, unique=True).map(tuple), names)
    | st.builds(PrefixOp, st.just("remove"), st.lists(names, min_size=1, max_size=3).map(tuple))
    | st.just(PrefixOp("clear")),
    max_size=30,
)


@given(ops)
@repeatable
def test_every_copy_that_goes_is_one_fewer(changes: list[PrefixOp]) -> None:
    tree, copies = PrefixTree(), Counter[str]()
    for step, op in enumerate(changes):
        tree.apply([op], step)
        match op.op:
            case "store":
                copies.update(op.hashes)
            case "remove":
                for block in op.hashes:
                    copies[block] = max(0, copies[block] - 1)
            case "clear":
                copies.clear()
        assert {key.partition("/")[2]: block.num_copies for key, block in tree.blocks.items()} == +copies


@given(ops)
@repeatable
def test_branches_hold_each_block_once(changes: list[PrefixOp]) -> None:
    """Unless blocks follow each other in a circle, which no text does: those hang on no beginning."""
    tree = PrefixTree()
    tree.apply(changes, 0)

    def blocks(branch: Branch) -> int:
        count = branch.num_blocks + sum(map(blocks, branch.branches))
        assert branch.size == count
        return count

    assert sum(map(blocks, tree.forest(0).roots)) <= len(tree.blocks)


def test_texts_that_begin_alike_fork_where_they_differ() -> None:
    tree = PrefixTree()
    tree.apply([PrefixOp("store", ("a", "b", "c"))], 0)
    tree.apply([PrefixOp("store", ("d", "e"), "b"), PrefixOp("store", ("x",))], 1)
    long, short = tree.forest(1).roots
    assert (long.num_blocks, long.size, [behind.num_blocks for behind in long.branches]) == (2, 5, [2, 1])
    assert [behind.num_new for behind in long.branches] == [2, 0]
    assert (short.num_blocks, short.num_new, short.is_orphan) == (1, 1, False)
    assert tree.forest(1).num_shared == 1


def test_what_lost_its_beginning_is_an_orphan() -> None:
    tree = PrefixTree()
    tree.apply([PrefixOp("store", ("a", "b")), PrefixOp("remove", ("a",))], 0)
    (orphan,) = tree.forest(0).roots
    assert orphan.is_orphan and orphan.num_blocks == 1


def test_ranks_have_caches_of_their_own() -> None:
    tree = PrefixTree()
    tree.apply([PrefixOp("store", ("a", "b"), rank="0"), PrefixOp("store", ("a",), rank="1")], 0)
    tree.apply([PrefixOp("clear", rank="0")], 1)
    assert list(tree.blocks) == ["1/a"]
    assert (tree.num_stored, tree.num_evicted) == (0, 2)


def test_a_text_of_many_blocks_is_one_branch() -> None:
    tree = PrefixTree()
    tree.apply([PrefixOp("store", tuple(map(str, range(20_000))))], 0)
    assert [branch.num_blocks for branch in tree.forest(0).roots] == [20_000]


def test_a_copy_goes_on_by_itself() -> None:
    traces: list[StepTrace] = series()
    view = view_of(traces[:3])
    other = view.copy()
    for trace in traces[3:]:
        other.apply(trace)
    assert view.server is not None and other.server is not None
    assert len(view.server.tree.blocks) == 11
    assert len(other.server.tree.blocks) == 10
    assert view.num_preemptions == 0 < other.num_preemptions


def test_ranks_are_totalled_where_they_tell() -> None:
    poll = looked(rank(num_running=3, kv_usage=0.2), Rank("1", num_running=4, kv_usage=0.4), Rank("2"))
    assert poll.num_running == 7
    assert poll.kv_usage == pytest.approx(0.3)
    assert Poll(ranks=(Rank("0"),)).num_running is None
    assert Poll().finished is None
