"""What the parts of `nanoviz bench` have in common: results come one by one, as lines or as JSON, with the machine."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from pathlib import Path
from typing import Protocol

import msgspec

from app.settings import num_cores

PACKAGES = ("nanoviz", "torch", "transformers", "textual")
MAX_SPREAD = 1.25
"""How much longer the slowest of some repetitions may take than the fastest before a warning."""


class Result(Protocol):
    """A struct of what was measured."""

    def lines(self) -> Iterable[str]:
        """The same for people."""
        ...


class Heading(msgspec.Struct, frozen=True):
    """What stands above results that come one by one; they need none as JSON."""

    text: str

    def lines(self) -> Iterable[str]:
        yield self.text


class Machine(msgspec.Struct, frozen=True):
    """Where something was measured."""

    processor: str
    cores: int
    """That this process may use."""
    python: str
    versions: dict[str, str]

    def lines(self) -> Iterable[str]:
        packages = ", ".join(f"{package} {number}" for package, number in self.versions.items())
        yield f"{self.processor}, {self.cores} cores; Python {self.python}, {packages}"


def this_machine() -> Machine:
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:  # its modules can be imported all the same
            versions[package] = "?"
    return Machine(_processor(), num_cores(), platform.python_version(), versions)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def print_results(results: Iterable[Result], *, json: bool) -> None:
    """Print each result as it comes; or, in the end, the machine and all results as one JSON object."""
    machine = this_machine()
    if json:
        found = [result for result in results if not isinstance(result, Heading)]
        print(msgspec.json.encode({"machine": machine, "results": found}).decode())
        return
    for result in chain([machine], results):
        for line in result.lines():
            print(line, flush=True)
