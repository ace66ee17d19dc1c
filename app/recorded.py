"""Recorded: a source whose steps are written to files as they come, a file for each run."""

from __future__ import annotations

from pathlib import Path

from app import protocol
from app.protocol import Event, Ready
from app.recording import Recorder, RecordingError
from app.session import Source
from engine.trace import StepTrace


class Recordings:
    """The recordings of a program: FILE for its first run, FILE-2 for the next one, whatever the engine.

    Raises RecordingError if a file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._recorder = Recorder(path)
        self._engine: Ready | None = None
        self.written: list[Path] = []
        """The files that something was written into."""

    def begin(self, engine: Ready) -> None:
        """A run begins; its file when it has a step."""
        self._engine = engine

    def write(self, trace: StepTrace) -> None:
        """Add the next step of this run."""
        if self._engine is not None:
            if self._recorder.has_begun:
                self._recorder.end()
                self._recorder = Recorder(numbered(self._path, len(self.written) + 1))
            self._recorder.begin(self._engine)
            self.written.append(self._recorder.path)
            self._engine = None
        self._recorder.write(trace)

    def flush(self) -> None:
        self._recorder.flush()

    def close(self) -> None:
        self._recorder.close()


def numbered(path: Path, number: int) -> Path:
    """run.jsonl.gz as run-2.jsonl.gz."""
    stem, dot, endings = path.name.partition(".")
    return path.with_name(f"{stem}-{number}{dot}{endings}")


class Recorded:
    """A source all of whose steps are recorded, until a file cannot be written."""

    def __init__(self, source: Source, recordings: Recordings) -> None:
        self._source = source
        self._recordings: Recordings | None = recordings
        self.send, self.when_news, self.close = source.send, source.when_news, source.close

    def drain(self) -> list[Event]:
        events = self._source.drain()
        try:
            for event in events:
                self._record(event)
            if self._recordings and not events:
                self._recordings.flush()
        except RecordingError as error:
            self._recordings = None
            events.append(protocol.Notice(f"The recording ends here: {error}"))
        return events

    def _record(self, event: Event) -> None:
        if self._recordings is None:
            return
        match event:
            case protocol.Ready():
                self._recordings.begin(event)
            case protocol.Stepped(trace):
                self._recordings.write(trace)
