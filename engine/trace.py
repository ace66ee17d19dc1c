"""StepTrace: the immutable record of what one engine step decided, why, and what it cost.

It is the only thing that leaves the engine, and what a server elsewhere tells takes the same form (`engine.poll`).
Panels, recordings and tests read these fields and nothing else, so whatever can be seen can also be saved, replayed and
asserted. Sizes are in tokens or blocks, times in seconds of the engine's clock, blocks are numbered from 1 (0 is the
null block).
"""

from __future__ import annotations

from typing import Literal

import msgspec

from engine.config import EngineConfig
from engine.poll import Poll

TRACE_VERSION = 2
MAX_WAITING_IDS = 64
"""A trace names at most this many waiting requests; `num_waiting` counts them all."""

Kind = Literal["prefill", "decode", "recompute"]
CutBy = Literal["", "budget", "threshold"]
BlockReason = Literal["seats", "budget", "blocks", "chunking", "preemption", "reserved", "room", "full", "batch"]
UnservedReason = Literal["budget", "prefill", "preemption"]
PreemptionCause = Literal["blocks", "seats", "pool"]


class _Part(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    pass


class Arrival(_Part, frozen=True):
    """A request that joined the queue since the last step."""

    request_id: str
    label: str
    prompt: str
    num_prompt_tokens: int
    max_tokens: int
    time: float
    priority: int = 0


class Scheduled(_Part, frozen=True):
    """Tokens [start, start + num_tokens) of one request, computed in this step."""

    request_id: str
    kind: Kind
    start: int
    num_tokens: int
    target: int
    """Tokens that the request has in all: it decodes once start + num_tokens reaches this."""
    admitted: bool = False
    """It left the waiting queue in this step."""
    num_cached_tokens: int = 0
    """Found in the prefix cache at this admission, hence not computed: `start` begins behind them."""
    num_recomputed_tokens: int = 0
    """Of num_tokens, how many had been computed before and were lost to a preemption."""
    chunk: int = 0
    """Piece number, from 1, of a prefill that took or takes several steps; 0 if it went through whole."""
    cut_by: CutBy = ""
    """What kept it from getting all that it was missing, when its turn came."""

    @property
    def end(self) -> int:
        return self.start + self.num_tokens


class Preemption(_Part, frozen=True):
    """A request thrown out of the running batch: its blocks are gone and it will be computed again."""

    request_id: str
    for_request_id: str
    """Who asked for the blocks; the request itself if it had to give way to itself; "" if nobody asked."""
    num_needed_blocks: int
    num_free_blocks: int
    """What the asker needed and what was free at that moment."""
    num_freed_blocks: int
    """Blocks that it let go of; shared ones stay with their other holders."""
    num_lost_tokens: int
    """Computed tokens that it has to catch up on again (unless the prefix cache still holds them)."""
    num_returned_tokens: int = 0
    """Tokens that it had been given in this very step, and that went back to the budget."""
    cause: PreemptionCause = "blocks"
    """"seats" and "pool": max_num_seqs or num_blocks was made smaller than what ran."""


class Blocked(_Part, frozen=True):
    """Why the head of the waiting queue was not admitted; nobody behind it is looked at.

    "seats", "budget": none left. "chunking": its prompt may not be cut. "blocks": it does not fit. "reserved": it does
    not fit beside what is set aside for those that run. "room": it does not fit beside what they are expected to need.
    "full": nobody has left, and nothing has changed, since the last one was refused. "batch": the present batch takes
    nobody in. "preemption": somebody was thrown out in this step.
    """

    request_id: str
    reason: BlockReason
    needed: int = 0
    """Blocks (reasons "blocks" and "reserved") or tokens (reasons "chunking" and "room") that it needs."""
    available: int = 0
    """Blocks or tokens that there are; below 0 where more is expected of the running ones than there is."""
    kept: int = 0
    """Of the free blocks, how many must stay free: for the watermark, or reserved for those that run."""


class Unserved(_Part, frozen=True):
    """Running requests that got no token in this step.

    "budget": it was spent before their turn came. "prefill": prefills ran, and decodes wait meanwhile.
    "preemption": a request that came before them had to give way to itself, which ended the pass.
    """

    reason: UnservedReason
    request_ids: tuple[str, ...]


class Output(_Part, frozen=True):
    """A token that a request got, and the text that became readable with it."""

    request_id: str
    token_id: int
    """-1 if it is not told."""
    text: str = ""
    num_tokens: int = 1
    """That came at once; only a server elsewhere sends several together, or text alone, of tokens from before."""
    time: float | None = None
    """When it came, if that was not at the end of the step."""
    num_prompt_tokens: int = 0
    """Of its request, if that was not known at its arrival: a server elsewhere tells it with the first output."""


class Finished(_Part, frozen=True):
    """A request that ended in this step, or was aborted before it."""

    request_id: str
    reason: Literal["stop", "length", "abort", "error"]
    num_output_tokens: int
    num_preemptions: int = 0
    queue_time: float | None = None
    ttft: float | None = None
    e2e: float | None = None
    told: str = ""
    """What a server elsewhere said about its end, as a sentence about it, if that is an error."""


class BlockOp(_Part, frozen=True):
    """One change in the KV pool. Applied in order to an empty pool they give every block's state.

    "hit" and "allocate" append the blocks to the request's table; "release" empties it (blocks are listed from the
    last to the first); "cache" enters full blocks in the prefix cache and "evict" takes them out again. "move" gives
    the content of the first block, its holders and its place in the cache to the second.
    """

    op: Literal["hit", "allocate", "release", "cache", "evict", "move"]
    blocks: tuple[int, ...]
    request_id: str = ""


class PhaseTimes(_Part, frozen=True):
    """Where the step's time went, in seconds."""

    schedule: float = 0.0
    prepare: float = 0.0
    forward: float = 0.0
    sample: float = 0.0
    update: float = 0.0

    @property
    def total(self) -> float:
        return self.schedule + self.prepare + self.forward + self.sample + self.update


class StepTrace(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False, tag_field="version", tag=TRACE_VERSION
):
    """One step. Fields that are empty mean that nothing of the kind happened."""

    step: int
    started: float
    """Engine clock at the start of the step."""
    config: EngineConfig
    arrivals: tuple[Arrival, ...] = ()
    scheduled: tuple[Scheduled, ...] = ()
    """In the order in which the scheduler placed them."""
    preemptions: tuple[Preemption, ...] = ()
    blocked: Blocked | None = None
    unserved: tuple[Unserved, ...] = ()
    running: tuple[str, ...] = ()
    """Request ids after scheduling, in the scheduler's order; never more than max_num_seqs."""
    waiting: tuple[str, ...] = ()
    """The first MAX_WAITING_IDS of the waiting queue after scheduling, head first."""
    num_waiting: int = 0
    outputs: tuple[Output, ...] = ()
    finished: tuple[Finished, ...] = ()
    blocks: tuple[BlockOp, ...] = ()
    num_free_blocks: int
    """At the end of the step; cached blocks that nobody holds count as free."""
    note: str = ""
    """What whoever drives the engine has to say about this step."""
    new_token_ratio: float | None = None
    """Policy sglang: the share of their remaining max_tokens that running requests are expected to use."""
    times: PhaseTimes = PhaseTimes()
    poll: Poll | None = None
    """If this is no step of our engine but a look at a server elsewhere. Only our own requests are named then: those in
    `running` have a token, those in `waiting` have none yet. Nothing is said of what was scheduled, nor of blocks."""

    @property
    def num_scheduled_tokens(self) -> int:
        return sum(s.num_tokens for s in self.scheduled)

    def num_tokens_of(self, kind: Kind) -> int:
        """Tokens of this step spent on `kind`; the part of a recompute that is new counts as prefill."""
        if kind == "decode":
            return sum(s.num_tokens for s in self.scheduled if s.kind == "decode")
        recomputed = sum(s.num_recomputed_tokens for s in self.scheduled)
        if kind == "recompute":
            return recomputed
        return sum(s.num_tokens for s in self.scheduled if s.kind != "decode") - recomputed


_json_encoder = msgspec.json.Encoder()
_json_decoder = msgspec.json.Decoder(StepTrace)
pack = msgspec.msgpack.Encoder().encode
"""A trace as bytes, for the program's own use; smaller and faster than JSON."""
unpack = msgspec.msgpack.Decoder(StepTrace).decode


def encode(trace: StepTrace) -> bytes:
    """One line of JSON, without the line end."""
    return _json_encoder.encode(trace)


def decode(line: bytes | str) -> StepTrace:
    """Read what `encode` wrote. Raises msgspec.ValidationError for another version or anything else."""
    return _json_decoder.decode(line)
