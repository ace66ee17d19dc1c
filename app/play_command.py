"""`nanoviz play --headless` and `nanoviz presets`: presets without a screen."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import Any

from app.compare_command import print_comparison, print_lines
from app.expectation import ALONE
from app.headless import COLUMNS, TABLE, clear_report, row
from app.metrics import SPREADS, STATISTICS, TOTALS
from app.player import Part, verdicts
from app.preset import Preset, changes
from app.preset_files import PresetError, available, find, load
from app.results import results
from app.run import Run
from app.text import printable
from app.words import value as shown
from engine.trace import StepTrace

WIDTH = 100


def begin(preset: Preset, model: str, overrides: Mapping[str, Any]) -> None:
    """Say what is going to be played."""
    others = f", with {_listed(overrides)}" if overrides else ""
    print(f"{printable(preset.title)} ({printable(model)}{others})")


class Teller:
    """Prints what is said when it is said; with `trace`, also a line for each step."""

    def __init__(self, *, trace: bool) -> None:
        self._trace = trace

    def tell(self, part: Part, trace: StepTrace) -> None:
        """A step of a scene."""
        clear_report()
        if trace.step == 0:
            print(f"\n{part.name}")
        if trace.note:
            told = " ".join(printable(trace.note, newlines=True).split())
            print(fill(told, WIDTH, initial_indent=f"  step {trace.step:<5,}", subsequent_indent=" " * 12), flush=True)
        if self._trace:
            if trace.step == 0:
                print(TABLE.format(*COLUMNS))
            print(row(trace), flush=True)


def end(preset: Preset, parts: tuple[Part, ...], runs: Sequence[Run]) -> bool:
    """Print what came of it; True if all expectations hold."""
    clear_report()
    by_name = {run.name: run for run in runs}
    told = verdicts(preset, parts, by_name)
    lines = results(preset.moral, told, runs)
    compared = [run for run in runs if run.name != ALONE]
    print()
    if len(compared) > 1:
        print_comparison(compared, "seconds" if preset.needs_text else "steps", lines)
    else:
        print_lines(lines)
    return all(verdict.passed for verdict in told)


def list_presets() -> None:
    """Print all presets with their morals; one that cannot be read with the reason."""
    width = max((len(name) for name in available()), default=0) + 2
    for name, path in available().items():
        try:
            preset = load(path)
        except PresetError as error:
            print(f"nanoviz: {printable(str(error))}", file=sys.stderr)
            continue
        print(f"{printable(name):{width}}{printable(preset.title)}")
        print(_wrapped(preset.moral, " " * width))


def describe(name: str) -> None:
    """Print all that a preset says of itself."""
    path = find(name)
    preset = load(path)
    print(f"{printable(preset.title)}\n{_wrapped(preset.moral)}\n")
    needs = " (it needs a model that writes text)" if preset.needs_text else ""
    print(f"model: {printable(preset.model)}{needs}\nfile: {printable(str(path))}")
    print(f"parameters: {_listed(changes(preset.parameters)) or 'the usual ones'}")
    for index, scene in enumerate(preset.scene, 1):
        print(f"scene {index}: {scene.name}  {_listed(changes(scene.parameters))}".rstrip())
    for expect in preset.expect:
        print(f"expects: {printable(expect.check)}" + (f"  {printable(expect.text)}" if expect.text else ""))


def list_metrics() -> None:
    """Print all metrics, as expectations name them."""
    width = max(map(len, (*TOTALS, *SPREADS)))
    print("One number of a run:")
    for name, total in TOTALS.items():
        print(f"  {name:{width}}  {total.help}")
    print(f"\nOf each request or token; add .{{{','.join(STATISTICS)}}}, before it a label if only those are meant:")
    for name, spread in SPREADS.items():
        print(f"  {name:{width}}  {spread.help}")


def _wrapped(text: str, indent: str = "") -> str:
    one_line = " ".join(printable(text, newlines=True).split())
    return fill(one_line, WIDTH, initial_indent=indent, subsequent_indent=indent)


def _listed(parameters: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {printable(shown(value))}" for name, value in parameters.items())
