"""Replay: a recording in the place of an engine. It says what the engine said, at the pace at which it said it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from app import protocol
from app.protocol import Command, Event
from app.recording import Recording
from app.session import NO_ENGINE
from engine.trace import StepTrace

LONGEST_GAP = 2.0
"""Seconds between two steps that are waited for at most: nothing happened in a longer one."""


class Replay:
    """Takes the commands of a dashboard, as an engine's process does, but only those about the pace are obeyed.

    With `start` everything up to that step is there at once, and it stands there until somebody lets it go on.
    Without a limit of steps a second it goes as fast as the engine went.
    """

    def __init__(
        self, recording: Recording, start: int | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._traces: Sequence[StepTrace] = recording.traces
        self._next = 0 if start is None else max(0, min(start + 1, len(self._traces)))
        self._paused = start is not None
        self._steps_per_second = 0.0
        self._due_at = clock()
        """When the next step is due, unless it is paused."""
        self._events: list[Event] = [recording.engine, *map(protocol.Stepped, self._traces[: self._next])]
        if self._paused or self._next == len(self._traces):
            self._pause()
        if recording.damage:
            self._events.append(protocol.Notice(recording.damage))
        self._timer: threading.Timer | None = None
        self._news: Callable[[], object] | None = None

    def send(self, message: Command) -> None:
        match message:
            case protocol.AddRequest(request_id) | protocol.Abort(request_id):
                self._events.append(protocol.Refused(request_id, NO_ENGINE))
            case protocol.Reconfigure():
                self._events.append(protocol.ReconfigureRefused(NO_ENGINE))
            case protocol.SetPaused(paused):
                self._paused = paused
                self._due_at = self._clock()
                self._answer()
            case protocol.StepOnce():
                if self._paused and self._next < len(self._traces):
                    self._play_next()
                self._answer()
            case protocol.SetSpeed(steps_per_second):
                self._steps_per_second = steps_per_second
                self._due_at = self._clock()
                self._answer()
        self._tell()

    def drain(self) -> list[Event]:
        """What has been said since the last call."""
        while self._seconds_to_wait() == 0:
            self._due_at += self._gap()
            self._play_next()
        events, self._events = self._events, []
        return events

    def when_news(self, call: Callable[[], object]) -> None:
        """Call this, once and from any thread, as soon as there is something to drain."""
        self._news = call
        seconds = 0 if self._events else self._seconds_to_wait()
        self._cancel()
        if seconds is not None:
            self._timer = threading.Timer(seconds, self._tell)
            self._timer.daemon = True
            self._timer.start()

    def close(self) -> None:
        self._cancel()
        self._news = None

    def _seconds_to_wait(self) -> float | None:
        """Until the next step is due; None if none is."""
        if self._paused or self._next == len(self._traces):
            return None
        return max(0.0, self._due_at - self._clock())

    def _gap(self) -> float:
        """Seconds between the next step and the one behind it."""
        if self._steps_per_second:
            return 1 / self._steps_per_second
        if self._next + 1 == len(self._traces):
            return 0.0
        now, following = self._traces[self._next : self._next + 2]
        return max(0.0, min(LONGEST_GAP, following.started - now.started))

    def _play_next(self) -> None:
        self._events.append(protocol.Stepped(self._traces[self._next]))
        self._next += 1
        if self._next == len(self._traces):
            self._pause()

    def _pause(self) -> None:
        self._paused = True
        self._answer()

    def _answer(self) -> None:
        self._events.append(protocol.PaceSet(self._paused, self._steps_per_second))

    def _tell(self) -> None:
        call, self._news = self._news, None
        if call:
            with suppress(RuntimeError):  # the event loop has ended
                call()

    def _cancel(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
