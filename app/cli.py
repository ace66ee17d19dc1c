"""The command line: `nanoviz`, `nanoviz play` and `nanoviz replay` open the dashboard; the other commands do not."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from argparse import RawDescriptionHelpFormatter as RawDescription
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import partial
from importlib.metadata import version
from inspect import cleandoc
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import Field, ValidationError
from pydantic_settings import CliSettingsSource, SettingsError

from app.export import FORMATS, ExportError, Material, base_name, files, material, text_file, write_all
from app.headless import clear_report, report
from app.history import MAX_STEPS
from app.preset_files import PresetError
from app.recording import RecordingError
from app.settings import CommandSettings, Settings, SettingsMistake, expanded, key_table, settings_place
from app.text import printable
from engine.config import ConfigError, EngineConfig
from engine.locate import locate
from engine.progress import ModelError
from engine.request import RequestError, SamplingParams

if TYPE_CHECKING:
    from app.player import Part
    from app.preset import Preset
    from app.protocol import EngineOptions
    from app.run import Run as CompletedRun
    from app.session import Start
    from app.stage import Watch as Watcher

MISUSE = 2
MISTAKES = (
    ConfigError,
    ExportError,
    ModelError,
    PresetError,
    RecordingError,
    RequestError,
    SettingsError,
    SettingsMistake,
)
"""Their texts are sentences for people."""


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
    ) -> int:
        """Open the dashboard on what `start` starts, and play a preset on it if there is one; returns the exit code."""
        from app.dashboard import Dashboard
        from app.keys import rebound
        from app.looks import theme_name

        commands = rebound(*key_table())
        theme = theme_name(self.theme)
        ascii = self.ascii or os.environ.get("TERM") == "linux"
        # Textual reads keys from standard input, draws on standard error, and takes the size from standard output.
        if not all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
            raise ConfigError("the dashboard needs a terminal; `nanoviz run` works without one.")
        if "utf" not in sys.stderr.encoding.lower() and not ascii:
            raise ConfigError(
                f"the terminal's encoding is {sys.stderr.encoding}; the dashboard needs UTF-8 (see LANG), or --ascii."
            )
        dashboard = Dashboard(
            options, start, commands=commands, history_steps=self.history_steps, theme=theme, ascii=ascii
        )
        if preset:
            dashboard.play(preset, overrides or {})
        try:
            return dashboard.run() or dashboard.return_code or 0
        finally:
            dashboard.session.close()


class OnPresets(Settings):
    """What all commands share that play presets."""

    def options(self, model: str, config: EngineConfig) -> EngineOptions:
        """What the engine's process is told. Raises ModelError if there can be no such model."""
        from app.protocol import EngineOptions

        locate(model)
        return EngineOptions(model, self.dtype, self.device, self.num_threads(), config)

    def model_for(self, preset: Preset) -> str:
        """The model that somebody has asked for, or the one that the preset was written for."""
        model = self.model if "model" in self.model_fields_set else preset.model
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

    def played(
        self, preset: Preset, parts: Sequence[Part], num_runs: int, watch: Watcher | None = None
    ) -> list[CompletedRun]:
        """Play these scenes of a preset without a screen, as fast as it goes."""
        from app.engine_process import EngineProcess
        from app.stage import play_all

        options = self.options(self.model_for(preset), parts[0].config)
        return list(play_all(options, parts, num_runs, report, EngineProcess, watch).values())


