"""Token budget: one column a step, stacked by what the tokens were spent on, under the line of the budget."""

from __future__ import annotations

from functools import lru_cache

from app.palette import CACHED, DECODE, DIM, FAINT, PREEMPTED, PREFILL, RECOMPUTE, style
from app.panels.axis import columns, gutter
from app.panels.panel import Panel, Part, heading
from app.view import StepBar

EIGHTHS = " ▁▂▃▄▅▆▇█"


class BudgetPanel(Panel):
    """Height is tokens. It stands on the same step columns as the rows of requests below it."""

    def draw(self, width: int, height: int) -> list[list[Part]]:
        left = gutter(width)
        rows = height - 2
        bars = columns(self.view, width)
        note = "decode · prefill · recompute under the budget" if width >= 70 else ""
        lines = [heading("Token budget", note, width)]
        if rows < 1:
            return lines
        top = max((bar.budget for bar in bars), default=0)
        cells = [_column(bar, top, rows) for bar in bars]
        gap = width - left - len(bars)
        numbers = self._numbers()
        for row in range(rows):
            level = rows - 1 - row
            label = self._scale(row, rows, top)
            number, look = numbers[row] if row < len(numbers) else ("", style(DIM))
            line: list[Part] = [(number.ljust(left - len(label)), look), (label, style(DIM)), (" " * gap, style())]
            line += [column[level] for column in cells]
            lines.append(line)
        marks: list[Part] = [(" " * (left + gap), style())]
        marks += [("▼", style(PREEMPTED, bold=True)) if bar.num_preemptions else ("─", style(FAINT)) for bar in bars]
        lines.append(marks)
        return lines

    def _numbers(self) -> list[Part]:
        """What the shown step's budget went to, in figures."""
        if not self.view.bars:
            return []
        bar = self.view.bars[-1]
        numbers: list[Part] = [
            ("this step", style(DIM)),
            (f"{bar.decode} decode", style(DECODE)),
            (f"{bar.prefill} prefill", style(PREFILL)),
            (f"{bar.recompute} recompute", style(RECOMPUTE)),
            (f"{bar.budget - bar.total} unused", style(DIM)),
        ]
        if bar.cached:
            numbers.append((f"{bar.cached} cached", style(CACHED)))
        return numbers

    @staticmethod
    def _scale(row: int, rows: int, top: int) -> str:
        if not top:
            return " "
        if row == 0:
            return f"{top} ┤"
        if row == rows - 1:
            return "0 ┤"
        if rows >= 5 and row == rows // 2:
            return f"{round(top * (rows - row) / rows)} ┤"
        return "│"


@lru_cache(maxsize=1024)
def _column(bar: StepBar, top: int, rows: int) -> tuple[Part, ...]:
    """One step's cells, bottom first. A cell holds at most two colours: the two that fill most of it.

    A step is drawn again and again while it moves to the left, always the same.
    """

    def level(tokens: int) -> int:
        exact = round(tokens * rows * 8 / top)
        return min(rows * 8, max(exact, 1) if tokens else 0)

    decode, prefill = level(bar.decode), level(bar.decode + bar.prefill)
    total = level(bar.total)
    saved = level(bar.total + bar.cached)
    limit = max(0, level(bar.budget) - 1) // 8
    layers = ((0, decode, DECODE), (decode, prefill, PREFILL), (prefill, total, RECOMPUTE), (total, saved, CACHED))
    cells: list[Part] = []
    for row in range(rows):
        low = row * 8
        parts = [(min(high, low + 8) - max(start, low), color) for start, high, color in layers]
        parts = [part for part in parts if part[0] > 0]
        if len(parts) > 2:
            smallest = min(parts, key=lambda part: part[0])
            parts.remove(smallest)
            parts[0] = (parts[0][0] + smallest[0], parts[0][1])
        cells.append(_cell(parts, is_limit=row == limit))
    return tuple(cells)


def _cell(parts: list[tuple[int, str]], *, is_limit: bool) -> Part:
    if not parts:
        return ("┈" if is_limit else " ", style(FAINT))
    (size, color), *rest = parts
    if not rest:
        if color == CACHED:
            return ("░", style(color))
        return (EIGHTHS[size], style(color))
    upper = rest[0]
    if size + upper[0] == 8:
        return (EIGHTHS[size], style(color, upper[1]))
    return (EIGHTHS[size + upper[0]], style(upper[1]))
