"""Looks: colours that can be read and told apart, any theme, few colours or none, and signs that are all ASCII."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from io import StringIO
from itertools import combinations
from pathlib import Path

import pyte
import pytest
from rich.console import Console
from rich.segment import Segments
from textual.geometry import Region
from textual.scrollbar import ScrollBar, ScrollBarRender
from textual.widgets import Input

from app import palette
from app.looks import ASCII, ASCII_IN_PANELS, Looks, palette_of, themes
from app.palette import (
    BACKGROUND,
    CACHED,
    CONTRAST,
    DECODE,
    DIM,
    GROUNDS,
    KIND_GLYPHS,
    KINDS,
    OWNERS,
    PREFILL,
    READ,
    RECOMPUTE,
    contrast,
    palette_for,
    rgb,
)
from app.panels.axis import columns, gutter
from app.panels.budget import GLYPHS, BudgetPanel
from app.panels.panel import Panel, to_strip
from tests.app.color_vision import VISIONS, ciede2000, difference
from tests.app.support import (
    HOSTILE,
    SCENARIOS,
    ScriptedEngine,
    Stand,
    dashboard,
    drawn,
    panel,
    run_cli,
    scenario_view,
    sentence,
    stepped,
    view_of,
)
from tests.app.test_panels import PANELS, fill
from tests.app.test_terminal import Terminal
from tests.engine.support import config

TRUECOLOR = {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
TERMINALS = {
    "truecolor": TRUECOLOR,
    "256": {"TERM": "xterm-256color"},
    "standard": {"TERM": "xterm"},
    "none": {**TRUECOLOR, "NO_COLOR": "1"},
}
SHOWN_THEMES = ("light", "dark", "textual-light", "nord", "solarized-light", "ansi-dark", "ansi-light")
LEAST_APART = 11.0


@pytest.fixture(autouse=True)
def back_to_normal() -> Iterator[None]:
    """Colours are the whole program's."""
    yield
    palette.use(palette_for(dark=True))
    ScrollBar.renderer = ScrollBarRender


