"""Looks: themes, and what stands between the widgets and a terminal that can show less than they draw.

Widgets draw in full colour with whatever signs they like. Here, in one place for ours and for Textual's own, every
line is made to fit what the terminal has: 256 colours, sixteen, none, or signs that are all ASCII.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from rich.cells import cell_len
from rich.color import Color, ColorSystem, ColorType
from rich.segment import Segment
from rich.style import Style
from textual.color import Color as TextualColor
from textual.filter import ANSIToTruecolor, LineFilter, Monochrome, NoColor
from textual.scrollbar import ScrollBar, ScrollBarRender
from textual.theme import BUILTIN_THEMES, Theme

from app.palette import (
    BACKGROUND,
    DECODE,
    PREEMPTED,
    PREFILL,
    SURFACE,
    TEXT,
    WAITING,
    Palette,
    contrast,
    in_style_sheet,
    palette_for,
    rgb,
    terminal_palette,
)
from engine.config import ConfigError

DARK, LIGHT = "dark", "light"

# Signs.

_SIGNS = {
    # kinds of tokens, and heights
    **dict(zip("▪█▒░·×", "=#%:.x", strict=True)),
    **dict(zip("▁▂▃▄▅▆▇", "_.:-=+*", strict=True)),
    # rules, frames and scales
    **dict.fromkeys("─━╌╍┄┅┈┉▔▀‾–—", "-"),
    **dict.fromkeys("═", "="),
    **dict.fromkeys("│┃╎╏┆┇┊┋║▏▎▍▌▋▊▉▐▕", "|"),
    **dict.fromkeys("┌┐└┘┏┓┗┛├┤┬┴┼┣┫╭╮╯╰╔╗╚╝╠╣╞╡▖▗▘▙▛▜▝▟", "+"),
    # marks
    **dict(zip("▶▸▷▹►›»→←◂◀‹«↑↓▲△▼▽", ">>>>>>>><<<<<^v^^vv", strict=True)),
    **dict(zip("✓✗■□●○◦◆◇▦‖…≤≥±‡†−≈•¦∙↺", "*x##@oo@ob|~<>+!!-~*|.&", strict=True)),
    **dict.fromkeys("‘’‚", "'"),
    **dict.fromkeys("“”„", '"'),
}
"""ASCII for each sign that we or Textual draw, as wide as the sign."""
_FILLS = dict(zip("▏▎▍▌▋▊▉", ".:-=+*#", strict=True))
"""In panels these are no frames: they say how full a block is."""
KEY_NAMES = {"↑": "up", "↓": "down", "←": "left", "→": "right", "⏎": "enter", "⌫": "backspace", "⇥": "tab"}
"""Keys that are shown as signs: < and v are keys of their own."""


class _Signs(dict[int, str]):
    """For `str.translate`: what is neither ASCII nor a sign of ours is text from elsewhere, and becomes a question mark
    for each cell."""

    def __missing__(self, code: int) -> str:
        self[code] = chr(code) if code < 0x80 else "?" * cell_len(chr(code))
        return self[code]


class Ascii(LineFilter):
    """Only ASCII, and each sign as wide as it was."""

    def __init__(self, signs: Mapping[str, str]) -> None:
        super().__init__()
        self._signs = _Signs({ord(sign): stand_in for sign, stand_in in signs.items()})

    def apply(self, segments: list[Segment], background: TextualColor) -> list[Segment]:
        return [
            segment if segment.text.isascii() else Segment(self.translate(segment.text), segment.style, segment.control)
            for segment in segments
        ]

    def translate(self, text: str) -> str:
        return text.translate(self._signs)


ASCII = Ascii(_SIGNS)
ASCII_IN_PANELS = Ascii(_SIGNS | _FILLS)


class _WholeCells(ScrollBarRender):
    """A scrollbar without parts of cells, which have no stand-ins."""

    VERTICAL_BARS = [" "]  # noqa: RUF012 (Textual's own)
    HORIZONTAL_BARS = [" "]  # noqa: RUF012


def key_name(shown: str) -> str:
    """What the screen calls a key, in ASCII."""
    *modifiers, key = shown.split("+") if len(shown) > 1 else [shown]
    return "+".join([*modifiers, KEY_NAMES.get(key, key)])


# Colours.

SEEN = 1.3
"""From this contrast on two colours are meant to be told apart."""
FILLED = 2.0
"""A background with this contrast to the palette's is a fill, such as the cell of a block, or a cursor."""
QUIET = 4.5
"""Text of less contrast than this is meant to be quiet."""


