"""Script: the commands of a run that are known before it begins, handed out when they are due."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from math import inf

from app.protocol import Cue


class Script:
    """Cues in the order of their time; those of one time in the order in which they were given."""

    def __init__(self, cues: Iterable[Cue] = ()) -> None:
        cues = list(cues)
        self._by_step = deque(sorted((c for c in cues if c.step is not None), key=lambda cue: cue.step or 0))
        self._by_second = deque(sorted((c for c in cues if c.step is None), key=lambda cue: cue.second or 0.0))
        self._reached = 0
        """All cues up to this step are due, whatever step the engine is at."""

    @property
    def is_over(self) -> bool:
        return not self._by_step and not self._by_second

    def next_due(self, step: int, second: float, *, idle: bool) -> Cue | None:
        """The next cue that is due before this step and at this second, which is then no longer part of the script.

        With an `idle` engine steps do not go on by themselves: then the next cue that names one is due.
        """
        if self._by_second and (self._by_second[0].second or 0.0) <= second:
            return self._by_second.popleft()
        if not self._by_step:
            return None
        next_step = self._by_step[0].step or 0
        if idle:
            self._reached = next_step
        return self._by_step.popleft() if next_step <= max(step, self._reached) else None

    def seconds_until_next(self, second: float) -> float:
        """Until a cue that names a second is due; infinite if there is none."""
        return max(0.0, (self._by_second[0].second or 0.0) - second) if self._by_second else inf
