"""The colours and their meaning: kinds of tokens, owners of blocks, and quiet text.

A colour is a role such as DECODE; what it looks like, the palette in force says. That people with a colour blindness
can tell the kinds apart was found by simulating protanopia, deuteranopia and tritanopia (Machado, Oliveira and
Fernandes, 2009, at full severity) and measuring each two kinds by CIEDE2000, where they are 11 or more apart;
tests/app/test_looks.py measures it again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import _lru_cache_wrapper, cached_property, lru_cache
from typing import TypeVar, cast

from rich.color import Color, ColorType, blend_rgb
from rich.color_triplet import ColorTriplet
from rich.style import Style
from rich.terminal_theme import DEFAULT_TERMINAL_THEME

Function = TypeVar("Function", bound=Callable[..., object])

BACKGROUND, SURFACE = "background", "surface"
BRIGHT, TEXT, DIM, FAINT = "bright", "text", "dim", "faint"
DECODE, PREFILL, RECOMPUTE = "decode", "prefill", "recompute"
PREEMPTED, WAITING, CACHED = "preempted", "waiting", "cached"
OWNERS = tuple(f"owner-{number}" for number in range(12))
"""One after another by arrival. There are more letters than hues: the letter says who, the hue helps to find it."""

GROUNDS = (BACKGROUND, SURFACE)
KINDS = (DECODE, PREFILL, RECOMPUTE, PREEMPTED, WAITING, CACHED)
READ = (BRIGHT, TEXT, *KINDS, *OWNERS)
"""What must be read, or is a ground for letters."""
CONTRAST = {**dict.fromkeys(READ, 4.5), DIM: 3.0, FAINT: 1.35}
"""Least contrast of each with any ground, as WCAG 2 defines it. What is FAINT is no text."""

KIND_COLORS = {"decode": DECODE, "prefill": PREFILL, "recompute": RECOMPUTE, "waiting": WAITING}
KIND_GLYPHS = {"decode": "▪", "prefill": "█", "recompute": "▒", "waiting": "·"}
PREEMPTED_GLYPH = "×"
CACHED_GLYPH = "░"

_DARK = {
    BACKGROUND: "#11161d",
    SURFACE: "#1b222b",
    BRIGHT: "#f2f5f8",
    TEXT: "#b9c2cc",
    DIM: "#6d7783",
    FAINT: "#3a434e",
    DECODE: "#1fc79f",
    PREFILL: "#4590ff",
    RECOMPUTE: "#eb930f",
    PREEMPTED: "#ff4d78",
    WAITING: "#f2e45c",
    CACHED: "#a79fc8",
}
_DARK_OWNERS = (
    *("#45c4f0", "#ffc24b", "#8fbc6a", "#f5772f", "#c7b3ff", "#44a58a"),
    *("#f58ad0", "#84ef96", "#e07b62", "#8ca0ff", "#ffd9ab", "#c0d860"),
)
_LIGHT = {
    BACKGROUND: "#f6f8fa",
    SURFACE: "#e8edf2",
    BRIGHT: "#0b1016",
    TEXT: "#333c46",
    DIM: "#6b7580",
    FAINT: "#c3ccd5",
    DECODE: "#03785d",
    PREFILL: "#0066cf",
    RECOMPUTE: "#763300",
    PREEMPTED: "#be3755",
    WAITING: "#766c00",
    CACHED: "#655f82",
}
_LIGHT_OWNERS = (
    *("#00708f", "#8a6100", "#4d7222", "#b03f00", "#6b4fc4", "#007259"),
    *("#a8328a", "#1b7a2b", "#9c3d24", "#3f56c9", "#7a5a35", "#5b6b00"),
)
_ANSI_DARK = {
    BACKGROUND: "black",
    SURFACE: "black",
    BRIGHT: "bright_white",
    TEXT: "white",
    DIM: "bright_black",
    FAINT: "bright_black",
    DECODE: "green",
    PREFILL: "bright_blue",
    RECOMPUTE: "yellow",
    PREEMPTED: "bright_red",
    WAITING: "bright_yellow",
    CACHED: "bright_cyan",
}
_ANSI_DARK_OWNERS = (
    *("cyan", "yellow", "green", "red", "bright_magenta", "bright_cyan"),
    *("magenta", "bright_green", "bright_red", "bright_blue", "bright_yellow", "white"),
)
_ANSI_LIGHT = {  # green, yellow and cyan cannot be read on white
    BACKGROUND: "white",
    SURFACE: "white",
    BRIGHT: "black",
    TEXT: "black",
    DIM: "bright_black",
    FAINT: "bright_black",
    DECODE: "black",
    PREFILL: "blue",
    RECOMPUTE: "magenta",
    PREEMPTED: "red",
    WAITING: "bright_black",
    CACHED: "bright_blue",
}
_ANSI_LIGHT_OWNERS = ("blue", "red", "magenta", "black", "bright_black", "bright_blue") * 2


@dataclass(frozen=True)
class Palette:
    """What each role looks like, in colours as rich names them."""

    dark: bool
    colors: Mapping[str, str]
    sixteen: Mapping[str, str]
    """The same for a terminal of sixteen colours; there the names are the terminal's own."""
    terminal_ground: bool = False
    """The background is the terminal's own, whatever that is."""

    def ink(self, role: str) -> str:
        """A role's colour for letters and signs. On the terminal's own background text has the terminal's own too."""
        color = self.colors[role]
        return "default" if self.terminal_ground and color == self.colors[TEXT] else color

    def ground(self, role: str) -> str:
        """A role's colour as a background."""
        return "default" if self.terminal_ground and role in GROUNDS else self.colors[role]

    @cached_property
    def sixteen_by_color(self) -> dict[str, str]:
        """Of this palette's colours, which of the sixteen stand for them."""
        return {color: self.sixteen[role] for role, color in self.colors.items()}

    def variables(self) -> dict[str, str]:
        """For the style sheet: a role as $viz-ROLE."""
        return {
            f"viz-{role}": in_style_sheet(self.ink(role) if role in (TEXT, BRIGHT) else self.ground(role))
            for role in self.colors
        }


