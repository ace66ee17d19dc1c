"""ServerView: what the polls of a server so far add up to."""

from __future__ import annotations

from collections import Counter
from copy import copy
from dataclasses import dataclass
from math import ceil
from typing import Literal

from app.prefix_tree import PrefixTree
from engine.poll import Histogram, Measured, Poll

Unit = Literal["iteration", "second"]


class ServerView:
    """The state of a server after the last poll. Only `apply` changes it.

    It counts from when we began to look, or since the server began anew: what was before that is unknown to us.
    """

    def __init__(self) -> None:
        self.latencies: dict[Measured, Histogram] = {}
        """Of all its requests."""
        self.finished: Counter[str] = Counter()
        """Requests that ended, by the reason."""
        self.num_queried_tokens = 0
        self.num_hit_tokens = 0
        """Tokens that the prefix cache was asked for, and those that it had."""
        self.unit: Unit = "iteration"
        """What its tokens are told for."""
        self.most_tokens = 10
        """The most that a poll came to, an iteration or a second: the scale where the budget is unknown."""
        self.tree = PrefixTree()

    def copy(self) -> ServerView:
        """One of the same moment that goes on by itself."""
        view = copy(self)
        view.latencies = self.latencies.copy()
        view.finished = self.finished.copy()
        view.tree = self.tree.copy()
        return view

    def apply(self, poll: Poll, step: int) -> None:
        """Take in the next poll."""
        if poll.restarted:
            self.latencies.clear()
            self.finished.clear()
            self.num_queried_tokens = self.num_hit_tokens = 0
        for measure, latest in poll.latencies.items():
            known = self.latencies.get(measure)
            self.latencies[measure] = latest if known is None or known.bounds != latest.bounds else known + latest
        self.finished.update(poll.finished or {})
        self.num_queried_tokens += poll.num_queried_tokens or 0
        self.num_hit_tokens += poll.num_hit_tokens or 0
        if not poll.problem:
            rates = token_rates(poll)
            self.unit, self.most_tokens = rates.unit, max(self.most_tokens, ceil(rates.computed))
        self.tree.apply(poll.prefix, step)


@dataclass(frozen=True, slots=True)
class TokenRates:
    """Tokens of a poll: in the mean of its iterations, or in a second if the server does not count iterations."""

    unit: Unit
    decode: float
    """Of outputs."""
    prefill: float
    """Of prompts, computed."""
    cached: float
    """Of prompts, found in the prefix cache."""

    @property
    def computed(self) -> float:
        return self.decode + self.prefill


def token_rates(poll: Poll) -> TokenRates:
    """What the tokens of a poll come to."""
    unit: Unit = "second" if poll.num_iterations is None else "iteration"
    times = poll.interval if poll.num_iterations is None else poll.num_iterations
    counts = poll.num_generation_tokens, poll.num_prompt_tokens, poll.num_cached_tokens
    return TokenRates(unit, *((count or 0) / times if times else 0.0 for count in counts))
