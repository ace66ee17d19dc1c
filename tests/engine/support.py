"""What the engine's tests share: a scripted model, small tokenizers, and a bench that checks every step.

`Bench` sits between an engine and its runner, so it sees each decision before it is applied, and asserts after every
step whatever must hold at all times: the step invariants, the reasons that the trace gives, and that the trace's
block operations tell the pool's whole state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from engine.block_pool import NULL_BLOCK, BlockPool
from engine.config import EngineConfig
from engine.core import LLMEngine, Runner, RunnerOutput
from engine.policy import POLICIES
from engine.request import Request, RequestStatus, SamplingParams
from engine.scheduler import Resize, ScheduledRequest, Scheduler, SchedulerOutput
from engine.tokenizer import Conversation, Tokenizer
from engine.trace import BlockOp, Finished, Preemption, Scheduled, StepTrace, decode, encode

if TYPE_CHECKING:
    from engine.model import LoadedModel

MAX_STEPS = 2000
"""Far above what any test needs: whatever is not done by then hangs."""


def config(blocks: int, bs: int, budget: int, seqs: int, length: int, **others: Any) -> EngineConfig:
    """`E(blocks, bs, budget, seqs, len)` of the cases: `blocks` are usable ones, without the null block."""
    return EngineConfig(
        num_blocks=blocks + 1,
        block_size=bs,
        max_num_batched_tokens=budget,
        max_num_seqs=seqs,
        max_model_len=length,
        **others,
    )


def prompt(length: int, seed: int = 0) -> list[int]:
    """A prompt of byte-sized tokens; those of different seeds differ from the first token on."""
    return [(37 * seed + 11 * index + index * index) % 251 for index in range(length)]


class FakeClock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class PieceTokenizer(Tokenizer):
    """Token i is `pieces[i]`, which may be half a character; no transformers behind it."""

    def __init__(self, pieces: Sequence[bytes], eos_token_ids: Iterable[int] = ()) -> None:
        self._pieces = tuple(pieces)
        self.eos_token_ids = frozenset(eos_token_ids)

    @property
    def has_chat_template(self) -> bool:
        return False

    def encode(self, text: str) -> list[int]:
        """For vocabularies of single bytes only."""
        return [self._pieces.index(bytes([byte])) for byte in text.encode()]

    def encode_chat(self, asked: str | Conversation) -> list[int]:
        return self.encode(asked if isinstance(asked, str) else "\n".join(m.content for m in asked.messages))

    def decode(self, token_ids: Sequence[int]) -> str:
        return b"".join(self._pieces[token_id] for token_id in token_ids).decode(errors="replace")


def byte_tokenizer(eos_token_ids: Iterable[int] = ()) -> PieceTokenizer:
    """Token i is the byte i."""
    return PieceTokenizer([bytes([byte]) for byte in range(256)], eos_token_ids)


class PagedHistory:
    """A KV cache whose slots hold all tokens up to the one stored there, since that is what real KV depends on."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._slots: dict[int, tuple[int, ...]] = {}
        self._hashes: dict[tuple[int, ...], bytes] = {}

    def store(self, item: ScheduledRequest) -> tuple[int, ...]:
        """Put the item's tokens behind what its block table leads to; returns the whole history."""
        history = self._read(item.block_ids, item.decision.start)
        for token_id in item.token_ids:
            self._slots[self._slot(item.block_ids, len(history))] = history = (*history, token_id)
        return history

    def resize(self, resize: Resize | None) -> None:
        """Move content between blocks and forget what lies behind the new end, if the step says so."""
        if resize is None:
            return
        for source, to in resize.moves:
            for offset in range(self.block_size):
                history = self._slots.get(source * self.block_size + offset, ())
                self._slots[to * self.block_size + offset] = history
        end = resize.num_blocks * self.block_size
        self._slots = {slot: history for slot, history in self._slots.items() if slot < end}

    def check_cached(self, pool: BlockPool) -> None:
        """Every prefix-cache entry points at a block that is full of computed tokens, the right ones."""
        for block, block_hash in pool.cached_hashes().items():
            slots = range(block * self.block_size, (block + 1) * self.block_size)
            stored = [self._slots.get(slot, ()) for slot in slots]
            history = stored[-1]
            assert history and len(history) % self.block_size == 0, f"block {block} is cached, but not computed"
            start = len(history) - self.block_size
            assert stored == [history[: start + i + 1] for i in range(self.block_size)], f"block {block} is mixed"
            assert self._hashes.setdefault(history, block_hash) == block_hash, "one history has two hashes"
        assert len(set(self._hashes.values())) == len(self._hashes), "one hash stands for two histories"

    def _slot(self, block_ids: Sequence[int], position: int) -> int:
        return block_ids[position // self.block_size] * self.block_size + position % self.block_size

    def _read(self, block_ids: Sequence[int], length: int) -> tuple[int, ...]:
        if not length:
            return ()
        stored = [self._slots.get(self._slot(block_ids, position), ()) for position in range(length)]
        history = stored[-1]
        assert stored == [history[: i + 1] for i in range(length)], "the KV read is not that of one sequence"
        return history


Script = Callable[[str, int, tuple[int, ...]], int]
"""(request id, index of the output token, all tokens before it) -> the token."""


def by_history(request_id: str, index: int, history: tuple[int, ...]) -> int:
    """The default script: a token that depends on all tokens before it and on nothing else."""
    return (sum((i + 1) * token_id for i, token_id in enumerate(history)) * 31 + len(history)) % 251


def tokens_of(outputs: Mapping[str, Sequence[int]]) -> Script:
    """A script that gives each request the tokens listed for it."""
    return lambda request_id, index, history: outputs[request_id][index]


class ScriptedRunner:
    """A model without weights: it reads each history through the block tables and asks a script for the token."""

    def __init__(self, block_size: int, script: Script = by_history) -> None:
        self._script = script
        self._kv = PagedHistory(block_size)
        self._num_outputs: dict[str, int] = {}

    def execute(self, output: SchedulerOutput) -> RunnerOutput:
        for request_id in output.finished_request_ids:
            self._num_outputs.pop(request_id, None)
        self._kv.resize(output.resize)
        sampled = {}
        for item in output.scheduled:
            history = self._kv.store(item)
            if item.sampling_params is not None:
                index = self._num_outputs.get(item.request_id, 0)
                self._num_outputs[item.request_id] = index + 1
                sampled[item.request_id] = self._script(item.request_id, index, history)
        return RunnerOutput(sampled)

    def reserve(self, num_blocks: int) -> None:
        """It has room for any number of blocks."""


class PoolFold:
    """The KV pool's state as the block operations of the traces tell it."""

    def __init__(self, num_blocks: int) -> None:
        self.num_usable = num_blocks - 1
        self.tables: dict[str, list[int]] = {}
        self.cached: set[int] = set()

    @property
    def held(self) -> set[int]:
        return {block for table in self.tables.values() for block in table}

    @property
    def num_free(self) -> int:
        return self.num_usable - len(self.held)

    def apply(self, op: BlockOp) -> None:
        blocks = list(op.blocks)
        match op.op:
            case "hit":
                assert self.cached.issuperset(blocks), f"{op}: a hit on a block that is not cached"
                self.tables.setdefault(op.request_id, []).extend(blocks)
            case "allocate":
                assert not self.held.intersection(blocks), f"{op}: a block that is held was drawn"
                assert not self.cached.intersection(blocks), f"{op}: a block was drawn without leaving the cache"
                self.tables.setdefault(op.request_id, []).extend(blocks)
            case "release":
                assert self.tables.pop(op.request_id)[::-1] == blocks, f"{op}: not the request's table, backwards"
            case "cache":
                assert set(blocks) <= set(self.tables[op.request_id]) - self.cached, f"{op}: not its to enter"
                self.cached.update(blocks)
            case "evict":
                assert self.cached.issuperset(blocks), f"{op}: evicted without being cached"
                self.cached.difference_update(blocks)
            case "move":
                source, to = blocks
                assert source in self.held and to not in self.held | self.cached, f"{op}: not from held to unused"
                for table in self.tables.values():
                    table[:] = [to if block == source else block for block in table]
                if source in self.cached:
                    self.cached = self.cached - {source} | {to}

    def check(self, pool: BlockPool, request_ids: Iterable[str]) -> None:
        """Everything that the operations say is what the pool says."""
        assert self.tables == {rid: list(pool.table(rid)) for rid in request_ids if pool.table(rid)}
        assert self.cached == set(pool.cached_hashes())
        assert self.num_free == pool.num_free


class WorkFold:
    """What has been computed of each request as the traces tell it, and hence what is said twice over."""

    def __init__(self) -> None:
        self._most_computed: dict[str, int] = {}
        self._num_chunks: dict[str, int] = {}

    def apply(self, trace: StepTrace) -> None:
        for arrival in trace.arrivals:
            self._most_computed[arrival.request_id] = self._num_chunks[arrival.request_id] = 0
        for preemption in trace.preemptions:
            self._num_chunks[preemption.request_id] = 0
        for decision in trace.scheduled:
            rid = decision.request_id
            recomputed = max(0, min(decision.end, self._most_computed[rid]) - decision.start)
            assert decision.num_recomputed_tokens == recomputed
            assert (decision.kind == "recompute") == (recomputed > 0)
            self._most_computed[rid] = max(self._most_computed[rid], decision.end)
            assert decision.chunk == (self._num_chunks[rid] + 1 if decision.cut_by or self._num_chunks[rid] else 0)
            self._num_chunks[rid] = decision.chunk if decision.cut_by else 0


@dataclass(frozen=True)
class Snapshot:
    """The scheduler's requests before a step."""

    running: list[str]
    waiting: list[str]
    requests: dict[str, tuple[object, ...]]
    computed: dict[str, int]
    prefilling: set[str]

    @classmethod
    def of(cls, scheduler: Scheduler) -> Snapshot:
        requests = scheduler.requests
        return cls(
            running=[request.request_id for request in scheduler.running],
            waiting=[request.request_id for request in scheduler.waiting],
            requests={rid: _state(request) for rid, request in requests.items()},
            computed={rid: request.num_computed_tokens for rid, request in requests.items()},
            prefilling={rid for rid, request in requests.items() if request.is_prefilling},
        )


def _state(request: Request) -> tuple[object, ...]:
    """All that a request says of itself."""
    times = request.times
    return (
        request.status,
        request.finish_reason,
        tuple(request.token_ids),
        request.num_computed_tokens,
        request.max_computed_tokens,
        request.num_chunks,
        request.num_preemptions,
        request.num_cached_tokens,
        (times.arrival, times.first_scheduled, tuple(times.tokens), times.finished),
    )


def check_invariants(scheduler: Scheduler) -> None:
    """The step invariants that hold between any two steps."""
    pool, block_size = scheduler.pool, scheduler.config.block_size
    pool.check()
    running = [request.request_id for request in scheduler.running]
    waiting = [request.request_id for request in scheduler.waiting]
    held = {block for rid in scheduler.requests for block in pool.table(rid)}
    assert NULL_BLOCK not in held
    assert pool.num_free + len(held) == pool.num_blocks - 1, "free + held is not what there is"
    assert len(running) <= scheduler.config.max_num_seqs
    assert sorted(running + waiting) == sorted(scheduler.requests), "an unfinished request is in exactly one queue"
    for request in scheduler.running:
        assert request.status is RequestStatus.RUNNING
        assert 0 < request.num_computed_tokens < request.num_tokens
    for request in scheduler.waiting:
        assert request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED)
        assert request.num_computed_tokens == 0
    for rid, request in scheduler.requests.items():
        assert len(pool.table(rid)) == -(-request.num_computed_tokens // block_size), f"{rid}: table and tokens differ"


def check_decision(scheduler: Scheduler, output: SchedulerOutput, before: Snapshot) -> None:
    """A decision that is made but not yet applied: within its limits, in order, with reasons that are true."""
    engine, pool = scheduler.config, scheduler.pool
    assert {rid: _state(r) for rid, r in scheduler.requests.items()} == before.requests, "schedule() changed a request"
    pool.check()
    decisions = [item.decision for item in output.scheduled]
    placed = [decision.request_id for decision in decisions]
    admitted = [decision.request_id for decision in decisions if decision.admitted]
    victims = [preemption.request_id for preemption in output.preemptions]
    running = [request.request_id for request in scheduler.running]
    waiting = [request.request_id for request in scheduler.waiting]
    used = sum(decision.num_tokens for decision in decisions)
    assert used <= engine.max_num_batched_tokens
    assert len(running) <= engine.max_num_seqs
    assert len(set(placed)) == len(placed), "a request was placed twice"
    assert running == [rid for rid in before.running if rid not in victims] + admitted
    assert set(waiting) == {*before.waiting, *victims}.difference(admitted) and len(set(waiting)) == len(waiting)
    assert not output.hopeless_request_ids, "an engine's pool holds any one request"
    if victims and not engine.admit_after_preemption and engine.policy in NOBODY_AFTER_A_PREEMPTION:
        assert not admitted, "somebody was admitted in a step that preempted"
    _check_victims(scheduler, victims, before)
    _check_queue(scheduler, admitted, victims, before)

    cap = _cap(engine, len(before.requests)) if POLICIES[engine.policy].caps_long_prefills else 0
    for item in output.scheduled:
        decision, request = item.decision, scheduler.requests[item.request_id]
        assert decision.num_tokens >= 1
        assert decision.end <= decision.target == request.num_tokens, "computed + scheduled > num_tokens"
        assert item.token_ids == tuple(request.token_ids[decision.start : decision.end])
        assert item.block_ids == tuple(pool.table(item.request_id))
        assert len(item.block_ids) == -(-decision.end // engine.block_size), "table and tokens differ"
        assert (item.sampling_params is not None) == (decision.end == decision.target)
        assert decision.start == (decision.num_cached_tokens if decision.admitted else request.num_computed_tokens)
        past_prompt = decision.start >= request.num_prompt_tokens
        if not decision.num_recomputed_tokens:
            assert decision.kind == ("decode" if past_prompt else "prefill")
        assert bool(decision.cut_by) == (decision.end < decision.target)
        if decision.cut_by == "budget":
            # What a victim gave back later may have found no taker.
            assert used + sum(p.num_returned_tokens for p in output.preemptions) >= engine.max_num_batched_tokens
            assert not decision.admitted or not _whole_prompts(engine)
        if decision.cut_by == "threshold":
            assert decision.num_tokens == cap
        if not engine.enable_prefix_caching:
            assert decision.num_cached_tokens == 0
    _check_passes(engine, decisions, before)
    _check_unserved(engine, output, used, [rid for rid in running if rid not in placed], before)
    _check_preemptions(output.preemptions, before)
    _check_blocked(scheduler, output, used, cap, waiting, before)


# What follows knows the policies by name. One that it does not know has to keep the rules for all.
FIRST_COME_FIRST_SERVED = ("fcfs", "static", "orca", "prefill_first", "sarathi")
"""The queue goes by arrival, and the tail of the running list is thrown out."""
NOBODY_AFTER_A_PREEMPTION = ("fcfs", "priority", "orca", "prefill_first", "sglang", "sglang_lpm")


def _whole_prompts(engine: EngineConfig) -> bool:
    return not engine.enable_chunked_prefill or POLICIES[engine.policy].whole_prompts


def _prefills_first(engine: EngineConfig) -> bool:
    """Prefills run alone."""
    sglang = engine.policy in ("sglang", "sglang_lpm") and not engine.mixed_chunk
    return sglang or engine.policy in ("static", "prefill_first")


def _check_victims(scheduler: Scheduler, victims: Sequence[str], before: Snapshot) -> None:
    """Whoever was thrown out is whom the policy would throw out of those that were left."""
    requests = scheduler.requests
    left = list(before.running)
    for victim in victims:
        match scheduler.config.policy:
            case "priority":
                # The least urgent, of equals the one that came last.
                assert victim == max(left, key=lambda rid: _urgency(scheduler, rid))
            case "sglang" | "sglang_lpm":
                decoding = [rid for rid in left if rid not in before.prefilling] or left
                fewest = min(requests[rid].num_output_tokens for rid in decoding)
                tied = [rid for rid in decoding if requests[rid].num_output_tokens == fewest]
                assert victim in tied
                assert requests[victim].num_prompt_tokens == max(requests[rid].num_prompt_tokens for rid in tied)
            case name if name in FIRST_COME_FIRST_SERVED:
                assert victim == left[-1], "the tail has to go first"
        left.remove(victim)


def _urgency(scheduler: Scheduler, request_id: str) -> tuple[float, int]:
    """Effective priority, as of a step long after all arrivals."""
    request = scheduler.requests[request_id]
    gained = scheduler.config.priority_aging * (10_000 - request.arrival_step)
    return (round(request.priority - gained, 6), request.arrival_index)


def _check_queue(scheduler: Scheduler, admitted: Sequence[str], victims: Sequence[str], before: Snapshot) -> None:
    """Whoever was admitted was ahead of all that still wait, and these stand in the policy's order."""
    requests, engine = scheduler.requests, scheduler.config
    waiting = [request.request_id for request in scheduler.waiting]
    match engine.policy:
        case "sglang":
            # Retracted ones go to the back, unless they came in again.
            assert waiting == [rid for rid in (*before.waiting, *victims) if rid not in admitted]
        case "priority":
            order = [*admitted, *waiting]
            assert order == sorted(order, key=lambda rid: _urgency(scheduler, rid))
        case name if name in FIRST_COME_FIRST_SERVED:
            order = [*admitted, *waiting]
            assert order == sorted(order, key=lambda rid: requests[rid].arrival_index)


def _check_passes(engine: EngineConfig, decisions: Sequence[Scheduled], before: Snapshot) -> None:
    """Prefills run alone, or behind all decodes, or anyhow, as the policy has it."""
    prefills = [d.admitted or d.request_id in before.prefilling for d in decisions]
    if _prefills_first(engine):
        assert all(prefills) or not any(prefills), "a decode runs beside a prefill"
    elif engine.policy in ("sarathi", "sglang", "sglang_lpm"):
        assert prefills == sorted(prefills), "a prefill stands before a decode"


def _check_unserved(
    engine: EngineConfig, output: SchedulerOutput, used: int, unplaced: Sequence[str], before: Snapshot
) -> None:
    """All that run without a token are named, once, and the reason is true."""
    named = [rid for unserved in output.unserved for rid in unserved.request_ids]
    assert sorted(named) == sorted(unplaced)
    for unserved in output.unserved:
        match unserved.reason:
            case "budget":
                assert used + sum(p.num_returned_tokens for p in output.preemptions) >= engine.max_num_batched_tokens
            case "prefill":
                assert before.prefilling.isdisjoint(unserved.request_ids)
                first = output.scheduled[0].decision
                assert first.admitted or first.request_id in before.prefilling
            case "preemption":
                assert any(p.request_id == p.for_request_id for p in output.preemptions)


def _cap(engine: EngineConfig, num_requests: int) -> int:
    """The long-prefill cap of a step as golden/README.md states it; 0 for none."""
    threshold = engine.long_prefill_token_threshold
    if threshold == 0 or num_requests <= 1:
        return 0
    if not engine.long_prefill_token_threshold_adaptive:
        return threshold
    return max(threshold, engine.max_num_batched_tokens // num_requests)


def _check_preemptions(preemptions: Sequence[Preemption], before: Snapshot) -> None:
    for preemption, following in zip_longest(preemptions, preemptions[1:]):
        assert (preemption.cause == "blocks") == bool(preemption.for_request_id)
        if preemption.cause == "blocks":
            assert preemption.num_needed_blocks > preemption.num_free_blocks
        assert preemption.num_lost_tokens == before.computed[preemption.request_id] > 0
        left = preemption.num_free_blocks + preemption.num_freed_blocks
        if preemption.cause != "blocks":
            continue
        if following is not None and following.for_request_id == preemption.for_request_id:
            assert following.num_free_blocks == left < following.num_needed_blocks == preemption.num_needed_blocks
        elif preemption.request_id != preemption.for_request_id:
            assert left >= preemption.num_needed_blocks, "it stopped too early"


def _check_blocked(
    scheduler: Scheduler, output: SchedulerOutput, used: int, cap: int, waiting: Sequence[str], before: Snapshot
) -> None:
    engine, pool, blocked = scheduler.config, scheduler.pool, output.blocked
    assert (blocked is None) == (not waiting), "whoever waits is told why, and nobody else"
    if blocked is None:
        return
    assert blocked.request_id == waiting[0]
    request = scheduler.requests[blocked.request_id]
    left = engine.max_num_batched_tokens - used
    if len(scheduler.policy.passes()) > 1 and not any(
        item.decision.admitted or item.request_id in before.prefilling for item in output.scheduled
    ):
        # The decodes that came after have changed what there is.
        assert blocked.reason not in ("budget",)
        assert blocked.reason != "preemption" or output.preemptions
        return
    most = {
        r.request_id: -(
            -min(r.num_prompt_tokens + r.sampling_params.max_tokens, engine.max_model_len) // pool.block_size
        )
        for r in [*scheduler.running, request]
    }
    match blocked.reason:
        case "preemption":
            assert output.preemptions
        case "seats":
            assert len(scheduler.running) == engine.max_num_seqs
        case "budget":
            assert left == 0
        case "chunking":
            assert _whole_prompts(engine)
            assert blocked.needed > blocked.available == left
        case "blocks":
            assert blocked.available == pool.num_free
            assert blocked.kept == (engine.num_watermark_blocks if scheduler.running else 0)
            assert blocked.needed + blocked.kept > blocked.available
            share = request.num_tokens
            if not engine.reserve_full_sequence:
                share = min(share, cap or share, left)
            if not engine.enable_prefix_caching:
                assert blocked.needed == -(-share // engine.block_size)
            assert 0 < blocked.needed <= -(-request.num_tokens // engine.block_size)
        case "reserved":
            assert engine.policy in ("orca", "static")
            assert blocked.available == pool.num_free
            assert blocked.kept == sum(most[r.request_id] - len(pool.table(r.request_id)) for r in scheduler.running)
            assert 0 < blocked.needed <= most[blocked.request_id]
            assert blocked.needed + blocked.kept > blocked.available
        case "room":
            assert engine.policy in ("sglang", "sglang_lpm") and scheduler.running
            assert blocked.needed > blocked.available
            assert blocked.available <= pool.num_free * engine.block_size
        case "full":
            assert engine.policy in ("sglang", "sglang_lpm") and scheduler.running
        case "batch":
            assert engine.policy == "static" and scheduler.running


class Bench:
    """An engine whose every step is checked. It stands in the runner's place and passes on what it has looked at."""

    def __init__(
        self,
        engine_config: EngineConfig,
        runner: Runner | None = None,
        tokenizer: Tokenizer | None = None,
        *,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._runner = runner or ScriptedRunner(engine_config.block_size)
        self.engine = LLMEngine(engine_config, self, tokenizer, clock=clock or FakeClock())
        self.requests: dict[str, Request] = {}
        """Every request that was added, also after its end; the newest of each id."""
        self.traces: list[StepTrace] = []
        self._kv = PagedHistory(engine_config.block_size)
        self._fold = PoolFold(engine_config.num_blocks)
        self._work = WorkFold()
        self._before = Snapshot.of(self.engine.scheduler)

    def add(
        self, prompt: str | Sequence[int], request_id: str | None = None, *, priority: int = 0, **params: Any
    ) -> str:
        """Queue a request with these sampling parameters; returns its id."""
        sampling_params = SamplingParams(**params)
        request_id = self.engine.add_request(prompt, sampling_params, request_id=request_id, priority=priority)
        self.requests[request_id] = self.engine.scheduler.requests[request_id]
        return request_id

    def execute(self, output: SchedulerOutput) -> RunnerOutput:
        scheduler = self.engine.scheduler
        check_decision(scheduler, output, self._before)
        self._kv.resize(output.resize)
        for item in output.scheduled:
            history = self._kv.store(item)
            assert list(history) == scheduler.requests[item.request_id].token_ids[: item.decision.end]
        self._kv.check_cached(scheduler.pool)
        return self._runner.execute(output)

    def reserve(self, num_blocks: int) -> None:
        self._runner.reserve(num_blocks)

    def step(self) -> StepTrace:
        scheduler = self.engine.scheduler
        self._before = Snapshot.of(scheduler)
        trace = self.engine.step()
        check_invariants(scheduler)
        self._kv.check_cached(scheduler.pool)
        self._check_trace(trace)
        self.traces.append(trace)
        return trace

    def steps(self, count: int) -> list[StepTrace]:
        return [self.step() for _ in range(count)]

    def run_to_preemption(self) -> StepTrace:
        """Step until somebody is thrown out; returns that step."""
        for _ in range(MAX_STEPS):
            if self.step().preemptions:
                return self.traces[-1]
        raise AssertionError(f"nobody was preempted in {MAX_STEPS} steps")

    def run_to_end(self, max_steps: int = MAX_STEPS) -> list[StepTrace]:
        """Step until nothing is left; returns these steps. Afterwards every block is free."""
        first = len(self.traces)
        while self.engine.has_news:
            assert len(self.traces) - first < max_steps, f"not done after {max_steps} steps"
            self.step()
        assert not self.engine.has_unfinished_requests
        assert self.engine.scheduler.pool.num_free == self.engine.config.num_usable_blocks, "blocks have leaked"
        return self.traces[first:]

    def tokens(self, request_id: str) -> list[int]:
        """What the traces say that a request got."""
        return [o.token_id for trace in self.traces for o in trace.outputs if o.request_id == request_id]

    def deltas(self, request_id: str) -> list[str]:
        """Its text, step by step."""
        return [o.text for trace in self.traces for o in trace.outputs if o.request_id == request_id]

    def text(self, request_id: str) -> str:
        return "".join(self.deltas(request_id))

    def finished(self, request_id: str) -> Finished:
        """Its end; there is exactly one."""
        (finished,) = [f for trace in self.traces for f in trace.finished if f.request_id == request_id]
        return finished

    def preemptions(self) -> list[Preemption]:
        return [preemption for trace in self.traces for preemption in trace.preemptions]

    def cached_tokens(self, request_id: str) -> list[int]:
        """What the prefix cache gave it, at each of its admissions."""
        decisions = (d for trace in self.traces for d in trace.scheduled if d.request_id == request_id)
        return [decision.num_cached_tokens for decision in decisions if decision.admitted]

    def _check_trace(self, trace: StepTrace) -> None:
        scheduler = self.engine.scheduler
        assert decode(encode(trace)) == trace
        assert trace.step == len(self.traces)
        self._work.apply(trace)
        self._fold.num_usable = trace.config.num_usable_blocks
        freed: dict[str, int] = {}
        for op in trace.blocks:
            free = self._fold.num_free
            self._fold.apply(op)
            if op.op == "release":  # a victim that came in again and ended lets go twice
                freed.setdefault(op.request_id, self._fold.num_free - free)
        for preemption in trace.preemptions:
            assert preemption.num_freed_blocks == freed[preemption.request_id]
        self._fold.check(scheduler.pool, scheduler.requests)
        assert trace.num_free_blocks == scheduler.pool.num_free
        sampling = [decision.request_id for decision in trace.scheduled if decision.end == decision.target]
        assert [output.request_id for output in trace.outputs] == sampling


@cache
def tiny_model() -> LoadedModel:
    """The tiny random Llama, built once; imported here so that most tests need no torch."""
    from engine.model import load_model

    return load_model("tiny", threads=1)


def tiny_bench(engine_config: EngineConfig, tokenizer: Tokenizer | None = None) -> Bench:
    """A bench on the tiny model, with a KV cache of its own."""
    from engine.runner import ModelRunner

    return Bench(engine_config, ModelRunner(tiny_model().model, engine_config), tokenizer)
