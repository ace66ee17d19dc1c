"""Panels: any size, any state, no error and exact lines; the important facts; and text that stays text."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from itertools import pairwise, product
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from app import protocol
from app.palette import PREEMPTED_GLYPH, style
from app.panels.axis import NARROW_GUTTER, WIDE_FROM, WIDE_GUTTER, columns, gutter, num_columns
from app.panels.banner import Banner
from app.panels.blocks import BlocksPanel
from app.panels.budget import BudgetPanel
from app.panels.events import EventsPanel
from app.panels.header import SIGNS, Header
from app.panels.output import OutputPanel
from app.panels.panel import Panel, Part, heading, to_strip, wrap_parts
from app.panels.requests import RequestsPanel
from app.panels.step import StepPanel
from app.session import EngineState, Pending
from app.view import EngineView
from engine.config import EngineConfig
from tests.app.support import (
    HOSTILE,
    HOSTILE_SHOWN,
    READY,
    SCENARIOS,
    ScriptedEngine,
    dashboard,
    drawn,
    hostile_stage,
    panel,
    repeatable,
    scenario,
    scenario_view,
    sentence,
    stepped,
    text_of,
    view_of,
)

PANELS = (Header, Banner, BudgetPanel, RequestsPanel, StepPanel, BlocksPanel, EventsPanel, OutputPanel)
DESIGN_SIZES = [(80, 24), (120, 40), (200, 50)]
WIDE_NAME = "模型" * 14
"""Half as many characters as cells."""


def fill(made: Panel, selected: str | None) -> None:
    """Give a panel what it is told beside the view."""
    match made:
        case Header():
            made.ready, made.state, made.steps_per_second = READY, "running", 20.0
        case Banner():
            made.progress = protocol.Loading("fetching SmolLM2-135M-Instruct", 31_000_000, 98_362_432)
        case RequestsPanel():
            made.selected = selected
            made.pending = (Pending("901", "short", "sent"), Pending("902", "long", "41 tokens, accepted"))
        case OutputPanel():
            made.selected = selected


def check_lines(lines: Sequence[Sequence[Part]], width: int) -> None:
    """Exact and safe lines, whatever stands in them."""
    for line in lines:
        assert to_strip(line, width).cell_length == width
        for character in text_of(line):
            assert unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


@pytest.mark.parametrize("kind", PANELS)
@given(st.sampled_from(SCENARIOS), st.integers(10, 220), st.integers(1, 60), st.integers(0, 12))
@settings(repeatable, max_examples=120)
def test_any_size_and_state(kind: type[Panel], name: str, width: int, height: int, selected: int) -> None:
    made = panel(kind, scenario_view(name))
    fill(made, str(selected) if selected else None)
    lines = made.draw(width, height)
    check_lines(lines, width)
    assert lines


@pytest.mark.parametrize("kind", PANELS)
def test_every_step_on_the_way(kind: type[Panel]) -> None:
    """Not only how a scenario ends: what is drawn after each of its steps."""
    for name in SCENARIOS:
        view = EngineView()
        made = panel(kind, view)
        fill(made, "2")
        for trace in scenario(name):
            view.apply(trace)
            for size in ((34, 6), (78, 20)):
                check_lines(made.draw(*size), size[0])


@pytest.mark.parametrize("kind", [BudgetPanel, RequestsPanel, StepPanel, BlocksPanel, EventsPanel, OutputPanel])
def test_a_panel_keeps_to_its_height(kind: type[Panel]) -> None:
    """At sizes that the layout gives: what does not fit is left out on purpose, not cut off at the end."""
    for name in SCENARIOS:
        made = panel(kind, scenario_view(name))
        fill(made, "1")
        for width, height in ((31, 9), (39, 11), (59, 16), (76, 24)):
            assert len(made.draw(width, height)) <= height, (name, width, height)


# The shared axis.


@given(st.sampled_from([name for name in SCENARIOS if name != "empty"]), st.integers(20, 220))
@settings(repeatable, max_examples=60)
def test_the_newest_step_is_in_the_last_column(name: str, width: int) -> None:
    view = scenario_view(name)
    shown = columns(view, width)
    assert len(shown) == min(len(view.bars), num_columns(width)) == min(len(view.bars), width - gutter(width))
    assert shown == list(view.bars)[-len(shown) :]


def test_the_gutter_is_narrow_where_room_is_short() -> None:
    assert [gutter(width) for width in (20, WIDE_FROM - 1, WIDE_FROM, 200)] == [
        NARROW_GUTTER,
        NARROW_GUTTER,
        WIDE_GUTTER,
        WIDE_GUTTER,
    ]
    assert num_columns(5) == 0


def columns_of(line: str, sign: str) -> list[int]:
    """At which cells of a line the sign stands."""
    return [cell_len(line[:index]) for index, character in enumerate(line) if character == sign]


def row_of(lines: Sequence[str], letter: str) -> str:
    (row,) = [line for line in lines if line[1:4] == f" {letter} "]
    return row


@pytest.mark.parametrize("width", [44, WIDE_FROM - 1, WIDE_FROM, 78, 137])
def test_a_preemption_stands_in_one_column_of_both_panels(width: int) -> None:
    view = scenario_view("preempting")
    budget = drawn(panel(BudgetPanel, view).draw(width, 12), 12)
    rows = drawn(panel(RequestsPanel, view).draw(width, 20), 20)
    newest = scenario("preempting")[-1].step
    left = gutter(width)
    expected: set[int] = set()
    for trace in scenario("preempting"):
        column = width - 1 - (newest - trace.step)
        for preemption in trace.preemptions:
            if column < left:
                continue
            expected.add(column)
            victim = row_of(rows, view.letter(preemption.request_id))
            assert column in columns_of(victim, PREEMPTED_GLYPH)
    assert expected, "the scenario shows nothing at this width"
    assert columns_of(budget[-1], "▼") == sorted(expected)
    assert budget[-1][left:].count("─") + len(expected) == min(num_columns(width), len(view.bars))


@pytest.mark.parametrize("width", [44, 78])
@pytest.mark.parametrize("name", [name for name in SCENARIOS if name not in ("empty", "queue")])
def test_lives_are_the_spans_on_the_step_columns(name: str, width: int) -> None:
    """Each cell of a row is what the request did in the step of that column."""
    view, newest = scenario_view(name), scenario(name)[-1].step
    rows = drawn(panel(RequestsPanel, view).draw(width, 40), 40)
    signs = {"decode": "▪", "prefill": "█", "recompute": "▒", "waiting": "·"}
    for request in view.requests.values():
        expected = [" "] * num_columns(width)
        for span in request.spans:
            for step in range(span.first, (newest if span.last is None else span.last) + 1):
                if (index := step - newest - 1) >= -len(expected):
                    expected[index] = signs[span.kind]
        for step in request.preempted_at:
            if (index := step - newest - 1) >= -len(expected):
                expected[index] = PREEMPTED_GLYPH
        assert row_of(rows, request.letter)[gutter(width) :] == "".join(expected)


# What each panel has to say.


def test_budget_says_what_the_step_went_to() -> None:
    text = "\n".join(drawn(panel(BudgetPanel, scenario_view("busy")).draw(78, 12), 12))
    for fact in ("6 decode", "122 prefill", "0 recompute", "0 unused", "128"):
        assert fact in text


def test_budget_columns_are_as_high_as_their_tokens() -> None:
    """With eight tokens a row the columns can be counted."""
    stage = ScriptedEngine(EngineConfig(max_num_batched_tokens=64, enable_prefix_caching=False))
    for length in (64, 32, 9):
        stage.add([length] * length, 1)
    stage.step(2)
    lines = drawn(panel(BudgetPanel, view_of(stage.traces)).draw(80, 10), 10)
    rows = lines[1:-1]
    full, part = ([row[column] for row in rows] for column in (-2, -1))
    assert full == ["█"] * 8
    assert part == ["┈", " ", "▁", "█", "█", "█", "█", "█"], "32 + 9 of 64 tokens"


def test_budget_shows_even_one_token() -> None:
    stage = ScriptedEngine(EngineConfig(max_num_batched_tokens=1000))
    stage.add([1], 4)
    stage.step(2)
    lines = drawn(panel(BudgetPanel, view_of(stage.traces)).draw(80, 8), 8)
    assert lines[-2].endswith("▁▁")


def test_requests_are_in_the_schedulers_order() -> None:
    view = scenario_view("seats")
    made = panel(RequestsPanel, view)
    made.pending = (Pending("9", "long", "sent"),)
    lines = drawn(made.draw(78, 20), 20)
    letters = [line[2] for line in lines[1:] if line[1] == line[3] == " "]
    assert letters[:2] == ["a", "b"] and letters[2:4] == ["c", "d"]
    divider = next(i for i, line in enumerate(lines) if "all 2 seats" in line)
    pending = next(i for i, line in enumerate(lines[1:], 1) if "sent" in line)
    assert [line[2] for line in lines[1:divider]] == ["a", "b"]
    assert divider < pending and [line[2] for line in lines[divider + 1 : pending]] == ["c", "d"]
    assert made.order() == ["1", "2", "3", "4", "9"], "what was sent can be selected, and aborted, like the others"


def test_requests_count_all_who_wait() -> None:
    view = scenario_view("queue")
    assert view.trace is not None
    made = panel(RequestsPanel, view)
    lines = drawn(made.draw(78, 100), 100)
    assert "running 16" in lines[0] and "waiting 10000" in lines[0].replace(",", "")
    assert any(f"{10_000 - 64:,} more" in line for line in lines)
    assert made.order() == list(map(str, range(1, 10_017)))


@pytest.mark.parametrize("height", [5, 6, 9, 14, 30])
def test_the_selected_row_is_always_shown(height: int) -> None:
    made = panel(RequestsPanel, scenario_view("queue"))
    for request_id in made.order()[::97]:
        made.selected = request_id
        lines = made.draw(78, height)
        shown = drawn(lines, height)
        marked = [line for line in shown if line.startswith("▸")]
        assert len(marked) == 1 and marked[0][2] == made.view.letter(request_id)


@pytest.mark.parametrize("height", [5, 6, 9, 14, 30])
def test_rows_that_do_not_fit_are_counted(height: int) -> None:
    made = panel(RequestsPanel, scenario_view("queue"))
    made.selected = "1"
    lines = drawn(made.draw(78, height), height)
    assert len(lines) == height
    num_shown = sum(line[1:4].strip().isalpha() for line in lines[1:-1])
    assert f"{16 + 10_000 - num_shown:,} more" in lines[-1]


@pytest.mark.parametrize("height", [6, 14, 30])
def test_rows_above_are_counted_too(height: int) -> None:
    made = panel(RequestsPanel, scenario_view("queue"))
    order = made.order()
    made.selected = order[-1]
    lines = drawn(made.draw(78, height), height)
    num_shown = sum(line[1:4].strip().isalpha() for line in lines[2:])
    assert f"{len(order) - num_shown:,} more above" in lines[1]


@pytest.mark.parametrize(("name", "width"), [("busy", 78), ("busy", 44), ("ended", 78), ("preempting", 44)])
def test_rows_say_how_far_a_request_is(name: str, width: int) -> None:
    view = scenario_view(name)
    rows = drawn(panel(RequestsPanel, view).draw(width, 40), 40)
    assert view.trace is not None
    for request in view.requests.values():
        row = row_of(rows, request.letter)[: gutter(width)]
        if request.finished:
            assert f"{request.num_output_tokens} " in row
            assert ("abort" in row) == (request.finished.reason == "abort")
        elif request.request_id in view.trace.waiting:
            assert f"{request.num_prompt_tokens + request.num_output_tokens} tok" in row
        elif request.is_prefilling:
            assert f"{request.num_computed_tokens}/{request.target}" in row
        else:
            assert f"{request.num_output_tokens}/{request.max_tokens}" in row
        if request.preempted_at:
            assert f"{PREEMPTED_GLYPH}{len(request.preempted_at)}" in row
        if width >= WIDE_FROM:
            assert request.label in row
            assert (f"{request.num_blocks}▦" in row) == bool(request.num_blocks)


def test_long_numbers_are_not_cut() -> None:
    """A prompt of thousands of tokens still has its figures, and its life in its own columns."""
    stage = ScriptedEngine(EngineConfig(num_blocks=2000, max_model_len=20_000, max_num_batched_tokens=2048))
    stage.add([1] * 12_345, 400, "long")
    stage.step(5)
    for width in (44, 78):
        row = row_of(drawn(panel(RequestsPanel, view_of(stage.traces)).draw(width, 10), 10), "a")
        assert row[gutter(width) :].strip() == "█" * 5
        # In full or rounded to thousands, but not cut: 10240 of 123 would be a lie.
        figures = re.search(r"([\d.]+)(k?)/([\d.]+)(k?)", row[: gutter(width)])
        assert figures is not None
        computed, computed_k, target, target_k = figures.groups()
        assert float(computed) * (1000 if computed_k else 1) == pytest.approx(10_240, rel=0.05)
        assert float(target) * (1000 if target_k else 1) == pytest.approx(12_345, rel=0.05)


def test_blocks_are_mapped_one_by_one() -> None:
    view = scenario_view("sharing")
    assert view.trace is not None
    lines = drawn(panel(BlocksPanel, view).draw(40, 11), 11)
    assert f"{len(view.holders)} of 40" in lines[0] and "8 tokens" in lines[0]
    cells = [line[i : i + 2] for line in lines[1:3] for i in range(0, 40, 2)]
    assert len(cells) == 40
    for block, cell in enumerate(cells, 1):
        ids = view.holders.get(block, [])
        if not ids:
            assert cell == ("░░" if block in view.cached else "· "), f"block {block}"
        else:
            assert cell[0] == view.letter(ids[0])
            assert (cell[1] == "3") == (len(ids) == 3)


def test_blocks_say_when_a_cell_stands_for_several() -> None:
    stage = ScriptedEngine(EngineConfig(num_blocks=4001, max_num_batched_tokens=512))
    stage.add(sentence(500), 4)
    stage.step()
    lines = drawn(panel(BlocksPanel, view_of(stage.traces)).draw(40, 11), 11)
    assert "32 of 4000" in lines[0] and "12 blocks" in lines[-1] and "shared" not in lines[-1]
    cells = "".join(lines[1:-1])
    assert len(cells.rstrip()) == -(-4000 // 12)
    assert cells.startswith("aaa·")


def test_blocks_whose_cached_content_went_are_marked() -> None:
    """A block loses its content when it is drawn for somebody: the mark stands beside the new owner's letter."""
    view = view_of(scenario("preempting"))
    view.evicted = frozenset(list(view.holders)[:3])
    lines = drawn(panel(BlocksPanel, view).draw(30, 9), 9)
    assert sum(line.count("~") for line in lines[1:-1]) == 3


