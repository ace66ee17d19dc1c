"""What loading a model tells whoever waits for it: how far it is, or why it cannot be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


class ModelError(RuntimeError):
    """A model that cannot be had or run; the text is one clear sentence for a person."""


@dataclass(frozen=True, slots=True)
class Progress:
    """`done` of `total` (in any unit) where there is a measure, else only what is going on."""

    what: str
    done: int = 0
    total: int = 0


def one_line(error: BaseException, length: int = 300) -> str:
    """What an error says, as the end of a sentence; its type if it says nothing."""
    return " ".join(str(error).split())[:length] or type(error).__name__


Report = Callable[[Progress], None]
