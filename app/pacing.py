"""Pacing: frames as small as they can be, and no faster than the terminal takes them.

The module that reaches deepest into Textual's internals; tests/app/test_pacing.py says which, and fails if they change.

A terminal behind a slow line takes fewer bytes than twenty frames a second have. Written nonetheless they would pile up
in front of it: every key would show its effect seconds later, and at last writing would block the event loop, keys
included. So a frame is drawn only once the terminal has got the ones before it, and shows the state at that moment.
Whether it has got them the terminal says itself, if it answers queries; else it counts when the system has taken them.
"""

from __future__ import annotations

import asyncio
import gc
import select
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import IO, Any, TypeVar

from rich.color import ColorSystem
from rich.console import Console, RenderableType
from textual._compositor import ChopsUpdate, CompositorUpdate, LayoutUpdate
from textual.app import App
from textual.driver import Driver
from textual.drivers.linux_driver import LinuxDriver
from textual.message import Message
from textual.messages import TerminalSupportsSynchronizedOutput
from textual.screen import Screen

from app.canvas import Canvas, Piece

ReturnType = TypeVar("ReturnType")

FRAMES_PER_SECOND = 20
"""Wanted of a terminal that is fast enough."""
SLOW_FRAMES_PER_SECOND = 15
"""Below this a terminal counts as slow."""
MAX_UNSEEN = 8_000
"""Characters that may be on their way to a terminal that says when it has got them: what keeps a line with a long way
busy, and what a slow one carries in the blink of an eye."""
PATIENCE = 2.0
"""Seconds without an answer after which a terminal is not waited for any more."""
LAST_PATIENCE = 0.5
"""Seconds to wait for the last answers before the program ends."""
NEW_OBJECTS = 10_000
"""After so many the youngest objects are searched for garbage: every few frames, and not several times in each."""
QUERY = "\x1b[?2026$p"
"""Textual asks the same at its start: whether the terminal can show a frame at once. It answers in the order in which
it reads, so that its answer also says that it has got all that stands before."""