def test_blocks_that_many_share_do_not_count_wrongly() -> None:
    stage = ScriptedEngine(EngineConfig(max_num_batched_tokens=512))
    for _ in range(12):
        stage.add([1] * 40, 4)
    stage.step()
    lines = drawn(panel(BlocksPanel, view_of(stage.traces)).draw(40, 11), 11)
    assert lines[1].startswith("a+a+")


def test_events_show_the_newest() -> None:
    view = scenario_view("preempting")
    lines = drawn(panel(EventsPanel, view).draw(60, 6), 6)
    assert len(lines) == 6
    assert str(view.num_preemptions) in lines[0]
    assert [int(line.split()[0]) for line in lines[1:]] == [event.step for event in list(view.events)[-5:]]
    everything = drawn(panel(EventsPanel, view).draw(60, 60), 60)
    for trace in scenario("preempting"):
        for preemption in trace.preemptions:
            (line,) = [x for x in everything[1:] if int(x[:5]) == trace.step and PREEMPTED_GLYPH in x]
            assert f"{preemption.num_lost_tokens} tok" in line
            assert f" {view.letter(preemption.request_id)} " in line
            assert f" {view.letter(preemption.for_request_id)} " in line


def test_events_name_nobody_for_whom_a_change_of_parameters_preempted() -> None:
    stage = ScriptedEngine(EngineConfig())
    for _ in range(3):
        stage.add()
    stage.step(2)
    stage.engine.reconfigure(max_num_seqs=2)
    stage.step()
    (line,) = [line for line in drawn(panel(EventsPanel, view_of(stage.traces)).draw(60, 9), 9) if "preempted," in line]
    assert "× c preempted, fewer seats" in line and "?" not in line


