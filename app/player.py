"""Player: plays a preset on a session, scene after scene, and keeps what came of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.expectation import ALONE, Verdict
from app.preset import Preset, Scene
from app.protocol import Cue
from app.run import Run
from app.session import Session
from app.workload import alone_config, alone_cues, cues, outputs
from engine.config import EngineConfig


@dataclass(frozen=True, slots=True)
class Part:
    """A scene, ready to be played."""

    name: str
    config: EngineConfig
    cues: tuple[Cue, ...]


def part_of(preset: Preset, scene: Scene, overrides: Mapping[str, Any]) -> Part:
    """A scene, ready to be played. Raises ConfigError."""
    preset.check_changes(scene, overrides)
    return Part(scene.name, preset.config(scene, overrides), tuple(cues(preset, scene, overrides)))


def parts(preset: Preset, overrides: Mapping[str, Any]) -> tuple[Part, ...]:
    """The scenes of a preset, with other parameters if somebody wants them so.

    If outputs are to be compared with those of each request alone, that is the last one. Raises ConfigError.
    """
    made = [part_of(preset, scene, overrides) for scene in preset.scene]
    if any(expectation.needs_alone for expectation in preset.expectations):
        roomiest = max((part.config for part in made), key=lambda config: config.max_model_len)
        made.append(Part(ALONE, alone_config(roomiest), tuple(alone_cues(preset))))
    return tuple(made)


class Player:
    """One preset on one session. `overrides` are parameters that hold in every scene, whatever the preset says."""

    def __init__(self, session: Session, preset: Preset, overrides: Mapping[str, Any] | None = None) -> None:
        self._session = session
        self.preset = preset
        self.parts = parts(preset, overrides or {})
        self.index = 0
        """The part that is being played, or was played last."""
        self.is_over = False
        """It has come to its end."""
        self.runs: dict[str, Run] = {}
        """Of the parts that were played to their ends, by name."""

    @property
    def part(self) -> Part:
        return self.parts[self.index]

    @property
    def is_last(self) -> bool:
        return self.index == len(self.parts) - 1

    def play(self, index: int) -> None:
        """Begin a part, from its start."""
        self.index, self.is_over = index, False
        self._session.begin(self.part.config, self.part.cues, Run(self.part.name), self.preset.title)

    def look(self) -> bool:
        """Keep the run if it has come to its end; True the first time that it has."""
        session = self._session
        if self.is_over or not session.script_ended or session.run is None:
            return False
        self.is_over = True
        self.runs[self.part.name] = session.run
        return True

    def verdicts(self) -> list[Verdict]:
        """What became of the preset's expectations, so far."""
        return verdicts(self.preset, self.parts, self.runs)


def verdicts(preset: Preset, parts: tuple[Part, ...], runs: Mapping[str, Run]) -> list[Verdict]:
    """What these runs say about a preset's expectations."""
    said = {part.name: outputs(runs[part.name], part.cues) for part in parts if part.name in runs}
    names = list(preset.scenes)
    return [expectation.verdict(runs, names, said) for expectation in preset.expectations]
