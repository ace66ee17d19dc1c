"""`nanoviz play --headless` and `nanoviz presets`: presets without a screen."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from textwrap import fill
from typing import Any

from app.expectation import Verdict
from app.headless import clear_report, report
from app.metrics import Metric, amount
from app.player import Part, parts, verdicts
from app.preset import Preset, changes
from app.preset_files import PresetError, available, find, load
from app.protocol import EngineOptions
from app.run import Run
from app.session import Start
from app.stage import play_all
from app.text import printable
from app.words import value as shown
from engine.trace import StepTrace

WIDTH = 100
SIGNS = {True: "✓", False: "✗", None: "?"}
OF_SCENES = ("steps", "seconds", "preemptions", "recomputed", "ttft.max", "itl.max")
"""What is said of every scene in a line."""


def play(preset: Preset, options: EngineOptions, overrides: Mapping[str, Any], num_runs: int, start: Start) -> bool:
    """Play a preset as fast as it goes and print what was said and what came of it; True if all expectations hold."""
    ready = parts(preset, overrides)
    print(f"{printable(preset.title)} ({printable(options.model)})\n")
    runs = play_all(options, ready, num_runs, report, start, _say)
    clear_report()
    print()
    for run in runs.values():
        print(_line(run))
        for reason in run.refused:
            print(f"  refused: {printable(reason)}")
    told = verdicts(preset, ready, runs)
    print()
    for verdict in told:
        print(verdict_line(verdict))
    if overrides:
        print(f"(with {', '.join(f'{name} {shown(value)}' for name, value in overrides.items())})")
    print(f"\n{fill(printable(preset.moral.strip()), WIDTH)}")
    return all(verdict.passed for verdict in told)


def _say(part: Part, trace: StepTrace) -> None:
    """Narration, when it comes."""
    clear_report()
    if trace.step == 0:
        print(part.name)
    if trace.note:
        told = " ".join(printable(trace.note, newlines=True).split())
        print(fill(told, WIDTH, initial_indent=f"  step {trace.step:<5,}", subsequent_indent=" " * 12), flush=True)


def _line(run: Run) -> str:
    metrics = [Metric.parse(name) for name in OF_SCENES]
    told = "  ".join(f"{metric.name} {amount(metric.of(run), metric.unit)}" for metric in metrics)
    return f"{run.name:12} {told}"


def verdict_line(verdict: Verdict) -> str:
    """An expectation and what became of it, in a line."""
    text = printable(verdict.text) or verdict.check
    return f"{SIGNS[verdict.passed]} {text}  [{verdict.check}: {verdict.found}]"


def list_presets() -> None:
    """Print all presets with their morals; one that cannot be read with the reason."""
    width = max((len(name) for name in available()), default=0)
    for name, path in available().items():
        try:
            preset = load(path)
        except PresetError as error:
            print(f"nanoviz: {printable(str(error))}", file=sys.stderr)
            continue
        print(f"{printable(name):{width}}  {printable(preset.title)}")
        print(
            fill(
                printable(preset.moral.strip()),
                WIDTH,
                initial_indent=" " * (width + 2),
                subsequent_indent=" " * (width + 2),
            )
        )


def describe(name: str) -> None:
    """Print all that a preset says of itself."""
    path = find(name)
    preset = load(path)
    print(f"{printable(preset.title)}\n{fill(printable(preset.moral.strip()), WIDTH)}\n")
    needs = " (it needs real text)" if preset.needs_text else ""
    print(f"model: {printable(preset.model)}{needs}\nfile: {printable(str(path))}")
    print(f"parameters: {_listed(changes(preset.parameters)) or 'the usual ones'}")
    for index, scene in enumerate(preset.scene, 1):
        print(f"scene {index}: {scene.name}  {_listed(changes(scene.parameters))}".rstrip())
    for expect in preset.expect:
        print(f"expects: {printable(expect.check)}" + (f"  {printable(expect.text)}" if expect.text else ""))


def _listed(parameters: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {shown(value)}" for name, value in parameters.items())
