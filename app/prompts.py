"""The prompts behind the keys: short and long ones and pairs, in a fixed order, from presets/prompts.toml."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

Label = Literal["short", "long", "pair"]


@dataclass(frozen=True, slots=True)
class Prompt:
    label: Label
    text: str
    max_tokens: int


@cache
def _prompts(label: Label) -> tuple[Prompt, ...]:
    return tuple(Prompt(label, entry["text"].strip(), entry["max_tokens"]) for entry in _data()[label])


@cache
def _data() -> dict[str, Any]:
    return tomllib.loads((files("presets") / "prompts.toml").read_text(encoding="utf-8"))


def prompt(label: Label, index: int) -> Prompt:
    """Number `index` of its kind, from 0; after the last comes the first again."""
    prompts = _prompts(label)
    return prompts[index % len(prompts)]


def pair(index: int) -> tuple[Prompt, Prompt]:
    """Two prompts that begin alike, so that the second can start behind blocks of the first."""
    entries = _data()["pair"]
    entry = entries[index % len(entries)]
    first, second = (
        Prompt("pair", f"{entry['shared'].strip()}\n\n{question}", entry["max_tokens"])
        for question in entry["questions"]
    )
    return first, second