def is_drawing(text: str) -> bool:
    """Only rules, bars and blanks: nothing to be read."""
    return not text.isascii() and all(sign == " " or "\u2500" <= sign <= "\u259f" for sign in text)


class FewColors(LineFilter):
    """The nearest of the terminal's colours. What was to be seen can still be seen: a letter on a filled cell is never
    of the cell's colour."""

    def __init__(self, system: ColorSystem, palette: Palette) -> None:
        super().__init__()
        self._system = system
        self._palette = palette
        self._ground = rgb(palette.colors[BACKGROUND])
        self._fitted = lru_cache(maxsize=2048)(self._fit)

    def apply(self, segments: list[Segment], background: TextualColor) -> list[Segment]:
        return [
            Segment(text, style and self._fitted(style, is_drawing(text)), control) for text, style, control in segments
        ]

    def _fit(self, style: Style, drawing: bool) -> Style:
        color, background = style.color, style.bgcolor
        if color is None and background is None:
            return style
        text = self._nearest(color, is_ground=False) if color else None
        ground = self._nearest(background, is_ground=True) if background else None
        if color and background and text and ground and not ground.is_default:
            least = SEEN if drawing or self._system is ColorSystem.EIGHT_BIT else FILLED
            was_seen = color.is_default or contrast(rgb(color), rgb(background)) >= SEEN
            is_seen = not text.is_default and text != ground and contrast(rgb(text), rgb(ground)) >= least
            if was_seen and not is_seen:
                extremes = (Color.parse("black"), Color.parse("bright_white"))
                text = max(extremes, key=lambda extreme: contrast(rgb(extreme), rgb(ground)))
        return style + Style.from_color(text, ground)

    def _nearest(self, color: Color, *, is_ground: bool) -> Color:
        if color.type is not ColorType.TRUECOLOR:
            return color
        if self._system is ColorSystem.EIGHT_BIT:
            return _nearest_of_256(color)
        name = self._palette.sixteen_by_color.get(color.name)
        if name is None and is_ground and contrast(rgb(color), self._ground) < FILLED:
            name = self._palette.sixteen[BACKGROUND]
        return Color.parse(name) if name else color.downgrade(ColorSystem.STANDARD)


class NoColors(LineFilter):
    """No colours at all: a filled cell is in reverse video, quiet text is dim."""

    def __init__(self, palette: Palette) -> None:
        super().__init__()
        self._ground = rgb(palette.ground(BACKGROUND))
        self._plain = lru_cache(maxsize=2048)(self._strip)

    def apply(self, segments: list[Segment], background: TextualColor) -> list[Segment]:
        return [Segment(text, style and self._plain(style), control) for text, style, control in segments]

    def _strip(self, style: Style) -> Style:
        text = rgb(style.color) if style.color else None
        ground = rgb(style.bgcolor) if style.bgcolor else self._ground
        if style.reverse:
            text, ground = ground, ground if text is None else text
        reverse = contrast(ground, self._ground) >= FILLED
        quiet = text is not None and contrast(text, ground) < QUIET and not reverse
        return Style(
            bold=style.bold,
            dim=style.dim or quiet,
            italic=style.italic,
            underline=style.underline,
            strike=style.strike,
            reverse=reverse,
            link=style.link,
            meta=style.meta,
        )


@lru_cache(maxsize=4096)
def _nearest_of_256(color: Color) -> Color:
    """rich's own choice makes black of all dark greys that are a little blue."""
    wanted = rgb(color)

    def distance(number: int) -> int:
        found = _COLORS_256[number]
        mean = (wanted.red + found.red) // 2
        red, green, blue = (one - other for one, other in zip(wanted, found, strict=True))
        return ((512 + mean) * red * red >> 8) + 4 * green * green + ((767 - mean) * blue * blue >> 8)

    return Color.from_ansi(min(range(16, 256), key=distance))


_COLORS_256 = [rgb(Color.from_ansi(number)) for number in range(256)]


