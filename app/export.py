"""Export: a run, whole from its first step on, as files for other programs. Files are written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from app.perfetto import timeline
from app.poll_tables import own_requests_csv, polls_csv, polls_json
from app.protocol import Ready
from app.recording import Recorder, Recording, RecordingError
from app.run import Run
from app.tables import requests_csv, steps_csv, tables_json
from engine.trace import StepTrace

Write = Callable[[Path], None]
"""Writes one file, which is not there yet. Raises OSError or RecordingError if it cannot."""


@dataclass(frozen=True, slots=True)
class Format:
    """What a file can be exported as. `ending` is what its name has behind that of the run."""

    ending: str
    title: str
    help: str


FORMATS = {
    "perfetto": Format(
        ".perfetto.json",
        "Timeline for Perfetto",
        "a timeline for ui.perfetto.dev or chrome://tracing: steps, requests, budget and KV blocks over time",
    ),
    "csv": Format(".csv", "Tables as CSV", "a table of steps and one of requests, two files, for a spreadsheet"),
    "json": Format(".json", "Tables as JSON", "both tables in one file, with exact text and every token, for a script"),
    "svg": Format(".svg", "Picture of the screen", "a picture of the dashboard at a step, for a text or a slide"),
}
ENDINGS = (".gz", ".jsonl", ".json")
"""Of a recording's name: what is made from it is called like the rest."""


class ExportError(ValueError):
    """An export that cannot be made; the text is a sentence for people."""


@dataclass(frozen=True, slots=True)
class Material:
    """What is exported: all steps of a run from 0 on, and what ran it."""

    name: str
    traces: Sequence[StepTrace]
    engine: Ready
    """`recorded` is set if this comes from a recording."""
    nanoviz: str = field(default_factory=lambda: version("nanoviz"))
    """The version that ran it."""
    damage: str = ""
    """Why there are no more steps than these, if there were."""

    def about(self) -> dict[str, Any]:
        """What an exported file says of itself."""
        engine = self.engine
        ours = {"parameters": engine.num_parameters, "dtype": engine.dtype, "device": engine.device}
        return {
            "nanoviz": self.nanoviz,
            "run": self.name,
            "recorded": engine.recorded,
            "model": engine.model,
            **({"server": msgspec.to_builtins(engine.server)} if engine.server else ours),
            "config": self._config(),
        }

    def _config(self) -> dict[str, Any]:
        """The parameters of the first step, or what a server told of its own in the end."""
        if not self.traces:
            return {}
        told = next((trace for trace in reversed(self.traces) if trace.poll and not trace.poll.problem), None)
        if told is None or told.poll is None:
            return asdict(self.traces[0].config)
        return {name: value for name, value in asdict(told.config).items() if told.poll.tells(name)}


def material(path: Path) -> Material:
    """What there is of a recording. Raises RecordingError if it is none, ExportError if it holds no step."""
    recording = Recording(path)
    if not recording.traces:
        raise ExportError(recording.damage or f"{path} holds no step.")
    return Material(base_name(path), recording.traces, recording.engine, recording.header.nanoviz, recording.damage)


def base_name(path: Path) -> str:
    """The name of a recording without its endings."""
    name = path.name
    for ending in ENDINGS:
        name = name.removesuffix(ending)
    return name or "run"


def files(format: str, target: Path, source: Material) -> dict[Path, Write]:
    """What to write for `perfetto`, `csv` or `json`: the file `target`, or for csv two whose names begin like it."""
    run = Run(source.name, source.traces)
    if source.engine.server:
        return _files_of_server(format, target, source, run)
    match format:
        case "perfetto":
            return {target: _pieces(timeline(run, source.traces, source.about()))}
        case "json":
            return {target: _pieces(tables_json(run, source.about()))}
        case "csv":
            return {
                _beside(target, "-steps.csv"): _pieces(steps_csv(run)),
                _beside(target, "-requests.csv"): _pieces(requests_csv(run)),
            }
    raise AssertionError(f"{format} is no format of tables")


def _files_of_server(format: str, target: Path, source: Material, run: Run) -> dict[Path, Write]:
    match format:
        case "json":
            return {target: _pieces(polls_json(run, source.traces, source.about()))}
        case "csv":
            return {
                _beside(target, "-polls.csv"): _pieces(polls_csv(source.traces)),
                _beside(target, "-requests.csv"): _pieces(own_requests_csv(run)),
            }
    raise ExportError(
        "a server elsewhere does not tell its steps, which Perfetto would draw; csv and json hold its polls."
    )


def _beside(target: Path, ending: str) -> Path:
    return target.with_name(target.name.removesuffix(".csv") + ending)


def text_file(text: str) -> Write:
    """A file with this text."""
    return _pieces((text.encode(),))


def _record(source: Material, path: Path) -> None:
    recorder = Recorder(path)
    try:
        recorder.begin(source.engine)
        for trace in source.traces:
            recorder.write(trace)
        recorder.end()
    finally:
        recorder.close()


def _pieces(pieces: Iterable[bytes]) -> Write:
    def write(path: Path) -> None:
        with path.open("xb") as file:
            file.writelines(pieces)

    return write


def name_of_now() -> str:
    """What a file is called that is saved from the dashboard now, without its ending."""
    return f"nanoviz-{datetime.now():%Y-%m-%d-%H%M%S}"


def save_here(what: str, traces: Iterable[StepTrace], engine: Ready) -> list[Path]:
    """Write a run into the current folder, as one of FORMATS or as a recording; returns the files.

    Their names have the date and the time. Raises ExportError.
    """
    name = name_of_now()
    source = Material(name, list(traces), engine)
    ending = FORMATS[what].ending if what in FORMATS else ".gz"
    target = Path.cwd() / f"{name}{ending}"
    wanted = files(what, target, source) if what in FORMATS else {target: partial(_record, source)}
    write_all(wanted)
    return list(wanted)


def write_all(wanted: Mapping[Path, Write]) -> None:
    """Write these files, all of them or none, and over none. Raises ExportError with the reason.

    Each is written beside its place under another name, and gets its own only when all are whole.
    """
    for path in wanted:
        if not path.name:
            raise ExportError(f"{str(path)!r} is a folder; name the file to write.")
    placed: list[Path] = []
    scratches = {path: path.with_name(f".{os.urandom(4).hex()}.{path.name}") for path in wanted}
    try:
        for path in wanted:
            if os.path.lexists(path):
                raise ExportError(f"{path} exists already; nothing was written.")
        for path, write in wanted.items():
            _write(path, scratches[path], write)
        for path, scratch in scratches.items():
            _place(scratch, path)
            placed.append(path)
    except BaseException:
        for path in placed:
            path.unlink(missing_ok=True)
        raise
    finally:
        for scratch in scratches.values():
            with suppress(OSError):
                scratch.unlink()


def _write(path: Path, scratch: Path, write: Write) -> None:
    try:
        write(scratch)
    except OSError as error:
        raise ExportError(f"{path} cannot be written: {error.strerror}.") from None
    except RecordingError as error:
        raise ExportError(str(error).replace(str(scratch), str(path))) from None


def _place(scratch: Path, path: Path) -> None:
    """Give a whole file its name. A link, unlike a renaming, never takes the place of a file that has just come."""
    try:
        os.link(scratch, path)
    except FileExistsError:
        raise ExportError(f"{path} exists already; nothing was written.") from None
    except OSError:  # no links on this file system
        scratch.rename(path)
