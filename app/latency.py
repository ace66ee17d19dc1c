"""Latencies in figures: their percentiles, when they were seen, and what a prefill does to the gaps beside it.

Definitions are vLLM's: TTFT includes queueing, and a preemption neither resets it nor splits a gap between tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Reversible, Sequence
from dataclasses import dataclass
from itertools import takewhile
from math import floor, inf
from statistics import median

from app.view import Sample, StepBar
from engine.poll import Histogram


@dataclass(frozen=True, slots=True)
class Distribution:
    """How a latency is distributed, in seconds."""

    count: int
    p50: float
    p95: float
    p99: float
    max: float
    known_to: float = inf
    """Of values that were only counted, the highest bound: an infinite one lies somewhere above it."""


@dataclass(frozen=True, slots=True)
class Trade:
    """The median of the longest gaps between tokens, in seconds: of steps that only decoded, and of those that computed
    prompts beside that. None for a kind of step in which no gap ended."""

    decode_only: float | None
    with_prefill: float | None

    @property
    def factor(self) -> float | None:
        """How many times as long a gap is beside a prefill."""
        return self.with_prefill / self.decode_only if self.with_prefill and self.decode_only else None


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The percentile of values in rising order, linear between its neighbours, as numpy and vLLM's benchmarks do."""
    position = (len(ordered) - 1) * percent / 100
    below = floor(position)
    if below + 1 >= len(ordered):
        return ordered[-1]
    return ordered[below] + (ordered[below + 1] - ordered[below]) * (position - below)


def distribution(samples: Iterable[Sample], *, is_long: bool | None = None) -> Distribution | None:
    """Of the requests with a long prompt, or of those with a short one, or of all; None if there are no samples."""
    ordered = sorted([sample.seconds for sample in samples if is_long in (None, sample.is_long)])
    if not ordered:
        return None
    p50, p95, p99 = (percentile(ordered, percent) for percent in (50, 95, 99))
    return Distribution(len(ordered), p50, p95, p99, ordered[-1])


def between_bounds(histogram: Histogram) -> Distribution | None:
    """Of values that were only counted between bounds: its percentiles lie on a line between two of them, and the
    highest value is at most its bound. None if there are no values."""
    p50, p95, p99, most = (histogram.quantile(share) for share in (0.5, 0.95, 0.99, 1.0))
    if p50 is None or p95 is None or p99 is None or most is None:
        return None
    return Distribution(histogram.count, p50, p95, p99, most, histogram.bounds[-1])


def by_step(samples: Reversible[Sample], since: int) -> dict[int, Sample]:
    """The longest latency of each step that has one, from a step on. The samples are in the order of their steps."""
    longest: dict[int, Sample] = {}
    for sample in takewhile(lambda sample: sample.step >= since, reversed(samples)):
        if sample.step not in longest or sample.seconds > longest[sample.step].seconds:
            longest[sample.step] = sample
    return longest


def trade(bars: Iterable[StepBar]) -> Trade:
    """What these steps say about the price that decoding requests pay for a prefill beside them."""
    decode_only: list[float] = []
    with_prefill: list[float] = []
    for bar in bars:
        if bar.gap:
            (with_prefill if bar.prefill or bar.recompute else decode_only).append(bar.gap)
    return Trade(median(decode_only) if decode_only else None, median(with_prefill) if with_prefill else None)


def brief(seconds: float) -> str:
    """At most four characters: milliseconds without a unit, or longer times with one."""
    milliseconds = seconds * 1000
    if milliseconds < 9.95:
        return f"{milliseconds:.1f}"
    if milliseconds < 9999.5:
        return f"{milliseconds:.0f}"
    for unit, size in (("s", 1), ("m", 60)):
        if seconds / size < 999.5:
            return f"{seconds / size:.0f}{unit}"
    return f"{min(seconds / 3600, 999):.0f}h"