def test_step_bar_has_a_segment_for_each_request() -> None:
    view = scenario_view("busy")
    lines = drawn(panel(StepPanel, view).draw(40, 12), 12)
    assert "19" in lines[0] and "46 ms" in lines[0]
    assert "".join(lines[1].split()) == "abcdfgh" and cell_len(lines[1]) == 40
    assert "forward 43" in lines[-1]


def test_step_bar_leaves_room_for_what_is_unused() -> None:
    view = scenario_view("seats")
    bar = drawn(panel(StepPanel, view).draw(40, 12), 12)[1]
    assert bar.startswith("ab") and set(bar[2:]) == {"·"} and len(bar) == 40


@pytest.mark.parametrize("height", [6, 7, 8])
def test_step_says_how_much_it_leaves_unsaid(height: int) -> None:
    stage = ScriptedEngine(EngineConfig())
    for number in range(12):
        stage.add([number] * 8, 4)
    stage.step()
    view = view_of(stage.traces)
    everything = drawn(panel(StepPanel, view).draw(40, 60), 60)
    lines = drawn(panel(StepPanel, view).draw(40, height), height)
    assert len(lines) == height and "forward" in lines[-1]
    unsaid = len(everything) - (len(lines) - 1)
    assert f"{unsaid} more lines" in lines[-2]
    assert lines[:-2] == everything[: len(lines) - 2]


