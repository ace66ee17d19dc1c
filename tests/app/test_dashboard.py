"""The dashboard under a pilot's fingers: every key, every event, every size."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from textual.command import CommandPalette
from textual.geometry import Region

from app import prompts, protocol
from app.commands import COMMANDS
from app.dashboard import Dashboard
from app.inject import BURST
from app.panels.panel import Panel
from app.panels.requests import RequestsPanel
from app.parameters import SPEEDS
from app.protocol import AddRequest, Failed, PaceSet, Refused, SetPaused, SetSpeed, StepOnce, Stepped
from app.screens.help import HelpScreen
from app.screens.main import MIN_HEIGHT, MIN_WIDTH
from app.view import MAX_FINISHED
from engine.config import EngineConfig
from tests.app.support import READY, SCENARIOS, ScriptedEngine, Stand, dashboard, scenario, stepped
from tests.engine.support import config

EVENTS_OF_BUSY = stepped("busy")
KILLED = Failed("the engine's process was killed by signal 9 (SIGKILL).")
LETTERS_OF_BUSY = "abcdfghe"
"""In the order of the rows: seven run, then the one that has ended."""


def selected_letter(stand: Stand) -> str:
    """The letter of the row that is marked; there is exactly one such row."""
    (row,) = [line for line in stand.lines() if line.startswith("▸")]
    return row[2]


def output_heading(stand: Stand) -> str:
    """The output panel's first line."""
    (line,) = [line[line.index("Output") :] for line in stand.lines() if "Output ─" in line]
    return line


def requests_text(stand: Stand) -> list[str]:
    """What stands in the requests panel."""
    region = stand.app.query_one(RequestsPanel).region
    return [line[region.x : region.right] for line in stand.lines()[region.y : region.bottom]]


def help_is_open(stand: Stand) -> bool:
    return isinstance(stand.app.screen, HelpScreen)


def toasts(stand: Stand) -> list[str]:
    return [notification.message for notification in stand.app._notifications]


# Commands.


def test_every_command_has_an_action_and_help() -> None:
    for command in COMMANDS:
        assert callable(getattr(Dashboard, "action_" + command.action.partition("(")[0]))
        assert command.title and command.key_display
        assert command.help or command.name.startswith("scene_"), "of the nine scenes the first is told"


def test_no_key_means_two_things() -> None:
    keys = [key for command in COMMANDS for key in command.keys.split(",")]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize(("key", "label"), [("s", "short"), ("l", "long")])
async def test_a_key_sends_its_prompts_one_after_another(key: str, label: prompts.Label) -> None:
    async with dashboard((120, 40), READY) as stand:
        await stand.press(key, key)
        sent = stand.source.take_sent()
        assert len(sent) == 2
        for index, command in enumerate(sent):
            expected = prompts.prompt(label, index)
            assert isinstance(command, AddRequest)
            assert (command.label, command.prompt) == (label, expected.text)
            assert command.params.max_tokens == expected.max_tokens
            assert command.request_id == str(index + 1)
            longest = command.max_prompt_tokens
            assert longest is not None and 0 < longest < stand.app.session.options.config.max_model_len


async def test_burst_sends_several_different_ones() -> None:
    async with dashboard((120, 40), READY) as stand:
        await stand.press("b")
        sent = stand.source.take_sent()
        assert len(sent) == BURST == 6
        added = [command for command in sent if isinstance(command, AddRequest)]
        assert len({command.request_id for command in added}) == len({command.prompt for command in added}) == BURST
        assert {command.label for command in added} == {"short"}


async def test_prompts_go_on_where_they_stopped() -> None:
    async with dashboard((120, 40), READY) as stand:
        await stand.press("s", "b", "l", "s")
        sent = [command for command in stand.source.take_sent() if isinstance(command, AddRequest)]
        assert [command.request_id for command in sent] == [str(number) for number in range(1, 10)]
        texts = [command.prompt for command in sent if command.label == "short"]
        assert texts == [prompts.prompt("short", index).text for index in range(8)]


async def test_abort_ends_the_selected() -> None:
    async with dashboard((120, 40), *EVENTS_OF_BUSY) as stand:
        await stand.press("x")
        await stand.press("j", "j", "x")
        assert stand.source.take_sent() == [protocol.Abort("1"), protocol.Abort("3")]


