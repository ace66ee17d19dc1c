"""The command line: `nanoviz` opens the dashboard; `nanoviz run`, `verify` and `bench` do without."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from argparse import RawDescriptionHelpFormatter as RawDescription
from collections.abc import Sequence
from importlib.metadata import version
from inspect import cleandoc
from typing import Any, TypeVar

from pydantic import Field, ValidationError
from pydantic_settings import CliSettingsSource, SettingsError

from app.headless import clear_report
from app.settings import Settings, SettingsMistake
from app.text import printable
from engine.config import ConfigError
from engine.locate import locate
from engine.progress import ModelError
from engine.request import RequestError, SamplingParams

MISUSE = 2


class Watch(Settings):
    """Watch a real LLM inference engine think.

    Opens the dashboard. Other commands: `nanoviz run` answers prompts and prints traces, `nanoviz verify` compares the
    engine with transformers, `nanoviz bench` measures; each has its own --help. Every parameter can also be set as
    NANOVIZ_NAME in the environment or as name = value in the settings file; a flag wins over a variable, a variable
    over the file.
    """

    def execute(self, arguments: Namespace) -> int:
        from app.dashboard import Dashboard
        from app.protocol import EngineOptions

        config = self.engine_config()
        config.validate()
        locate(self.model)
        # Textual reads keys from standard input, draws on standard error, and takes the size from standard output.
        if not all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
            raise ConfigError("the dashboard needs a terminal; `nanoviz run` works without one.")
        if "utf" not in sys.stderr.encoding.lower():
            raise ConfigError(
                f"the terminal's encoding is {sys.stderr.encoding}; the dashboard needs UTF-8 (see LANG)."
            )
        dashboard = Dashboard(EngineOptions(self.model, self.dtype, self.device, self.num_threads(), config))
        try:
            return dashboard.run() or dashboard.return_code or 0
        finally:
            dashboard.source.close()


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
    """Measure a part of the engine on this machine.

    scheduler: microseconds that the decision of a step takes, with growing numbers of running and waiting requests and
    no model; the policy and the other parameters that are no sizes are those of the settings.
    """

    @classmethod
    def add_arguments(cls, parser: ArgumentParser) -> None:
        parser.add_argument("part", choices=["scheduler"], help="what to measure")

    def execute(self, arguments: Namespace) -> int:
        from app import headless

        headless.bench_scheduler(self.engine_config())
        return 0


AnyCommand = TypeVar("AnyCommand", Watch, Run, Verify, Bench)
COMMANDS: dict[str, type[Watch | Run | Verify | Bench]] = {"run": Run, "verify": Verify, "bench": Bench}


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code. 2 is a mistake of the user, 1 a failed check."""
    args = list(sys.argv[1:] if arguments is None else arguments)
    command: type[Watch | Run | Verify | Bench] = Watch
    program = "nanoviz"
    if args and not args[0].startswith("-"):
        name, *args = args
        if name not in COMMANDS:
            return fail(f"there is no command {name!r}; there are: {', '.join(COMMANDS)}, or none for the dashboard.")
        command, program = COMMANDS[name], f"nanoviz {name}"
    try:
        settings, parsed = parse(command, args, program)
        return settings.execute(parsed)
    except ValidationError as error:
        return fail(*(describe(mistake) for mistake in error.errors()))
    except (ConfigError, ModelError, RequestError, SettingsError, SettingsMistake) as error:
        return fail(str(error))
    except BrokenPipeError:
        sys.stderr.close()  # whoever read the output has had enough; say nothing at exit either
        return 0
    except KeyboardInterrupt:
        return 130


def parse(command: type[AnyCommand], args: Sequence[str], program: str = "nanoviz") -> tuple[AnyCommand, Namespace]:
    """The settings of a command from all their sources, and its other arguments.

    Ends the process for --help and for arguments that it does not know.
    Raises ValidationError, SettingsError or SettingsMistake for values that cannot be meant so.
    """
    parser = ArgumentParser(program, description=cleandoc(command.__doc__ or ""), formatter_class=RawDescription)
    parser.add_argument("--version", action="version", version=f"nanoviz {version('nanoviz')}")
    command.add_arguments(parser)
    flags = CliSettingsSource[ArgumentParser](command, root_parser=parser)
    parsed = parser.parse_intermixed_args(args)  # prompts may stand before, between and behind flags
    settings = {name: value for name, value in vars(parsed).items() if name in command.model_fields}
    return command(_cli_settings_source=flags(parsed_args=settings)), parsed


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