def test_output_follows_the_text() -> None:
    view = scenario_view("busy")
    made = panel(OutputPanel, view)
    made.selected = "1"
    request = view.requests["1"]
    lines = made.draw(40, 12)
    shown = drawn(lines, 12)
    assert "a" in shown[0] and "decode" in shown[0]
    assert request.prompt[:30] in shown[1]
    assert " ".join("".join(f"{line} " for line in shown[2:]).split()) == " ".join(request.text.split())
    # The piece of this step is marked.
    (fresh,) = [text for line in lines[2:] for text, look in line if look.bold]
    assert fresh == request.last_text


def test_output_shows_the_end_if_not_all_fits() -> None:
    view = scenario_view("busy")
    made = panel(OutputPanel, view)
    made.selected = "1"
    everything, short = drawn(made.draw(12, 40), 40), drawn(made.draw(12, 3), 3)
    assert len(everything) > len(short) == 3
    assert short[2] == everything[-1]


def test_output_says_how_a_request_ended() -> None:
    view = scenario_view("ended")
    made = panel(OutputPanel, view)
    for request in view.requests.values():
        assert request.finished is not None
        made.selected = request.request_id
        shown = drawn(made.draw(40, 12), 12)
        assert request.finished.reason in shown[0]
        assert f"{request.num_output_tokens} token" in shown[-1]


