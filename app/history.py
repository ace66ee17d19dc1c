"""History: every step of the last while, any of which can be shown again.

It is kept as stretches of steps, each with the state after its first step and the traces of the others. A step is shown
by taking the state of its stretch and applying the traces up to it.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, takewhile

import msgspec

from app.view import EngineView, EventView, StepBar
from engine.config import EngineConfig
from engine.trace import StepTrace, pack, unpack

MAX_STEPS = 10_000
STRETCH_STEPS = 100
REQUESTS_PER_STEP = 100
"""With more requests than a hundred for each step of a stretch, stretches are longer: each state names them all."""
MIN_STRETCHES = 10
"""So many fit into a full history, however short it is: what comes before the oldest of them cannot be shown."""


class _Stretch:
    """Steps that follow each other."""

    def __init__(self, state: EngineView) -> None:
        """`state` is the one after its first step, so far the only one."""
        assert state.trace is not None
        self.first = state.trace.step
        self.state = state
        self._traces: list[bytes] = []
        self._packed: bytes | None = None

    def __len__(self) -> int:
        return 1 + len(self._traces)

    def append(self, trace: StepTrace) -> None:
        """Take in the step after the last."""
        self._traces.append(pack(trace))

    def close(self) -> None:
        """No more steps will come. Neighbours are much alike and take a tenth of the room together.

        And thousands of small pieces, each of another size, leave gaps in memory when they go that no other fits into.
        """
        self._packed = zlib.compress(_pack_all(self._traces), level=1)
        self._traces = []

    def traces(self, after: int, until: int) -> Iterator[StepTrace]:
        """The traces of the steps behind `after`, up to and with `until`."""
        traces = _unpack_all(zlib.decompress(self._packed)) if self._packed is not None else self._traces
        return map(unpack, traces[after - self.first : until - self.first])

    def all(self) -> Iterator[StepTrace]:
        """The traces of the steps that are in it now, whatever comes."""
        assert self.state.trace is not None
        return _all_traces(self.state.trace, self._packed, tuple(self._traces))


_pack_all = msgspec.msgpack.Encoder().encode
_unpack_all = msgspec.msgpack.Decoder(list[bytes]).decode


def _all_traces(first: StepTrace, packed: bytes | None, traces: Iterable[bytes]) -> Iterator[StepTrace]:
    yield first
    yield from map(unpack, traces if packed is None else _unpack_all(zlib.decompress(packed)))


class History:
    """The last `max_steps` steps, or nine tenths of them at least. `live` is the state after the newest."""

    def __init__(self, max_steps: int = MAX_STEPS, config: EngineConfig | None = None) -> None:
        """`config` is what the engine was started with."""
        self._max_steps = max_steps
        self.live = EngineView(config)
        self.bars: deque[StepBar] = deque(maxlen=max_steps)
        """Every step that can be shown, as the timeline draws it."""
        self.events: deque[EventView] = deque()
        """What happened in these steps, oldest first."""
        self._stretches: deque[_Stretch] = deque()
        """Oldest first."""
        self._shown: EngineView | None = None
        """The past state that was asked for last: the next is often the one after it."""

    @property
    def last_step(self) -> int | None:
        return self.live.trace.step if self.live.trace else None

    @property
    def first_step(self) -> int | None:
        """The oldest step that can still be shown."""
        return self._stretches[0].first if self._stretches else None

    def apply(self, trace: StepTrace) -> None:
        """Take in the next step."""
        self.live.apply(trace)
        self.bars.append(self.live.bars[-1])
        latest = takewhile(lambda event: event.step == trace.step, reversed(self.live.events))
        self.events.extend(reversed(list(latest)))
        newest = self._stretches[-1] if self._stretches else None
        if newest and len(newest) < self._stretch_steps():
            newest.append(trace)
        else:
            if newest:
                newest.close()
            self._stretches.append(_Stretch(self.live.copy()))
        while self._stretches[0].first <= trace.step - self._max_steps:
            self._stretches.popleft()
        while self.bars[0].step < self._stretches[0].first:
            self.bars.popleft()
        while self.events and self.events[0].step < self.bars[0].step:
            self.events.popleft()

    def _stretch_steps(self) -> int:
        steps = max(STRETCH_STEPS, len(self.live.requests) // REQUESTS_PER_STEP)
        return max(1, min(steps, self._max_steps // MIN_STRETCHES))

    def at(self, step: int) -> EngineView:
        """The state after a step between `first_step` and `last_step`; valid until the next call, and only to read."""
        first, last = self.first_step, self.last_step
        assert first is not None and last is not None and first <= step <= last, f"step {step} is not kept"
        if step == last:
            return self.live
        stretch = self._stretches[bisect_right(self._stretches, step, key=lambda stretch: stretch.first) - 1]
        view = self._shown
        if view is None or view.trace is None or not stretch.first <= view.trace.step <= step:
            view = stretch.state.copy()
        assert view.trace is not None
        for trace in stretch.traces(view.trace.step, step):
            view.apply(trace)
        self._shown = view
        return view

    def traces(self) -> Iterator[StepTrace]:
        """The traces of all steps that can be shown, oldest first: those of the moment of this call.

        They can be read while others are taken in, and in another thread.
        """
        return chain.from_iterable([stretch.all() for stretch in self._stretches])

    def next_step(self, step: int, condition: Callable[[StepBar], object]) -> int | None:
        """The first step after this one whose bar satisfies the condition."""
        return self._find((bar for bar in self.bars if bar.step > step), condition)

    def previous_step(self, step: int, condition: Callable[[StepBar], object]) -> int | None:
        """The last step before this one whose bar satisfies the condition."""
        return self._find((bar for bar in reversed(self.bars) if bar.step < step), condition)

    @staticmethod
    def _find(bars: Iterable[StepBar], condition: Callable[[StepBar], object]) -> int | None:
        return next((bar.step for bar in bars if condition(bar)), None)
