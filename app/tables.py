"""Tables: the steps and the requests of a run as CSV, and both as JSON, for spreadsheets, notebooks and scripts.

Times are seconds: `started_s`, `arrived_s` and `token_times_s` on the engine's clock, the others durations. Sizes are
tokens, requests or blocks.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any, TypeVar

import msgspec

from app.run import RequestRow, Run, StepRow

Row = TypeVar("Row")
Value = str | int | float | None
Columns = Mapping[str, Callable[[Row], Value]]

DIGITS = 9
"""Of a second, in CSV: nanoseconds. What stands behind them comes from adding."""
FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")

STEP_COLUMNS: Columns[StepRow] = {
    "step": lambda s: s.step,
    "started_s": lambda s: s.started,
    "seconds": lambda s: s.times.total,
    "schedule_s": lambda s: s.times.schedule,
    "prepare_s": lambda s: s.times.prepare,
    "forward_s": lambda s: s.times.forward,
    "sample_s": lambda s: s.times.sample,
    "update_s": lambda s: s.times.update,
    "budget": lambda s: s.budget,
    "computed": lambda s: s.computed,
    "decode": lambda s: s.decode,
    "prefill": lambda s: s.prefill,
    "recompute": lambda s: s.recompute,
    "cached": lambda s: s.cached,
    "outputs": lambda s: s.outputs,
    "running": lambda s: s.running,
    "waiting": lambda s: s.waiting,
    "preemptions": lambda s: s.preemptions,
    "used_blocks": lambda s: s.used_blocks,
    "usable_blocks": lambda s: s.usable_blocks,
    "blocked": lambda s: s.blocked,
    "new_token_ratio": lambda s: s.new_token_ratio,
}
REQUEST_COLUMNS: Columns[RequestRow] = {
    "request_id": lambda r: r.view.request_id,
    "letter": lambda r: r.view.letter,
    "label": lambda r: r.label,
    "priority": lambda r: r.view.priority,
    "prompt_tokens": lambda r: r.view.num_prompt_tokens,
    "max_tokens": lambda r: r.view.max_tokens,
    "arrival_step": lambda r: r.arrival_step,
    "arrived_s": lambda r: r.view.arrived,
    "admission_step": lambda r: r.admission_step,
    "queue_s": lambda r: r.view.queue_time,
    "first_token_step": lambda r: next(iter(r.token_steps), None),
    "ttft_s": lambda r: r.view.ttft,
    "itl_mean_s": lambda r: sum(r.view.itl) / len(r.view.itl) if r.view.itl else None,
    "itl_max_s": lambda r: max(r.view.itl, default=None),
    "last_token_step": lambda r: r.token_steps[-1] if r.token_steps else None,
    "e2e_s": lambda r: r.view.finished.e2e if r.view.finished else None,
    "outputs": lambda r: r.view.num_output_tokens,
    "computed": lambda r: r.view.num_work_tokens,
    "recomputed": lambda r: r.view.num_recomputed_tokens,
    "cached": lambda r: r.num_cached_tokens,
    "preemptions": lambda r: len(r.view.preempted_at),
    "end": lambda r: r.view.finished.reason if r.view.finished else None,
    "prompt": lambda r: r.view.prompt,
    "output": lambda r: r.view.text,
}
"""`end` is empty for a request that had not ended in the last step."""


def steps_csv(run: Run) -> Iterator[bytes]:
    """A row for each step, in pieces."""
    return as_csv(STEP_COLUMNS, run.steps)


def requests_csv(run: Run, columns: Columns[RequestRow] = REQUEST_COLUMNS) -> Iterator[bytes]:
    """A row for each request in the order of arrival, in pieces."""
    return as_csv(columns, run.requests)


def tables_json(run: Run, about: Mapping[str, Any]) -> Iterator[bytes]:
    """One object, in pieces: `about`, then "steps" and "requests", whose rows have the names of the columns.

    Text and numbers are exact. Requests have also their tokens, the step and the time of each, and the steps in which
    they were preempted.
    """
    yield msgspec.json.encode(about)[:-1] + b',"steps":[\n'
    yield from _joined(_record(STEP_COLUMNS, row) for row in run.steps)
    yield b"\n],"
    yield from requests_json(run)
    yield b"}\n"


def requests_json(run: Run, columns: Columns[RequestRow] = REQUEST_COLUMNS) -> Iterator[bytes]:
    """The key "requests" and its rows, in pieces."""
    yield b'"requests":[\n'
    yield from _joined({**_record(columns, row), **_details(row)} for row in run.requests)
    yield b"\n]"


def _record(columns: Columns[Row], row: Row) -> dict[str, Value]:
    return {name: of(row) for name, of in columns.items()}


def _details(row: RequestRow) -> dict[str, Any]:
    return {
        "token_ids": row.token_ids,
        "token_steps": row.token_steps,
        "token_times_s": row.token_times,
        "itl_s": [later - earlier for earlier, later in pairwise(row.token_times)],
        "preempted_steps": row.view.preempted_at,
    }


def _joined(records: Iterable[dict[str, Any]]) -> Iterator[bytes]:
    separator = b""
    for record in records:
        yield separator + msgspec.json.encode(record)
        separator = b",\n"


def as_csv(columns: Columns[Row], rows: Iterable[Row]) -> Iterator[bytes]:
    """A line of the columns' names, and one for each row, in pieces."""
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer)
    writer.writerow(columns)
    for row in rows:
        writer.writerow([cell(of(row)) for of in columns.values()])
        yield buffer.getvalue().encode()
        buffer.seek(0)
        buffer.truncate()
    yield buffer.getvalue().encode()


def cell(value: Value) -> Value:
    """A value as it stands in CSV.

    A spreadsheet takes a cell that begins with = + - or @ for a formula, and a formula can send the sheet's content
    away. Prompts, labels and outputs are anybody's text: such a one gets an apostrophe in front, which says that it is
    text. In JSON it stands as it is.
    """
    if isinstance(value, float):
        return round(value, DIGITS)
    if isinstance(value, str) and value.lstrip().startswith(FORMULA):
        return f"'{value}"
    return value
