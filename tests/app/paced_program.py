"""A program that repaints its whole screen all the time, and says on a pipe which keys it got, and when.

Run by tests/app/test_pacing.py on a terminal that stands still.
"""

from __future__ import annotations

import os
import sys

from rich.segment import Segment
from rich.style import Style
from textual.app import ComposeResult
from textual.events import Key
from textual.strip import Strip
from textual.widget import Widget

from app.pacing import PacedApp


class Noise(Widget):
    """The number of the frame everywhere, in another colour each time."""

    DEFAULT_CSS = "Noise { width: 1fr; height: 1fr; }"
    number = 0

    def render_line(self, y: int) -> Strip:
        text = f"<{self.number}>".ljust(12) * (self.size.width // 12)
        return Strip([Segment(text, Style(color=f"color({self.number % 200 + 16})"))])


class Program(PacedApp[int]):
    def __init__(self, pipe: int) -> None:
        super().__init__()
        self._pipe = pipe

    def compose(self) -> ComposeResult:
        yield Noise()

    def on_mount(self) -> None:
        self.set_interval(1 / 50, self.tick)

    def tick(self) -> None:
        noise = self.query_one(Noise)
        noise.number += 1
        if not self.is_held:
            noise.refresh()

    def catch_up(self) -> None:
        self.query_one(Noise).refresh()
        super().catch_up()

    def on_key(self, event: Key) -> None:
        os.write(self._pipe, f"{event.key} {self.query_one(Noise).number}\n".encode())
        if event.key == "q":
            self.exit(0)


if __name__ == "__main__":
    Program(int(sys.argv[1])).run()