class Watch(Display, OnPresets):
    """Watch a real LLM inference engine think.

    Opens the dashboard. Other commands: `nanoviz presets` lists demos and `nanoviz play` plays one, `nanoviz replay`
    plays a recording, `nanoviz compare` shows several runs side by side, `nanoviz export` makes files for other
    programs, `nanoviz run` answers prompts and prints traces, `nanoviz verify` compares the engine with transformers,
    `nanoviz bench` measures, `nanoviz config` shows the settings; each has its own --help.
    Every parameter can also be set as NANOVIZ_NAME in the environment or as name = value in the settings file; a flag
    wins over a variable, a variable over the file. Keys are bound in the file.
    """

    @classmethod
    def add_arguments(cls, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--record", type=expanded, metavar="FILE", help="write all steps to a new file, to be replayed"
        )
        cls.add_preset(parser)

    @classmethod
    def add_preset(cls, parser: ArgumentParser) -> None:
        parser.add_argument("--preset", metavar="NAME", help="play this demo; `nanoviz presets` lists them")

    def execute(self, arguments: Namespace) -> int:
        from app.engine_process import EngineProcess

        if arguments.preset is None:
            config = self.engine_config()
            config.validate()
            show = partial(self.show, self.options(self.model, config))
        else:
            from app.preset_files import find, load

            preset, overrides = load(find(arguments.preset)), self.parameter_flags(arguments)
            config = preset.config(preset.scene[0], overrides)
            show = partial(self.show, self.options(self.model_for(preset), config), preset=preset, overrides=overrides)
        if arguments.record is None:
            return show(EngineProcess)
        from app.recorded_engine import RecordedEngine
        from app.recording import Recorder

        recorder = Recorder(arguments.record)
        try:
            return show(partial(RecordedEngine, recorder=recorder))
        finally:
            recorder.close()


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
        if arguments.record is not None:
            raise PresetError("--record goes with the dashboard, and not with --headless.")
        from app import play_command
        from app.player import parts
        from app.preset_files import find, load

        preset, overrides = load(find(arguments.preset)), self.parameter_flags(arguments)
        scenes = parts(preset, overrides)
        play_command.begin(preset, self.model_for(preset), overrides)
        teller = play_command.Teller(trace=arguments.trace)
        runs = self.played(preset, scenes, arguments.runs, teller.tell)
        return 0 if play_command.end(preset, scenes, runs) else 1


class Presets(CommandSettings):
    """List the presets, with what each of them shows; with a name, tell all about one."""

    @classmethod
    def add_arguments(cls, parser: ArgumentParser) -> None:
        parser.add_argument("preset", nargs="?", metavar="NAME", help="the preset to tell about")

    def execute(self, arguments: Namespace) -> int:
        from app import play_command

        if arguments.preset is None:
            play_command.list_presets()
        else:
            play_command.describe(arguments.preset)
        return 0


def positive(text: str) -> int:
    """A whole number from 1 on, for an argument."""
    number = int(text)
    if number < 1:
        raise ValueError
    return number


class Replay(Display):
    """Play a recording that `nanoviz --record FILE` has made, in the same dashboard; no model is needed."""

    @classmethod
    def add_arguments(cls, parser: ArgumentParser) -> None:
        parser.add_argument("file", type=expanded, metavar="FILE", help="the recording")
        parser.add_argument(
            "--step", type=int, default=0, help="begin with this one; those before it can be gone back to"
        )

    def execute(self, arguments: Namespace) -> int:
        from app import replay
        from app.protocol import EngineOptions
        from app.recording import Recording

        recording = Recording(arguments.file)
        config = recording.traces[0].config if recording.traces else EngineConfig()
        options = EngineOptions(recording.header.engine.model, "auto", "cpu", 1, config)
        return self.show(options, lambda _: replay.Replay(recording, arguments.step))


