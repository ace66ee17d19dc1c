"""Poll tables: what a server told, as CSV and as JSON, for spreadsheets, notebooks and scripts.

A row is a poll. What the server did not tell is empty, and counts are of what happened since the poll before. Times are
seconds, `polled_s` since the program began to look; sizes are tokens, requests or blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from app.run import Run
from app.tables import REQUEST_COLUMNS, Value, as_csv, requests_csv, requests_json
from engine.poll import Histogram, Measured, Poll
from engine.trace import StepTrace

Polled = tuple[StepTrace, Poll]


def _latency(measure: Measured, of: Callable[[Histogram], Value]) -> Callable[[Polled], Value]:
    def value(row: Polled) -> Value:
        histogram = row[1].latencies.get(measure)
        return of(histogram) if histogram else None

    return value


COLUMNS: Mapping[str, Callable[[Polled], Value]] = {
    "poll": lambda row: row[0].step,
    "polled_s": lambda row: row[0].started,
    "interval_s": lambda row: row[1].interval,
    "answered_s": lambda row: row[1].seconds,
    "running": lambda row: row[1].num_running,
    "waiting": lambda row: row[1].num_waiting,
    "kv_usage": lambda row: row[1].kv_usage,
    "iterations": lambda row: row[1].num_iterations,
    "generation_tokens": lambda row: row[1].num_generation_tokens,
    "prompt_tokens": lambda row: row[1].num_prompt_tokens,
    "cached_tokens": lambda row: row[1].num_cached_tokens,
    "prefix_queries": lambda row: row[1].num_queried_tokens,
    "prefix_hits": lambda row: row[1].num_hit_tokens,
    "preemptions": lambda row: row[1].num_preemptions,
    "finished": lambda row: None if row[1].finished is None else row[1].finished.total(),
    "ttft_mean_s": _latency("ttft", lambda histogram: histogram.mean),
    "itl_mean_s": _latency("itl", lambda histogram: histogram.mean),
    "queue_mean_s": _latency("queue", lambda histogram: histogram.mean),
    "e2e_mean_s": _latency("e2e", lambda histogram: histogram.mean),
    "problem": lambda row: row[1].problem or None,
}

UNTOLD = ("admission_step", "queue_s", "computed", "recomputed", "cached", "preemptions")
"""What a server does not tell of our own requests."""
OWN_COLUMNS = {name: of for name, of in REQUEST_COLUMNS.items() if name not in UNTOLD}


def polls_csv(traces: Iterable[StepTrace]) -> Iterator[bytes]:
    """A row for each poll, in pieces."""
    return as_csv(COLUMNS, _polled(traces))


def own_requests_csv(run: Run) -> Iterator[bytes]:
    """A row for each of our own requests, in pieces."""
    return requests_csv(run, OWN_COLUMNS)


def polls_json(run: Run, traces: Iterable[StepTrace], about: Mapping[str, Any]) -> Iterator[bytes]:
    """One object, in pieces: `about`, then "polls", each with all that the server told, and "requests", our own."""
    yield msgspec.json.encode(about)[:-1] + b',"polls":[\n'
    separator = b""
    for trace, poll in _polled(traces):
        row: dict[str, Any] = {name: of((trace, poll)) for name, of in COLUMNS.items()}
        yield separator + msgspec.json.encode({**row, "told": poll})
        separator = b",\n"
    yield b"\n],"
    yield from requests_json(run, OWN_COLUMNS)
    yield b"}\n"


def _polled(traces: Iterable[StepTrace]) -> Iterator[Polled]:
    return ((trace, trace.poll) for trace in traces if trace.poll)
