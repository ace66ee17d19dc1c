"""The timelines of a comparison: what each run did with its steps, one run under the other on the same axis."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.style import Style

from app.comparison.axis import EPSILON, Axis, AxisKind, Extent, extents
from app.palette import (
    BACKGROUND,
    CACHED,
    DECODE,
    DIM,
    FAINT,
    KIND_COLORS,
    KIND_GLYPHS,
    PREEMPTED,
    PREEMPTED_GLYPH,
    PREFILL,
    RECOMPUTE,
    TEXT,
    cached,
    is_textured,
    owner_cell,
    style,
)
from app.panels.axis import scale
from app.panels.budget import EIGHTHS, PREEMPTED_MARK, stacked, textured, whole
from app.panels.life import KINDS, PAINTED
from app.panels.panel import Part, heading
from app.run import RequestRow, Run, StepRow
from app.text import fit, shortened
from app.view import SpanKind
from app.words import plural, short

NARROW_GUTTER, WIDE_GUTTER, WIDE_FROM = 14, 20, 90
STRIP_ROWS = 3
MAX_REQUESTS = 8
"""Rows of requests for each run."""
NEAR_BUDGET = 1.5
"""Times the largest step of a run: a budget up to here is on its scale, so that its line can be seen."""
FIRST_TOKEN_MARK = "▸"
LONG_STEP, LONG_STEP_MARK = 2.0, "─"
"""From so many cells on, a decode is a line that its token ends, so that the time between two tokens can be seen."""
TICK = "┴"
SHARES_AS_TENTHS = "0123456789X"


def timelines(runs: Sequence[Run], width: int, kind: AxisKind) -> list[list[Part]]:
    """Lines of at most `width` cells: of each run its token budget and its requests, the same moment or step of all in
    one column."""
    gutter = WIDE_GUTTER if width >= WIDE_FROM else NARROW_GUTTER
    axis = Axis.of(runs, kind, width - gutter)
    lines = [heading("Timelines", axis.scale, width), *_legend(kind, width)]
    for run in runs:
        lines += [[], *_timeline(run, axis, width)]
    return lines


def _timeline(run: Run, axis: Axis, width: int) -> list[list[Part]]:
    lines = [heading(shortened(run.name, max(8, width // 2)).rstrip(), _note(run, width), width)]
    if not run.steps:
        return [*lines, [("nothing was computed", style(DIM))]]
    gutter = width - axis.width
    when = extents(run, axis.kind)
    lines += _strip(run, axis, when, gutter)
    lines += [[*_who(row, gutter), *_life(run, row, axis, when)] for row in run.requests[:MAX_REQUESTS]]
    if more := len(run.requests) - MAX_REQUESTS:
        lines += [[(f" …  {more:,} more", style(DIM))]] if more > 0 else []
    return [*lines, _labels(axis, gutter)]


def _note(run: Run, width: int) -> str:
    """What the run was, in so many words as there is room."""
    config = run.first_config
    if config is None:
        return ""
    length = f"{plural(len(run.busy_steps), 'step')} · {run.seconds:,.2f} s"
    budget = f"budget {config.max_num_batched_tokens:,}"
    notes = (f"policy {config.policy} · {budget} · {length}", f"{budget} · {length}", length)
    room = width - cell_len(shortened(run.name, max(8, width // 2)).rstrip()) - 8
    return next((note for note in notes if len(note) <= room), "")


def _legend(kind: AxisKind, width: int) -> list[list[Part]]:
    signs: list[tuple[str, Style, str]] = [(KIND_GLYPHS[name], style(KIND_COLORS[name]), name) for name in KINDS]
    if kind == "seconds":
        signs.append((LONG_STEP_MARK * 2 + KIND_GLYPHS["decode"], style(DECODE), "one long decode"))
    signs.append((FIRST_TOKEN_MARK, style(BACKGROUND, PREFILL, bold=True), "first token"))
    signs.append((PREEMPTED_GLYPH, style(PREEMPTED, bold=True), "preempted"))
    lines: list[list[Part]] = [[]]
    used = 0
    for sign, look, name in signs:
        cells = 3 + len(sign) + 1 + len(name)
        if used + cells > width:
            lines.append([])
            used = 0
        lines[-1] += [("   " if used else "", style()), (sign, look), (f" {name}", style(DIM))]
        used += cells if used else cells - 3
    return lines


def _top(run: Run) -> int:
    """The end of a strip's scale, in tokens: the run's largest step, or a budget that is little above it."""
    most = max(row.computed for row in run.steps) or 1
    return max([most, *(row.budget for row in run.steps if row.budget <= NEAR_BUDGET * most)])


def _strip(run: Run, axis: Axis, when: Sequence[Extent], gutter: int) -> list[list[Part]]:
    """The token budget; where a cell stands for several steps, the fullest of these. Under it a rule with ticks."""
    fullest: list[StepRow | None] = [None] * axis.width
    rule: list[Part] = [("─", style(FAINT))] * axis.width
    for cell in axis.ticks():
        rule[cell] = (TICK, style(FAINT))
    for row, extent in zip(run.steps, when, strict=True):
        for cell in axis.cells(extent):
            other = fullest[cell]
            fullest[cell] = row if other is None or row.computed > other.computed else other
        if row.preemptions:
            rule[axis.cell(extent[0])] = (PREEMPTED_MARK, style(PREEMPTED, bold=True))
    top = _top(run)
    empty: tuple[Part, ...] = ((" ", style()),) * STRIP_ROWS
    columns = [
        _column(row.decode, row.prefill, row.recompute, row.budget, top, STRIP_ROWS) if row else empty
        for row in fullest
    ]
    title = "tokens" if gutter >= WIDE_GUTTER else ""
    lines: list[list[Part]] = []
    for row_number in range(STRIP_ROWS):
        label = scale(row_number, STRIP_ROWS, top, lambda tokens: short(round(tokens)))
        left = fit(title if row_number == 0 else "", gutter - len(label)) + label
        lines.append([(left, style(DIM)), *(column[STRIP_ROWS - 1 - row_number] for column in columns)])
    shares = [("KV pool", [row.peak_blocks / row.usable_blocks for row in run.steps])]
    if any(row.new_token_ratio is not None for row in run.steps):
        shares.append(("ratio", [row.new_token_ratio or 0.0 for row in run.steps]))
    lines += [_shares(name, values, axis, when, gutter) for name, values in shares]
    return [*lines, [(" " * gutter, style()), *rule]]


def _shares(name: str, values: Sequence[float], axis: Axis, when: Sequence[Extent], gutter: int) -> list[Part]:
    """Values from 0 to 1 as heights in a line, or as tenths where there are no colours; the highest of each cell."""
    highest = [-1.0] * axis.width
    for value, extent in zip(values, when, strict=True):
        for cell in axis.cells(extent):
            highest[cell] = max(highest[cell], value)
    signs = SHARES_AS_TENTHS if is_textured() else EIGHTHS
    line = "".join(
        " " if value < 0 else signs[min(len(signs) - 1, round(value * (len(signs) - 1)))] for value in highest
    )
    return [(fit(name, gutter - 3) + "1 ┤", style(DIM)), (line, style(CACHED))]


@cached
def _column(decode: int, prefill: int, recompute: int, budget: int, top: int, rows: int) -> tuple[Part, ...]:
    """One step's cells, bottom first, each kind in sight, however small it is beside the scale."""
    amounts = (decode, prefill, recompute)
    kinds = (DECODE, PREFILL, RECOMPUTE)
    limit = -(-budget * rows // top) - 1
    if is_textured():
        return textured(zip(kinds, whole(amounts, top, rows), strict=True), rows, limit)
    layers: list[tuple[int, int, str]] = []
    level = 0
    for kind, size in zip(kinds, whole(amounts, top, 8 * rows), strict=True):
        layers.append((level, level + size, kind))
        level += size
    return stacked(layers, rows, limit)


def _who(row: RequestRow, gutter: int) -> list[Part]:
    letter: Part = (f" {row.view.letter} ", owner_cell(row.view.number))
    return [letter, (" " + fit(row.label, gutter - 5) + " ", style(TEXT))]


def _life(run: Run, row: RequestRow, axis: Axis, when: Sequence[Extent]) -> list[Part]:
    """A request's cells: where one stands for several steps, what is rarest of what it did in them."""
    cells: list[Part] = [(" ", style())] * axis.width
    first = run.steps[0].step
    spent = _spent(row, run)
    if axis.kind == "seconds":
        # It may have come while a step was computed: the engine takes it in only with the next.
        extent = (row.view.arrived - run.steps[0].started, when[row.arrival_step - first][0])
        if axis.cell(extent[0]) < axis.cell(extent[1]):
            _paint(cells, axis.cells(extent), "waiting")
    for kind, indexes in spent:
        its = when[indexes[0] : indexes[-1] + 1]
        _paint(cells, axis.cells((its[0][0], its[-1][1])), kind)
        if kind == "decode" and axis.kind == "seconds":
            _draw_out(cells, axis, its)
    if row.token_steps:
        index = row.token_steps[0] - first
        color = next((KIND_COLORS[kind] for kind, indexes in spent if index in indexes), PREFILL)
        cells[axis.cells(when[index])[-1]] = (FIRST_TOKEN_MARK, style(BACKGROUND, color, bold=True))
    for step in row.view.preempted_at:
        cells[axis.cell(when[step - first][0])] = (PREEMPTED_GLYPH, style(PREEMPTED, bold=True))
    return cells


def _spent(row: RequestRow, run: Run) -> list[tuple[SpanKind, range]]:
    """What it did in which steps, counted from the run's first one, in the order in which that is painted."""
    first, last = run.steps[0].step, run.steps[-1].step
    ends = [(span, last if span.last is None else span.last) for span in row.view.spans]
    spent = [(span.kind, range(span.first - first, end - first + 1)) for span, end in ends if end >= span.first]
    return sorted(spent, key=lambda one: PAINTED.index(one[0]))


def _paint(cells: list[Part], its: range, kind: SpanKind) -> None:
    for cell in its:
        cells[cell] = (KIND_GLYPHS[kind], style(KIND_COLORS[kind]))


def _draw_out(cells: list[Part], axis: Axis, steps: Sequence[Extent]) -> None:
    """Let the cells of each decode say that it is one token, however long its step was."""
    for step in steps:
        if (step[1] - step[0]) / axis.per_cell + EPSILON >= LONG_STEP:
            for cell in axis.cells(step)[:-1]:
                cells[cell] = (LONG_STEP_MARK, style(DECODE))


def _labels(axis: Axis, gutter: int) -> list[Part]:
    """The axis in figures, each under its tick."""
    title = "second" if axis.kind == "seconds" else "step"
    line: list[Part] = [(title.rjust(gutter - 2), style(DIM))]
    used = gutter - 2
    ticks = {gutter + cell: text for cell, text in axis.ticks().items()}
    for cell, text in ticks.items():
        start = min(cell, gutter + axis.width - len(text))
        if start > used:
            line.append((" " * (start - used) + text, style(DIM)))
            used = start + len(text)
    return line
