"""The whole comparison of several runs, from the top."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from rich.cells import cell_len

from app.comparison.axis import AxisKind
from app.comparison.plots import LEAST_WIDTH, plots
from app.comparison.table import Table
from app.comparison.timelines import timelines
from app.palette import style
from app.panels.panel import Part
from app.run import Run

BETWEEN = 3
"""Cells between the table and the plots beside it."""


def comparison(runs: Sequence[Run], width: int, axis: AxisKind) -> list[list[Part]]:
    """Figures, plots and timelines of at least one run, as lines of at most `width` cells, of which 60 are enough."""
    return [*_figures_and_plots(runs, width), [], *timelines(runs, width, axis)]


def _figures_and_plots(runs: Sequence[Run], width: int) -> list[list[Part]]:
    """Beside each other if there is room."""
    table = Table(runs)
    room = width - table.width - BETWEEN
    if room < LEAST_WIDTH:
        return [*table.lines(width), [], *plots(runs, width)]
    figures = table.lines(table.width)
    lines: list[list[Part]] = []
    for left, right in zip_longest(figures, plots(runs, room, len(figures)), fillvalue=()):
        used = sum(cell_len(text) for text, _ in left)
        lines.append([*left, (" " * (table.width + BETWEEN - used), style()), *right])
    return lines
