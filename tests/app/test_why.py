"""Why: the whole explanation of the step that is shown, and of the words in it."""

from __future__ import annotations

import re

import pytest

from app import protocol
from app.glossary import TERMS
from app.protocol import Failed, PaceSet, SetPaused, StepOnce
from app.screens.why import WhyPanel, WhyScreen
from app.view import EngineView
from app.words import explain
from tests.app.support import READY, SCENARIOS, Stand, dashboard, scenario, scenario_view, stepped, text_of

PREEMPTIONS = [trace.step for trace in scenario("preempting") if trace.preemptions]
KEYS = {"step_back": "←", "step_forward": "→"}


def is_open(stand: Stand) -> bool:
    return isinstance(stand.app.screen, WhyScreen)


def why_text(view: EngineView, width: int = 100) -> str:
    made = WhyPanel(id="why-text", keys=KEYS)
    made.view = view
    return "\n".join(text_of(line) for line in made.draw(width, 0))


def words_of(text: str) -> str:
    return " ".join(re.sub("[│─╭╮╰╯▁▔▎▏]", " ", text).split())


@pytest.mark.parametrize("width", [40, 76, 180])
@pytest.mark.parametrize("name", SCENARIOS)
def test_every_sentence_is_there_in_full(name: str, width: int) -> None:
    view = scenario_view(name)
    text = words_of(why_text(view, width))
    for sentence in explain(view.trace, view) if view.trace else []:
        assert words_of(text_of(sentence)) in text


@pytest.mark.parametrize(
    ("name", "terms"),
    [
        ("preempting", {"preemption", "KV block", "decode"}),
        ("budget", {"chunked prefill", "prefill", "token budget"}),
        ("sharing", {"decode"}),
        ("seats", {"seats", "admission"}),
        ("blocks", {"KV block", "watermark", "admission"}),
        ("threshold", {"long_prefill_token_threshold"}),
        ("chunking", {"chunked prefill", "token budget"}),
    ],
)
def test_the_words_of_the_step_are_explained(name: str, terms: set[str]) -> None:
    view = EngineView()
    explained: set[str] = set()
    for trace in scenario(name):
        view.apply(trace)
        text = words_of(why_text(view, 400))
        explained |= {entry.name for entry in TERMS if f"{entry.name}: {entry.text}" in text}
    assert terms <= explained
    assert "sglang" not in explained


def test_a_word_that_the_step_does_not_need_is_not_explained() -> None:
    assert "preemption: " not in why_text(scenario_view("busy"))


async def test_a_key_opens_it_and_pauses() -> None:
    async with dashboard((120, 40), *stepped("busy")) as stand:
        stand.source.take_sent()
        await stand.press("w")
        assert is_open(stand) and stand.source.take_sent() == [SetPaused(True)]
        assert f"Why: step {scenario('busy')[-1].step}" in stand.text()
        await stand.press("escape")
        assert not is_open(stand) and "paused" in stand.lines()[0]


async def test_it_closes() -> None:
    async with dashboard((120, 40), *stepped("busy"), PaceSet(True, 0.0)) as stand:
        before = stand.lines()
        for key in ("escape", "q", "w"):
            await stand.press("w")
            assert is_open(stand)
            await stand.press(key)
            assert stand.lines() == before and stand.app.return_code is None, key


async def test_it_follows_the_cursor() -> None:
    async with dashboard((120, 40), *stepped("preempting")) as stand:
        await stand.press("w", "left_square_bracket")
        step = PREEMPTIONS[-1]
        assert is_open(stand) and f"Why: step {step} " in stand.text() and "is admitted" not in stand.text()
        assert "preemption: A running request needs a KV block" in words_of(stand.text())
        await stand.press("left")
        assert f"Why: step {step - 1} " in stand.text()
        await stand.press("right", "right")
        assert f"Why: step {step + 1} " in stand.text()
        await stand.press("home")
        assert "Why: step 0 " in stand.text()
        await stand.press("end")
        assert f"Why: step {scenario('preempting')[-1].step} " in stand.text()
        assert f"step {scenario('preempting')[-1].step}" in stand.lines()[0], "and so do the panels behind it"


async def test_the_next_step_can_be_run_from_it() -> None:
    traces = scenario("preempting")
    async with dashboard((120, 40), READY, *map(protocol.Stepped, traces[:9]), PaceSet(True, 0.0)) as stand:
        await stand.press("w", "full_stop")
        assert StepOnce() in stand.source.take_sent()
        await stand.play(traces[9:10])
        assert is_open(stand) and "Why: step 9 " in stand.text()


async def test_keys_that_have_nothing_to_do_with_it_do_nothing() -> None:
    async with dashboard((120, 40), *stepped("busy"), PaceSet(True, 0.0)) as stand:
        stand.source.take_sent()
        await stand.press("w", "s", "x", "b")
        assert stand.source.take_sent() == [] and is_open(stand)


@pytest.mark.parametrize("size", [(60, 16), (80, 24), (120, 40), (200, 50)])
async def test_all_of_it_can_be_read(size: tuple[int, int]) -> None:
    async with dashboard(size, *stepped("preempting"), PaceSet(True, 0.0)) as stand:
        await stand.press("left_square_bracket", "w")
        seen = ""
        for _ in range(80):
            page = stand.lines()
            seen += "\n".join(page)
            await stand.press("down")
            if stand.lines() == page:
                break
        else:
            raise AssertionError("it has no end")
        view = stand.app.cursor.view
        for word in why_text(view).split():
            assert word in seen or set(word) <= set("─")
        await stand.press("left")
        assert "Why: step" in stand.text(), "another step is shown from its beginning"


async def test_the_panels_above_and_the_timeline_stay_in_sight() -> None:
    async with dashboard((120, 40), *stepped("preempting"), PaceSet(True, 0.0)) as stand:
        await stand.press("w")
        for size in ((120, 40), (80, 24)):
            await stand.resize(*size)
            sheet = stand.app.screen.query_one("#why").region
            for panel in ("header", "budget", "timeline"):
                assert not stand.app.query_one(f"#{panel}").region.overlaps(sheet), (size, panel)


async def test_a_dead_engine_is_not_told_to_pause() -> None:
    async with dashboard((120, 40), *stepped("busy"), Failed("gone")) as stand:
        stand.source.take_sent()
        await stand.press("w")
        assert is_open(stand) and stand.source.take_sent() == []


async def test_before_the_first_step() -> None:
    async with dashboard((80, 24), READY) as stand:
        await stand.press("w")
        assert is_open(stand) and "no step yet" in stand.text()
        await stand.press("left", "escape")
        assert not is_open(stand)


async def test_the_step_panel_says_how_to_read_what_it_has_no_room_for() -> None:
    async with dashboard((60, 16), *stepped("preempting")) as stand:
        await stand.press("left_square_bracket")
        assert re.search(r"w shows \d+ more lines?", stand.text())