def use_terminal(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for variable in ("TERM", "COLORTERM", "NO_COLOR"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in TERMINALS[name].items():
        monkeypatch.setenv(variable, value)


def on_terminal(stand: Stand) -> pyte.Screen:
    """What a terminal shows of what the dashboard writes."""
    strips = stand.app.screen._compositor.render_strips()
    width, height = stand.app.size
    screen = pyte.Screen(width, height)
    stream = pyte.Stream(screen)
    for y, strip in enumerate(strips):
        stream.feed(f"\x1b[{y + 1};1H{strip.render(stand.app.console)}")
    return screen


def colors_of(char: pyte.screens.Char) -> tuple[str, str]:
    """Fore- and background as they are seen, in rich's names."""
    seen = (char.bg, char.fg) if char.reverse else (char.fg, char.bg)
    text, ground = (_rich_name(color) for color in seen)
    return text, ground


def _rich_name(color: str) -> str:
    if re.fullmatch("[0-9a-f]{6}", color):
        return f"#{color}"
    return color.replace("brown", "yellow").replace("bright", "bright_")


def cells(screen: pyte.Screen) -> Iterator[tuple[int, int, pyte.screens.Char]]:
    for y in range(screen.lines):
        for x in range(screen.columns):
            yield x, y, screen.buffer[y][x]


# The palettes.


@pytest.mark.parametrize("name", [name for name, theme in themes().items() if not theme.ansi])
def test_all_that_must_be_read_has_contrast(name: str) -> None:
    """On both grounds of our themes and of all of Textual's, and as letters on a filled cell."""
    colors = palette_of(themes()[name]).colors
    for role, least in CONTRAST.items():
        for ground in GROUNDS:
            assert contrast(rgb(colors[role]), rgb(colors[ground])) >= least, (role, ground)
    assert all(CONTRAST[role] >= 4.5 for role in READ)
    assert CONTRAST[DIM] >= 3


def test_contrast_is_the_one_of_wcag() -> None:
    assert contrast(rgb("#000000"), rgb("#ffffff")) == pytest.approx(21)
    assert contrast(rgb("#777777"), rgb("#ffffff")) == pytest.approx(4.48, abs=0.01)


def test_the_difference_is_the_published_one() -> None:
    """Pairs 1, 7 and 25 of Sharma, Wu and Dalal."""
    assert ciede2000((50, 2.6772, -79.7751), (50, 0, -82.7485)) == pytest.approx(2.0425, abs=1e-4)
    assert ciede2000((50, 0, 0), (50, -1, 2)) == pytest.approx(2.3669, abs=1e-4)
    assert ciede2000((60.2574, -34.0099, 36.2677), (60.4626, -34.1751, 39.4387)) == pytest.approx(1.2644, abs=1e-4)


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("name", ["dark", "light"])
def test_kinds_can_be_told_apart_by_all_eyes(name: str, vision: str) -> None:
    colors = palette_of(themes()[name]).colors
    apart = {
        (one, other): difference(rgb(colors[one]), rgb(colors[other]), vision) for one, other in combinations(KINDS, 2)
    }
    closest = min(apart, key=lambda pair: apart[pair])
    assert apart[closest] >= LEAST_APART, closest


def test_owners_have_hues_of_their_own() -> None:
    for name in ("dark", "light"):
        colors = palette_of(themes()[name]).colors
        assert len({colors[owner] for owner in OWNERS}) == len(OWNERS)


def test_colors_stand_in_the_palette_only() -> None:
    folder = Path(palette.__file__).parent
    for path in (*folder.rglob("*.py"), *folder.rglob("*.tcss")):
        if path.name != "palette.py":
            assert not re.findall(r"#[0-9a-fA-F]{6}\b", path.read_text(encoding="utf-8")), path


def test_another_palette_empties_what_was_made_with_the_last() -> None:
    made = []

    @palette.cached
    def look() -> object:
        made.append(palette.style(DECODE))
        return made[-1]

    palette.use(palette_for(dark=True))
    assert look() is look()
    palette.use(palette_for(dark=False))
    assert look() is made[-1]
    assert len(made) == 2
    assert made[0] != made[1]


# Themes.


def grounds_of(screen: pyte.Screen) -> Counter[str]:
    return Counter(colors_of(char)[1] for _, _, char in cells(screen))


def main_ground(screen: pyte.Screen) -> str:
    return grounds_of(screen).most_common(1)[0][0]


async def test_everything_follows_the_theme(monkeypatch: pytest.MonkeyPatch) -> None:
    use_terminal(monkeypatch, "truecolor")
    async with dashboard((120, 40), *stepped("preempting")) as stand:
        assert main_ground(on_terminal(stand)) == "#11161d"
        for name in SHOWN_THEMES:
            stand.app.theme = name
            await stand.settle()
            wanted = palette_of(themes()[name])
            screen = on_terminal(stand)
            fills = {wanted.ground(role) for role in (*KINDS, *OWNERS)}
            assert main_ground(screen) == wanted.ground(BACKGROUND), name
            assert set(grounds_of(screen)) <= fills | {wanted.ground(ground) for ground in GROUNDS}, name
            if not wanted.terminal_ground:
                check_contrast(screen, Region(0, 0, 120, 40), name)


def check_contrast(screen: pyte.Screen, box: Region, what: str, least: float = 3) -> None:
    """All letters and figures in this part of the screen can be read."""
    for x, y, char in cells(screen):
        if char.data.isalnum() and box.contains(x, y):
            text, ground = colors_of(char)
            assert contrast(rgb(text), rgb(ground)) >= least, (what, x, y, char)


async def test_the_theme_is_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    use_terminal(monkeypatch, "truecolor")
    async with dashboard((120, 40), *stepped("busy"), theme="light") as stand:
        assert main_ground(on_terminal(stand)) == palette_for(dark=False).colors[BACKGROUND]


async def test_a_theme_is_chosen_by_key(monkeypatch: pytest.MonkeyPatch) -> None:
    use_terminal(monkeypatch, "truecolor")
    async with dashboard((120, 40), *stepped("busy")) as stand:
        await stand.press("C")
        stand.app.screen.query_one(Input).value = "solarized-light"
        await stand.until(lambda: "solarized-light" in stand.text())
        await stand.settle()
        await stand.press("enter")
        await stand.until(lambda: stand.app.theme == "solarized-light")


async def test_an_open_screen_follows_the_theme(monkeypatch: pytest.MonkeyPatch) -> None:
    use_terminal(monkeypatch, "truecolor")
    async with dashboard((120, 40), *stepped("preempting")) as stand:
        for key in ("question_mark", "e", "w", "p", "T", "i", "enter"):
            stand.app.theme = "dark"
            await stand.press(key)
            assert len(stand.app.screen_stack) == 2, key
            stand.app.theme = "light"
            await stand.settle()
            check_contrast(on_terminal(stand), stand.app.screen.children[0].region, key)
            await stand.press("escape")


def test_an_unknown_theme_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    result = run_cli(capsys, "--theme", "pink")
    assert result.code == 2
    result.check_short()
    assert "'pink'" in result.err
    assert "dark, light, textual-dark" in result.err


# Few colours.


@pytest.mark.parametrize("system", TERMINALS)
async def test_nothing_vanishes(monkeypatch: pytest.MonkeyPatch, system: str) -> None:
    use_terminal(monkeypatch, system)
    async with dashboard((120, 40), *stepped("preempting")) as stand:
        for theme in ("dark", "light"):
            stand.app.theme = theme
            await stand.settle()
            screen = on_terminal(stand)
            for x, y, char in cells(screen):
                if char.data.isspace() or not char.data:
                    continue
                text, ground = colors_of(char)
                if system == "none":
                    assert (text, ground) == ("default", "default"), (theme, x, y, char)
                else:
                    assert text != ground, (theme, x, y, char)
            if system != "none":
                check_contrast(screen, Region(0, 0, 120, 40), theme, least=2)


@pytest.mark.parametrize("name", ["busy", "preempting"])
@pytest.mark.parametrize("system", ["256", "standard", None])
@pytest.mark.parametrize("kind", PANELS)
def test_a_panel_through_rich(kind: type[Panel], system: str | None, name: str) -> None:
    """The same by way of rich's own console, and for each panel alone."""
    looks = Looks(colors=system, ascii=False)
    looks.use(colors := palette_for(dark=True))
    palette.use(colors, textured=looks.is_textured)
    made = panel(kind, scenario_view(name))
    fill(made, "1")
    width = 76
    written = StringIO()
    console = Console(color_system=system, force_terminal=True, file=written, width=width, legacy_windows=False)  # type: ignore[arg-type]
    lines = made.draw(width, 20)
    for line in lines:
        segments = list(to_strip(line, width))
        for one in looks.filters([]):
            segments = one.apply(segments, None)  # type: ignore[arg-type]
        console.print(Segments(segments), end="\n")
    screen = pyte.Screen(width, len(lines))
    pyte.Stream(screen).feed(written.getvalue().rstrip("\n").replace("\n", "\r\n"))
    for x, y, char in cells(screen):
        if char.data.strip() and system:
            text, ground = colors_of(char)
            assert text != ground, (x, y, char)
    assert "\n".join(screen.display).strip()


async def test_without_colors_none_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    use_terminal(monkeypatch, "none")
    async with dashboard((120, 40), *stepped("preempting")) as stand:
        for strip in stand.app.screen._compositor.render_strips():
            codes = {
                code
                for found in re.findall(r"\x1b\[([\d;]*)m", strip.render(stand.app.console))
                for code in found.split(";")
            }
            assert codes <= {"", "0", "1", "2", "7"}, codes


async def test_without_colors_a_filled_cell_is_reversed(monkeypatch: pytest.MonkeyPatch) -> None:
    use_terminal(monkeypatch, "none")
    async with dashboard((120, 40), *stepped("busy")) as stand:
        screen = on_terminal(stand)
        row = next(y for y, line in enumerate(screen.display) if line.startswith("▸ a "))
        letter = screen.buffer[row][2]
        assert letter.data == "a"
        assert letter.reverse
        assert not screen.buffer[row][6].reverse


async def test_dim_text_stays_dim_without_colors(monkeypatch: pytest.MonkeyPatch) -> None:
    use_terminal(monkeypatch, "none")
    async with dashboard((120, 40), *stepped("busy")) as stand:
        strip = stand.app.screen._compositor.render_strips()[2]
        look = next(segment.style for segment in strip if segment.text.startswith("this step"))
        assert look is not None
        assert look.dim


# Kinds without colours.


def kinds_of(view_name: str) -> None:
    """Each column of the budget has the signs of just those kinds that the step had."""
    view = scenario_view(view_name)
    width, height = 100, 16
    lines = drawn(panel(BudgetPanel, view).draw(width, height), height)[1:-1]
    bars = columns(view, width)
    for x, bar in enumerate(bars, width - len(bars)):
        seen = {line[x] for line in lines} & set(GLYPHS.values())
        amounts = {DECODE: bar.decode, PREFILL: bar.prefill, RECOMPUTE: bar.recompute, CACHED: bar.cached}
        assert seen == {GLYPHS[kind] for kind, amount in amounts.items() if amount}, bar
    assert gutter(width) < width - len(bars)


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name != "empty"])
def test_kinds_have_signs_where_there_are_no_colors(name: str) -> None:
    palette.use(palette_for(dark=True), textured=True)
    kinds_of(name)


