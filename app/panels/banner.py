"""Banner: under the header while the model loads, when the engine has ended, and while a server is away."""

from __future__ import annotations

from collections.abc import Mapping

from app.palette import BRIGHT, DECODE, DIM, FAINT, PREEMPTED, style
from app.panels.panel import Panel, Part, wrap_parts
from app.protocol import Failed, Loading
from app.text import printable

BAR_WIDTH = 24
MAX_LINES = 5
"""Of an error: the panels below it show the state in which it happened."""


class Banner(Panel):
    """Nothing to see while the engine runs."""

    can_focus = False

    def __init__(self, *, id: str, keys: Mapping[str, str] | None = None) -> None:
        super().__init__(id=id, keys=keys)
        self.progress: Loading | None = None
        self.failed: Failed | None = None
        self.problem = ""
        """Why a server elsewhere tells nothing now."""

    def lines(self, width: int) -> list[list[Part]]:
        if self.failed:
            keys: list[Part] = [(self.keys["restart"], style(BRIGHT, bold=True)), (" starts it again, ", style(DIM))]
            keys += [(self.keys["quit"], style(BRIGHT, bold=True)), (" leaves", style(DIM))]
            text = f"✗ {printable(' '.join(self.failed.error.split()))}"
            lines = wrap_parts([(text, style(PREEMPTED, bold=True))], max(20, width), indent=2)
            if len(lines) > MAX_LINES:
                lines[MAX_LINES - 1 :] = [[("  … the rest is in worker.log in nanoviz's log folder", style(DIM))]]
            return [*lines, keys]
        if self.progress is None:
            text = f"✗ {printable(self.problem).rstrip('.')}; it is asked again and again"
            return wrap_parts([(text, style(PREEMPTED, bold=True))], max(20, width), indent=2) if self.problem else []
        what, done, total = self.progress.what, self.progress.done, self.progress.total
        line: list[Part] = [(f"… {printable(what)} ", style(BRIGHT))]
        if total:
            filled = BAR_WIDTH * done // total
            line += [("█" * filled, style(DECODE)), ("░" * (BAR_WIDTH - filled), style(FAINT))]
            line.append((f" {done / 1e6:.0f} of {total / 1e6:.0f} MB", style(DIM)))
        return [*wrap_parts(line, max(20, width), indent=2), [(f"  {self.progress.hint}", style(DIM))]]

    def draw(self, width: int, height: int) -> list[list[Part]]:
        return self.lines(width)
