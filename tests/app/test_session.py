"""Session: one engine as the app knows it, without a screen."""

from __future__ import annotations

from app import protocol
from app.inject import LOADS
from app.parameters import Changes
from app.protocol import AddRequest, EngineOptions, Failed, SetPaused, Stepped
from app.session import Session
from engine.config import EngineConfig
from tests.app.support import READY, ScriptedEngine, ScriptedSource

OPTIONS = EngineOptions("tiny", "auto", "cpu", 1, EngineConfig())
FASTEST = len(LOADS)
TICK = 0.05


class Desk:
    """A session, and the scripted sources that it has started."""

    def __init__(self) -> None:
        self.sources: list[ScriptedSource] = []
        self.session = Session(OPTIONS, self._start, history_steps=1000)

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
