"""ThemedApp: an app in the colours of a theme, fitted to what the terminal can show."""

from __future__ import annotations

from collections.abc import Sequence

from textual.filter import LineFilter

from app.looks import Looks, palette_of, themes, variables
from app.pacing import PacedApp, ReturnType
from app.palette import use as use_palette
from app.panels.panel import Panel


class ThemedApp(PacedApp[ReturnType]):
    """`theme` is one of `app.looks.themes()`; with `ascii` all signs are ASCII."""

    def __init__(self, theme: str, *, ascii: bool) -> None:
        super().__init__()
        for known in themes().values():
            self.register_theme(known)
        self.looks = Looks(colors=self.color_system, ascii=ascii)
        self.theme = theme
        self._take_colors()

    def redraw(self) -> None:
        """Draw all panels; what they have on the screen is in the colours of another theme."""
        raise NotImplementedError

    @property
    def color_system(self) -> str | None:
        """How many the terminal has, as rich calls it; None for none."""
        return None if self.no_color else self.console.color_system

    def get_css_variables(self) -> dict[str, str]:
        return {**super().get_css_variables(), **variables(palette_of(self.current_theme), self.color_system)}

    def get_line_filters(self) -> Sequence[LineFilter]:
        return self.looks.filters(super().get_line_filters())

    def watch_theme(self) -> None:
        self._take_colors()
        if self.is_running and self.screen_stack:
            for screen in self.screen_stack:
                for panel in screen.query(Panel):
                    panel.forget()
            self.call_after_refresh(self.redraw)

    def _take_colors(self) -> None:
        """From the theme, for all that is drawn from now on."""
        palette = palette_of(self.current_theme)
        self.looks.use(palette)
        use_palette(palette, textured=self.looks.is_textured)
