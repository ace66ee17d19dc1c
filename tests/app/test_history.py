"""The history: any step that is kept is shown as it was when it was the newest, in whatever order it is asked for."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping, Sequence, Sized
from dataclasses import fields, is_dataclass
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.cursor import Cursor
from app.history import MIN_STRETCHES, STRETCH_STEPS, History
from app.view import MAX_EVENTS, MAX_FINISHED, MAX_SAMPLES, EngineView, RequestView
from engine.config import EngineConfig
from engine.trace import StepTrace
from tests.app.support import SCENARIOS, ScriptedEngine, repeatable, scenario, sentence, view_of
from tests.app.test_view import Action, Checked, actions, configs
from tests.engine.support import config

OWN = "_own"
"""What a view knows of its copies; it says nothing about the engine."""


def is_frozen(value: object) -> bool:
    """A dataclass that cannot change; what ours hold cannot either."""
    return bool(type(value).__dataclass_params__.frozen)  # type: ignore[attr-defined]


def state(value: object) -> object:
    """All that something says, and what it holds says, as data that changes no more. Order counts."""
    match value:
        case EngineView():
            return {name: state(part) for name, part in vars(value).items() if name != OWN}
        case dict():
            return [(state(key), state(part)) for key, part in value.items()]
        case list() | tuple() | deque():
            return [state(part) for part in value]
        case set() | frozenset():
            return frozenset(value)
        case _ if is_dataclass(value) and not is_frozen(value):
            return type(value).__name__, [(field.name, state(getattr(value, field.name))) for field in fields(value)]
    return value


def states_of(traces: Sequence[StepTrace]) -> list[object]:
    """What a view that is never copied says after each step."""
    view = EngineView()
    states = []
    for trace in traces:
        view.apply(trace)
        states.append(state(view))
    return states


def check_at(history: History, step: int, expected: Sequence[object] | Mapping[int, object]) -> None:
    seen, wanted = state(history.at(step)), expected[step]
    assert isinstance(seen, dict) and isinstance(wanted, dict)
    for name in wanted.keys() | seen.keys():
        assert seen[name] == wanted[name], f"{name} at step {step}"


def kept_steps(history: History) -> range:
    first, last = history.first_step, history.last_step
    assert first is not None and last is not None
    return range(first, last + 1)


def history_of(traces: Sequence[StepTrace], max_steps: int = 10_000) -> History:
    history = History(max_steps)
    for trace in traces:
        history.apply(trace)
    return history


def traces_of(engine_config: EngineConfig, script: Sequence[Action]) -> list[StepTrace]:
    checked = Checked(ScriptedEngine(engine_config))
    for action in script:
        checked.obey(action)
    checked.run_to_end()
    return checked.stage.traces


@cache
def long_run() -> tuple[StepTrace, ...]:
    """Four hundred steps of arrivals, preemptions, prefix hits and ends."""
    stage = ScriptedEngine(config(blocks=24, bs=4, budget=24, seqs=6, length=60))
    number = 0
    while len(stage.traces) < 400:
        if len(stage.engine.scheduler.requests) < 8:
            stage.add(sentence(8 * (number % 4)) + "?" * (1 + number % 9), 6 + number % 17)
            number += 1
        stage.step()
    assert any(trace.preemptions for trace in stage.traces)
    assert any(item.num_cached_tokens for trace in stage.traces for item in trace.scheduled)
    return tuple(stage.traces)


@cache
def states_of_long_run() -> list[object]:
    return states_of(long_run())


# Every step of the past.


@given(configs, actions, st.sampled_from([1, 3, 10, 25, 60, 10_000]), st.randoms(use_true_random=False))
@settings(repeatable, max_examples=120)
def test_every_kept_step_is_what_it_was(
    engine_config: EngineConfig, script: list[Action], max_steps: int, chance: random.Random
) -> None:
    """Forwards, backwards and at random: the same fields as of a fold that stopped there."""
    traces = traces_of(engine_config, script)
    if not traces:
        return
    expected = states_of(traces)
    history = history_of(traces, max_steps)
    kept = list(kept_steps(history))
    for order in (kept, kept[::-1], chance.sample(kept, len(kept)), kept[::-1]):
        for step in order:
            check_at(history, step, expected)
        assert state(history.live) == expected[-1], "looking at the past has changed the present"


@given(configs, actions, st.sampled_from([3, 10, 25, 60]), st.randoms(use_true_random=False))
@settings(repeatable, max_examples=80)
def test_the_past_can_be_looked_at_while_new_steps_come(
    engine_config: EngineConfig, script: list[Action], max_steps: int, chance: random.Random
) -> None:
    traces = traces_of(engine_config, script)
    expected = states_of(traces)
    history = History(max_steps)
    for trace in traces:
        history.apply(trace)
        assert state(history.live) == expected[trace.step]
        check_at(history, chance.choice(kept_steps(history)), expected)
        assert state(history.live) == expected[trace.step]


@pytest.mark.parametrize("max_steps", [40, 300, 10_000])
def test_a_long_run_is_right_at_every_step(max_steps: int) -> None:
    """Longer than the way between checkpoints; with preemptions, prefix hits and requests that are forgotten."""
    history, expected = history_of(long_run(), max_steps), states_of_long_run()
    assert history.live.num_finished > MAX_FINISHED
    for step in reversed(kept_steps(history)):
        check_at(history, step, expected)
    for step in kept_steps(history)[::5]:
        check_at(history, step, expected)
    for step in random.Random(0).sample(kept_steps(history), 30):
        check_at(history, step, expected)
    assert state(history.live) == expected[-1]


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name not in ("empty", "queue")])
def test_scenarios_can_be_gone_back_through(name: str) -> None:
    traces = scenario(name)
    expected = states_of(traces)
    history = history_of(traces, 10)
    for step in reversed(kept_steps(history)):
        check_at(history, step, expected)


def test_the_newest_step_is_the_live_view() -> None:
    history = history_of(scenario("busy"))
    assert history.last_step == scenario("busy")[-1].step
    assert history.at(kept_steps(history)[-1]) is history.live


def test_without_steps_there_is_nothing_to_show() -> None:
    history = History()
    assert (history.first_step, history.last_step, list(history.bars)) == (None, None, [])
    assert history.next_step(-1, lambda bar: True) is None and history.previous_step(99, lambda bar: True) is None
    with pytest.raises(AssertionError):
        history.at(0)


@pytest.mark.parametrize("max_steps", [5, 100])
def test_steps_that_are_not_kept_are_refused(max_steps: int) -> None:
    history = history_of(long_run(), max_steps)
    kept = kept_steps(history)
    for step in (-1, 0, kept[0] - 1, kept[-1] + 1):
        with pytest.raises(AssertionError, match="not kept"):
            history.at(step)


# Copies.


def check_shares_nothing(name: str, original: object, copied: object) -> None:
    """No container that can change is in both."""
    if not isinstance(original, list | dict | set | deque) and (not is_dataclass(original) or is_frozen(original)):
        return
    assert copied is not original, f"{name} is shared"
    assert type(copied) is type(original)
    if isinstance(original, dict) and isinstance(copied, dict):
        for key, value in original.items():
            check_shares_nothing(f"{name}[{key!r}]", value, copied[key])
    elif is_dataclass(original):
        for field in fields(original):
            check_shares_nothing(f"{name}.{field.name}", getattr(original, field.name), getattr(copied, field.name))


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name != "queue"])
def test_a_copied_view_shares_nothing_that_changes(name: str) -> None:
    """But for requests, which a view makes its own before it changes them."""
    view = view_of(scenario(name))
    copied = view.copy()
    assert state(copied) == state(view)
    for part, value in vars(view).items():
        if part != "requests":
            check_shares_nothing(part, value, vars(copied)[part])
    assert copied.requests is not view.requests


@pytest.mark.parametrize("name", ["busy", "preempting", "sharing", "ended"])
def test_a_copied_request_shares_nothing_that_changes(name: str) -> None:
    for request in view_of(scenario(name)).requests.values():
        copied = request.copy()
        assert copied == request and isinstance(copied, RequestView)
        check_shares_nothing(request.request_id, request, copied)
        assert copied.spans[-1] is not request.spans[-1]


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name not in ("empty", "queue")])
def test_a_view_and_its_copy_go_on_by_themselves(name: str) -> None:
    """Whichever of them takes in more, the other stays where it was."""
    traces = scenario(name)
    expected = states_of(traces)
    half = len(traces) // 2
    view = view_of(traces[:half])
    copied = view.copy()
    second = copied.copy()
    for trace in traces[half:]:
        view.apply(trace)
    assert state(copied) == state(second) == state(view_of(traces[:half])) and state(view) == expected[-1]
    for trace in traces[half:]:
        copied.apply(trace)
        assert state(copied) == expected[trace.step]
    assert state(second) == state(view_of(traces[:half])) and state(view) == expected[-1]


# Bounds.


@pytest.mark.parametrize("max_steps", [1, 2, 3, 9, 10, 11, 50, 99, 100, 101, 250])
def test_the_oldest_steps_go_and_nine_tenths_stay(max_steps: int) -> None:
    history = History(max_steps)
    firsts = []
    for trace in long_run():
        history.apply(trace)
        kept = kept_steps(history)
        assert kept[-1] == trace.step
        assert len(kept) <= max_steps
        assert len(kept) >= min(trace.step + 1, max_steps * 9 // 10), f"of {trace.step + 1} steps {len(kept)} are left"
        assert [bar.step for bar in history.bars] == list(kept), "the timeline shows what can be gone to"
        firsts.append(kept[0])
    assert firsts == sorted(firsts) and firsts[0] == 0 < firsts[-1]


@pytest.mark.parametrize("max_steps", [1, 7, 50, 130])
def test_both_ends_can_be_shown_at_any_time(max_steps: int) -> None:
    history, expected = History(max_steps), states_of_long_run()
    for trace in long_run():
        history.apply(trace)
        if trace.step % 7 == 0:
            kept = kept_steps(history)
            for step in {kept[0], kept[-1], kept[len(kept) // 2], kept[max(-2, -len(kept))]}:
                check_at(history, step, expected)


def sizes(history: History) -> dict[str, int]:
    """How much of everything it holds: each container of it and of every state in it."""
    counts: dict[str, int] = {}

    def count(name: str, value: object) -> None:
        if isinstance(value, EngineView):
            for part, held in vars(value).items():
                count(f"{name}.{part}", held)
        elif isinstance(value, Sized) and not isinstance(value, str | bytes):
            counts[name] = max(counts.get(name, 0), len(value))
            for part in (
                value.values() if isinstance(value, dict) else value if isinstance(value, deque | tuple) else ()
            ):
                count(f"{name}[]", part)

    for name, value in vars(history).items():
        count(name, value)
    return counts


def test_memory_is_bounded() -> None:
    """Containers are as long after two thousand steps as after one thousand."""
    stage = ScriptedEngine(config(blocks=24, bs=4, budget=24, seqs=4, length=60))
    history, plain = History(200), EngineView()
    largest: dict[str, int] = {}
    for number in range(2_000):
        if len(stage.engine.scheduler.requests) < 6:
            stage.add(sentence(4 + number % 20), 5 + number % 11)
        history.apply(stage.step())
        plain.apply(stage.traces.pop())
        if number in range(900, 1_000, 7):
            largest = {name: max(length, largest.get(name, 0)) for name, length in sizes(history).items()}
    grown = sizes(history)
    lengths = {name: length for name, length in grown.items() if length > 1.2 * largest[name] + 8}
    assert not lengths, f"{lengths} were {[largest[name] for name in lengths]}"
    assert grown["bars"] <= 200 and grown["_stretches"] <= MIN_STRETCHES + 1
    assert sum(map(len, history._stretches)) <= 200
    assert grown["live.requests"] <= MAX_FINISHED + 6 + 4 and grown["live.events"] <= MAX_EVENTS
    assert grown["live.samples[]"] <= MAX_SAMPLES
    for name, value in vars(plain).items():
        if isinstance(value, Sized):
            assert len(value) <= max(MAX_EVENTS, plain.bars.maxlen or 0), f"{name} of a view that is never copied"


def num_stretches(history: History) -> int:
    return len(history._stretches)


def test_a_state_is_kept_every_so_often() -> None:
    history = history_of(long_run())
    assert num_stretches(history) == len(long_run()) // STRETCH_STEPS
    assert num_stretches(history_of(long_run(), max_steps=100)) <= MIN_STRETCHES + 1


def test_many_requests_make_the_stretches_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A state names all requests: with very many of them fewer states are kept, and every step can still be shown."""
    monkeypatch.setattr("app.history.REQUESTS_PER_STEP", 1)
    stage = ScriptedEngine(config(blocks=24, bs=4, budget=24, seqs=4, length=60))
    for _ in range(2 * STRETCH_STEPS + 100):
        stage.add([1, 2, 3], 12)
    stage.step(4 * STRETCH_STEPS)
    history = history_of(stage.traces)
    assert num_stretches(history) == 2
    for step in (0, 150, 299, 398):
        check_at(history, step, {step: state(view_of(stage.traces[: step + 1]))})
    assert num_stretches(history_of(stage.traces, max_steps=100)) > 2, "but never so few that steps are lost"


