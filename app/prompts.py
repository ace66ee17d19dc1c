"""The prompts behind the keys: short and long ones, in a fixed order, from presets/prompts.toml."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal

Label = Literal["short", "long"]


@dataclass(frozen=True, slots=True)
class Prompt:
    label: Label
    text: str
    max_tokens: int


@cache
def _prompts(label: Label) -> tuple[Prompt, ...]:
    data = tomllib.loads((files("presets") / "prompts.toml").read_text(encoding="utf-8"))
    return tuple(Prompt(label, entry["text"].strip(), entry["max_tokens"]) for entry in data[label])


def prompt(label: Label, index: int) -> Prompt:
    """Number `index` of its kind, from 0; after the last comes the first again."""
    prompts = _prompts(label)
    return prompts[index % len(prompts)]