class Compare(OnPresets):
    """Compare runs: their figures, and their timelines on one axis.

    RUN is a preset, whose scenes are played on the same arrivals one after another; with --set, one of its scenes is
    played with each of these values instead. Or it is recordings of `nanoviz --record FILE`, as many as there are.
    --json and --csv print all metrics that there are, for programs.
    """

    @classmethod
    def add_arguments(cls, parser: ArgumentParser) -> None:
        parser.add_argument("compared", nargs="+", metavar="RUN", help="a preset, or recordings")
        parser.add_argument(
            "--set",
            action="append",
            default=[],
            metavar="NAME=VALUE,VALUE",
            help="play it with each of these values of a parameter; given again, with each combination",
        )
        parser.add_argument("--scene", metavar="NAME", help="the scene that --set changes, by default the first")
        cls.add_runs(parser)
        parser.add_argument(
            "--axis", choices=["seconds", "steps"], default="seconds", help="what the timelines stand on (seconds)"
        )
        output = parser.add_mutually_exclusive_group()
        output.add_argument("--json", action="store_true", help="print one object with all metrics of each run")
        output.add_argument("--csv", action="store_true", help="print a row with all metrics for each run")

    def execute(self, arguments: Namespace) -> int:
        from app import compare_command

        runs = self._runs(arguments)
        if arguments.json:
            compare_command.print_json(runs)
        elif arguments.csv:
            compare_command.print_csv(runs)
        else:
            compare_command.print_comparison(runs, arguments.axis)
        return 0

    def _runs(self, arguments: Namespace) -> Sequence[CompletedRun]:
        from app import compare_command
        from app.preset_files import find, is_preset, load
        from app.variants import variants

        first, *others = arguments.compared
        if not is_preset(first):
            if arguments.set or arguments.scene:
                raise PresetError(f"--set and --scene go with a preset; {first!r} is none.")
            return compare_command.recorded_runs([expanded(name) for name in arguments.compared])
        path = find(first)
        if others:
            raise PresetError(f"{first} is a preset: compare its scenes, or one scene with --set, or recordings alone.")
        preset, overrides = load(path), self.parameter_flags(arguments)
        return self.played(preset, variants(preset, arguments.scene, arguments.set, overrides), arguments.runs)


class Export(Display):
    """Turn a recording that `nanoviz --record FILE` has made into files for other programs; no model is needed.

    They go into the current folder under the recording's name, or to what --to names, and never over a file. Of a
    damaged recording what stands before the damage is exported. The settings of the dashboard hold for svg.
    """

    @classmethod
    def add_arguments(cls, parser: ArgumentParser) -> None:
        parser.add_argument("file", type=expanded, metavar="FILE", help="the recording")
        parser.add_argument(
            "--as",
            dest="format",
            required=True,
            choices=list(FORMATS),
            help="; ".join(f"{name}: {format.help}" for name, format in FORMATS.items()),
        )
        parser.add_argument(
            "--to",
            type=expanded,
            metavar="PATH",
            help="the file to write; for csv, what the names of the two begin with",
        )
        parser.add_argument("--step", type=int, metavar="N", help="svg: the step to show, by default the last")
        parser.add_argument("--size", metavar="120x40", help="svg: columns and rows of the screen")

    def execute(self, arguments: Namespace) -> int:
        if arguments.format != "svg" and (arguments.step is not None or arguments.size is not None):
            raise ExportError("--step and --size go with --as svg.")
        source = material(arguments.file)
        if source.damage:
            print(f"nanoviz: {printable(source.damage)}; what stands before is exported.", file=sys.stderr)
        target = arguments.to or Path(base_name(arguments.file) + FORMATS[arguments.format].ending)
        if arguments.format == "svg":
            wanted = {target: text_file(self._picture(source, arguments))}
        else:
            wanted = files(arguments.format, target, source)
        write_all(wanted)
        for path in wanted:
            print(f"Wrote {printable(str(path))}")
        return 0

    def _picture(self, source: Material, arguments: Namespace) -> str:
        from app.keys import rebound
        from app.looks import theme_name
        from app.picture import SIZE, parse_size, picture

        return picture(
            source,
            arguments.step,
            parse_size(arguments.size) if arguments.size else SIZE,
            commands=rebound(*key_table()),
            history_steps=self.history_steps,
            theme=theme_name(self.theme),
            ascii=self.ascii,
        )


