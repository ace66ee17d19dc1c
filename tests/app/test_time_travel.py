"""Time travel with the keys: every panel shows the step that was gone to, and the engine only hears of a pause."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from functools import cache
from itertools import product

import pytest

from app import protocol
from app.panels.axis import GoTo
from app.panels.banner import Banner
from app.panels.header import Header
from app.panels.panel import Panel, Part
from app.panels.timeline import Timeline
from app.protocol import Event, Failed, PaceSet, SetPaused, StepOnce, Stepped
from engine.trace import StepTrace
from tests.app.support import READY, ScriptedEngine, Stand, dashboard, scenario, sentence, stepped
from tests.engine.support import config

KILLED = Failed("the engine's process was killed by signal 9 (SIGKILL).")
PAUSED = PaceSet(True, 0.0)


@cache
def run() -> tuple[StepTrace, ...]:
    """Eighty steps of six requests in a pool that is too small for them; none of the last is a preemption."""
    stage = ScriptedEngine(config(blocks=14, bs=8, budget=24, seqs=4, length=96, enable_prefix_caching=False))
    for number, max_tokens in enumerate((30, 40, 26, 34)):
        stage.add(sentence(18 + max_tokens % 9), max_tokens, "long" if number == 2 else "short")
    stage.step(40)
    stage.add(sentence(60), 12)
    stage.add(sentence(20), 90)
    stage.step(40)
    return tuple(stage.traces)


LAST = 79
PREEMPTIONS = [trace.step for trace in run() if trace.preemptions]


def test_the_run_has_what_it_takes() -> None:
    assert len(run()) == LAST + 1
    assert len(PREEMPTIONS) >= 3 and PREEMPTIONS[0] > 1 and PREEMPTIONS[-1] < LAST - 12


def played(traces: Sequence[StepTrace]) -> list[Event]:
    return [READY, *map(Stepped, traces)]


def shown(stand: Stand) -> int | None:
    """The step that the header names."""
    found = re.search(r" step ([\d,]+)", stand.lines()[0])
    return int(found[1].replace(",", "")) if found else None


def back(stand: Stand) -> int:
    """How far back the header says that is."""
    found = re.search(r"◂ ([\d,]+) back", stand.lines()[0])
    return int(found[1].replace(",", "")) if found else 0


def panels(stand: Stand) -> list[Panel]:
    """Those that show a step; the others show the engine, or all steps."""
    return [p for p in stand.app.query(Panel) if p.display and not isinstance(p, Header | Timeline | Banner)]


def texts(stand: Stand) -> dict[str, list[str]]:
    """What stands in each of them on the screen."""
    lines = stand.lines()
    regions = {str(panel.id): panel.region for panel in panels(stand)}
    return {name: [line[r.x : r.right] for line in lines[r.y : r.bottom]] for name, r in regions.items()}


def looks(stand: Stand) -> dict[str, list[list[Part]]]:
    """The same with its colours."""
    return {str(panel.id): [list(line) for line in panel.draw(*panel.size)] for panel in panels(stand)}


def toasts(stand: Stand) -> list[str]:
    return [notification.message for notification in stand.app._notifications]


# Every panel shows that step.


@pytest.mark.parametrize("size", [(60, 16), (120, 40), (200, 50)])
async def test_every_panel_shows_a_step_as_it_was_when_it_was_the_newest(size: tuple[int, int]) -> None:
    async with dashboard(size, READY) as stand:
        was: list[tuple[dict[str, list[str]], dict[str, list[list[Part]]]]] = []
        for trace in run():
            stand.feed_only(Stepped(trace))
            was.append((texts(stand), looks(stand)))
            assert (shown(stand), back(stand)) == (trace.step, 0)
        assert {"requests", "budget", "step"} <= was[0][0].keys()
        for step in [*range(LAST - 1, -1, -3), *range(0, LAST, 7), *random.Random(3).sample(range(LAST), 12)]:
            stand.app.on_go_to(GoTo(step))
            assert (shown(stand), back(stand)) == (step, LAST - step)
            assert texts(stand) == was[step][0], f"step {step}"
            assert looks(stand) == was[step][1], f"step {step}"
        stand.app.action_live()
        assert (texts(stand), looks(stand)) == was[LAST]


@pytest.mark.parametrize("name", ["busy", "sharing", "evicting", "ended", "hostile"])
async def test_scenarios_can_be_walked_back_by_key(name: str) -> None:
    traces = scenario(name)[-12:] if name == "hostile" else scenario(name)
    async with dashboard((120, 40), READY, *map(Stepped, scenario(name)[: len(scenario(name)) - len(traces)])) as stand:
        was = []
        for trace in traces:
            stand.feed_only(Stepped(trace))
            was.append(texts(stand))
        for step in range(len(traces) - 2, max(-1, len(traces) - 9), -1):
            await stand.press("left")
            assert shown(stand) == traces[step].step
            assert texts(stand) == was[step]


async def test_what_was_sent_is_of_the_present() -> None:
    """No step of the past has seen it."""
    async with dashboard((120, 40), *played(run())) as stand:
        await stand.press("space")
        await stand.feed(PAUSED)
        await stand.press("s")
        assert " … " in stand.text()
        await stand.press("left")
        assert " … " not in stand.text()
        await stand.press("end")
        assert " … " in stand.text()


async def test_the_past_is_shown_with_the_parameters_of_its_time() -> None:
    stage = ScriptedEngine(config(blocks=40, bs=8, budget=64, seqs=8, length=128))
    stage.add(sentence(20), 40)
    stage.step(5)
    stage.engine.reconfigure(policy="priority", max_num_batched_tokens=32)
    stage.step(5)
    async with dashboard((200, 50), *played(stage.traces)) as stand:
        header = stand.lines()[0]
        assert "policy priority" in header and "budget 32" in header
        stand.app.on_go_to(GoTo(3))
        header = stand.lines()[0]
        assert "policy fcfs" in header and "budget 64" in header


# Keys, by situation.

Target = Callable[[int, bool], int | None]
"""The step that a key leads to from a step of the run, and whether it is live and runs; None if there is none."""


def moved(by: int) -> Target:
    return lambda here, running: max(0, min(LAST, here + by))


def preemption_before(here: int, running: bool) -> int | None:
    return max((step for step in PREEMPTIONS if step < here), default=None)


def preemption_after(here: int, running: bool) -> int | None:
    return min((step for step in PREEMPTIONS if step > here), default=None)


TRAVEL: dict[str, Target] = {
    "left": moved(-1),
    "right": moved(1),
    "H": moved(-10),
    "shift+left": moved(-10),
    "L": moved(10),
    "shift+right": moved(10),
    "home": lambda here, running: 0,
    "end": lambda here, running: LAST,
    "left_square_bracket": preemption_before,
    "right_square_bracket": preemption_after,
    "escape": lambda here, running: LAST,
}


STARTS = (LAST, LAST - 1, PREEMPTIONS[-1], 5, 0)


@pytest.mark.parametrize("situation", ["runs", "paused", "dead"])
async def test_each_key_leads_to_its_step(situation: str) -> None:
    """From the newest step, from the oldest, and from between: while it runs, while it is paused, after its end."""
    async with dashboard((120, 40), *played(run())) as stand:
        if situation == "paused":
            await stand.feed(PAUSED)
        if situation == "dead":
            await stand.feed(KILLED)
        for start, (key, target) in product(STARTS, TRAVEL.items()):
            stand.app.on_go_to(GoTo(start))
            if situation == "runs":  # as far as the engine has said
                await stand.feed(*[PaceSet(True, 0.0)] * len(stand.source.take_sent()), PaceSet(False, 0.0))
            stand.source.take_sent()
            num_toasts = len(toasts(stand))
            await stand.press(key)
            to = target(start, situation == "runs")
            expected = start if to is None else to
            assert (shown(stand), back(stand)) == (expected, LAST - expected), f"{key} from {start}"
            pauses = situation == "runs" and expected < LAST
            assert stand.source.take_sent() == [SetPaused(True)] * pauses, f"{key} from {start}"
            assert len(toasts(stand)) - num_toasts == (to is None), f"{key} from {start}: {toasts(stand)[num_toasts:]}"
            state = "dead" if situation == "dead" else "paused" if pauses or situation == "paused" else "▶"
            assert state in stand.lines()[0], f"{key} from {start}"


@pytest.mark.parametrize("loading", [True, False])
async def test_with_nothing_yet_no_key_leads_anywhere(loading: bool) -> None:
    async with dashboard((120, 40), *([] if loading else [READY])) as stand:
        before = stand.lines()
        for key in TRAVEL:
            await stand.press(key)
            assert stand.source.take_sent() == []
            assert stand.lines() == before, key
        assert set(toasts(stand)) == {
            "There is no preemption before this step.",
            "There is no preemption after this step.",
        }


async def test_with_one_step_there_is_no_past() -> None:
    async with dashboard((120, 40), *played(run()[:1])) as stand:
        for key in TRAVEL:
            await stand.press(key)
        assert stand.source.take_sent() == [], "nothing to pause for"
        await stand.feed(Stepped(run()[1]))
        assert (shown(stand), back(stand)) == (1, 0), "it is still the newest that is shown"


@pytest.mark.parametrize("start", [LAST, 40, 0])
async def test_space_goes_on_with_the_newest_step(start: int) -> None:
    async with dashboard((120, 40), *played(run()), PAUSED) as stand:
        stand.app.on_go_to(GoTo(start))
        await stand.press("space")
        assert (shown(stand), back(stand)) == (LAST, 0)
        assert stand.source.take_sent() == [SetPaused(False)]
        assert "paused" not in stand.lines()[0]


@pytest.mark.parametrize("start", [LAST, 40, 0])
async def test_one_step_is_made_after_the_newest(start: int) -> None:
    async with dashboard((120, 40), *played(run()[:-1]), PAUSED) as stand:
        stand.app.on_go_to(GoTo(start))
        await stand.press("full_stop")
        assert stand.source.take_sent() == [StepOnce()]
        assert (shown(stand), back(stand)) == (LAST - 1, 0)
        await stand.feed(PAUSED, Stepped(run()[-1]))
        assert (shown(stand), back(stand)) == (LAST, 0)
        assert "paused" in stand.lines()[0]


async def test_escape_does_one_thing_at_a_time() -> None:
    """First back to the newest step, then the selection goes back to the first row."""
    async with dashboard((120, 40), *played(run())) as stand:
        await stand.press("j", "left", "escape")
        assert back(stand) == 0 and not stand.app.selection.following
        await stand.press("escape")
        assert stand.app.selection.following


async def test_a_restart_begins_with_the_newest_step() -> None:
    async with dashboard((120, 40), *played(run())) as stand:
        await stand.press("H", "H")
        await stand.feed(PAUSED, KILLED)
        assert back(stand) == 20 and "dead" in stand.lines()[0], "what is shown stays shown"
        await stand.press("left")
        assert back(stand) == 21
        await stand.press("r")
        assert shown(stand) is None and back(stand) == 0
        assert stand.source.take_sent() == [SetPaused(True)]
        before = stand.lines()
        await stand.press("left", "home", "left_square_bracket")
        assert stand.lines() == before and stand.source.take_sent() == []
        await stand.feed(READY, PAUSED, *map(Stepped, run()[:6]))
        assert (shown(stand), back(stand)) == (5, 0)
        await stand.press("H")
        assert (shown(stand), back(stand)) == (0, 5)


# The engine.


@pytest.mark.parametrize("seed", range(2))
async def test_the_engine_hears_of_a_pause_and_of_nothing_else(seed: int) -> None:
    """Keys in any order, as fast as they come, and late answers: one word is enough."""
    chance = random.Random(seed)
    keys = chance.choices(list(TRAVEL), k=60)
    async with dashboard((120, 40), *played(run())) as stand:
        await stand.press("left", *keys)
        assert stand.source.take_sent() == [SetPaused(True)]
        await stand.feed(PAUSED)
        await stand.press(*keys)
        assert stand.source.take_sent() == []


async def test_a_pause_that_is_on_its_way_is_not_asked_for_again() -> None:
    async with dashboard((120, 40), *played(run())) as stand:
        await stand.press("space", "left", "left", "home")
        assert stand.source.take_sent() == [SetPaused(True)]
        await stand.feed(PAUSED)
        assert "paused" in stand.lines()[0] and back(stand) == LAST


async def test_going_on_and_back_again_before_the_engine_has_answered() -> None:
    async with dashboard((120, 40), *played(run()), PAUSED) as stand:
        await stand.press("left", "space", "left")
        assert stand.source.take_sent() == [SetPaused(False), SetPaused(True)]
        await stand.feed(PaceSet(False, 0.0))
        assert "paused" in stand.lines()[0], "an older answer undoes no newer key"
        await stand.feed(PAUSED)
        assert "paused" in stand.lines()[0] and back(stand) == 1


# Steps that come meanwhile.


async def test_the_shown_step_stays_while_others_come() -> None:
    async with dashboard((120, 40), *played(run()[:40])) as stand:
        await stand.press("left", "left", "left")
        before = texts(stand), looks(stand)
        for number, trace in enumerate(run()[40:], 4):
            stand.feed_only(Stepped(trace))
            assert (shown(stand), back(stand)) == (36, number)
            assert (texts(stand), looks(stand)) == before
        await stand.press("right")
        assert (shown(stand), back(stand)) == (37, LAST - 37)
        await stand.press("escape")
        assert (shown(stand), back(stand)) == (LAST, 0)


async def test_a_step_that_falls_out_of_the_history_gives_way_to_the_oldest() -> None:
    async with dashboard((120, 40), *played(run()[:30]), history_steps=20) as stand:
        await stand.press("home")
        oldest = shown(stand)
        assert oldest is not None and oldest >= 10
        for trace in run()[30:]:
            stand.feed_only(Stepped(trace))
            first = stand.app.session.history.first_step or 0
            assert shown(stand) == max(oldest, first) and back(stand) == trace.step - max(oldest, first)
            assert f"Step {max(oldest, first)}" in stand.text()
        assert shown(stand) != oldest
        await stand.press("left")
        assert shown(stand) == first
        await stand.press("right")
        assert shown(stand) == first + 1
        fresh = looks(stand)
    async with dashboard((120, 40), *played(run()[: first + 2])) as stand:
        assert fresh == looks(stand)


async def test_a_step_can_be_stopped_at_that_was_the_newest_when_the_key_was_pressed() -> None:
    """Somebody sees a preemption and presses the key at once; what the engine has begun meanwhile comes after it."""
    step = PREEMPTIONS[-1]
    async with dashboard((120, 40), *played(run()[: step + 1])) as stand:
        await stand.press("left_square_bracket")
        assert stand.source.take_sent() == [SetPaused(True)] and shown(stand) == step
        await stand.feed(PAUSED, Stepped(run()[step + 1]))
        assert (shown(stand), back(stand)) == (step, 1)
        await stand.press("left_square_bracket")
        assert shown(stand) == PREEMPTIONS[-2], "paused, it is the one before"
    async with dashboard((120, 40), *played(run()[: step + 1]), PAUSED) as stand:
        await stand.press("left_square_bracket")
        assert shown(stand) == PREEMPTIONS[-2]


async def test_who_asks_why_gets_the_step_that_was_shown() -> None:
    """Not the one that the engine has begun meanwhile."""
    async with dashboard((120, 40), *played(run()[:60])) as stand:
        await stand.press("w")
        assert stand.source.take_sent() == [SetPaused(True)]
        await stand.feed(Stepped(run()[60]), PAUSED)
        assert "Why: step 59" in stand.text()
        await stand.press("escape")
        assert (shown(stand), back(stand)) == (59, 1)
        await stand.press("escape")
        assert (shown(stand), back(stand)) == (60, 0) and stand.app.cursor.is_live


async def test_escape_lets_go_of_a_newest_step_that_is_held() -> None:
    async with dashboard((120, 40), *played(run()[:60])) as stand:
        await stand.press("w", "escape")
        assert back(stand) == 0
        await stand.press("escape")
        await stand.feed(PAUSED, Stepped(run()[60]))
        assert (shown(stand), back(stand)) == (60, 0)


# Selection.


async def test_a_chosen_request_stays_chosen_where_it_is_not_there_yet() -> None:
    """The fifth arrives in step 40."""
    async with dashboard((120, 40), *played(run()[:50]), PAUSED) as stand:
        while stand.app.selection.request_id != "5":
            await stand.press("j")
        stand.app.on_go_to(GoTo(30))
        assert stand.app.selection.request_id == "5" and not stand.app.selection.following
        assert not any(line.startswith("▸") for line in stand.lines())
        assert "not in a step yet" in stand.text()
        await stand.press("end")
        assert stand.app.selection.request_id == "5"
        (row,) = [line for line in stand.lines() if line.startswith("▸")]
        assert row[2] == "e"


async def test_the_first_row_is_followed_through_the_past() -> None:
    async with dashboard((120, 40), *played(run())) as stand:
        for step in (LAST, 50, 20, 0, 60):
            stand.app.on_go_to(GoTo(step))
            assert stand.app.selection.following and stand.app.selection.request_id == run()[step].running[0]


@pytest.mark.parametrize("key", ["j", "k"])
async def test_a_choice_that_begins_where_the_chosen_is_not_begins_at_the_top(key: str) -> None:
    async with dashboard((120, 40), *played(run()[:50]), PAUSED) as stand:
        while stand.app.selection.request_id != "5":
            await stand.press("j")
        stand.app.on_go_to(GoTo(30))
        await stand.press(key)
        assert stand.app.selection.request_id == run()[30].running[0]


async def test_who_ended_since_cannot_be_aborted_in_the_past() -> None:
    async with dashboard((120, 40), *played(run()), PAUSED) as stand:
        stand.app.on_go_to(GoTo(5))
        assert stand.app.selection.request_id == "1" and stand.app.session.view.requests["1"].finished
        await stand.press("x")
        assert stand.source.take_sent() == [] and "nothing to abort" in toasts(stand)[-1]
        del stand.app.session.view.requests["1"]  # as after many others have ended
        await stand.press("x")
        assert stand.source.take_sent() == [] and not stand.app.session.aborting


async def test_who_still_runs_can_be_aborted_from_the_past() -> None:
    async with dashboard((120, 40), *played(run()), PAUSED) as stand:
        alive = next(rid for rid, request in stand.app.session.view.requests.items() if not request.finished)
        stand.app.on_go_to(GoTo(LAST - 3))
        while stand.app.selection.request_id != alive:
            await stand.press("j")
        await stand.press("x")
        assert stand.source.take_sent() == [protocol.Abort(alive)]
        assert back(stand) == 3


async def test_the_past_survives_a_resize() -> None:
    async with dashboard((120, 40), *played(run())) as stand:
        stand.app.on_go_to(GoTo(30))
        await stand.settle()
        before = stand.lines()
        await stand.resize(80, 24)
        assert (shown(stand), back(stand)) == (30, LAST - 30)
        await stand.resize(40, 10)
        await stand.resize(120, 40)
        assert stand.lines() == before


async def test_the_busy_scenario_has_a_past_at_the_smallest_size() -> None:
    async with dashboard((60, 16), *stepped("busy")) as stand:
        await stand.press("left", "left")
        assert back(stand) == 2 and "paused" in stand.lines()[0]
