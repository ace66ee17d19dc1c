"""Selection: the request that the panels speak of."""

from __future__ import annotations

from collections.abc import Sequence


class Selection:
    """It stays on the first row of the list until somebody chooses a request, and goes back there when that is gone."""

    def __init__(self) -> None:
        self.request_id: str | None = None
        self.following = True
        """Nobody has chosen a request."""
        self.only = False
        """The map of KV blocks lets those of the selected request stand out."""

    def choose(self, request_id: str) -> None:
        self.request_id = request_id
        self.following = False

    def move(self, rows: Sequence[str], by: int) -> None:
        """Choose the request so many rows below, or above."""
        if rows:
            position = rows.index(self.request_id) + by if self.request_id in rows else 0
            self.choose(rows[max(0, min(len(rows) - 1, position))])

    def settle(self, rows: Sequence[str], *, is_past: bool, is_looked_at: bool) -> None:
        """Adapt to the rows that there are now.

        Whoever was chosen may not be there yet in the past, and what is looked at in detail stays, ended or not.
        """
        if not is_past and not is_looked_at:
            self.following = self.following or self.request_id not in rows
        if self.following and (not is_looked_at or self.request_id is None):
            self.request_id = next(iter(rows), None)