def test_signs_are_as_high_as_their_tokens() -> None:
    palette.use(palette_for(dark=True), textured=True)
    stage = ScriptedEngine(config(blocks=40, bs=8, budget=64, seqs=8, length=128))
    stage.add(sentence(32), 8)
    stage.step()
    lines = drawn(panel(BudgetPanel, view_of(stage.traces)).draw(80, 10), 10)[1:-1]
    assert [line[-1] for line in lines] == ["┈", " ", " ", " ", "█", "█", "█", "█"]


def test_the_stand_ins_of_the_kinds_differ() -> None:
    signs = [*KIND_GLYPHS.values(), palette.PREEMPTED_GLYPH, palette.CACHED_GLYPH]
    for table in (ASCII, ASCII_IN_PANELS):
        assert len({table.translate(sign) for sign in signs}) == len(signs)
    assert [ASCII.translate(GLYPHS[kind]) for kind in (DECODE, PREFILL, RECOMPUTE)] == ["=", "#", "%"]


# ASCII.


@pytest.mark.parametrize("kind", PANELS)
def test_every_sign_of_a_panel_has_a_stand_in(kind: type[Panel]) -> None:
    """As wide as it was; a question mark would be a sign that was forgotten."""
    for name in SCENARIOS:
        if name == "hostile":
            continue
        made = panel(kind, scenario_view(name))
        fill(made, "1")
        for line in made.draw(100, 30):
            strip = to_strip(line, 100)
            plain = strip.apply_filter(ASCII_IN_PANELS, None)  # type: ignore[arg-type]
            assert plain.text.isascii(), (name, plain.text)
            assert plain.text.count("?") == len(re.findall("[?\u2400-\u241f]", strip.text)), (name, strip.text)
            assert len(plain.text) == strip.cell_length, (name, strip.text)


