"""EngineView: what the traces so far say about every request, every block and every step.

Traces are deltas; panels want states. `apply()` folds one trace after another into plain data that panels read. The
same fold serves a live engine, a recording and a replay.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, field, fields, replace
from itertools import takewhile
from math import ceil
from typing import Literal, get_args

import msgspec

from app.server_view import ServerView, token_rates
from engine.config import EngineConfig
from engine.poll import Poll
from engine.trace import Arrival, Finished, Output, Preemption, Scheduled, StepTrace

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
MAX_FINISHED = 50
MAX_EVENTS = 500
MAX_BARS = 512
"""More steps than any screen has columns."""
MAX_SAMPLES = 2_000
LONG_PROMPT = 128
"""Tokens from which a prompt counts as long where latencies are told apart."""

SpanKind = Literal["waiting", "prefill", "decode", "recompute"]
EventKind = Literal["first token", "preempted", "resumed", "finished", "aborted", "changed", "server"]
Measure = Literal["queue", "ttft", "itl", "e2e"]


def letter(number: int) -> str:
    """The letter of the request with this number."""
    return LETTERS[number % len(LETTERS)]


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
    """Its letter and colour: one that no other has, as long as there are letters left."""
    label: str
    prompt: str
    num_prompt_tokens: int
    max_tokens: int
    priority: int = 0
    arrived: float = 0.0
    num_computed_tokens: int = 0
    num_output_tokens: int = 0
    target: int = 0
    """Tokens that it had in all when last scheduled."""
    num_blocks: int = 0
    num_cached_tokens: int = 0
    num_lost_tokens: int = 0
    """Computed tokens that its last preemption threw away."""
    num_work_tokens: int = 0
    """Tokens that were computed for it in all, those that were lost and computed again counted each time."""
    num_recomputed_tokens: int = 0
    """Of these, the ones that had been computed before."""
    queue_time: float | None = None
    """From its arrival until it was first scheduled; a later preemption does not reopen it."""
    ttft: float | None = None
    itl: list[float] = field(default_factory=list)
    """Gaps between its tokens, in seconds."""
    last_token_at: float = 0.0
    last_token_step: int = -1
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
        return letter(self.number)

    @property
    def is_prefilling(self) -> bool:
        return self.last is not None and self.last.end < self.last.target

    @property
    def is_long(self) -> bool:
        return self.num_prompt_tokens >= LONG_PROMPT

    def copy(self) -> RequestView:
        """One that changes by itself. Spans that have ended are shared: they change no more."""
        spans = [*self.spans[:-1], *(replace(span) for span in self.spans[-1:])]
        return replace(self, itl=list(self.itl), preempted_at=list(self.preempted_at), spans=spans)


# A history holds a hundred thousand bars and samples: the garbage collector need not look at each of them.
class StepBar(msgspec.Struct, frozen=True, gc=False):
    """One step as one column of the budget."""

    step: int
    decode: int
    prefill: int
    recompute: int
    cached: int
    """Tokens that the prefix cache saved at this step's admissions."""
    budget: int
    """Or, of a server that does not tell it, the most that was seen."""
    num_preemptions: int
    num_changes: int = 0
    """Parameters that have another value from this step on."""
    gap: float = 0.0
    """The longest gap between two tokens of a request, of those that ended with this step, in seconds."""
    preempted_gap: float = 0.0
    """The same of requests that were preempted meanwhile, which are not in `gap`."""
    has_budget: bool = True
    is_away: bool = False
    """A server elsewhere did not answer."""

    @property
    def total(self) -> int:
        return self.decode + self.prefill + self.recompute


@dataclass(frozen=True, slots=True)
class Change:
    """A parameter that has another value from a step on."""

    name: str
    old: int | float | str
    new: int | float | str


