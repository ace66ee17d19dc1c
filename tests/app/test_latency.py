"""Latency and waste: exact figures, the price of a long prompt for those that decode beside it, and the panels."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.latency import brief, by_step, distribution, percentile, trade
from app.panels.axis import columns, gutter
from app.panels.latency import LONG_MARK, SHORT_MARK, LatencyPanel
from app.panels.panel import Panel, to_strip
from app.panels.waste import UNUSED, WastePanel
from app.view import LONG_PROMPT, EngineView, Sample
from engine.trace import BlockReason, PhaseTimes, StepTrace, UnservedReason
from tests.app.support import (
    SCENARIOS,
    STEP_SECONDS,
    TIMES,
    ScriptedEngine,
    drawn,
    panel,
    repeatable,
    scenario,
    scenario_view,
    view_of,
)
from tests.engine.support import config

MEASURES = (LatencyPanel, WastePanel)
BASE_SECONDS, TOKEN_SECONDS = 0.02, 0.001
LONG = 512
SECONDS = st.floats(0, 1e6)


class PacedEngine(ScriptedEngine):
    """Its steps take as long as real ones seem to: some time, and more for each token."""

    def step(self, count: int = 1) -> StepTrace:
        for _ in range(count):
            started = self._clock.now
            trace = self.engine.step()
            seconds = BASE_SECONDS + TOKEN_SECONDS * trace.num_scheduled_tokens
            self.traces.append(msgspec.structs.replace(trace, started=started, times=PhaseTimes(forward=seconds)))
            self._clock.now = started + seconds
        return self.traces[-1]


def long_prompt_beside_decodes(budget: int) -> EngineView:
    """Three decode; a long prompt comes, is prefilled within this budget, and then decodes for a while as well."""
    stage = PacedEngine(config(blocks=100, bs=16, budget=budget, seqs=8, length=1024))
    for number in range(3):
        stage.add([number] * 8, 60)
    stage.step(10)
    long = stage.add([9] * LONG, 60, "long")
    stage.step_until(lambda trace: any(output.request_id == long for output in trace.outputs))
    stage.step(5)
    return view_of(stage.traces)


def milliseconds(samples: Sequence[Sample]) -> list[float]:
    return [round(sample.seconds * 1000, 3) for sample in samples]


# Figures.


@given(st.lists(SECONDS, min_size=2, max_size=300))
@settings(repeatable)
def test_percentiles_are_those_of_the_standard_library(values: list[float]) -> None:
    expected = statistics.quantiles(values, n=100, method="inclusive")
    ordered = sorted(values)
    for percent in (50, 95, 99):
        assert percentile(ordered, percent) == pytest.approx(expected[percent - 1])


def test_percentiles_by_hand() -> None:
    assert [percentile([10.0, 20.0, 30.0, 40.0], percent) for percent in (0, 50, 95, 100)] == [10, 25, 38.5, 40]
    assert [percentile([7.0], percent) for percent in (50, 95, 99)] == [7, 7, 7]


def test_short_and_long_are_told_apart() -> None:
    samples = [Sample(step, float(step), is_long=step % 3 == 0) for step in range(1, 10)]
    short, long = (distribution(samples, is_long=is_long) for is_long in (False, True))
    assert short is not None and (short.count, short.p50, short.max) == (6, 4.5, 8)
    assert long is not None and (long.count, long.p50, long.max) == (3, 6, 9)
    assert distribution(samples[:2], is_long=True) is None


def test_a_prompt_is_long_from_so_many_tokens_on() -> None:
    stage = ScriptedEngine(config(blocks=40, bs=16, budget=512, seqs=4, length=256))
    for length in (LONG_PROMPT - 1, LONG_PROMPT):
        stage.add([length] * length, 2)
    stage.run_to_end()
    view = view_of(stage.traces)
    for samples in view.samples.values():
        assert [sample.is_long for sample in samples] == [False, True]


def test_latencies_of_a_queue_by_hand() -> None:
    """Two seats, four requests of twelve tokens: two wait until the others have gone after twelve steps."""
    stage = ScriptedEngine(config(blocks=40, bs=8, budget=64, seqs=2, length=128))
    for number in range(4):
        stage.add([number] * 20, 12)
    stage.run_to_end()
    samples = view_of(stage.traces).samples
    step, busy = 1000 * STEP_SECONDS, round(1000 * TIMES.total, 3)
    assert milliseconds(samples["queue"]) == [0, 0, 12 * step, 12 * step]
    assert milliseconds(samples["ttft"]) == [busy, busy, 12 * step + busy, 12 * step + busy], "queueing is in it"
    assert milliseconds(samples["itl"]) == [step] * 4 * 11
    # The scripted engine's clock stands still during a step.
    assert milliseconds(samples["e2e"]) == [11 * step, 11 * step, 23 * step, 23 * step]


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name != "queue"])
def test_latencies_are_what_the_traces_say(name: str) -> None:
    """A preemption neither resets the time to the first token nor splits a gap; it is noted at the gap."""
    arrived: dict[str, float] = {}
    tokens: dict[str, list[tuple[int, float]]] = defaultdict(list)
    preempted: dict[str, list[int]] = defaultdict(list)
    for trace in scenario(name):
        arrived |= {arrival.request_id: arrival.time for arrival in trace.arrivals}
        for preemption in trace.preemptions:
            preempted[preemption.request_id].append(trace.step)
        for output in trace.outputs:
            tokens[output.request_id].append((trace.step, trace.started + trace.times.total))
    view = scenario_view(name)
    firsts = sorted((got[0][0], got[0][1] - arrived[request_id]) for request_id, got in tokens.items())
    assert sorted((sample.step, sample.seconds) for sample in view.samples["ttft"]) == firsts
    gaps = sorted(
        (step, now - before, any(last_step < when <= step for when in preempted[request_id]))
        for request_id, got in tokens.items()
        for (last_step, before), (step, now) in pairwise(got)
    )
    assert sorted((sample.step, sample.seconds, sample.preempted) for sample in view.samples["itl"]) == gaps
    for bar in view.bars:
        for is_preempted, longest in ((False, bar.gap), (True, bar.preempted_gap)):
            ended = [seconds for step, seconds, flag in gaps if step == bar.step and flag == is_preempted]
            assert longest == max(ended, default=0.0)


def test_a_scenario_has_gaps_with_a_preemption() -> None:
    """Or the test above would not say much."""
    assert any(bar.preempted_gap for bar in scenario_view("preempting").bars)


def test_the_longest_of_each_step() -> None:
    samples = [Sample(2, 0.9, False), Sample(3, 0.5, False), Sample(3, 0.7, True), Sample(5, 0.2, False)]
    assert by_step(samples, since=3) == {3: samples[2], 5: samples[3]}
    assert by_step(samples, since=6) == by_step([], since=0) == {}


@given(st.one_of(SECONDS, st.floats(0, 20)))
@settings(repeatable)
def test_a_time_has_four_characters_at_most(seconds: float) -> None:
    assert 1 <= len(brief(seconds)) <= 4


def test_times_in_words() -> None:
    times = (0.0, 0.00004, 0.00994, 0.00996, 0.0461, 9.9994, 9.9996, 75.0, 999.4, 1000.0, 60_000.0)
    expected = ["0.0", "0.0", "9.9", "10", "46", "9999", "10s", "75s", "999s", "17m", "17h"]
    assert [brief(seconds) for seconds in times] == expected


# The trade.


@pytest.mark.parametrize(
    ("budget", "num_steps", "gap", "ttft"),
    [
        (64, 9, 84, 8 * 84 + 47),  # eight steps of 61 tokens beside three decodes, one of 24
        (256, 3, 276, 2 * 276 + 29),
        (1024, 1, 535, 535),
    ],
)
def test_the_budget_trades_the_gaps_of_others_for_the_first_token(
    budget: int, num_steps: int, gap: float, ttft: float
) -> None:
    view = long_prompt_beside_decodes(budget)
    prefilling = [bar for bar in view.bars if bar.prefill and bar.step]
    assert len(prefilling) == num_steps
    short = distribution(view.samples["itl"], is_long=False)
    long = distribution(view.samples["ttft"], is_long=True)
    assert short is not None and long is not None
    assert round(1000 * short.max, 3) == gap and round(1000 * long.max, 3) == ttft
    seen = trade(view.bars)
    assert seen.decode_only == pytest.approx(0.023)
    assert seen.with_prefill == pytest.approx(gap / 1000)
    assert seen.factor == pytest.approx(gap / 23)


def test_no_trade_without_both_sides() -> None:
    assert trade([]).factor is None
    seen = trade(scenario_view("seats").bars)
    assert seen.decode_only and seen.with_prefill is None and seen.factor is None


# The panel of latencies.


@pytest.mark.parametrize("kind", MEASURES)
@given(st.sampled_from(SCENARIOS), st.integers(4, 220), st.integers(1, 60))
@settings(repeatable, max_examples=120)
def test_any_size_and_state(kind: type[Panel], name: str, width: int, height: int) -> None:
    lines = panel(kind, scenario_view(name)).draw(width, height)
    assert 1 <= len(lines) <= height
    for line in lines:
        assert to_strip(line, width).cell_length == width


@pytest.mark.parametrize("kind", MEASURES)
def test_every_step_on_the_way(kind: type[Panel]) -> None:
    """With no sample, with one, with many; what is kept between two drawings is never out of date."""
    for name in ("busy", "preempting", "ended"):
        view = EngineView()
        going_on = panel(kind, view)
        for trace in scenario(name):
            view.apply(trace)
            for size in ((25, 6), (77, 12), (150, 36)):
                assert going_on.draw(*size) == panel(kind, view).draw(*size)


def table(view: EngineView, width: int = 78, height: int = 12) -> dict[str, list[str]]:
    """The words of each line of the panel's table behind the first one."""
    lines = drawn(panel(LatencyPanel, view).draw(width, height), height)
    return {words[0]: words[1:] for words in (line.split() for line in lines[1:6])}


