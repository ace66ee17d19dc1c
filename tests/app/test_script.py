"""Script: cues come when they are due, in their order, and each of them once."""

from __future__ import annotations

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from app.protocol import Cue, Note
from app.script import Script
from tests.app.support import repeatable


def at_step(step: int, text: str = "") -> Cue:
    return Cue(Note(text), step=step)


def at_second(second: float, text: str = "") -> Cue:
    return Cue(Note(text), second=second)


def due(script: Script, step: int, second: float = 0.0, *, idle: bool = False) -> list[Cue]:
    """All that are due now; the first of them may make the engine busy."""
    found: list[Cue] = []
    while cue := script.next_due(step, second, idle=idle and not found):
        found.append(cue)
    return found


def test_cues_come_before_their_step_and_at_their_second() -> None:
    first, second, third = at_step(0), at_step(3), at_second(1.5)
    script = Script([second, third, first])
    assert due(script, 0, 0.0) == [first]
    assert due(script, 1, 1.49) == due(script, 2, 1.49) == []
    assert script.seconds_until_next(1.0) == 0.5 and script.seconds_until_next(9.0) == 0.0
    assert due(script, 2, 1.5) == [third]
    assert script.seconds_until_next(2.0) == inf
    overs = [script.is_over]
    assert due(script, 3, 2.0) == [second]
    assert [*overs, script.is_over] == [False, True]
    assert due(script, 100, 100.0, idle=True) == []


def test_a_script_of_nothing_is_over() -> None:
    assert Script().is_over and due(Script(), 0, idle=True) == [] and Script().seconds_until_next(0.0) == inf


def test_an_idle_engine_gets_all_of_the_next_step_at_once_and_no_more() -> None:
    cues = [at_step(5, "a"), at_step(9, "c"), at_step(5, "b")]
    script = Script(cues)
    assert due(script, 1) == []
    assert due(script, 1, idle=True) == [cues[0], cues[2]], "with the first of them it is no longer idle"
    assert due(script, 2) == []
    assert due(script, 2, idle=True) == [cues[1]]


def test_an_idle_engine_waits_for_a_second() -> None:
    script = Script([at_second(2.0)])
    assert due(script, 0, 1.0, idle=True) == []
    assert len(due(script, 0, 2.0, idle=True)) == 1


CUES = st.lists(st.one_of(st.integers(0, 6).map(at_step), st.integers(0, 6).map(lambda n: at_second(n / 2))))


@repeatable
@given(CUES, st.lists(st.booleans(), max_size=20))
def test_every_cue_comes_once_in_order_and_never_too_early(unnamed: list[Cue], idle: list[bool]) -> None:
    cues = [Cue(Note(str(number)), cue.step, cue.second) for number, cue in enumerate(unnamed)]
    script = Script(cues)
    found: list[Cue] = []
    for step, is_idle in enumerate(idle):
        second = step / 3
        now = due(script, step, second, idle=is_idle)
        for cue in now:
            assert is_idle or cue.step is None or cue.step <= step or cue.step <= max(f.step or 0 for f in found)
            assert cue.second is None or cue.second <= second
        found += now
        left = [cue for cue in cues if cue not in found]
        assert script.is_over == (not left)
        assert all(cue.step is None or cue.step > step for cue in left)
        assert all(cue.second is None or cue.second > second for cue in left)
    found += due(script, 100, 100.0)
    assert script.is_over and sorted(found, key=cues.index) == cues
    for kind in ("step", "second"):
        of_kind = [cue for cue in found if getattr(cue, kind) is not None]
        expected = [cue for cue in cues if getattr(cue, kind) is not None]
        assert of_kind == sorted(expected, key=lambda cue: getattr(cue, kind))