@dataclass(frozen=True, slots=True)
class EventView:
    """Something that happened at a step: to a request, to a parameter (kind "changed") or to a server ("server")."""

    step: int
    kind: EventKind
    request_id: str = ""
    preemption: Preemption | None = None
    finished: Finished | None = None
    change: Change | None = None
    number: int | None = None
    """Of the request: its letter and colour, when nothing else is known of it any more."""
    for_number: int | None = None
    """Of the request for which it was preempted, if somebody asked for its blocks."""
    num_redo_tokens: int = 0
    """Of one that comes back after a preemption: tokens that it has to compute again."""
    num_cached_tokens: int = 0
    """And those that the prefix cache still held."""
    count: int = 1
    """Preemptions that a server counted; it does not say of whom."""
    told: str = ""
    """What happened to a server."""
    is_trouble: bool = False
    """It is nothing good."""


class Sample(msgspec.Struct, frozen=True, gc=False):
    """One latency that somebody has seen, in seconds."""

    step: int
    seconds: float
    is_long: bool
    """Of a request with a long prompt."""
    preempted: bool = False
    """A gap between tokens in which the request was preempted."""


@dataclass(slots=True)
class Totals:
    """What all steps so far add up to, in tokens."""

    computed: int = 0
    recomputed: int = 0
    """Of the computed ones, those that had been computed before and were lost to a preemption."""
    saved: int = 0
    """Found in the prefix cache, and hence not computed."""
    budget: int = 0
    """What steps that computed anything might have computed."""
    unused: Counter[str] = field(default_factory=Counter)
    """What of it was not, by what kept it: the reason of the request at the head of the queue; "prefill" if decodes had
    to wait; "threshold" if prompts were cut by it; "idle" if nobody could have used it."""

    def copy(self) -> Totals:
        return replace(self, unused=Counter(self.unused))


