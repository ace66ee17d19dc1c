"""Help and glossary: every key, sign, panel and term is explained, can be found, and can be read at any size."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import fields, replace

import pytest
from textual.widgets import TabbedContent

from app.commands import COMMANDS
from app.glossary import PANELS, TERMS, term
from app.panels.panel import Panel
from app.screens.help import SECTIONS, HelpScreen, Row
from app.screens.panels import TITLES
from engine.config import EngineConfig
from engine.policy import POLICIES
from tests.app.support import READY, Stand, dashboard, stepped

SIZES = [(60, 16), (80, 24), (120, 40), (200, 50)]
MAX_SENTENCES = 3


def is_open(stand: Stand) -> bool:
    return isinstance(stand.app.screen, HelpScreen)


def section(stand: Stand) -> str:
    return stand.app.screen.query_one(TabbedContent).active.removeprefix("help-")


def shown(stand: Stand) -> list[str]:
    """What stands in the box of the help."""
    region = stand.app.screen.query_one("#help").content_region
    return [line[region.x : region.right] for line in stand.lines()[region.y : region.bottom]]


def words_of(lines: Iterable[str]) -> str:
    return " ".join(" ".join(lines).split())


async def read_through(stand: Stand) -> str:
    """All that a reader sees of the open section who pages to its end."""
    seen: list[str] = []
    for _ in range(100):
        page = shown(stand)
        seen += page
        await stand.press("pagedown")
        if shown(stand) == page:
            return words_of(seen)
    raise AssertionError("it has no end")


# The glossary.


@pytest.mark.parametrize("entry", [*TERMS, *PANELS.values()], ids=lambda entry: entry.name)
def test_an_explanation_is_a_few_plain_sentences(entry: object) -> None:
    text = getattr(entry, "text")  # noqa: B009 (both kinds of entries have it)
    sentences = re.split(r"(?<=\.) ", text)
    assert 1 <= len(sentences) <= MAX_SENTENCES and text.endswith(".")
    assert len(text) < 330


def test_no_term_is_explained_twice() -> None:
    names = [entry.name for entry in TERMS]
    assert len(set(names)) == len(names)
    assert all(term(name) is entry for name, entry in zip(names, TERMS, strict=True))
    assert term("a policy that somebody wrote") is None


@pytest.mark.parametrize("name", [field.name for field in fields(EngineConfig)])
def test_every_parameter_is_explained(name: str) -> None:
    assert any(name in f"{entry.name} {entry.text}" for entry in TERMS)


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_is_a_term(name: str) -> None:
    assert term(name) is not None


@pytest.mark.parametrize(
    "name",
    ["chunked prefill", "token budget", "prefill", "decode", "TTFT", "ITL", "KV block", "preemption", "recompute"],
)
def test_the_words_of_the_panels_are_terms(name: str) -> None:
    assert term(name) is not None


async def test_every_panel_is_explained() -> None:
    async with dashboard((120, 40), READY) as stand:
        ids = {panel.id for panel in stand.app.query(Panel)}
    assert ids | {"request", "parameters"} == PANELS.keys()
    assert TITLES.keys() <= PANELS.keys()
    assert {panel_id: PANELS[panel_id].name for panel_id in TITLES} == TITLES


# The screen.


async def test_sections_follow_each_other() -> None:
    async with dashboard((80, 24), READY) as stand:
        await stand.press("question_mark")
        seen = [section(stand)]
        for _ in SECTIONS:
            await stand.press("right")
            seen.append(section(stand))
        assert seen == [*(name.lower() for name in SECTIONS), SECTIONS[0].lower()]
        await stand.press("left")
        assert section(stand) == SECTIONS[-1].lower()


async def test_a_click_on_a_section_opens_it() -> None:
    async with dashboard((80, 24), READY) as stand:
        await stand.press("question_mark")
        y, line = next((y, line) for y, line in enumerate(stand.lines()) if "Signs" in line and "Terms" in line)
        await stand.pilot.click(offset=(line.index("Terms") + 1, y))
        await stand.settle()
        assert section(stand) == "terms"


@pytest.mark.parametrize("size", SIZES)
async def test_all_of_it_can_be_read(size: tuple[int, int]) -> None:
    """Every row of every section comes into sight, and nothing is cut at the edge."""
    async with dashboard(size, *stepped("busy")) as stand:
        await stand.press("question_mark")
        screen = stand.app.screen
        assert isinstance(screen, HelpScreen)
        for name in SECTIONS:
            assert section(stand) == name.lower()
            text = await read_through(stand)
            for row in screen.rows(name):
                assert row.name in text
                for word in row.text.split():
                    assert word in text, f"{row.name}: {word}"
            await stand.press("right")


async def test_every_command_and_its_keys_are_there() -> None:
    rows = list(HelpScreen().rows("Keys"))
    for command in (command for command in COMMANDS if command.help):  # of the nine scenes the first is told
        (row,) = [row for row in rows if row.text == command.help]
        assert command.key_display in row.name.split()
    assert {"j", "↓"} <= set(next(row for row in rows if "below" in row.text).name.split())


async def test_keys_that_the_settings_have_changed_are_those_that_help_shows() -> None:
    commands = [
        replace(command, keys="f5") if command.name == "previous_preemption" else command for command in COMMANDS
    ]
    help_screen = HelpScreen(commands)
    assert any(row.name == "f5" and "Show the last preemption before" in row.text for row in help_screen.rows("Keys"))
    assert any(row.name == "f5" for row in help_screen.rows("Begin"))


@pytest.mark.parametrize("sign", "▪█▒×·▼±░▦▸✓■")
def test_every_sign_is_explained(sign: str) -> None:
    assert any(sign in row.name for row in HelpScreen().rows("Signs"))


async def test_help_on_a_panel_begins_with_that_panel() -> None:
    async with dashboard((80, 24), *stepped("busy")) as stand:
        asked = []
        for _ in range(7):
            await stand.press("tab")
            focused = stand.app.focused
            assert isinstance(focused, Panel) and focused.id is not None
            await stand.press("question_mark")
            assert section(stand) == "panels"
            first = next(iter(stand.app.screen.rows("Panels")))  # type: ignore[attr-defined]
            assert first == Row(PANELS[focused.id].name, PANELS[focused.id].text)
            assert first.name in [line.strip() for line in shown(stand)], "and it is in sight"
            asked.append(focused.id)
            await stand.press("escape")
            assert stand.app.focused is focused
        assert set(asked) == {"budget", "requests", "step", "blocks", "events", "output", "timeline"}


@pytest.mark.parametrize(("key", "topic"), [("enter", "request"), ("p", "parameters")])
async def test_help_on_what_is_open_begins_with_that(key: str, topic: str) -> None:
    async with dashboard((80, 24), *stepped("busy")) as stand:
        await stand.press(key, "question_mark")
        assert section(stand) == "panels"
        assert PANELS[topic].name in [line.strip() for line in shown(stand)]
        assert " ".join(PANELS[topic].text.split()[:6]) in words_of(shown(stand))


async def test_it_is_paged_through() -> None:
    async with dashboard((80, 24), READY) as stand:
        await stand.press("question_mark", "left")
        assert section(stand) == "terms"
        seen = [shown(stand)]
        while len(seen) == 1 or seen[-1] != seen[-2]:
            await stand.press("pagedown")
            seen.append(shown(stand))
        everything = words_of([line for page in seen for line in page])
        assert all(entry.name in everything for entry in TERMS), "no page is skipped"
        await stand.press("home")
        assert shown(stand) == seen[0]
        await stand.press("end")
        assert shown(stand) == seen[-1]


async def test_without_a_panel_it_begins_at_the_beginning() -> None:
    async with dashboard((80, 24), *stepped("busy")) as stand:
        await stand.press("question_mark")
        assert section(stand) == "begin"
        assert "somebody will be preempted" in words_of(shown(stand))


# The search.


async def search(stand: Stand, *keys: str) -> None:
    await stand.press("question_mark")
    await stand.press("slash")
    await stand.press(*keys)


async def test_search_finds_in_every_section() -> None:
    async with dashboard((120, 50), READY) as stand:
        await search(stand, *"PREEMPT block")
        text = words_of(shown(stand))
        for name in ("preemption", "× preempted", "KV blocks"):
            assert name in text
        assert "Poisson" not in text and "SGLang" not in text


async def test_what_a_search_does_not_find_it_says() -> None:
    async with dashboard((80, 24), READY) as stand:
        await search(stand, *"zebra")
        assert "nothing is called like this" in stand.text()


async def test_letters_in_the_search_are_letters() -> None:
    """q closes the help and l turns to the next section, but not while somebody types."""
    async with dashboard((80, 24), READY) as stand:
        await search(stand, *"qlh?")
        assert is_open(stand) and "qlh?" in stand.text()


async def test_what_is_typed_right_behind_the_slash_is_searched_for() -> None:
    async with dashboard((80, 24), READY) as stand:
        await stand.press("question_mark")
        await stand.press("slash", *"queue")
        assert is_open(stand) and "queue" in stand.lines()[-3] + stand.lines()[-4] and stand.source.sent == []


async def test_escape_leaves_the_search_first() -> None:
    async with dashboard((80, 24), READY) as stand:
        await search(stand, *"budget")
        await stand.press("escape")
        assert is_open(stand) and section(stand) == "begin" and "somebody will be preempted" in words_of(shown(stand))
        await stand.press("escape")
        assert not is_open(stand)


async def test_what_was_found_can_be_scrolled() -> None:
    async with dashboard((60, 16), READY) as stand:
        await search(stand, *"block", "enter")
        before = stand.lines()
        await stand.press("down", "down", "down")
        assert stand.lines() != before
        await stand.press("up", "up", "up")
        assert stand.lines() == before
        await stand.press("q")
        assert not is_open(stand)


@pytest.mark.parametrize("key", ["question_mark", "e", "w"])
async def test_where_there_is_no_room_nothing_lies_over_the_line_that_says_so(key: str) -> None:
    async with dashboard((120, 40), *stepped("preempting")) as stand:
        await stand.press(key)
        before = stand.lines()
        for size in ((48, 30), (100, 12), (20, 3)):
            await stand.resize(*size)
            assert not any(widget.region for widget in stand.app.screen.query("#help, #events-list, #why")), size
            await stand.resize(120, 40)
            assert stand.lines() == before, size
        await stand.press("escape")
        assert stand.app.screen is stand.app.default_screen
