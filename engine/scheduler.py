"""Scheduler: which requests compute how many tokens in the next step, and who is thrown out for whom.

vLLM V1's rules (v1/core/sched/scheduler.py), decision for decision: no prefill phase and no decode phase. Within one
token budget every request's `num_computed_tokens` catches up with its `num_tokens`. Running requests come first;
whoever cannot get a block throws out the tail of the running list; then, unless somebody was thrown out, the head of
the waiting queue is admitted for as long as seats, budget and blocks last.

`schedule()` decides and takes the blocks; requests themselves change only in `update_from_output()`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from engine.block_pool import BlockPool
from engine.config import EngineConfig
from engine.request import FinishReason, Request, RequestStatus, SamplingParams
from engine.trace import Blocked, CutBy, Kind, Preemption, Scheduled


@dataclass(frozen=True, slots=True)
class ScheduledRequest:
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


@dataclass(frozen=True, slots=True)
class SchedulerOutput:
    """The decision of one step: the whole contract between scheduler and model runner."""

    time: float
    """When it was decided, by the engine's clock."""
    scheduled: tuple[ScheduledRequest, ...]
    preemptions: tuple[Preemption, ...]
    blocked: Blocked | None
    finished_request_ids: tuple[str, ...]
    """Requests that ended since the last step, for whoever keeps something for them."""


@dataclass(slots=True)
class _Step:
    """A step in the making."""

    budget: int
    cap: int
    scheduled: list[ScheduledRequest] = field(default_factory=list)
    preemptions: list[Preemption] = field(default_factory=list)


