"""Hints: where nothing runs yet, the screen says how to provoke a preemption and how to get back to it."""

from __future__ import annotations

import pytest

from app.commands import shown_keys
from app.panels.hints import ESSENTIAL, HINTS, MORE, TOO_MUCH, hints
from app.panels.requests import RequestsPanel
from tests.app.support import READY, dashboard, scenario, text_of

KEYS = shown_keys()


def words_of(width: int, height: int) -> str:
    return " ".join(" ".join(map(text_of, hints(KEYS, width, height))).split())


@pytest.mark.parametrize(("width", "height"), [(25, 7), (34, 7), (45, 12), (76, 20), (120, 30)])
def test_what_matters_fits_everywhere(width: int, height: int) -> None:
    lines = hints(KEYS, width, height)
    assert len(lines) <= height and all(len(text_of(line)) <= width + 1 for line in lines)
    for keys, text in ESSENTIAL:
        assert f"{keys.format(**KEYS)} {text}" in words_of(width, height)


def test_where_there_is_room_all_are_there() -> None:
    for keys, text in (*HINTS, *MORE):
        assert f"{keys.format(**KEYS)} {text}" in words_of(76, 20)


def test_keys_are_those_of_the_settings() -> None:
    text = " ".join(map(text_of, hints({**KEYS, "long": "f2", "previous_preemption": "f3"}, 76, 20)))
    assert "f2 f2 f2 f2 b" in text and "f3" in text and "[" not in text


@pytest.mark.parametrize("size", [(60, 16), (80, 24), (120, 40), (200, 50)])
async def test_they_make_way_for_the_first_request(size: tuple[int, int]) -> None:
    async with dashboard(size, READY) as stand:
        region = stand.app.query_one(RequestsPanel).region

        def shown() -> str:
            return " ".join(
                " ".join(line[region.x : region.right] for line in stand.lines()[region.y : region.bottom]).split()
            )

        assert TOO_MUCH.format(**KEYS) in shown() and "who was thrown out for whom" in shown()
        await stand.press("s")
        assert "thrown out" not in shown()


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_no_panel_is_empty_before_the_first_step(size: tuple[int, int]) -> None:
    async with dashboard(size, READY) as stand:
        text = stand.text()
        for hint in ("a column for each step", "what each step decides", "who holds which block", "is told here"):
            assert hint in text
        await stand.play(scenario("busy"))
        assert "a column for each step" not in stand.text()
