"""EngineView: what the traces so far say about every request, every block and every step.

Traces are deltas; panels want states. `apply()` folds one trace after another into plain data that panels read. The
same fold serves a live engine, a recording and a replay.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from engine.config import EngineConfig
from engine.trace import Arrival, Finished, Preemption, Scheduled, StepTrace

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
MAX_FINISHED = 50
MAX_EVENTS = 500

SpanKind = Literal["waiting", "prefill", "decode", "recompute"]
EventKind = Literal["first token", "preempted", "finished", "aborted"]


@dataclass(slots=True)
class Span:
    """Steps `first` to `last` of a request's life, spent the same way. `last` is None while it goes on."""

    kind: SpanKind
    first: int
    last: int | None


@dataclass(slots=True)
class RequestView:
    """One request, as of the last trace."""

    request_id: str
    number: int
    """How many arrived before it: its letter and colour."""
    label: str
    prompt: str
    num_prompt_tokens: int
    max_tokens: int
    num_computed_tokens: int = 0
    num_output_tokens: int = 0
    target: int = 0
    """Tokens that it had in all when last scheduled."""
    num_blocks: int = 0
    num_cached_tokens: int = 0
    num_lost_tokens: int = 0
    """Computed tokens that preemptions threw away."""
    text: str = ""
    last_text: str = ""
    """The end of `text` that came with the step `last_step`."""
    last_step: int = -1
    last: Scheduled | None = None
    """Its share of the last step in which it had one."""
    preempted_at: list[int] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    finished: Finished | None = None

    @property
    def letter(self) -> str:
        return LETTERS[self.number % len(LETTERS)]

    @property
    def is_prefilling(self) -> bool:
        return self.last is not None and self.last.end < self.last.target


@dataclass(frozen=True, slots=True)
class StepBar:
    """One step as one column of the budget."""

    step: int
    decode: int
    prefill: int
    recompute: int
    cached: int
    """Tokens that the prefix cache saved at this step's admissions."""
    budget: int
    num_preemptions: int

    @property
    def total(self) -> int:
        return self.decode + self.prefill + self.recompute


@dataclass(frozen=True, slots=True)
class EventView:
    """Something that happened to a request, at a step."""

    step: int
    kind: EventKind
    request_id: str
    preemption: Preemption | None = None
    finished: Finished | None = None


