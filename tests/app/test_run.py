"""A run as tables, and its figures: against what the engine said, and against numbers worked out by hand."""

from __future__ import annotations

from itertools import pairwise

import pytest

from app.comparison.figures import numbers
from app.history import History
from app.metrics import SPREADS, STATISTICS, TOTALS, Metric, MetricError, amount
from app.run import Run
from engine.config import EngineConfig
from tests.app.support import SCENARIOS, STEP_SECONDS, TIMES, ScriptedEngine, scenario, sentence
from tests.engine.support import config


def figure(run: Run, name: str) -> float | None:
    return Metric.parse(name).of(run)


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_tables_say_what_the_traces_say(name: str) -> None:
    traces = scenario(name)
    run = Run(name, traces)
    assert [row.step for row in run.steps] == [trace.step for trace in traces]
    assert [row.computed for row in run.steps] == [trace.num_scheduled_tokens for trace in traces]
    assert [row.used_blocks for row in run.steps] == [t.config.num_usable_blocks - t.num_free_blocks for t in traces]
    arrived = [arrival.request_id for trace in traces for arrival in trace.arrivals]
    assert [row.view.request_id for row in run.requests] == arrived
    for row in run.requests:
        outputs = [
            (output.token_id, trace.step)
            for trace in traces
            for output in trace.outputs
            if output.request_id == row.view.request_id
        ]
        assert list(zip(row.token_ids, row.token_steps, strict=True)) == outputs
        assert len(row.token_ids) == row.view.num_output_tokens
        assert [b - a for a, b in pairwise(row.token_times)] == pytest.approx(row.view.itl)
    finished = [finished.request_id for trace in traces for finished in trace.finished]
    assert sorted(row.view.request_id for row in run.requests if row.view.finished) == sorted(finished)


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_history_gives_its_traces_back(name: str) -> None:
    history = History(1000, EngineConfig())
    for trace in scenario(name):
        history.apply(trace)
    assert tuple(history.traces()) == scenario(name)


def test_what_a_history_gives_does_not_change_while_it_goes_on() -> None:
    """Somebody may still read it, in another thread."""
    traces = scenario("busy")
    history = History(100, EngineConfig())
    for trace in traces[:15]:
        history.apply(trace)
    given = history.traces()
    assert next(given) == traces[0]
    for trace in traces[15:]:
        history.apply(trace)
    assert tuple(given) == traces[1:15]


def test_an_id_that_is_given_again_is_another_request() -> None:
    stage = ScriptedEngine(EngineConfig())
    for _ in range(2):
        stage.engine.add_request("What is rain?", request_id="1")
        stage.run_to_end()
    run = Run("twice", stage.traces)
    assert len(run.requests) == 2 and all(len(row.token_ids) == 64 for row in run.requests)
    assert run.requests[1].arrival_step > 0


def test_figures_of_a_run_that_was_worked_out_by_hand() -> None:
    """Budget 16: a short prompt of 4 is there first; one of 30 takes steps 1 (15) and 2 (15) beside its decodes."""
    stage = ScriptedEngine(config(blocks=40, bs=4, budget=16, seqs=4, length=64, enable_prefix_caching=False))
    stage.add(sentence(4), max_tokens=5, label="short")
    stage.step()
    stage.add(sentence(30), max_tokens=2, label="long")
    stage.run_to_end()
    run = Run("by hand", stage.traces)
    assert [row.computed for row in run.steps] == [4, 16, 16, 2, 1]
    assert run.labels == ["short", "long"]
    seconds, tokens = STEP_SECONDS, TIMES.total
    expected = {
        "steps": 5,
        "seconds": 4 * seconds + tokens,
        "requests": 2,
        "served": 2,
        "computed": 39,
        "outputs": 7,
        "throughput": 7 / (4 * seconds + tokens),
        "budget_use": 39 / 80,
        "preemptions": 0,
        "waste": 0,
        "running_max": 2,
        "ttft.short.max": tokens,
        "ttft_steps.short.max": 1,
        "ttft_steps.long.max": 2,
        "ttft_steps.max": 2,
        "itl.short.max": seconds,
        "itl_steps.short.max": 1,
        "itl_tokens.short.max": 16,
        "itl_tokens.short.min": 1,
        "itl_tokens.long.max": 2,
        "e2e_steps.short.max": 5,
        "queue_steps.max": 0,
        "ratio_max": None,
        "ttft.none.max": None,
    }
    for name, value in expected.items():
        found = figure(run, name)
        assert found is value is None or found == pytest.approx(value), name


