"""A long run: what is kept stays as large as it is, nothing leaks, and the history is right at both of its ends."""

from __future__ import annotations

import pickle
import random
from functools import cache

import pytest

from app import view
from app.history import History
from app.inject import Load
from app.view import EngineView
from engine.trace import pack
from tests.app.support import STEP_SECONDS, ScriptedEngine, sentence, view_of
from tests.engine.support import config

NUM_STEPS = 4_000
KEPT = 1_000
"""Steps of history."""
REQUESTS_PER_SECOND = 5.0
"""More than are served at times, and fewer at others."""


@cache
def long_run() -> ScriptedEngine:
    """Random arrivals at a pool that is too small for them, until all are served."""
    stage = ScriptedEngine(config(blocks=40, bs=8, budget=64, seqs=6, length=280))
    load, chance = Load(seed=4), random.Random(4)
    load.rate = REQUESTS_PER_SECOND
    while len(stage.traces) < NUM_STEPS:
        for kind in load.due(STEP_SECONDS * len(stage.traces)):
            length = chance.randint(100, 200) if kind == "long" else chance.randint(10, 60)
            stage.add(sentence(length), chance.randint(4, 40), kind)
        if stage.engine.has_news:
            stage.step()
        else:
            stage.add("hello", 4)
    stage.run_to_end()
    return stage


def kept(history: History) -> int:
    """Bytes of everything that a history holds on to."""
    return len(pickle.dumps(history))


def state(seen: EngineView) -> dict[str, object]:
    """All that a view says, without what it remembers about its own copies."""
    return {name: value for name, value in vars(seen).items() if name != "_own"}


def test_the_run_is_what_it_should_be() -> None:
    seen = view_of(long_run().traces)
    assert seen.num_finished > 500 and seen.num_preemptions > 50
    assert any(trace.num_waiting > 5 for trace in long_run().traces)


def test_what_is_kept_does_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "MAX_SAMPLES", 100)  # full of latencies before the history is full of steps
    history = History(KEPT)
    sizes = []
    for number, trace in enumerate(long_run().traces, 1):
        history.apply(trace)
        if number % 250 == 0:
            sizes.append(kept(history))
            assert history.first_step is not None and history.last_step is not None
            assert history.last_step - history.first_step <= KEPT
            assert len(history.bars) <= KEPT
    full = sizes[KEPT // 250 : 2 * KEPT // 250]
    assert sizes[1] < 0.8 * min(full), "it grows until it is full"
    assert max(sizes) < 1.25 * max(full), "and then no more, but for a queue that is longer or shorter"


def test_a_full_history_takes_less_than_its_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    """States and all: traces of neighbouring steps are packed together."""
    monkeypatch.setattr(view, "MAX_SAMPLES", 100)
    traces = long_run().traces[: 2 * KEPT]
    history = History(KEPT)
    for trace in traces:
        history.apply(trace)
    assert kept(history) < 0.8 * sum(len(pack(trace)) for trace in traces[KEPT:])


def test_what_a_view_names_is_bounded() -> None:
    seen = EngineView()
    for trace in long_run().traces:
        seen.apply(trace)
        assert len(seen.requests) <= len(trace.running) + trace.num_waiting + len(seen.finished)
    assert len(seen.requests) == len(seen.finished) < 100
    assert not seen.tables and not seen.holders


def test_no_block_is_leaked() -> None:
    last = long_run().traces[-1]
    assert last.num_free_blocks == last.config.num_usable_blocks


def test_both_ends_of_the_history_are_what_the_traces_say() -> None:
    traces = long_run().traces
    history = History(KEPT)
    for trace in traces:
        history.apply(trace)
    first, last = history.first_step, history.last_step
    assert first is not None and last is not None and last == traces[-1].step
    assert first > traces[0].step, "the beginning has been forgotten"
    assert state(history.at(first)) == state(view_of(traces[: first - traces[0].step + 1]))
    assert state(history.at(last)) == state(view_of(traces))
    assert state(history.at(first)) == state(view_of(traces[: first - traces[0].step + 1])), "and there again"
