"""`nanoviz compare`: finished runs side by side on standard output, for people, or as JSON or CSV for programs."""

from __future__ import annotations

import csv
import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields, replace
from io import StringIO
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from app.comparison.axis import AxisKind
from app.comparison.figures import all_labels, numbers
from app.comparison.page import comparison
from app.looks import ASCII_IN_PANELS
from app.palette import BRIGHT, TEXT, Palette, terminal_palette
from app.palette import use as use_palette
from app.panels.panel import Part
from app.recording import Recording, RecordingError
from app.results import wrap_intro
from app.run import Run
from app.text import printable
from engine.config import EngineConfig

LEAST_WIDTH = 60
WIDTH = 100
"""Cells of a line where there is no terminal."""


def recorded_runs(paths: Sequence[Path]) -> list[Run]:
    """The runs of these recordings, called like their scenes if these all differ, else like their files.

    Of a damaged one there are the steps before the damage, which is told on standard error. Raises RecordingError for a
    file that cannot be read or is none.
    """
    recordings = [Recording(path) for path in paths]
    for recording in recordings:
        if recording.engine.server:
            raise RecordingError(
                f"{recording.path} was recorded from a server elsewhere, which does not tell its steps; "
                "`nanoviz replay` shows it, and `nanoviz export --as csv` makes tables of it."
            )
        if recording.damage:
            print(f"nanoviz: warning: {printable(recording.damage)}", file=sys.stderr)
    names = [recording.engine.scene for recording in recordings]
    if not all(names) or len({*names}) < len(names):
        stems = [path.stem for path in paths]
        times = Counter(stems)
        names = [stem if times[stem] == 1 else str(path) for stem, path in zip(stems, paths, strict=True)]
    names = [f"{n} (damaged)" if recording.damage else n for n, recording in zip(names, recordings, strict=True)]
    return [Run(name, recording.traces) for name, recording in zip(names, recordings, strict=True)]


def print_comparison(runs: Sequence[Run], axis: AxisKind, intro: Sequence[Sequence[Part]] = ()) -> None:
    """Print it for people, as wide as the terminal; colours only on a terminal that has them and may show them."""
    if intro:
        print_lines([*intro, []])
    paper = _Paper()
    paper.print(comparison(runs, paper.width, axis))


def print_lines(lines: Sequence[Sequence[Part]]) -> None:
    """Print lines that panels draw, wrapped to the width."""
    paper = _Paper()
    paper.print(wrapped for line in lines for wrapped in wrap_intro(line, paper.width))


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Whoever reads has had enough: that is no failure, and `cli.main` deals with it."""
        raise BrokenPipeError


class _Paper:
    """Standard output, for lines as panels draw them."""

    def __init__(self) -> None:
        self._console = _Console(file=sys.stdout, highlight=False, markup=False, emoji=False)
        has_colors = self._console.color_system is not None and not self._console.no_color
        self._is_ascii = "utf" not in (sys.stdout.encoding or "").lower() or os.environ.get("TERM") == "linux"
        use_palette(_palette(), textured=self._is_ascii or not has_colors)
        columns = shutil.get_terminal_size((WIDTH, 0)).columns if sys.stdout.isatty() else WIDTH
        self.width = max(LEAST_WIDTH, columns)

    def print(self, lines: Iterable[Sequence[Part]]) -> None:
        for line in lines:
            alike = ((look, "".join(text for text, _ in parts)) for look, parts in groupby(line, key=itemgetter(1)))
            text = Text.assemble(*((ASCII_IN_PANELS.translate(t) if self._is_ascii else t, look) for look, t in alike))
            text.rstrip()
            self._console.print(text, soft_wrap=True)


def print_json(runs: Sequence[Run]) -> None:
    """Print one object with a list of runs: each with its name, its parameters in its first step, and its metrics by
    name; null where there is nothing to measure."""
    labels = all_labels(runs)
    made = [{"name": run.name, "config": _config(run), "metrics": numbers(run, labels)} for run in runs]
    _say(json.dumps({"runs": made}, indent=1))


def print_csv(runs: Sequence[Run]) -> None:
    """Print a row for each run, under a line of names: its name, its parameters in its first step, its metrics."""
    labels = all_labels(runs)
    rows = [{"run": run.name, **(_config(run) or {}), **numbers(run, labels)} for run in runs]
    names = ["run", *(f.name for f in fields(EngineConfig)), *numbers(Run(""), labels)]
    text = StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    _say(text.getvalue().removesuffix("\n"))


def _config(run: Run) -> dict[str, Any] | None:
    return asdict(run.first_config) if run.first_config else None


def _palette() -> Palette:
    """The terminal's own sixteen colours. Whether its background is dark nobody knows: what is bright is only bold."""
    palette = terminal_palette(dark=True)
    return replace(palette, colors={**palette.colors, BRIGHT: palette.colors[TEXT]})


def _say(text: str) -> None:
    """On a terminal, what somebody typed is drawn and never obeyed; into a file it goes as it is, but for what cannot
    be written there."""
    if sys.stdout.isatty():
        text = "\n".join(map(printable, text.split("\n")))
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding))
