"""Perfetto: a run as a timeline of trace events.

A track shows the steps with their phases, and one each request: its life, and in it what was computed for it, how long
it waited and why. Counters show the tokens of each step, the budget, the KV blocks and the requests. Times are those of
the engine's clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from app.run import RequestRow, Run, StepRow
from app.trace_events import Args, TraceEvents, Track
from app.view import config_changes
from engine.trace import Blocked, Finished, Output, Preemption, Scheduled, StepTrace

STEPS = Track(1, 1)
REQUESTS = 2
FIRST_REQUEST = 10
"""Track of the request that arrived first; Perfetto takes one that is numbered as its group for something special."""
PHASES = ("schedule", "prepare", "forward", "sample", "update")
LIFE, STAGE, REASON = 0, 1, 2
"""Depths on the track of a request: all of it; what it did, or that it waited; why it waited."""


@dataclass(slots=True)
class _Life:
    """A request while its part of the timeline is made."""

    row: RequestRow
    track: Track
    begun: int
    waits_since: int | None
    """None while it runs."""
    wait: Args = field(default_factory=dict)
    """What there is to say about this wait."""


def timeline(run: Run, traces: Sequence[StepTrace], about: Args) -> Iterator[bytes]:
    """The file in pieces. `run` is made from these traces, and `about` goes with it for who looks for more."""
    return _Timeline(run, traces).events.written(about)


class _Timeline:
    """The events of a run."""

    def __init__(self, run: Run, traces: Sequence[StepTrace]) -> None:
        self.events = TraceEvents()
        self._rows = iter(run.requests)
        self._num_lives = 0
        self._lives: dict[str, _Life] = {}
        self._blocked: tuple[_Life, Blocked, int] | None = None
        """Whose wait at the head of the queue has had one reason so far, and since when."""
        self._before: StepTrace | None = None
        self._now = 0
        """Where the last step ended."""
        self.events.name_group(STEPS, f"Engine: {run.name}")
        self.events.name_track(STEPS, "Steps")
        if run.requests:
            self.events.name_group(Track(REQUESTS, FIRST_REQUEST), "Requests")
        for trace, row in zip(traces, run.steps, strict=True):
            self._apply(trace, row)
        self._end_run()

    def _apply(self, trace: StepTrace, row: StepRow) -> None:
        # A microsecond that rounding added must not let a step begin before the last one ended.
        start = max(_microseconds(trace.started), self._now)
        end = self._step(trace, row, start)
        for change in config_changes(self._before.config, trace.config) if self._before else ():
            told = f"{change.name}: {change.old} → {change.new}"
            self.events.moment(STEPS, told, start, {"step": trace.step}, for_group=True)
        if trace.note:
            self.events.moment(STEPS, "note", start, {"step": trace.step, "said": trace.note}, for_group=True)
        for arrival in trace.arrivals:
            self._arrive(arrival.request_id, min(_microseconds(arrival.time), start))
        self._block(trace.blocked, start)
        for preemption in trace.preemptions:
            self._preempt(preemption, start)
        for item in trace.scheduled:
            self._compute(item, trace.step, start, end)
        for unserved in trace.unserved:
            for request_id in unserved.request_ids:
                args: Args = {"step": trace.step, "reason": unserved.reason}
                self.events.span(self._lives[request_id].track, "unserved", start, end, "request", args, STAGE)
        for output in trace.outputs:
            self._first_token(output, trace.step, end)
        computed = {item.request_id for item in trace.scheduled}
        for finished in trace.finished:
            self._finish(finished, end if finished.request_id in computed else start)
        self._count(trace, row, start, end)
        self._now, self._before = end, trace

    def _end_run(self) -> None:
        """Whoever has not ended is drawn up to here."""
        self._unblock(self._now)
        for life in self._lives.values():
            self._draw(life, self._now, None)
        if self._before:
            self.events.count(STEPS, "tokens", self._now, decode=0, prefill=0, recompute=0)

    # The step.

    def _step(self, trace: StepTrace, row: StepRow, start: int) -> int:
        """Draw it with its phases; returns where it ends."""
        seconds, place = 0.0, start
        for phase in PHASES:
            seconds += getattr(trace.times, phase)
            end = start + _microseconds(seconds)
            if end > place:
                self.events.span(STEPS, phase, place, end, "phase", {}, STAGE)
            place = end
        args: Args = {
            "step": trace.step,
            "policy": trace.config.policy,
            "computed": row.computed,
            "budget": row.budget,
            "decode": row.decode,
            "prefill": row.prefill,
            "recompute": row.recompute,
            "cached": row.cached,
            "outputs": row.outputs,
            "running": row.running,
            "waiting": row.waiting,
            "preemptions": row.preemptions,
            "used blocks": row.used_blocks,
            "usable blocks": row.usable_blocks,
        }
        if trace.blocked:
            args["blocked"] = {"request": trace.blocked.request_id, **_plain(trace.blocked)}
        self.events.span(STEPS, f"step {trace.step}", start, place, "step", args)
        return place

    def _count(self, trace: StepTrace, row: StepRow, start: int, end: int) -> None:
        count = self.events.count
        count(STEPS, "token budget", start, tokens=row.budget)
        count(STEPS, "tokens", start, decode=row.decode, prefill=row.prefill, recompute=row.recompute)
        count(STEPS, "requests", start, running=row.running, waiting=row.waiting)
        if row.new_token_ratio is not None:
            count(STEPS, "new_token_ratio", start, ratio=row.new_token_ratio)
        count(STEPS, "KV blocks", end, used=row.used_blocks, free=row.usable_blocks - row.used_blocks)
        if not self._lives:
            # Nothing goes on until somebody comes: the values of the last step would look as if it did.
            count(STEPS, "tokens", end, decode=0, prefill=0, recompute=0)
            count(STEPS, "requests", end, running=0, waiting=0)

    # Requests.

    def _arrive(self, request_id: str, at: int) -> None:
        track = Track(REQUESTS, FIRST_REQUEST + self._num_lives)
        life = _Life(next(self._rows), track, at, waits_since=at)
        self._num_lives += 1
        self._lives[request_id] = life
        self.events.name_track(track, f"{life.row.view.letter} {_title(life.row)}")

    def _block(self, blocked: Blocked | None, at: int) -> None:
        """Note why the head of the queue waits from here on, and draw what kept it, or another one, until now."""
        before = self._blocked
        if before and blocked and (before[1].request_id, before[1].reason) == (blocked.request_id, blocked.reason):
            return
        self._unblock(at)
        if blocked:
            self._blocked = self._lives[blocked.request_id], blocked, at

    def _unblock(self, at: int) -> None:
        if self._blocked:
            life, blocked, since = self._blocked
            self._blocked = None
            if at > since:
                self.events.span(
                    life.track, f"blocked: {blocked.reason}", since, at, "request", _plain(blocked), REASON
                )

    def _preempt(self, preemption: Preemption, at: int) -> None:
        life = self._lives[preemption.request_id]
        asker = self._lives.get(preemption.for_request_id)
        args = {"for": _title(asker.row) if asker else "", **_plain(preemption)}
        self.events.moment(life.track, "preempted", at, args)
        life.waits_since = at
        life.wait = {"after": "a preemption", "lost tokens": preemption.num_lost_tokens}

    def _compute(self, item: Scheduled, step: int, start: int, end: int) -> None:
        life = self._lives[item.request_id]
        self._stop_waiting(life, start)
        name = f"{item.kind} {item.chunk}" if item.chunk else item.kind
        self.events.span(life.track, name, start, end, "request", {"step": step, **_plain(item)}, STAGE)

    def _stop_waiting(self, life: _Life, at: int) -> None:
        if life.waits_since is not None and at > life.waits_since:
            self.events.span(life.track, "waiting", life.waits_since, at, "request", life.wait, STAGE)
        life.waits_since = None
        life.wait = {}

    def _first_token(self, output: Output, step: int, at: int) -> None:
        life = self._lives[output.request_id]
        if life.row.token_steps[0] == step:
            self.events.moment(life.track, "first token", at, {"ttft": life.row.view.ttft, "text": output.text})

    def _finish(self, finished: Finished, at: int) -> None:
        life = self._lives.pop(finished.request_id)
        name = "aborted" if finished.reason == "abort" else f"finished: {finished.reason}"
        self.events.moment(life.track, name, at, {"outputs": finished.num_output_tokens})
        self._draw(life, at, finished)

    def _draw(self, life: _Life, until: int, finished: Finished | None) -> None:
        """The whole life, as far as it lies in these steps."""
        self._stop_waiting(life, until)
        view = life.row.view
        args: Args = {
            "prompt": view.prompt,
            "prompt tokens": view.num_prompt_tokens,
            "max tokens": view.max_tokens,
            "priority": view.priority,
            "output": view.text,
            "outputs": view.num_output_tokens,
            "computed": view.num_work_tokens,
            "recomputed": view.num_recomputed_tokens,
            "cached": life.row.num_cached_tokens,
            "preemptions": len(view.preempted_at),
            "queue time": view.queue_time,
            "ttft": view.ttft,
            "e2e": finished.e2e if finished else None,
            "end": finished.reason if finished else "not in these steps",
        }
        self.events.span(life.track, _title(life.row), life.begun, until, "request", args, LIFE)


def _microseconds(seconds: float) -> int:
    return round(1e6 * seconds)


def _title(row: RequestRow) -> str:
    """A request by its id and its label, which is somebody's text and may be empty."""
    return f"request {row.view.request_id} {row.label}".rstrip()


def _plain(part: Blocked | Preemption | Scheduled) -> Args:
    """What a part of a trace says of its request, in words: `num_tokens` is "tokens"."""
    fields: Args = msgspec.to_builtins(part)
    return {
        name.removeprefix("num_").replace("_", " "): value
        for name, value in fields.items()
        if not name.endswith("request_id")
    }
