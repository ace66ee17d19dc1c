"""Request: one prompt on its way to its output, and the rules for when it ends."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256


class RequestError(ValueError):
    """A request that cannot be served; the text says why, with the numbers, `parameter` whose value it is about."""

    def __init__(self, text: str, parameter: str | None = None) -> None:
        super().__init__(text)
        self.parameter = parameter


class RequestStatus(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"
    """The KV pool is too small for it, even empty. No engine accepts a configuration under which that can happen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the next token is chosen and when the output ends (vLLM's names and meanings).

    Raises RequestError for values that mean nothing.
    """

    max_tokens: int = 64
    temperature: float = 0.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps all tokens."""
    seed: int | None = None
    stop: tuple[str, ...] = ()
    """Strings that end the output; none of them is ever shown."""
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise RequestError(f"max_tokens is {self.max_tokens}; ask for at least 1 token.", "max_tokens")
        if not 0 <= self.temperature < float("inf"):
            raise RequestError(f"temperature is {self.temperature}; it must be 0 (greedy) or more.", "temperature")
        if not 0 < self.top_p <= 1:
            raise RequestError(f"top_p is {self.top_p}; it must be above 0 and at most 1.", "top_p")
        if self.top_k < 0:
            raise RequestError(f"top_k is {self.top_k}; it must be 0 (all) or more.", "top_k")
        if self.seed is not None and not -(2**63) <= self.seed < 2**64:
            raise RequestError(f"seed is {self.seed}; it must fit into 64 bits.", "seed")
        if any(not stop for stop in self.stop):
            raise RequestError("a stop string is empty; it would end every output at once.", "stop")


@dataclass(slots=True)
class RequestTimes:
    """When things happened to a request, in seconds of the engine's clock. Definitions are vLLM's."""

    arrival: float
    first_scheduled: float | None = None
    tokens: list[float] = field(default_factory=list)
    finished: float | None = None

    @property
    def queue(self) -> float | None:
        """From arrival until first scheduled; a later preemption does not reopen it."""
        return None if self.first_scheduled is None else self.first_scheduled - self.arrival

    @property
    def ttft(self) -> float | None:
        """Time to first token, queueing included; None for a request that never got one."""
        return self.tokens[0] - self.arrival if self.tokens else None

    @property
    def itl(self) -> list[float]:
        """Inter-token latencies: the gaps between its tokens, preemptions included."""
        return [later - earlier for earlier, later in zip(self.tokens, self.tokens[1:], strict=False)]

    @property
    def e2e(self) -> float | None:
        return None if self.finished is None else self.finished - self.arrival


class Request:
    """What the engine knows of one request.

    There are no phases: a request is `num_computed_tokens` of `num_tokens`, and every step moves the first
    towards the second. Only `Scheduler.update_from_output` changes a request once it is in the queue.
    """

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        sampling_params: SamplingParams,
        *,
        priority: int = 0,
        eos_token_ids: Collection[int] = (),
        arrival_time: float = 0.0,
    ) -> None:
        self.request_id = request_id
        self.priority = priority
        """Smaller is more urgent. Only policies that look at it care."""
        self.sampling_params = sampling_params
        self.token_ids = list(prompt_token_ids)
        """Prompt and output."""
        self.num_prompt_tokens = len(self.token_ids)
        self.num_computed_tokens = 0
        """Tokens whose KV is in the cache (or will be, once the running step is done)."""
        self.max_computed_tokens = 0
        """The most that were ever computed: below it, computing is recomputing."""
        self.num_chunks = 0
        """Pieces of the prefill under way that are done."""
        self.num_preemptions = 0
        self.arrival_index = 0
        """How many requests the scheduler was given before it."""
        self.arrival_step = 0
        """The step before which it was given to the scheduler."""
        self.num_cached_tokens = 0
        """Tokens that its last admission found in the prefix cache."""
        self.status = RequestStatus.WAITING
        self.finish_reason: FinishReason | None = None
        self.times = RequestTimes(arrival_time)
        eos = () if sampling_params.ignore_eos else eos_token_ids
        self._stop_token_ids = frozenset(eos) | frozenset(sampling_params.stop_token_ids)
        self._block_hashes: list[bytes] = []

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def is_prefilling(self) -> bool:
        """It runs, and some of what it had at its admission is still to be computed."""
        return self.num_chunks > 0

    def max_total_tokens(self, max_model_len: int) -> int:
        """The most tokens, prompt and output, that it can come to."""
        return min(self.num_prompt_tokens + self.sampling_params.max_tokens, max_model_len)

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    def is_stop_token(self, token_id: int) -> bool:
        return token_id in self._stop_token_ids

    def block_hashes(self, block_size: int, num_blocks: int) -> list[bytes]:
        """Hashes of its first `num_blocks` full blocks, each chained on the one before.

        Two blocks have the same hash exactly when all tokens from the start to their ends are the same
        (vLLM: `hash_block_tokens` in v1/core/kv_cache_utils.py). Tokens are only ever appended, so a hash once
        computed is kept.
        """
        hashes = self._block_hashes
        while len(hashes) < num_blocks:
            first = len(hashes) * block_size
            parent = hashes[-1] if hashes else b""
            hashes.append(sha256(parent + array("q", self.token_ids[first : first + block_size]).tobytes()).digest())
        return hashes[:num_blocks]
