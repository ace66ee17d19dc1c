"""ServerView: what the polls of a server so far add up to."""

from __future__ import annotations

from collections import Counter
from copy import copy
from dataclasses import dataclass
from math import ceil
from typing import Literal

from app.prefix_tree import PrefixTree
from engine.config import EngineConfig
from engine.poll import Histogram, Measured, Poll
from engine.trace import StepTrace

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
        self._begin_counting()
        self.unit: Unit = "iteration"
        """What its tokens are told for."""
        self.has_budget = False
        """What an iteration may compute is known."""
        self.most_tokens = 10
        """The most that a poll came to, an iteration or a second: the scale where the budget is unknown."""
        self.tree = PrefixTree()

    def _begin_counting(self) -> None:
        self.num_computed_tokens: int | None = None
        """Of prompts and outputs; None as long as it has told nothing of either."""
        self.num_queried_tokens = 0
        self.num_hit_tokens = 0
        """Tokens that the prefix cache was asked for, and those that it had."""
        self.num_budget_tokens = 0
        """What the iterations of polls with a known budget might have computed."""
        self.num_budgeted_tokens = 0
        """And what they did."""

    def copy(self) -> ServerView:
        """One of the same moment that goes on by itself."""
        view = copy(self)
        view.latencies = self.latencies.copy()
        view.finished = self.finished.copy()
        view.tree = self.tree.copy()
        return view

    def apply(self, poll: Poll, trace: StepTrace) -> None:
        """Take in the next poll, which is this trace's."""
        if poll.restarted:
            self.latencies.clear()
            self.finished.clear()
            self._begin_counting()
        for measure, latest in poll.latencies.items():
            known = self.latencies.get(measure)
            self.latencies[measure] = latest if known is None or known.bounds != latest.bounds else known + latest
        self.finished.update(poll.finished or {})
        self.num_queried_tokens += poll.num_queried_tokens or 0
        self.num_hit_tokens += poll.num_hit_tokens or 0
        if poll.interval:
            self._count(poll, trace.config)
        self.tree.apply(poll.prefix, trace.step)

    def _count(self, poll: Poll, config: EngineConfig) -> None:
        rates = token_rates(poll)
        self.unit, self.most_tokens = rates.unit, max(self.most_tokens, ceil(rates.computed))
        self.has_budget = rates.unit == "iteration" and poll.tells("max_num_batched_tokens")
        told = [count for count in (poll.num_prompt_tokens, poll.num_generation_tokens) if count is not None]
        if told:
            self.num_computed_tokens = (self.num_computed_tokens or 0) + sum(told)
        if self.has_budget:
            self.num_budget_tokens += (poll.num_iterations or 0) * config.max_num_batched_tokens
            self.num_budgeted_tokens += sum(told)


@dataclass(frozen=True, slots=True)
class TokenRates:
    """Tokens of a poll: in the mean of its iterations, or in a second if the server does not count iterations."""

    unit: Unit
    decode: float | None
    """Of outputs."""
    prefill: float | None
    """Of prompts, computed."""
    cached: float | None
    """Of prompts, found in the prefix cache."""

    @property
    def computed(self) -> float:
        """As far as it is told."""
        return (self.decode or 0) + (self.prefill or 0)


def token_rates(poll: Poll) -> TokenRates:
    """What the tokens of a poll come to."""
    unit: Unit = "second" if poll.num_iterations is None else "iteration"
    times = poll.interval if poll.num_iterations is None else poll.num_iterations
    counts = poll.num_generation_tokens, poll.num_prompt_tokens, poll.num_cached_tokens
    return TokenRates(unit, *(None if count is None else count / times if times else 0.0 for count in counts))
