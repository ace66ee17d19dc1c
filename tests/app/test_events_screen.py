"""Events: the panel's lines and the list of all, either of which leads to the step of an event."""

from __future__ import annotations

import pytest
from textual.widgets import OptionList

from app import protocol
from app.panels.axis import GoTo
from app.panels.events import EventsPanel
from app.screens.events import EventsScreen
from app.view import MAX_FINISHED
from engine.config import EngineConfig
from tests.app.support import (
    HOSTILE,
    READY,
    SCENARIOS,
    ScriptedEngine,
    Stand,
    dashboard,
    drawn,
    panel,
    scenario,
    scenario_view,
    stepped,
    view_of,
)
from tests.engine.support import config

PREEMPTIONS = [trace.step for trace in scenario("preempting") if trace.preemptions]


def is_open(stand: Stand) -> bool:
    return isinstance(stand.app.screen, EventsScreen)


def listed(stand: Stand) -> list[str]:
    """All lines of the list, those out of sight as well."""
    return [str(option.prompt) for option in stand.app.screen.query_one(OptionList).options]


def notes(stand: Stand) -> list[str]:
    return [note.message for note in stand.app._notifications]


def chosen(stand: Stand) -> str:
    (line,) = [line for line in listed(stand) if line.startswith("▸")]
    return line


# The list.


async def test_the_newest_is_last_and_chosen() -> None:
    async with dashboard((120, 40), *stepped("preempting")) as stand:
        await stand.press("e")
        events = list(stand.app.session.view.events)
        assert [int(line[1:].split()[0]) for line in listed(stand)] == [event.step for event in events]
        assert listed(stand)[-1] == chosen(stand)
        assert chosen(stand) in stand.text(), "it is in sight"


async def test_enter_goes_to_the_step_of_the_chosen_one() -> None:
    async with dashboard((120, 40), *stepped("preempting")) as stand:
        await stand.press("e", "up", "k", "down", "up")
        step = int(chosen(stand)[1:].split()[0])
        await stand.press("enter")
        assert not is_open(stand)
        assert stand.app.cursor.step == step and f"Step {step} " in stand.text()


async def test_a_click_goes_there_too() -> None:
    async with dashboard((120, 40), *stepped("preempting")) as stand:
        await stand.press("e")
        y, line = next((y, line) for y, line in enumerate(stand.lines()) if "preempted for" in line)
        await stand.pilot.click(offset=(line.index("preempted for"), y))
        await stand.settle()
        assert not is_open(stand) and stand.app.cursor.step in PREEMPTIONS


async def test_a_key_leaves_only_the_preemptions() -> None:
    async with dashboard((120, 40), *stepped("preempting")) as stand:
        await stand.press("e")
        everything = listed(stand)
        await stand.press("p")
        assert [int(line[1:].split()[0]) for line in listed(stand)] == PREEMPTIONS
        assert all("preempted" in line for line in listed(stand))
        await stand.press("enter")
        assert stand.app.cursor.step == PREEMPTIONS[-1]
        await stand.press("e", "p", "p")
        assert len(listed(stand)) == len(everything)


async def test_who_looks_at_the_past_begins_there() -> None:
    async with dashboard((120, 40), *stepped("preempting")) as stand:
        await stand.press("home", "right", "right", "e")
        assert int(chosen(stand)[1:].split()[0]) <= 2
        await stand.press("escape")
        stand.app.on_go_to(GoTo(PREEMPTIONS[0]))
        await stand.press("e")
        assert int(chosen(stand)[1:].split()[0]) == PREEMPTIONS[0]


async def test_it_closes_and_nothing_has_moved() -> None:
    async with dashboard((120, 40), *stepped("preempting")) as stand:
        before = stand.lines()
        for key in ("escape", "q", "e"):
            await stand.press("e")
            assert is_open(stand)
            await stand.press("up", key)
            assert not is_open(stand) and stand.lines() == before and stand.app.return_code is None, key


async def test_nothing_to_list() -> None:
    async with dashboard((120, 40), READY) as stand:
        await stand.press("e")
        assert not is_open(stand)
        assert "nothing was computed" in notes(stand)[0]
    async with dashboard((120, 40), *stepped("busy")) as stand:
        await stand.press("e", "p", "enter")
        assert is_open(stand) and "nobody was preempted" in stand.text()
        await stand.press("p")
        assert len(listed(stand)) == len(stand.app.session.view.events)


