"""Results: what came of a preset, in lines as panels draw them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set

from app.expectation import Verdict
from app.palette import BRIGHT, DECODE, DIM, PREEMPTED, TEXT, WAITING, style
from app.panels.panel import Part, wrap_parts
from app.run import Run
from app.text import printable

SIGNS = {True: ("✓", DECODE), False: ("✗", PREEMPTED), None: ("?", WAITING)}


def results(
    moral: str, verdicts: Iterable[Verdict], runs: Mapping[str, Run], touched: Set[str] = frozenset()
) -> list[Sequence[Part]]:
    """The moral of a preset, each expectation with what was found, and what else one has to know of these runs.

    `touched` are those in which a person has joined in.
    """
    lines: list[Sequence[Part]] = [[(" ".join(printable(moral, newlines=True).split()), style(BRIGHT))], []]
    lines += map(verdict_line, verdicts)
    if touched:
        names = ", ".join(sorted(touched))
        lines.append([(f"You have joined in ({names}): what is found may be your doing.", style(WAITING))])
    for name, run in runs.items():
        lines += [[(f"{name} refused: {printable(reason)}", style(WAITING))] for reason in run.refused]
    return lines


def wrap_intro(line: Sequence[Part], width: int) -> list[list[Part]]:
    """One of these lines in the width; behind a sign the lines that follow are indented."""
    return wrap_parts(line, width, indent=2 if len(line) > 1 else 0)


def verdict_line(verdict: Verdict) -> list[Part]:
    """An expectation and what became of it."""
    sign, color = SIGNS[verdict.passed]
    line: list[Part] = [(f"{sign} ", style(color, bold=True))]
    if verdict.text:
        line.append((f"{printable(verdict.text)} · ", style(TEXT)))
    return [*line, (f"{printable(verdict.check)}: ", style(DIM)), (verdict.found, style(BRIGHT))]
