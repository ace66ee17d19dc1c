"""The command line: `nanoviz` opens the dashboard, `nanoviz run` and `nanoviz verify` do without."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Sequence
from typing import Any

from pydantic import Field, ValidationError
from pydantic_settings import CliPositionalArg, SettingsError

from app.settings import Settings, settings_path
from engine.config import ConfigError
from engine.progress import ModelError
from engine.request import RequestError, SamplingParams

MISUSE = 2


class Dashboard(Settings):
    """Watch a real LLM inference engine think.

    Opens the dashboard. Other commands: `nanoviz run` answers prompts and prints traces, `nanoviz verify` compares the
    engine with transformers; each has its own --help. Every option can also be set as NANOVIZ_NAME in the environment
    or as name = value in the settings file; a flag wins over a variable, a variable over the file.
    """

    def execute(self) -> int:
        from app.dashboard import Dashboard as App
        from app.protocol import EngineOptions

        config = self.engine_config()
        config.validate()
        if not sys.stdin.isatty() or not sys.stderr.isatty():  # Textual draws on standard error
            raise ConfigError("the dashboard needs a terminal; `nanoviz run` works without one.")
        dashboard = App(EngineOptions(self.model, self.dtype, self.device, self.num_threads(), config))
        try:
            return dashboard.run() or dashboard.return_code or 0
        finally:
            dashboard.source.close()


class Run(Settings):
    """Answer prompts, all together, and print the outputs; without a prompt, read one from standard input."""

    prompts: CliPositionalArg[list[str]] = Field([], description="what to ask; several are served together")
    max_tokens: int = Field(64, description="most output tokens of each")
    temperature: float = Field(0.0, description="0 is greedy")
    top_p: float = Field(1.0, description="draw only from the likeliest tokens that make up this much")
    top_k: int = Field(0, description="draw only from so many of the likeliest tokens; 0 is all")
    seed: int | None = Field(None, description="makes sampling repeatable")
    stop: list[str] = Field([], description="a text that ends the output; may be given again")
    ignore_eos: bool = Field(False, description="go on to max_tokens whatever the model says")
    raw: bool = Field(False, description="take the prompts as they are, without the model's chat template")
    trace: bool = Field(False, description="print a table with a line for each step")
    json_: bool = Field(False, alias="json", description="print one trace a line, as JSON, and nothing else")

    def execute(self) -> int:
        from app import headless

        prompts = self.prompts or [sys.stdin.read()]
        headless.run(
            prompts,
            SamplingParams(
                max_tokens=self.max_tokens,
                temperature=self.temperature,
                top_p=self.top_p,
                top_k=self.top_k,
                seed=self.seed,
                stop=tuple(self.stop),
                ignore_eos=self.ignore_eos,
            ),
            self.engine_config(),
            model=self.model,
            dtype=self.dtype,
            device=self.device,
            threads=self.threads,
            chat=not self.raw,
            trace=self.trace,
            json=self.json_,
        )
        return 0


class Verify(Settings):
    """Serve six chat requests under three configurations and compare each output with transformers alone.

    Exit code 1 if any differs.
    """

    def execute(self) -> int:
        from app import headless

        same = headless.verify(
            self.engine_config(), model=self.model, dtype=self.dtype, device=self.device, threads=self.threads
        )
        return 0 if same else 1


COMMANDS: dict[str, type[Dashboard | Run | Verify]] = {"run": Run, "verify": Verify}


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code. 2 is a mistake of the user, 1 a failed check."""
    args = list(sys.argv[1:] if arguments is None else arguments)
    if args and not args[0].startswith("-"):
        name, *args = args
        if name not in COMMANDS:
            return fail(f"there is no command {name!r}; there are: {', '.join(COMMANDS)}, or none for the dashboard.")
        command, program = COMMANDS[name], f"nanoviz {name}"
    else:
        command, program = Dashboard, "nanoviz"
    if "--version" in args:
        from importlib.metadata import version

        print(f"nanoviz {version('nanoviz')}")
        return 0
    try:
        settings: Any = command(_cli_parse_args=args, _cli_prog_name=program)
        return int(settings.execute())
    except ValidationError as error:
        return fail(*(describe(mistake) for mistake in error.errors()))
    except tomllib.TOMLDecodeError as error:
        return fail(f"{settings_path()} is not TOML: {error}")
    except (ConfigError, ModelError, RequestError, SettingsError) as error:
        return fail(str(error))
    except BrokenPipeError:
        sys.stderr.close()  # whoever read the output has had enough; say nothing at exit either
        return 0
    except KeyboardInterrupt:
        return 130


def describe(mistake: Any) -> str:
    """A settings mistake in one line: which value, what was wrong with it."""
    name = ".".join(str(part) for part in mistake["loc"]) or "settings"
    if mistake["type"] == "extra_forbidden":
        return f"there is no setting {name!r} (in {settings_path()}?)"
    return f"{name}: {mistake['msg'].lower()}, not {mistake['input']!r}"


def fail(*lines: str) -> int:
    for line in lines:
        print(f"nanoviz: {line}", file=sys.stderr)
    return MISUSE


if __name__ == "__main__":
    sys.exit(main())