async def test_only_events_of_steps_that_are_kept_are_listed() -> None:
    stage = ScriptedEngine(config(blocks=40, bs=8, budget=64, seqs=8, length=128))
    for _ in range(6):
        stage.add(max_tokens=60)
        stage.run_to_end()
    async with dashboard((120, 40), READY, *map(protocol.Stepped, stage.traces), history_steps=120) as stand:
        first = stand.app.session.history.first_step
        assert first is not None and first > 0
        await stand.press("e", "home")
        steps = [int(line[1:].split()[0]) for line in listed(stand)]
        assert steps == [step for step in (60, 119, 120, 179, 180, 239, 240, 299, 300, 359) if step >= first]
        await stand.press("enter")
        assert stand.app.cursor.step == steps[0]


async def test_of_very_many_events_those_around_the_step_that_is_shown_are_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("app.screens.events.MOST", 4)
    stage = ScriptedEngine(config(blocks=40, bs=8, budget=64, seqs=8, length=128))
    for _ in range(6):
        stage.add(max_tokens=10)
        stage.run_to_end()
    async with dashboard((120, 40), READY, *map(protocol.Stepped, stage.traces)) as stand:
        await stand.press("e")
        assert [int(line[1:].split()[0]) for line in listed(stand)] == [40, 49, 50, 59]
        assert "9 to 12 of 12" in stand.text()
        await stand.press("escape")
        stand.app.on_go_to(GoTo(25))
        await stand.press("e")
        assert [int(line[1:].split()[0]) for line in listed(stand)] == [10, 19, 20, 29]
        chosen = next(line for line in listed(stand) if line.startswith("▸"))
        assert int(chosen[1:].split()[0]) == 20, "the last one up to that step"


async def test_the_event_of_the_newest_step_stops_there() -> None:
    traces = scenario("preempting")
    async with dashboard((120, 40), READY, *map(protocol.Stepped, traces[:13])) as stand:
        last = stand.app.session.view.events[-1].step
        assert last == traces[12].step
        await stand.press("e", "enter")
        assert stand.app.session.paused
        await stand.play(traces[13:])
        assert stand.app.cursor.step == last


async def test_steps_that_come_meanwhile_do_not_disturb() -> None:
    traces = scenario("preempting")
    async with dashboard((120, 40), READY, *map(protocol.Stepped, traces[:12])) as stand:
        await stand.press("e", "up")
        before = listed(stand)
        await stand.play(traces[12:])
        assert listed(stand) == before
        await stand.press("enter")
        assert not is_open(stand) and stand.app.cursor.step is not None


@pytest.mark.parametrize("name", ["preempting", "hostile", "evicting", "ended"])
async def test_no_event_breaks_the_frame(name: str) -> None:
    async with dashboard((120, 40), *stepped(name)) as stand:
        await stand.press("e", "home")
        for size in ((60, 16), (80, 24), (200, 50)):
            await stand.resize(*size)
            rows = [line for line in stand.lines() if line.count("│") >= 2]
            assert len({(row.index("│"), row.rindex("│")) for row in rows}) == 1, size
            assert HOSTILE not in stand.text(), size


# The panel.


async def test_a_click_on_a_line_of_the_panel_goes_there() -> None:
    async with dashboard((120, 40), *stepped("preempting")) as stand:
        region = stand.app.query_one(EventsPanel).region
        rows = {int(stand.lines()[y][region.x :].split()[0]): y for y in range(region.y + 1, region.bottom)}
        step = min(rows)
        assert step != scenario("preempting")[-1].step
        await stand.pilot.click(offset=(region.x + 3, rows[step]))
        await stand.settle()
        assert stand.app.cursor.step == step


async def test_a_click_on_the_title_or_below_the_events_goes_nowhere() -> None:
    async with dashboard((120, 60), *stepped("seats")) as stand:
        region = stand.app.query_one(EventsPanel).region
        for y in (region.y, region.bottom - 1):
            await stand.pilot.click(offset=(region.x + 3, y))
            await stand.settle()
            assert stand.app.cursor.step is None