async def test_abort_without_requests_does_nothing() -> None:
    async with dashboard((120, 40), READY) as stand:
        await stand.press("x")
        assert stand.source.take_sent() == []


async def test_selection_walks_and_the_output_follows() -> None:
    async with dashboard((120, 40), *EVENTS_OF_BUSY) as stand:

        async def walk(keys: str) -> str:
            letters = ""
            for key in keys.split():
                await stand.press(key)
                letters += selected_letter(stand)
                assert f" {letters[-1]} · " in output_heading(stand)
            return letters

        assert selected_letter(stand) == LETTERS_OF_BUSY[0]
        assert await walk("j down j down j j j") == LETTERS_OF_BUSY[1:]
        assert await walk("j") == LETTERS_OF_BUSY[-1], "it stops at the last"
        assert await walk("k up k up k k k") == LETTERS_OF_BUSY[-2::-1]
        assert await walk("up") == LETTERS_OF_BUSY[0], "and at the first"


async def test_selection_stays_with_its_request() -> None:
    """Rows move; what was selected stays selected as long as it is there."""
    stage = ScriptedEngine(config(blocks=40, bs=8, budget=64, seqs=4, length=128))
    for max_tokens in (3, 9, 9):
        stage.add(max_tokens=max_tokens)
    async with dashboard((120, 40), READY, Stepped(stage.step())) as stand:
        await stand.press("j")
        assert selected_letter(stand) == "b"
        stage.step(4)
        await stand.play(stage.traces[1:])
        assert stand.app.session.view.requests["1"].finished is not None
        assert selected_letter(stand) == "b"


async def test_the_first_row_is_followed_until_one_is_chosen() -> None:
    stage = ScriptedEngine(config(blocks=40, bs=8, budget=64, seqs=4, length=128))
    for max_tokens in (3, 6, 20):
        stage.add(max_tokens=max_tokens)
    stage.step(9)
    async with dashboard((120, 40), READY, *map(Stepped, stage.traces[:1])) as stand:
        assert selected_letter(stand) == "a"
        await stand.play(stage.traces[1:4])
        assert selected_letter(stand) == "b", "a has ended and is no longer the first row"
        await stand.press("k")
        await stand.play(stage.traces[4:])
        assert selected_letter(stand) == "b", "it is chosen now"
        await stand.press("escape")
        assert selected_letter(stand) == "c" and " c · " in output_heading(stand)


async def test_space_pauses_and_goes_on() -> None:
    async with dashboard((120, 40), *EVENTS_OF_BUSY) as stand:
        assert "paused" not in stand.text()
        await stand.press("space")
        assert stand.source.take_sent() == [SetPaused(True)]
        await stand.feed(PaceSet(True, 0.0))
        assert "paused" in stand.lines()[0]
        await stand.press("space")
        assert stand.source.take_sent() == [SetPaused(False)]
        await stand.feed(PaceSet(False, 0.0))
        assert "paused" not in stand.text()


async def test_a_key_shows_at_once() -> None:
    """A step may take long: the pause is seen before the engine has answered."""
    async with dashboard((120, 40), *EVENTS_OF_BUSY) as stand:
        await stand.press("space")
        assert "paused" in stand.lines()[0]


async def test_the_engines_answer_counts() -> None:
    async with dashboard((120, 40), *EVENTS_OF_BUSY) as stand:
        await stand.feed(PaceSet(True, 5.0))
        assert "paused" in stand.lines()[0] and "5/s" in stand.lines()[0]
        await stand.press("minus")
        assert stand.source.take_sent() == [SetSpeed(2.0)]


async def test_one_step_pauses_first() -> None:
    async with dashboard((120, 40), *EVENTS_OF_BUSY) as stand:
        await stand.press("full_stop")
        assert stand.source.take_sent() == [SetPaused(True), StepOnce()]
        await stand.feed(PaceSet(True, 0.0))
        await stand.press("full_stop", "full_stop")
        assert stand.source.take_sent() == [StepOnce(), StepOnce()]


