"""Variants: one scene of a preset with other parameters, the same requests arriving at the same steps or seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from itertools import product
from typing import Any

from app.parameters import Value, parse
from app.player import Part, part_of
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
        return [part_of(preset, one, overrides) for one in played]
    values: dict[str, tuple[Value, ...]] = {}
    for name, listed in map(_setting, settings):
        if name in values:
            raise PresetError(
                f"--set names {name} twice; its values stand behind each other, with commas between them."
            )
        values[name] = listed
    varied = preset.scenes[scene] if scene else preset.scene[0]
    combinations = list(product(*values.values()))
    if len(combinations) > MAX_VARIANTS:
        raise PresetError(f"these are {len(combinations):,} combinations; at most {MAX_VARIANTS} are compared.")
    script = tuple(cues(preset, varied, {**overrides, **values}))
    made = []
    for combination in combinations:
        held = {**overrides, **dict(zip(values, combination, strict=True))}
        preset.check_changes(varied, held)
        made.append(Part(" ".join(map(_name, combination)), preset.config(varied, held), script))
    return made


def _name(value: Value) -> str:
    """A value in the name of a variant: short, but no two alike."""
    return repr(value) if isinstance(value, float) and float(shown(value)) != value else shown(value)


def _setting(text: str) -> tuple[str, tuple[Value, ...]]:
    name, sign, listed = text.partition("=")
    name = name.strip().replace("-", "_")
    if not sign:
        raise PresetError(f"--set is NAME=VALUE,VALUE, not {text!r}.")
    if name not in NAMES:
        raise ConfigError(f"there is no parameter {printable(name)!r}; there are: {', '.join(NAMES)}.")
    values = tuple(parse(name, value.strip()) for value in listed.split(","))
    return name, tuple(dict.fromkeys(values))