WALK = (
    *("question_mark", "right", "right", "right", "right", "escape", "e", "escape", "w", "escape", "p", "escape"),
    *("T", "escape", "i", "a", "escape", "enter", "escape", "C", "escape", "ctrl+p", "escape"),
    *("tab", "m", "m", "t", "left"),
)
"""Through all the screens that there are."""


async def test_every_screen_is_ascii() -> None:
    async with dashboard((120, 40), *stepped("preempting"), toasts=True, ascii=True) as stand:
        for key in WALK:
            await stand.press(key)
            text = stand.text()
            assert text.isascii(), (key, [sign for sign in text if not sign.isascii()])
            assert not re.search(r"\?[?─ ]*\?", text), (key, text)


async def test_arrow_keys_have_names() -> None:
    async with dashboard((120, 40), *stepped("preempting"), ascii=True) as stand:
        assert " left back" in stand.lines()[-1]


async def test_ascii_says_nothing_that_a_terminal_acts_on() -> None:
    async with dashboard((120, 40), *stepped("hostile"), ascii=True) as stand:
        text = stand.text()
    assert text.isascii()
    assert "[bold red]hi[/] ?[31m." in text
    assert HOSTILE not in text
    assert "\x1b" not in text


async def test_wide_text_becomes_as_many_question_marks_as_it_had_cells() -> None:
    assert ASCII.translate("a模型é\u0301b") == "a?????b"
    assert ASCII.translate("😀") == "??"


