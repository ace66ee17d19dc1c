"""Presets on the dashboard: chosen, narrated, walked through by digits, and at the end what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.cells import cell_len

from app import protocol
from app.panels.narration import Narration, Programme
from app.preset import Event, Preset
from app.protocol import EngineOptions
from app.screens.compare import CompareScreen
from app.screens.presets import PresetsScreen
from app.view import EngineView
from engine.config import EngineConfig
from tests.app.played import PlayedEngine
from tests.app.support import HOSTILE, HOSTILE_SHOWN, READY, Stand, dashboard, scenario, text_of

PRESET = Preset.model_validate(
    {
        "title": "Two budgets",
        "moral": "A small budget takes more steps.",
        "speed": 5.0,
        "parameters": {"max_model_len": 64},
        "script": [
            {"step": 0, "say": "Three begin.", "inject": {"tokens": 20, "max_tokens": 6, "count": 3}},
            {"step": 4, "say": "Now they decode."},
        ],
        "scene": [
            {"name": "large", "parameters": {"max_num_batched_tokens": 64}},
            {"name": "small", "parameters": {"max_num_batched_tokens": 16}},
        ],
        "expect": [
            {"check": "steps@small > steps@large", "text": "The small budget takes more steps"},
            {"check": "outputs equal"},
        ],
    }
)


@dataclass
class Show:
    """A dashboard, and the engines that it has started."""

    stand: Stand
    engines: list[PlayedEngine]

    @property
    def engine(self) -> PlayedEngine:
        return self.engines[-1]

    async def play(self, preset: Preset = PRESET) -> None:
        self.stand.app.play(preset)
        await self.tick()

    async def run(self, num_steps: int | None = None) -> None:
        """Let the engine make its steps, and the dashboard show them."""
        self.engine.run(num_steps) if num_steps else self.engine.run()
        await self.tick()

    async def tick(self) -> None:
        self.stand.app.tick()
        await self.stand.settle()

    @property
    def narration(self) -> str:
        """What is read there now."""
        narration = self.stand.app.main_screen.query_one(Narration)
        return "\n".join(text_of(line) for line in narration.lines(200))

    @property
    def configs(self) -> list[EngineConfig]:
        """Those of all runs that were begun."""
        return [begun.config for begun in self.engine.begun]


@asynccontextmanager
async def show(size: tuple[int, int] = (120, 40), *, toasts: bool = False) -> AsyncIterator[Show]:
    engines: list[PlayedEngine] = []

    def start(options: EngineOptions) -> PlayedEngine:
        engines.append(PlayedEngine(options))
        return engines[-1]

    async with dashboard(size, start=start, toasts=toasts) as stand:
        made = Show(stand, engines)
        await made.tick()
        yield made


async def test_the_key_lists_all_presets_and_enter_plays_one() -> None:
    async with show() as made:
        await made.stand.press("D")
        assert isinstance(made.stand.app.screen, PresetsScreen)
        for words in ("Static, continuous, chunked", "Living at the edge", "A static batch makes everybody wait"):
            assert words in made.stand.text()
        await made.stand.press("j", "k", "down", "down", "down", "enter")
        await made.run(3)
        assert "Memory pressure" in made.narration and "Four requests in a pool" in made.narration
        assert made.configs[0].num_blocks == 17


async def test_leaving_the_list_plays_nothing() -> None:
    async with show() as made:
        for key in ("escape", "q", "D"):
            await made.stand.press("D", key)
            assert not isinstance(made.stand.app.screen, PresetsScreen)
        assert not made.engine.begun and made.narration == ""


async def test_scenes_follow_each_other_and_at_the_end_stands_what_came_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.dashboard.PAUSE", 0.01)
    async with show() as made:
        await made.play()
        assert [config.max_num_batched_tokens for config in made.configs] == [64]
        await made.run()
        await made.stand.until(lambda: len(made.engine.begun) == 2)
        assert made.configs[1].max_num_batched_tokens == 16
        await made.run()
        await made.stand.until(lambda: isinstance(made.stand.app.screen, CompareScreen))
        await made.stand.settle()
        text = made.stand.text()
        for words in (
            "Two budgets",
            "A small budget takes more steps.",
            "✓ The small budget takes more steps",
            "✓ outputs equal: 3 of 3 requests",
            "Held back (large, small), for its steps to be followed",
            "max_num_batched_tokens",
        ):
            assert words in text, words
        await made.stand.press("escape")
        assert "done · c shows what came of it" in made.narration


async def test_nobody_is_torn_away_from_a_scene_that_they_look_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.dashboard.PAUSE", 1.0)  # in which a key is pressed, however slow the machine
    async with show() as made:
        await made.play()
        await made.run(5)
        await made.stand.press("left", "left")
        await made.stand.press("space")
        await made.run()
        await made.stand.press("left")
        await asyncio.sleep(1.0)
        await made.tick()
        assert len(made.engine.begun) == 1 and "over · space plays the next" in made.narration
        await made.stand.press("space")
        assert len(made.engine.begun) == 2


async def test_digits_play_a_scene_from_its_start() -> None:
    async with show(toasts=True) as made:
        await made.stand.press("1")
        assert "No preset is played" in made.stand.text()
        await made.play()
        await made.run(3)
        await made.stand.press("2")
        assert made.configs[-1].max_num_batched_tokens == 16 and made.stand.app.session.view.trace is None
        await made.run(2)
        await made.stand.press("1")
        await made.run(1)
        assert made.configs[-1].max_num_batched_tokens == 64
        assert made.stand.app.session.history.last_step == 0
        await made.stand.press("7")
        assert "There are 2 scenes" in made.stand.text() and len(made.engine.begun) == 3


async def test_what_is_said_belongs_to_its_step() -> None:
    async with show() as made:
        await made.play()
        await made.run(6)
        assert "Now they decode." in made.narration
        await made.stand.press("left", "left")
        assert made.stand.app.cursor.step == 3 and "Three begin." in made.narration
        await made.stand.press("end")
        assert "Now they decode." in made.narration


async def test_the_pace_is_that_of_the_preset() -> None:
    async with show() as made:
        await made.play()
        assert made.stand.app.session.speed == 5.0 and "≤5/s" in made.stand.lines()[0]


async def test_a_pause_of_the_script_waits_for_somebody() -> None:
    preset = PRESET.model_copy(update={"script": [*PRESET.script, Event.model_validate({"step": 2, "pause": True})]})
    async with show() as made:
        await made.play(preset)
        await made.run()
        assert made.stand.app.session.history.last_step == 2
        assert made.stand.app.session.paused and "space goes on" in made.narration
        await made.stand.press("space")
        await made.run()
        assert made.stand.app.demo.player is not None and made.stand.app.demo.player.is_over


async def test_who_joins_in_is_told_that_it_counts() -> None:
    async with show() as made:
        await made.play()
        await made.run(2)
        await made.stand.press("s")
        await made.run()
        await made.stand.press("2")
        await made.run()
        await made.stand.until(lambda: isinstance(made.stand.app.screen, CompareScreen))
        await made.stand.settle()
        assert "You have joined in (large)" in made.stand.text()


async def test_an_engine_that_died_begins_the_scene_again() -> None:
    async with show() as made:
        await made.play()
        await made.stand.press("2")
        await made.run(2)
        made.engine.feed(protocol.Failed("gone"))
        await made.tick()
        await made.stand.press("1", "D")
        assert len(made.engines) == 1 and not isinstance(made.stand.app.screen, PresetsScreen)
        await made.stand.press("r")
        await made.run(2)
        assert len(made.engines) == 2 and made.configs[-1].max_num_batched_tokens == 16
        assert "Three begin." in made.narration


async def test_a_preset_that_needs_text_is_not_played_by_random_weights() -> None:
    async with show(toasts=True) as made:
        made.engine.feed(replace(READY, random_weights=True))
        await made.tick()
        await made.stand.press("D", "down", "enter")
        assert "needs a model that writes text" in made.stand.text() and not made.engine.begun


async def test_the_same_once_more_under_other_parameters() -> None:
    async with show(toasts=True) as made:
        await made.stand.press("N")
        assert "nobody was served yet" in made.stand.text()
        await made.stand.press("s")
        await made.run(3)
        await made.stand.press("l")
        await made.run()
        first = made.stand.app.session.history
        await made.stand.press("left_curly_bracket")
        await made.tick()
        await made.stand.press("N")
        (begun,) = made.engine.begun
        assert begun.config.max_num_batched_tokens == 64
        assert [
            (cue.step, cue.command.label) for cue in begun.cues if isinstance(cue.command, protocol.AddRequest)
        ] == [
            (0, "short"),
            (3, "long"),
        ]
        await made.run()
        assert "run 2 has come to its end" in made.stand.text()
        second = made.stand.app.session.history
        assert second is not first and second.live.num_finished == 2
        await made.stand.press("c")
        assert isinstance(made.stand.app.screen, CompareScreen)
        assert "run 1" in made.stand.text() and "run 2" in made.stand.text()
        assert "max_num_batched_tokens" in made.stand.text()


async def test_a_scene_once_more_stands_beside_the_others() -> None:
    async with show() as made:
        await made.play()
        await made.run()
        await made.stand.press("left_curly_bracket")
        await made.tick()
        await made.stand.press("N")
        await made.run()
        names = [run.name for run in made.stand.app.demo.finished_runs]
        assert names == ["large", "run 2"] and made.narration == "", "nothing is said of other parameters"


async def test_a_recording_plays_no_presets() -> None:
    async with show(toasts=True) as made:
        made.engine.feed(replace(READY, recorded="2026-01-01"))
        await made.tick()
        await made.stand.press("D", "N", "1")
        assert "this is a recording" in made.stand.text()
        assert not made.engine.begun and not isinstance(made.stand.app.screen, PresetsScreen)


async def test_a_preset_that_cannot_be_read_is_listed_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NANOVIZ_CONFIG", str(tmp_path / "config.toml"))
    (tmp_path / "presets").mkdir()
    (tmp_path / "presets" / "mine.toml").write_text('title = "[bold red]hi[/] \\u001b[31m"\nmroal = "x"\n')
    async with show() as made:
        await made.stand.press("D", "end")
        assert "mine: it cannot be read" in made.stand.text() and "mroal: there is no such key" in made.stand.text()
        await made.stand.press("enter")
        assert isinstance(made.stand.app.screen, PresetsScreen) and not made.engine.begun


@pytest.mark.parametrize("size", [(60, 16), (80, 24), (120, 40), (200, 50)])
async def test_it_fits_every_screen(size: tuple[int, int]) -> None:
    async with show(size) as made:
        await made.play()
        await made.run(5)
        assert all(cell_len(line) <= size[0] for line in made.stand.lines())
        assert "Two budgets" in made.narration and "Now they decode." in made.narration
        await made.stand.press("D")
        assert "Static, continuous, chunked" in made.stand.text() and "enter plays it" in made.stand.text()


def test_narration_draws_foreign_text_literally_and_never_wider() -> None:
    narration = Narration(id="narration")
    view = EngineView()
    for trace in scenario("busy")[:2]:
        view.apply(replace(trace, note=HOSTILE * 20))
    narration.view = view
    for width in range(40, 200, 7):
        for programme in (
            None,
            Programme(HOSTILE, ("one", "two"), 1, "a hint"),
            Programme("t" * 60, ("s" * 24,) * 9, 8),
        ):
            narration.programme = programme
            lines = [text_of(line).rstrip() for line in narration.lines(width)]
            assert all(cell_len(line) <= width for line in lines), lines
            assert len(lines) <= 4 and HOSTILE_SHOWN[:14] in "".join(lines)


async def test_a_preset_that_the_model_cannot_follow_leaves_a_way_on() -> None:
    async with show() as made:
        made.stand.app.play(PRESET)
        made.engine.drain()  # instead of saying that it is ready
        made.engine.feed(protocol.Failed("max_model_len is 64, but the model was made for at most 32 tokens."))
        await made.tick()
        assert "was made for at most 32" in made.stand.text()
        await made.stand.press("r")
        await made.tick()
        assert len(made.engines) == 2 and not made.engine.begun, "the same would fail again"
        assert made.stand.app.session.config == EngineConfig() and made.narration == ""
        await made.stand.press("s")
        await made.run(2)
        assert made.stand.app.session.view.trace is not None


async def test_one_can_leave_presets_for_an_empty_engine() -> None:
    async with show() as made:
        await made.stand.press("D")
        assert "no preset" not in made.stand.text()
        await made.stand.press("escape")
        await made.play()
        await made.run(3)
        await made.stand.press("D", "end", "enter")
        await made.tick()
        session = made.stand.app.session
        assert session.config == EngineConfig() and session.view.trace is None and session.speed == 0
        assert made.narration == "" and made.stand.app.demo.player is None
        await made.stand.press("s")
        await made.run()
        assert session.view.num_finished == 1


async def test_the_way_back_to_the_start_is_open_after_a_run_once_more() -> None:
    async with show() as made:
        await made.play()
        await made.run()
        await made.stand.press("N")
        await made.run()
        await made.stand.press("D", "end", "enter")
        await made.tick()
        assert made.stand.app.session.config == EngineConfig() and made.stand.app.session.view.trace is None


async def test_nothing_arrives_by_itself_in_a_run_that_begins_anew() -> None:
    async with show() as made:
        await made.stand.press("greater_than_sign", "greater_than_sign")
        assert made.stand.app.session.load.rate > 0
        await made.play()
        assert made.stand.app.session.load.rate == 0


async def test_what_has_not_come_to_its_end_is_not_played_once_more() -> None:
    async with show(toasts=True) as made:
        await made.stand.press("s")
        await made.run(2)
        await made.stand.press("N")
        assert "It cannot be played once" in made.stand.text() and not made.engine.begun
        await made.run()
        await made.play()
        await made.run(2)
        await made.stand.press("N")
        assert len(made.engine.begun) == 1, "nor a scene"


async def test_the_next_scene_comes_once_however_often_one_was_played(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.dashboard.PAUSE", 1.0)  # in which a key is pressed, however slow the machine
    async with show() as made:
        await made.play()
        await made.run()
        await made.stand.press("1")
        assert len(made.engine.begun) == 2
        await made.run()
        await made.stand.until(lambda: len(made.engine.begun) == 3)
        assert made.configs[-1].max_num_batched_tokens == 16
        made.engine.feed(protocol.Failed("gone"))
        await made.tick()
        assert "Three begin." in made.narration or made.stand.app.session.failed


async def test_an_engine_that_died_between_two_scenes_keeps_what_it_showed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.dashboard.PAUSE", 0.01)
    async with show() as made:
        await made.play()
        made.engine.run()
        made.engine.feed(protocol.Failed("gone"))
        await made.tick()
        await made.tick()
        assert len(made.engine.begun) == 1 and made.stand.app.session.history.last_step is not None


async def test_what_came_of_it_does_not_push_itself_over_an_open_screen() -> None:
    async with show() as made:
        await made.play()
        await made.stand.press("2")
        await made.run(2)
        await made.stand.press("i")
        await made.run()
        assert not isinstance(made.stand.app.screen, CompareScreen)
        await made.stand.press("escape")
        await made.stand.press("c")
        assert isinstance(made.stand.app.screen, CompareScreen)


async def test_what_an_older_run_still_says_is_not_told() -> None:
    async with show(toasts=True) as made:
        made.engine.feed(protocol.Refused("9", "an old story"))
        made.stand.app.play(PRESET)
        await made.tick()
        assert "an old story" not in made.stand.text()


async def test_a_pace_that_somebody_has_chosen_stays_with_all_scenes() -> None:
    async with show() as made:
        await made.play()
        await made.stand.press("plus")
        await made.tick()
        chosen = made.stand.app.session.speed
        assert chosen > 5.0
        await made.stand.press("2")
        assert made.stand.app.session.speed == chosen
