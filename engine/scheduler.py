"""Scheduler: which requests compute how many tokens in the next step, and who is thrown out for whom.

vLLM V1's idea (v1/core/sched/scheduler.py): no prefill phase and no decode phase. Within one token budget every
request's `num_computed_tokens` catches up with its `num_tokens`. Running requests get theirs in passes; whoever
cannot get a block there throws somebody out; and from the head of the waiting queue requests are admitted for as
long as seats, budget and blocks last. What differs from system to system is answered by the policy
(`engine.policy`); with the policies fcfs and priority every decision is vLLM's.

`schedule()` decides and takes the blocks; requests themselves change only in `update_from_output()`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from engine.block_pool import BlockPool
from engine.config import EngineConfig
from engine.policy import Pass, policy_class
from engine.request import FinishReason, Request, RequestStatus, SamplingParams
from engine.trace import Blocked, CutBy, Kind, Preemption, PreemptionCause, Scheduled, Unserved, UnservedReason
from engine.waiting_queue import WaitingQueue


class ScheduledRequest(msgspec.Struct, frozen=True, gc=False):
    """What the model runner needs to compute one request's share of a step."""

    decision: Scheduled
    token_ids: tuple[int, ...]
    """The tokens to compute, at positions decision.start and up."""
    block_ids: tuple[int, ...]
    """The request's whole block table."""
    sampling_params: SamplingParams | None
    """None if its last token is not among them, so that there is nothing to sample yet."""

    @property
    def request_id(self) -> str:
        return self.decision.request_id


class Resize(msgspec.Struct, frozen=True, gc=False):
    """The KV cache has another size from this step on; content moves before anything is computed."""

    num_blocks: int
    moves: tuple[tuple[int, int], ...]
    """Blocks (from, to)."""


@dataclass(frozen=True, slots=True)
class SchedulerOutput:
    """The decision of one step: the whole contract between scheduler and model runner."""

    time: float
    """When it was decided, by the engine's clock."""
    scheduled: tuple[ScheduledRequest, ...]
    preemptions: tuple[Preemption, ...]
    blocked: Blocked | None
    unserved: tuple[Unserved, ...]
    finished_request_ids: tuple[str, ...]
    """Requests that ended since the last step, for whoever keeps something for them."""
    hopeless_request_ids: tuple[str, ...]
    """Requests that end with an error, because the pool is too small for them alone."""
    resize: Resize | None

    @property
    def decisions(self) -> Iterator[Scheduled]:
        """What each of the scheduled requests got."""
        return (item.decision for item in self.scheduled)


@dataclass(slots=True)
class _Step:
    """A step in the making."""

    budget: int
    cap: int
    scheduled: list[ScheduledRequest] = field(default_factory=list)
    preemptions: list[Preemption] = field(default_factory=list)
    victims: set[str] = field(default_factory=set)
    """Whom the preemptions threw out."""
    hopeless: list[str] = field(default_factory=list)
    blocked: Blocked | None = None
    others_may_run: bool = False
    """If nothing is found to compute now, another sequence of passes is tried."""
    cut_short: bool = False
    """A pass over the running requests ended because one of them had to give way to itself."""


