"""What all commands share that play presets."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.headless import clear_report, report
from app.preset_files import PresetError
from app.settings import Settings
from app.text import printable
from engine.config import ConfigError, EngineConfig
from engine.locate import locate

if TYPE_CHECKING:
    from app.player import Part
    from app.preset import Preset
    from app.protocol import EngineOptions
    from app.run import Run as CompletedRun
    from app.session import Start
    from app.stage import Watch as Watcher


class OnPresets(Settings):
    """What all commands share that play presets."""

    def options(self, model: str, config: EngineConfig) -> EngineOptions:
        """What the engine's process is told. Raises ModelError if there can be no such model."""
        from app.protocol import EngineOptions

        locate(model)
        return EngineOptions(model, self.dtype, self.device, self.num_threads(), config)

    def model_for(self, preset: Preset, arguments: Namespace) -> str:
        """The model that was given as a flag, or the one that the preset was written for."""
        model: str = self.model if "model" in vars(arguments) else preset.model
        if preset.needs_text and model == "tiny":
            raise ConfigError(f"this preset needs a model that writes text, not tiny; use --model {preset.model}.")
        return model

    def parameter_flags(self, arguments: Namespace) -> dict[str, Any]:
        """The engine's parameters that were given as flags: they hold in every scene of a preset."""
        given = vars(arguments)
        return {f.name: getattr(self, f.name) for f in fields(EngineConfig) if f.name in given}

    @classmethod
    def add_runs(cls, parser: ArgumentParser, when: str = "") -> None:
        parser.add_argument(
            "--runs",
            type=positive,
            default=1,
            metavar="N",
            help=f"{when}play all scenes so often, in turns; what is measured are medians",
        )

    def refuse_flags(self, arguments: Namespace) -> None:
        """Raise PresetError for what only goes with a preset, where none is played."""
        given = [name for name in ("scene", "set") if getattr(arguments, name, None)]
        given += ["runs"] if getattr(arguments, "runs", 1) > 1 else []
        given += [name for name in Settings.model_fields if name in vars(arguments)]
        if given:
            flag = f"--{given[0].replace('_', '-')}"
            raise PresetError(f"{flag} goes with a preset; a recording is as it is.")

    def played(
        self,
        preset: Preset,
        parts: Sequence[Part],
        arguments: Namespace,
        watch: Watcher | None = None,
        record: Path | None = None,
    ) -> list[CompletedRun]:
        """Play these scenes of a preset without a screen, as fast as it goes."""
        from app.stage import play_all

        options = self.options(self.model_for(preset, arguments), parts[0].config)
        with started(record) as start:
            runs = play_all(options, preset.title, parts, arguments.runs, report, start, watch)
        clear_report()
        return list(runs.values())


@contextmanager
def started(record: Path | None, start: Start | None = None) -> Iterator[Start]:
    """What starts an engine, by default a process of our own; its runs go into `record` and others of this name."""
    from app.engine_process import EngineProcess

    begin = start or EngineProcess
    if record is None:
        yield begin
        return
    from app.recorded import Recorded, Recordings

    recordings = Recordings(record)
    try:
        yield lambda options: Recorded(begin(options), recordings)
    finally:
        recordings.close()
        for path in recordings.written:
            print(f"Wrote {printable(str(path))}")


def positive(text: str) -> int:
    """A whole number from 1 on, for an argument."""
    number = int(text)
    if number < 1:
        raise ValueError
    return number