class EngineView:
    """The state of the engine after the last applied trace. Only `apply` changes it."""

    def __init__(self, config: EngineConfig | None = None, max_bars: int = MAX_BARS) -> None:
        """`config` is what the engine was started with, if it is known: the first step may have another one already."""
        self._first_config = config
        self.trace: StepTrace | None = None
        self.requests: dict[str, RequestView] = {}
        """Unfinished ones, and the last MAX_FINISHED that ended."""
        self.finished: deque[str] = deque()
        self.bars: deque[StepBar] = deque(maxlen=max_bars)
        """The last steps, for the time axis."""
        self.events: deque[EventView] = deque(maxlen=MAX_EVENTS)
        self.tables: dict[str, list[int]] = {}
        self.holders: dict[int, list[str]] = {}
        """Block to the ids that hold it; a block that nobody holds is not in it."""
        self.cached: set[int] = set()
        self.evicted: frozenset[int] = frozenset()
        """Blocks that lost their cached content in the last step."""
        self.samples: dict[Measure, deque[Sample]] = {m: deque(maxlen=MAX_SAMPLES) for m in get_args(Measure)}
        """The last latencies of each kind, oldest first. Definitions are vLLM's: TTFT includes queueing, and a
        preemption neither resets it nor interrupts a gap between tokens."""
        self.totals = Totals()
        self.num_preemptions = 0
        self.num_finished = 0
        self.server: ServerView | None = None
        """What polls add up to, if it is a server elsewhere."""
        self.note = ""
        """What was said last by whoever drives the engine."""
        self._last_number = -1
        """Of the request that arrived last."""
        self._recent: deque[tuple[float, int]] = deque(maxlen=256)
        """Start and output tokens of the last steps, for rates."""
        self._own: set[str] = set()
        """Ids of requests that no copy shares with this view."""

    def copy(self) -> EngineView:
        """A view of the same moment that goes on by itself."""
        view = copy(self)
        # Thousands may wait, and few of them change: whichever view changes one makes it its own first.
        view.requests = self.requests.copy()
        self._own, view._own = set(), set()
        view.finished = self.finished.copy()
        view.bars = self.bars.copy()
        view.events = self.events.copy()
        view.tables = {request_id: list(table) for request_id, table in self.tables.items()}
        view.holders = {block: list(holders) for block, holders in self.holders.items()}
        view.cached = self.cached.copy()
        view.samples = {measure: samples.copy() for measure, samples in self.samples.items()}
        view.totals = self.totals.copy()
        view.server = self.server.copy() if self.server else None
        view._recent = self._recent.copy()
        return view

    def rates(self, seconds: float = 3.0) -> tuple[float, float]:
        """Steps and output tokens a second by the engine's clock, over the last `seconds` or the last step."""
        if len(self._recent) < 2:
            return 0.0, 0.0
        recent = [entry for entry in self._recent if entry[0] >= self._recent[-1][0] - seconds]
        if len(recent) < 2:  # steps that take longer than that
            recent = [self._recent[-2], self._recent[-1]]
        elapsed = max(recent[-1][0] - recent[0][0], 1e-9)
        return (len(recent) - 1) / elapsed, sum(tokens for _, tokens in recent[:-1]) / elapsed

    @property
    def config(self) -> EngineConfig | None:
        return self.trace.config if self.trace else None

    @property
    def poll(self) -> Poll | None:
        """If the last trace is a look at a server elsewhere: that."""
        return self.trace.poll if self.trace else None

    @property
    def unit(self) -> str:
        """What a trace stands for, in a word."""
        return "poll" if self.poll else "step"

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
            forgotten = self.finished.popleft()
            del self.requests[forgotten]
            self._own.discard(forgotten)
        changes = self._changes(trace)
        before = self.poll
        if self.trace and _is_idle_after(self.trace):
            self._recent.clear()  # what lies between is no time that a step took
        self.trace = trace
        step = trace.step
        self.note = trace.note or self.note
        self.events.extend(EventView(step, "changed", change=change) for change in changes)
        for arrival in trace.arrivals:
            self._arrive(arrival, step)
        self._apply_blocks(trace)
        for preemption in trace.preemptions:
            self._preempt(preemption, step)
        for scheduled in trace.scheduled:
            self._schedule(scheduled, trace)
        for output in trace.outputs:
            self._take_output(output, trace)
        for finished in trace.finished:
            self._finish(finished, step)
        for request_id, table in self.tables.items():
            if self.requests[request_id].num_blocks != len(table):
                self._to_change(request_id).num_blocks = len(table)
        if trace.poll:
            self._take_poll(trace.poll, trace, before, len(changes))
            return
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
                len(changes),
                self._longest_gap(step, preempted=False),
                self._longest_gap(step, preempted=True),
            )
        )
        self._add_up(trace, self.bars[-1])

    def _changes(self, trace: StepTrace) -> list[Change]:
        """Which parameters have another value from this trace on, of those that are known before and after."""
        if trace.poll is None:
            before = self.trace.config if self.trace else self._first_config
            return config_changes(before, trace.config) if before else []
        if self.trace is None or self.trace.poll is None:
            return []
        unknown = {*trace.poll.unknown, *self.trace.poll.unknown}
        return [change for change in config_changes(self.trace.config, trace.config) if change.name not in unknown]

    def _take_poll(self, poll: Poll, trace: StepTrace, before: Poll | None, num_changes: int) -> None:
        """Take in what a server told, and what became of it since the poll before."""
        self.server = self.server or ServerView()
        self.server.apply(poll, trace)
        if poll.restarted:
            self.num_preemptions = 0
        for told, is_trouble in news(poll, before):
            self.events.append(EventView(trace.step, "server", told=told, is_trouble=is_trouble))
        if poll.num_preemptions:
            self.num_preemptions += poll.num_preemptions
            self.events.append(EventView(trace.step, "preempted", count=poll.num_preemptions))
        if poll.finished is not None:
            self.num_finished = self.server.finished.total()
        rates = token_rates(poll)
        itl = poll.latencies.get("itl")
        self.bars.append(
            StepBar(
                trace.step,
                ceil(rates.decode or 0),
                ceil(rates.prefill or 0),
                0,
                ceil(rates.cached or 0),
                trace.config.max_num_batched_tokens if self.server.has_budget else self.server.most_tokens,
                poll.num_preemptions or 0,
                num_changes,
                (itl.mean if itl else None) or 0.0,
                has_budget=self.server.has_budget,
                is_away=bool(poll.problem),
            )
        )

    def _take_output(self, output: Output, trace: StepTrace) -> None:
        request = self._to_change(output.request_id)
        is_first = not request.num_output_tokens
        request.num_output_tokens += output.num_tokens
        request.num_prompt_tokens = output.num_prompt_tokens or request.num_prompt_tokens
        request.text += output.text
        request.last_text = output.text if request.last_token_step < trace.step else request.last_text + output.text
        if trace.poll:  # all that is known of its life is when tokens came
            request.last_step = trace.step
            _spend(request.spans, "decode", trace.step)
        if not output.num_tokens:
            return  # text alone, of tokens that were there before
        self._time(request, trace, output.time, is_first=is_first)
        if is_first:
            self.events.append(EventView(trace.step, "first token", output.request_id, number=request.number))

    def _time(self, request: RequestView, trace: StepTrace, at: float | None, *, is_first: bool) -> None:
        """Note when a token was there: when its step was over, unless it is told."""
        now = trace.started + trace.times.total if at is None else at
        if is_first:
            request.ttft = now - request.arrived
            self.samples["ttft"].append(Sample(trace.step, request.ttft, request.is_long))
        else:
            request.itl.append(now - request.last_token_at)
            preempted = bool(request.preempted_at) and request.preempted_at[-1] > request.last_token_step
            self.samples["itl"].append(Sample(trace.step, request.itl[-1], request.is_long, preempted))
        request.last_token_at = now
        request.last_token_step = trace.step

    def _longest_gap(self, step: int, *, preempted: bool) -> float:
        gaps = takewhile(lambda sample: sample.step == step, reversed(self.samples["itl"]))
        return max((gap.seconds for gap in gaps if gap.preempted == preempted), default=0.0)

    def _add_up(self, trace: StepTrace, bar: StepBar) -> None:
        if not trace.scheduled:
            return
        totals = self.totals
        totals.computed += bar.total
        totals.recomputed += bar.recompute
        totals.saved += bar.cached
        totals.budget += bar.budget
        if bar.total < bar.budget:
            totals.unused[_unused_by(trace)] += bar.budget - bar.total

    def _arrive(self, arrival: Arrival, step: int) -> None:
        if arrival.request_id in self.finished:  # the id of one that has ended can be given again
            self.finished.remove(arrival.request_id)
        request = RequestView(
            arrival.request_id,
            self._next_number(),
            arrival.label,
            arrival.prompt,
            arrival.num_prompt_tokens,
            arrival.max_tokens,
            arrival.priority,
            arrival.time,
            target=arrival.num_prompt_tokens,
        )
        request.spans.append(Span("waiting", step, None))
        self._last_number = request.number
        self.requests[arrival.request_id] = request
        self._own.add(arrival.request_id)

    def _next_number(self) -> int:
        """The next one whose letter nobody has who has not ended; if all letters are taken, simply the next."""
        following = range(self._last_number + 1, self._last_number + 1 + len(LETTERS))
        if len(self.requests) - len(self.finished) >= len(LETTERS):
            return following[0]
        taken = {request.letter for request in self.requests.values() if request.finished is None}
        return next((number for number in following if letter(number) not in taken), following[0])

    def _to_change(self, request_id: str) -> RequestView:
        """The request, so that it can be changed."""
        if request_id not in self._own:
            self.requests[request_id] = self.requests[request_id].copy()
            self._own.add(request_id)
        return self.requests[request_id]

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
        request = self._to_change(preemption.request_id)
        request.preempted_at.append(step)
        request.num_computed_tokens = 0
        request.num_lost_tokens = preemption.num_lost_tokens
        request.num_blocks = 0
        request.last = None
        request.spans.append(Span("waiting", step, None))
        self.num_preemptions += 1
        asker = self.requests.get(preemption.for_request_id)
        self.events.append(
            EventView(
                step,
                "preempted",
                preemption.request_id,
                preemption=preemption,
                number=request.number,
                for_number=asker.number if asker else None,
            )
        )

    def _schedule(self, scheduled: Scheduled, trace: StepTrace) -> None:
        step = trace.step
        request = self._to_change(scheduled.request_id)
        if request.queue_time is None:
            request.queue_time = trace.started - request.arrived
            self.samples["queue"].append(Sample(step, request.queue_time, request.is_long))
        request.num_computed_tokens = scheduled.end
        request.num_work_tokens += scheduled.num_tokens
        request.num_recomputed_tokens += scheduled.num_recomputed_tokens
        request.target = scheduled.target
        request.last = scheduled
        request.last_step = step
        request.last_text = ""
        if scheduled.admitted:
            request.num_cached_tokens = scheduled.num_cached_tokens
            if request.preempted_at:
                self._resume(request, scheduled, step)
        _spend(request.spans, scheduled.kind, step)

    def _resume(self, request: RequestView, scheduled: Scheduled, step: int) -> None:
        """Now it is known what its preemption costs: what the prefix cache still held need not be computed again."""
        num_cached = min(scheduled.num_cached_tokens, request.num_lost_tokens)
        num_redo = request.num_lost_tokens - num_cached
        self.events.append(
            EventView(
                step,
                "resumed",
                request.request_id,
                number=request.number,
                num_redo_tokens=num_redo,
                num_cached_tokens=num_cached,
            )
        )

    def _finish(self, finished: Finished, step: int) -> None:
        request = self._to_change(finished.request_id)
        request.finished = finished
        request.num_output_tokens = finished.num_output_tokens
        request.num_blocks = 0
        if request.spans[-1].last is None:
            request.spans[-1].last = step - 1
        self.num_finished += 1
        if finished.e2e is not None and finished.reason not in ("abort", "error"):
            self.samples["e2e"].append(Sample(step, finished.e2e, request.is_long))
        kind: EventKind = "aborted" if finished.reason == "abort" else "finished"
        self.events.append(EventView(step, kind, finished.request_id, finished=finished, number=request.number))
        self.finished.append(finished.request_id)


