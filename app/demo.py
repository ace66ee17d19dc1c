"""Demo: what is played on the dashboard's session, presets and runs once more, and the runs that came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.comparison.axis import AxisKind
from app.expectation import ALONE
from app.panels.narration import Programme
from app.panels.panel import Part
from app.player import Player
from app.preset import Preset
from app.results import remarks, results
from app.run import Run
from app.session import Session


@dataclass(frozen=True, slots=True)
class Comparison:
    """What is compared, with the lines that stand above it."""

    runs: Sequence[Run]
    intro: Sequence[Sequence[Part]] = ()
    title: str = "Compare"
    axis: AxisKind = "seconds"


class Demo:
    """At most one preset at a time, or none."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.player: Player | None = None
        """What plays a preset, from the first one on."""
        self.finished_runs: list[Run] = []
        """What can be compared: the scenes of the last preset, and what was played once more."""
        self._pace: float | None = None
        """The limit of steps a second that was set here last; if there is another one, a person wants it."""

    def play(self, preset: Preset, overrides: Mapping[str, Any] | None = None) -> None:
        """Play a preset from its first scene on. Raises ConfigError if the engine could not take the parameters."""
        self.player = Player(self._session, preset, overrides)
        self.finished_runs = []
        self._pace = None
        self.play_scene(0)

    def forget_preset(self) -> None:
        """Play none any more."""
        self.player = None

    def leave(self) -> None:
        """Begin anew without a preset, with an empty engine and the parameters of the program's start."""
        self.forget_preset()
        self._session.begin(self._session.options.config)
        self._go_on()
        self._session.set_speed(0.0)

    def play_scene(self, index: int) -> None:
        """Play a scene of the preset from its start."""
        assert self.player is not None
        self.player.play(index)
        self._go_on()
        if self._pace is None or self._session.speed == self._pace:
            is_alone = self.player.part.name == ALONE  # that one is for comparison: nobody has to follow it
            self._pace = 0.0 if is_alone else self.player.preset.speed
            self._session.set_speed(self._pace)

    def play_next_scene(self) -> None:
        """If the last one is over and there is another."""
        if self.player and self.is_between_scenes:
            self.play_scene(self.player.index + 1)

    @property
    def is_between_scenes(self) -> bool:
        """A scene is over, and it was not the last."""
        return self.player is not None and self.player.is_over and not self.player.is_last

    def play_once_more(self) -> None:
        """The same requests at the same steps, under the parameters of now; both runs can then be compared.

        Raises ValueError, with the reason, if that cannot be.
        """
        session = self._session
        cues = session.as_script()
        if not cues:
            raise ValueError("nobody was served yet")
        if session.is_busy or (session.run is not None and not session.script_ended):
            raise ValueError("it has not come to its end yet")
        # What was sent by hand behind a script is a part of what is played once more.
        first = Run(session.run.name if session.run else "run 1", session.history.traces())
        first.was_held = session.was_held
        first.was_touched = session.was_touched and session.run is not None
        self._finish(first)
        self.player = None
        session.begin(session.parameters.expected, cues, Run(f"run {len(self.finished_runs) + 1}"))
        self._go_on()

    def _go_on(self) -> None:
        if self._session.paused:
            self._session.set_paused(False)

    def note_end(self) -> Run | None:
        """The run that has come to its end since the last look."""
        run = self._session.run
        if run is None or not self._session.script_ended:
            return None
        is_new = self.player.look() if self.player else run not in self.finished_runs
        if is_new and run.name != ALONE:
            self._finish(run)
        return run if is_new else None

    def _finish(self, run: Run) -> None:
        """Keep it, in the place of one with the same name."""
        names = [finished.name for finished in self.finished_runs]
        place = names.index(run.name) if run.name in names else len(names)
        self.finished_runs[place : place + 1] = [run]

    def programme(self, keys: Mapping[str, str]) -> Programme | None:
        """Where the preset is; `keys` are what the screen calls the keys of the commands."""
        player, ready = self.player, self._session.ready
        if player is None:
            return Programme(ready.preset, (ready.scene,), 0) if ready and ready.recorded and ready.preset else None
        hint = ""
        if self.is_between_scenes:
            soon = "" if self._session.paused else ", which comes by itself"
            hint = f"over · {keys['pause']} plays the next{soon}"
        elif player.is_over:
            hint = f"done · {keys['compare']} shows what came of it"
        elif self._session.paused:
            hint = f"{keys['pause']} goes on"
        return Programme(player.preset.title, tuple(part.name for part in player.parts), player.index, hint)

    def comparison(self) -> Comparison:
        """The finished runs, and of a preset what came of it."""
        runs = self.finished_runs
        axis: AxisKind = "steps" if any(run.was_held for run in runs) else "seconds"
        if self.player is None:
            return Comparison(runs, remarks(runs), axis=axis)
        preset = self.player.preset
        return Comparison(runs, results(preset.moral, self.player.verdicts(), runs), preset.title, axis)