def test_who_only_waits_is_not_copied() -> None:
    """Ten thousand in the queue cost a state no more than their names."""
    history = history_of(scenario("queue"))
    before = dict(history.live.requests)
    copied = history.live.copy()
    assert all(copied.requests[request_id] is request for request_id, request in before.items())


# Finding steps.


@pytest.mark.parametrize("max_steps", [30, 10_000])
def test_next_and_previous_preemption(max_steps: int) -> None:
    history = history_of(long_run(), max_steps)
    kept = kept_steps(history)
    preempting = [trace.step for trace in long_run() if trace.preemptions and trace.step in kept]
    assert preempting
    for step in (kept[0] - 1, *kept, kept[-1] + 1):
        after = next((found for found in preempting if found > step), None)
        before = next((found for found in reversed(preempting) if found < step), None)
        assert history.next_step(step, lambda bar: bar.num_preemptions) == after
        assert history.previous_step(step, lambda bar: bar.num_preemptions) == before


def test_any_condition_will_do() -> None:
    history = history_of(long_run())
    prefills = [trace.step for trace in long_run() if trace.num_tokens_of("prefill")]
    assert history.next_step(-1, lambda bar: bar.prefill) == prefills[0]
    assert history.previous_step(10_000, lambda bar: bar.prefill) == prefills[-1]
    assert history.next_step(-1, lambda bar: bar.total > 10**6) is None


