"""From the text of /metrics to what happened between two looks."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.attach.dialects import LLAMA_CPP, SGLANG, VLLM, Dialect, dialect_of
from app.attach.difference import poll_of
from app.attach.metrics import Readings, Sample
from engine.poll import Histogram, Poll, Rank
from tests.app.captured_server import DATA, FCFS, PRIORITY, as_metrics, metrics, series
from tests.app.support import repeatable

COUNTED = (
    "num_iterations",
    "num_prompt_tokens",
    "num_cached_tokens",
    "num_generation_tokens",
    "num_queried_tokens",
    "num_hit_tokens",
    "num_preemptions",
)


def read(text: str) -> Sample:
    dialect = dialect_of(text)
    assert dialect
    return dialect.read(Readings(text, dialect.names))


def polls_of(samples: list[Sample]) -> list[Poll]:
    return [poll_of(before, now, 1.0) for before, now in pairwise(samples)]


@pytest.mark.parametrize("folder", [FCFS, PRIORITY])
def test_all_of_a_captured_series_adds_up(folder: str) -> None:
    looks = series(folder)
    polls = polls_of([read(as_metrics(look)) for look in looks])
    assert not any(poll.restarted for poll in polls)
    last = looks[-1]
    assert sum(poll.num_preemptions or 0 for poll in polls) == last["num_preemptions_total"] > 0
    assert sum(poll.num_generation_tokens or 0 for poll in polls) == last["generation_tokens_total"]
    assert sum(poll.num_prompt_tokens or 0 for poll in polls) == last["prompt_tokens_total"]
    assert sum(poll.num_iterations or 0 for poll in polls) == last["iteration_tokens_total_count"]
    assert sum((poll.finished or Counter())["length"] for poll in polls) == 24


@pytest.mark.parametrize("folder", [FCFS, PRIORITY])
def test_what_an_iteration_computes_is_prompt_and_generation(folder: str) -> None:
    """vLLM counts both in iteration_tokens_total, without what the prefix cache had."""
    for when in ("before", "during", "after"):
        (rank,) = read(metrics(folder, when)).ranks
        computed = Readings(metrics(folder, when), ("vllm:",)).count("vllm:iteration_tokens_total_sum")
        assert rank.num_prompt_tokens is not None and rank.num_generation_tokens is not None
        assert rank.num_prompt_tokens + rank.num_generation_tokens == computed


def test_ranks_are_told_apart_and_several_models_are_not() -> None:
    two = as_metrics(series(FCFS)[60], 0) + as_metrics(series(FCFS)[80], 10) + as_metrics(series(FCFS)[70], 2)
    sample = read(two + as_metrics(series(FCFS)[60]).replace("smollm2", "other"))
    assert [rank.name for rank in sample.ranks] == ["0", "2", "10"]
    (alone,) = read(as_metrics(series(FCFS)[60])).ranks
    first = sample.ranks[0]
    assert first.num_generation_tokens == 2 * (alone.num_generation_tokens or 0)
    assert first.kv_usage == alone.kv_usage


OLDER = """\
vllm:num_requests_running{model_name="m"} 2.0
vllm:num_requests_swapped{model_name="m"} 0.0
vllm:gpu_cache_usage_perc{model_name="m"} 0.25
vllm:gpu_prefix_cache_queries{model_name="m"} 40.0
vllm:gpu_prefix_cache_hits_total{model_name="m"} 16.0
vllm:prompt_tokens{model_name="m"} 50.0
vllm:generation_tokens_total{model_name="m"} 7.0
vllm:generation_tokens_created{model_name="m"} 1.7e9
vllm:time_per_output_token_seconds_bucket{le="0.1",model_name="m"} 3.0
vllm:time_per_output_token_seconds_bucket{le="+Inf",model_name="m"} 5.0
vllm:time_per_output_token_seconds_sum{model_name="m"} 0.9
vllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1.0
vllm:something_new{model_name="m"} NaN
"""


def test_names_of_older_versions() -> None:
    sample = read(OLDER)
    (rank,) = sample.ranks
    assert rank == Rank(
        num_running=2,
        kv_usage=0.25,
        num_prompt_tokens=50,
        num_generation_tokens=7,
        num_queried_tokens=40,
        num_hit_tokens=16,
    )
    assert sample.latencies == {"itl": Histogram((0.1,), (3, 2), 0.9)}
    assert sample.config == {"block_size": 16}


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-3", "1e300"])
def test_numbers_that_cannot_be_meant_are_not_there(value: str) -> None:
    (rank,) = read(f'vllm:num_requests_running{{engine="0"}} {value}\nvllm:kv_cache_usage_perc{{engine="0"}} 7\n').ranks
    assert rank == Rank(kv_usage=1.0)


def test_names_that_a_server_makes_up_are_only_text() -> None:
    text = 'vllm:request_success_total{engine="\x1b[31m",finished_reason="a\\nb\u2028"} 1\n'
    (rank,) = read(text).ranks
    assert (rank.name, rank.finished) == ("␛[31m", {"a b": 1})


def test_sglang() -> None:
    text = (DATA / "sglang.txt").read_text()
    sample = read(text)
    (rank,) = sample.ranks
    assert rank == Rank(
        num_running=3,  # the second rank of tensor parallelism says it once more
        num_waiting=2,
        kv_usage=0.28,
        num_prompt_tokens=5000,
        num_cached_tokens=3128,
        num_generation_tokens=7557,
        num_queried_tokens=8128,
        num_hit_tokens=3128,
        num_preemptions=5,
        finished={"ended": 44},
    )
    assert sample.latencies["ttft"].counts == (31, 9, 4)
    assert sample.config == {"block_size": 16, "num_blocks": 101}


def test_sglang_with_data_parallelism() -> None:
    """What its schedulers do not tell is known of no engine, but of all of them together."""
    lines = [
        f'sglang:{name}{{dp_rank="{rank}",model_name="m",tp_rank="0"{more}}} {value}'
        for rank in (0, 1)
        for name, more, value in (
            ("num_running_reqs", "", 3 + rank),
            ("realtime_tokens_total", ',mode="prefill_compute"', 10),
            ("realtime_tokens_total", ',mode="prefill_cache"', 20 * rank),
            ("realtime_tokens_total", ',mode="decode"', 7),
        )
    ]
    whole = """\
