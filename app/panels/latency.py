"""Latency: what short and long requests have waited, as percentiles, over the gaps between tokens step by step.

The gaps stand on the step columns of the budget, so that one sees them grow where a long prompt is prefilled.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isinf

from app.latency import Distribution, between_bounds, brief, by_step, distribution, trade
from app.palette import (
    DECODE,
    DIM,
    FAINT,
    KIND_GLYPHS,
    PREEMPTED,
    PREEMPTED_GLYPH,
    PREFILL,
    RECOMPUTE,
    TEXT,
    cached,
    is_textured,
    style,
)
from app.panels.axis import WIDE_FROM, columns, gutter, scale
from app.panels.budget import EIGHTHS
from app.panels.panel import Panel, Part, heading
from app.view import LONG_PROMPT, Measure, Sample, StepBar

MEASURES: tuple[tuple[Measure, str, str], ...] = (
    ("ttft", "TTFT", "TTFT"),
    ("itl", "ITL", "ITL"),
    ("queue", "queue", "wait"),
    ("e2e", "end to end", "e2e"),
)
"""Rows of the table: what matters most first; with the name and the one for narrow panels."""
FIGURES = {"p50": 5, "p95": 5, "p99": 5, "max": 5, "n": 6}
"""Columns of the table from the left, and their widths."""
BY_WEIGHT = ("p95", "p50", "max", "p99", "n")
"""In this order they find room."""
NAME_WIDTHS = (5, 10)
GROUP_WIDTH = 5
"""Of "short" and " long"."""
FEW_ROWS, ALL_ROWS = 2, 4
MIN_PLOT = 3
MIN_PLOTS = 12
"""Rows from which first tokens have a plot of their own; with fewer they are marks in one row."""
TTFT_SHARE = 3
"""Of the rows of both plots together, first tokens get one in so many."""
SHORT_MARK, LONG_MARK = "▸", "◆"


class LatencyPanel(Panel):
    """Short of room it drops rows of the table, then first tokens, then the table; the gaps stay."""

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._known: dict[Measure, tuple[Sample, int, list[Distribution | None]]] = {}
        """With the newest sample and their number: as long as they are the same, so are the distributions."""

    def draw(self, width: int, height: int) -> list[list[Part]]:
        note = f"ms · a prompt is long from {LONG_PROMPT} tokens on" if width >= WIDE_FROM else "ms"
        if self.view.server:
            note = "ms · all: per poll, between bounds · mine: exact, seen here" if width >= WIDE_FROM else "per poll"
        lines = [heading("Latency", note, width)]
        room = height - len(lines)
        for num_rows in (ALL_ROWS, FEW_ROWS):
            if room >= 1 + num_rows + MIN_PLOT + (num_rows == ALL_ROWS):
                lines += self._table(width, num_rows)
                break
        return lines + self._plots(width, height - len(lines))

    def _table(self, width: int, num_rows: int) -> list[list[Part]]:
        wide = width >= WIDE_FROM
        name_width = NAME_WIDTHS[wide]
        room = (width - name_width) // 2 - GROUP_WIDTH
        figures = _fitting(room)
        between = max(0, min(2, room - sum(FIGURES[figure] for figure in figures)))
        titles = "".join(figure.rjust(FIGURES[figure]) for figure in figures)
        first, second = ("  all", " mine") if self.view.server else ("short", " long")
        lines: list[list[Part]] = [[(f"{'':{name_width}}{first}{titles}{'':{between}}{second}{titles}", style(DIM))]]
        for measure, name, short_name in MEASURES[:num_rows]:
            line: list[Part] = [((name if wide else short_name).ljust(name_width), style(TEXT))]
            for group, known in enumerate(self._distributions(measure)):
                line.append((" " * (GROUP_WIDTH + group * between), style()))
                line += [_number(known, figure) for figure in figures]
            lines.append(line)
        return lines

    def _distributions(self, measure: Measure) -> list[Distribution | None]:
        """Of short and of long requests."""
        samples = self.view.samples[measure]
        if self.view.server:
            everybody = self.view.server.latencies.get(measure)
            return [between_bounds(everybody) if everybody else None, distribution(samples)]
        if not samples:
            return [None, None]
        newest, count = samples[-1], len(samples)
        known = self._known.get(measure)
        if known is None or known[0] is not newest or known[1] != count:
            made = [distribution(samples, is_long=is_long) for is_long in (False, True)]
            self._known[measure] = known = newest, count, made
        return known[2]

    def _plots(self, width: int, rows: int) -> list[list[Part]]:
        """Gaps between tokens; under them, with a scale of their own, first tokens."""
        bars = columns(self.view, width)
        if rows <= MIN_PLOT or self.view.server:
            return _gaps(bars, width, rows, is_mean=self.view.server is not None)
        samples = by_step(self.view.samples["ttft"], since=bars[0].step) if bars else {}
        firsts = [samples.get(bar.step) for bar in bars]
        if rows < MIN_PLOTS:
            return [*_gaps(bars, width, rows - 1), _row_of_firsts(firsts, width)]
        num_rows = rows // TTFT_SHARE
        return [*_gaps(bars, width, rows - num_rows), *_plot_of_firsts(firsts, width, num_rows)]


def _fitting(room: int) -> list[str]:
    """The figures of one group that fit, in their order."""
    fitting: set[str] = set()
    for figure in BY_WEIGHT:
        room -= FIGURES[figure]
        if room < 0:
            break
        fitting.add(figure)
    return [figure for figure in FIGURES if figure in fitting]


def _number(known: Distribution | None, figure: str) -> Part:
    if known is None:
        return ("-".rjust(FIGURES[figure]), style(FAINT))
    if figure == "n":
        return (f"{known.count:,}".rjust(FIGURES[figure]), style(DIM))
    seconds = getattr(known, figure)
    text = f">{brief(known.known_to)}" if isinf(seconds) else brief(seconds)
    return (text.rjust(FIGURES[figure]), style(TEXT))


def _gaps(bars: Sequence[StepBar], width: int, rows: int, *, is_mean: bool = False) -> list[list[Part]]:
    """The longest gap that ended with each step, in the colour of what was computed beside the decodes. Or the mean of
    each poll."""
    top = max((bar.gap for bar in bars), default=0.0) or max((bar.preempted_gap for bar in bars), default=0.0)
    cells = [_gap(bar, top, rows) for bar in bars]
    words = [("mean ITL of a poll", style(DIM))] if is_mean else _words_for_gaps(bars, wide=width >= WIDE_FROM)
    lines = []
    for row in range(rows):
        column = [cell[rows - 1 - row] for cell in cells]
        lines.append(_line(words[row : row + 1], _scale(row, rows, top), column, width))
    return lines


@cached
def _gap(bar: StepBar, top: float, rows: int) -> tuple[Part, ...]:
    """One step's cells, bottom first. A gap with a preemption in it is a mark: a column of it would dwarf the rest."""
    if not top or not rows:
        return ((" ", style()),) * rows
    color = RECOMPUTE if bar.recompute else PREFILL if bar.prefill else DECODE
    eighths = max(1, round(bar.gap * rows * 8 / top)) if bar.gap else 0
    cells: list[Part] = [(EIGHTHS[max(0, min(8, eighths - 8 * row))], style(color)) for row in range(rows)]
    if is_textured():  # whole cells, whose sign is the kind's
        cells = [(KIND_GLYPHS[color] if eighths > 8 * row else " ", style(color)) for row in range(rows)]
    if bar.preempted_gap:
        cells[min(rows - 1, int(bar.preempted_gap * rows / top))] = (PREEMPTED_GLYPH, style(PREEMPTED, bold=True))
    return tuple(cells)


