"""Recordings: what was written is read again, whatever happens to the file, and is played at its own pace."""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace as changed
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from app import protocol
from app.protocol import Event
from app.recorded import Recordings
from app.recording import Recorder, Recording, RecordingError
from app.replay import LONGEST_GAP, Replay
from app.session import NO_ENGINE
from engine.request import SamplingParams
from engine.trace import StepTrace
from tests.app.support import READY, STEP_SECONDS, Stand, dashboard, repeatable, run_cli, scenario, stepped
from tests.engine.support import FakeClock

TRACES = scenario("preempting")


def record(path: Path, traces: Sequence[StepTrace] = TRACES) -> Path:
    recorder = Recorder(path)
    recorder.begin(READY)
    for trace in traces:
        recorder.write(trace)
    recorder.close()
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A recording as bytes, plain and compressed."""
    folder = tmp_path_factory.mktemp("recordings")
    return {name: record(folder / name).read_bytes() for name in ("run.jsonl", "run.gz")}


# Files.


def test_each_run_has_a_file_of_its_own(tmp_path: Path) -> None:
    recordings = Recordings(tmp_path / "run.gz")
    for run, traces in enumerate(((), TRACES, TRACES[:2], (), TRACES[:1])):
        recordings.begin(replace(READY, run=run))
        for trace in traces:
            recordings.write(trace)
    recordings.close()
    expected = {"run.gz": len(TRACES), "run-2.gz": 2, "run-3.gz": 1}
    assert {path.name: len(Recording(path).traces) for path in recordings.written} == expected
    assert {path.name for path in tmp_path.iterdir()} == set(expected)
    assert all(Recording(path).header.engine == READY for path in recordings.written), "a replay is its own first run"


def test_a_further_run_never_goes_over_a_file(tmp_path: Path) -> None:
    recordings = Recordings(tmp_path / "run.gz")
    (tmp_path / "run-2.gz").write_text("mine")
    recordings.begin(READY)
    recordings.write(TRACES[0])
    recordings.begin(READY)
    with pytest.raises(RecordingError, match=r"run-2\.gz exists already"):
        recordings.write(TRACES[0])
    recordings.close()
    assert (tmp_path / "run-2.gz").read_text() == "mine" and len(Recording(tmp_path / "run.gz").traces) == 1


@pytest.mark.parametrize("name", ["run.jsonl", "run.gz"])
def test_what_was_written_is_read(name: str, tmp_path: Path) -> None:
    recording = Recording(record(tmp_path / name))
    assert tuple(recording.traces) == TRACES and not recording.damage
    assert recording.header.engine == READY


def test_a_name_that_says_so_compresses(whole: dict[str, bytes]) -> None:
    assert gzip.decompress(whole["run.gz"]).count(b"\n") == whole["run.jsonl"].count(b"\n") == len(TRACES) + 1
    assert len(whole["run.gz"]) * 4 < len(whole["run.jsonl"])


def test_the_name_does_not_matter_to_the_reader(whole: dict[str, bytes], tmp_path: Path) -> None:
    path = tmp_path / "renamed.txt"
    path.write_bytes(whole["run.gz"])
    assert tuple(Recording(path).traces) == TRACES


def test_nothing_is_written_over(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("mine")
    with pytest.raises(RecordingError, match="exists already"):
        Recorder(path)
    assert path.read_text() == "mine"


def test_where_nothing_can_be_written_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="cannot be written"):
        Recorder(tmp_path / "no such folder" / "run.gz")


def test_a_file_in_which_nothing_was_recorded_does_not_stay(tmp_path: Path) -> None:
    Recorder(tmp_path / "run.gz").close()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["run.jsonl", "run.gz"])
def test_a_crash_loses_only_what_was_not_flushed_yet(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is read as it is while the recorder has not been closed, as after a crash."""
    monkeypatch.setattr("app.recording.FLUSH_SECONDS", 0.0)
    recorder = Recorder(tmp_path / name)
    recorder.begin(READY)
    for trace in TRACES[:9]:
        recorder.write(trace)
    assert tuple(Recording(tmp_path / name).traces) == TRACES[:9]
    recorder.close()