async def test_speed_goes_through_all_and_stops_at_both_ends() -> None:
    async with dashboard((200, 50), *EVENTS_OF_BUSY) as stand:
        await stand.press("equals_sign")
        assert stand.source.take_sent() == [SetSpeed(0.0)], "it starts at the fast end: no limit"
        assert "/s" not in stand.lines()[0].replace("steps/s", "").replace("tok/s", "")
        for speed in (*SPEEDS[-2::-1], SPEEDS[0]):
            await stand.press("minus")
            assert stand.source.take_sent() == [SetSpeed(speed)]
            await stand.feed(PaceSet(False, speed))
            assert f"{speed:g}/s" in stand.lines()[0]
        for speed in (*SPEEDS[1:], SPEEDS[-1]):
            await stand.press("plus")
            assert stand.source.take_sent() == [SetSpeed(speed)]
            await stand.feed(PaceSet(False, speed))


async def test_late_answers_undo_no_key() -> None:
    """Keys come faster than steps: the answer to the first must not take back the second."""
    async with dashboard((120, 40), *EVENTS_OF_BUSY) as stand:
        await stand.press("minus", "minus")
        assert stand.source.take_sent() == [SetSpeed(50.0), SetSpeed(20.0)]
        await stand.feed(PaceSet(False, 50.0))
        await stand.press("minus")
        assert stand.source.take_sent() == [SetSpeed(10.0)]


async def test_a_late_answer_does_not_turn_a_pause_around() -> None:
    async with dashboard((120, 40), *EVENTS_OF_BUSY) as stand:
        await stand.press("space", "space")
        assert stand.source.take_sent() == [SetPaused(True), SetPaused(False)]
        await stand.feed(PaceSet(True, 0.0))
        await stand.press("space")
        assert stand.source.take_sent() == [SetPaused(True)]


