"""Stage: plays scenes without a screen, one after another on one engine, as fast as it goes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

from msgspec.structs import replace

from app import protocol
from app.player import Part
from app.protocol import EngineOptions, Ready
from app.recording import RecordingError
from app.run import Run
from app.session import Session, Start
from engine.progress import ModelError, Progress, Report
from engine.trace import StepTrace

PATIENCE = 0.5
"""Seconds between two looks at an engine that says nothing."""
HISTORY_STEPS = 100
"""Nobody goes back here."""
Watch = Callable[[Part, StepTrace], object]


def play_all(
    options: EngineOptions,
    title: str,
    parts: Sequence[Part],
    num_runs: int,
    report: Report,
    start: Start,
    watch: Watch | None = None,
) -> dict[str, Run]:
    """Play each part `num_runs` times, in turns, so that whatever the machine does meanwhile is done to all of them.

    `title` is the preset's, and `watch` sees every step of the first time. Raises ModelError with what the engine said
    at its end, and RecordingError if a recording of it failed.
    """
    session = Session(options, start, HISTORY_STEPS)
    runs: dict[str, Run] = {}
    try:
        for turn in range(num_runs):
            for part in parts:
                report(Progress(f"{part.name}: run {turn + 1} of {num_runs}" if num_runs > 1 else part.name))
                run = _play(session, title, part, report, watch if turn == 0 else None)
                if turn:
                    runs[part.name].repeats.append(run)
                else:
                    runs[part.name] = run
    finally:
        session.close()
    return runs


def perform(
    options: EngineOptions, title: str, part: Part, report: Report, start: Start
) -> tuple[Ready, list[StepTrace]]:
    """Play one part; returns what ran it, and all its steps. Raises what `play_all` does."""
    session = Session(options, start, HISTORY_STEPS)
    traces: list[StepTrace] = []
    try:
        _play(session, title, part, report, lambda _, trace: traces.append(trace))
    finally:
        session.close()
    assert session.ready is not None
    return replace(session.ready, run=0), traces


def _play(session: Session, title: str, part: Part, report: Report, watch: Watch | None) -> Run:
    run = Run(part.name)
    session.begin(part.config, part.cues, run, title)
    while not session.script_ended:
        for event in _events(session):
            is_ours = session.is_heard(event)
            session.take(event)
            match event:
                case protocol.Loading(what, done, total):
                    report(Progress(what, done, total))
                case protocol.Stepped(trace) if is_ours and watch:
                    watch(part, trace)
                case protocol.Notice(text):
                    raise RecordingError(text)
                case protocol.PaceSet(paused=True):
                    session.set_paused(False)  # a pause is for those who watch
        if session.failed:
            raise ModelError(session.failed.error)
    return run


def _events(session: Session) -> Iterator[protocol.Event]:
    """What the engine has said; waits for something."""
    news = threading.Event()
    session.source.when_news(news.set)
    news.wait(PATIENCE)
    yield from session.source.drain()
