"""Variants: one scene of a preset with other parameters, the same requests arriving at the same steps or seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from itertools import product
from typing import Any

from app.parameters import Value, parse
from app.player import Part
from app.preset import Preset
from app.preset_files import PresetError
from app.text import printable
from app.words import value as shown
from app.workload import cues
from engine.config import ConfigError, EngineConfig

NAMES = tuple(f.name for f in fields(EngineConfig))
MAX_VARIANTS = 100


def variants(preset: Preset, scene: str | None, settings: Sequence[str], overrides: Mapping[str, Any]) -> list[Part]:
    """The scenes of a preset; or one scene, by default the first, with each combination of these values.

    A setting is NAME=VALUE,VALUE. Raises PresetError or ConfigError for what cannot be meant so.
    """
    if scene is not None and scene not in preset.scenes:
        raise PresetError(f"there is no scene {scene!r}; there are: {', '.join(preset.scenes)}.")
    if not settings:
        played = [preset.scenes[scene]] if scene else preset.scene
        return [Part(one.name, preset.config(one, overrides), tuple(cues(preset, one))) for one in played]
    values = dict(_setting(setting) for setting in settings)
    varied = preset.scenes[scene] if scene else preset.scene[0]
    combinations = list(product(*values.values()))
    if len(combinations) > MAX_VARIANTS:
        raise PresetError(f"these are {len(combinations):,} combinations; at most {MAX_VARIANTS} are compared.")
    script = tuple(cues(preset, varied))
    return [
        Part(
            " ".join(map(shown, combination)),
            preset.config(varied, {**overrides, **dict(zip(values, combination, strict=True))}),
            script,
        )
        for combination in combinations
    ]


def _setting(text: str) -> tuple[str, tuple[Value, ...]]:
    name, sign, listed = text.partition("=")
    name = name.strip().replace("-", "_")
    if not sign:
        raise PresetError(f"--set is NAME=VALUE,VALUE, not {text!r}.")
    if name not in NAMES:
        raise ConfigError(f"there is no parameter {printable(name)!r}; there are: {', '.join(NAMES)}.")
    values = tuple(parse(name, value.strip()) for value in listed.split(","))
    return name, tuple(dict.fromkeys(values))
