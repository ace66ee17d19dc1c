"""Figures: which metrics a comparison speaks of, which of their values is the best, and all of them as numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

from app.metrics import SPREADS, STATISTICS, TOTALS, Metric, amount
from app.run import Run
from app.words import value as shown
from engine.config import EngineConfig

Better = Literal["lower", "higher"]
TIMED = ("seconds", "tokens/s")
"""Units of which no value is the best where the pace was somebody's choice."""
NOISE = 1.1
"""Times that are nearer to each other than this say nothing of who is faster."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A row of the table: a metric, what it is called, and which value of it is the best, if one can be."""

    group: str
    name: str
    metric: Metric
    better: Better | None = None
    optional: bool = False
    """Nothing is to be said of it where all runs have none."""

    def values(self, runs: Sequence[Run]) -> list[float | None]:
        return [self.metric.of(run) for run in runs]


def figures(runs: Sequence[Run]) -> list[Figure]:
    """The rows of the table of these runs, those left out in which there is nothing to be read."""
    labels = _told_apart(runs)
    ttft = [_of_label("TTFT", "ttft", label, statistic) for label in labels for statistic in ("p50", "max")]
    ttft.append(Figure("TTFT", "max, in steps", Metric.parse("ttft_steps.max"), "lower"))
    itl = [_of_label("ITL", "itl", "", statistic) for statistic in ("p50", "p95", "max")]
    itl += [_of_label("ITL", "itl", label, "max") for label in labels if label]
    itl.append(Figure("ITL", "max, in steps", Metric.parse("itl_steps.max"), "lower"))
    itl.append(Figure("ITL", "max, in tokens", Metric.parse("itl_tokens.max"), "lower"))
    totals = [
        Figure("output", "tokens a second", Metric.parse("throughput"), "higher"),
        Figure("steps", "", Metric.parse("steps")),
        Figure("time", "", Metric.parse("seconds"), "lower"),
        Figure("served", "", Metric.parse("served")),
        Figure("preemptions", "", Metric.parse("preemptions"), "lower", optional=True),
        Figure("tokens", "recomputed", Metric.parse("recomputed"), "lower", optional=True),
        Figure("tokens", "saved by the cache", Metric.parse("saved"), "higher", optional=True),
        Figure("budget", "used", Metric.parse("budget_use")),
        Figure("KV pool", "most in use", Metric.parse("kv_max")),
        Figure("running", "most at once", Metric.parse("running_max")),
    ]
    found = [figure for figure in (*ttft, *itl, *totals) if _says_something(figure, runs)]
    if not any(run.was_held for run in runs):
        return found
    return [replace(figure, better=None) if figure.metric.unit in TIMED else figure for figure in found]


def best(values: Sequence[float | None], metric: Metric, better: Better | None) -> int | None:
    """Which of them is the best; None if two that read the same are, or if there is nothing to be better than."""
    known = sorted(((value, index) for index, value in enumerate(values) if value is not None))
    if better is None or len(known) < 2:
        return None
    (value, index), (second, _) = known[:2] if better == "lower" else known[:-3:-1]
    if metric.unit in TIMED and max(value, second) < NOISE * min(value, second):
        return None
    is_alone = [amount(other, metric.unit) for other in values].count(amount(value, metric.unit)) == 1
    return index if is_alone else None


def differences(runs: Sequence[Run]) -> list[tuple[str, list[str]]]:
    """The parameters that the runs did not begin with alike: name, and value of each run."""
    configs = [run.first_config for run in runs]
    if len({config for config in configs if config}) < 2:
        return []
    rows = [(f.name, [shown(getattr(c, f.name)) if c else "-" for c in configs]) for f in fields(EngineConfig)]
    return [(name, values) for name, values in rows if len({*values} - {"-"}) > 1]


def numbers(run: Run, labels: Sequence[str]) -> dict[str, float | None]:
    """All metrics by name, also those of the requests with each of these labels."""
    metrics = [Metric(name, name) for name in TOTALS]
    for measure in SPREADS:
        for label in ("", *labels):
            metrics += [Metric(_name(measure, label, one), measure, label, one) for one in STATISTICS]
    return {metric.name: metric.of(run) for metric in metrics}


def all_labels(runs: Sequence[Run]) -> list[str]:
    """The labels that requests of any run have, in the order of the runs and of their arrivals."""
    return [label for label in dict.fromkeys(label for run in runs for label in run.labels) if label]


def _told_apart(runs: Sequence[Run]) -> list[str]:
    """All requests together, which is the label "", and each label if there are several."""
    labels = all_labels(runs)
    return ["", *labels] if len(labels) > 1 else [""]


def _of_label(group: str, measure: str, label: str, statistic: str) -> Figure:
    # Not parsed: somebody's label may have dots in it.
    metric = Metric(_name(measure, label, statistic), measure, label, statistic)
    return Figure(group, f"{label} {statistic}".strip(), metric, "lower")


def _name(measure: str, label: str, statistic: str) -> str:
    return ".".join(part for part in (measure, label, statistic) if part)


def _says_something(figure: Figure, runs: Sequence[Run]) -> bool:
    values = figure.values(runs)
    return any(values) if figure.optional else any(value is not None for value in values)
