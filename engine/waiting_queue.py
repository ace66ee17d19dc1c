"""WaitingQueue: requests that wait to be admitted, in the order that the policy gives them."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator

from engine.request import Request

Key = tuple[float, ...]
"""Where a request stands: the smallest is next."""
KeyFunction = Callable[[Request, int], Key]
"""(request, how many joined the queue before it) -> its key."""


class WaitingQueue:
    """A sorted list. Joining costs a binary search and taking the head one move, however many wait."""

    def __init__(self, key: KeyFunction) -> None:
        self._key = key
        self._num_joined = 0
        self._entries: list[tuple[Key, int, Request]] = []
        """Key, how many joined before, request; no two are alike in the first two."""

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Request]:
        """From the head on."""
        return (request for _, _, request in self._entries)

    @property
    def head(self) -> Request:
        """Who is next."""
        return self._entries[0][2]

    def push(self, request: Request) -> None:
        """Take in a request that joins the queue now."""
        insort(self._entries, (self._key(request, self._num_joined), self._num_joined, request))
        self._num_joined += 1

    def pop(self) -> Request:
        """Take the head out."""
        return self._entries.pop(0)[2]

    def remove(self, request: Request) -> None:
        """Take a request out, wherever it stands."""
        del self._entries[next(index for index, entry in enumerate(self._entries) if entry[2] is request)]

    def sort(self, key: KeyFunction) -> None:
        """Put all that wait now into another order; whoever joins later still goes by the queue's own key."""
        self._entries = sorted((key(r, joined), joined, r) for _, joined, r in self._entries)

    def set_key(self, key: KeyFunction) -> None:
        """Go by another key from now on, for those that wait already too."""
        self._key = key
        self.sort(key)