def test_the_table_by_hand() -> None:
    """Nine steps with the long prompt among twenty-four; of the first tokens three come at once."""
    rows = table(long_prompt_beside_decodes(64))
    assert rows["short"] == ["p50", "p95", "p99", "max", "n", "long", "p50", "p95", "p99", "max", "n"]
    assert rows["TTFT"] == ["44", "44", "44", "44", "3", "719", "719", "719", "719", "1"]
    assert rows["ITL"][3:5] == ["84", "69"] and rows["ITL"][8:] == ["24", "5"]
    assert rows["queue"][4] == "3" and rows["queue"][9] == "1", "nobody has ended, and yet they have waited"


@pytest.mark.parametrize(("width", "figures"), [(25, ["p95"]), (45, ["p50", "p95", "max"]), (78, None), (137, None)])
def test_the_table_drops_what_matters_least(width: int, figures: list[str] | None) -> None:
    head = table(scenario_view("busy"), width)["short"]
    group = figures or ["p50", "p95", "p99", "max", "n"]
    assert head == [*group, "long", *group]


@pytest.mark.parametrize("width", [45, 77, 137])
@pytest.mark.parametrize("height", [7, 12, 36])
def test_gaps_stand_on_the_columns_of_the_steps(width: int, height: int) -> None:
    """The highest columns are those in which a prompt was prefilled beside decodes."""
    view = long_prompt_beside_decodes(64)
    lines = drawn(panel(LatencyPanel, view).draw(width, height), height)
    (top,) = [line for line in lines if "longest ITL" in line]
    bars = columns(view, width)
    first = width - len(bars)
    assert first >= gutter(width)
    full = [first + index for index, bar in enumerate(bars) if bar.prefill + bar.decode == 64]
    assert len(full) == 8
    assert [column for column in range(first, width) if top[column] == "█"] == full
    bottom = lines[lines.index(top) + next(i for i, line in enumerate(lines[lines.index(top) :]) if " 0 ┤" in line)]
    assert [column for column in range(first, width) if bottom[column] != " "] == [
        first + index for index, bar in enumerate(bars) if bar.gap
    ]