@given(st.data())
@repeatable
def test_up_to_the_damage_it_can_be_played(
    whole: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Cut anywhere, or with other bytes somewhere, it gives whole steps from the beginning on, or one clear error."""
    content = bytearray(whole[data.draw(st.sampled_from(sorted(whole)))])
    place = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        del content[place:]
    else:
        content[place] ^= data.draw(st.integers(1, 255))
    path = tmp_path_factory.mktemp("damaged") / "run"
    path.write_bytes(content)
    try:
        recording = Recording(path)
    except RecordingError as error:
        assert str(path) in str(error)
        return
    steps = [trace.step for trace in recording.traces]
    assert steps == list(range(len(steps)))
    # A plain file that was cut between two lines looks like one that was meant to end there.
    assert recording.damage or len(steps) == len(TRACES) or content.endswith(b"\n")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "no recording"),
        (b"\x89PNG\r\n\x1a\n" + bytes(99), "no recording"),
        (b'{"format": "something else"}\n', "no recording"),
        (b'{"version":2,"step":0}\n', "no recording"),
        (b"\x1f\x8b\x08 no gzip at all", "no recording"),
    ],
)
def test_what_is_no_recording_is_said_not_to_be(content: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.write_bytes(content)
    with pytest.raises(RecordingError, match=says):
        Recording(path)


def test_traces_of_another_version_are_named_with_who_wrote_them(whole: dict[str, bytes], tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.write_bytes(whole["run.jsonl"].replace(b'"trace_version":2', b'"trace_version":7'))
    with pytest.raises(RecordingError, match=r"nanoviz 0\.1\.0 with traces of version 7; this program reads version 2"):
        Recording(path)


@pytest.mark.parametrize("arguments", [("replay", "no-such-file"), ("--model=tiny", "--record=no-such-folder/run.gz")])
def test_mistakes_are_told_in_one_line(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    result = run_cli(capsys, *arguments)
    assert result.code == 2
    result.check_short()


# Playing.


def steps_in(events: Sequence[Event]) -> list[int]:
    return [event.trace.step for event in events if isinstance(event, protocol.Stepped)]


@pytest.fixture
def replay(whole: dict[str, bytes], tmp_path: Path) -> tuple[Replay, FakeClock]:
    path = tmp_path / "run"
    path.write_bytes(whole["run.gz"])
    clock = FakeClock()
    return Replay(Recording(path), clock=clock), clock


def test_it_says_first_what_was_recorded_and_when(replay: tuple[Replay, FakeClock]) -> None:
    source, _ = replay
    ready = source.drain()[0]
    assert isinstance(ready, protocol.Ready) and ready.model == READY.model and ready.recorded


def test_steps_come_at_the_pace_of_the_engine(replay: tuple[Replay, FakeClock]) -> None:
    source, clock = replay
    assert steps_in(source.drain()) == [0]
    clock.now += 0.9 * STEP_SECONDS
    assert steps_in(source.drain()) == []
    clock.now += 0.2 * STEP_SECONDS
    assert steps_in(source.drain()) == [1]
    clock.now += 3 * STEP_SECONDS
    assert steps_in(source.drain()) == [2, 3, 4]
    clock.now += 1000
    events = source.drain()
    assert steps_in(events) == list(range(5, len(TRACES))) and events[-1] == protocol.PaceSet(True, 0.0)
    clock.now += 1000
    assert source.drain() == []


def test_long_pauses_are_short(tmp_path: Path) -> None:
    traces = [trace if trace.step < 2 else _later(trace, 3600) for trace in TRACES]
    clock = FakeClock()
    source = Replay(Recording(record(tmp_path / "run", traces)), clock=clock)
    source.drain()
    clock.now += STEP_SECONDS + LONGEST_GAP + 0.01
    assert 2 in steps_in(source.drain())


def _later(trace: StepTrace, seconds: float) -> StepTrace:
    return replace(trace, started=trace.started + seconds)


def test_pause_step_and_speed_are_obeyed_and_acknowledged(replay: tuple[Replay, FakeClock]) -> None:
    source, clock = replay
    source.drain()
    source.send(protocol.SetPaused(True))
    clock.now += 100
    events = source.drain()
    assert steps_in(events) == [] and protocol.PaceSet(True, 0.0) in events
    source.send(protocol.StepOnce())
    assert steps_in(source.drain()) == [1]
    source.send(protocol.SetSpeed(2.0))
    source.send(protocol.SetPaused(False))
    assert steps_in(source.drain()) == [2]
    clock.now += 1.1
    assert steps_in(source.drain()) == [3, 4]


def test_what_would_change_the_past_is_refused(replay: tuple[Replay, FakeClock]) -> None:
    source, _ = replay
    source.drain()
    source.send(protocol.AddRequest("7", "Why?", "short", SamplingParams()))
    source.send(protocol.Abort("1"))
    source.send(protocol.Reconfigure({"max_num_seqs": 2}))
    assert [event for event in source.drain() if not isinstance(event, protocol.Stepped)] == [
        protocol.Refused("7", NO_ENGINE),
        protocol.Refused("1", NO_ENGINE),
        protocol.ReconfigureRefused(NO_ENGINE),
    ]


def test_it_can_begin_anywhere_and_go_back_from_there(whole: dict[str, bytes], tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.write_bytes(whole["run.jsonl"])
    source = Replay(Recording(path), start=12, clock=FakeClock())
    assert steps_in(source.drain()) == list(range(13))


def test_damage_is_said(whole: dict[str, bytes], tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.write_bytes(whole["run.jsonl"][:-9])
    notices = [event for event in Replay(Recording(path)).drain() if isinstance(event, protocol.Notice)]
    assert len(notices) == 1 and f"behind step {len(TRACES) - 2}" in notices[0].text


def test_somebody_who_waits_for_news_is_called(replay: tuple[Replay, FakeClock]) -> None:
    source, _ = replay
    called: list[int] = []
    source.drain()
    source.send(protocol.SetPaused(True))
    source.drain()
    source.when_news(lambda: called.append(1))
    assert called == []
    source.send(protocol.StepOnce())
    assert called == [1], "once"
    source.close()


# In the dashboard.


@asynccontextmanager
async def watching(recording: Recording, start: int | None = None) -> AsyncIterator[Stand]:
    """The dashboard on a recording, whose clock stands still."""
    clock = FakeClock()
    config = recording.traces[0].config
    async with dashboard(start=lambda _: Replay(recording, start, clock), engine_config=config) as stand:
        await stand.until(lambda: stand.app.session.view.trace)
        await stand.settle()
        yield stand


async def test_the_panels_show_a_recording_as_they_show_an_engine(tmp_path: Path) -> None:
    recording = Recording(record(tmp_path / "run.gz"))
    async with watching(recording, start=len(TRACES)) as stand:
        shown = stand.lines()
        assert " recording " in shown[0] and "paused" in shown[0], "at its end it waits"
    async with dashboard((120, 40), *stepped("preempting")) as stand:
        assert stand.lines()[1:-1] == shown[1:-1]


async def test_a_recording_of_a_policy_that_is_not_known_here_can_be_looked_at(tmp_path: Path) -> None:
    traces = [replace(trace, config=changed(trace.config, policy="lottery")) for trace in TRACES]
    async with watching(Recording(record(tmp_path / "run", traces)), start=len(TRACES)) as stand:
        await stand.press("p")
        assert "lottery" in stand.text()
        await stand.press("R", "P", "escape", "w")
        assert stand.app.is_running


async def test_one_can_travel_in_a_recording_but_change_nothing(tmp_path: Path) -> None:
    recording = Recording(record(tmp_path / "run.gz"))
    async with watching(recording, start=len(TRACES)) as stand:
        await stand.press("left_square_bracket")
        assert stand.app.cursor.step == 12
        for key in ("s", "i", "greater_than_sign", "x", "right_curly_bracket"):
            await stand.press("end", key)
            if key == "i":
                await stand.press("h", "i", "ctrl+s")
            assert NO_ENGINE in [notification.message for notification in stand.app._notifications], key
            stand.app.clear_notifications()
        session = stand.app.session
        assert not session.pending and not session.aborting and not session.load.rate
        assert session.config == TRACES[-1].config