class Pace:
    """Counts the characters that were drawn, those that the system has taken, and those that the terminal has got."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.answers = False
        """The terminal answers queries."""
        self._clock = clock
        self._drawn = 0
        self._taken = 0
        self._seen = 0
        self._queries: deque[int] = deque()
        """What had been drawn before each query that was not answered yet."""
        self._frame_began = 0.0
        self._frame_took = 0.0
        self._took: deque[float] = deque(maxlen=FRAMES_PER_SECOND)
        """Seconds from each of the last frames to when the next could be drawn."""

    @property
    def is_held(self) -> bool:
        """The next frame has to wait."""
        if self.answers:
            return bool(self._queries) and self._drawn - self._seen > MAX_UNSEEN
        return self._is_with_us

    @property
    def _is_with_us(self) -> bool:
        """The system has not taken everything yet."""
        return self._drawn > self._taken

    @property
    def slow(self) -> float | None:
        """Frames a second that the terminal takes, if it is slow."""
        seconds = sum(self._took)
        return len(self._took) / seconds if seconds * SLOW_FRAMES_PER_SECOND > len(self._took) else None

    def begin_frame(self) -> None:
        if self._frame_began:
            self._took.append(max(self._frame_took, 1 / FRAMES_PER_SECOND))
        self._frame_began, self._frame_took = self._clock(), 0.0

    def drew(self, num_characters: int) -> None:
        self._drawn += num_characters

    def asked(self) -> None:
        self._queries.append(self._drawn)

    def took(self, num_characters: int) -> None:
        """So many were taken by the system since the start."""
        self._taken = num_characters
        self._note()

    def answered(self) -> None:
        """The terminal has answered the oldest query."""
        self.answers = True
        if self._queries:
            self._seen = self._queries.popleft()
        self._note()

    def give_up(self) -> None:
        """It was waited for long enough, unless what it should answer has not even been sent."""
        if not self._is_with_us:
            self.answers = False
            self._note()

    def _note(self) -> None:
        if not self._frame_took and not self.is_held:
            self._frame_took = self._clock() - self._frame_began


class _Tally:
    """A file that says how many characters of all that was ever written to it have left this process."""

    def __init__(self, file: IO[str], say: Callable[[int], None]) -> None:
        self._file = file
        self._say = say
        self._num_written = 0
        self.fileno = file.fileno

    def write(self, text: str) -> None:
        with suppress(OSError):
            self._file.write(text)
        self._num_written += len(text)

    def flush(self) -> None:
        with suppress(OSError):  # the terminal is gone, which ends the program, and that must not wait for it
            self._file.flush()
        self._say(self._num_written)


class PacedDriver(LinuxDriver):
    """Textual's driver for a terminal, which knows what the terminal shows and how far behind it is."""

    pace: Pace
    canvas: Canvas

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.pace = Pace()
        self.canvas = Canvas()
        self.release: Callable[[], object] = lambda: None
        """Called when the next frame can be drawn after all."""
        assert self._file is not None
        self._file = _Tally(self._file, self._took)  # type: ignore[assignment]
        self._num_asked = 0
        self._num_answers = 0
        self._deadline: asyncio.TimerHandle | None = None
        threading.Thread(target=self._end_with_terminal, daemon=True).start()

    def _end_with_terminal(self) -> None:
        """Wait until the terminal is gone, and leave. Not everybody is sent a signal then, and Textual reads on."""
        poll = select.poll()
        poll.register(self.fileno, 0)
        if any(event & select.POLLHUP for _, event in poll.poll()):
            self._call(self._app.exit, None, 128 + signal.SIGHUP)

    def start_application_mode(self) -> None:
        self.canvas.forget()
        super().start_application_mode()  # type: ignore[no-untyped-call]

    def write(self, data: str) -> None:
        self.pace.drew(len(data))
        super().write(data)

    def end_frame(self) -> None:
        """A frame was written: ask the terminal to say when it has got it."""
        if self.pace.answers:
            self.pace.asked()
            self._num_asked += 1
            self.write(QUERY)
            if self._deadline is None and self.pace.is_held:
                self._deadline = self._loop.call_later(PATIENCE, self._give_up)

    def process_message(self, message: Message) -> None:
        if isinstance(message, TerminalSupportsSynchronizedOutput):
            self._num_answers += 1
            self._call(self._changed, self.pace.answered)
            if self._num_answers > 1:  # Textual knows already
                return
        super().process_message(message)

    def disable_input(self) -> None:
        """An answer that comes after the program has ended would be typed into the shell."""
        end = time.monotonic() + LAST_PATIENCE
        while self._num_answers < self._num_asked + 1 and self._num_asked and time.monotonic() < end:
            time.sleep(0.01)
        super().disable_input()

    def _took(self, num_characters: int) -> None:
        self._call(self._changed, partial(self.pace.took, num_characters))

    def _call(self, callback: Callable[..., object], *arguments: object) -> None:
        """From a thread: have this done by the event loop, unless it has ended."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *arguments)

    def _changed(self, change: Callable[[], object]) -> None:
        was_held = self.pace.is_held
        change()
        if was_held and not self.pace.is_held:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None
            self.release()

    def _give_up(self) -> None:
        self._deadline = None
        self._changed(self.pace.give_up)
        if self.pace.is_held:
            self._deadline = self._loop.call_later(PATIENCE, self._give_up)


class _Difference(CompositorUpdate):
    """An update that is written as what differs from what the terminal shows."""

    def __init__(self, update: LayoutUpdate | ChopsUpdate, canvas: Canvas) -> None:
        self._update = update
        self._canvas = canvas

    def render_segments(self, console: Console) -> str:
        return self._canvas.draw(self._pieces(), console._color_system or ColorSystem.TRUECOLOR)

    def _pieces(self) -> Iterator[Piece]:
        update = self._update
        if isinstance(update, LayoutUpdate):
            for y, strips in enumerate(update.strips, update.region.y):
                x = update.region.x
                for strip in strips:
                    yield x, y, strip
                    x += strip.cell_length
            return
        for y, first, end in update.spans:
            for strip_end, (x, piece) in zip(update.chop_ends[y], update.chops[y].items(), strict=False):
                if piece is not None and x < end and strip_end > first:
                    yield x, y, piece


class PacedApp(App[ReturnType]):
    """An app whose frames wait for the terminal, and for little else. In a test without a terminal nothing waits."""

    def __init__(self) -> None:
        super().__init__()
        self._missed_frame = False

    def run(self, *args: Any, **kwargs: Any) -> ReturnType | None:
        # All that was imported stays: to look for garbage among it would take as long as a frame, every few seconds.
        gc.collect()
        gc.freeze()
        gc.set_threshold(NEW_OBJECTS)
        return super().run(*args, **kwargs)

    def get_driver_class(self) -> type[Driver]:
        chosen = super().get_driver_class()
        return PacedDriver if chosen is LinuxDriver else chosen

    @property
    def pace(self) -> Pace | None:
        """None without a terminal."""
        return self._driver.pace if isinstance(self._driver, PacedDriver) else None

    @property
    def is_held(self) -> bool:
        """The terminal has not got the last frames yet: what is drawn now is not shown before it has."""
        return self.pace is not None and self.pace.is_held

    def on_resize(self) -> None:
        if isinstance(self._driver, PacedDriver):
            self._driver.canvas.forget()

    def catch_up(self) -> None:
        """The terminal is there again; subclasses show the newest."""
        if self._missed_frame:
            self._missed_frame = False
            self.screen.refresh()

    def _display(self, screen: Screen[object], renderable: RenderableType | None) -> None:
        driver = self._driver
        if not isinstance(driver, PacedDriver) or not isinstance(renderable, LayoutUpdate | ChopsUpdate):
            super()._display(screen, renderable)
        elif driver.pace.is_held:
            self._missed_frame = True
        else:
            driver.release = partial(self.call_later, self.catch_up)
            driver.pace.begin_frame()
            super()._display(screen, _Difference(renderable, driver.canvas))  # type: ignore[arg-type]
            driver.end_frame()