# Themes.


def themes() -> dict[str, Theme]:
    """All that can be chosen, by name: ours and Textual's."""
    ours = [_theme(DARK, palette_for(dark=True)), _theme(LIGHT, palette_for(dark=False))]
    return {theme.name: theme for theme in (*ours, *BUILTIN_THEMES.values())}


def theme_name(name: str) -> str:
    """The name of a theme that there is. Raises ConfigError for another."""
    known = themes()
    if name not in known:
        raise ConfigError(f"there is no theme {name!r}; there are: {', '.join(known)}.")
    return name


def _theme(name: str, palette: Palette) -> Theme:
    color = palette.colors
    return Theme(
        name,
        dark=palette.dark,
        primary=color[PREFILL],
        secondary=color[DECODE],
        accent=color[DECODE],
        success=color[DECODE],
        warning=color[WAITING],
        error=color[PREEMPTED],
        foreground=color[TEXT],
        background=color[BACKGROUND],
        surface=color[SURFACE],
        panel=color[SURFACE],
    )


def palette_of(theme: Theme) -> Palette:
    """Our colours on a theme's grounds."""
    if theme.ansi:
        return terminal_palette(dark=theme.dark)
    variables = theme.to_color_system().generate()
    background, surface = (TextualColor.parse(variables[name]).rgb for name in ("background", "surface"))
    return palette_for(dark=theme.dark, background=_hex(background), surface=_hex(surface))


def _hex(color: tuple[int, int, int]) -> str:
    return "#{:02x}{:02x}{:02x}".format(*color)


def variables(palette: Palette, colors: str | None) -> dict[str, str]:
    """For the style sheet: our roles as $viz-ROLE, what lies over the panels while a screen is before them, and the
    looks of what is chosen in a list. Few colours leave no shades, so there it is a bar of the text's colour."""
    known = palette.variables()
    if colors in ("256", "truecolor") and not palette.terminal_ground:
        shade = f"{known['viz-background']} 60%"
        return {**known, "viz-shade": shade, "viz-chosen": known["viz-faint"], "viz-chosen-text": known["viz-bright"]}
    bar, letters = in_style_sheet(palette.colors[TEXT]), in_style_sheet(palette.colors[BACKGROUND])
    cursors = ("block-cursor", "block-cursor-blurred", "input-cursor")
    return {
        **known,
        "viz-shade": "transparent",
        "viz-chosen": bar,
        "viz-chosen-text": letters,
        **{f"{cursor}-background": bar for cursor in cursors},
        **{f"{cursor}-foreground": letters for cursor in cursors},
    }


class Looks:
    """What one terminal can show, and how it is told to.

    `colors` are those that rich says it has, "truecolor", "256" or "standard", or None for none.
    """

    def __init__(self, *, colors: str | None, ascii: bool) -> None:
        self._ascii = ascii
        self._colors = colors
        self._is_plain = colors in (None, "standard")
        self._few: LineFilter | None = None

    @property
    def is_textured(self) -> bool:
        """Signs have to say what otherwise colours say."""
        return self._ascii or self._colors is None

    def use(self, palette: Palette) -> None:
        """Fit colours to the terminal as they are in this palette."""
        ScrollBar.renderer = _WholeCells if self._ascii else ScrollBarRender
        if self._colors is None:
            self._few = NoColors(palette)
        elif self._colors == "standard" or palette.terminal_ground:
            self._few = FewColors(ColorSystem.STANDARD, palette)
        elif self._colors == "256":
            self._few = FewColors(ColorSystem.EIGHT_BIT, palette)
        else:
            self._few = None

    def filters(self, textual: Sequence[LineFilter]) -> list[LineFilter]:
        """Textual's own filters and ours. In the place of its greys for NO_COLOR there is reverse video, and where the
        terminal has its sixteen colours or none, nothing is made of more."""
        replaced = (Monochrome, NoColor, ANSIToTruecolor) if self._is_plain else (Monochrome, NoColor)
        filters = [one for one in textual if not isinstance(one, replaced)]
        if self._few:
            filters.append(self._few)
        if self._ascii:
            filters.append(ASCII)
        return filters

    def key(self, shown: str) -> str:
        """What the screen calls a key."""
        return key_name(shown) if self._ascii else shown
