"""Results: what came of a preset, in lines as panels draw them."""

from __future__ import annotations

from app.expectation import Verdict
from app.palette import BRIGHT, DECODE, DIM, PREEMPTED, TEXT, WAITING, style
from app.panels.panel import Part, wrap_parts
from app.player import Player
from app.text import printable

SIGNS = {True: ("✓", DECODE), False: ("✗", PREEMPTED), None: ("?", WAITING)}


def results(player: Player, width: int) -> list[list[Part]]:
    """The moral of a preset, and each expectation with what was found."""
    moral = " ".join(printable(player.preset.moral, newlines=True).split())
    lines = wrap_parts([(moral, style(BRIGHT))], width)
    lines.append([])
    for verdict in player.verdicts():
        lines += _verdict(verdict, width)
    if player.touched:
        names = ", ".join(sorted(player.touched))
        lines.append([(f"You have joined in ({names}): what is found may be your doing.", style(WAITING))])
    refused = [(name, reason) for name, run in player.runs.items() for reason in run.refused]
    for name, reason in refused:
        lines += wrap_parts([(f"{name} refused: {printable(reason)}", style(WAITING))], width, indent=2)
    return lines


def _verdict(verdict: Verdict, width: int) -> list[list[Part]]:
    sign, color = SIGNS[verdict.passed]
    text = printable(verdict.text) or verdict.check
    parts: list[Part] = [
        (f"{sign} ", style(color, bold=True)),
        (text, style(TEXT)),
        (f"  {verdict.found}", style(BRIGHT)),
    ]
    if verdict.text:
        parts.append((f"  {verdict.check}", style(DIM)))
    return wrap_parts(parts, width, indent=2)