def test_header_drops_whole_groups() -> None:
    """The line is never cut: what does not fit is left out, and what matters most stays."""
    view = scenario_view("preempting")
    header = panel(Header, view)
    models = ("tiny", "SmolLM2-135M-Instruct", "a-very-long-name-of-a-model-" * 4, WIDE_NAME)
    for width, model, state in product(range(60, 201, 10), models, get_args(EngineState)):
        header.ready = protocol.Ready(model, 1, "float32", "cpu", 1, "bitwise", True, True)
        header.state, header.steps_per_second = state, 20.0
        (line,) = header.draw(width, 1)
        text = text_of(line)
        assert cell_len(text) <= width, (model, state)
        for fact in ("nanoviz", SIGNS[state], f"step {scenario('preempting')[-1].step}", "/4", "wait"):
            assert fact in text, (width, model, state)


def test_header_counts_at_its_best() -> None:
    header = panel(Header, scenario_view("busy"))
    header.ready, header.state = READY, "running"
    text = text_of(header.draw(200, 1)[0])
    for fact in ("SmolLM2-135M-Instruct", "cpu", "fp32", "bitwise", "step 19", "7/16", "20.", "KV"):
        assert fact in text


@pytest.mark.parametrize("size", DESIGN_SIZES)
async def test_important_facts_are_on_the_screen(size: tuple[int, int]) -> None:
    async with dashboard(size, *stepped("preempting")) as stand:
        view, text = stand.app.session.view, stand.text()
        trace = scenario("preempting")[-1]
        assert trace.blocked is not None
        running = [view.requests[r] for r in trace.running if view.requests[r].finished is None]
        for fact in (
            f"step {trace.step}",
            f"{len(running)}/{trace.config.max_num_seqs}",
            f"{trace.config.max_num_batched_tokens}",
            f"{len(view.holders)} of {trace.config.num_usable_blocks}",
            f"needs {trace.blocked.needed} blocks",
            "▼",
            PREEMPTED_GLYPH,
            "▒",
            "Token budget",
            "Requests",
            "KV blocks",
            "Events",
            "Output",
        ):
            assert fact in text, fact
        for request in running:
            assert f" {request.letter} " in text
            assert f"{request.num_output_tokens}/{request.max_tokens}" in text
        assert f"{PREEMPTED_GLYPH}{view.num_preemptions}" in text
        # Budget and requests really lie on the same columns of the screen.
        marks = next(line for line in stand.lines() if "▼" in line)
        left = stand.app.query_one(RequestsPanel).region.right
        for column in columns_of(marks[:left], "▼"):
            assert any(column in columns_of(line, PREEMPTED_GLYPH) for line in stand.lines())


