"""Run: a run as two tables, a row for each of its steps and a row for each of its requests, made from its traces.

Expectations, comparisons and exports read these tables, so that all of them mean the same by a number. What a request
went through is kept as the dashboard's own `RequestView`: latencies are those on the screen.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from app.view import EngineView, RequestView
from engine.config import EngineConfig
from engine.trace import PhaseTimes, StepTrace


class StepRow(msgspec.Struct, frozen=True, gc=False):
    """One step. Times are seconds, `started` on the engine's clock; sizes are tokens, requests or blocks."""

    step: int
    started: float
    times: PhaseTimes
    budget: int
    decode: int
    prefill: int
    recompute: int
    cached: int
    """Tokens that the prefix cache saved at this step's admissions."""
    outputs: int
    served: int
    """Requests that got tokens."""
    running: int
    """After scheduling, those that end in this step included."""
    waiting: int
    preemptions: int
    used_blocks: int
    """At the end of the step; what is only cached counts as free."""
    peak_blocks: int
    """While it was computed, before those that ended let go of theirs."""
    usable_blocks: int
    blocked: str
    """Why the head of the queue was not admitted, if it was not."""
    new_token_ratio: float | None

    @property
    def computed(self) -> int:
        return self.decode + self.prefill + self.recompute

    @property
    def ended(self) -> float:
        return self.started + self.times.total


@dataclass(slots=True)
class RequestRow:
    """One request, as far as the run has come."""

    view: RequestView
    arrival_step: int
    admission_step: int | None = None
    """When it was admitted first."""
    token_ids: list[int] = field(default_factory=list)
    token_steps: list[int] = field(default_factory=list)
    token_times: list[float] = field(default_factory=list)
    """Of each token, when its step was over."""
    num_cached_tokens: int = 0
    """Saved by the prefix cache, all its admissions together."""

    @property
    def label(self) -> str:
        return self.view.label

    @property
    def is_served(self) -> bool:
        """It ended by itself."""
        return self.view.finished is not None and self.view.finished.reason in ("stop", "length")


class Run:
    """The tables of a run so far. `name` is what it is called beside others."""

    def __init__(self, name: str, traces: Iterable[StepTrace] = ()) -> None:
        self.name = name
        self.steps: list[StepRow] = []
        self.requests: list[RequestRow] = []
        """In the order of their arrival."""
        self.first_config: EngineConfig | None = None
        self.computed_before = [0]
        """Tokens computed before each step, and behind the last."""
        self.refused: list[str] = []
        """Why requests were not taken, of each one that was not."""
        self.was_held = False
        """Its pace was limited, or it was stepped by hand, so that its times say nothing."""
        self.was_touched = False
        """A person has sent something into it, or changed it."""
        self.repeats: list[Run] = []
        """The same once more, as often as it was repeated: its metrics are medians over all of them."""
        self._view = EngineView()
        self._alive: dict[str, RequestRow] = {}
        for trace in traces:
            self.apply(trace)

    def apply(self, trace: StepTrace) -> None:
        """Take in the next step."""
        self.first_config = self.first_config or trace.config
        view = self._view
        view.apply(trace)
        for arrival in trace.arrivals:
            row = RequestRow(view.requests[arrival.request_id], trace.step)
            self.requests.append(row)
            self._alive[arrival.request_id] = row
        for item in trace.scheduled:
            if item.admitted:
                row = self._alive[item.request_id]
                row.admission_step = trace.step if row.admission_step is None else row.admission_step
                row.num_cached_tokens += item.num_cached_tokens
        ended = trace.started + trace.times.total
        for output in trace.outputs:
            row = self._alive[output.request_id]
            if output.token_id >= 0:
                row.token_ids.append(output.token_id)
            row.token_steps.append(trace.step)
            row.token_times.append(ended if output.time is None else output.time)
        for finished in trace.finished:
            self._alive.pop(finished.request_id)
        bar = view.bars[-1]
        self.computed_before.append(self.computed_before[-1] + bar.total)
        self.steps.append(
            StepRow(
                step=trace.step,
                started=trace.started,
                times=trace.times,
                budget=bar.budget,
                decode=bar.decode,
                prefill=bar.prefill,
                recompute=bar.recompute,
                cached=bar.cached,
                outputs=len(trace.outputs),
                served=len(trace.scheduled),
                running=len(trace.running),
                waiting=trace.num_waiting,
                preemptions=bar.num_preemptions,
                used_blocks=trace.config.num_usable_blocks - trace.num_free_blocks,
                peak_blocks=_peak_blocks(trace, view),
                usable_blocks=trace.config.num_usable_blocks,
                blocked=trace.blocked.reason if trace.blocked else "",
                new_token_ratio=trace.new_token_ratio,
            )
        )

    @property
    def busy_steps(self) -> list[StepRow]:
        """Those in which something was computed; others only report that something has changed."""
        return [row for row in self.steps if row.computed]

    @property
    def labels(self) -> list[str]:
        """The kinds of requests that there were, in the order of their first arrival."""
        return list(dict.fromkeys(row.label for row in self.requests))

    @property
    def seconds(self) -> float:
        """From the start of the first step to the end of the last, by the engine's clock."""
        return self.steps[-1].ended - self.steps[0].started if self.steps else 0.0


def _peak_blocks(trace: StepTrace, view: EngineView) -> int:
    """Blocks that were held while the step was computed. `view` is the state behind it."""
    held = set(view.holders)
    for op in reversed(trace.blocks):
        if op.op in ("hit", "allocate"):
            break
        if op.op == "release":
            held.update(op.blocks)
    return len(held)