class Scheduler:
    """Holds the two queues and the block pool. Plain Python: it can be driven without a model."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.pool = BlockPool(config.num_blocks, config.block_size)
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.requests: dict[str, Request] = {}
        """Every unfinished request, by id."""
        self._finished_request_ids: list[str] = []

    def add_request(self, request: Request) -> None:
        """Put a new request at the end of the waiting queue."""
        self.requests[request.request_id] = request
        self.waiting.append(request)

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

    def schedule(self, now: float = 0.0) -> SchedulerOutput:
        """Decide the next step, at engine time `now`; apply it with `update_from_output` before anything else."""
        step = _Step(self.config.max_num_batched_tokens, self._cap_per_request())
        self._schedule_running(step)
        blocked = self._schedule_waiting(step)
        finished = tuple(self._finished_request_ids)
        self._finished_request_ids.clear()
        return SchedulerOutput(now, tuple(step.scheduled), tuple(step.preemptions), blocked, finished)

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
        ended = []
        for item in output.scheduled:
            decision = item.decision
            request = self.requests[decision.request_id]
            if decision.admitted:
                request.status = RequestStatus.RUNNING
                request.num_cached_tokens = decision.num_cached_tokens
                if request.times.first_scheduled is None:
                    request.times.first_scheduled = output.time
            request.num_computed_tokens = decision.end
            request.max_computed_tokens = max(request.max_computed_tokens, decision.end)
            if item.sampling_params is None:
                request.num_chunks += 1
                continue
            request.num_chunks = 0
            token_id = sampled[decision.request_id]
            request.token_ids.append(token_id)
            request.times.tokens.append(now)
            reason = self._finish_reason(request, token_id, decision.request_id in stopped)
            if reason is not None:
                request.times.finished = now
                self._finish(request, reason)
                ended.append(request)
        if ended:
            self.running = [request for request in self.running if request.status is not RequestStatus.FINISHED]
        return ended

    def _cap_per_request(self) -> int:
        """Most tokens that one request may get in this step; 0 means no cap."""
        cap = self.config.long_prefill_token_threshold
        num_requests = len(self.requests)
        if cap == 0 or num_requests <= 1:
            return 0
        if self.config.long_prefill_token_threshold_adaptive:
            cap = max(cap, self.config.max_num_batched_tokens // num_requests)
        return cap

    def _schedule_running(self, step: _Step) -> None:
        index = 0
        while index < len(self.running) and step.budget > 0:
            request = self.running[index]
            start = request.num_computed_tokens
            missing = request.num_tokens - start
            num_tokens, cut_by = self._share(step, missing)
            if not self._make_room(step, request, start + num_tokens):
                return
            self._place(step, request, start, num_tokens, cut_by)
            index += 1

    def _make_room(self, step: _Step, request: Request, num_tokens: int) -> bool:
        """Give a running request the blocks for `num_tokens`, preempting from the tail of the running list.

        False if it ended up preempting itself.
        """
        needed = self.pool.num_missing(request.request_id, num_tokens)
        while needed > self.pool.num_free:
            victim = self.running.pop()
            free = self.pool.num_free
            freed = self.pool.release(victim.request_id)
            step.preemptions.append(
                Preemption(victim.request_id, request.request_id, needed, free, freed, victim.num_computed_tokens)
            )
            self.waiting.appendleft(victim)
            if victim is request:
                return False
        self.pool.allocate(request.request_id, needed)
        return True

    def _schedule_waiting(self, step: _Step) -> Blocked | None:
        """Admit from the head of the queue; returns what stopped it, or None if the queue is empty."""
        while self.waiting:
            request = self.waiting[0]
            if step.preemptions:
                # Memory is short already: whoever came in now would be thrown out again.
                return Blocked(request.request_id, "preemption")
            blocked = self._admit(step, request)
            if blocked is not None:
                return blocked
        return None

    def _admit(self, step: _Step, request: Request) -> Blocked | None:
        """Move the head of the queue into the running list, or say what it lacks."""
        config, pool, request_id = self.config, self.pool, request.request_id
        if len(self.running) >= config.max_num_seqs:
            return Blocked(request_id, "seats")
        if step.budget == 0:
            return Blocked(request_id, "budget")
        hits = self._find_hits(request)
        start = len(hits) * config.block_size
        num_tokens, cut_by = self._share(step, request.num_tokens - start)
        if cut_by == "budget" and not config.enable_chunked_prefill:
            uncut = request.num_tokens - start
            uncut = min(uncut, step.cap) if step.cap else uncut
            return Blocked(request_id, "chunking", needed=uncut, available=step.budget)
        present = request.num_tokens if config.reserve_full_sequence else start + num_tokens
        needed = -(-present // config.block_size) - len(hits) + pool.num_idle(hits)
        # Nobody else would free a block while nothing runs: there the watermark would block for ever.
        watermark = config.num_watermark_blocks if self.running else 0
        if needed + watermark > pool.num_free:
            return Blocked(request_id, "blocks", needed=needed, available=pool.num_free, watermark=watermark)
        self.waiting.popleft()
        self.running.append(request)
        pool.hold(request_id, hits)
        pool.allocate(request_id, pool.num_missing(request_id, start + num_tokens))
        self._place(step, request, start, num_tokens, cut_by, admitted=True)
        return None

    def _find_hits(self, request: Request) -> list[int]:
        """Cached blocks that the request can start behind; its last token is always computed, to get its logits."""
        if not self.config.enable_prefix_caching:
            return []
        block_size = self.config.block_size
        most = (request.num_tokens - 1) // block_size
        return self.pool.find_cached(request.block_hashes(block_size, most))

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
        recomputed = max(0, min(end, request.max_computed_tokens) - start)
        kind: Kind = "recompute" if recomputed else "decode" if start >= request.num_prompt_tokens else "prefill"
        chunk = request.num_chunks + 1 if cut_by or request.num_chunks else 0
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
                tuple(self.pool.table(request.request_id)),
                request.sampling_params if samples else None,
            )
        )
        if self.config.enable_prefix_caching:
            block_size = self.config.block_size
            first, full = start // block_size, end // block_size
            if full > first:
                # At once, not after the step: a request admitted later in this step may share them, since every
                # layer writes the K and V of the whole batch before it reads any.
                self.pool.cache(request.request_id, request.block_hashes(block_size, full), first)

    def _finish_reason(self, request: Request, token_id: int, stopped: bool) -> FinishReason | None:
        if stopped or request.is_stop_token(token_id):
            return FinishReason.STOP
        if (
            request.num_output_tokens >= request.sampling_params.max_tokens
            or request.num_tokens >= self.config.max_model_len
        ):
            return FinishReason.LENGTH
        return None

    def _finish(self, request: Request, reason: FinishReason) -> None:
        request.status = RequestStatus.FINISHED
        request.finish_reason = reason
        self.pool.release(request.request_id)
        del self.requests[request.request_id]
        self._finished_request_ids.append(request.request_id)