class Scheduler:
    """Holds the two queues and the block pool. Plain Python: it can be driven without a model."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.pool = BlockPool(config.num_blocks, config.block_size, config.enable_prefix_caching)
        self.policy = policy_class(config.policy)(config, self.pool)
        self.waiting = WaitingQueue(self.policy.key)
        self.running: list[Request] = []
        self.requests: dict[str, Request] = {}
        """Every unfinished request, by id."""
        self._num_steps = 0
        self._num_requests = 0
        self._finished_request_ids: list[str] = []
        self._reconfigured = False
        self._resized = False

    def add_request(self, request: Request) -> None:
        """Put a new request into the waiting queue."""
        if not self.requests:
            self._start_policy()
        request.arrival_index = self._num_requests
        request.arrival_step = self._num_steps
        self._num_requests += 1
        self.requests[request.request_id] = request
        self.waiting.push(request)

    def abort(self, request_id: str) -> Request | None:
        """End a request wherever it is; None if there is no such request."""
        request = self.requests.get(request_id)
        if request is None:
            return None
        if request.status is RequestStatus.RUNNING:
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        self._finish(request, FinishReason.ABORT)
        return request

    def reconfigure(self, config: EngineConfig) -> None:
        """Go by other parameters from the next step on; its decision says what had to give way to them.

        `block_size` cannot change: block tables are made of it.
        """
        old, self.config = self.config, config
        self._reconfigured = True
        self._resized = self._resized or config.num_blocks != old.num_blocks
        self.policy.config = config
        if config.enable_prefix_caching != old.enable_prefix_caching:
            self.pool.set_caching(config.enable_prefix_caching)
        if config.policy != old.policy:
            self._start_policy()
        else:
            self.waiting.set_key(self.policy.key)

    def schedule(self, now: float = 0.0) -> SchedulerOutput:
        """Decide the next step, at engine time `now`; apply it with `update_from_output` before anything else."""
        policy = self.policy
        finished = tuple(self._finished_request_ids)
        self._finished_request_ids.clear()
        step = _Step(self.config.max_num_batched_tokens, self._cap_per_request())
        resize = self._shrink_to_limits(step)
        policy.begin_step(self.running, self.waiting, self._reconfigured or bool(finished))
        self._reconfigured = False
        passes: tuple[Pass, ...] = ()
        alternatives = policy.passes()
        for passes in alternatives:
            step.others_may_run = passes is not alternatives[-1]
            for which in passes:
                if which == "waiting":
                    self._schedule_waiting(step)
                else:
                    self._schedule_running(step, which)
            if step.scheduled:
                break
        if self.waiting and (step.blocked is None or step.blocked.request_id != self.waiting.head.request_id):
            # Nobody stood there when admission ended: it was thrown out by a decode.
            step.blocked = Blocked(self.waiting.head.request_id, "preemption")
        output = SchedulerOutput(
            now,
            tuple(step.scheduled),
            tuple(step.preemptions),
            step.blocked,
            self._unserved(step, passes),
            finished,
            tuple(step.hopeless),
            resize,
        )
        policy.end_step(output, self.running)
        return output

    def update_from_output(
        self, output: SchedulerOutput, sampled: Mapping[str, int], stopped: Collection[str] = (), now: float = 0.0
    ) -> list[Request]:
        """Apply a decision and its outcome to the requests; returns those that ended, in order.

        `sampled`: the new token of each request that sampled. `stopped`: ids whose text completed a stop string with
        it. `now`: when the tokens were there, by the engine's clock.
        """
        for preemption in output.preemptions:
            request = self.requests[preemption.request_id]
            request.status = RequestStatus.PREEMPTED
            request.num_computed_tokens = 0
            request.num_chunks = 0
            request.num_preemptions += 1
        ended = [
            self._end(self.requests[request_id], FinishReason.ERROR, now) for request_id in output.hopeless_request_ids
        ]
        for item in output.scheduled:
            decision = item.decision
            request_id, end = decision.request_id, decision.end
            request = self.requests[request_id]
            if decision.admitted:
                request.status = RequestStatus.RUNNING
                request.num_cached_tokens = decision.num_cached_tokens
                if request.times.first_scheduled is None:
                    request.times.first_scheduled = output.time
            request.num_computed_tokens = end
            if end > request.max_computed_tokens:
                request.max_computed_tokens = end
            if item.sampling_params is None:
                request.num_chunks += 1
                continue
            request.num_chunks = 0
            token_id = sampled[request_id]
            request.token_ids.append(token_id)
            request.times.tokens.append(now)
            reason = self._finish_reason(request, token_id, request_id in stopped)
            if reason is not None:
                ended.append(self._end(request, reason, now))
        if ended:
            self.running = [request for request in self.running if request.status is not RequestStatus.FINISHED]
        self._num_steps += 1
        return ended

    def _start_policy(self) -> None:
        self.policy = policy_class(self.config.policy)(self.config, self.pool)
        self.waiting.set_key(self.policy.key)

    def _cap_per_request(self) -> int:
        """Most tokens that one request may get in this step; 0 means no cap."""
        cap = self.config.long_prefill_token_threshold if self.policy.caps_long_prefills else 0
        num_requests = len(self.requests)
        if cap == 0 or num_requests <= 1:
            return 0
        if self.config.long_prefill_token_threshold_adaptive:
            cap = max(cap, self.config.max_num_batched_tokens // num_requests)
        return cap

    def _shrink_to_limits(self, step: _Step) -> Resize | None:
        """Bring what runs within seats and blocks that have become fewer, and the pool to its size."""
        config, pool = self.config, self.pool
        while len(self.running) > config.max_num_seqs:
            self._preempt(step, self.policy.victim(self.running), cause="seats")
        if not self._resized:
            return None
        self._resized = False
        while pool.num_held > config.num_usable_blocks:
            self._preempt(step, self.policy.victim(self.running), cause="pool")
        return Resize(config.num_blocks, pool.resize(config.num_blocks))

    def _schedule_running(self, step: _Step, which: Pass) -> None:
        for request in list(self.running):
            if step.budget == 0:
                return
            if which != "running" and request.is_prefilling != (which == "prefills"):
                continue
            if request.request_id in step.victims:
                continue
            start = request.num_computed_tokens
            num_tokens, cut_by = self._share(step, request.num_tokens - start)
            if self._make_room(step, request, start + num_tokens):
                self._place(step, request, start, num_tokens, cut_by)
            elif which == "running":
                step.cut_short = True
                return

    def _make_room(self, step: _Step, request: Request, num_tokens: int) -> bool:
        """Give a running request the blocks for `num_tokens`, preempting whom the policy names.

        False if that was the request itself in the end.
        """
        needed = self.pool.num_missing(request.request_id, num_tokens)
        if needed == 0:
            return True
        while needed > self.pool.num_free:
            if len(self.running) == 1 and self.policy.ends_hopeless:
                self.running.remove(request)
                step.hopeless.append(request.request_id)
                return False
            victim = self.policy.victim(self.running)
            self._preempt(step, victim, request.request_id, needed)
            if victim is request:
                return False
        self.pool.allocate(request.request_id, needed)
        return True

    def _preempt(
        self, step: _Step, victim: Request, for_request_id: str = "", needed: int = 0, cause: PreemptionCause = "blocks"
    ) -> None:
        """Take all blocks from a running request, with what it was given in this step, and queue it again."""
        pool, request_id = self.pool, victim.request_id
        self.running.remove(victim)
        num_returned = self._unplace(step, victim)
        table, free = pool.table(request_id), pool.num_free
        freed = pool.release(request_id)
        if num_returned:
            # What was to become full in this step never will be. Only now, so that such a block stands in the free list
            # where vLLM, which leaves it in the cache, has it.
            block_size, start = self.config.block_size, victim.num_computed_tokens
            pool.uncache(table[start // block_size : (start + num_returned) // block_size])
        self.waiting.push(victim)
        step.victims.add(request_id)
        step.preemptions.append(
            Preemption(request_id, for_request_id, needed, free, freed, victim.num_computed_tokens, num_returned, cause)
        )

    @staticmethod
    def _unplace(step: _Step, request: Request) -> int:
        """Take a request out of the step, if it is in it; returns the tokens that went back to the budget."""
        for index, item in enumerate(step.scheduled):
            if item.request_id == request.request_id:
                del step.scheduled[index]
                step.budget += item.decision.num_tokens
                return item.decision.num_tokens
        return 0

    def _schedule_waiting(self, step: _Step) -> None:
        """Admit from the head of the queue until it is empty or something stops it."""
        while self.waiting:
            step.blocked = self._admit(step, self.waiting.head)
            if step.blocked is not None:
                return

    def _admit(self, step: _Step, request: Request) -> Blocked | None:
        """Move the head of the queue into the running list, or say what it lacks."""
        config, pool, policy, request_id = self.config, self.pool, self.policy, request.request_id
        if reason := policy.closed(request, bool(step.preemptions)):
            return Blocked(request_id, reason)
        if step.others_may_run and any(p.request_id == p.for_request_id == request_id for p in step.preemptions):
            # It gave way to itself: in again at once, it would again keep those from running who could make room.
            return Blocked(request_id, "preemption")
        if len(self.running) >= config.max_num_seqs:
            return Blocked(request_id, "seats")
        if step.budget == 0:
            return Blocked(request_id, "budget")
        hits = pool.find_prefix(request)
        start = len(hits) * config.block_size
        num_tokens, cut_by = self._share(step, request.num_tokens - start)
        if cut_by == "budget" and (policy.whole_prompts or not config.enable_chunked_prefill):
            uncut = request.num_tokens - start
            uncut = min(uncut, step.cap) if step.cap else uncut
            return Blocked(request_id, "chunking", needed=uncut, available=step.budget)
        if blocked := policy.refuse(request, hits, start + num_tokens, self.running):
            return blocked
        self.waiting.pop()
        self.running.append(request)
        pool.hold(request_id, hits)
        pool.allocate(request_id, pool.num_missing(request_id, start + num_tokens))
        self._place(step, request, start, num_tokens, cut_by, admitted=True)
        return None

    @staticmethod
    def _share(step: _Step, missing: int) -> tuple[int, CutBy]:
        """How many of the missing tokens a request gets in this step, and what cut them."""
        cut_by: CutBy = ""
        if step.cap and missing > step.cap:
            missing, cut_by = step.cap, "threshold"
        if missing > step.budget:
            missing, cut_by = step.budget, "budget"
        return missing, cut_by

    def _place(
        self, step: _Step, request: Request, start: int, num_tokens: int, cut_by: CutBy, *, admitted: bool = False
    ) -> None:
        end = start + num_tokens
        recomputed = min(end, request.max_computed_tokens) - start if start < request.max_computed_tokens else 0
        kind: Kind = "recompute" if recomputed else "decode" if start >= request.num_prompt_tokens else "prefill"
        num_chunks = 0 if admitted else request.num_chunks
        chunk = num_chunks + 1 if cut_by or num_chunks else 0
        samples = end == request.num_tokens
        step.budget -= num_tokens
        step.scheduled.append(
            ScheduledRequest(
                Scheduled(
                    request.request_id,
                    kind,
                    start,
                    num_tokens,
                    request.num_tokens,
                    admitted,
                    start if admitted else 0,
                    recomputed,
                    chunk,
                    cut_by,
                ),
                tuple(request.token_ids[start:end]),
                self.pool.table(request.request_id),
                request.sampling_params if samples else None,
            )
        )
        # At once, not after the step: a request admitted later in this step may share the blocks that become full,
        # since every layer writes the K and V of the whole batch before it reads any.
        self.pool.cache(request, start, end)

    def _unserved(self, step: _Step, passes: tuple[Pass, ...]) -> tuple[Unserved, ...]:
        """Who runs and got nothing, by the reason."""
        if len(step.scheduled) == len(self.running):
            return ()
        served = {item.request_id for item in step.scheduled}
        reasons: dict[UnservedReason, list[str]] = {}
        for request in self.running:
            if request.request_id in served:
                continue
            reason: UnservedReason = "preemption" if step.cut_short else "budget"
            if not {"running", "prefills" if request.is_prefilling else "decodes"}.intersection(passes):
                reason = "prefill"
            reasons.setdefault(reason, []).append(request.request_id)
        return tuple(Unserved(reason, tuple(request_ids)) for reason, request_ids in reasons.items())

    def _finish_reason(self, request: Request, token_id: int, stopped: bool) -> FinishReason | None:
        if stopped or request.is_stop_token(token_id):
            return FinishReason.STOP
        if request.num_tokens >= request.max_total_tokens(self.config.max_model_len):
            return FinishReason.LENGTH
        return None

    def _end(self, request: Request, reason: FinishReason, now: float) -> Request:
        request.times.finished = now
        self._finish(request, reason)
        return request

    def _finish(self, request: Request, reason: FinishReason) -> None:
        request.status = RequestStatus.FINISHED
        request.finish_reason = reason
        self.pool.release(request.request_id)
        del self.requests[request.request_id]
        self._finished_request_ids.append(request.request_id)