@pytest.mark.parametrize("height", [12, 36])
def test_first_tokens_are_marks_in_their_columns(height: int) -> None:
    view, width = long_prompt_beside_decodes(64), 77
    lines = [line.ljust(width) for line in drawn(panel(LatencyPanel, view).draw(width, height), height)]
    bars = columns(view, width)
    expected = {SHORT_MARK: bars[0].step, LONG_MARK: next(bar.step for bar in reversed(bars) if bar.prefill)}
    for mark, step in expected.items():
        marked = [column for line in lines for column in range(gutter(width), width) if line[column] == mark]
        assert marked == [width - 1 - (bars[-1].step - step)]
    if height == 12:
        assert f"719{LONG_MARK}" in lines[-1]


def test_the_gap_of_a_preempted_request_does_not_dwarf_the_others() -> None:
    view = scenario_view("preempting")
    (bar,) = [bar for bar in view.bars if bar.preempted_gap]
    assert bar.preempted_gap > 5 * bar.gap
    width = 77
    lines = drawn(panel(LatencyPanel, view).draw(width, 12), 12)
    (top,) = [line for line in lines if "longest ITL" in line]
    assert "50 ┤" in top and top[width - 1 - (view.bars[-1].step - bar.step)] == "×"
    assert any("preempted" in line for line in lines)