class EngineView:
    """The state of the engine after the last applied trace. Only `apply` changes it."""

    def __init__(self, max_steps: int = 10_000) -> None:
        self.trace: StepTrace | None = None
        self.requests: dict[str, RequestView] = {}
        """Unfinished ones, and the last MAX_FINISHED that ended."""
        self.finished: deque[str] = deque()
        self.bars: deque[StepBar] = deque(maxlen=max_steps)
        self.events: deque[EventView] = deque(maxlen=MAX_EVENTS)
        self.tables: dict[str, list[int]] = {}
        self.holders: dict[int, list[str]] = {}
        """Block to the ids that hold it; a block that nobody holds is not in it."""
        self.cached: set[int] = set()
        self.evicted: frozenset[int] = frozenset()
        """Blocks that lost their cached content in the last step."""
        self.num_preemptions = 0
        self.num_finished = 0
        self._num_arrived = 0
        self._recent: deque[tuple[float, int]] = deque(maxlen=256)
        """Start and output tokens of the last steps, for rates."""

    def rates(self, seconds: float = 3.0) -> tuple[float, float]:
        """Steps and output tokens a second between the steps of the last `seconds`, by the engine's clock."""
        recent = [entry for entry in self._recent if entry[0] >= self._recent[-1][0] - seconds]
        if len(recent) < 2:
            return 0.0, 0.0
        elapsed = max(recent[-1][0] - recent[0][0], 1e-9)
        return (len(recent) - 1) / elapsed, sum(tokens for _, tokens in recent[:-1]) / elapsed

    @property
    def config(self) -> EngineConfig | None:
        return self.trace.config if self.trace else None

    def letter(self, request_id: str) -> str:
        """The letter of a request; "?" for one that has been forgotten."""
        request = self.requests.get(request_id)
        return request.letter if request else "?"

    def fill(self, request_id: str, index: int) -> int:
        """Tokens stored in block number `index` of a request's table."""
        assert self.trace is not None
        block_size = self.trace.config.block_size
        return max(0, min(block_size, self.requests[request_id].num_computed_tokens - index * block_size))

    def apply(self, trace: StepTrace) -> None:
        """Take in the next trace."""
        # Not sooner: the last trace may name all those that ended in it.
        while len(self.finished) > MAX_FINISHED:
            del self.requests[self.finished.popleft()]
        self.trace = trace
        step = trace.step
        for arrival in trace.arrivals:
            self._arrive(arrival, step)
        self._apply_blocks(trace)
        for preemption in trace.preemptions:
            self._preempt(preemption, step)
        for scheduled in trace.scheduled:
            self._schedule(scheduled, step)
        for output in trace.outputs:
            request = self.requests[output.request_id]
            request.num_output_tokens += 1
            request.text += output.text
            request.last_text = output.text
            if request.num_output_tokens == 1:
                self.events.append(EventView(step, "first token", output.request_id))
        for finished in trace.finished:
            self._finish(finished, step)
        for request_id, table in self.tables.items():
            self.requests[request_id].num_blocks = len(table)
        self._recent.append((trace.started, len(trace.outputs)))
        self.bars.append(
            StepBar(
                step,
                trace.num_tokens_of("decode"),
                trace.num_tokens_of("prefill"),
                trace.num_tokens_of("recompute"),
                sum(scheduled.num_cached_tokens for scheduled in trace.scheduled),
                trace.config.max_num_batched_tokens,
                len(trace.preemptions),
            )
        )

    def _arrive(self, arrival: Arrival, step: int) -> None:
        request = RequestView(
            arrival.request_id,
            self._num_arrived,
            arrival.label,
            arrival.prompt,
            arrival.num_prompt_tokens,
            arrival.max_tokens,
            target=arrival.num_prompt_tokens,
        )
        request.spans.append(Span("waiting", step, None))
        self._num_arrived += 1
        self.requests[arrival.request_id] = request

    def _apply_blocks(self, trace: StepTrace) -> None:
        evicted: set[int] = set()
        for op in trace.blocks:
            if op.op in ("hit", "allocate"):
                self.tables.setdefault(op.request_id, []).extend(op.blocks)
                for block in op.blocks:
                    self.holders.setdefault(block, []).append(op.request_id)
            elif op.op == "release":
                del self.tables[op.request_id]
                for block in op.blocks:
                    holders = self.holders[block]
                    holders.remove(op.request_id)
                    if not holders:
                        del self.holders[block]
            elif op.op == "cache":
                self.cached.update(op.blocks)
            elif op.op == "move":
                self._move(*op.blocks)
            else:
                self.cached.difference_update(op.blocks)
                evicted.update(op.blocks)
        self.evicted = frozenset(evicted)

    def _move(self, source: int, to: int) -> None:
        holders = self.holders[to] = self.holders.pop(source)
        for request_id in holders:
            self.tables[request_id] = [to if block == source else block for block in self.tables[request_id]]
        if source in self.cached:
            self.cached.remove(source)
            self.cached.add(to)

    def _preempt(self, preemption: Preemption, step: int) -> None:
        request = self.requests[preemption.request_id]
        request.preempted_at.append(step)
        request.num_computed_tokens = 0
        request.num_lost_tokens += preemption.num_lost_tokens
        request.num_blocks = 0
        request.last = None
        request.spans.append(Span("waiting", step, None))
        self.num_preemptions += 1
        self.events.append(EventView(step, "preempted", preemption.request_id, preemption=preemption))

    def _schedule(self, scheduled: Scheduled, step: int) -> None:
        request = self.requests[scheduled.request_id]
        request.num_computed_tokens = scheduled.end
        request.target = scheduled.target
        request.last = scheduled
        request.last_step = step
        request.last_text = ""
        if scheduled.admitted:
            request.num_cached_tokens = scheduled.num_cached_tokens
        span = request.spans[-1]
        if span.kind == scheduled.kind and span.last == step - 1:
            span.last = step
            return
        if span.last is None:
            span.last = step - 1
        request.spans.append(Span(scheduled.kind, step, step))

    def _finish(self, finished: Finished, step: int) -> None:
        request = self.requests[finished.request_id]
        request.finished = finished
        request.num_blocks = 0
        if request.spans[-1].last is None:
            request.spans[-1].last = step - 1
        self.num_finished += 1
        kind: EventKind = "aborted" if finished.reason == "abort" else "finished"
        self.events.append(EventView(step, kind, finished.request_id, finished=finished))
        self.finished.append(finished.request_id)
