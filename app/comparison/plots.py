"""The plots of a comparison: for each metric that matters most, a bar for each run, all on one scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from app.metrics import Metric, amount
from app.palette import DECODE, DIM, FAINT, PREEMPTED, PREFILL, RECOMPUTE, TEXT, is_textured, style
from app.panels.panel import Part, heading
from app.run import Run
from app.text import printable, shortened

GAP = 3
"""Cells between two plots beside each other."""
LEAST_WIDTH = 54
"""Cells of a plot: where two of them fit, they stand beside each other."""
MOST_NAME = 18
LEAST_BAR = 8
NUMBER = 9
"""Cells of a number, with a space before it."""
PARTS = " ▏▎▍▌▋▊▉█"
TAIL = "─"
MARKS = {"p50": "█", "p95": "┼", "max": "┤"}
"""How a bar says the statistics of its metric: it is filled to the median, and a line goes on to the worst."""


@dataclass(frozen=True, slots=True)
class Plot:
    """One metric, or several statistics of one measure, the smallest first."""

    title: str
    note: str
    metrics: Sequence[Metric]
    color: str
    optional: bool = False
    """Nothing is to be seen where all runs have none."""
    top: float | None = None
    """The end of its scale, if that is not the largest value."""


def _plot(title: str, note: str, names: str, color: str, *, optional: bool = False, top: float | None = None) -> Plot:
    return Plot(title, note, [Metric.parse(name) for name in names.split()], color, optional, top)


PLOTS = (
    _plot("TTFT", "", "ttft.p50 ttft.max", PREFILL),
    _plot("ITL", "", "itl.p50 itl.p95 itl.max", DECODE),
    _plot("Throughput", "output tokens a second", "throughput", DECODE),
    _plot("Budget use", "of the budget", "budget_use", TEXT, top=1.0),
    _plot("Preemptions", "", "preemptions", PREEMPTED, optional=True),
    _plot("Recomputed", "tokens", "recomputed", RECOMPUTE, optional=True),
)


def plots(runs: Sequence[Run], width: int, height: int = 0) -> list[list[Part]]:
    """Lines of at most `width` cells: as few plots beside each other as lead to `height` lines, if that many fit."""
    shown = [plot for plot in PLOTS if _says_something(plot, runs)]
    most = max(1, min(len(shown), (width + GAP) // (LEAST_WIDTH + GAP)))
    lines_of = len(runs) + 2
    across = next((n for n in range(1, most) if -(-len(shown) // n) * lines_of - 1 <= height), most)
    room = (width + GAP) // across - GAP
    lines: list[list[Part]] = []
    for first in range(0, len(shown), across):
        beside = [_drawn(plot, runs, room) for plot in shown[first : first + across]]
        lines += [[], *_joined(beside)] if lines else _joined(beside)
    return lines


def _says_something(plot: Plot, runs: Sequence[Run]) -> bool:
    values = [metric.of(run) for run in runs for metric in plot.metrics]
    return any(values) if plot.optional else any(value is not None for value in values)


def _joined(beside: Sequence[Sequence[Sequence[Part]]]) -> list[list[Part]]:
    lines: list[list[Part]] = []
    for row in zip(*beside, strict=True):
        line = list(row[0])
        for cells in row[1:]:
            line += [(" " * GAP, style()), *cells]
        lines.append(line)
    return lines


def _drawn(plot: Plot, runs: Sequence[Run], width: int) -> list[list[Part]]:
    """The plot's title and a line for each run, all exactly `width` cells wide."""
    values = [[metric.of(run) for metric in plot.metrics] for run in runs]
    top = plot.top or max((value for row in values for value in row if value is not None), default=0.0)
    numbers = NUMBER * len(plot.metrics)
    longest = max(cell_len(printable(run.name)) for run in runs)
    name_width = max(4, min(longest, MOST_NAME, width - numbers - LEAST_BAR - 1))
    room = width - name_width - numbers - 1
    lines = [heading(plot.title, _columns(plot) or plot.note, width)]
    for run, row in zip(runs, values, strict=True):
        line: list[Part] = [(f"{shortened(run.name, name_width)} ", style(TEXT)), *_bar(plot, row, top, room)]
        line += [
            (amount(value, metric.unit).rjust(NUMBER), style(DIM if value is None else TEXT))
            for value, metric in zip(row, plot.metrics, strict=True)
        ]
        lines.append(line)
    return lines


def _columns(plot: Plot) -> str:
    """What the numbers are, over their columns, and how the bar says it."""
    if len(plot.metrics) < 2:
        return ""
    titles = (f"{MARKS[metric.statistic]} {metric.statistic}" for metric in plot.metrics)
    return "".join(title.rjust(NUMBER) for title in titles).lstrip()


def _bar(plot: Plot, values: Sequence[float | None], top: float, room: int) -> list[Part]:
    """Filled to the first value; a line from there to the last; marks at the others."""
    first, *others = values
    if first is None or not top:
        return [(" " * room, style())]
    filled = _fill(first / top, room)
    cells: list[Part] = [(sign, style(plot.color)) for sign in filled.ljust(room)]
    if others and others[-1] is not None:
        end = _cell(others[-1] / top, room)
        for cell in range(len(filled), end):
            cells[cell] = (TAIL, style(plot.color))
        for metric, value in reversed(list(zip(plot.metrics, values, strict=True))[1:]):
            if value is not None and (cell := _cell(value / top, room)) >= len(filled):
                cells[cell] = (MARKS[metric.statistic], style(plot.color, bold=True))
    elif plot.top and not others:
        cells[len(filled) :] = [("·", style(FAINT))] * (room - len(filled))
    return cells


def _fill(share: float, room: int) -> str:
    """A bar for this share of the room; what there is can be seen, however little."""
    eighths = min(room * 8, max(round(share * room * 8), 1 if share > 0 else 0))
    if is_textured():
        return PARTS[8] * -(-eighths // 8)
    return PARTS[8] * (eighths // 8) + (PARTS[eighths % 8] if eighths % 8 else "")


def _cell(share: float, room: int) -> int:
    """The cell in which this share of the room ends."""
    return min(room - 1, max(0, -int(-share * room // 1) - 1))
