"""Cursor: which step the panels show, the newest or one of the past."""

from __future__ import annotations

from collections.abc import Callable

from app.history import History
from app.view import EngineView, StepBar


class Cursor:
    """Stays with the newest step until it is moved; moved back onto it, it stays with it again.

    It stops at the newest step only if asked to: what somebody looks at should not be pushed aside by newer ones.
    """

    def __init__(self, history: History) -> None:
        self._history = history
        self._step: int | None = None

    @property
    def view(self) -> EngineView:
        """The state to show; only to read, and only until the next step comes."""
        return self._history.live if self.step is None else self._history.at(self.step)

    @property
    def step(self) -> int | None:
        """The step of the past that is shown, or None for the newest. One that is no longer kept is now the oldest."""
        first, last = self._history.first_step, self._history.last_step
        if self._step is None or first is None or last is None:
            return None
        step = max(self._step, first)
        return step if step < last else None

    @property
    def is_live(self) -> bool:
        """It stays with the newest step, whichever that will be."""
        return self._step is None

    @property
    def steps_back(self) -> int:
        last = self._history.last_step
        return 0 if self.step is None or last is None else last - self.step

    def live(self) -> None:
        """Stay with the newest step."""
        self._step = None

    def hold(self) -> None:
        """Stay with the step that is shown now, also if newer ones come."""
        self._step = self._here

    def go_to(self, step: int, *, stay: bool = False) -> None:
        """Show this step, or the nearest to it that there is. `stay`: if that is the newest, stop there as well."""
        first, last = self._history.first_step, self._history.last_step
        if first is None or last is None:
            self._step = None
        elif max(step, first) >= last:
            self._step = last if stay else None
        else:
            self._step = max(step, first)

    def move(self, by: int) -> None:
        """So many steps on, or back if negative."""
        if (here := self._here) is not None:
            self.go_to(here + by)

    def first(self) -> None:
        """The oldest step that is kept."""
        if (first := self._history.first_step) is not None:
            self.go_to(first)

    def seek(self, direction: int, condition: Callable[[StepBar], object], *, newest: bool = False) -> bool:
        """Stop at the nearest step in this direction (1 or -1) that satisfies the condition; False if there is none.

        `newest`: backwards from the newest step, that one counts too.
        """
        if (here := self._here) is None:
            return False
        if direction > 0:
            step = self._history.next_step(here, condition)
        else:
            before = here + 1 if newest and self.step is None else here
            step = self._history.previous_step(before, condition)
        if step is not None:
            self._step = step
        return step is not None

    @property
    def _here(self) -> int | None:
        return self._history.last_step if self.step is None else self.step
