"""Recording: a run as a text file, a header and then a step trace a line, to be played again without the model.

A name that ends in .gz makes a compressed file. What was written is out of our hands within a second, so that a crash
loses at most that; and of a file that is damaged somewhere, all that stands before the damage can be played.
"""

from __future__ import annotations

import gzip
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import BinaryIO, cast

import msgspec
from msgspec.structs import replace

from app.protocol import Ready
from engine.trace import TRACE_VERSION, StepTrace, decode, encode

FORMAT = "nanoviz recording"
GZIP_MAGIC = b"\x1f\x8b"
FLUSH_SECONDS = 1.0
LONGEST_LINE = 1 << 28
"""Bytes; more is no step of any engine, and would be read into memory whole."""


class RecordingError(ValueError):
    """A recording that cannot be written or read; the text is a sentence for people, with the file's name."""


class Header(msgspec.Struct, frozen=True):
    """The first line: what was recorded, by which program, and how the other lines are to be read."""

    format: str
    trace_version: int
    nanoviz: str
    recorded: str
    """Date and time of its beginning, as ISO 8601."""
    engine: Ready
    """The model, and what the engine promised for it."""


class Recorder:
    """Writes a recording into a new file; nothing is ever written over.

    Raises RecordingError if it cannot, here and whenever it writes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.has_begun = False
        self._flushed_at = 0.0
        self._is_unflushed = False
        try:
            file = path.open("xb")
        except FileExistsError:
            raise RecordingError(f"{path} exists already; a recording is never written over a file.") from None
        except OSError as error:
            raise RecordingError(f"{path} cannot be written: {error.strerror}.") from None
        self._raw = file
        self._file: BinaryIO = cast(BinaryIO, gzip.GzipFile(fileobj=file, mode="wb")) if path.suffix == ".gz" else file

    def begin(self, engine: Ready) -> None:
        """Write the header; steps follow. What comes from a recording keeps its date."""
        self.has_begun = True
        recorded = engine.recorded or datetime.now(UTC).isoformat(timespec="seconds")
        engine = replace(engine, recorded="", run=0)
        self._write_line(msgspec.json.encode(Header(FORMAT, TRACE_VERSION, version("nanoviz"), recorded, engine)))

    def write(self, trace: StepTrace) -> None:
        """Add the next step."""
        self._write_line(encode(trace))

    def end(self) -> None:
        """Close a file that is whole."""
        try:
            self._file.close()
            self._raw.close()
        except OSError as error:
            raise RecordingError(f"{self.path} cannot be written: {error.strerror}.") from None

    def close(self) -> None:
        """A file in which nothing was recorded is taken away again."""
        with suppress(OSError):
            self._file.close()
            self._raw.close()
        with suppress(OSError):
            if not self.has_begun:
                self.path.unlink()

    def flush(self) -> None:
        """Let go of what was written: nothing more may come for a while."""
        try:
            if self._is_unflushed:
                self._file.flush()
                self._raw.flush()
        except OSError as error:
            raise RecordingError(f"{self.path} cannot be written: {error.strerror}.") from None
        self._flushed_at = time.monotonic()
        self._is_unflushed = False

    def _write_line(self, line: bytes) -> None:
        try:
            self._file.write(line + b"\n")
        except OSError as error:
            raise RecordingError(f"{self.path} cannot be written: {error.strerror}.") from None
        self._is_unflushed = True
        if time.monotonic() >= self._flushed_at + FLUSH_SECONDS:
            self.flush()


class Recording:
    """A recording that has been read: all of its steps, or those before the damage.

    Raises RecordingError for a file that cannot be read, is no recording, or was written by a program whose traces this
    one does not know.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.traces: list[StepTrace] = []
        self.damage = ""
        """What ended it before its end."""
        try:
            with _opened(path) as file:
                lines = _whole_lines(file)
                self.header = _header(path, next(lines, b""))
                for line in lines:
                    self._take(decode(line))
        except RecordingError:
            raise
        except (EOFError, ValueError, zlib.error, gzip.BadGzipFile) as error:
            if not hasattr(self, "header"):
                raise RecordingError(f"{path} is no recording of nanoviz, or its beginning is damaged.") from None
            behind = f"behind step {self.traces[-1].step:,}" if self.traces else "behind its first line"
            self.damage = f"{path} is damaged {behind}: {error}"
        except OSError as error:
            raise RecordingError(f"{path} cannot be read: {error.strerror}.") from None

    @property
    def engine(self) -> Ready:
        """What ran it, and when."""
        return replace(self.header.engine, recorded=self.header.recorded)

    def _take(self, trace: StepTrace) -> None:
        expected = self.traces[-1].step + 1 if self.traces else 0
        if trace.step != expected:
            raise ValueError(f"step {trace.step:,} follows where step {expected:,} should")
        self.traces.append(trace)


def _opened(path: Path) -> BinaryIO:
    """The file, or what is compressed in it, whatever it is called."""
    file = path.open("rb")
    is_compressed = file.peek(2)[:2] == GZIP_MAGIC
    if not is_compressed:
        return file
    file.close()
    return cast(BinaryIO, gzip.GzipFile(path, "rb"))


def _whole_lines(file: BinaryIO) -> Iterator[bytes]:
    """Lines that end. Raises ValueError for one that does not: it was cut, or it is something else."""
    while line := file.readline(LONGEST_LINE):
        if not line.endswith(b"\n"):
            raise ValueError("its last line is cut")
        yield line


def _header(path: Path, line: bytes) -> Header:
    try:
        header = msgspec.json.decode(line, type=Header)
    except msgspec.DecodeError:
        header = None
    if header is None or header.format != FORMAT:
        raise RecordingError(f"{path} is no recording of nanoviz.")
    if header.trace_version != TRACE_VERSION:
        raise RecordingError(
            f"{path} was recorded by nanoviz {header.nanoviz} with traces of version {header.trace_version}; "
            f"this program reads version {TRACE_VERSION}."
        )
    return header
