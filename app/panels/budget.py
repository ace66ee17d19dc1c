"""Token budget: one column a step, stacked by what the tokens were spent on, under the line of the budget."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from app.palette import (
    CACHED,
    CACHED_GLYPH,
    DECODE,
    DIM,
    FAINT,
    KIND_GLYPHS,
    PREEMPTED,
    PREFILL,
    RECOMPUTE,
    WAITING,
    cached,
    is_textured,
    style,
)
from app.panels.axis import WIDE_GUTTER, columns, gutter, scale
from app.panels.panel import Panel, Part, heading
from app.server_view import token_rates
from app.text import fit
from app.view import StepBar
from app.words import short
from engine.poll import Poll

EIGHTHS = " ▁▂▃▄▅▆▇█"
GLYPHS = {**KIND_GLYPHS, CACHED: CACHED_GLYPH}
LIMIT = "┈"
PREEMPTED_MARK, CHANGED_MARK, BOTH_MARK, AWAY_MARK = "▼", "±", "‡", "✗"


class BudgetPanel(Panel):
    """Height is tokens; of a server, those of an iteration in the mean of a poll.

    It stands on the same step columns as the rows of requests below it.
    """

    def draw(self, width: int, height: int) -> list[list[Part]]:
        left = gutter(width)
        rows = height - 2
        bars = columns(self.view, width)
        lines = [self._heading(width)]
        if rows < 1:
            return lines
        if not bars:
            return [*lines, [("a column for each step", style(DIM))]]
        top = max((bar.budget for bar in bars), default=0)
        cells = [_column(bar, top, rows) for bar in bars]
        gap = width - left - len(bars)
        numbers = self._numbers(" " if left == WIDE_GUTTER else "")
        for row in range(rows):
            level = rows - 1 - row
            label = scale(row, rows, top, lambda tokens: short(round(tokens)))
            number, look = numbers[row] if row < len(numbers) else ("", style(DIM))
            line: list[Part] = [(fit(number, left - len(label)), look), (label, style(DIM)), (" " * gap, style())]
            line += [column[level] for column in cells]
            lines.append(line)
        marks: list[Part] = [(" " * (left + gap), style())]
        marks += [_mark(bar) for bar in bars]
        lines.append(marks)
        return lines

    def _heading(self, width: int) -> list[Part]:
        if self.view.server:
            unit = self.view.server.unit
            note = "per poll, in the mean" if width >= 70 else "per poll"
            if self.view.poll and self.view.poll.counts_at_end:
                note = "counted as requests end" if width >= 50 else note
            return heading(f"Tokens per {unit}" if width >= 40 else f"Tokens/{unit}", note, width)
        note = " · ".join(f"{_sign(kind)}{kind}" for kind in (DECODE, PREFILL, RECOMPUTE))
        return heading("Token budget", f"{note} under the budget" if width >= 70 else "", width)

    def _numbers(self, space: str) -> list[Part]:
        """What the shown step's budget went to, in figures."""
        if not self.view.bars:
            return []
        if self.view.poll:
            return _numbers_of_poll(self.view.poll, self.view.bars[-1], space)
        bar = self.view.bars[-1]
        numbers: list[Part] = [
            ("this step", style(DIM)),
            (f"{_sign(DECODE, space)}{bar.decode} decode", style(DECODE)),
            (f"{_sign(PREFILL, space)}{bar.prefill} prefill", style(PREFILL)),
            (f"{_sign(RECOMPUTE, space)}{bar.recompute} recompute", style(RECOMPUTE)),
            (f"{bar.budget - bar.total} unused", style(DIM)),
        ]
        if bar.cached:
            numbers.append((f"{_sign(CACHED, space)}{bar.cached} cached", style(CACHED)))
        return numbers


def _numbers_of_poll(poll: Poll, bar: StepBar, space: str) -> list[Part]:
    """What an iteration of the shown poll computed, in the mean."""
    if poll.problem:
        return [("no answer", style(PREEMPTED))]
    if not poll.interval:
        return [("counts from", style(DIM)), ("the next one on", style(DIM))]
    rates = token_rates(poll)
    numbers: list[Part] = [("this poll", style(DIM))]
    for kind, name, rate in ((DECODE, "outputs", rates.decode), (PREFILL, "prompts", rates.prefill)):
        told = f"{rate:.1f} {name}" if rate is not None else f"? {name}"
        numbers.append((f"{_sign(kind, space)}{told}", style(kind)))
    if rates.cached:
        numbers.append((f"{_sign(CACHED, space)}{rates.cached:.1f} cached", style(CACHED)))
    if bar.has_budget:
        numbers.append((f"budget {bar.budget:,}", style(DIM)))
    elif rates.unit == "iteration":
        numbers.append(("no budget told", style(DIM)))
    return numbers