# Text from models and users is only ever text.


def looks(lines: Sequence[Sequence[Part]], width: int) -> list[list[tuple[int, Any]]]:
    """How a panel looks, without what stands in it."""
    return [[(segment.cell_length, segment.style) for segment in to_strip(line, width)] for line in lines]


BENIGN = "".join("x" if character != " " else " " for character in HOSTILE)
"""As long as the hostile text, word for word, and of plain letters."""


@pytest.mark.parametrize("kind", [RequestsPanel, EventsPanel, OutputPanel, StepPanel, BlocksPanel])
def test_hostile_text_is_literal(kind: type[Panel]) -> None:
    """It looks exactly as harmless text of its length does."""
    panels = []
    for text in (HOSTILE, BENIGN):
        # What is said stays the same, so that both go through the same number of bytes and steps.
        made = panel(kind, view_of(hostile_stage(text, "ab cd ").traces))
        fill(made, "1")
        panels.append(made)
    bad, good = (made.draw(90, 14) for made in panels)
    check_lines(bad, 90)
    assert looks(bad, 90) == looks(good, 90)


def test_hostile_prompt_and_output_are_shown_literally() -> None:
    made = panel(OutputPanel, scenario_view("hostile"))
    made.selected = "1"
    lines = made.draw(90, 14)
    shown = drawn(lines, 14)
    check_lines(lines, 90)
    assert HOSTILE_SHOWN in shown[1]
    assert HOSTILE_SHOWN in " ".join(shown[2:])