async def test_a_picture_is_saved_where_the_program_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in a folder of downloads, which servers do not have."""
    monkeypatch.chdir(tmp_path)
    async with dashboard((120, 40), *EVENTS_OF_BUSY) as stand:
        await stand.press("S")
        await stand.until(lambda: bool(toasts(stand)))
        (picture,) = tmp_path.glob("*.svg")
        text = picture.read_text(encoding="utf-8")
        assert text.rstrip().endswith("</svg>") and "Requests" in text


async def test_a_picture_that_cannot_be_saved_is_said_not_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with dashboard((120, 40), *EVENTS_OF_BUSY) as stand:
        (tmp_path / "file").touch()
        monkeypatch.setattr("app.dashboard.Path.cwd", lambda: tmp_path / "file" / "folder")
        await stand.press("S")
        await stand.until(lambda: bool(toasts(stand)))
        assert stand.app.is_running and "cannot be saved" in str(toasts(stand))


@pytest.mark.parametrize(
    ("size", "leave"), [((60, 16), "escape"), ((80, 24), "q"), ((120, 40), "question_mark"), ((120, 40), "escape")]
)
async def test_help_opens_and_closes(size: tuple[int, int], leave: str) -> None:
    async with dashboard(size, *EVENTS_OF_BUSY) as stand:
        before = stand.lines()
        await stand.press("question_mark")
        assert help_is_open(stand)
        assert "Keys" in stand.text()
        await stand.press(leave)
        assert not help_is_open(stand)
        assert stand.lines() == before
        assert stand.app.return_code is None


async def test_traces_go_on_behind_the_help() -> None:
    async with dashboard((120, 40), READY) as stand:
        await stand.press("question_mark")
        await stand.play(scenario("busy"))
        assert help_is_open(stand)
        await stand.press("escape")
        assert selected_letter(stand) == "a"
        assert f"step {scenario('busy')[-1].step}" in stand.lines()[0]


@pytest.mark.parametrize(
    ("key", "state"), [("q", "loading"), ("q", "busy"), ("q", "dead"), ("ctrl+c", "loading"), ("ctrl+q", "busy")]
)
async def test_quit(key: str, state: str) -> None:
    async with dashboard((120, 40)) as stand:
        if state != "loading":
            await stand.feed(*EVENTS_OF_BUSY)
        if state == "dead":
            await stand.feed(KILLED)
        await stand.pilot.press(key)
        await stand.until(lambda: not stand.app.is_running or stand.app._exit)
    assert stand.app.return_code == 0


async def test_ctrl_c_leaves_from_the_help_too() -> None:
    async with dashboard((120, 40), READY) as stand:
        await stand.press("question_mark")
        await stand.pilot.press("ctrl+c")
        await stand.until(lambda: stand.app._exit)
    assert stand.app.return_code == 0


@pytest.mark.parametrize("state", ["loading", "busy"])
async def test_restart_leaves_a_living_engine_alone(state: str) -> None:
    async with dashboard((120, 40)) as stand:
        if state == "busy":
            await stand.feed(*EVENTS_OF_BUSY)
        await stand.press("r")
        assert len(stand.sources) == 1 and not stand.source.closed


@pytest.mark.parametrize("state", ["loading", "busy"])
async def test_restart_begins_anew(state: str) -> None:
    async with dashboard((120, 40)) as stand:
        if state != "loading":
            await stand.feed(*EVENTS_OF_BUSY, PaceSet(True, 5.0))
        await stand.press("s")
        await stand.feed(KILLED)
        old = stand.source
        await stand.press("r")
        assert old.closed and len(stand.sources) == 2 and not stand.source.closed
        assert stand.source.options == stand.app.session.options
        assert stand.app.session.view.trace is None and not stand.app.session.view.requests
        text = stand.text()
        assert "loading" in stand.lines()[0] and "SIGKILL" not in text
        assert "sent" not in text
        # What the user had set stays set: the new engine is told of it before anything else.
        was_set = [SetPaused(True), SetSpeed(5.0)] if state == "busy" else []
        assert stand.source.take_sent() == was_set
        assert ("paused" in stand.lines()[0], "5/s" in stand.lines()[0]) == (bool(was_set), bool(was_set))
        # And it works: the new engine's requests and steps are shown.
        await stand.press("s")
        (command,) = stand.source.take_sent()
        assert isinstance(command, AddRequest)
        await stand.feed(*EVENTS_OF_BUSY)
        assert selected_letter(stand) == "a"


async def test_the_palette_offers_the_same_commands() -> None:
    async with dashboard((120, 40), READY) as stand:
        offered = list(stand.app.get_system_commands(stand.app.screen))
        assert [(entry.title, entry.help) for entry in offered] == [
            (command.title, f"{command.key_display} · {command.help}") for command in COMMANDS
        ]


async def test_the_palette_does_what_it_offers() -> None:
    async with dashboard((120, 40), READY) as stand:
        await stand.press("ctrl+p")
        assert isinstance(stand.app.screen, CommandPalette)
        await stand.press(*"Burst")
        await stand.until(lambda: "Send six" in stand.text())
        await stand.press("enter")
        await stand.until(lambda: stand.source.sent)
        assert len(stand.source.take_sent()) == BURST
        assert not isinstance(stand.app.screen, CommandPalette)


# Events.


async def test_keys_while_loading_are_sent_and_shown_until_the_trace_comes() -> None:
    stage = ScriptedEngine(EngineConfig())
    async with dashboard((120, 40)) as stand:
        await stand.press("s", "l")
        sent = stand.source.take_sent()
        assert [type(command) for command in sent] == [AddRequest, AddRequest]
        pending = [line for line in requests_text(stand) if " … " in line]
        assert len(pending) == 2 and "short" in pending[0] and "long" in pending[1]
        await stand.feed(READY)
        await stand.feed(protocol.Accepted("1", 41), protocol.Accepted("2", 512))
        pending = [line for line in requests_text(stand) if " … " in line]
        assert "41" in pending[0] and "512" in pending[1]
        stage.add(max_tokens=30)
        await stand.play([stage.step()])
        pending = [line for line in requests_text(stand) if " … " in line]
        assert len(pending) == 1 and "long" in pending[0]
        assert selected_letter(stand) == "a"
        stage.add(label="long", max_tokens=30)
        await stand.play([stage.step()])
        assert not any(" … " in line for line in requests_text(stand))
        assert any(line.startswith("  b  long") for line in requests_text(stand))


async def test_loading_shows_its_progress() -> None:
    async with dashboard((120, 40)) as stand:
        assert "loading" in stand.lines()[0]
        await stand.feed(protocol.Loading("fetching the model", 31_000_000, 98_000_000))
        text = stand.text()
        assert "fetching the model" in text and "31 of 98 MB" in text
        assert 0 < text.count("█") < text.count("█") + text.count("░")
        await stand.feed(protocol.Loading("checking"))
        assert "checking" in stand.text() and "MB" not in stand.text()
        await stand.feed(READY)
        assert "checking" not in stand.text() and "loading" not in stand.text()
        assert "SmolLM2-135M-Instruct" in stand.lines()[0]


async def test_idle_is_told_from_running() -> None:
    async with dashboard((120, 40), READY) as stand:
        assert "idle" in stand.lines()[0]
        await stand.play(scenario("busy"))
        assert "idle" not in stand.lines()[0]
    async with dashboard((120, 40), *stepped("ended")) as stand:
        assert "idle" in stand.lines()[0]


async def test_what_is_not_bitwise_is_said() -> None:
    ready = protocol.Ready("m", 1, "bfloat16", "cuda", 1, "best effort (0.01 in the self-check)", False, False)
    async with dashboard((200, 50), ready, toasts=True) as stand:
        assert "best effort" in stand.lines()[0] and "bitwise" not in stand.lines()[0]
        assert "0.01" in "".join(toasts(stand))
        await stand.until(lambda: "0.01" in stand.text())


async def test_refused_says_why_and_removes_the_row() -> None:
    async with dashboard((120, 40), READY, toasts=True) as stand:
        await stand.press("s", "l")
        await stand.feed(Refused("2", "the prompt has 900 tokens"))
        await stand.until(lambda: "900 tokens" in stand.text())
        pending = [line for line in requests_text(stand) if " … " in line]
        assert len(pending) == 1 and "short" in pending[0]


@pytest.mark.parametrize("size", [(60, 16), (80, 24), (120, 40)])
async def test_failed_says_why_and_what_to_do(size: tuple[int, int]) -> None:
    async with dashboard(size, *EVENTS_OF_BUSY) as stand:
        await stand.press("s")
        await stand.feed(KILLED)
        text = " ".join(stand.text().split())
        assert "SIGKILL" in text and "r starts it again" in text and "q leaves" in text
        assert "dead" in stand.lines()[0]
        assert not any(" … " in line for line in requests_text(stand))
        stand.source.take_sent()
        for key in "slb":
            await stand.press(key)
        assert stand.source.take_sent() == []
        assert not any(" … " in line for line in requests_text(stand))
        assert toasts(stand) and all("r starts it again" in message for message in toasts(stand))


async def test_one_key_on_a_dead_engine_is_one_notice() -> None:
    async with dashboard((120, 40), READY, KILLED) as stand:
        await stand.press("b")
        assert len(toasts(stand)) == 1


async def test_the_first_failure_is_the_one_shown() -> None:
    async with dashboard((120, 40), READY) as stand:
        await stand.feed(Failed("no memory for the pool"))
        await stand.feed(KILLED)
        assert "no memory for the pool" in stand.text() and "SIGKILL" not in stand.text()


@pytest.mark.parametrize("width", [60, 80])
async def test_a_failure_of_any_length_leaves_the_keys_on_the_screen(width: int) -> None:
    async with dashboard((width, 24), READY) as stand:
        for length in range(width - 12, width + 4):
            error = ("word " * 80)[:length].strip() + "!"
            stand.app.session.failed = None
            await stand.feed(Failed(error))
            text = " ".join(stand.text().split())
            assert error in text and "r starts it again" in text, f"{len(error)} characters"


async def test_a_failure_stays_readable_when_the_terminal_shrinks() -> None:
    error = "the engine stopped: RuntimeError: " + "word " * 20 + "end."
    async with dashboard((160, 40), READY, Failed(error)) as stand:
        await stand.resize(62, 24)
        text = " ".join(stand.text().split())
        assert "end." in text and "r starts it again" in text
        await stand.resize(160, 40)
        assert "end." in stand.text() and "r starts it again" in stand.text()


async def test_more_ends_in_one_step_than_is_remembered() -> None:
    stage = ScriptedEngine(config(blocks=300, bs=4, budget=400, seqs=100, length=40))
    for _ in range(MAX_FINISHED + 20):
        stage.add([1, 2], 2)
    stage.run_to_end()
    async with dashboard((120, 40), READY) as stand:
        await stand.play(stage.traces)
        assert "idle" in stand.lines()[0]


async def test_every_step_is_drawn_as_it_comes() -> None:
    async with dashboard((80, 24)) as stand:
        for name in SCENARIOS:
            stand.feed_only(READY)
            for trace in scenario(name):
                stand.feed_only(Stepped(trace))
                assert f"step {trace.step}" in stand.lines()[0]
            stand.feed_only(KILLED)
            stand.app.action_restart()


# Sizes.


@pytest.mark.parametrize("state", ["loading", "busy", "dead"])
async def test_too_small_says_what_is_needed_and_nothing_else(state: str) -> None:
    async with dashboard((120, 40)) as stand:
        if state != "loading":
            await stand.feed(*EVENTS_OF_BUSY)
        if state == "dead":
            await stand.feed(KILLED)
        before = stand.lines()
        for size in ((MIN_WIDTH - 1, 40), (120, MIN_HEIGHT - 1), (48, 1)):
            await stand.resize(*size)
            lines = [line.strip() for line in stand.lines() if line.strip()]
            assert len(lines) == 1, size
            assert str(MIN_WIDTH) in lines[0] and str(MIN_HEIGHT) in lines[0], size
            await stand.resize(120, 40)
            assert stand.lines() == before, size


async def test_the_smallest_size_works() -> None:
    async with dashboard((MIN_WIDTH, MIN_HEIGHT), *EVENTS_OF_BUSY) as stand:
        text = stand.text()
        for fact in ("step 19", "Token budget", "Requests", "Step 19", "▸ a "):
            assert fact in text


async def test_keys_work_while_it_is_too_small() -> None:
    async with dashboard((40, 10), READY) as stand:
        await stand.press("s")
        assert len(stand.source.take_sent()) == 1
        await stand.play(scenario("busy"))
        await stand.resize(120, 40)
        assert selected_letter(stand) == "a"


async def test_a_storm_of_resizes_breaks_nothing() -> None:
    sizes = [(20 + 37 * i % 190, 3 + 23 * i % 60) for i in range(80)]
    async with dashboard((120, 40), READY) as stand:
        for index, size in enumerate(sizes):
            stand.resize_without_waiting(*size)
            stand.feed_only(*map(Stepped, scenario("busy")[index : index + 1]))
            if index % 5 == 0:
                await asyncio.sleep(0)
        await stand.resize(120, 40)
        after_storm = stand.lines()
    async with dashboard((120, 40), *EVENTS_OF_BUSY) as calm:
        assert after_storm == calm.lines()


async def test_panels_tile_the_screen() -> None:
    """No panel lies over another or off the screen, and none of them is squeezed to nothing."""
    async with dashboard((120, 40), *EVENTS_OF_BUSY) as stand:
        for size in ((60, 16), (80, 24), (99, 33), (100, 34), (120, 40), (160, 46), (200, 50), (300, 90)):
            await stand.resize(*size)
            screen = Region(0, 0, *size)
            regions = {panel.id: panel.region for panel in stand.app.query(Panel) if panel.display}
            assert {"header", "budget", "requests", "step"} <= set(regions), size
            for name, region in regions.items():
                least = 1 if name in ("header", "timeline") else 3
                assert screen.contains_region(region), f"at {size} #{name} is off the screen: {region}"
                assert region.height >= least, f"at {size} #{name} has {region.height} lines"
            for (name, region), (other_name, other) in combinations(regions.items(), 2):
                assert not region.overlaps(other), f"at {size} #{name} lies over #{other_name}"
            assert regions["budget"].column_span == regions["requests"].column_span, "they share one axis"


# Painting.


@pytest.fixture
def painted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, tuple[Region, ...]]]]:
    """What panels ask to have painted again: the panel and the regions, none meaning all of it."""
    calls: list[tuple[str, tuple[Region, ...]]] = []
    refresh = Panel.refresh

    def counted(self: Panel, *regions: Region, **options: Any) -> Panel:
        calls.append((self.id or "", regions))
        return refresh(self, *regions, **options)

    monkeypatch.setattr(Panel, "refresh", counted)
    yield calls


async def test_nothing_is_painted_when_nothing_changed(painted: list[tuple[str, tuple[Region, ...]]]) -> None:
    async with dashboard((120, 40), *EVENTS_OF_BUSY) as stand:
        assert painted
        painted.clear()
        for _ in range(5):
            stand.app.redraw()
            stand.app.tick()
            await stand.settle()
        assert painted == []


async def test_only_changed_lines_are_painted(painted: list[tuple[str, tuple[Region, ...]]]) -> None:
    async with dashboard((120, 40), *EVENTS_OF_BUSY) as stand:
        before = stand.lines()
        painted.clear()
        await stand.press("space")
        assert stand.lines()[1:-1] == before[1:-1], "only the header and the footer say that it is paused"
        assert painted == [("header", (Region(0, 0, 120, 1),))]
        painted.clear()
        await stand.press("j")
        rows = [region.y for name, regions in painted if name == "requests" for region in regions]
        assert rows == [1, 2], "the row that was selected and the one that is"
        assert {name for name, _ in painted} == {"requests", "output"}


async def test_a_tick_without_events_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with dashboard((120, 40), *EVENTS_OF_BUSY) as stand:
        drawn: list[str] = []
        monkeypatch.setattr(stand.app, "redraw", lambda: drawn.append("show"))
        for _ in range(3):
            stand.app.tick()
        assert drawn == []
        stand.source.feed(PaceSet(False, 0.0), PaceSet(False, 0.0))
        stand.app.tick()
        assert drawn == ["show"], "once for all that came"


async def test_the_timer_ticks_by_itself() -> None:
    async with dashboard((120, 40), READY) as stand:
        stand.source.feed(*map(Stepped, scenario("busy")))
        for _ in range(100):
            await asyncio.sleep(0.02)
            if stand.app.session.view.trace is not None:
                break
        await stand.settle()
        assert f"step {scenario('busy')[-1].step}" in stand.lines()[0]


# Found by a reader.


@pytest.mark.parametrize("text", ["bad \x1b[31m\x9b31m\u202e", "[bold red]bad[/]"])
async def test_notes_are_drawn_literally(text: str) -> None:
    async with dashboard((120, 40), READY, toasts=True) as stand:
        await stand.feed(Refused("1", text))
        await stand.until(lambda: "bad" in stand.text())
        assert not set(toasts(stand)[0]) & set("\x1b\x9b\u202e")


async def test_a_very_long_error_leaves_room_for_the_rest() -> None:
    async with dashboard((120, 40), *EVENTS_OF_BUSY) as stand:
        await stand.feed(Failed("some words of an error\n" * 60 + "/a/very/long/path" * 30))
        for size in ((60, 16), (80, 24), (120, 40)):
            await stand.resize(*size)
            for word in ("r starts it again", "worker.log", "Requests", "quit"):
                assert word in stand.text(), (size, word)


async def test_the_end_of_a_long_word_in_an_error_is_shown() -> None:
    async with dashboard((80, 24), *EVENTS_OF_BUSY) as stand:
        await stand.feed(Failed("its output is in /home/someone" + "/averylongfolder" * 6 + "/worker.log."))
        assert "/worker.log." in "".join(stand.text().split())


async def test_a_pause_while_loading_shows() -> None:
    async with dashboard((120, 40)) as stand:
        await stand.press("space")
        assert "paused" in stand.lines()[0] and "loading" in stand.lines()[0]


async def test_what_was_sent_can_be_selected_and_aborted_before_a_step_has_seen_it() -> None:
    async with dashboard((120, 40), READY) as stand:
        await stand.press("s", "s", "j", "x")
        sent = stand.source.take_sent()
        assert sent[-1] == protocol.Abort("2")
        (row,) = [line for line in requests_text(stand) if line.startswith("▸")]
        assert "…" in row and "aborting" in row


async def test_the_selection_follows_again_when_its_request_is_forgotten() -> None:
    async with dashboard((120, 40), *EVENTS_OF_BUSY) as stand:
        await stand.press("j")
        assert selected_letter(stand) == "b"
        stand.app.selection.request_id = "forgotten"
        stand.app.redraw()
        assert selected_letter(stand) == "a"
        assert stand.app.selection.following


async def test_a_click_on_the_first_row_only_chooses_it() -> None:
    async with dashboard((120, 40), *EVENTS_OF_BUSY) as stand:
        await stand.pilot.click("#requests", offset=(4, 1))
        await stand.settle()
        assert stand.app.screen is stand.app.default_screen and not stand.app.selection.following
        await stand.pilot.click("#requests", offset=(4, 1))
        await stand.settle()
        assert stand.app.screen is not stand.app.default_screen


async def test_a_dead_engine_neither_pauses_nor_gets_a_load() -> None:
    async with dashboard((120, 40), *EVENTS_OF_BUSY, Failed("gone")) as stand:
        await stand.press("space", "full_stop", "greater_than_sign")
        assert not stand.app.session.paused and not stand.app.session.load.rate
        await stand.press("r")
        assert stand.source.sent == []
