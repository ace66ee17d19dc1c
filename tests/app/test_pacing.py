"""Frames: as small as they can be, no faster than the terminal takes them, and none while nothing happens."""

from __future__ import annotations

import asyncio
import gc
import os
import pty
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from subprocess import Popen

import pyte
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.color import ColorSystem
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from textual.app import App
from textual.strip import Strip

from app.canvas import Canvas, Piece
from app.dashboard import Dashboard
from app.pacing import FRAMES_PER_SECOND, MAX_UNSEEN, Pace, PacedApp
from app.panels.header import Header
from app.protocol import PaceSet
from app.pseudo_terminal import QUERY, PseudoTerminal
from tests.app.support import READY, Stand, dashboard, panel, repeatable, scenario_view, stepped, text_of
from tests.app.test_worker import wait_for
from tests.engine.support import FakeClock

COLUMNS, ROWS = 12, 3
STYLES = (
    Style(),
    Style(color="#ff0000", bgcolor="#000011"),
    Style(color="#00ff00", bgcolor="#000011"),
    Style(color="#00ff00", bgcolor="#000011", bold=True),
    Style(color="#ff0000", bgcolor="#223344"),
    Style(color="#ff0000", reverse=True),
    Style(bgcolor="#000011", underline=True),
    Style(color="red", bgcolor="color(33)"),
    Style(color="bright_blue"),
)
TRUECOLOR = ColorSystem.TRUECOLOR


# What is written.


class Terminal:
    """What is on a screen after all that was written to it."""

    def __init__(self) -> None:
        self._screen = pyte.Screen(COLUMNS, ROWS)
        self._stream = pyte.Stream(self._screen)

    def feed(self, text: str) -> None:
        self._stream.feed(text)

    def cells(self) -> Iterator[tuple[object, ...]]:
        """Each cell as it looks; of a blank one its foreground cannot be seen."""
        for y in range(ROWS):
            for x in range(COLUMNS):
                cell = self._screen.buffer[y][x]
                shows_foreground = cell.data.strip() or cell.reverse
                look = (cell.fg, cell.bold) if shows_foreground else ()
                yield (cell.data, cell.bg, cell.reverse, cell.underscore, look)


def written_whole(x: int, y: int, segments: list[Segment]) -> str:
    """A piece as Textual would write it."""
    console = Console(color_system="truecolor", force_terminal=True)
    return f"\x1b[{y + 1};{x + 1}H{Strip(segments).render(console)}"


texts = st.text(st.sampled_from("ab  ▪█宽e"), max_size=5)
segments = st.lists(st.builds(Segment, texts, st.sampled_from(STYLES), st.none()), max_size=4)


@st.composite
def pieces(draw: st.DrawFn) -> Piece:
    """Something that stands on the screen with all of its columns."""
    strip = Strip(draw(segments)).crop(0, COLUMNS)
    return draw(st.integers(0, COLUMNS - strip.cell_length)), draw(st.integers(0, ROWS - 1)), list(strip)


@repeatable
@given(st.lists(st.lists(pieces(), max_size=4), max_size=5))
def test_a_terminal_shows_the_same_as_if_everything_had_been_written(frames: list[list[Piece]]) -> None:
    canvas, ours, whole = Canvas(), Terminal(), Terminal()
    for frame in frames:
        ours.feed(canvas.draw(frame, TRUECOLOR))
        for x, y, segments in frame:
            whole.feed(written_whole(x, y, list(segments)))
    assert list(ours.cells()) == list(whole.cells())


def piece(text: str, style: Style = STYLES[1]) -> Piece:
    return 0, 0, [Segment(text, style)]


def test_only_what_differs_is_written() -> None:
    canvas = Canvas()
    first = canvas.draw([piece("decode 1 of 60")], TRUECOLOR)
    assert "decode 1 of 60" in first
    assert canvas.draw([piece("decode 1 of 60")], TRUECOLOR) == ""
    second = canvas.draw([piece("decode 2 of 61")], TRUECOLOR)
    assert re.sub(r"\x1b\[[\d;]*m", "", second) == "\x1b[1;8H2\x1b[5C1"


def test_only_what_differs_in_looks_is_written() -> None:
    red, green, bold = STYLES[1:4]
    written = Canvas().draw([(0, 0, [Segment("a", red), Segment(" b", green), Segment("c", bold)])], TRUECOLOR)
    assert written.count("48;2;0;0;17") == 1, "the background stays the same"
    assert written.endswith("b\x1b[1mc\x1b[m")


def test_after_a_resize_everything_is_written_again() -> None:
    canvas = Canvas()
    first = canvas.draw([piece("decode")], TRUECOLOR)
    canvas.forget()
    assert canvas.draw([piece("decode")], TRUECOLOR) == first


