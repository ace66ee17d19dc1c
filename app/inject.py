"""What the keys send: prompts of each kind one after another, and a load of random arrivals."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Literal

from app.prompts import Prompt, pair, prompt
from engine.request import SamplingParams

Kind = Literal["short", "long", "burst", "pair", "urgent"]
BURST = 6
URGENT_PRIORITY = -10
LOADS = (0.0, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)
"""Requests a second that the load can be set to."""
LONG_SHARE = 0.15
"""Of the load's requests, how many are long."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A request that has not been sent yet."""

    label: str
    text: str
    params: SamplingParams
    priority: int = 0
    whole: bool = False
    """To be refused rather than cut if it is too long."""


class Injector:
    """Goes through the prompts of presets/prompts.toml, each kind in its order."""

    def __init__(self) -> None:
        self._num_short = 0
        self._num_long = 0
        self._num_pairs = 0

    def drafts(self, kind: Kind) -> tuple[Draft, ...]:
        """The next requests of a kind."""
        match kind:
            case "short":
                return (_draft(self._short()),)
            case "long":
                self._num_long += 1
                return (_draft(prompt("long", self._num_long - 1)),)
            case "burst":
                return tuple(_draft(self._short()) for _ in range(BURST))
            case "pair":
                self._num_pairs += 1
                # Cut at the front they would no longer begin alike.
                return tuple(replace(_draft(one), whole=True) for one in pair(self._num_pairs - 1))
            case "urgent":
                one = self._short()
                return (Draft("urgent", one.text, SamplingParams(max_tokens=one.max_tokens), URGENT_PRIORITY),)

    def _short(self) -> Prompt:
        self._num_short += 1
        return prompt("short", self._num_short - 1)


def _draft(prompt: Prompt) -> Draft:
    return Draft(prompt.label, prompt.text, SamplingParams(max_tokens=prompt.max_tokens))


class Load:
    """Poisson arrivals: gaps between them are random, exponentially distributed, and the same for the same seed."""

    def __init__(self, seed: int = 0) -> None:
        self.rate = 0.0
        """Requests a second; 0 is off."""
        self._random = random.Random(seed)
        self._next_at: float | None = None

    def change(self, by: int) -> None:
        """So many places up or down in LOADS."""
        self.rate = LOADS[max(0, min(len(LOADS) - 1, LOADS.index(self.rate) + by))]
        self._next_at = None

    def stop(self) -> None:
        """No more of it."""
        self.rate = 0.0
        self._next_at = None

    def due(self, now: float) -> list[Kind]:
        """The requests that have arrived by `now`, in seconds of a clock that stands still while the engine does."""
        kinds: list[Kind] = []
        if not self.rate:
            return kinds
        if self._next_at is None:
            self._next_at = now + self._random.expovariate(self.rate)
        while self._next_at <= now:
            kinds.append("long" if self._random.random() < LONG_SHARE else "short")
            self._next_at += self._random.expovariate(self.rate)
        return kinds
