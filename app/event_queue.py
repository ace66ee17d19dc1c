"""EventQueue: events from the thread that hears them to the one that draws."""

from __future__ import annotations

import queue
from collections.abc import Callable
from contextlib import suppress

from app.protocol import Event


class EventQueue:
    """Events in their order, and a call for whoever waits for the next one."""

    def __init__(self) -> None:
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._news: Callable[[], object] | None = None

    def put(self, event: Event) -> None:
        self._events.put(event)
        self._tell()

    def drain(self) -> list[Event]:
        """All events since the last call, in order."""
        events = []
        with suppress(queue.Empty):
            while True:
                events.append(self._events.get_nowait())
        return events

    def when_news(self, call: Callable[[], object]) -> None:
        """Call this as soon as there is something to drain: once, and from any thread."""
        self._news = call
        if not self._events.empty():
            self._tell()

    def _tell(self) -> None:
        call, self._news = self._news, None
        if call:
            with suppress(RuntimeError):  # the event loop has ended
                call()