def _mark(bar: StepBar) -> Part:
    """Whether somebody was preempted in a step, or a parameter changed with it, or both; or the prefix cache helped,
    which cannot be seen where the column is full."""
    if bar.is_away:
        return (AWAY_MARK, style(PREEMPTED, bold=True))
    if bar.num_preemptions:
        return (BOTH_MARK if bar.num_changes else PREEMPTED_MARK, style(PREEMPTED, bold=True))
    if bar.num_changes:
        return (CHANGED_MARK, style(WAITING, bold=True))
    return (CACHED_GLYPH, style(CACHED)) if bar.cached else ("─", style(FAINT))


def _sign(kind: str, space: str = " ") -> str:
    """What a kind's cells are, where their colours do not say it."""
    return GLYPHS[kind] + space if is_textured() else ""


@cached
def _column(bar: StepBar, top: int, rows: int) -> tuple[Part, ...]:
    """One step's cells, bottom first. A step is drawn again and again while it moves to the left, always the same."""
    return _textures(bar, top, rows) if is_textured() else _eighths(bar, top, rows)


def _textures(bar: StepBar, top: int, rows: int) -> tuple[Part, ...]:
    amounts = {DECODE: bar.decode, PREFILL: bar.prefill, RECOMPUTE: bar.recompute, CACHED: bar.cached}
    sizes = whole(list(amounts.values()), top, rows)
    limit = max(0, round(bar.budget * rows / top) - 1) if bar.has_budget else None
    return textured(list(zip(amounts, sizes, strict=True)), rows, limit)


def textured(sizes: Iterable[tuple[str, int]], rows: int, limit: int | None) -> tuple[Part, ...]:
    """A column of whole cells, bottom first, so many of each kind: each cell says its kind by its sign. The line of the
    budget, if there is one, is in row `limit` where that is free."""
    cells: list[Part] = []
    for kind, size in sizes:
        cells += [(GLYPHS[kind], style(kind))] * size
    cells += [(LIMIT if row == limit else " ", style(FAINT)) for row in range(len(cells), rows)]
    return tuple(cells[:rows])


def whole(amounts: Sequence[int], top: int, rows: int) -> list[int]:
    """The amounts in rows, or in parts of rows, none of them left out; if that makes too many, the largest have
    fewer."""
    sizes: list[int] = []
    total = 0
    for amount in amounts:
        total += amount
        size = round(total * rows / top) - sum(sizes)
        sizes.append(max(size, 1) if amount else 0)
    while sum(sizes) > rows and max(sizes) > 1:
        sizes[sizes.index(max(sizes))] -= 1
    return sizes


def _eighths(bar: StepBar, top: int, rows: int) -> tuple[Part, ...]:
    def level(tokens: int) -> int:
        exact = round(tokens * rows * 8 / top)
        return min(rows * 8, max(exact, 1) if tokens else 0)

    decode, prefill = level(bar.decode), level(bar.decode + bar.prefill)
    total = level(bar.total)
    saved = level(bar.total + bar.cached)
    layers = ((0, decode, DECODE), (decode, prefill, PREFILL), (prefill, total, RECOMPUTE), (total, saved, CACHED))
    return stacked(layers, rows, max(0, level(bar.budget) - 1) // 8 if bar.has_budget else None)


def stacked(layers: Iterable[tuple[int, int, str]], rows: int, limit: int | None) -> tuple[Part, ...]:
    """A column of layers from one eighth of a cell to another, bottom first. A cell holds at most two colours: the two
    that fill most of it. The line of the budget, if there is one, is in row `limit` where that is free."""
    layers = tuple(layers)
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
        return (LIMIT if is_limit else " ", style(FAINT))
    (size, color), *rest = parts
    if not rest:
        if color == CACHED:
            return (CACHED_GLYPH, style(color))
        return (EIGHTHS[size], style(color))
    upper = rest[0]
    if size + upper[0] == 8:
        return (EIGHTHS[size], style(color, upper[1]))
    return (EIGHTHS[size + upper[0]], style(upper[1]))