def _spend(spans: list[Span], kind: SpanKind, step: int) -> None:
    """Let a request's life go on: this step was spent so."""
    span = spans[-1]
    if span.kind == kind and span.last in (step - 1, step):
        span.last = step
        return
    if span.last is None:
        span.last = step - 1
    spans.append(Span(kind, step, step))


def news(poll: Poll, before: Poll | None) -> Iterator[tuple[str, bool]]:
    """What has happened to a server since the poll before, and whether that is trouble."""
    if poll.problem and (before is None or before.problem != poll.problem):
        yield poll.problem, True
    if before and before.problem and not poll.problem:
        yield "answers again", False
    if poll.restarted:
        yield "has begun anew: all counts start from 0", False


def _is_idle_after(trace: StepTrace) -> bool:
    """Nobody was left."""
    return not trace.num_waiting and {*trace.running} <= {finished.request_id for finished in trace.finished}


def _unused_by(trace: StepTrace) -> str:
    """What kept requests from using up the budget."""
    if trace.blocked:
        return trace.blocked.reason
    if trace.unserved:
        return trace.unserved[0].reason
    return "threshold" if any(item.cut_by == "threshold" for item in trace.scheduled) else "idle"


def config_changes(old: EngineConfig, new: EngineConfig) -> list[Change]:
    """Which parameters differ, and how."""
    if old == new:
        return []
    values = ((f.name, getattr(old, f.name), getattr(new, f.name)) for f in fields(EngineConfig))
    return [Change(name, before, after) for name, before, after in values if before != after]
