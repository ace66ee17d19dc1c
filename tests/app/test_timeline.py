"""The timeline: the whole history in one row, whatever its length, and a click that goes there."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from textual.events import MouseDown, MouseMove, MouseUp

from app import protocol
from app.palette import DECODE, PREFILL, RECOMPUTE, style
from app.panels.timeline import GUTTER, Columns, Timeline
from app.view import StepBar
from tests.app.support import READY, ScriptedEngine, Stand, dashboard, repeatable, scenario, stepped, text_of
from tests.engine.support import config


def bar(step: int, *, decode: int = 1, prefill: int = 0, recompute: int = 0, **counts: int) -> StepBar:
    return StepBar(step, decode, prefill, recompute, 0, 100, counts.get("preemptions", 0), counts.get("changes", 0))


def timeline(bars: Iterable[StepBar], step: int | None = None) -> Timeline:
    made = Timeline(id="timeline")
    made.history.bars.extend(bars)
    made.step = step
    return made


def drawn(made: Timeline, width: int, height: int = 2) -> list[str]:
    return [text_of(line) for line in made.draw(width, height)]


def steps_of(columns: Iterable[object]) -> list[tuple[int, int]]:
    return [(column.first, column.last) for column in columns]  # type: ignore[attr-defined]


# Columns.


def test_a_short_history_has_a_column_for_each_step() -> None:
    assert steps_of(Columns().update(deque(bar(step) for step in range(5)), 40)) == [(n, n) for n in range(5)]


@given(st.integers(0, 30_000), st.integers(1, 12_000), st.integers(1, 220))
@repeatable
def test_every_step_is_in_one_column_and_they_fit(first: int, count: int, width: int) -> None:
    columns = Columns().update(deque(bar(step) for step in range(first, first + count)), width)
    assert 1 <= len(columns) <= width
    assert columns[0].first == first and columns[-1].last == first + count - 1
    assert all(one.last + 1 == other.first for one, other in pairwise(columns))


@given(st.integers(20, 220))
@repeatable
def test_most_of_the_width_is_used(width: int) -> None:
    """With more steps than columns at least two fifths of them are; a scale that always filled it would jump."""
    columns = Columns().update(deque(bar(step) for step in range(10_000)), width)
    assert len(columns) >= 0.4 * width


@given(st.lists(st.integers(1, 300), min_size=1, max_size=12), st.integers(1, 120), st.integers(30, 400))
@repeatable
def test_bit_by_bit_gives_what_all_at_once_gives(batches: list[int], width: int, kept: int) -> None:
    """Also while the oldest steps are dropped: nothing is remembered of them."""
    columns, bars = Columns(), deque[StepBar](maxlen=kept)
    step = 0
    for size in batches:
        for _ in range(size):
            bars.append(bar(step, prefill=step * 37 % 90, preemptions=int(step % 41 == 7), changes=int(step % 53 == 9)))
            step += 1
        assert columns.update(bars, width) == Columns().update(bars, width)


class CountedBars(deque[StepBar]):
    """Counts the bars that are looked at."""

    num_read = 0

    def __iter__(self) -> Iterator[StepBar]:
        for one in super().__iter__():
            self.num_read += 1
            yield one

    def __reversed__(self) -> Iterator[StepBar]:
        for one in super().__reversed__():
            self.num_read += 1
            yield one


def test_a_frame_looks_only_at_what_is_new() -> None:
    """Ten thousand bars must not be walked twenty times a second."""
    bars = CountedBars((bar(step) for step in range(10_000)), maxlen=10_000)
    columns = Columns()
    columns.update(bars, 107)
    for step in range(10_000, 12_000):
        bars.append(bar(step))
        bars.num_read = 0
        columns.update(bars, 107)
        # The newest, the one before it, and the rest of the oldest column, of which a step has gone.
        assert bars.num_read <= 2 + 100
    bars.num_read = 0
    columns.update(bars, 107)
    assert bars.num_read <= 2 + 100


def test_another_history_begins_anew() -> None:
    columns = Columns()
    columns.update(deque([bar(0, preemptions=1), bar(1)]), 40)
    assert [column.preempted for column in columns.update(deque([bar(0), bar(1)]), 40)] == [None, None]


# Drawing.


def test_heights_are_the_most_tokens_of_any_step() -> None:
    heights, _ = drawn(timeline([bar(0, decode=1), bar(1, decode=50), bar(2, decode=100), bar(3, decode=0)]), 60)
    assert heights[GUTTER:] == "▁▄█ "
    many = [bar(step, decode=100 if step == 1234 else 1) for step in range(10_000)]
    assert drawn(timeline(many), 120)[0].count("█") == 1


def test_colours_are_what_most_tokens_were_spent_on() -> None:
    bars = [bar(0, decode=9, prefill=5), bar(1, decode=1, prefill=5), bar(2, decode=3, recompute=8)]
    looks = [look for _, look in timeline(bars).draw(60, 2)[0][-3:]]
    assert looks == [style(DECODE), style(PREFILL), style(RECOMPUTE)]


def test_preemptions_and_changes_are_marked_below() -> None:
    bars = [bar(0), bar(1, preemptions=2), bar(2, changes=1), bar(3, preemptions=1, changes=1)]
    _, marks = drawn(timeline(bars), 60)
    assert marks[GUTTER:] == "─▼±‡"
    assert marks.startswith("4 steps ")


@pytest.mark.parametrize("count", [300, 9_999])
def test_no_preemption_is_lost_among_many_steps(count: int) -> None:
    for at in (0, 7, count // 2, count - 1):
        bars = [bar(step, preemptions=int(step == at)) for step in range(count)]
        assert drawn(timeline(bars), 80)[1].count("▼") == 1


def test_the_step_that_is_shown_is_marked() -> None:
    bars = [bar(step, preemptions=int(step == 2)) for step in range(6)]
    assert drawn(timeline(bars, step=3), 60)[1][GUTTER:] == "──▼▲──"
    # Where somebody was preempted the sign stays, and only its look says that one is there.
    here, elsewhere = (timeline(bars, step=step).draw(60, 2)[1][3] for step in (2, None))
    assert here[0] == elsewhere[0] == "▼" and here[1] != elsewhere[1]


def test_in_one_line_signs_stand_before_heights() -> None:
    bars = [bar(0, decode=100), bar(1, preemptions=1), bar(2, changes=1), bar(3, decode=100)]
    (line,) = drawn(timeline(bars, step=3), 60, 1)
    assert line == "History".ljust(GUTTER) + "█▼±▲"


def test_nothing_yet() -> None:
    title, count = drawn(timeline([]), 60)
    assert title.strip() == "History" and count.strip() == "no steps"


@given(st.integers(0, 400), st.integers(1, 220), st.integers(1, 3))
@repeatable
def test_no_line_is_too_long(count: int, width: int, height: int) -> None:
    for line in drawn(timeline([bar(step) for step in range(count)], step=count // 2), width, height):
        assert cell_len(line) <= max(width, GUTTER)


# On the screen.


def long_stage() -> ScriptedEngine:
    """Some 400 steps with preemptions far apart."""
    stage = ScriptedEngine(config(blocks=14, bs=8, budget=32, seqs=4, length=96, enable_prefix_caching=False))
    for _ in range(4):
        for max_tokens in (30, 40, 26, 34):
            stage.add([1] * (18 + max_tokens % 9), max_tokens)
        stage.run_to_end()
        stage.add([1], 60)
        stage.run_to_end()
    return stage


LONG = tuple(long_stage().traces)
PREEMPTING = [trace.step for trace in LONG if trace.preemptions]


async def drag(stand: Stand, *columns: int, release: bool = True) -> None:
    """Press the button in the first of these columns of the timeline, and move over the others."""
    made = stand.app.query_one(Timeline)

    def at(column: int) -> tuple[int, int]:
        return made.region.x + GUTTER + column, made.region.y

    await stand.pilot._post_mouse_events([MouseDown], offset=at(columns[0]), button=1)
    for column in columns[1:]:
        await stand.pilot._post_mouse_events([MouseMove], offset=at(column), button=1)
    if release:
        await stand.pilot._post_mouse_events([MouseUp], offset=at(columns[-1]), button=1)
    await stand.settle()


async def test_a_click_goes_to_that_step() -> None:
    async with dashboard((120, 40), *stepped("busy")) as stand:
        await drag(stand, 7)
        assert stand.app.cursor.step == 7
        assert "step 7 " in stand.lines()[0] and "Step 7 " in stand.text()
        assert protocol.SetPaused(True) in stand.source.take_sent()
        # At the right of the last column is the present.
        await drag(stand, 60)
        assert stand.app.cursor.step is None


async def test_a_drag_goes_through_the_steps() -> None:
    async with dashboard((120, 40), *stepped("busy")) as stand:
        await drag(stand, 3, 5, 9, release=False)
        assert stand.app.cursor.step == 9
        await drag(stand, 9, 2)
        assert stand.app.cursor.step == 2
        # Without the button down nothing moves any more, and to the left of the first column is the first.
        await stand.pilot.hover("#timeline", offset=(GUTTER + 12, 0))
        assert stand.app.cursor.step == 2
        await drag(stand, 4, -GUTTER)
        assert stand.app.cursor.step == 0


async def test_a_click_on_the_title_goes_nowhere() -> None:
    async with dashboard((120, 40), *stepped("busy")) as stand:
        await stand.pilot.click("#timeline", offset=(3, 0))
        await stand.settle()
        assert stand.app.cursor.step is None


@pytest.mark.parametrize("size", [(60, 24), (80, 24), (120, 40)])
async def test_a_click_on_a_sign_goes_to_the_preemption(size: tuple[int, int]) -> None:
    """Also where a column is several steps: it is the preemption that one means."""
    async with dashboard(size, READY, *map(protocol.Stepped, LONG)) as stand:
        region = stand.app.query_one(Timeline).region
        row = stand.lines()[region.bottom - 1]
        signs = [column for column, sign in enumerate(row[GUTTER : region.right]) if sign == "▼"]
        assert signs
        reached = []
        for column in signs:
            await drag(stand, column)
            reached.append(stand.app.cursor.step)
        assert set(reached) <= set(PREEMPTING)
        assert reached[0] == PREEMPTING[0]


async def test_the_cursor_is_where_the_keys_go() -> None:
    async with dashboard((120, 40), *stepped("busy")) as stand:
        region = stand.app.query_one(Timeline).region
        assert "▲" not in stand.text()
        await stand.press("left", "left")
        last = scenario("busy")[-1].step
        assert stand.lines()[region.y + 1].index("▲") == GUTTER + last - 2
        await stand.press("end")
        assert "▲" not in stand.text()


async def test_a_new_engine_has_a_new_timeline() -> None:
    async with dashboard((120, 40), *stepped("preempting"), protocol.Failed("gone")) as stand:
        region = stand.app.query_one(Timeline).region
        assert "▼" in stand.lines()[region.y + 1]
        await stand.press("r")
        await stand.play(scenario("busy")[:3])
        row = stand.lines()[stand.app.query_one(Timeline).region.y + 1]
        assert row.startswith("3 steps") and "▼" not in row


async def test_it_is_as_high_as_there_is_room() -> None:
    async with dashboard((120, 40), *stepped("busy")) as stand:
        for size, height in (((60, 16), 0), ((80, 24), 1), ((120, 40), 2), ((200, 50), 2)):
            await stand.resize(*size)
            region = stand.app.query_one(Timeline).region
            assert region.height == height, size
            assert not height or (region.width, region.bottom) == (size[0], size[1] - 1), "across, above the footer"