# The cursor.


@pytest.fixture
def cursor() -> Cursor:
    return Cursor(history_of(scenario("preempting")))


def shown(cursor: Cursor) -> int:
    assert cursor.view.trace is not None
    return cursor.view.trace.step


LAST = len(scenario("preempting")) - 1


@pytest.mark.parametrize(
    ("moves", "step"),
    [
        ((), LAST),
        ((1,), LAST),
        ((-1,), LAST - 1),
        ((-1, 1), LAST),
        ((-1, -1, 1), LAST - 1),
        ((-10, 3), LAST - 7),
        ((-10_000,), 0),
        ((-10_000, -1), 0),
        ((-10_000, 1), 1),
        ((-10_000, 10_000), LAST),
    ],
)
def test_the_cursor_moves_within_what_there_is(cursor: Cursor, moves: tuple[int, ...], step: int) -> None:
    for by in moves:
        cursor.move(by)
    assert shown(cursor) == step
    assert cursor.steps_back == LAST - step
    assert cursor.step == (step if step < LAST else None)
    assert cursor.is_live == (step == LAST)


def test_a_cursor_on_the_only_step_stays_with_the_newest() -> None:
    traces = scenario("preempting")
    for move in (Cursor.first, lambda cursor: cursor.move(-1), lambda cursor: cursor.go_to(-5)):
        history = history_of(traces[:1])
        cursor = Cursor(history)
        move(cursor)
        assert cursor.is_live and cursor.step is None
        history.apply(traces[1])
        assert shown(cursor) == 1


