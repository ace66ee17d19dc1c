"""RecordedEngine: an engine whose steps are written to a file as they come."""

from __future__ import annotations

from app import protocol
from app.engine_process import EngineProcess
from app.protocol import EngineOptions, Event
from app.recording import Recorder, RecordingError


class RecordedEngine(EngineProcess):
    """An engine all of whose steps are recorded, until the file cannot be written or another engine takes its place."""

    def __init__(self, options: EngineOptions, recorder: Recorder) -> None:
        self._recorder: Recorder | None = recorder if not recorder.has_begun else None
        super().__init__(options)

    def drain(self) -> list[Event]:
        events = super().drain()
        try:
            for event in events:
                self._record(event)
            if self._recorder and not events:
                self._recorder.flush()
        except RecordingError as error:
            self._recorder = None
            events.append(protocol.Notice(f"The recording ends here: {error}"))
        return events

    def _record(self, event: Event) -> None:
        if self._recorder is None:
            return
        match event:
            case protocol.Ready():
                self._recorder.begin(event)
            case protocol.Stepped(trace):
                self._recorder.write(trace)