def test_the_panel_says_the_trade() -> None:
    text = "\n".join(drawn(panel(LatencyPanel, long_prompt_beside_decodes(64)).draw(77, 12), 12))
    assert "decode only  23" in text and "with prefill 84" in text and "3.7 times" in text


# The panel of waste.


def test_waste_by_hand() -> None:
    """One seat and a budget of 32: ten tokens, then three decodes, while another waits for the seat; then the same
    alone."""
    stage = ScriptedEngine(config(blocks=40, bs=8, budget=32, seqs=1, length=64))
    for number in range(2):
        stage.add([number] * 10, 4)
    stage.run_to_end()
    view = view_of(stage.traces)
    steps, computed = 8, 2 * (10 + 3)
    assert view.totals.budget == 32 * steps and view.totals.computed == computed
    assert view.totals.unused == {"seats": 32 * 4 - 13, "idle": 32 * 4 - 13}
    text = "\n".join(drawn(panel(WastePanel, view).draw(77, 6), 6))
    assert "90% of the budget unused" in text
    assert "26 tokens computed, 0 recomputed (0%), 0 saved by the prefix cache (0%)" in text
    assert "all seats taken 50%" in text and "no more to do 50%" in text


@pytest.mark.parametrize("name", ["preempting", "sharing"])
def test_waste_counts_what_was_computed_twice_and_not_at_all(name: str) -> None:
    traces = scenario(name)
    totals = scenario_view(name).totals
    scheduled = [item for trace in traces for item in trace.scheduled]
    again = sum(item.num_recomputed_tokens for item in scheduled)
    saved = sum(item.num_cached_tokens for item in scheduled)
    assert again or saved
    text = " ".join(drawn(panel(WastePanel, scenario_view(name)).draw(100, 6), 6))
    assert f"{sum(item.num_tokens for item in scheduled)} tokens computed" in text
    assert f"{again} recomputed" in text and f"{saved} saved" in text
    assert totals.unused.total() == totals.budget - totals.computed


def test_every_reason_has_words() -> None:
    assert set(UNUSED) == {*get_args(BlockReason), *get_args(UnservedReason), "threshold", "idle"}


@pytest.mark.parametrize("width", [20, 45, 77, 137])
@pytest.mark.parametrize("name", [name for name in SCENARIOS if name != "empty"])
def test_the_bar_is_the_whole_budget(name: str, width: int) -> None:
    view = scenario_view(name)
    lines = drawn(panel(WastePanel, view).draw(width, 20), 20)
    bar = lines[1]
    assert len(bar) == width and set(bar) <= set("█▒·")
    assert ("▒" in bar) == (view.totals.recomputed > 0)
    assert ("·" in bar) == (view.totals.computed < view.totals.budget)
