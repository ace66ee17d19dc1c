"""The table of a comparison: a row for each figure, a column for each run, the best of a row marked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size

from app.comparison.figures import best, differences, figures
from app.metrics import amount
from app.palette import BRIGHT, DECODE, DIM, FAINT, TEXT, style
from app.panels.panel import Part, heading
from app.run import Run
from app.text import fit, printable, shortened, wrap

BEST_MARK = "✓"
GAP = 2
"""Cells between two columns."""
MOST_NAME = 30
"""Cells for what a row is called, at most."""
MOST_COLUMN = 16
"""Cells for a column, at most: longer names of runs are broken into lines."""
MARK_WIDTH = 2
"""Cells behind a value, for a mark."""
HEAD_LINES = 3


@dataclass(frozen=True, slots=True)
class Row:
    """A row as it reads: `group` and `name` say of what."""

    group: str
    name: str
    texts: Sequence[str]
    best: int | None = None
    is_figure: bool = True
    """Not a parameter."""


class Table:
    """The table of at least one run."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._names = [run.name for run in runs]
        self._rows = rows = _rows(runs)
        self._groups = max((cell_len(row.group) for row in rows if row.name), default=0) + 1
        names = [self._groups + cell_len(row.name) if row.name else cell_len(row.group) for row in rows]
        self._name_width = min(MOST_NAME, max(names, default=0)) + GAP
        widths = [cell_len(text) for row in rows for text in row.texts]
        widths += [cell_len(printable(name)) for name in self._names]
        self._column = min(MOST_COLUMN, max(widths)) + MARK_WIDTH

    @property
    def width(self) -> int:
        """Cells that it takes with all runs beside each other."""
        return self._name_width + len(self._names) * (self._column + GAP)

    def lines(self, width: int) -> list[list[Part]]:
        """Lines of at most `width` cells; if not all runs fit beside each other, they are in several blocks."""
        marked = any(row.best is not None for row in self._rows)
        lines = [heading("Figures", f"{BEST_MARK} best of its row" if marked else "", width)]
        fitting = max(1, (width - self._name_width) // (self._column + GAP))
        for first in range(0, len(self._names), fitting):
            part = slice(first, first + fitting)
            if first:
                lines.append([])
            lines += _head(self._names[part], self._name_width, self._column)
            lines += _body(self._rows, part, self._groups, self._name_width, self._column)
        return lines


def _rows(runs: Sequence[Run]) -> list[Row]:
    rows = [Row(name, "", values, is_figure=False) for name, values in differences(runs)]
    for figure in figures(runs):
        values = figure.values(runs)
        texts = [amount(value, figure.metric.unit) for value in values]
        rows.append(Row(figure.group, printable(figure.name), texts, best(values, figure.metric, figure.better)))
    return rows


def _head(names: Sequence[str], name_width: int, column: int) -> list[list[Part]]:
    """The names of the runs, the last line of each at the bottom, over a rule."""
    broken = [wrap(name, column - MARK_WIDTH)[:HEAD_LINES] for name in names]
    height = max(map(len, broken), default=0)
    lines: list[list[Part]] = []
    for row in range(height):
        line: list[Part] = [(" " * name_width, style())]
        for pieces in broken:
            index = row - (height - len(pieces))
            line.append((_right(pieces[index] if index >= 0 else "", column), style(BRIGHT, bold=True)))
        lines.append(line)
    rule = f"{'─' * (column - MARK_WIDTH)}  "
    return [*lines, [(" " * name_width, style()), *([(" " * GAP + rule, style(FAINT))] * len(names))]]


def _body(rows: Sequence[Row], part: slice, groups: int, name_width: int, column: int) -> list[list[Part]]:
    lines: list[list[Part]] = []
    last_group = ""
    for row in rows:
        is_first = row.group != last_group
        last_group = row.group
        group = row.group if is_first else ""
        look = style(TEXT if row.is_figure else DIM)
        name = fit(group, groups) + shortened(row.name, name_width - GAP - groups) if row.name else group
        line: list[Part] = [(fit(name, name_width), look)]
        for index, text in list(enumerate(row.texts))[part]:
            is_best = index == row.best
            value = style(DECODE, bold=True) if is_best else look
            line.append((_right(text, column, BEST_MARK if is_best else " "), value))
        lines.append(line)
    return lines


def _right(text: str, column: int, mark: str = " ") -> str:
    """The text at the right end of a column, with a mark behind it."""
    room = column - MARK_WIDTH
    if cell_len(text) > room:
        text = set_cell_size(text, room)
    return f"{' ' * (GAP + room - cell_len(text))}{text} {mark}"
