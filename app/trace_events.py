"""Trace events: a file in the format of that name, which ui.perfetto.dev and chrome://tracing open.

It has groups of tracks (the format calls them processes and threads), spans and moments on tracks, and counters. Times
are whole microseconds: readers of the format do not agree on what becomes of fractions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import msgspec

Args = dict[str, Any]
MOMENT_DEPTH = 9
"""Deeper than any span: what is a moment at the start of a span belongs into it."""


class Track(NamedTuple):
    """Where something stands: process and thread of the format."""

    group: int
    number: int


class Event(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One event under the format's names: X has a duration, i is a moment, C a counter's value, M a track's name."""

    name: str
    ph: Literal["X", "i", "C", "M"]
    pid: int
    tid: int
    ts: int
    dur: int | None = None
    cat: str = ""
    s: str = ""
    """How far a moment is seen: t is its track, p its group."""
    args: Args = {}


class TraceEvents:
    """The events of one file, in whatever order they are added."""

    def __init__(self) -> None:
        self._names: list[Event] = []
        self._events: list[tuple[int, int, int, Event]] = []
        self._counted: dict[str, Args] = {}

    def name_group(self, track: Track, name: str) -> None:
        """Name the group of this track; groups stand in the order of their numbers."""
        self._name("process_name", track, name=name)
        self._name("process_sort_index", track, sort_index=track.group)

    def name_track(self, track: Track, name: str) -> None:
        self._name("thread_name", track, name=name)
        self._name("thread_sort_index", track, sort_index=track.number)

    def span(self, track: Track, name: str, start: int, end: int, kind: str, args: Args, depth: int = 0) -> None:
        """Something that lasts. Of two with the same times that of smaller depth encloses the other."""
        self._add(Event(name, "X", *track, start, end - start, kind, args=args), depth)

    def moment(self, track: Track, name: str, at: int, args: Args, *, for_group: bool = False) -> None:
        """Something that happens, to what is on the track or to its whole group."""
        event = Event(name, "i", *track, at, cat="event", s="p" if for_group else "t", args=args)
        self._add(event, MOMENT_DEPTH)

    def count(self, track: Track, name: str, at: int, **values: float) -> None:
        """Give a counter another value; it keeps it until the next call. Calls come in the order of time."""
        if self._counted.get(name) != values:
            self._counted[name] = values
            self._add(Event(name, "C", *track, at, args=values), MOMENT_DEPTH)

    def written(self, about: Args) -> Iterator[bytes]:
        """The file in pieces, an event a line, by time. `about` are words and numbers that go with it."""
        head = msgspec.json.encode({"displayTimeUnit": "ms", "otherData": about})
        yield head[:-1] + b',"traceEvents":[\n'
        self._events.sort(key=lambda entry: entry[:3])
        separator = b""
        for event in (*self._names, *(entry[3] for entry in self._events)):
            yield separator + msgspec.json.encode(event)
            separator = b",\n"
        yield b"\n]}\n"

    def _add(self, event: Event, depth: int) -> None:
        # Readers want what encloses something before it.
        self._events.append((event.ts, -(event.dur or 0), depth, event))

    def _name(self, what: str, track: Track, **args: str | int) -> None:
        self._names.append(Event(what, "M", *track, 0, args=args))
