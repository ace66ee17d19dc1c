"""The footer: the keys that are of use now, as many as fit, and always those that whoever knows none needs."""

from __future__ import annotations

import pytest

from app.commands import COMMANDS, FOOTER
from app.protocol import Failed, PaceSet
from tests.app.support import READY, Stand, dashboard, stepped

TITLES = {command.name: f"{command.key_display} {command.short}" for command in COMMANDS if command.short}
PAUSED_TITLES = TITLES | {"pause": "space go on"}


def shown(stand: Stand) -> list[str]:
    """Names of the commands in the footer, from the left."""
    footer = f" {stand.lines()[-1].strip()} "
    titles = PAUSED_TITLES if stand.app.session.paused else TITLES
    places = {footer.find(f" {title} "): name for name, title in titles.items()}
    return [places[place] for place in sorted(places) if place >= 0]


def test_every_command_with_a_short_name_has_a_place() -> None:
    assert sorted(FOOTER) == sorted(TITLES)
    assert len(set(FOOTER)) == len(FOOTER)


async def test_at_the_start_it_is_about_sending() -> None:
    async with dashboard((200, 50), READY) as stand:
        names = shown(stand)
        assert names[:3] == ["short", "long", "burst"]
        assert not {"why", "step_back", "live", "previous_preemption", "abort", "restart"} & set(names)


async def test_once_somebody_was_preempted_it_shows_the_way_back() -> None:
    async with dashboard((80, 24), *stepped("busy")) as stand:
        assert "previous_preemption" not in shown(stand)
    async with dashboard((80, 24), *stepped("preempting")) as stand:
        assert {"short", "previous_preemption", "step_back", "why"} <= set(shown(stand))


async def test_while_it_is_paused_the_key_for_it_goes_on() -> None:
    async with dashboard((80, 24), *stepped("busy")) as stand:
        assert " pause " in stand.lines()[-1]
        await stand.press("space")
        assert " go on " in stand.lines()[-1] and " pause " not in stand.lines()[-1]
        await stand.press("space")
        assert " pause " in stand.lines()[-1]


async def test_in_the_past_it_is_about_travelling() -> None:
    async with dashboard((80, 24), *stepped("preempting")) as stand:
        await stand.press("left_square_bracket")
        names = shown(stand)
        assert {"previous_preemption", "next_preemption", "live", "step_back", "step_forward", "why"} <= set(names)
        assert "short" not in names
        await stand.press("end")
        assert "short" in shown(stand) and "live" not in shown(stand)


async def test_a_dead_engine_can_be_started_again() -> None:
    async with dashboard((60, 16), *stepped("busy"), Failed("gone")) as stand:
        names = shown(stand)
        assert names[0] == "restart" and "short" not in names
        await stand.press("r")
        assert "restart" not in shown(stand)


@pytest.mark.parametrize("state", ["empty", "busy", "preempting"])
async def test_no_key_is_cut_and_help_is_always_there(state: str) -> None:
    async with dashboard((120, 40), *stepped(state), PaceSet(True, 0.0)) as stand:
        for key in ("left", "left"):
            for size in ((60, 16), (80, 24), (100, 30), (120, 40), (200, 50)):
                await stand.resize(*size)
                names = shown(stand)
                assert {"help", "quit"} <= set(names), size
                assert " ".join(PAUSED_TITLES[name] for name in names) == stand.lines()[-1].strip(), (
                    f"{size}: one is cut"
                )
                assert sorted(names, key=FOOTER.index) == names, size
            await stand.press(key)


async def test_it_follows_the_width() -> None:
    async with dashboard((60, 24), *stepped("busy")) as stand:
        narrow = shown(stand)
        await stand.resize(200, 24)
        wide = shown(stand)
        assert set(narrow) < set(wide)
        await stand.resize(60, 24)
        assert shown(stand) == narrow


async def test_a_click_on_a_key_presses_it() -> None:
    async with dashboard((80, 24), *stepped("preempting")) as stand:
        line = stand.lines()[-1]
        await stand.pilot.click(offset=(line.index("[ preempted"), 23))
        await stand.settle()
        assert stand.app.cursor.step is not None
