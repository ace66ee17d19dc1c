"""What is taken away: timelines, tables and pictures say what the traces say, and files are whole or not there."""

from __future__ import annotations

import csv
import io
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace as changed
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar, get_args
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace

from app import protocol
from app.cli import main
from app.export import FORMATS, ExportError, Material, base_name, files, write_all
from app.perfetto import FIRST_REQUEST, PHASES, REQUESTS, STEPS
from app.recording import Recording
from app.replay import Replay
from app.screens.take_away import CHOICES, TakeAwayScreen
from app.tables import cell
from engine.config import EngineConfig
from engine.trace import Kind, StepTrace
from tests.app.support import HOSTILE, READY, SCENARIOS, Stand, dashboard, run_cli, scenario, stepped
from tests.app.test_recording import record
from tests.app.trace_processor import TraceProcessor
from tests.engine.support import FakeClock

PLAYED = [name for name in SCENARIOS if scenario(name)]
Row = dict[str, str]
Json = dict[str, Any]
Key = TypeVar("Key")
Value = TypeVar("Value")


def written(format: str, name: str, folder: Path) -> list[bytes]:
    """A scenario, exported."""
    wanted = files(format, folder / f"{name}{FORMATS[format].ending}", Material(name, scenario(name), READY))
    write_all(wanted)
    return [path.read_bytes() for path in wanted]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("exports")


# The timeline.


@cache
def timeline(name: str, folder: Path) -> bytes:
    (content,) = written("perfetto", name, folder)
    return content