# When it is written.


class Line:
    """A terminal's end of the line, on a clock of its own."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.pace = Pace(self.clock)
        self._num_drawn = 0

    def draw(self, size: int = 5_000) -> None:
        self.pace.begin_frame()
        self.pace.drew(size)
        self._num_drawn += size
        if self.pace.answers:
            self.pace.asked()

    def is_held(self) -> bool:
        return self.pace.is_held

    def take(self) -> None:
        self.pace.took(self._num_drawn)


def test_without_answers_a_frame_waits_until_the_one_before_is_taken() -> None:
    line = Line()
    assert not line.is_held()
    line.draw()
    assert line.is_held()
    line.take()
    assert not line.is_held()


def test_with_answers_a_frame_waits_until_little_is_on_its_way() -> None:
    line = Line()
    line.pace.answered()
    for _ in range(3):
        line.draw(MAX_UNSEEN // 2)
        line.take()
    assert line.is_held(), "taken by the system is not seen on the terminal"
    line.pace.answered()
    assert not line.is_held()
    line.draw(MAX_UNSEEN)
    assert line.is_held()
    for _ in range(3):
        line.pace.answered()
    assert not line.is_held()


def test_a_terminal_that_has_stopped_to_answer_is_not_waited_for_any_more() -> None:
    line = Line()
    line.pace.answered()
    line.draw(3 * MAX_UNSEEN)
    line.pace.give_up()
    assert line.is_held(), "it cannot answer what has not been sent"
    line.take()
    line.pace.give_up()
    assert not line.is_held()
    line.draw()
    assert line.is_held()
    line.take()
    assert not line.is_held()


def test_a_late_answer_counts_again() -> None:
    line = Line()
    line.pace.answered()
    line.draw(3 * MAX_UNSEEN)
    line.take()
    line.pace.give_up()
    line.pace.answered()
    assert line.pace.answers and not line.is_held()


@pytest.mark.parametrize(("seconds", "slow"), [(0.01, None), (0.05, None), (0.125, 8.0), (0.5, 2.0)])
def test_it_knows_how_many_frames_a_slow_terminal_takes(seconds: float, slow: float | None) -> None:
    line = Line()
    for _ in range(2 * FRAMES_PER_SECOND):
        line.draw()
        line.clock.now += seconds
        line.take()
        line.clock.now += 1.0  # nothing happens
    assert line.pace.slow == (slow and pytest.approx(slow))


def test_a_terminal_that_has_caught_up_is_not_slow_any_more() -> None:
    line = Line()
    for seconds in [0.5] * 5 + [0.01] * 2 * FRAMES_PER_SECOND:
        line.draw()
        line.clock.now += seconds
        line.take()
    assert line.pace.slow is None


def test_the_header_says_that_the_terminal_is_slow() -> None:
    header = panel(Header, scenario_view("busy"))
    header.state = "running"
    assert "fps" not in text_of(header.draw(200, 1)[0])
    header.slow = 7.8
    assert " 8 fps slow terminal" in text_of(header.draw(200, 1)[0])


async def test_what_comes_while_the_terminal_is_behind_is_taken_in_and_shown_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with dashboard((120, 40), READY) as stand:
        monkeypatch.setattr(Dashboard, "is_held", True)
        before = stand.lines()
        await stand.feed(*stepped("busy"))
        assert stand.app.session.view.trace is not None
        assert stand.lines() == before
        monkeypatch.setattr(Dashboard, "is_held", False)
        stand.app.catch_up()
        await stand.settle()
        assert f"step {stand.app.session.view.trace.step}" in stand.lines()[0]


# Nothing happens.


async def num_drains(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> int:
    """How often events are asked for while a dozen frames could be drawn."""
    calls = 0
    drain = stand.source.drain

    def counted() -> Sequence[object]:
        nonlocal calls
        calls += 1
        return drain()

    monkeypatch.setattr(stand.source, "drain", counted)
    await asyncio.sleep(12 / FRAMES_PER_SECOND)
    return calls


async def test_without_news_nothing_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    async with dashboard((120, 40), *stepped("busy")) as stand:
        await asyncio.sleep(2 / FRAMES_PER_SECOND)
        assert await num_drains(stand, monkeypatch) == 0
        stand.source.feed(PaceSet(True, 0.0))
        await stand.until(lambda: "paused" in stand.lines()[0])


async def test_a_load_keeps_it_ticking(monkeypatch: pytest.MonkeyPatch) -> None:
    async with dashboard((120, 40), *stepped("busy")) as stand:
        await stand.press("greater_than_sign")
        assert await num_drains(stand, monkeypatch) > 1


async def test_the_load_of_an_engine_that_is_paused_does_not_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    async with dashboard((120, 40), *stepped("busy")) as stand:
        await stand.press("greater_than_sign")
        await stand.feed(PaceSet(True, 0.0))
        await asyncio.sleep(2 / FRAMES_PER_SECOND)
        assert await num_drains(stand, monkeypatch) == 0
        await stand.feed(PaceSet(False, 0.0))
        assert await num_drains(stand, monkeypatch) > 1


def test_what_was_imported_is_not_searched_for_garbage_while_the_program_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    thresholds = gc.get_threshold()
    monkeypatch.setattr(App, "run", lambda self: (gc.get_freeze_count(), gc.get_threshold()))
    try:
        num_frozen, (most_new, *_) = PacedApp[tuple[int, tuple[int, ...]]]().run() or (0, (0,))
        assert num_frozen > 10_000
        assert most_new > thresholds[0]
    finally:
        gc.unfreeze()
        gc.set_threshold(*thresholds)


# Textual's driver, on terminals that stand still. What is used of Textual's internals works as it did, or this fails.


class Paced:
    """tests/app/paced_program.py on a terminal."""

    def __init__(self, *, answers: bool) -> None:
        self._keys, theirs = os.pipe()
        command = [sys.executable, "-m", "tests.app.paced_program", str(theirs)]
        self.terminal = PseudoTerminal(command, [theirs], answers=answers)
        os.close(theirs)
        os.set_blocking(self._keys, False)
        self._said = ""

    def numbers(self) -> list[int]:
        """Of the frames that have been shown, in order."""
        written = b"".join(frame.data for frame in list(self.terminal.frames)).decode(errors="replace")
        found = [int(number) for number in re.findall(r"<(\d+)>", written)]
        return list(dict.fromkeys(found))

    def press(self, key: str) -> int:
        """Press a key, wait until the program has got it, and return the number of its present frame."""
        told = self._said.count("\n")
        self.terminal.press(key)
        wait_for(lambda: self._hear().count("\n") > told)
        return int(self._said.split()[-1])

    def _hear(self) -> str:
        with suppress(BlockingIOError):
            self._said += os.read(self._keys, 4096).decode()
        return self._said

    def close(self) -> None:
        self.terminal.close()
        os.close(self._keys)


@pytest.fixture(params=[True, False], ids=["answers", "is silent"])
def paced(request: pytest.FixtureRequest) -> Iterator[Paced]:
    paced = Paced(answers=request.param)
    yield paced
    paced.close()


def test_keys_act_and_frames_wait_while_the_terminal_stands_still(paced: Paced) -> None:
    wait_for(lambda: len(paced.numbers()) > 5)
    paced.terminal.bytes_per_second = 0
    begun = paced.press("a")
    ended = begun
    while ended < begun + 150:  # many more than any buffer has room for
        ended = paced.press("b")
    paced.terminal.bytes_per_second = None
    wait_for(lambda: paced.numbers()[-1] > ended)
    meanwhile = [number for number in paced.numbers() if begun < number < ended]
    assert len(meanwhile) < 20, "a few were on their way; the others were never drawn"


def test_a_terminal_that_answers_no_more_is_served_on() -> None:
    paced = Paced(answers=True)
    try:
        wait_for(lambda: len(paced.numbers()) > 5)
        paced.terminal.answers = False
        last = paced.numbers()[-1]
        wait_for(lambda: paced.numbers()[-1] > last + 200)
    finally:
        paced.close()


def test_it_asks_only_a_terminal_that_answers(paced: Paced) -> None:
    wait_for(lambda: len(paced.numbers()) > 20)
    num_queries = sum(frame.data.count(QUERY) for frame in paced.terminal.frames)
    assert num_queries > 10 if paced.terminal.answers else num_queries == 1, "the one is Textual's own"
    paced.press("q")
    wait_for(lambda: paced.terminal.process.poll() is not None)
    assert paced.terminal.process.returncode == 0


def test_a_program_whose_terminal_is_gone_ends() -> None:
    """Also if nobody sends it a signal, as when it has no controlling terminal or was started with nohup."""
    keys, theirs = os.pipe()
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "tests.app.paced_program", str(theirs)]
    program = Popen(command, stdin=slave, stdout=slave, stderr=slave, pass_fds=[theirs], start_new_session=True)
    try:
        os.close(slave)
        written = b""
        while b"<1>" not in written:
            written += os.read(master, 4096)
        os.close(master)
        wait_for(lambda: program.poll() is not None)
    finally:
        program.kill()
        program.wait()
        os.close(theirs)
        os.close(keys)