def test_what_preemptions_cost_is_counted() -> None:
    run = Run("preempting", scenario("preempting"))
    preemptions = sum(len(trace.preemptions) for trace in scenario("preempting"))
    assert preemptions and figure(run, "preemptions") == preemptions == figure(run, "times_preempted.sum")
    assert figure(run, "recomputed") == sum(t.num_tokens_of("recompute") for t in scenario("preempting"))
    assert figure(run, "kv_max") == 1.0
    assert (figure(run, "itl_steps.max") or 0) > 1


def test_what_the_prefix_cache_saved_is_counted() -> None:
    run = Run("sharing", scenario("sharing"))
    assert figure(run, "saved") == figure(run, "request_cached.sum") == 3 * 40


def test_of_an_empty_run_every_metric_can_be_asked() -> None:
    for name in TOTALS:
        figure(Run("empty"), name)
    for name in SPREADS:
        for statistic in STATISTICS:
            assert figure(Run("empty"), f"{name}.{statistic}") is None


@pytest.mark.parametrize("name", ["", "nothing", "ttft", "ttft.long", "ttft.long.p42", "steps.max", "ttft.a.b.max"])
def test_a_name_that_no_metric_has_is_refused_with_those_that_there_are(name: str) -> None:
    with pytest.raises(MetricError) as caught:
        Metric.parse(name)
    assert repr(name) in str(caught.value) or repr(name.partition(".")[0]) in str(caught.value)


def test_amounts_are_written_for_people() -> None:
    assert amount(0.7474, "seconds") == "747 ms" and amount(12.34, "seconds") == "12.3 s"
    assert amount(0.257, "share") == "26%" and amount(None, "tokens") == "-"
    assert amount(12345, "tokens") == "12,345" and amount(2.25, "") == "2.2"


def test_the_pool_in_use_counts_what_a_step_held_while_it_was_computed() -> None:
    """A request that ends in its first step holds blocks, if only for that step; another one's shared block counts."""
    stage = ScriptedEngine(config(blocks=10, bs=8, budget=64, seqs=4, length=80))
    stage.add(sentence(40), max_tokens=1)
    stage.run_to_end()
    run = Run("once", stage.traces)
    assert [row.used_blocks for row in run.steps] == [0] and figure(run, "kv_max") == 0.5
    run = Run("sharing", scenario("sharing"))
    assert all(row.used_blocks <= row.peak_blocks <= row.usable_blocks for row in run.steps)


def test_steps_that_only_report_are_no_steps_that_were_computed() -> None:
    stage = ScriptedEngine(EngineConfig())
    stage.add(max_tokens=2)
    stage.run_to_end()
    stage.engine.reconfigure(max_num_seqs=3)
    stage.run_to_end()
    run = Run("idle", stage.traces)
    assert len(run.steps) == 3 and figure(run, "steps") == 2 and figure(run, "running_mean") == 1


def test_metrics_of_a_run_that_was_repeated_are_medians() -> None:
    runs = [Run("x", scenario(name)) for name in ("busy", "preempting", "sharing")]
    steps = sorted(figure(run, "steps") or 0 for run in runs)
    first, *runs[0].repeats = runs
    assert figure(first, "steps") == steps[1] == numbers(first, [])["steps"]


def test_a_request_that_was_aborted_has_no_end_to_wait_for() -> None:
    run = Run("ended", scenario("ended"))
    aborted = [row for row in run.requests if row.view.finished and row.view.finished.reason == "abort"]
    assert aborted and figure(run, "served") == len(run.requests) - len(aborted)
    ends = [row.token_steps[-1] - row.arrival_step + 1 for row in run.requests if row.is_served]
    assert figure(run, "e2e_steps.max") == max(ends)
