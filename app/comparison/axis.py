"""The axis that the timelines of several runs share: seconds since the first step of each, or steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from math import ceil, floor, log10
from typing import Literal

from app.run import Run
from app.words import plural

AxisKind = Literal["seconds", "steps"]
AXIS_KINDS: tuple[AxisKind, ...] = ("seconds", "steps")

STRETCH = 8
"""Cells for a step, at most."""
ROUND = (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)
"""What a cell may stand for, times a power of ten: few numbers, near each other."""
TICKS = (1, 2, 5)
TICK_CELLS = 12
"""Least distance of two ticks."""
EPSILON = 1e-6
"""Of a cell: a step that begins where a cell does is in it, whatever floats make of that."""

Extent = tuple[float, float]
"""Where something begins and ends, in seconds since the run's first step or in steps."""


@dataclass(frozen=True, slots=True)
class Axis:
    """Equal cells from 0 on."""

    kind: AxisKind
    per_cell: float
    """Seconds or steps."""
    end: float
    """Where the longest run ends."""
    width: int
    """Cells, of which the last may be empty."""

    @classmethod
    def of(cls, runs: Sequence[Run], kind: AxisKind, width: int) -> Axis:
        """The axis on which all of these fit into `width` cells."""
        end = max((extents(run, kind)[-1][1] for run in runs if run.steps), default=0.0)
        if kind == "seconds":
            return cls(kind, _round(end / width), end, width)
        stretch = min(STRETCH, int(width // end)) if end else STRETCH
        return cls(kind, 1 / stretch if stretch else float(ceil(end / width)), end, width)

    def cell(self, position: float) -> int:
        """The cell in which this moment or step is."""
        return max(0, min(self.width - 1, floor(position / self.per_cell + EPSILON)))

    def cells(self, extent: Extent) -> range:
        """The cells of something that has this extent, one at least. What follows it begins where they end."""
        first = self.cell(extent[0])
        end = min(self.width, floor(extent[1] / self.per_cell + EPSILON))
        return range(first, max(first + 1, end))

    @property
    def scale(self) -> str:
        """What a cell stands for, in words."""
        if self.kind == "steps":
            cells = round(1 / self.per_cell)
            return (
                f"a step is {plural(cells, 'cell')}" if cells else f"a cell is {plural(round(self.per_cell), 'step')}"
            )
        if self.per_cell < 1:
            return f"a cell is {1000 * self.per_cell:.4g} ms"
        return f"a cell is {self.per_cell:.4g} s"

    def ticks(self) -> dict[int, str]:
        """Cells with round positions, and what these are."""
        between = self._between_ticks()
        positions = [number * between for number in range(int(self.end / between + EPSILON) + 1)]
        decimals = max(0, -floor(log10(between) + EPSILON)) if self.kind == "seconds" else 0
        return {self.cell(position): f"{position:,.{decimals}f}" for position in positions}

    def _between_ticks(self) -> float:
        least = TICK_CELLS * self.per_cell
        power = floor(log10(least))
        choices = (tick * 10.0**exponent for exponent in count(power) for tick in TICKS)
        return next(choice for choice in choices if choice >= least and (self.kind == "seconds" or choice >= 1))


def extents(run: Run, kind: AxisKind) -> list[Extent]:
    """When each step began and ended. As long as anybody is there a step lasts until the next begins; the time between
    is what a limit of the speed, or the engine around the model, has made of it."""
    if kind == "steps":
        return [(float(index), index + 1.0) for index in range(len(run.steps))]
    start = run.steps[0].started if run.steps else 0.0
    idle_after = _idle_after(run)
    begun = [(row.started - start, row.ended - start) for row in run.steps]
    lasting = [
        (first[0], first[1] if idle else following[0])
        for (first, following), idle in zip(pairwise(begun), idle_after, strict=False)
    ]
    return [*lasting, *begun[-1:]]


def _idle_after(run: Run) -> list[bool]:
    """Whether nobody was left at the end of each step."""
    if not run.steps:
        return []
    first = run.steps[0].step
    changes = [0] * len(run.steps)
    for row in run.requests:
        changes[row.arrival_step - first] += 1
        last = row.view.spans[-1].last
        if row.view.finished and last is not None:
            changes[max(last, row.arrival_step) - first] -= 1
    idle: list[bool] = []
    alive = 0
    for change in changes:
        alive += change
        idle.append(alive == 0)
    return idle


def _round(least: float) -> float:
    """The smallest round number of seconds that is not below this one."""
    if least <= 0:
        return 0.001
    power = 10.0 ** floor(log10(least))
    return next(number * power for number in (*ROUND, 10.0) if number * power >= least * (1 - EPSILON))