async def test_the_budget_in_ascii() -> None:
    async with dashboard((120, 40), *stepped("preempting"), ascii=True) as stand:
        region = stand.app.query_one("#budget").region
        lines = [line[region.x : region.right] for line in stand.lines()[region.y : region.bottom]]
    assert {"#", "=", "%"} <= set("".join(lines[1:-1]))
    assert "v" in lines[-1]


# What is chosen, without colours.


async def test_what_is_chosen_is_seen_without_colors(monkeypatch: pytest.MonkeyPatch) -> None:
    use_terminal(monkeypatch, "none")
    async with dashboard((120, 40), *stepped("preempting")) as stand:

        def reversed_words() -> set[str]:
            screen = on_terminal(stand)
            lines = ("".join(char.data if char.reverse else "\n" for _, _, char in _row(screen, y)) for y in range(40))
            return {word.strip() for line in lines for word in line.split("\n")}

        assert not {"Token budget", "Waste"} & reversed_words()
        await stand.press("tab")
        focused = stand.app.focused
        assert focused is not None
        title = stand.lines()[focused.region.y][focused.region.x :].split(" ═")[0]
        assert title in reversed_words()
        for key, option in (("T", "Token budget"), ("ctrl+p", None), ("C", None), ("e", None)):
            before = reversed_words()
            await stand.press(key)
            await stand.press("down")
            found = {word for word in reversed_words() - before if len(word) > 3}
            assert found, key
            assert option is None or any("Requests" in word or option in word for word in found)
            await stand.press("escape")


def _row(screen: pyte.Screen, y: int) -> Iterator[tuple[int, int, pyte.screens.Char]]:
    return ((x, y, screen.buffer[y][x]) for x in range(screen.columns))


async def test_the_place_in_the_history_is_seen_without_colors(monkeypatch: pytest.MonkeyPatch) -> None:
    use_terminal(monkeypatch, "none")
    async with dashboard((120, 40), *stepped("preempting")) as stand:
        region = stand.app.query_one("#timeline").region

        def marked() -> int:
            screen = on_terminal(stand)
            return sum(screen.buffer[y][x].reverse for y in range(region.y, region.bottom) for x in range(region.width))

        assert not marked()
        await stand.press("left")
        assert marked() == 1


# The real program.


def test_a_linux_console_gets_ascii() -> None:
    terminal = Terminal("--model", "tiny", environment={"TERM": "linux", "COLORTERM": ""})
    try:
        terminal.wait_for("idle")
        terminal.press("sl")
        terminal.wait_for("finished 2")
        terminal.press("q")
        assert terminal.wait() == 0
        assert terminal.written.isascii()
    finally:
        terminal.close()


def test_no_color_means_none() -> None:
    terminal = Terminal("--model", "tiny", environment={"NO_COLOR": "1"})
    try:
        terminal.wait_for("idle")
        terminal.press("s")
        terminal.wait_for("finished 1")
        terminal.press("q")
        assert terminal.wait() == 0
        codes = {code for found in re.findall(rb"\x1b\[([\d;]*)m", terminal.written) for code in found.split(b";")}
        assert codes <= {b"", b"0", b"1", b"2", b"4", b"7"}, codes
    finally:
        terminal.close()