def test_a_cursor_without_steps_goes_nowhere() -> None:
    cursor = Cursor(History())
    cursor.move(-1)
    cursor.first()
    cursor.go_to(7)
    cursor.hold()
    assert not cursor.seek(-1, lambda bar: True, newest=True) and not cursor.seek(1, lambda bar: True)
    assert cursor.is_live and cursor.steps_back == 0 and cursor.view.trace is None


def test_the_cursor_stays_while_steps_come_and_moves_on_when_its_step_goes() -> None:
    traces = long_run()
    history = history_of(traces[:60], 50)
    cursor = Cursor(history)
    cursor.go_to(30)
    for trace in traces[60:]:
        history.apply(trace)
        first = kept_steps(history)[0]
        assert cursor.step == shown(cursor) == max(30, first)
        assert cursor.steps_back == trace.step - max(30, first)


def test_the_cursor_finds_preemptions_in_both_directions(cursor: Cursor) -> None:
    preempting = [trace.step for trace in scenario("preempting") if trace.preemptions]
    assert preempting and preempting[-1] < LAST
    found = []
    while cursor.seek(-1, lambda bar: bar.num_preemptions):
        found.append(shown(cursor))
    assert found == preempting[::-1]
    cursor.first()
    found = []
    while cursor.seek(1, lambda bar: bar.num_preemptions):
        found.append(shown(cursor))
    assert found == preempting
    assert shown(cursor) == preempting[-1], "nothing was found, so it has not moved"


