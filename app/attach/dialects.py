"""Which kind of server wrote a /metrics text: each has names of its own, and one small module that reads them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from app.attach import llama_cpp, sglang, vllm
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


VLLM = Dialect("vLLM", vllm.PREFIX, vllm.NAMES, vllm.read, is_tested=True)
SGLANG = Dialect("SGLang", sglang.PREFIX, sglang.NAMES, sglang.read, is_tested=False)
LLAMA_CPP = Dialect("llama.cpp", llama_cpp.PREFIX, llama_cpp.NAMES, llama_cpp.read, is_tested=False)


def dialect_of(text: str) -> Dialect | None:
    """The one that a /metrics text is written in; None if it is none of these."""
    lines = text.split("\n")
    return next((one for one in (VLLM, SGLANG, LLAMA_CPP) if any(line.startswith(one.prefix) for line in lines)), None)
