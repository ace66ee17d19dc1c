"""Results: what came of a preset, in lines as panels draw them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from app.expectation import Verdict
from app.palette import BRIGHT, DECODE, DIM, PREEMPTED, TEXT, WAITING, style
from app.panels.panel import Part, wrap_parts
from app.run import Run
from app.text import printable

SIGNS = {True: ("✓", DECODE), False: ("✗", PREEMPTED), None: ("?", WAITING)}

HEADLESS = "`nanoviz play NAME --headless` plays it as fast as it goes."


def results(moral: str, verdicts: Iterable[Verdict], runs: Sequence[Run]) -> list[Sequence[Part]]:
    """The moral of a preset, each expectation with what was found, and what else one has to know of these runs."""
    lines: list[Sequence[Part]] = [[(" ".join(printable(moral, newlines=True).split()), style(BRIGHT))], []]
    lines += map(verdict_line, verdicts)
    lines += remarks(runs)
    if any(run.was_held for run in runs):
        lines.append([("• ", style(WAITING, bold=True)), (HEADLESS, style(WAITING))])
    return lines


def remarks(runs: Sequence[Run]) -> list[Sequence[Part]]:
    """What one has to know of these runs before one believes their figures."""
    told = []
    if touched := [run.name for run in runs if run.was_touched]:
        told.append(f"You have joined in ({', '.join(touched)}): what is found there may be your doing.")
    if held := [run.name for run in runs if run.was_held]:
        told.append(
            f"Held back ({', '.join(held)}), for its steps to be followed: its times say nothing, "
            "its steps and tokens do."
        )
    told += [f"{run.name} refused: {reason}" for run in runs for reason in run.refused]
    return [[("• ", style(WAITING, bold=True)), (printable(line), style(WAITING))] for line in told]


def wrap_intro(line: Sequence[Part], width: int) -> list[list[Part]]:
    """One of these lines in the width; behind a sign the lines that follow are indented."""
    return wrap_parts(line, width, indent=2 if len(line) > 1 else 0)


def verdict_line(verdict: Verdict) -> list[Part]:
    """An expectation and what became of it."""
    sign, color = SIGNS[verdict.passed]
    line: list[Part] = [(f"{sign} ", style(color, bold=True))]
    if verdict.text:
        line += [(f"{printable(verdict.text)}: ", style(TEXT)), (verdict.found, style(BRIGHT))]
        return [*line, (f"  [{printable(verdict.check)}]", style(DIM))]
    return [*line, (f"{printable(verdict.check)}: ", style(TEXT)), (verdict.found, style(BRIGHT))]
