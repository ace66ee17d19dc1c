"""Which panels are shown, which has the focus, and which fills the screen."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from app import protocol
from app.panels.panel import Panel, Part
from app.protocol import Failed, Stepped
from app.screens.panels import TITLES, PanelsScreen
from tests.app.support import READY, ScriptedEngine, Stand, dashboard, scenario, stepped, view_of
from tests.engine.support import config

SIZES = [(60, 16), (80, 24), (120, 40), (200, 50)]
RIGHT = {"step", "blocks", "events", "output"}


def shown(stand: Stand) -> set[str]:
    """The panels that are on the screen, each with its title at the beginning."""
    return set(headings(stand))


def headings(stand: Stand) -> dict[str, str]:
    lines = stand.lines()
    regions = {name: panel_of(stand, name).region for name in TITLES if panel_of(stand, name).is_on_screen}
    found = {name: lines[region.y][region.x : region.right] for name, region in regions.items()}
    for panel_id, heading in found.items():
        assert heading.startswith(TITLES[panel_id])
    return found


def panel_of(stand: Stand, panel_id: str) -> Panel:
    return stand.app.default_screen.query_one(f"#{panel_id}", Panel)


def heading_of(stand: Stand, panel_id: str) -> str:
    region = panel_of(stand, panel_id).region
    return stand.lines()[region.y][region.x : region.right]


def chosen(stand: Stand) -> list[str]:
    """The panels that the screen marks as having the focus, by sign and not by colour."""
    return [panel_id for panel_id, heading in headings(stand).items() if "═" in heading]


def panels(stand: Stand) -> list[str]:
    """The screen without its footer."""
    return stand.lines()[:-1]


async def toggle(stand: Stand, *panel_ids: str) -> None:
    """Show or hide these by way of the list."""
    await stand.press("T")
    keys = [key for panel_id in panel_ids for key in ("home", *["down"] * list(TITLES).index(panel_id), "space")]
    await stand.press(*keys, "escape")


# Measures.


@pytest.mark.parametrize("size", SIZES)
async def test_a_key_shows_and_hides_latency_and_waste(size: tuple[int, int]) -> None:
    async with dashboard(size, *stepped("busy")) as stand:
        measures = {"latency", "waste"}
        by_default = size[1] >= 46
        assert shown(stand) & measures == (measures if by_default else set())
        before = panels(stand)
        for time in range(2):
            await stand.press("t")
            expected = by_default == bool(time)
            assert shown(stand) & measures == (measures if expected else set())
            if expected:
                assert "longest ITL" in stand.text() and "unused" in heading_of(stand, "waste")
                assert panel_of(stand, "requests").size.height >= 4
        assert panels(stand) == before


async def test_no_panel_is_cut_off() -> None:
    async with dashboard((120, 40), *stepped("busy")) as stand:
        await stand.press("t")
        for size in SIZES:
            await stand.resize(*size)
            body = stand.app.query_one("#body").region
            for panel_id in shown(stand) - {"timeline"}:
                assert body.contains_region(panel_of(stand, panel_id).region), (size, panel_id)


async def test_what_was_chosen_stays_through_other_sizes() -> None:
    async with dashboard((120, 40), *stepped("busy")) as stand:
        await stand.press("t")
        for size in SIZES:
            await stand.resize(*size)
            assert shown(stand) >= {"latency", "waste"}
        await stand.press("t")
        for size in SIZES:
            await stand.resize(*size)
            assert not shown(stand) & {"latency", "waste"}


async def test_measures_come_and_go_with_the_height() -> None:
    async with dashboard((120, 40), *stepped("busy")) as stand:
        for height, expected in ((46, True), (45, False), (60, True)):
            await stand.resize(120, height)
            assert ("latency" in shown(stand)) is expected


async def test_the_past_has_its_own_measures() -> None:
    traces = scenario("busy")
    async with dashboard((200, 50), *stepped("busy")) as stand:
        await stand.press("left", "left", "left")
        view = view_of(traces[:-3])
        assert stand.app.cursor.step == traces[-4].step
        assert view.totals.computed != view_of(traces).totals.computed
        assert f"{view.totals.computed} tokens computed" in stand.text()
        region = panel_of(stand, "latency").region
        text = "\n".join(line[region.x : region.right] for line in stand.lines()[region.y : region.bottom])
        assert f" {len(view.samples['itl'])} " in text


# The list of panels.


async def test_the_list_marks_what_is_shown() -> None:
    async with dashboard((120, 40), *stepped("busy")) as stand:
        before = shown(stand)
        assert "step" in before and "latency" not in before
        await stand.press("T")
        assert isinstance(stand.app.screen, PanelsScreen)
        text = stand.text()
        for panel_id, title in TITLES.items():
            assert (f"✓ {title}" in text) == (panel_id in before)


async def test_each_panel_can_be_hidden_and_shown() -> None:
    async with dashboard((120, 40), *stepped("busy")) as stand:
        before = panels(stand)
        for _ in range(2):
            for panel_id in TITLES:
                expected = shown(stand) ^ {panel_id}
                await toggle(stand, panel_id)
                assert shown(stand) == expected
        assert panels(stand) == before


async def test_the_mouse_changes_the_list_too() -> None:
    async with dashboard((120, 40), *stepped("busy")) as stand:
        await stand.press("T")
        for expected in (False, True, False):
            await stand.pilot.click("#panels", offset=(5, 1 + list(TITLES).index("blocks")))
            await stand.settle()
            assert (f"✓ {TITLES['blocks']}" in stand.text()) is expected
        await stand.press("escape")
        assert "blocks" not in shown(stand)


async def test_a_list_that_changes_nothing_fixes_nothing() -> None:
    async with dashboard((120, 40), *stepped("busy")) as stand:
        before = panels(stand)
        await toggle(stand)
        assert panels(stand) == before
        await stand.resize(120, 50)
        assert "latency" in shown(stand), "it still comes with the height"


@pytest.mark.parametrize("hidden", [("events", "output"), ("events", "output", "blocks"), ("requests",)])
async def test_others_take_the_room(hidden: tuple[str, ...]) -> None:
    """No row of a column stays empty below its last panel."""
    async with dashboard((120, 40), *stepped("busy")) as stand:
        await toggle(stand, *hidden)
        body = stand.app.query_one("#body").region
        bottoms = {panel_of(stand, panel_id).region.bottom for panel_id in shown(stand) - {"timeline"}}
        assert body.bottom in bottoms
        column = RIGHT if hidden[0] in RIGHT else set(TITLES) - RIGHT - {"timeline"}
        assert max(panel_of(stand, panel_id).region.bottom for panel_id in shown(stand) & column) == body.bottom
        await toggle(stand, *hidden)
        assert panel_of(stand, "budget").size.height == 12


@pytest.mark.parametrize("kept", ["left", "right"])
async def test_a_column_without_panels_leaves_its_room(kept: str) -> None:
    async with dashboard((120, 40), *stepped("busy")) as stand:
        left = shown(stand) - RIGHT - {"timeline"}
        gone = RIGHT if kept == "left" else left
        before = panels(stand)
        await toggle(stand, *gone)
        assert not shown(stand) & gone
        kept_panel = panel_of(stand, "budget" if kept == "left" else "step")
        assert kept_panel.size.width > 110
        await toggle(stand, *gone)
        assert panels(stand) == before


async def test_nothing_at_all_can_be_shown() -> None:
    async with dashboard((120, 40), *stepped("busy")) as stand:
        before = shown(stand)
        await toggle(stand, *before)
        assert not shown(stand)
        await stand.press("s", "j", "left", "tab", "m")
        assert "step" in stand.lines()[0]
        await toggle(stand, *before)
        assert shown(stand) == before


async def test_hidden_panels_are_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = ScriptedEngine(config(blocks=40, bs=8, budget=64, seqs=4, length=128))
    stage.add(max_tokens=30)
    async with dashboard((120, 40), READY, Stepped(stage.step())) as stand:
        await toggle(stand, "budget")
        drawings: list[str] = []

        def watch(panel: Panel) -> None:
            draw = panel.draw

            def drawing(width: int, height: int) -> Sequence[Sequence[Part]]:
                drawings.append(str(panel.id))
                return draw(width, height)

            monkeypatch.setattr(panel, "draw", drawing)

        watch(panel_of(stand, "budget"))
        watch(panel_of(stand, "step"))
        await stand.feed(Stepped(stage.step()))
        assert set(drawings) == {"step"}
        await toggle(stand, "budget")
        assert "1 decode" in stand.text(), "it shows the newest step as soon as it is back"


# Focus.


async def test_nothing_has_the_focus_at_first() -> None:
    async with dashboard((120, 40), *stepped("busy")) as stand:
        assert stand.app.focused is None and chosen(stand) == []
        await stand.press("question_mark")
        await stand.press("escape")
        assert stand.app.focused is None and chosen(stand) == []


async def test_tab_goes_through_the_panels_and_back() -> None:
    async with dashboard((120, 40), *stepped("busy")) as stand:
        order = ["budget", "requests", "step", "blocks", "events", "output"]
        for panel_id in order:
            await stand.press("tab")
            assert chosen(stand) == [panel_id]
        for panel_id in order[-2:-4:-1]:
            await stand.press("shift+tab")
            assert chosen(stand) == [panel_id]
        await stand.press("escape")
        assert chosen(stand) == []


async def test_a_click_chooses_a_panel() -> None:
    async with dashboard((120, 40), *stepped("busy")) as stand:
        await stand.pilot.click("#blocks", offset=(3, 3))
        await stand.settle()
        assert chosen(stand) == ["blocks"]
        await stand.pilot.click("#header", offset=(3, 0))
        await stand.settle()
        assert "═" not in stand.lines()[0]


@pytest.mark.parametrize("panel_id", ["requests", "events"])
async def test_keys_work_whatever_has_the_focus(panel_id: str) -> None:
    traces = scenario("busy")
    async with dashboard((200, 50), *stepped("busy")) as stand:
        panel_of(stand, panel_id).focus()
        await stand.settle()
        assert chosen(stand) == [panel_id]
        await stand.press("down", "j", "up")
        assert stand.app.selection.request_id == "2"
        await stand.press("left", "left", "right")
        assert stand.app.cursor.step == traces[-2].step
        await stand.press("home")
        assert stand.app.cursor.step == traces[0].step
        await stand.press("end", "s")
        assert any(isinstance(command, protocol.AddRequest) for command in stand.source.take_sent())
        await stand.press("space")
        assert protocol.SetPaused(False) in stand.source.take_sent()
        assert chosen(stand) == [panel_id]


async def test_focus_survives_steps_and_sizes() -> None:
    traces = scenario("busy")
    async with dashboard((120, 40), READY, *map(Stepped, traces[:5])) as stand:
        await stand.press("tab", "tab")
        await stand.play(traces[5:])
        assert chosen(stand) == ["requests"]
        for size in SIZES:
            await stand.resize(*size)
            assert chosen(stand) == ["requests"]


async def test_a_panel_that_is_hidden_loses_the_focus() -> None:
    async with dashboard((120, 40), *stepped("busy")) as stand:
        await stand.press("tab", "tab", "tab")
        assert chosen(stand) == ["step"]
        await toggle(stand, "step")
        assert "step" not in shown(stand)
        await stand.press("tab")
        assert len(chosen(stand)) == 1


# Maximising.


@pytest.mark.parametrize(("size", "back"), list(zip(SIZES, ["m", "escape"] * 2, strict=True)))
async def test_a_panel_fills_the_screen_and_goes_back(size: tuple[int, int], back: str) -> None:
    async with dashboard(size, *stepped("busy")) as stand:
        await stand.press("tab")
        before = panels(stand)
        await stand.press("m")
        assert shown(stand) - {"timeline"} == {"budget"} and chosen(stand) == ["budget"]
        budget = panel_of(stand, "budget").region
        assert budget.width >= size[0] - 2 and budget.height >= size[1] - 4
        assert "nanoviz" in stand.lines()[0] and "short" in stand.lines()[-1]
        await stand.press(back)
        assert panels(stand) == before


async def test_a_maximised_panel_goes_on() -> None:
    traces = scenario("busy")
    async with dashboard((120, 40), READY, *map(Stepped, traces[:5])) as stand:
        await stand.press("tab", "tab", "m")
        await stand.play(traces[5:])
        text = stand.text()
        assert "running 7" in text and f"step {traces[-1].step}" in stand.lines()[0]
        assert f"last {panel_of(stand, 'requests').size.width - 29} steps" in text
        await stand.press("m")
        assert f"Step {traces[-1].step}" in stand.text(), "so do the others behind it"


async def test_every_panel_can_fill_the_screen() -> None:
    async with dashboard((200, 50), *stepped("preempting")) as stand:
        for panel_id in ("requests", "latency", "waste", *sorted(RIGHT)):
            panel_of(stand, panel_id).focus()
            await stand.press("m")
            assert shown(stand) - {"timeline"} == {panel_id}
            await stand.press("m")


async def test_what_fills_the_screen_does_so_at_every_size() -> None:
    """Also where it would be hidden beside the others."""
    async with dashboard((200, 50), *stepped("preempting")) as stand:
        for panel_id in ("requests", "latency", "blocks"):
            await stand.resize(200, 50)
            panel_of(stand, panel_id).focus()
            await stand.press("m")
            for size in SIZES:
                await stand.resize(*size)
                assert shown(stand) - {"timeline"} == {panel_id}, size
                assert panel_of(stand, panel_id).region.width >= size[0] - 2, size
            await stand.press("m")


async def test_what_fills_the_screen_can_be_hidden() -> None:
    async with dashboard((120, 40), *stepped("busy")) as stand:
        await stand.press("tab", "m")
        await toggle(stand, "budget")
        assert "budget" not in shown(stand) and "requests" in shown(stand)


async def test_a_double_click_on_a_heading_maximises() -> None:
    async with dashboard((120, 40), *stepped("busy")) as stand:
        before = panels(stand)
        await stand.pilot.click("#blocks", offset=(3, 0), times=2)
        await stand.settle()
        assert shown(stand) - {"timeline"} == {"blocks"}
        await stand.pilot.click("#blocks", offset=(3, 0), times=2)
        await stand.settle()
        await stand.press("escape")
        assert panels(stand) == before
        await stand.pilot.click("#blocks", offset=(3, 2), times=2)
        await stand.settle()
        assert "requests" in shown(stand), "below the heading it is only a click"


async def test_maximising_nothing_says_how() -> None:
    async with dashboard((120, 40), *stepped("busy"), toasts=True) as stand:
        await stand.press("m")
        assert "tab or a click" in " ".join(stand.text().split())


async def test_escape_lets_go_of_one_thing_at_a_time() -> None:
    """First of the panel that fills the screen, then of the past, then of the focus and the selection."""
    async with dashboard((120, 40), *stepped("busy")) as stand:
        await stand.press("j", "tab", "left", "m")
        await stand.press("escape")
        assert "requests" in shown(stand) and stand.app.cursor.steps_back == 1
        await stand.press("escape")
        assert (
            stand.app.cursor.steps_back == 0 and chosen(stand) == ["budget"] and stand.app.selection.request_id == "2"
        )
        await stand.press("escape")
        assert chosen(stand) == [] and stand.app.selection.request_id == "1"


async def test_the_end_of_the_engine_is_told_over_a_maximised_panel() -> None:
    async with dashboard((120, 40), *stepped("busy")) as stand:
        await stand.press("tab", "m")
        await stand.feed(Failed("the engine's process was killed by signal 9 (SIGKILL)."))
        lines = stand.lines()
        assert "nanoviz" in lines[0] and "signal 9" in lines[1]
        heading = next(index for index, line in enumerate(lines) if "Token budget" in line)
        assert heading == 3, "below both lines of the banner"


async def test_too_small_a_screen_says_so_when_maximised_too() -> None:
    async with dashboard((120, 40), *stepped("busy")) as stand:
        await stand.press("tab", "m")
        await stand.resize(40, 12)
        assert "nanoviz needs 60" in stand.text() and not shown(stand)
        await stand.resize(120, 40)
        assert shown(stand) - {"timeline"} == {"budget"}
