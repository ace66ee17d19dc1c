"""The commands that open the dashboard: `nanoviz` itself, `nanoviz play` and `nanoviz replay`."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic import Field

from app.history import MAX_STEPS
from app.preset_files import PresetError
from app.settings import CommandSettings, expanded, key_table
from app.subcommands.on_presets import started
from app.subcommands.serve import Serving, port_number
from engine.config import ConfigError, EngineConfig

if TYPE_CHECKING:
    from app.preset import Preset
    from app.protocol import EngineOptions
    from app.session import Start


class Display(CommandSettings):
    """How the dashboard looks, and what it remembers."""

    history_steps: int = Field(MAX_STEPS, ge=100, description="steps one can go back; each takes a few kilobytes")
    theme: str = Field("dark", description="dark, light, or one of Textual's themes, such as nord or ansi-dark")
    ascii: bool = Field(False, description="draw with ASCII signs only, as on the Linux console in any case")

    def show(
        self,
        options: EngineOptions,
        start: Start,
        *,
        preset: Preset | None = None,
        overrides: Mapping[str, Any] | None = None,
        address: str = "",
    ) -> int:
        """Open the dashboard on what `start` starts, and play a preset on it if there is one; returns the exit code.

        `address` is where clients reach the engine, if it is served.
        """
        from app.dashboard import Dashboard
        from app.keys import rebound
        from app.looks import theme_name

        commands = rebound(*key_table())
        theme = theme_name(self.theme)
        ascii = self.ascii or os.environ.get("TERM") == "linux"
        # Textual reads keys from standard input, draws on standard error, and takes the size from standard output.
        if not all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
            raise ConfigError(
                "the dashboard needs a terminal; `nanoviz run`, `nanoviz play --headless`, `nanoviz compare` and "
                "`nanoviz export` work without one."
            )
        if "utf" not in sys.stderr.encoding.lower() and not ascii:
            raise ConfigError(
                f"the terminal's encoding is {sys.stderr.encoding}; the dashboard needs UTF-8 (see LANG), or --ascii."
            )
        dashboard = Dashboard(
            options,
            start,
            commands=commands,
            history_steps=self.history_steps,
            theme=theme,
            ascii=ascii,
            address=address,
        )
        if preset:
            dashboard.play(preset, overrides or {})
        try:
            return dashboard.run() or dashboard.return_code or 0
        finally:
            dashboard.session.close()


class Watch(Display, Serving):
    """Watch a real LLM inference engine think.

    Opens the dashboard. Other commands: `nanoviz presets` lists demos and `nanoviz play` plays one, `nanoviz replay`
    plays a recording, `nanoviz attach` watches a running vLLM server, `nanoviz compare` shows several runs side by
    side, `nanoviz export` makes files for other programs, `nanoviz serve` answers OpenAI's clients, `nanoviz run`
    answers prompts and prints traces, `nanoviz verify` compares the engine with transformers, `nanoviz bench`
    measures, `nanoviz config` shows the settings; each has its own --help.
    Every parameter can also be set as NANOVIZ_NAME in the environment or as name = value in the settings file; a flag
    wins over a variable, a variable over the file. Keys are bound in the file.
    """

    @classmethod
    def add_arguments(cls, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--record",
            type=expanded,
            metavar="FILE",
            help="write all steps to a new file, to be replayed; each further run to FILE-2 and so on",
        )
        parser.add_argument(
            "--serve",
            type=port_number,
            metavar="PORT",
            help="let OpenAI's clients reach the engine as well; 0: any free port",
        )
        cls.add_preset(parser)

    @classmethod
    def add_preset(cls, parser: ArgumentParser) -> None:
        parser.add_argument("--preset", metavar="NAME", help="play this demo; `nanoviz presets` lists them")

    def execute(self, arguments: Namespace) -> int:
        if arguments.preset is None:
            config = self.engine_config()
            config.validate()
            show = partial(self.show, self.options(self.model, config))
        else:
            from app.preset_files import find, load

            preset, overrides = load(find(arguments.preset)), self.parameter_flags(arguments)
            config = preset.config(preset.scene[0], overrides)
            options = self.options(self.model_for(preset, arguments), config)
            show = partial(self.show, options, preset=preset, overrides=overrides)
        with self.served(arguments.serve) as (serve, address), started(arguments.record, serve) as start:
            return show(start, address=address)


class Play(Watch):
    """Play a preset: a workload with what to watch in it, and what must be true afterwards.

    Opens the dashboard, as `nanoviz --preset NAME` does; with --headless it plays without one, as fast as it goes, and
    the exit code is 1 if an expectation fails. Parameters that are given as flags hold in every scene; the model is
    the preset's own unless another one is asked for.
    """

    @classmethod
    def add_preset(cls, parser: ArgumentParser) -> None:
        parser.add_argument("preset", metavar="NAME", help="a preset's name or number, or the path of its file")
        parser.add_argument("--headless", action="store_true", help="without a dashboard")
        parser.add_argument("--trace", action="store_true", help="with --headless, print a line for each step")
        cls.add_runs(parser, "with --headless, ")

    def execute(self, arguments: Namespace) -> int:
        if not arguments.headless:
            if arguments.trace or arguments.runs > 1:
                raise PresetError("--trace and --runs go with --headless.")
            return super().execute(arguments)
        if arguments.serve is not None:
            raise PresetError("--serve goes with the dashboard.")
        from app import play_command
        from app.player import parts
        from app.preset_files import find, load

        preset, overrides = load(find(arguments.preset)), self.parameter_flags(arguments)
        scenes = parts(preset, overrides)
        model = self.options(self.model_for(preset, arguments), scenes[0].config).model
        play_command.begin(preset, model, overrides)
        teller = play_command.Teller(trace=arguments.trace)
        runs = self.played(preset, scenes, arguments, teller.tell, arguments.record)
        return 0 if play_command.end(preset, scenes, runs) else 1


class Replay(Display):
    """Play a recording that `nanoviz --record FILE` has made, in the same dashboard; no model is needed."""

    @classmethod
    def add_arguments(cls, parser: ArgumentParser) -> None:
        parser.add_argument("file", type=expanded, metavar="FILE", help="the recording")
        parser.add_argument(
            "--step", type=int, help="stand at this one first; the others can be gone to, and space goes on"
        )

    def execute(self, arguments: Namespace) -> int:
        from app import replay
        from app.protocol import EngineOptions
        from app.recording import Recording

        recording = Recording(arguments.file)
        config = recording.traces[0].config if recording.traces else EngineConfig()
        engine = recording.header.engine
        options = EngineOptions(engine.model, "auto", "cpu", 1, config, engine.server)
        return self.show(options, lambda _: replay.Replay(recording, arguments.step))