sglang:num_requests_total{model_name="m"} 9
sglang:prompt_tokens_total{model_name="m"} 17
sglang:generation_tokens_total{model_name="m"} 5
sglang:e2e_request_latency_seconds_bucket{le="1.0",model_name="m"} 9.0
sglang:e2e_request_latency_seconds_bucket{le="+Inf",model_name="m"} 9.0
"""
    sample = read("\n".join([*lines, whole]))
    assert [rank.name for rank in sample.ranks] == ["0", "1", ""]
    assert [rank.num_running for rank in sample.ranks] == [3, 4, None]
    assert [rank.num_hit_tokens for rank in sample.ranks] == [0, 20, None]
    assert [rank.num_generation_tokens for rank in sample.ranks] == [7, 7, None]
    assert sample.ranks[2] == Rank(name="", finished={"ended": 9})
    assert sample.latencies["e2e"].count == 9
    assert not sample.counts_at_end
    later = read("\n".join([*lines, whole.replace("} 9\n", "} 12\n")]))
    poll = poll_of(sample, later, 1.0)
    assert (poll.finished, poll.num_generation_tokens, poll.num_running) == ({"ended": 3}, 0, 7)
    assert [rank.name for rank in poll.engines] == ["0", "1"]


def test_sglang_with_data_parallelism_that_counts_at_the_end() -> None:
    lines = [f'sglang:token_usage{{dp_rank="{rank}",tp_rank="0"}} 0.{rank + 2}' for rank in (0, 1)]
    counted = {"prompt_tokens_total": 30, "cached_tokens_total": 10, "generation_tokens_total": 7}
    texts = [
        "\n".join([*lines, *(f'sglang:{name}{{model_name="m"}} {value + more}' for name, value in counted.items()), ""])
        for more in (0, 4)
    ]
    poll = poll_of(read(texts[0]), read(texts[1]), 1.0)
    assert poll.counts_at_end
    assert (poll.num_prompt_tokens, poll.num_cached_tokens, poll.num_generation_tokens) == (0, 4, 4)
    assert poll.kv_usage == 0.25
    assert len(poll.engines) == 2


def test_each_engine_has_its_part_of_the_latencies() -> None:
    def look(*counts: int) -> Sample:
        lines = [
            f'vllm:time_to_first_token_seconds_bucket{{engine="{rank}",le="{le}"}} {count}'
            for rank, count in enumerate(counts)
            for le in ("0.5", "+Inf")
        ]
        return read("\n".join([*lines, 'vllm:time_to_first_token_seconds_bucket{engine="0",le="-Inf"} 0', ""]))

    poll = poll_of(look(3, 4), look(4, 9), 1.0)
    assert [rank.latencies["ttft"].count for rank in poll.ranks] == [1, 5]
    assert poll.latencies == {"ttft": Histogram((0.5,), (6, 0), 0.0)}
    assert poll_of(look(3), look(4), 1.0).ranks == (Rank(),)


def test_who_counts_at_the_end_says_so() -> None:
    for name, counts_at_end in (("sglang", True), ("llama_cpp", True)):
        sample = read((DATA / f"{name}.txt").read_text())
        assert sample.counts_at_end == counts_at_end
        assert poll_of(None, sample, 0.0).counts_at_end == counts_at_end
    assert not read(metrics(FCFS, "during")).counts_at_end


def test_cached_tokens_may_be_among_those_of_prompts() -> None:
    told, untold = Rank(num_prompt_tokens=3, num_cached_tokens=0), Rank("1", num_prompt_tokens=3)
    assert not Poll(ranks=(told, Rank("", finished={"ended": 1}))).may_hold_cached
    assert Poll(ranks=(told, untold)).may_hold_cached


def test_llama_cpp() -> None:
    (rank,) = read((DATA / "llama_cpp.txt").read_text()).ranks
    assert rank == Rank(
        num_running=3,
        num_waiting=1,
        kv_usage=0.42,
        num_iterations=125,
        num_prompt_tokens=16185,
        num_generation_tokens=394,
    )


@pytest.mark.parametrize("dialect", [VLLM, SGLANG, LLAMA_CPP])
def test_each_kind_is_known_by_its_names(dialect: Dialect) -> None:
    assert dialect_of(f"# HELP x y\n{dialect.prefix}anything 1\n") is dialect
    assert dialect_of("# HELP vllm:x y\nhttp_requests_total 1\n") is None


# Differences.

numbers = st.integers(0, 50)


@st.composite
def histories(draw: st.DrawFn) -> list[Sample]:
    """Looks at a server whose counters never fall."""
    num = draw(st.integers(2, 8))
    grown = {
        name: list(accumulate(draw(st.lists(numbers, min_size=num, max_size=num))))
        for name in (*COUNTED, "stop", "length", "low", "high")
    }

    def sample(i: int) -> Sample:
        counted: dict[str, Any] = {name: grown[name][i] for name in COUNTED}
        finished = {"stop": grown["stop"][i], "length": grown["length"][i]}
        latency = Histogram((0.5,), (grown["low"][i], grown["high"][i]), float(grown["low"][i]))
        return Sample((Rank(finished=finished, **counted),), {"ttft": latency}, began=1.0)

    return [sample(i) for i in range(num)]


@repeatable
@given(histories())
def test_differences_add_up_to_what_was_counted(samples: list[Sample]) -> None:
    polls = polls_of(samples)
    assert not any(poll.restarted for poll in polls)
    first, last = samples[0].ranks[0], samples[-1].ranks[0]
    for name in COUNTED:
        assert sum(getattr(poll, name) for poll in polls) == getattr(last, name) - getattr(first, name)
    assert first.finished and last.finished
    for reason, count in last.finished.items():
        assert sum((poll.finished or Counter())[reason] for poll in polls) == count - first.finished[reason]
    total = samples[0].latencies["ttft"]
    for poll in polls:
        total = total + poll.latencies["ttft"]
    assert total == samples[-1].latencies["ttft"]


@repeatable
@given(histories(), histories(), st.booleans())
def test_after_a_restart_nothing_is_below_zero(old: list[Sample], new: list[Sample], knows_when: bool) -> None:
    after = [replace(sample, began=2.0 if knows_when else None) for sample in new]
    polls = polls_of([*old, *after])
    turn = polls[len(old) - 1]
    assert turn.restarted or not knows_when
    assert not turn.restarted or (turn.interval == 0 and not turn.latencies and turn.num_generation_tokens is None)
    for poll in polls:
        counted = [getattr(poll, name) for name in COUNTED] + list((poll.finished or Counter()).values())
        assert all(count is None or count >= 0 for count in counted)
        assert all(count >= 0 for histogram in poll.latencies.values() for count in histogram.counts)


def test_what_comes_and_goes_is_not_known_meanwhile() -> None:
    def sample(**told: Any) -> Sample:
        return Sample((Rank(**told),), {})

    samples = [sample(num_preemptions=3), sample(), sample(num_preemptions=5), sample(num_preemptions=6)]
    assert [poll.num_preemptions for poll in polls_of(samples)] == [None, None, 1]


def test_a_rank_that_comes_later_has_nothing_to_compare_with() -> None:
    one, two = Rank(name="0", num_iterations=1), Rank(name="1", num_iterations=5, num_running=2)
    (poll,) = polls_of([Sample((one,), {}), Sample((one, two), {})])
    assert [rank.num_iterations for rank in poll.ranks] == [0, None]
    assert poll.ranks[1].num_running == 2


def test_a_reason_that_is_new_counts_from_zero() -> None:
    before, now = Rank(finished={"stop": 1}), Rank(finished={"stop": 2, "abort": 3})
    assert poll_of(Sample((before,), {}), Sample((now,), {}), 1.0).finished == {"stop": 1, "abort": 3}


def test_counters_read_at_different_moments_are_no_restart() -> None:
    """Prompt tokens may be a difference of two of them."""
    before = Rank(num_prompt_tokens=10, num_generation_tokens=5)
    now = msgspec.structs.replace(before, num_prompt_tokens=8, num_generation_tokens=6)
    poll = poll_of(Sample((before,), {}), Sample((now,), {}), 1.0)
    assert (poll.restarted, poll.num_prompt_tokens, poll.num_generation_tokens) == (False, 0, 1)


def test_histograms_with_other_bounds_are_not_compared() -> None:
    old, new = Histogram((1.0,), (1, 0), 0.5), Histogram((1.0, 2.0), (1, 1, 0), 2.0)
    assert poll_of(Sample((), {"ttft": old}), Sample((), {"ttft": new}), 1.0).latencies == {}
