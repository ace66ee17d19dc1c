"""Session: one engine as the app knows it, without a screen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec
import pytest

from app import protocol
from app.inject import LOADS, Draft
from app.parameters import Changes
from app.protocol import AddRequest, Begin, Cue, EngineOptions, Event, Failed, Note, Reconfigure, SetPaused, Stepped
from app.run import Run
from app.session import Session
from engine.config import EngineConfig
from engine.request import SamplingParams
from tests.app.preset_support import events_of
from tests.app.support import READY, ScriptedEngine, ScriptedSource

OPTIONS = EngineOptions("tiny", "auto", "cpu", 1, EngineConfig())
FASTEST = len(LOADS)
TICK = 0.05


class Desk:
    """A session, and the scripted sources that it has started."""

    def __init__(self, history_steps: int = 1000) -> None:
        self.sources: list[ScriptedSource] = []
        self.session = Session(OPTIONS, self._start, history_steps)

    def _start(self, options: EngineOptions) -> ScriptedSource:
        self.sources.append(ScriptedSource(options))
        return self.sources[-1]

    def num_arrivals(self, begin: float, end: float) -> int:
        """What the load sends, looked at in every tick of that time."""
        num_ticks = round((end - begin) / TICK)
        for tick in range(num_ticks + 1):
            self.session.send_load(begin + tick * TICK)
        return sum(isinstance(command, AddRequest) for command in self.sources[-1].take_sent())


def test_the_load_stands_still_while_nothing_can_be_served() -> None:
    """Neither a model that loads, nor a pause in which nobody looks at the load, brings a flood behind it."""
    desk = Desk()
    desk.session.load.change(FASTEST)
    assert desk.num_arrivals(0, 10) == 0
    desk.session.take(READY)
    assert desk.num_arrivals(10, 10) == 0
    assert 50 < desk.num_arrivals(10, 12) < 150, "50 a second"
    desk.session.set_paused(True)
    assert desk.num_arrivals(12, 12.1) == 0
    desk.session.set_paused(False)
    assert desk.num_arrivals(100, 100) == 0


def test_what_a_dead_engine_was_asked_for_is_no_parameter_of_the_next() -> None:
    desk = Desk()
    changes: Changes = {"max_num_seqs": 4}
    desk.session.reconfigure(changes)
    desk.session.take(Failed("gone"))
    assert desk.session.parameters.asked("max_num_seqs") is None and not desk.session.parameters.has_asked
    desk.session.restart()
    assert desk.sources[-1].options.config == EngineConfig()


def test_a_change_before_the_first_step_is_told_as_well() -> None:
    desk = Desk()
    stage = ScriptedEngine(EngineConfig())
    stage.engine.reconfigure(max_num_batched_tokens=256)
    stage.add()
    desk.session.take(READY)
    desk.session.take(protocol.Reconfigured(stage.engine.config))
    desk.session.take(Stepped(stage.step()))
    changes = [event.change for event in desk.session.history.events if event.kind == "changed"]
    assert [(change.name, change.old, change.new) for change in changes if change] == [
        ("max_num_batched_tokens", 128, 256)
    ]
    assert desk.session.history.bars[0].num_changes == 1


def test_another_engine_goes_on_at_the_same_pace_with_the_same_parameters() -> None:
    desk = Desk()
    desk.session.take(READY)
    desk.session.take(protocol.Reconfigured(EngineConfig(max_num_seqs=3)))
    desk.session.set_paused(True)
    desk.session.set_speed(5.0)
    desk.session.take(Failed("gone"))
    desk.session.restart()
    assert desk.sources[0].closed and desk.sources[1].options.config.max_num_seqs == 3
    assert desk.sources[1].sent == [SetPaused(True), protocol.SetSpeed(5.0)]
    assert desk.session.was_ready and desk.session.ready is None


def test_an_old_answer_does_not_undo_a_newer_key() -> None:
    desk = Desk()
    desk.session.take(READY)
    for paused in (True, False, True):
        desk.session.set_paused(paused)
    for paused in (True, False):
        desk.session.take(protocol.PaceSet(paused, 0.0))
        assert desk.session.paused
    desk.session.take(protocol.PaceSet(True, 0.0))
    assert desk.session.paused


# Runs that begin anew.

DRAFT = Draft("What is rain?", "short", SamplingParams(max_tokens=4))


def asked(request_id: str, prompt: str = "hello", max_tokens: int = 5) -> AddRequest:
    return AddRequest(request_id, prompt, "short", SamplingParams(max_tokens=max_tokens))


CUES = (
    Cue(asked("1"), step=0),
    Cue(asked("2", "x" * 2000), step=1),
    Cue(Note("Look."), step=1),
    Cue(asked("3", "bye", 30), step=2),
    Cue(Reconfigure({"max_num_seqs": 3}), step=2),
    Cue(asked("4", max_tokens=2), step=3),
)
"""The second is refused: it is too long."""


def ready(run: int) -> protocol.Ready:
    return msgspec.structs.replace(READY, run=run)


def take_all(session: Session, events: Iterable[Event]) -> None:
    for event in events:
        session.take(event)


def played(desk: Desk, cues: Sequence[Cue] = CUES) -> Run:
    """A run of this script, to its end."""
    run = Run("run")
    desk.session.begin(OPTIONS.config, cues, run)
    begun = desk.sources[-1].take_sent()[-1]
    assert isinstance(begun, Begin)
    take_all(desk.session, events_of(begun.config, begun.cues, begun.run))
    assert desk.session.script_ended
    return run


def test_a_begin_says_what_is_to_be_run() -> None:
    desk = Desk()
    config = EngineConfig(max_num_seqs=3)
    for number in (1, 2):
        desk.session.begin(config, CUES, Run("run"))
        assert desk.sources[-1].take_sent() == [Begin(number, config, CUES)]
        assert desk.session.config == config
    assert len(desk.sources) == 1, "around the same model"


def test_nothing_that_an_old_run_still_says_is_taken_for_the_new_one() -> None:
    desk = Desk()
    session = desk.session
    take_all(session, [ready(0)])
    stage = ScriptedEngine(EngineConfig())
    stage.add()
    first_step = Stepped(stage.step())
    old: list[Event] = [
        protocol.Accepted("1", 5),
        protocol.Refused("1", "too long"),
        protocol.Reconfigured(EngineConfig(max_num_seqs=9)),
        protocol.ReconfigureRefused("no"),
        protocol.ScriptEnded(),
        first_step,
    ]
    run = Run("run")
    session.begin(EngineConfig(), CUES, run)
    session.inject([DRAFT])
    for late in ([], [ready(0)]):  # the first Ready may come only now, if the model was being loaded
        for event in [*late, *old]:
            assert session.is_heard(event) == isinstance(event, protocol.Ready)
            session.take(event)
    assert session.history.last_step is None and not run.steps and not run.refused and not session.script_ended
    assert session.config == EngineConfig() and list(session.pending) == ["5"] and not session.parameters.message
    for event in (protocol.PaceSet(True, 2.0), protocol.Notice("x"), protocol.Loading("x"), ready(1)):
        assert session.is_heard(event)
        session.take(event)
    assert session.paused and session.speed == 2.0 and session.ready == ready(1)
    assert session.is_heard(first_step)
    session.take(first_step)
    assert len(run.steps) == 1


def test_of_two_runs_that_begin_at_once_only_the_second_is_heard() -> None:
    desk = Desk()
    first, second = Run("first"), Run("second")
    for run in (first, second):
        desk.session.begin(EngineConfig(), CUES, run)
    take_all(desk.session, events_of(EngineConfig(), CUES, 1))
    assert not first.steps and not second.steps and not desk.session.script_ended and desk.session.ready is None
    take_all(desk.session, events_of(EngineConfig(), CUES, 2))
    assert second.steps and not first.steps and desk.session.script_ended


def test_a_run_is_kept_up_to_the_end_of_its_script() -> None:
    desk = Desk()
    run = played(desk)
    assert [row.view.request_id for row in run.requests] == ["1", "3", "4"] and len(run.refused) == 1
    count = len(run.steps)
    stage = ScriptedEngine(EngineConfig())
    stage.step(count)
    desk.session.take(Stepped(stage.step()))
    assert len(run.steps) == count and desk.session.history.live.trace is not None


def test_what_a_person_sends_into_a_script_has_an_id_of_its_own() -> None:
    desk = Desk()
    desk.session.begin(EngineConfig(), CUES, Run("run"))
    desk.session.inject([DRAFT, DRAFT])
    assert [c.request_id for c in desk.sources[-1].take_sent() if isinstance(c, AddRequest)] == ["5", "6"]
    gaps = [Cue(asked("9"), step=0), Cue(asked("3"), step=1)]  # as of a run in which others were refused
    desk.session.begin(EngineConfig(), gaps, Run("run"))
    desk.session.inject([DRAFT])
    assert [c.request_id for c in desk.sources[-1].take_sent() if isinstance(c, AddRequest)] == ["10"]
    desk.session.begin(EngineConfig(), (), Run("run"))
    desk.session.inject([DRAFT])
    assert [c.request_id for c in desk.sources[-1].take_sent() if isinstance(c, AddRequest)] == ["1"]


def test_a_run_as_a_script_is_the_same_requests_at_the_same_steps() -> None:
    desk = Desk()
    run = played(desk)
    script = desk.session.as_script()
    assert script == [cue for cue in CUES if isinstance(cue.command, AddRequest) and cue.command.request_id != "2"]
    again = played(desk, script)
    assert [(row.view.request_id, row.arrival_step) for row in again.requests] == [
        (row.view.request_id, row.arrival_step) for row in run.requests
    ]
    assert desk.session.as_script() == script


def test_what_a_person_has_sent_is_in_the_script_as_well() -> None:
    desk = Desk()
    desk.session.take(READY)
    stage = ScriptedEngine(EngineConfig())
    for steps, max_tokens in ((2, 9), (1, 4)):
        desk.session.inject([Draft("What is rain?", "short", SamplingParams(max_tokens=max_tokens))])
        stage.add(max_tokens=max_tokens)
        stage.step(steps)
    take_all(desk.session, map(Stepped, stage.traces))
    sent = [command for command in desk.sources[-1].take_sent() if isinstance(command, AddRequest)]
    assert desk.session.as_script() == [Cue(sent[0], step=0), Cue(sent[1], step=2)]


def test_a_run_whose_oldest_steps_are_gone_is_no_script() -> None:
    desk = Desk(history_steps=10)
    played(desk)
    with pytest.raises(ValueError, match="no longer kept"):
        desk.session.as_script()


def test_a_run_knows_whether_a_person_has_joined_in() -> None:
    desk = Desk()
    session = desk.session
    ways: list[Callable[[], None]] = [
        lambda: session.inject([DRAFT]),
        lambda: session.abort("1"),
        lambda: session.reconfigure({"max_num_seqs": 4}),
    ]
    for join in ways:
        session.begin(EngineConfig(), CUES, Run("run"))
        session.set_paused(True)
        session.step_once()
        session.set_speed(3.0)
        session.set_paused(False)
        before = session.was_touched
        join()
        assert (before, session.was_touched) == (False, True), "to look closely changes nothing"


def test_an_engine_that_was_started_again_knows_of_no_script() -> None:
    desk = Desk()
    desk.session.begin(EngineConfig(max_num_seqs=3), CUES, Run("run"))
    desk.session.take(Failed("gone"))
    desk.session.restart()
    assert desk.session.run is None and not desk.session.script_ended
    assert desk.sources[-1].options.config == OPTIONS.config, "it may have ended because it could not take the other"
    desk.session.take(ready(0))
    stage = ScriptedEngine(EngineConfig())
    stage.add()
    desk.session.take(Stepped(stage.step()))
    assert desk.session.view.trace is not None