def test_what_is_held_stays() -> None:
    traces = scenario("preempting")
    history = history_of(traces[:9])
    cursor = Cursor(history)
    cursor.hold()
    assert (shown(cursor), cursor.step, cursor.is_live) == (8, None, False)
    for trace in traces[9:12]:
        history.apply(trace)
    assert (shown(cursor), cursor.step, cursor.steps_back) == (8, 8, 3)
    cursor.move(1)
    cursor.hold()
    assert (shown(cursor), cursor.step) == (9, 9)
    cursor.move(2)
    assert cursor.is_live


@pytest.mark.parametrize("newest", [True, False])
def test_the_newest_step_counts_if_asked_for_and_is_held(newest: bool) -> None:
    traces = scenario("preempting")
    preempting = [trace.step for trace in traces if trace.preemptions][-1]
    history = history_of(traces[: preempting + 1])
    cursor = Cursor(history)
    assert cursor.seek(-1, lambda bar: bar.num_preemptions and bar.step == preempting, newest=newest) == newest
    assert shown(cursor) == preempting and (cursor.step, cursor.steps_back) == (None, 0)
    assert cursor.is_live != newest
    history.apply(traces[preempting + 1])
    assert shown(cursor) == (preempting if newest else preempting + 1)
    if newest:
        assert cursor.steps_back == 1
        assert not cursor.seek(-1, lambda bar: bar.step == preempting, newest=True), "only where it is the newest"
        cursor.live()
        assert shown(cursor) == preempting + 1 and cursor.is_live