class Run(Settings):
    """Answer prompts, all together, and print the outputs; without a prompt, read one from standard input."""

    max_tokens: int = Field(64, description="most output tokens of each")
    temperature: float = Field(0.0, description="0 is greedy")
    top_p: float = Field(1.0, description="draw only from the likeliest tokens that make up this much")
    top_k: int = Field(0, description="draw only from so many of the likeliest tokens; 0 is all")
    seed: int | None = Field(None, description="makes sampling repeatable")
    ignore_eos: bool = Field(False, description="go on to max_tokens whatever the model says")

    @classmethod
    def add_arguments(cls, parser: ArgumentParser) -> None:
        """What is said anew in each call. Prompts and stop strings are text, whatever commas or brackets they hold."""
        parser.add_argument("prompts", nargs="*", metavar="PROMPT", help="what to ask; several are served together")
        parser.add_argument(
            "--stop", action="append", default=[], help="a text that ends the output; may be given again"
        )
        parser.add_argument("--raw", action="store_true", help="take prompts as they are, without a chat template")
        output = parser.add_mutually_exclusive_group()
        output.add_argument("--trace", action="store_true", help="print a table with a line for each step")
        output.add_argument("--json", action="store_true", help="print one trace a line, as JSON, and nothing else")

    def execute(self, arguments: Namespace) -> int:
        from app import headless

        params = SamplingParams(
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            seed=self.seed,
            stop=tuple(arguments.stop),
            ignore_eos=self.ignore_eos,
        )
        headless.run(
            arguments.prompts or [headless.read_prompt()],
            params,
            self.engine_config(),
            model=self.model,
            dtype=self.dtype,
            device=self.device,
            threads=self.num_threads(),
            chat=not arguments.raw,
            trace=arguments.trace,
            json=arguments.json,
        )
        return 0


class Verify(Settings):
    """Serve six chat requests under three configurations and compare each output with transformers alone.

    Exit code 1 if any differs.
    """

    def execute(self, arguments: Namespace) -> int:
        from app import headless

        same = headless.verify(
            self.engine_config(), model=self.model, dtype=self.dtype, device=self.device, threads=self.num_threads()
        )
        return 0 if same else 1


class Bench(Settings):
    """Measure a part of nanoviz on this machine.

    scheduler: microseconds that the decision of a step takes, with growing numbers of running and waiting requests and
    no model; the policy and the other parameters that are no sizes are those of the settings.

    ui: what the dashboard costs, in three minutes: from a key to its frame, bytes a frame, CPU and memory on a fast and
    on a slow terminal, idle and paused, and by how much it slows the engine down, with the model tiny and with that of
    the settings.

    soak: a hundred thousand steps of the model tiny under a random load, in half an hour or more: whether memory keeps
    growing, blocks leak, or the history is wrong at one of its ends; exit code 1 if so.
    """

    @classmethod
    def add_arguments(cls, parser: ArgumentParser) -> None:
        parser.add_argument("part", choices=["scheduler", "ui", "soak"], help="what to measure")

    def execute(self, arguments: Namespace) -> int:
        from app.protocol import EngineOptions

        config = self.engine_config()
        options = EngineOptions(self.model, self.dtype, self.device, self.num_threads(), config)
        if arguments.part == "scheduler":
            from app import headless

            headless.bench_scheduler(config)
            return 0
        config.validate()
        if arguments.part == "soak":
            from app.bench_soak import soak

            return 0 if soak(options) else 1
        from app.bench_ui import bench_ui

        locate(self.model)
        bench_ui(options)
        return 0


class Config(Watch, Run):
    """Print the settings in force, and where each comes from: a flag, a variable, the settings file or its default.

    With flags of the dashboard or of `nanoviz run` it prints what these would make of the settings.
    """

    @classmethod
    def add_arguments(cls, parser: ArgumentParser) -> None:
        parser.add_argument("--init", action="store_true", help="write a settings file that explains every setting")
        parser.add_argument(
            "--path",
            nargs="?",
            const="",
            metavar="FILE",
            help="with --init, the file to write; alone, print where the settings file is, or would be",
        )

    @classmethod
    def execute_without_settings(cls, arguments: Namespace) -> int | None:
        if not arguments.init and arguments.path is None:
            return None
        if not arguments.init and arguments.path:
            raise SettingsMistake("--path FILE goes with --init; NANOVIZ_CONFIG=FILE chooses the file that is read.")
        path = expanded(arguments.path) if arguments.path else settings_place()
        if arguments.init:
            from app import config_command

            config_command.write(path, cls.sections(), cls.model_fields)
            print(f"Wrote {printable(str(path))}")
        else:
            print(path)
        return 0

    @classmethod
    def sections(cls) -> list[tuple[str, list[str]]]:
        """All settings under headings: the dashboard's, then what each of the other commands adds."""
        sections = [("", list(Watch.model_fields))]
        for name, command in COMMANDS.items():
            known = {field for _, names in sections for field in names}
            if own := [field for field in command.model_fields if field not in known]:
                sections.append((f"only nanoviz {name}", own))
        return sections

    def execute(self, arguments: Namespace) -> int:
        from app import config_command
        from app.settings import origins

        config_command.show(self.sections(), self.model_dump(), origins(type(self), vars(arguments)))
        return 0


