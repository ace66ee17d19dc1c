"""The command line: reads arguments and settings, does what the command says, and tells mistakes in a sentence."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from argparse import RawDescriptionHelpFormatter as RawDescription
from collections.abc import Sequence
from importlib.metadata import version
from inspect import cleandoc
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_settings import CliSettingsSource, SettingsError

from app.__main__ import INTERRUPTED
from app.attach.address import AttachError
from app.export import ExportError
from app.headless import clear_report
from app.preset_files import PresetError
from app.recording import RecordingError
from app.settings import CommandSettings, SettingsMistake
from app.subcommands import SUBCOMMANDS, Watch
from app.text import printable
from engine.config import ConfigError
from engine.progress import ModelError
from engine.request import RequestError

MISUSE = 2
MISTAKES = (
    AttachError,
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
AnyCommand = TypeVar("AnyCommand", bound=CommandSettings)


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code. 2 is a mistake of the user, 1 a failed check."""
    args = list(sys.argv[1:] if arguments is None else arguments)
    command: type[CommandSettings] = Watch
    program = "nanoviz"
    if args and not args[0].startswith("-"):
        name, *args = args
        if name not in SUBCOMMANDS:
            return fail(
                f"there is no command {name!r}; there are: {', '.join(SUBCOMMANDS)}, or none for the dashboard."
            )
        command, program = SUBCOMMANDS[name], f"nanoviz {name}"
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
        return INTERRUPTED


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
