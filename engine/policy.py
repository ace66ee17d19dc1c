"""The scheduling policies: all that makes one system's scheduler differ from another's.

The scheduler knows how to compute tokens within a budget, hand out blocks and throw somebody out. A policy answers
the questions on which systems differ, which are these:

    in which order do running and waiting requests get their tokens?   passes
    may a prompt be computed in pieces?                                 whole_prompts, caps_long_prefills
    who is next in the queue?                                           key
    is the door closed in this step, whoever stands in front of it?     closed
    is there memory for this request?                                   refuse
    who has to go when a block is missing?                              victim

One that has to remember something looks around before a step and after it (`begin_step`, `end_step`).

`Policy` itself is vLLM's first come, first served; the others say what they do otherwise. A new one is a class here
and a line in POLICIES.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence, Set
from itertools import islice
from math import floor
from typing import TYPE_CHECKING, ClassVar, Literal

from engine.block_pool import BlockPool
from engine.config import ConfigError, EngineConfig
from engine.request import Request
from engine.trace import Blocked, BlockReason
from engine.waiting_queue import Key, WaitingQueue

if TYPE_CHECKING:
    from engine.scheduler import SchedulerOutput

Pass = Literal["running", "decodes", "prefills", "waiting"]
"""A walk over all running requests, over those that decode, over those with a prefill to finish, or an admission."""

Passes = tuple[tuple[Pass, ...], ...]
"""Alternatives, each a sequence of passes: the step is the first one that finds anything to compute."""
OF_LONG_PREFILLS = {"long_prefill_token_threshold", "long_prefill_token_threshold_adaptive"}
OF_SGLANG = {"schedule_conservativeness", "new_token_ratio_decay_steps", "mixed_chunk"}
OF_ADMISSION = {"watermark", "reserve_full_sequence"}
"""Parameters that only some policies look at."""

DECODES_AND_PREFILLS_TOGETHER: Passes = (("running", "waiting"),)
DECODES_FIRST: Passes = (("decodes", "prefills", "waiting"),)
PREFILLS_FIRST: Passes = (("prefills", "waiting"), ("decodes",))


class Policy:
    """vLLM V1, first come, first served (v1/core/sched/scheduler.py).

    Running requests come first, in the order of their admission; the tail of the running list has to go when a block
    is missing. A request is admitted if all that it has now fits, whatever it may become. Nobody starves.

    `config` is replaced when parameters change. A request that comes to an idle engine meets a new policy object: what
    one remembers of busy times says nothing after an idle one.
    """

    whole_prompts: ClassVar[bool] = False
    """Prompts are never cut, whatever `enable_chunked_prefill` says."""
    caps_long_prefills: ClassVar[bool] = True
    """`long_prefill_token_threshold` has a meaning."""
    ignored: ClassVar[Set[str]] = OF_SGLANG | {"priority_aging"}
    """Parameters that do nothing under this policy."""
    ends_hopeless: ClassVar[bool] = False
    """A request that does not fit even alone ends with an error; otherwise it goes back to the queue."""
    new_token_ratio: float | None = None
    """For the trace, where there is one."""

    def __init__(self, config: EngineConfig, pool: BlockPool) -> None:
        self.config = config
        self.pool = pool

    def passes(self) -> Passes:
        """In which order a step goes through the requests: each at most once, and "waiting" last in its sequence."""
        return DECODES_AND_PREFILLS_TOGETHER

    def key(self, request: Request, num_joined: int) -> Key:
        """Where a waiting request stands; the smallest is next. `num_joined`: how many joined the queue before it.

        It is asked for when the request joins, when the parameters change, and never in between.
        """
        return (request.arrival_index,)

    def victim(self, running: Sequence[Request]) -> Request:
        """Who gives up its blocks and goes back to the queue."""
        return running[-1]

    def closed(self, request: Request, preempted: bool) -> BlockReason | None:
        """Why nobody is admitted now, not even the head of the queue; `preempted`: somebody was thrown out."""
        # Memory is short already: whoever came in now would be thrown out again.
        return "preemption" if preempted and not self.config.admit_after_preemption else None

    def refuse(self, request: Request, hits: Sequence[int], end: int, running: Sequence[Request]) -> Blocked | None:
        """What the pool lacks for a request to start behind the cached blocks `hits` and be computed up to `end`.

        None means that it is admitted. A policy may remember that it refused.
        """
        config, pool = self.config, self.pool
        present = request.num_tokens if config.reserve_full_sequence else end
        needed = self._blocks(present) - len(hits) + pool.num_idle(hits)
        # Nobody else would free a block while nothing runs: there the watermark would block for ever.
        kept = config.num_watermark_blocks if running else 0
        if needed + kept <= pool.num_free:
            return None
        return Blocked(request.request_id, "blocks", needed=needed, available=pool.num_free, kept=kept)

    def begin_step(self, running: Sequence[Request], waiting: WaitingQueue, changed: bool) -> None:
        """Look around before a step; `changed`: a request has ended since the last one, or there are new parameters."""

    def end_step(self, output: SchedulerOutput, running: Sequence[Request]) -> None:
        """Take note of what was decided."""

    def _blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.config.block_size)


class Priority(Policy):
    """vLLM V1's policy of that name, with ageing.

    The queue goes by (priority, arrival), smaller is more urgent, and the least urgent of all that run has to go, also
    if it got its tokens in this step already. Less urgent requests starve while more urgent ones keep coming, unless
    `priority_aging` is above 0: then a request gains so much urgency with each step since its arrival. All gain alike,
    so who is ahead of whom never changes, and no two requests can throw each other out in turn.
    """

    ignored = OF_SGLANG

    def key(self, request: Request, num_joined: int) -> Key:
        return self._urgency(request)

    def victim(self, running: Sequence[Request]) -> Request:
        return max(running, key=self._urgency)

    def _urgency(self, request: Request) -> Key:
        # Who came a step later has gained a step less. Rounded, so that what is equal on paper stays equal.
        return (round(request.priority + self.config.priority_aging * request.arrival_step, 9), request.arrival_index)


class PrefillFirst(Policy):
    """vLLM 0 (core/scheduler.py before V1): a step is a batch of prefills if any can be formed, else it is decodes.

    Every admission stops all decodes for a step. The queue never starves; running requests may, while new ones keep
    coming and fitting. vLLM 0 never cut a prompt in this mode: that is `enable_chunked_prefill` turned off.
    """

    caps_long_prefills = False
    ignored = Policy.ignored | OF_LONG_PREFILLS

    def passes(self) -> Passes:
        return PREFILLS_FIRST


class Sarathi(Policy):
    """Sarathi-Serve's stall-free batching (Agrawal et al. 2024): decodes, then unfinished prefills, then admission.

    All in one budget, so that no prefill ever holds up a decode. Nobody starves. Admission goes on in a step that
    preempted, whatever `admit_after_preemption` says.
    """

    ignored = Policy.ignored | {"admit_after_preemption"}

    def passes(self) -> Passes:
        return DECODES_FIRST

    def closed(self, request: Request, preempted: bool) -> BlockReason | None:
        return None


class Reserving(Policy, ABC):
    """What Orca and SGLang have in common: memory is set aside for what the running requests may still need."""

    def __init__(self, config: EngineConfig, pool: BlockPool) -> None:
        super().__init__(config, pool)
        self._claims = 0.0
        self._num_claims = 0

    def begin_step(self, running: Sequence[Request], waiting: WaitingQueue, changed: bool) -> None:
        self._claims = self._num_claims = 0

    @abstractmethod
    def claim(self, request: Request) -> float:
        """What is set aside for a running request."""

    def claims(self, running: Sequence[Request]) -> float:
        """All that is set aside. While requests are admitted one after another, only the new ones are added."""
        self._claims += sum(self.claim(request) for request in running[self._num_claims :])
        self._num_claims = len(running)
        return self._claims


class Orca(Reserving):
    """Orca (Yu et al. 2022): scheduling by iteration, but a request reserves the most that it can become.

    Prompts are computed whole. Nobody is thrown out unless parameters change, and nobody starves; what is reserved and
    not used is wasted.
    """

    whole_prompts = True
    caps_long_prefills = False
    ignored = Policy.ignored | OF_LONG_PREFILLS | OF_ADMISSION | {"enable_chunked_prefill"}

    def refuse(self, request: Request, hits: Sequence[int], end: int, running: Sequence[Request]) -> Blocked | None:
        pool = self.pool
        needed = self._most_blocks(request) - len(hits) + pool.num_idle(hits)
        kept = int(self.claims(running))
        if needed + kept <= pool.num_free:
            return None
        return Blocked(request.request_id, "reserved", needed=needed, available=pool.num_free, kept=kept)

    def claim(self, request: Request) -> float:
        """Blocks that it may still come to hold."""
        return self._most_blocks(request) - len(self.pool.table(request.request_id))

    def _most_blocks(self, request: Request) -> int:
        return self._blocks(request.max_total_tokens(self.config.max_model_len))


class Static(Orca):
    """Static batching, as FasterTransformer did it: a batch is formed, prefilled, and decoded until its last one ends.

    Whoever arrives meanwhile waits for the next batch. Memory is reserved as with Orca. Nobody starves.
    """

    whole_prompts = False
    ignored = Policy.ignored | OF_LONG_PREFILLS | OF_ADMISSION | {"admit_after_preemption"}

    def __init__(self, config: EngineConfig, pool: BlockPool) -> None:
        super().__init__(config, pool)
        self._batch: frozenset[Request] = frozenset()
        """Who may still join: those that waited when the batch was begun, until one of them does not fit."""

    def passes(self) -> Passes:
        return PREFILLS_FIRST

    def begin_step(self, running: Sequence[Request], waiting: WaitingQueue, changed: bool) -> None:
        super().begin_step(running, waiting, changed)
        if not running:
            self._batch = frozenset(islice(waiting, self.config.max_num_seqs))

    def closed(self, request: Request, preempted: bool) -> BlockReason | None:
        return "batch" if request not in self._batch else None

    def refuse(self, request: Request, hits: Sequence[int], end: int, running: Sequence[Request]) -> Blocked | None:
        blocked = super().refuse(request, hits, end, running)
        if blocked:
            self._batch = frozenset()
        return blocked


# SGLang's own defaults: SGLANG_INIT_NEW_TOKEN_RATIO, SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR,
# SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION, SGLANG_RETRACT_DECODE_STEPS, and the longest queue that `lpm` sorts.
INIT_NEW_TOKEN_RATIO = 0.7
MIN_NEW_TOKEN_RATIO_FACTOR = 0.14
MAX_ESTIMATED_NEW_TOKENS = 4096
RETRACT_DECODE_STEPS = 20
MAX_SORTED = 128


class SGLang(Reserving):
    """SGLang 0.5 (srt/managers: schedule_policy.py, scheduler.py, `retract_decode` of schedule_batch.py).

    Prefills first, at most one of them cut. A request is admitted if it fits beside what the running ones are still
    expected to need: `new_token_ratio` of their remaining max_tokens. The ratio falls with every decode step
    that goes well. Where it was too low, requests are retracted: the one with the fewest outputs first, and to the back
    of the queue. A running request may wait for as long as new ones keep coming and fitting.

    Two rules are ours. A request that needs exactly the room that there is, is admitted. And where nothing runs, the
    head of the queue only has to fit as it is: whatever is expected of it, nobody else would ever make room for it.
    """

    caps_long_prefills = False
    ignored = frozenset(("priority_aging", *OF_LONG_PREFILLS, *OF_ADMISSION))
    ends_hopeless = True

    def __init__(self, config: EngineConfig, pool: BlockPool) -> None:
        super().__init__(config, pool)
        self.new_token_ratio: float = self._start
        self._full = False
        """Somebody was refused, and nobody has left and nothing has changed since."""

    def passes(self) -> Passes:
        return DECODES_FIRST if self.config.mixed_chunk else PREFILLS_FIRST

    @property
    def _start(self) -> float:
        return min(INIT_NEW_TOKEN_RATIO * self.config.schedule_conservativeness, 1.0)

    def key(self, request: Request, num_joined: int) -> Key:
        return (0, num_joined)

    def victim(self, running: Sequence[Request]) -> Request:
        # Of equals the last one, so from the back. A prefill under way always goes on while anybody decodes.
        return min(reversed(running), key=lambda r: (r.is_prefilling, r.num_output_tokens, -r.num_prompt_tokens))

    def closed(self, request: Request, preempted: bool) -> BlockReason | None:
        return super().closed(request, preempted) or ("full" if self._full else None)

    def refuse(self, request: Request, hits: Sequence[int], end: int, running: Sequence[Request]) -> Blocked | None:
        if not running:
            return super().refuse(request, hits, end, running)
        block_size = self.config.block_size
        free = (self.pool.num_free - self.pool.num_idle(hits)) * block_size
        room = round(free - self.claims(running), 6)  # what fits on paper has to fit
        needed = request.num_tokens - len(hits) * block_size + self._remaining(request) + block_size
        if needed <= room:
            return None
        self._full = True
        return Blocked(request.request_id, "room", needed=needed, available=floor(room))

    def begin_step(self, running: Sequence[Request], waiting: WaitingQueue, changed: bool) -> None:
        super().begin_step(running, waiting, changed)
        if changed or not running:
            self._full = False

    def end_step(self, output: SchedulerOutput, running: Sequence[Request]) -> None:
        lowest = MIN_NEW_TOKEN_RATIO_FACTOR * self._start
        if any(preemption.cause == "blocks" for preemption in output.preemptions):
            outputs = sum(request.num_output_tokens for request in running)
            most = sum(self._max_output_tokens(request) for request in running)
            self.new_token_ratio = min(1.0, (outputs + RETRACT_DECODE_STEPS * len(running)) / (most + 1))
            self._full = False
        elif output.scheduled and all(d.kind == "decode" and not d.admitted for d in output.decisions):
            step = (self._start - lowest) / self.config.new_token_ratio_decay_steps
            self.new_token_ratio = max(lowest, self.new_token_ratio - step)

    def claim(self, request: Request) -> float:
        """Tokens that it is still expected to need; until it decodes, all that it may need."""
        remaining = self._remaining(request)
        if request.is_prefilling or not request.num_computed_tokens:
            return remaining + self.config.block_size
        return remaining if request.sampling_params.ignore_eos else remaining * self.new_token_ratio

    def _remaining(self, request: Request) -> int:
        return min(self._max_output_tokens(request) - request.num_output_tokens, MAX_ESTIMATED_NEW_TOKENS)

    def _max_output_tokens(self, request: Request) -> int:
        return request.max_total_tokens(self.config.max_model_len) - request.num_prompt_tokens


class SGLangLPM(SGLang):
    """SGLang with its queue order `lpm`: whoever finds the longest prefix in the cache is next.

    Ties go by the order of joining. As in SGLang a queue of more than 128 is left as it stands. Requests that hit
    little starve while others that hit more keep coming.
    """

    def begin_step(self, running: Sequence[Request], waiting: WaitingQueue, changed: bool) -> None:
        super().begin_step(running, waiting, changed)
        if len(waiting) <= MAX_SORTED and not self._full:
            waiting.sort(lambda request, num_joined: (-len(self.pool.find_prefix(request)), num_joined))


POLICIES: dict[str, type[Policy]] = {
    "fcfs": Policy,
    "priority": Priority,
    "sglang": SGLang,
    "sglang_lpm": SGLangLPM,
    "static": Static,
    "orca": Orca,
    "prefill_first": PrefillFirst,
    "sarathi": Sarathi,
}


def policy_class(name: str) -> type[Policy]:
    """The policy of that name. Raises ConfigError if there is none."""
    if name not in POLICIES:
        raise ConfigError(f"there is no policy {name!r}; there are: {', '.join(POLICIES)}.")
    return POLICIES[name]
