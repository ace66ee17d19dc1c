"""Picture: the dashboard's screen as SVG, at any step and of any size, without a terminal."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence

from app import protocol
from app.commands import Command
from app.dashboard import Dashboard
from app.export import ExportError, Material
from app.protocol import EngineOptions, Event
from app.screens.main import MIN_HEIGHT, MIN_WIDTH

SIZE = (120, 40)
MAX_WIDTH, MAX_HEIGHT = 400, 200
"""Cells; more is no screen of anybody, and takes minutes to draw."""


class Still:
    """In the place of an engine: all steps up to one are there at once, and no other will come."""

    def __init__(self, source: Material, step: int) -> None:
        steps = map(protocol.Stepped, source.traces[: step + 1])
        self._events: list[Event] = [source.engine, *steps, protocol.PaceSet(True, 0.0)]

    def send(self, message: protocol.Command, /) -> None:
        """Nobody sits at this screen."""

    def drain(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def when_news(self, call: Callable[[], object], /) -> None:
        """There will be none."""

    def close(self) -> None:
        pass


class _Headless(Dashboard):
    @property
    def color_system(self) -> str:
        """A picture has all colours, whatever terminal it is ordered from."""
        return "truecolor"


def parse_size(text: str) -> tuple[int, int]:
    """Columns and rows from a text such as 120x40. Raises ExportError for another text, or for what is no screen."""
    if not (found := re.fullmatch(r"(\d{1,4})x(\d{1,4})", text)):
        raise ExportError(f"--size is columns x rows, such as {SIZE[0]}x{SIZE[1]}, not {text!r}.")
    width, height = map(int, found.groups())
    if not (MIN_WIDTH <= width <= MAX_WIDTH and MIN_HEIGHT <= height <= MAX_HEIGHT):
        raise ExportError(
            f"the screen has {MIN_WIDTH}x{MIN_HEIGHT} to {MAX_WIDTH}x{MAX_HEIGHT} cells; {text} is none of these sizes."
        )
    return width, height


def picture(
    source: Material,
    step: int | None,
    size: tuple[int, int],
    *,
    commands: Sequence[Command],
    history_steps: int,
    theme: str,
    ascii: bool,
) -> str:
    """The screen as SVG as it was behind `step`, None for the last, `size` cells wide and high.

    The rest is as for `Dashboard`. Raises ExportError for a step that there is not.
    """
    last = source.traces[-1].step
    step = last if step is None else step
    if not 0 <= step <= last:
        raise ExportError(f"there is no step {step:,}: there are 0 to {last:,}.")
    options = EngineOptions(source.engine.model, "auto", "cpu", 1, source.traces[0].config)
    app = _Headless(
        options,
        lambda _: Still(source, step),
        commands=commands,
        history_steps=history_steps,
        theme=theme,
        ascii=ascii,
    )
    return asyncio.run(_screenshot(app, size))


async def _screenshot(app: Dashboard, size: tuple[int, int]) -> str:
    async with app.run_test(size=size) as pilot:
        app.tick()
        await pilot.pause()
        await pilot.pause()
        return app.export_screenshot()
