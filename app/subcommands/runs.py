"""The commands about runs without a dashboard: `nanoviz presets`, `nanoviz compare` and `nanoviz export`."""

from __future__ import annotations

import os.path
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from app.export import FORMATS, ExportError, Material, files, material, text_file, write_all
from app.headless import clear_report, report
from app.preset_files import PresetError
from app.settings import CommandSettings, expanded, key_table
from app.subcommands.dashboard import Display
from app.subcommands.on_presets import OnPresets, started
from app.text import printable

if TYPE_CHECKING:
    from app.run import Run as CompletedRun


class Presets(CommandSettings):
    """List the presets, with what each of them shows; with a name, tell all about one."""

    @classmethod
    def add_arguments(cls, parser: ArgumentParser) -> None:
        parser.add_argument("preset", nargs="?", metavar="NAME", help="the preset to tell about")
        parser.add_argument("--metrics", action="store_true", help="list what expectations can speak of")

    def execute(self, arguments: Namespace) -> int:
        from app import play_command

        if arguments.metrics:
            play_command.list_metrics()
        elif arguments.preset is None:
            play_command.list_presets()
        else:
            play_command.describe(arguments.preset)
        return 0


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
        from app.words import plural

        runs = self._runs(arguments)
        for run in runs:
            if run.refused:
                told = f"{run.name}: {plural(len(run.refused), 'request')} refused: {run.refused[0]}"
                print(f"nanoviz: warning: {printable(told)}", file=sys.stderr)
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
            self.refuse_flags(arguments)
            return compare_command.recorded_runs([expanded(name) for name in arguments.compared])
        path = find(first)
        if others:
            raise PresetError(f"{first} is a preset: compare its scenes, or one scene with --set, or recordings alone.")
        preset, overrides = load(path), self.parameter_flags(arguments)
        return self.played(preset, variants(preset, arguments.scene, arguments.set, overrides), arguments)


class Export(Display, OnPresets):
    """Turn a run into files for other programs.

    RUN is a recording that `nanoviz --record FILE` has made, for which no model is needed, or a preset, of which a
    scene is played for it. Files go into the current folder under the run's name, or to what --to names, and never
    over a file. Of a damaged recording what stands before the damage is exported. The settings of the dashboard hold
    for svg.
    """

    @classmethod
    def add_arguments(cls, parser: ArgumentParser) -> None:
        parser.add_argument("run", metavar="RUN", help="a recording, or a preset")
        parser.add_argument("--scene", metavar="NAME", help="of a preset, the scene to play, by default the first")
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
        if arguments.size:
            from app.picture import parse_size

            parse_size(arguments.size)
        if arguments.to and os.path.lexists(arguments.to):
            raise ExportError(f"{arguments.to} exists already; nothing was written.")
        source = self._source(arguments)
        if source.damage:
            print(f"nanoviz: {printable(source.damage)}; what stands before is exported.", file=sys.stderr)
        target = arguments.to or Path(source.name + FORMATS[arguments.format].ending)
        if arguments.format == "svg":
            wanted = {target: text_file(self._picture(source, arguments))}
        else:
            wanted = files(arguments.format, target, source)
        write_all(wanted)
        for path in wanted:
            print(f"Wrote {printable(str(path))}")
        return 0

    def _source(self, arguments: Namespace) -> Material:
        from app.preset_files import find, is_preset, load, name_of
        from app.stage import perform
        from app.variants import variants

        if not is_preset(arguments.run):
            self.refuse_flags(arguments)
            return material(expanded(arguments.run))
        path = find(arguments.run)
        preset = load(path)
        part = variants(preset, arguments.scene, (), self.parameter_flags(arguments))[0]
        with started(None) as start:
            engine, traces = perform(
                self.options(self.model_for(preset, arguments), part.config), preset.title, part, report, start
            )
        clear_report()
        return Material(f"{name_of(path)}-{part.name}", traces, engine)

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
