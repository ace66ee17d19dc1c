"""What stands in a server's /metrics: by name and label, and as a `Sample`, whichever kind of server wrote it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf

from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from app.attach.cleaning import cleaned
from engine.poll import Histogram, Measured, Rank

_Labels = Mapping[str, str]
_NOBODY = Rank(name="")
_MOST = 1 << 53
"""Nothing that is counted comes near; numbers from here on are not exact any more."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A server's metrics at one moment. Unlike in a `Poll`, all that is counted is counted from its beginning."""

    ranks: tuple[Rank, ...]
    latencies: dict[Measured, Histogram]
    began: float | None = None
    """When its process did, in seconds since 1970."""
    model: str = ""
    """As its metrics name it."""
    counts_at_end: bool = False
    """As in a `Poll`."""
    config: dict[str, bool | int] = field(default_factory=dict)
    """The parameters of `EngineConfig` that stand there too."""


def ranks_of(
    readings: Readings, label: str, rank: Callable[[str, Readings], Rank], latencies: Mapping[Measured, tuple[str, ...]]
) -> tuple[Rank, ...]:
    """The engines of a server, told apart by a label, and what it tells without it of no one engine."""
    parts = readings.by_label(label)
    if len(parts) == 1:
        return tuple(rank(name, own) for name, own in parts.items())
    ranks = [replace(rank(name, own), latencies=own.histograms(latencies)) for name, own in parts.items()]
    engines = [one for one in ranks if one.name]
    whole = next((one for one in ranks if not one.name), _NOBODY)
    # What engines tell of themselves would be counted twice.
    told = {name for name in Rank.__struct_fields__ for one in engines if getattr(one, name) not in (None, {})}
    left = {name: getattr(whole, name) for name in Rank.__struct_fields__ if name not in told}
    whole = Rank(**left | {"name": "", "latencies": {}})
    return (*engines, whole) if whole != _NOBODY else tuple(engines)


class Readings:
    """Of a text in Prometheus' format the metrics whose names begin with one of these.

    Several values of a name, one for each of its labels, are added. Older clients of Prometheus leave out the `_total`
    of a counter's name: names are asked for without it. What is below zero, or no number, is not there. Raises
    ValueError for a text that is not in that format.
    """

    def __init__(self, text: str, names: tuple[str, ...]) -> None:
        # Most of what a server tells is read by nobody here, and the parser is slow.
        lines = (line for line in text.split("\n") if line.startswith(names) and "_created{" not in line)
        families = text_string_to_metric_families("\n".join([*lines, ""]))
        self._values: dict[str, list[tuple[_Labels, float]]] = defaultdict(list)
        for sample in (sample for family in families for sample in family.samples):
            if 0 <= sample.value < _MOST:
                self._values[sample.name].append((sample.labels, sample.value))

    def where(self, **labels: str) -> Readings:
        """Without those that have one of these labels with another value."""
        left = Readings("", ())
        for name, values in self._values.items():
            kept = [(own, value) for own, value in values if all(own.get(n, v) == v for n, v in labels.items())]
            left._values[name] = kept
        return left

    def by_label(self, label: str) -> dict[str, Readings]:
        """Those that have this label, by its value, and those without it by "". All of them as one if it has one value
        only, and as "0" if no other."""
        parts: dict[str, Readings] = {}
        for name, values in self._values.items():
            for labels, value in values:
                part = parts.setdefault(cleaned(labels.get(label, ""), 40), Readings("", ()))
                part._values[name].append((labels, value))
        names = sorted((name for name in parts if name), key=lambda name: (len(name), name))
        if len(names) < 2:
            return {next(iter(names), "0"): self}
        return {name: parts[name] for name in (*names, "") if name in parts}

    def _named(self, names: Iterable[str]) -> list[tuple[_Labels, float]]:
        """The values of the first of these names that there is."""
        every = (self._values.get(full) for name in names for full in (f"{name}_total", name))
        return next((values for values in every if values), [])

    def count(self, *names: str, **labels: str) -> int | None:
        """A whole number, such as a counter's."""
        found = [value for own, value in self._named(names) if labels.items() <= own.items()]
        return round(sum(found)) if found else None

    def counts_by(self, label: str, *names: str) -> dict[str, int] | None:
        """The same for each value of a label."""
        counts: Counter[str] = Counter()
        for labels, value in self._named(names):
            if label in labels:
                counts[cleaned(labels[label], 40)] += round(value)
        return dict(counts) or None

    def value(self, *names: str) -> float | None:
        """Any other number. It has no sum: it is the mean of the values that there are."""
        found = [value for _, value in self._named(names)]
        return sum(found) / len(found) if found else None

    def share(self, *names: str) -> float | None:
        """A number from 0 to 1."""
        value = self.value(*names)
        return None if value is None else min(1.0, value)

    def labels_of(self, name: str) -> _Labels:
        """Of a metric that is only there for its labels."""
        return next((labels for labels, _ in self._named([name])), {})

    def histograms(self, named: Mapping[Measured, tuple[str, ...]]) -> dict[Measured, Histogram]:
        """For each of these the histogram of the first of its names that there is; without those that there are not."""
        found = {measured: self.histogram(*names) for measured, names in named.items()}
        return {measured: histogram for measured, histogram in found.items() if histogram}

    def histogram(self, *names: str) -> Histogram | None:
        """A histogram of all values from the beginning."""
        for name in names:
            up_to: Counter[float] = Counter()
            for labels, value in self._values.get(f"{name}_bucket", ()):
                up_to[float(labels.get("le", "inf"))] += round(value)
            bounds = tuple(sorted(bound for bound in up_to if -inf < bound < inf))
            if bounds:
                cumulative = [0, *(up_to[bound] for bound in (*bounds, inf))]
                counts = tuple(max(0, upper - lower) for lower, upper in pairwise(cumulative))
                return Histogram(bounds, counts, sum(value for _, value in self._values.get(f"{name}_sum", ())))
        return None