def palette_for(*, dark: bool, background: str | None = None, surface: str | None = None) -> Palette:
    """Our colours on these grounds: each is made lighter or darker just so far that it can be read there."""
    colors = _with_owners(_DARK, _DARK_OWNERS) if dark else _with_owners(_LIGHT, _LIGHT_OWNERS)
    if background and surface:
        colors |= {BACKGROUND: background, SURFACE: surface}
    grounds = [rgb(colors[ground]) for ground in GROUNDS]
    for role, ratio in CONTRAST.items():
        colors[role] = _readable(rgb(colors[role]), grounds, ratio, dark).hex
    return Palette(dark, colors, _sixteen(dark))


def terminal_palette(*, dark: bool) -> Palette:
    """The terminal's own sixteen colours, on its own background."""
    return Palette(dark, _sixteen(dark), _sixteen(dark), terminal_ground=True)


def _with_owners(colors: Mapping[str, str], owners: Sequence[str]) -> dict[str, str]:
    return {**colors, **dict(zip(OWNERS, owners, strict=True))}


def _sixteen(dark: bool) -> dict[str, str]:
    return _with_owners(_ANSI_DARK, _ANSI_DARK_OWNERS) if dark else _with_owners(_ANSI_LIGHT, _ANSI_LIGHT_OWNERS)


def rgb(color: str | Color) -> ColorTriplet:
    """A colour's red, green and blue; of the terminal's own colours, what most terminals make of them."""
    parsed = Color.parse(color) if isinstance(color, str) else color
    return parsed.get_truecolor(DEFAULT_TERMINAL_THEME, foreground=parsed.type is not ColorType.DEFAULT)


def contrast(one: ColorTriplet, other: ColorTriplet) -> float:
    """From 1, the same, to 21, black on white: WCAG 2's contrast ratio."""
    darker, lighter = sorted((_luminance(one), _luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(color: ColorTriplet) -> float:
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in color.normalized)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _readable(color: ColorTriplet, grounds: list[ColorTriplet], ratio: float, dark: bool) -> ColorTriplet:
    end = ColorTriplet(255, 255, 255) if dark else ColorTriplet(0, 0, 0)
    tries = (blend_rgb(color, end, step / 50) for step in range(51))
    return next((mixed for mixed in tries if all(contrast(mixed, ground) >= ratio for ground in grounds)), end)


def in_style_sheet(color: str) -> str:
    """A colour as Textual's style sheets name it."""
    return color if color.startswith("#") else f"ansi_{color}"


# The palette in force.

_palette = palette_for(dark=True)
_textured = False
_made: list[_lru_cache_wrapper[object]] = []


def use(palette: Palette, *, textured: bool = False) -> None:
    """Draw with this palette from now on; `textured` if colours cannot tell the kinds apart, so that signs have to."""
    global _palette, _textured
    if (palette, textured) != (_palette, _textured):
        _palette, _textured = palette, textured
        for cache in _made:
            cache.cache_clear()


def is_textured() -> bool:
    return _textured


def cached(function: Function) -> Function:
    """Keep what a function has made of styles until there is another palette. Its arguments must be hashable."""
    made = lru_cache(maxsize=1024)(function)
    _made.append(made)
    return cast(Function, made)


@cached
def style(color: str = TEXT, background: str = BACKGROUND, bold: bool = False) -> Style:
    """For what a panel draws: these roles, as they look now."""
    return Style(color=_palette.ink(color), bgcolor=_palette.ground(background), bold=bold)


@cached
def ink(color: str = TEXT, bold: bool = False) -> Style:
    """For text in widgets that have a background of their own."""
    return Style(color=_palette.ink(color), bold=bold)


def owner_color(number: int) -> str:
    return OWNERS[number % len(OWNERS)]


def owner_cell(number: int) -> Style:
    """A filled cell with the owner's letter."""
    return style(BACKGROUND, owner_color(number), bold=True)


def owner_letter(number: int) -> Style:
    """The owner's letter in running text."""
    return style(owner_color(number), bold=True)