def changed() -> ScriptedEngine:
    stage = ScriptedEngine(EngineConfig())
    stage.add(max_tokens=9)
    stage.step(3)
    stage.engine.reconfigure(max_num_batched_tokens=64, enable_prefix_caching=False)
    stage.step(2)
    return stage


def test_a_changed_parameter_has_a_line() -> None:
    lines = drawn(panel(EventsPanel, view_of(changed().traces)).draw(60, 9), 9)
    assert "   3 ± max_num_batched_tokens 128 → 64" in lines
    assert "   3 ± enable_prefix_caching on → off" in lines


async def test_and_one_in_the_list() -> None:
    async with dashboard((120, 40), READY, *map(protocol.Stepped, changed().traces)) as stand:
        await stand.press("e")
        assert any("3 ± max_num_batched_tokens 128 → 64" in line for line in listed(stand))


@pytest.mark.parametrize("width", [31, 39, 59])
def test_the_values_of_a_changed_parameter_are_never_cut(width: int) -> None:
    stage = ScriptedEngine(EngineConfig())
    stage.add(max_tokens=9)
    stage.step()
    stage.engine.reconfigure(long_prefill_token_threshold_adaptive=True, num_blocks=1_000)
    stage.step()
    lines = drawn(panel(EventsPanel, view_of(stage.traces)).draw(width, 9), 9)
    assert any(line.endswith("off → on") for line in lines) and any(line.endswith("128 → 1000") for line in lines)
    assert all(len(line) <= width for line in lines)


@pytest.mark.parametrize("width", [20, 31, 39, 59])
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_preemption_fits_into_its_line(name: str, width: int) -> None:
    for line in drawn(panel(EventsPanel, scenario_view(name)).draw(width, 40), 40):
        if "preempted for" in line:
            assert len(line) <= max(width, len("1234 × a preempted for b "))


def test_who_has_long_been_forgotten_is_still_named() -> None:
    """The list goes back further than the requests that are remembered."""
    stage = ScriptedEngine(config(blocks=14, bs=8, budget=32, seqs=4, length=96, enable_prefix_caching=False))
    for max_tokens in (30, 40, 26, 34):
        stage.add([1] * (18 + max_tokens % 9), max_tokens)
    stage.run_to_end()
    for _ in range(MAX_FINISHED + 5):
        stage.add([1], 1)
        stage.run_to_end()
    view = view_of(stage.traces)
    assert "1" not in view.requests
    lines = drawn(panel(EventsPanel, view).draw(60, 200), 200)
    assert [line for line in lines if "preempted for" in line] and not any("?" in line for line in lines)


@pytest.mark.parametrize(
    ("width", "end"),
    [
        (59, "─ 2 preemptions: [ goes there"),
        (37, "─ 2 preemptions: [ goes there"),
        (36, "─ 2 preemptions: ["),
        (25, "─ 2 preemptions"),
        (22, "──"),
    ],
)
def test_the_title_says_how_to_get_to_a_preemption(width: int, end: str) -> None:
    view = view_of(scenario("seats"))
    view.num_preemptions = 2
    assert drawn(panel(EventsPanel, view).draw(width, 5), 5)[0].endswith(end)


def test_without_a_preemption_the_title_says_nothing() -> None:
    assert drawn(panel(EventsPanel, scenario_view("busy")).draw(59, 5), 5)[0].endswith("─")


async def test_keys_that_come_in_a_bunch_find_the_list_that_is_there() -> None:
    """What a key has chosen is told by a message, which may come when the list is another one already."""
    for scene, keys in (("busy", "up p"), ("preempting", "home end p end p p"), ("preempting", "p up p j k p")):
        async with dashboard((120, 40), *stepped(scene)) as stand:
            await stand.press("e")
            await stand.press(*keys.split())
            assert is_open(stand), keys


async def test_the_list_works_after_a_time_in_which_there_was_no_room_for_it() -> None:
    async with dashboard((50, 12), *stepped("preempting")) as stand:
        await stand.press("e", "j", "k")
        await stand.resize(120, 40)
        before = listed(stand)
        await stand.press("up")
        assert listed(stand) != before
        await stand.resize(50, 12)
        await stand.resize(120, 40)
        await stand.press("k", "enter")
        assert stand.app.cursor.step is not None