def test_hostile_label_is_shown_literally() -> None:
    lines = panel(RequestsPanel, scenario_view("hostile")).draw(90, 14)
    check_lines(lines, 90)
    assert HOSTILE_SHOWN[:5] in row_of(drawn(lines, 14), "a")


@pytest.mark.parametrize("size", [(80, 24), (200, 50)])
async def test_hostile_text_on_the_whole_screen(size: tuple[int, int]) -> None:
    ready = protocol.Ready(HOSTILE, 1, "float32", "cpu", 1, HOSTILE, False, False)
    events = [protocol.Stepped(trace) for trace in scenario("hostile")]
    async with dashboard(size, protocol.Loading(HOSTILE), ready, *events) as stand:
        await stand.feed(protocol.Refused("77", HOSTILE))
        await stand.feed(protocol.Failed(HOSTILE))
        text = stand.text()
        assert HOSTILE_SHOWN in text
        assert "[bold red]hi[/]" in text
        for line in stand.lines():
            assert not any(unicodedata.category(c) in ("Cc", "Cf") for c in line), repr(line)


def test_hostile_model_name_is_shown_literally() -> None:
    header = panel(Header, scenario_view("busy"))
    header.ready = protocol.Ready(HOSTILE, 1, "float32", "cpu", 1, "bitwise", True, False)
    lines = header.draw(200, 1)
    check_lines(lines, 200)
    assert HOSTILE_SHOWN in text_of(lines[0])


# The tools that panels are made of.


@given(
    st.lists(st.tuples(st.text("ab 漢", max_size=12), st.sampled_from([style(), style(bold=True)])), max_size=8),
    st.integers(1, 40),
)
@repeatable
def test_to_strip_is_exact_and_merges(parts: list[Part], width: int) -> None:
    strip = to_strip(parts, width)
    assert strip.cell_length == width
    text = text_of(parts)
    if cell_len(text) <= width:
        assert strip.text == text + " " * (width - cell_len(text))
    segments = list(to_strip(parts, cell_len(text)))
    assert all(a.style != b.style for a, b in pairwise(segments))


@given(
    st.lists(st.tuples(st.text("ab ", max_size=14), st.just(style())), max_size=8),
    st.integers(16, 40),
    st.integers(0, 3),
)
@repeatable
def test_wrap_parts_keeps_words_and_width(parts: list[Part], width: int, indent: int) -> None:
    lines = wrap_parts(parts, width, indent)
    text = text_of(parts)
    assert "".join(map(text_of, lines)).split() == text.split() or len(lines) > 1
    assert "".join("".join(map(text_of, lines)).split()) == "".join(text.split())
    for line in lines:
        assert cell_len(text_of(line).rstrip()) <= width


def test_a_sentence_is_broken_at_its_spaces_also_if_its_looks_change_elsewhere() -> None:
    """What stands behind a word without a space, such as a semicolon of another colour, goes with it."""
    parts = [("e waits: all seats are taken", style(bold=True)), ("; 40 more behind it", style())]
    lines = [text_of(line) for line in wrap_parts(parts, 30, 2)]
    assert lines == ["e waits: all seats are taken; ", "  40 more behind it"]
    lines = [text_of(line) for line in wrap_parts(parts, 28, 2)]
    assert lines == ["e waits: all seats are ", "  taken; 40 more behind it"]


@given(st.text("abc ", min_size=1, max_size=20), st.text("abc ", max_size=20), st.integers(10, 80))
@repeatable
def test_heading_fills_the_line(title: str, note: str, width: int) -> None:
    text = text_of(heading(title, note, width))
    assert cell_len(text) <= max(width, cell_len(title) + 2)
    assert text.startswith(title)
    if len(title) + len(note) + 4 <= width:
        assert note in text and cell_len(text) >= width - 1
