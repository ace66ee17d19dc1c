"""Metrics: the figures of a run, by name, as expectations and comparisons ask for them.

A total is one word, such as `preemptions`. A latency or another value that each request has its own of is a word, a
label if only those requests are meant, and how to make one number of many: `ttft.long.max`, `itl.p95`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median
from typing import Literal

from app.latency import percentile
from app.run import RequestRow, Run

Unit = Literal["", "seconds", "share", "tokens/s", "steps", "tokens"]


class MetricError(ValueError):
    """A name that no metric has; the text says which there are."""


@dataclass(frozen=True, slots=True)
class Total:
    """One number of a run; None where there is nothing to measure."""

    help: str
    unit: Unit
    of: Callable[[Run], float | None]


@dataclass(frozen=True, slots=True)
class Spread:
    """Values of each request: one, or one for each of its tokens."""

    help: str
    unit: Unit
    of: Callable[[Run, RequestRow], Sequence[float]]


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return fmean(found) if found else None


def _kv(run: Run) -> list[float]:
    return [row.peak_blocks / row.usable_blocks for row in run.busy_steps]


TOTALS: dict[str, Total] = {
    "steps": Total("steps in which something was computed", "steps", lambda r: len(r.busy_steps)),
    "prefill_steps": Total(
        "steps in which a prompt was computed", "steps", lambda r: sum(1 for s in r.steps if s.prefill or s.recompute)
    ),
    "first_step_requests": Total(
        "requests that the first step computed something for", "", lambda r: r.steps[0].served if r.steps else None
    ),
    "seconds": Total("from the first step to the end of the last", "seconds", lambda r: r.seconds),
    "requests": Total("requests that arrived", "", lambda r: len(r.requests)),
    "served": Total("requests that ended by themselves", "", lambda r: sum(row.is_served for row in r.requests)),
    "refused": Total("requests that were not taken", "", lambda r: len(r.refused)),
    "preemptions": Total("times that a request was thrown out", "", lambda r: sum(s.preemptions for s in r.steps)),
    "preempted": Total(
        "requests that were thrown out at all", "", lambda r: sum(bool(row.view.preempted_at) for row in r.requests)
    ),
    "computed": Total("tokens computed, again or not", "tokens", lambda r: sum(s.computed for s in r.steps)),
    "recomputed": Total(
        "tokens computed again after a preemption", "tokens", lambda r: sum(s.recompute for s in r.steps)
    ),
    "saved": Total("tokens that the prefix cache saved", "tokens", lambda r: sum(s.cached for s in r.steps)),
    "outputs": Total("tokens of output", "tokens", lambda r: sum(s.outputs for s in r.steps)),
    "throughput": Total(
        "output tokens a second", "tokens/s", lambda r: _share(sum(s.outputs for s in r.steps), r.seconds)
    ),
    "step_throughput": Total(
        "output tokens a step",
        "",
        lambda r: _share(sum(s.outputs for s in r.steps), len(r.busy_steps)),
    ),
    "budget_use": Total(
        "computed tokens as a share of the budget",
        "share",
        lambda r: _share(sum(s.computed for s in r.steps), sum(s.budget for s in r.busy_steps)),
    ),
    "waste": Total(
        "recomputed tokens as a share of all that were computed",
        "share",
        lambda r: _share(sum(s.recompute for s in r.steps), sum(s.computed for s in r.steps)),
    ),
    "running_max": Total(
        "most requests that ran at once", "", lambda r: max((s.running for s in r.steps), default=None)
    ),
    "running_mean": Total(
        "requests that ran, on average over steps", "", lambda r: _mean(s.running for s in r.busy_steps)
    ),
    "waiting_max": Total("longest queue", "", lambda r: max((s.waiting for s in r.steps), default=None)),
    "kv_max": Total("most of the KV pool in use", "share", lambda r: max(_kv(r), default=None)),
    "kv_mean": Total("of the KV pool in use, on average over steps", "share", lambda r: _mean(_kv(r))),
    "ratio_min": Total(
        "policy sglang: the lowest new_token_ratio",
        "",
        lambda r: min((s.new_token_ratio for s in r.steps if s.new_token_ratio is not None), default=None),
    ),
    "ratio_max": Total(
        "policy sglang: the highest new_token_ratio",
        "",
        lambda r: max((s.new_token_ratio for s in r.steps if s.new_token_ratio is not None), default=None),
    ),
}


def _first(value: float | None) -> Sequence[float]:
    return () if value is None else (value,)


def _tpot(row: RequestRow) -> Sequence[float]:
    return (fmean(row.view.itl),) if row.view.itl else ()


def _tpot_steps(row: RequestRow) -> Sequence[float]:
    gaps = [b - a for a, b in pairwise(row.token_steps)]
    return (fmean(gaps),) if gaps else ()


def _e2e(row: RequestRow) -> Sequence[float]:
    return _first(row.view.finished.e2e) if row.view.finished and row.is_served else ()


def _steps_until(row: RequestRow, step: int | None) -> Sequence[float]:
    """Steps from the arrival to this one; the step that it arrived in and was served in is the first."""
    return () if step is None else (step - row.arrival_step + 1,)


def _gap_tokens(run: Run, row: RequestRow) -> Sequence[float]:
    first, before = run.steps[0].step, run.computed_before
    return [before[end + 1 - first] - before[start + 1 - first] for start, end in pairwise(row.token_steps)]


SPREADS: dict[str, Spread] = {
    "ttft": Spread("from arrival to the first token, the queue included", "seconds", lambda _, q: _first(q.view.ttft)),
    "itl": Spread("from a token to the next", "seconds", lambda _, q: q.view.itl),
    "tpot": Spread("mean time of an output token after the first", "seconds", lambda _, q: _tpot(q)),
    "queue": Spread("from arrival to admission", "seconds", lambda _, q: _first(q.view.queue_time)),
    "e2e": Spread("from arrival to the end", "seconds", lambda _, q: _e2e(q)),
    "ttft_steps": Spread(
        "steps until the first token", "steps", lambda _, q: _steps_until(q, next(iter(q.token_steps), None))
    ),
    "itl_steps": Spread(
        "steps from a token to the next", "steps", lambda _, q: [b - a for a, b in pairwise(q.token_steps)]
    ),
    "tpot_steps": Spread("steps for an output token after the first, on average", "", lambda _, q: _tpot_steps(q)),
    "itl_tokens": Spread("tokens computed, for anybody, from a token to the next", "tokens", _gap_tokens),
    "queue_steps": Spread(
        "whole steps spent waiting before the first admission",
        "steps",
        lambda _, q: () if q.admission_step is None else (q.admission_step - q.arrival_step,),
    ),
    "e2e_steps": Spread(
        "steps until the last token",
        "steps",
        lambda _, q: _steps_until(q, q.token_steps[-1] if q.is_served and q.token_steps else None),
    ),
    "times_preempted": Spread("times that it was thrown out", "", lambda _, q: (len(q.view.preempted_at),)),
    "request_cached": Spread(
        "tokens that the prefix cache saved for it", "tokens", lambda _, q: (q.num_cached_tokens,)
    ),
}

STATISTICS: dict[str, Callable[[list[float]], float]] = {
    "min": min,
    "mean": fmean,
    "p50": lambda values: percentile(sorted(values), 50),
    "p95": lambda values: percentile(sorted(values), 95),
    "p99": lambda values: percentile(sorted(values), 99),
    "max": max,
    "sum": sum,
}


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric by its name. Raises MetricError, in `parse`, for a name that none has."""

    name: str
    measure: str
    label: str = ""
    """Only of requests with this label; "" is all."""
    statistic: str = ""

    @classmethod
    def parse(cls, name: str) -> Metric:
        measure, *rest = name.split(".")
        if measure in TOTALS:
            if rest:
                raise MetricError(f"{measure} is one number of a run; {name!r} asks for more of it.")
            return cls(name, measure)
        if measure not in SPREADS:
            raise MetricError(f"there is no metric {measure!r}; there are: {', '.join((*TOTALS, *SPREADS))}.")
        if not rest or rest[-1] not in STATISTICS or len(rest) > 2:
            raise MetricError(
                f"{name!r} is no metric: write {measure}.max or {measure}.LABEL.max, with one of "
                f"{', '.join(STATISTICS)} at the end."
            )
        return cls(name, measure, rest[0] if len(rest) == 2 else "", rest[-1])

    @property
    def unit(self) -> Unit:
        return TOTALS[self.measure].unit if self.measure in TOTALS else SPREADS[self.measure].unit

    @property
    def help(self) -> str:
        return TOTALS[self.measure].help if self.measure in TOTALS else SPREADS[self.measure].help

    def of(self, run: Run) -> float | None:
        """Its value, the median if the run was repeated; None if the run has nothing of the kind."""
        values = [value for one in (run, *run.repeats) if (value := self._of_one(one)) is not None]
        return median(values) if values else None

    def _of_one(self, run: Run) -> float | None:
        if self.measure in TOTALS:
            return TOTALS[self.measure].of(run)
        requests = (row for row in run.requests if self.label in ("", row.label))
        values = [value for row in requests for value in SPREADS[self.measure].of(run, row)]
        return STATISTICS[self.statistic](values) if values else None


def amount(value: float | None, unit: Unit) -> str:
    """A value for people: at most some seven characters."""
    match unit:
        case _ if value is None:
            return "-"
        case "seconds":
            return f"{1000 * value:,.0f} ms" if value < 9.9995 else f"{value:,.1f} s"
        case "share":
            return f"{100 * value:.0f}%"
        case _:
            if value == int(value) or abs(value) >= 100:
                return f"{value:,.0f}"
            return f"{value:.2f}" if abs(value) < 1 else f"{value:,.1f}"
