"""Poll: what one look at a running server told, as the part of a step trace that our own engine has no use for.

A server elsewhere does not tell its steps. It has gauges and counters that are read now and then, so such a trace
stands for all that happened since the one before it. What a server does not tell is None here, never a guess.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import inf
from typing import Literal

import msgspec

Measured = Literal["ttft", "itl", "queue", "e2e"]
PrefixKnown = Literal["", "whole", "partial"]


class _Part(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    pass


class Histogram(_Part, frozen=True):
    """How many values there were up to each bound. `counts` has one entry more: those above the last bound."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float

    @property
    def count(self) -> int:
        return sum(self.counts)

    @property
    def mean(self) -> float | None:
        """Of all values; exact, unlike what stands between bounds."""
        return self.sum / self.count if self.count else None

    def quantile(self, share: float) -> float | None:
        """Where this share (0 to 1) of the values lies below, on a line between the bounds (as Prometheus'
        `histogram_quantile` has it); infinite above the last bound. None without values."""
        rank, below, low = share * self.count, 0, 0.0
        if not self.count:
            return None
        for bound, count in zip(self.bounds, self.counts, strict=False):
            if count and below + count >= rank:
                return low + (bound - low) * max(0.0, rank - below) / count
            below, low = below + count, bound
        return inf

    def __add__(self, other: Histogram) -> Histogram:
        """Both together. Raises ValueError if their bounds are not the same."""
        if self.bounds != other.bounds:
            raise ValueError("histograms with other bounds cannot be added")
        counts = tuple(mine + yours for mine, yours in zip(self.counts, other.counts, strict=True))
        return Histogram(self.bounds, counts, self.sum + other.sum)


class Rank(_Part, frozen=True):
    """One engine of a server; with data parallelism there are several. Gauges are those of its last step, and the
    others count what happened since the poll before.

    Beside several there may be one without a name, which is no engine: what a server only tells of all of them
    together, and no engine of itself. It is there for the totals.
    """

    name: str = "0"
    num_running: int | None = None
    num_waiting: int | None = None
    waiting_by_reason: dict[str, int] = {}
    kv_usage: float | None = None
    """Share (0 to 1) of the usable KV blocks that requests hold."""
    num_iterations: int | None = None
    """Engine steps."""
    num_prompt_tokens: int | None = None
    """Of prompts, computed; a prompt counts in the iteration of its first output token. Those found in the prefix cache
    may be among them if `num_cached_tokens` is None: not every server tells them apart."""
    num_cached_tokens: int | None = None
    """Of the same prompts, found in the prefix cache."""
    num_generation_tokens: int | None = None
    num_queried_tokens: int | None = None
    num_hit_tokens: int | None = None
    """Tokens that the prefix cache was asked for, and those that it had."""
    num_preemptions: int | None = None
    finished: dict[str, int] | None = None
    """Requests that ended, by the reason."""
    latencies: dict[Measured, Histogram] = {}
    """If there are several engines, its part of those in `Poll.latencies`; none if the server does not tell it."""


class PrefixOp(_Part, frozen=True):
    """A change in a server's prefix cache, from its KV events (vLLM: `distributed/kv_events.py`).

    "store": these full blocks, each behind the one before it, the first behind `parent`, can be found from now on.
    "remove": they were drawn for new use. "clear": all of them are gone. Of a block that was stored twice each copy has
    to be removed. There are neither physical block numbers nor requests in it, and what the tokens were is not kept.
    """

    op: Literal["store", "remove", "clear"]
    hashes: tuple[str, ...] = ()
    parent: str = ""
    """"" for a beginning."""
    rank: str = "0"


class Poll(_Part, frozen=True):
    """One look at a server."""

    interval: float = 0.0
    """Seconds since the one before, over which everything is counted; 0 if there was none to compare with."""
    seconds: float = 0.0
    """That the server took to answer."""
    ranks: tuple[Rank, ...] = ()
    """None if it did not answer; see `engines`."""
    latencies: dict[Measured, Histogram] = {}
    """Of what ended since the poll before, over all ranks; those that the server measures."""
    problem: str = ""
    """Why there are no figures: a sentence for people."""
    restarted: bool = False
    """Its counters began anew: since then it is another server."""
    unknown: tuple[str, ...] = ()
    """The parameters of the trace's config that it does not tell; they stand there with our defaults."""
    prefix: tuple[PrefixOp, ...] = ()
    prefix_known: PrefixKnown = ""
    """Whether all changes of its prefix cache are known, or only those since some moment; "" for none."""
    prefix_hint: str = ""
    """How its KV events could be heard, if they are not; or what is wrong with hearing them."""
    counts_at_end: bool = False
    """Tokens are counted when their request ends, not as they come: llama.cpp does so, and an SGLang that does not tell
    `realtime_tokens`. There is none for as long as nobody ends, and then there are many."""

    @property
    def engines(self) -> tuple[Rank, ...]:
        """Those of `ranks` that are one engine."""
        return tuple(rank for rank in self.ranks if rank.name)

    @property
    def num_running(self) -> int | None:
        return _total(rank.num_running for rank in self.ranks)

    @property
    def num_waiting(self) -> int | None:
        return _total(rank.num_waiting for rank in self.ranks)

    @property
    def num_iterations(self) -> int | None:
        return _total(rank.num_iterations for rank in self.ranks)

    @property
    def num_prompt_tokens(self) -> int | None:
        return _total(rank.num_prompt_tokens for rank in self.ranks)

    @property
    def num_cached_tokens(self) -> int | None:
        return _total(rank.num_cached_tokens for rank in self.ranks)

    @property
    def num_generation_tokens(self) -> int | None:
        return _total(rank.num_generation_tokens for rank in self.ranks)

    @property
    def num_queried_tokens(self) -> int | None:
        return _total(rank.num_queried_tokens for rank in self.ranks)

    @property
    def num_hit_tokens(self) -> int | None:
        return _total(rank.num_hit_tokens for rank in self.ranks)

    @property
    def num_preemptions(self) -> int | None:
        return _total(rank.num_preemptions for rank in self.ranks)

    @property
    def finished(self) -> Counter[str] | None:
        """Requests that ended, by the reason."""
        told = [rank.finished for rank in self.ranks if rank.finished is not None]
        return sum((Counter(finished) for finished in told), Counter()) if told else None

    @property
    def waiting_by_reason(self) -> Counter[str]:
        return sum((Counter(rank.waiting_by_reason) for rank in self.ranks), Counter())

    @property
    def kv_usage(self) -> float | None:
        """Of all engines, whose pools are equally large."""
        told = [rank.kv_usage for rank in self.ranks if rank.kv_usage is not None]
        return sum(told) / len(told) if told else None

    @property
    def may_hold_cached(self) -> bool:
        """Whether tokens that were found in the prefix cache may be among `num_prompt_tokens`."""
        return any(rank.num_prompt_tokens is not None and rank.num_cached_tokens is None for rank in self.ranks)

    def tells(self, parameter: str) -> bool:
        """Whether this parameter of the trace's config is the server's own."""
        return parameter not in self.unknown


def _total(values: Iterable[int | None]) -> int | None:
    """None if nobody tells."""
    told = [value for value in values if value is not None]
    return sum(told) if told else None