def _words_for_gaps(bars: Sequence[StepBar], *, wide: bool) -> list[Part]:
    """What the columns are, and what they say in figures: the price of a prefill for those that decode beside it."""
    words: list[Part] = [("longest ITL of a step" if wide else "longest ITL", style(DIM))]
    seen = trade(bars)
    if seen.decode_only is not None:
        words.append((f"{'decode only ' if wide else 'decode'} {brief(seen.decode_only)}", style(DECODE)))
    if seen.with_prefill is not None:
        words.append((f"{'with prefill' if wide else 'prefill'} {brief(seen.with_prefill)}", style(PREFILL)))
    if seen.factor is not None:
        factor = f"{seen.factor:.1f}" if seen.factor < 100 else f"{min(seen.factor, 9999):.0f}"
        words.append((f"{factor} times" + (" as long" if wide else ""), style(TEXT)))
    if any(bar.preempted_gap for bar in bars):
        words.append((f"{PREEMPTED_GLYPH} preempted" + (" meanwhile" if wide else ""), style(PREEMPTED)))
    return words


def _row_of_firsts(firsts: Sequence[Sample | None], width: int) -> list[Part]:
    """First tokens in one row, each with its time before it where that is free."""
    cells: list[Part] = [("─", style(FAINT))] * len(firsts)
    free = 0
    for column, sample in enumerate(firsts):
        if sample is None:
            continue
        label = brief(sample.seconds)
        if column - len(label) >= free:
            cells[column - len(label) : column] = [(character, style(DIM)) for character in label]
        cells[column] = _mark(sample)
        free = column + 2
    return _line(_legend(width), "", cells, width)


def _plot_of_firsts(firsts: Sequence[Sample | None], width: int, rows: int) -> list[list[Part]]:
    """First tokens at the height of their times, under a rule."""
    rows -= 1
    top = max((sample.seconds for sample in firsts if sample), default=0.0)
    cells: list[list[Part]] = [[(" ", style())] * len(firsts) for _ in range(rows)]
    for column, sample in enumerate(firsts):
        if sample is not None:
            level = min(rows - 1, int(sample.seconds * rows / top)) if top else 0
            cells[rows - 1 - level][column] = _mark(sample)
    lines: list[list[Part]] = [_line([], "", [("─", style(FAINT))] * len(firsts), width)]
    for row, line in enumerate(cells):
        lines.append(_line(_legend(width) if row == 0 else [], _scale(row, rows, top), line, width))
    return lines


def _mark(sample: Sample) -> Part:
    return (LONG_MARK, style(PREFILL, bold=True)) if sample.is_long else (SHORT_MARK, style(DECODE, bold=True))


def _legend(width: int) -> list[Part]:
    space = " " if width >= WIDE_FROM else ""
    short, long = (SHORT_MARK, style(DECODE, bold=True)), (LONG_MARK, style(PREFILL, bold=True))
    return [("TTFT ", style(DIM)), short, (f"{space}short ", style(DIM)), long, (f"{space}long", style(DIM))]


def _scale(row: int, rows: int, top: float) -> str:
    return scale(row, rows, top, brief) if top else ""


def _line(words: Iterable[Part], label: str, cells: Sequence[Part], width: int) -> list[Part]:
    """Words and a label of the scale in the gutter, and the step columns, the last of them at the right end."""
    line = list(words)
    used = sum(len(text) for text, _ in line)
    left = gutter(width)
    line.append((label.rjust(max(0, left - used)), style(DIM)))
    return [*line, (" " * (width - left - len(cells)), style()), *cells]
