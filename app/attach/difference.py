"""What happened between two looks at a server: differences of what it counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.attach.metrics import Sample
from engine.poll import Histogram, Measured, Poll, Rank

_COUNTED = (
    "num_iterations",
    "num_prompt_tokens",
    "num_cached_tokens",
    "num_generation_tokens",
    "num_queried_tokens",
    "num_hit_tokens",
    "num_preemptions",
)


def poll_of(before: Sample | None, now: Sample, seconds: float) -> Poll:
    """The poll that these samples make, taken so many seconds apart.

    Without one before, or after a restart, nothing can be said of what happened in between: there are the gauges then.
    """
    if before is None or has_restarted(before, now):
        ranks = tuple(_difference(None, rank) for rank in now.ranks)
        return Poll(ranks=ranks, restarted=before is not None, counts_at_end=now.counts_at_end)
    earlier = {rank.name: rank for rank in before.ranks}
    return Poll(
        interval=seconds,
        ranks=tuple(_difference(earlier.get(rank.name), rank) for rank in now.ranks),
        latencies=_new_latencies(before.latencies, now.latencies),
        counts_at_end=now.counts_at_end,
    )


def has_restarted(before: Sample, now: Sample) -> bool:
    """Whether the counters began anew: something that only grows fell, or the process began at another time."""
    if before.began is not None and now.began is not None and before.began != now.began:
        return True
    later = {rank.name: rank for rank in now.ranks}
    return any(_fell(rank, later[rank.name]) for rank in before.ranks if rank.name in later) or any(
        histogram.count < before.latencies[measured].count
        for measured, histogram in now.latencies.items()
        if measured in before.latencies
    )


def _fell(before: Rank, now: Rank) -> bool:
    # Prompt tokens may be a difference of counters that were not read at the same moment: they prove nothing.
    counted = [(getattr(before, name), getattr(now, name)) for name in _COUNTED if name != "num_prompt_tokens"]
    if before.finished is not None and now.finished is not None:
        counted += [(count, now.finished.get(reason)) for reason, count in before.finished.items()]
    return any(old is not None and new is not None and new < old for old, new in counted)


def _difference(before: Rank | None, now: Rank) -> Rank:
    """The gauges of now, and what was counted since; None where that was not told both times."""
    changes: dict[str, Any] = {}
    for name in _COUNTED:
        old, new = getattr(before, name, None), getattr(now, name)
        changes[name] = None if old is None or new is None else max(0, new - old)
    finished = None
    if before is not None and before.finished is not None and now.finished is not None:
        # A reason that was not there has not been a reason yet.
        finished = {reason: count - before.finished.get(reason, 0) for reason, count in now.finished.items()}
    return Rank(
        name=now.name,
        num_running=now.num_running,
        num_waiting=now.num_waiting,
        waiting_by_reason=now.waiting_by_reason,
        kv_usage=now.kv_usage,
        finished=finished,
        latencies=_new_latencies(before.latencies if before else {}, now.latencies),
        **changes,
    )


def _new_latencies(
    before: Mapping[Measured, Histogram], now: Mapping[Measured, Histogram]
) -> dict[Measured, Histogram]:
    """Those that were there both times, with the same bounds."""
    return {
        measured: _new_values(before[measured], histogram)
        for measured, histogram in now.items()
        if measured in before and before[measured].bounds == histogram.bounds
    }


def _new_values(before: Histogram, now: Histogram) -> Histogram:
    counts = tuple(max(0, new - old) for old, new in zip(before.counts, now.counts, strict=True))
    return Histogram(now.bounds, counts, max(0.0, now.sum - before.sum))
