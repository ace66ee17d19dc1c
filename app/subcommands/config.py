"""`nanoviz config`: the settings in force."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from app.settings import SettingsMistake, expanded, settings_place
from app.subcommands.dashboard import Watch
from app.subcommands.engine import Run
from app.subcommands.serve import Serve
from app.text import printable


class Config(Watch, Serve, Run):
    """Print the settings in force, and where each comes from: a flag, a variable, the settings file or its default.

    With flags of the dashboard, of `nanoviz serve` or of `nanoviz run` it prints what these would make of the settings.
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
        from app.subcommands import SUBCOMMANDS  # which imports this module

        sections = [("", list(Watch.model_fields))]
        for name, command in SUBCOMMANDS.items():
            known = {field for _, names in sections for field in names}
            if own := [field for field in command.model_fields if field not in known]:
                sections.append((f"only nanoviz {name}", own))
        return sections

    def execute(self, arguments: Namespace) -> int:
        from app import config_command
        from app.settings import origins

        config_command.show(self.sections(), self.model_dump(), origins(type(self), vars(arguments)))
        return 0