@pytest.fixture(params=SCENARIOS)
def scene(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def events_of(name: str, folder: Path) -> list[Json]:
    """The events, checked against the format: every one has what its kind must have, and nothing else."""
    document = json.loads(timeline(name, folder))
    assert set(document) == {"displayTimeUnit", "otherData", "traceEvents"} and document["displayTimeUnit"] == "ms"
    usual = {"name", "ph", "pid", "tid", "ts"}
    needed = {"X": {"dur", "cat"}, "i": {"s", "cat"}, "C": {"args"}, "M": {"args"}}
    for event in document["traceEvents"]:
        assert usual | needed[event["ph"]] <= set(event) <= usual | needed[event["ph"]] | {"args"}, event
        assert event["name"] and all(isinstance(event[field], int) for field in ("pid", "tid", "ts")), event
        match event["ph"]:
            case "X":
                assert isinstance(event["dur"], int) and event["dur"] >= 0
            case "i":
                assert event["s"] in "tp"
            case "C":
                assert all(isinstance(value, int | float) for value in event["args"].values())
            case "M":
                (value,) = event["args"].items()
                assert value[0] == ("sort_index" if event["name"].endswith("sort_index") else "name")
    events: list[Json] = document["traceEvents"]
    return events


def spans_by_track(events: list[Json]) -> Iterator[tuple[Any, list[Json]]]:
    tracks: dict[Any, list[Json]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append(event)
    yield from tracks.items()


def test_events_are_sorted_and_spans_lie_within_each_other(scene: str, folder: Path) -> None:
    """On no track do two spans overlap in part, and what encloses another comes first."""
    events = events_of(scene, folder)
    times = [event["ts"] for event in events if event["ph"] != "M"]
    assert times == sorted(times)
    for _, spans in spans_by_track(events):
        open_until: list[int] = []
        for span in spans:
            while open_until and open_until[-1] <= span["ts"]:
                open_until.pop()
            assert not open_until or span["ts"] + span["dur"] <= open_until[-1], span
            open_until.append(span["ts"] + span["dur"])


@pytest.mark.parametrize("name", PLAYED)
def test_the_timeline_shows_each_step_and_its_phases(name: str, folder: Path) -> None:
    traces = scenario(name)
    spans = dict(spans_by_track(events_of(name, folder)))[STEPS]
    steps = [span for span in spans if span["cat"] == "step"]
    assert [(span["args"]["step"], span["ts"]) for span in steps] == [(t.step, round(1e6 * t.started)) for t in traces]
    for step, trace in zip(steps, traces, strict=True):
        within = [span for span in spans if span["cat"] == "phase" and 0 <= span["ts"] - step["ts"] < step["dur"]]
        assert [span["name"] for span in within] == list(PHASES)
        assert [span["dur"] / 1e6 for span in within] == pytest.approx([getattr(trace.times, p) for p in PHASES])
        assert step["dur"] == sum(span["dur"] for span in within)
        assert step["args"]["computed"] == trace.num_scheduled_tokens


def by_key(pairs: Iterable[tuple[Key, Value]]) -> defaultdict[Key, list[Value]]:
    found = defaultdict(list)
    for key, value in pairs:
        found[key].append(value)
    return found


@pytest.mark.parametrize("name", PLAYED)
def test_the_timeline_shows_what_each_request_got(name: str, folder: Path) -> None:
    """Token for token, preemption for preemption, from arrival to end, and in the times of the steps."""
    traces = scenario(name)
    events = events_of(name, folder)
    arrived = [arrival.request_id for trace in traces for arrival in trace.arrivals]
    tracks = dict(spans_by_track(events))
    assert len(tracks) == 1 + len(arrived)
    items = by_key((item.request_id, (t.step, item)) for t in traces for item in t.scheduled)
    preempted = by_key((p.request_id, p) for t in traces for p in t.preemptions)
    outputs = by_key((o.request_id, o) for t in traces for o in t.outputs)
    ends = by_key((f.request_id, str(f.reason)) for t in traces for f in t.finished)
    instants = by_key(((e["pid"], e["tid"]), e["name"]) for e in events if e["ph"] == "i")
    for number, request_id in enumerate(arrived):
        track = REQUESTS, FIRST_REQUEST + number
        life, *parts = tracks[track]
        assert life["name"].startswith(f"request {request_id}")
        got = [(part["args"]["step"], part["args"]["tokens"]) for part in parts if "tokens" in part.get("args", {})]
        assert got == [(step, item.num_tokens) for step, item in items[request_id]]
        starts = {part["ts"] for part in parts if "tokens" in part.get("args", {})}
        assert starts == {round(1e6 * traces[step].started) for step, _ in items[request_id]}
        assert instants[track].count("preempted") == len(preempted[request_id])
        assert instants[track].count("first token") == bool(outputs[request_id])
        assert [life["args"]["end"]] == (ends[request_id] or ["not in these steps"])


def test_a_wait_says_why(folder: Path) -> None:
    events = events_of("preempting", folder)
    (lost,) = [event for event in events if event["name"] == "preempted" and event["args"]["lost tokens"] == 35]
    assert lost["args"]["for"] == "request 2 short"
    wait = next(event for event in events if event["name"] == "waiting" and event["ts"] == lost["ts"])
    assert wait["args"] == {"after": "a preemption", "lost tokens": 35}
    reasons = {event["name"] for event in events if event["name"].startswith("blocked")}
    assert {"blocked: budget", "blocked: blocks", "blocked: preemption"} <= reasons


def test_between_steps_nothing_is_computed(folder: Path) -> None:
    """The scripted clock leaves a gap behind each step: a request shows it."""
    (decodes,) = [
        [span for span in spans if span["name"] == "decode"]
        for track, spans in spans_by_track(events_of("preempting", folder))
        if track == (REQUESTS, FIRST_REQUEST)
    ]
    assert all(b["ts"] - (a["ts"] + a["dur"]) == 3900 for a, b in pairwise(decodes))


def exported(folder: Path, traces: list[StepTrace]) -> list[Json]:
    """The events of a timeline of these."""
    target = folder / "x"
    write_all(files("perfetto", target, Material("x", traces, READY)))
    events: list[Json] = json.loads(target.read_bytes())["traceEvents"]
    return events


def test_what_was_said_is_on_the_timeline(tmp_path: Path) -> None:
    traces = [replace(trace, note="Look here.") if trace.step == 3 else trace for trace in scenario("busy")]
    (note,) = [event for event in exported(tmp_path, traces) if event.get("name") == "note"]
    assert note["args"] == {"step": 3, "said": "Look here."}


def test_a_change_of_parameters_is_on_the_timeline(tmp_path: Path) -> None:
    traces = [
        replace(t, config=changed(t.config, max_num_batched_tokens=16)) if t.step > 3 else t for t in scenario("busy")
    ]
    (change,) = [event for event in exported(tmp_path, traces) if event.get("s") == "p"]
    assert change["name"] == "max_num_batched_tokens: 128 → 16" and change["args"] == {"step": 4}


@pytest.mark.parametrize("name", PLAYED)
def test_perfetto_itself_reads_the_timeline(name: str, folder: Path) -> None:
    """Its own program finds no mistake, and in what it has read the numbers of the traces."""
    traces = scenario(name)
    perfetto = TraceProcessor(timeline(name, folder))
    assert perfetto.query("select name, value from stats where severity != 'info' and value != 0") == []
    events = events_of(name, folder)
    assert perfetto.query("select count(*) from slice") == [(sum(event["ph"] in "Xi" for event in events),)]
    assert perfetto.query("select count(*) from slice where dur < 0") == [(0,)]
    computed = "select sum(extract_arg(arg_set_id, 'args.computed')) from slice where category = 'step'"
    assert perfetto.query(computed) == [(sum(trace.num_scheduled_tokens for trace in traces),)]
    for kind in get_args(Kind):
        most = f"select max(value) from counter join counter_track t on track_id = t.id where name = 'tokens {kind}'"
        assert perfetto.query(most) == [(max(trace.num_tokens_of(kind) for trace in traces),)]
    depths = "select distinct depth from slice join thread_track on track_id = thread_track.id join thread using (utid)"
    assert perfetto.query(f"{depths} where thread.name = 'Steps' order by depth") == [(0,), (1,)]
    names = perfetto.query("select count(*) from thread where name glob '? request *'")
    assert names == [(sum(len(trace.arrivals) for trace in traces),)]


def test_perfetto_itself_refuses_what_is_no_timeline() -> None:
    """Or its silence about ours would say nothing."""
    with pytest.raises(AssertionError, match="type"):
        TraceProcessor(b"step,tokens\n0,7\n")


# Tables.


def tables(name: str, folder: Path) -> tuple[list[Row], list[Row], Json]:
    steps, requests = (
        list(csv.DictReader(io.StringIO(content.decode(), newline=""), strict=True))
        for content in written("csv", name, folder)
    )
    (content,) = written("json", name, folder)
    return steps, requests, json.loads(content)


def test_tables_add_up_to_the_traces(scene: str, tmp_path: Path) -> None:
    traces = scenario(scene)
    steps, requests, document = tables(scene, tmp_path)
    for rows in (steps, document["steps"]):
        assert [int(row["step"]) for row in rows] == [trace.step for trace in traces]
        assert [float(row["started_s"]) for row in rows] == pytest.approx([trace.started for trace in traces])
        assert sum(int(row["computed"]) for row in rows) == sum(trace.num_scheduled_tokens for trace in traces)
    for rows in (steps, requests, document["steps"], document["requests"]):
        assert sum(int(row["outputs"]) for row in rows) == sum(len(trace.outputs) for trace in traces)
        assert sum(int(row["preemptions"]) for row in rows) == sum(len(trace.preemptions) for trace in traces)
        cached = sum(item.num_cached_tokens for trace in traces for item in trace.scheduled)
        assert sum(int(row["cached"]) for row in rows) == cached
    arrivals = [arrival for trace in traces for arrival in trace.arrivals]
    assert [row["request_id"] for row in requests] == [arrival.request_id for arrival in arrivals]
    assert [row["prompt"] for row in document["requests"]] == [arrival.prompt for arrival in arrivals]
    tokens = [(o.request_id, o.token_id) for trace in traces for o in trace.outputs]
    found = [(row["request_id"], token) for row in document["requests"] for token in row["token_ids"]]
    assert sorted(found) == sorted(tokens)


def test_both_tables_say_the_same(scene: str, tmp_path: Path) -> None:
    steps, requests, document = tables(scene, tmp_path)
    for rows, records in ((steps, document["steps"]), (requests, document["requests"])):
        for row, exact in zip(rows, records, strict=True):
            assert set(row) <= set(exact)
            for name, text in row.items():
                if isinstance(exact[name], float):
                    assert float(text) == pytest.approx(exact[name], abs=1e-9)
                else:
                    assert text == ("" if exact[name] is None else str(cell(exact[name])))


def test_json_says_what_was_run(tmp_path: Path) -> None:
    document = tables("busy", tmp_path)[2]
    assert document["model"] == READY.model and document["nanoviz"] and document["run"] == "busy"
    assert document["config"]["max_num_batched_tokens"] == scenario("busy")[0].config.max_num_batched_tokens


def test_hostile_text_is_data(tmp_path: Path, folder: Path) -> None:
    _, requests, document = tables("hostile", tmp_path)
    for rows in (requests, document["requests"]):
        assert [(row["label"], row["prompt"]) for row in rows] == [(HOSTILE, HOSTILE)] * 2
        assert all(HOSTILE in row["output"] for row in rows)
    lives = [event for event in events_of("hostile", folder) if event["name"].startswith("request ")]
    assert [life["args"]["prompt"] for life in lives] == [HOSTILE] * 2


@pytest.mark.parametrize("text", ["=1+1", "+1", "-2", "@SUM(A1)", '=HYPERLINK("x")', " =1", "\t=1", "\n-1", "＝1"])
def test_text_that_a_spreadsheet_would_compute_is_marked_as_text(text: str) -> None:
    assert cell(text) == f"'{text}"


@pytest.mark.parametrize("value", ["", "a=b", "1-2", -1, -0.5, None, "What is 1+1?"])
def test_all_else_stands_as_it_is(value: str | float | None) -> None:
    assert cell(value) == value


# Files.


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def whole(path: Path) -> None:
    path.write_text("whole")


def failing(path: Path) -> None:
    path.write_bytes(b"half")
    raise OSError(28, "No space left on device")


def test_of_two_files_there_are_both_or_none(tmp_path: Path) -> None:
    wanted = {tmp_path / "a": whole, tmp_path / "b": failing}
    with pytest.raises(ExportError, match="b cannot be written: No space left on device"):
        write_all(wanted)
    assert left_in(tmp_path) == []


def test_nothing_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "x-requests.csv").write_text("mine")
    with pytest.raises(ExportError, match="exists already"):
        write_all(files("csv", tmp_path / "x.csv", Material("x", scenario("busy"), READY)))
    assert left_in(tmp_path) == ["x-requests.csv"] and (tmp_path / "x-requests.csv").read_text() == "mine"


def test_a_file_that_comes_meanwhile_stays(tmp_path: Path) -> None:
    target = tmp_path / "x"

    def write(path: Path) -> None:
        path.write_text("ours")
        target.write_text("theirs")

    with pytest.raises(ExportError, match="exists already"):
        write_all({target: write})
    assert left_in(tmp_path) == ["x"] and target.read_text() == "theirs"


def test_where_there_are_no_links_it_is_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.link", no_links)
    write_all({tmp_path / "x": whole})
    assert left_in(tmp_path) == ["x"] and (tmp_path / "x").read_text() == "whole"


@pytest.mark.parametrize(
    ("name", "base"),
    [("run.gz", "run"), ("a/my.run.jsonl.gz", "my.run"), ("run", "run"), ("run.jsonl", "run"), (".gz", "run")],
)
def test_files_are_called_like_the_recording(name: str, base: str) -> None:
    assert base_name(Path(name)) == base


# The command.


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recording, in a folder of its own that is the current one."""
    monkeypatch.chdir(tmp_path)
    return record(Path("run.gz"))


@pytest.mark.parametrize(
    ("format", "names"),
    [
        ("perfetto", ["run.perfetto.json"]),
        ("csv", ["run-requests.csv", "run-steps.csv"]),
        ("json", ["run.json"]),
        ("svg", ["run.svg"]),
    ],
)
def test_the_command_writes_beside_and_says_what(
    format: str, names: list[str], run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run_cli(capsys, "export", str(run), "--as", format)
    assert result.code == 0 and not result.err
    assert sorted(result.out.split()) == sorted(["Wrote", *names] if len(names) == 1 else ["Wrote", "Wrote", *names])
    assert left_in(Path()) == sorted(["run.gz", *names])
    again = run_cli(capsys, "export", str(run), "--as", format)
    assert again.code == 2 and "exists already" in again.err
    again.check_short()


def test_the_command_writes_where_it_is_told_to(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("there").mkdir()
    assert run_cli(capsys, "export", str(run), "--as=csv", "--to=there/mine.csv").code == 0
    assert left_in(Path("there")) == ["mine-requests.csv", "mine-steps.csv"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("nothing.gz", "--as=csv"), "cannot be read"),
        (("run.gz", "--as=csv", "--step=3"), "go with --as svg"),
        (("run.gz", "--as=svg", "--step=9999"), "there is no step 9,999: there are 0 to"),
        (("run.gz", "--as=svg", "--step=-1"), "there is no step -1"),
        (("run.gz", "--as=svg", "--size=20x5"), "none of these sizes"),
        (("run.gz", "--as=svg", "--size=big"), "columns x rows"),
        (("run.gz", "--as=json", "--to=no/such/folder"), "cannot be written"),
        (("run.gz", "--as=json", "--to=run.gz/x"), "cannot be written"),
        (("run.gz", "--as=json", "--to=/"), "exists already"),
        (("run.gz", "--as=json", "--to="), "exists already"),
        (("run.gz", "--as=csv", "--num-blocks=90"), "--num-blocks goes with a preset"),
        (("figure", "--as=svg", "--size=1x1"), "none of these sizes"),
        (("figure", "--as=json", "--to=run.gz"), "exists already"),
    ],
)
def test_mistakes_are_told_in_one_line(
    arguments: tuple[str, ...], says: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run_cli(capsys, "export", *arguments)
    assert result.code == 2 and says in result.err
    result.check_short()
    assert left_in(Path()) == ["run.gz"]


def test_of_a_damaged_recording_there_is_what_stands_before(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = run.read_bytes()
    Path("torn.gz").write_bytes(content[: len(content) // 2])
    result = run_cli(capsys, "export", "torn.gz", "--as=json")
    assert result.code == 0 and "is damaged behind step" in result.err and "exported" in result.err
    steps = json.loads(Path("torn.json").read_bytes())["steps"]
    assert len(steps) == len(Recording(Path("torn.gz")).traces) > 0


def test_a_recording_without_a_step_is_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record(Path("none.gz"), [])
    result = run_cli(capsys, "export", "none.gz", "--as=csv")
    assert result.code == 2 and "holds no step" in result.err


def test_help_says_what_each_format_is_for(capsys: pytest.CaptureFixture[str]) -> None:
    told = " ".join(run_cli(capsys, "export", "--help").out.split())
    assert all(name in told for name in FORMATS) and "ui.perfetto.dev" in told and "spreadsheet" in told


def test_a_picture_shows_the_step_in_the_size(run: Path) -> None:
    assert main(["export", str(run), "--as=svg", "--step=12", "--size=100x30"]) == 0
    picture = ElementTree.parse("run.svg").getroot()
    rows: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for text in picture.iter("{http://www.w3.org/2000/svg}text"):
        rows[text.get("y", "")].append((float(text.get("x", 0)), text.text or ""))
    lines = ["".join(text for _, text in sorted(row)).replace("\xa0", " ") for row in rows.values()]
    (header,) = [line for line in lines if READY.model in line]
    assert re.search(r"step\s+12\b", header) and "recording" in header and "paused" in header
    assert len(picture.findall(".//{*}clipPath")) == 30  # a row each but the last, and the whole


# In the dashboard.


async def take(stand: Stand, choice: str) -> str:
    """Choose it from the list; returns what is said then."""
    stand.app.clear_notifications()
    await stand.press("E", *("down",) * list(CHOICES).index(choice), "enter")
    assert not isinstance(stand.app.screen, TakeAwayScreen)
    await stand.until(lambda: stand.app._notifications)
    (note,) = stand.app._notifications
    return note.message


@pytest.mark.parametrize("choice", CHOICES)
async def test_a_run_is_taken_away_from_the_dashboard(
    choice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with dashboard((120, 40), *stepped("preempting")) as stand:
        note = await take(stand, choice)
    names = left_in(tmp_path)
    assert note.startswith("Saved ") and len(names) == (2 if choice == "csv" else 1)
    assert all(name.startswith("nanoviz") and name in note for name in names)
    content = (tmp_path / names[0]).read_bytes()
    if choice == "recording":
        assert tuple(Recording(tmp_path / names[0]).traces) == scenario("preempting")
    elif choice == "json":
        assert len(json.loads(content)["steps"]) == len(scenario("preempting"))
    elif choice == "svg":
        assert b"Token" in content and b"Take" not in content, "the picture is of the dashboard"


async def test_a_replay_can_be_taken_away_and_keeps_its_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    recording = Recording(record(tmp_path / "run.gz"))
    recording.header = replace(recording.header, recorded="2026-01-02T03:04:05+00:00")
    source = Replay(recording, len(recording.traces), FakeClock())
    async with dashboard(start=lambda _: source, engine_config=recording.traces[0].config) as stand:
        await stand.until(lambda: stand.app.session.view.trace)
        await take(stand, "recording")
    (saved,) = tmp_path.glob("nanoviz*.gz")
    assert tuple(Recording(saved).traces) == tuple(recording.traces)
    assert Recording(saved).header == recording.header


def idle(count: int) -> Iterator[StepTrace]:
    """Steps without anybody in them."""
    for step in range(count):
        yield StepTrace(step=step, started=float(step), config=EngineConfig(), num_free_blocks=127)


async def test_what_is_no_longer_kept_is_not_written_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    steps = map(protocol.Stepped, idle(250))
    async with dashboard((120, 40), READY, *steps, history_steps=100) as stand:
        first = stand.app.session.history.first_step
        note = await take(stand, "perfetto")
        assert first and f"the oldest one kept is {first}" in note and "--record" in note
    assert left_in(tmp_path) == []


async def test_before_the_first_step_there_is_nothing_to_take_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with dashboard((120, 40), READY) as stand:
        assert "nothing was computed" in await take(stand, "csv")
    assert left_in(tmp_path) == []


async def test_escape_saves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with dashboard((120, 40), *stepped("busy")) as stand:
        await stand.press("E", "j", "escape")
        assert not isinstance(stand.app.screen, TakeAwayScreen)
        await stand.press("E", "E")
        assert not isinstance(stand.app.screen, TakeAwayScreen)
    assert left_in(tmp_path) == []