AnyCommand = TypeVar("AnyCommand", bound=CommandSettings)
COMMANDS: dict[str, type[CommandSettings]] = {
    "presets": Presets,
    "play": Play,
    "compare": Compare,
    "replay": Replay,
    "export": Export,
    "run": Run,
    "verify": Verify,
    "bench": Bench,
    "config": Config,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code. 2 is a mistake of the user, 1 a failed check."""
    args = list(sys.argv[1:] if arguments is None else arguments)
    command: type[CommandSettings] = Watch
    program = "nanoviz"
    if args and not args[0].startswith("-"):
        name, *args = args
        if name not in COMMANDS:
            return fail(f"there is no command {name!r}; there are: {', '.join(COMMANDS)}, or none for the dashboard.")
        command, program = COMMANDS[name], f"nanoviz {name}"
    try:
        flags, parsed = read_arguments(command, args, program)
        code = command.execute_without_settings(parsed)
        return read_settings(command, flags).execute(parsed) if code is None else code
    except ValidationError as error:
        return fail(*(describe(mistake) for mistake in error.errors()))
    except MISTAKES as error:
        return fail(str(error))
    except BrokenPipeError:
        sys.stderr.close()  # whoever read the output has had enough; say nothing at exit either
        return 0
    except KeyboardInterrupt:
        return 130


def parse(command: type[AnyCommand], args: Sequence[str]) -> tuple[AnyCommand, Namespace]:
    """The settings of a command from all their sources, and its other arguments."""
    flags, parsed = read_arguments(command, args)
    return read_settings(command, flags), parsed


def read_arguments(
    command: type[AnyCommand], args: Sequence[str], program: str = "nanoviz"
) -> tuple[CliSettingsSource[ArgumentParser], Namespace]:
    """Settings that are given as flags, and all arguments.

    Ends the process for --help and for arguments that it does not know.
    """
    parser = ArgumentParser(program, description=cleandoc(command.__doc__ or ""), formatter_class=RawDescription)
    parser.add_argument("--version", action="version", version=f"nanoviz {version('nanoviz')}")
    command.add_arguments(parser)
    flags = CliSettingsSource[ArgumentParser](command, root_parser=parser)
    parsed = parser.parse_intermixed_args(args)  # prompts may stand before, between and behind flags
    settings = {name: value for name, value in vars(parsed).items() if name in command.model_fields}
    return flags(parsed_args=settings), parsed


def read_settings(command: type[AnyCommand], flags: CliSettingsSource[ArgumentParser]) -> AnyCommand:
    """The settings of a command from these flags, from variables and from the settings file.

    Raises ValidationError, SettingsError or SettingsMistake for values that cannot be meant so.
    """
    return command(_cli_settings_source=flags)  # type: ignore[call-arg]


def describe(mistake: Any) -> str:
    """A settings mistake in one line: which value, what was wrong with it."""
    name = ".".join(str(part) for part in mistake["loc"]) or "settings"
    return f"{name}: {mistake['msg'].lower()}, not {mistake['input']!r}"


def fail(*lines: str) -> int:
    """Print what was wrong, over any progress that still stands on the line."""
    clear_report()
    for line in lines:
        print(f"nanoviz: {printable(line)}", file=sys.stderr)
    return MISUSE


if __name__ == "__main__":
    sys.exit(main())
