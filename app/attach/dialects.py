"""Which kind of server wrote a /metrics text: each has names of its own, and one small module that reads them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from app.attach import vllm
from app.attach.metrics import Readings, Sample


@dataclass(frozen=True, slots=True)
class Dialect:
    """One kind of server, as far as its metrics go."""

    kind: str
    prefix: str
    """All of its metrics' names begin so."""
    names: tuple[str, ...]
    """Beginnings of those that are read."""
    read: Callable[[Readings], Sample]
    is_tested: bool
    """Whether this was tried with such a server, or only follows its documentation and source."""


DIALECTS = (Dialect("vLLM", vllm.PREFIX, vllm.NAMES, vllm.read, True),)


def dialect_of(text: str) -> Dialect | None:
    """The one that a /metrics text is written in; None if it is none of these."""
    lines = text.splitlines()
    return next((one for one in DIALECTS if any(line.startswith(one.prefix) for line in lines)), None)
