"""`nanoviz bench`: that its parts measure what they say, and run. How fast anything is here is not looked at."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from multiprocessing import Pipe

import msgspec
import pytest

from app import bench_engine, bench_soak, bench_startup, bench_ui, protocol
from app.bench_engine import Standing, Standings, Workload
from app.bench_soak import Reading, growth
from app.bench_startup import Start, Starts
from app.bench_ui import latencies
from app.pseudo_terminal import COLUMNS, Frame, Screen
from app.watched import steps_of
from engine.contenders import CONTENDERS, Contest
from engine.progress import ModelError
from tests.app.support import READY, STEP_SECONDS, TIMES, run_cli, scenario


def frame(at: float, text: str) -> Frame:
    return Frame(at, text.encode())


def test_a_screen_shows_what_was_written_where() -> None:
    screen = Screen()
    screen.show(frame(0.0, "\x1b[2;3H\x1b[1;38;2;1;2;3m▸ a\x1b[m\x1b[4Cx\x1b[?25l\x1b]0;title\x07"))
    assert screen.lines[1] == "  ▸ a    x".ljust(COLUMNS)
    screen.show(frame(1.0, "\x1b[2;5Hb"))
    assert screen.lines[1] == "  ▸ b    x".ljust(COLUMNS)


def test_the_latency_of_a_key_ends_with_the_frame_in_which_another_is_selected() -> None:
    frames = [
        frame(1.0, "\x1b[5;1H▸ a"),
        frame(2.1, "\x1b[9;1Hsomething else"),
        frame(2.2, "\x1b[5;1H  a\x1b[6;1H▸ b"),
        frame(2.5, "\x1b[6;1H  b\x1b[5;1H▸ b\x1b[6;1H  c"),  # the same one in another row
        frame(4.7, "\x1b[5;1H  b\x1b[6;1H▸ c"),
    ]
    assert latencies(frames, [2.0, 3.0, 4.5]) == pytest.approx([0.2, 0.2]), "nothing came of the second key"


def test_steps_that_came_together() -> None:
    traces = scenario("busy")
    steps = steps_of([READY, *map(protocol.Stepped, traces)])
    assert steps is not None
    assert (steps.started, steps.last) == (traces[0].started, traces[-1].step)
    assert (steps.num_running, steps.num_waiting) == (len(traces[-1].scheduled), traces[-1].num_waiting)
    assert steps.ended - steps.started == pytest.approx((len(traces) - 1) * STEP_SECONDS + TIMES.total)
    assert steps.num_tokens == sum(len(trace.outputs) for trace in traces) > 0
    assert steps_of([READY]) is None


def test_growth_is_that_of_a_full_history() -> None:
    """Until then it has to grow."""
    full = bench_soak.FULL_STEPS
    filling = [Reading(full * n // 10, dashboard=100 + 20 * n, engine=400) for n in range(10)]
    flat = [Reading(full + n, dashboard=300 + n % 3, engine=400 + n) for n in range(9)]
    assert growth([*filling, *flat], "dashboard") == 1
    assert growth([*filling, *flat], "engine") == pytest.approx(407 / 401)
    assert growth(filling, "dashboard") is None


@pytest.fixture
def briefly(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, value in {
        "IDLE_SECONDS": 0.5,
        "LOAD_SECONDS": 1.0,
        "NUM_KEYS": 3,
        "NUM_PAIRS": 1,
        "RUN_SECONDS": 0.1,
        "CROWD_SEATS": 4,
        "CROWD_WAITING": 30,
        "CROWD_BLOCKS": 64,
        "CROWD_READINGS": 2,
    }.items():
        monkeypatch.setattr(bench_ui, name, value)
    for name, value in {"NUM_STEPS": 150, "NUM_READINGS": 5, "FULL_STEPS": 50}.items():
        monkeypatch.setattr(bench_soak, name, value)
    yield


@pytest.mark.usefixtures("briefly")
def test_bench_ui_prints_everything(capsys: pytest.CaptureFixture[str]) -> None:
    result = run_cli(capsys, "bench", "ui", "--model", "tiny")
    assert result.code == 0 and not result.err, result
    for pattern in (
        r"idle: \d+\.\d% of a core, its engine \d+\.\d%; \d+ frames",
        r"key to frame, p50 and p95 .* ms",
        r"bytes a frame, median and p95 +\d",
        r"frames a second +\d+\.\d",
        r"CPU of the dashboard +\d+\.\d%",
        r"paused, under load: \d+\.\d% of a core, its engine \d+\.\d%; \d+ frames",
        r"memory of the dashboard after [\d,]+ steps: \d+ MiB",
        r"tiny with 64 blocks:",
        r" 4 running, 0 waiting: a step takes \d+\.\d ms",
        r" 4 running, \d+ waiting: a step takes \d+\.\d ms",
        r"then key to frame, p50 and p95 .* \(\d of 3 keys without effect\), \d+\.\d frames a second",
        r"tiny: a trace is [\d,]+ bytes; \d+ us to encode, \d+ to pipe, \d+ to decode: \d+\.\d% of its step of",
        r"tiny: [\d,]+ tokens/s without the dashboard, [\d,]+ with it: a tax of",
        r"\d cores; Python 3.*, nanoviz [\d.]+, torch",
    ):
        assert re.search(pattern, result.out), result.out


def test_bench_startup_as_json_and_as_text(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_startup, "ROUNDS", 1)
    result = run_cli(capsys, "bench", "startup", "--model", "tiny", "--json")
    assert result.code == 0 and not result.err, result
    answer = json.loads(result.out)
    assert answer["machine"]["cores"] >= 1 and "torch" in answer["machine"]["versions"]
    [found] = answer["results"]
    [start] = found["starts"]
    assert start["help"] > 0 and 0 < start["first_frame"] < start["first_token"]
    assert 0 < start["dashboard"] < start["engine"]
    slow = msgspec.convert({**start, "first_token": 2 * start["first_token"]}, Start)
    lines = list(Starts("tiny", [msgspec.convert(start, Start), slow]).lines())
    assert re.match(r"nanoviz --help +\d+\.\d\d s ", lines[0]) and "noisy: first token differ" in lines[-1]


def test_bench_startup_of_an_engine_that_does_not_start(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_startup, "ROUNDS", 1)
    result = run_cli(capsys, "bench", "startup", "--model", "tiny", "--device", "toaster")
    assert result.code == 2 and "toaster" in result.err and "Traceback" not in result.err


def test_bench_scheduler_as_json_and_soak_as_text_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.bench.NUM_RUNNING", (2,))
    monkeypatch.setattr("engine.bench.NUM_WAITING", 5)
    result = run_cli(capsys, "bench", "scheduler", "--json")
    assert result.code == 0 and not result.err, result
    sizes = [found["cost"] for found in json.loads(result.out)["results"]]
    assert [(size["num_running"], size["num_waiting"]) for size in sizes] == [(2, 0), (2, 5)]
    refused = run_cli(capsys, "bench", "soak", "--json")
    assert refused.code == 2 and "--json" in refused.err


@pytest.mark.usefixtures("briefly")
def test_bench_soak_finds_nothing_wrong(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_soak, "GROWTH", float("inf"))  # of so short a run memory says nothing
    result = run_cli(capsys, "bench", "soak")
    assert result.code == 0 and not result.err, result
    assert result.out.count("yes  ") == 5 and "NO  " not in result.out
    steps = [int(row.split()[1]) for row in result.out.splitlines() if re.fullmatch(r"[\d, ]+", row)]
    assert len(steps) >= 5 and steps == sorted(set(steps)) and steps[0] >= 30 and steps[4] >= 150


CONTEST = (
    "bench",
    "engine",
    "--model",
    "tiny",
    "--threads",
    "1",
    "--requests",
    "3",
    "--prompt-len",
    "2-9",
    "--new-tokens",
    "4",
)


def test_bench_engine_serves_the_same_requests_with_every_engine(capsys: pytest.CaptureFixture[str]) -> None:
    result = run_cli(capsys, *CONTEST, "--rounds", "1", "--json")
    assert result.code == 0 and not result.err, result
    [found] = json.loads(result.out)["results"]
    standings = found["standings"]
    assert [standing["name"] for standing in standings][:2] == ["nanoviz", "transformers, one by one"]
    assert len(standings) >= 4 and all(standing["num_same"] == 3 for standing in standings), standings
    assert [standing["ratio"] is None for standing in standings] == [True] + [False] * (len(standings) - 1)


def test_a_contest_of_prompts_that_are_the_same_every_time() -> None:
    workload = Workload(num_requests=50, shortest=2, longest=4, num_tokens=1)
    prompts = workload.prompts()
    assert prompts == workload.prompts() and {len(prompt) for prompt in prompts} == {2, 3, 4}


def test_the_table_says_when_the_machine_was_noisy() -> None:
    workload = Workload(2, 1, 1, 1)
    calm = Standing("calm", "v1", 100.0, 1.01, None, 2)
    noisy = Standing("noisy", "v2", 50.0, 1.9, 2.0, 1)
    contest = Contest("tiny", "float32", 1, 2, 9)
    assert not any("noisy" in line for line in Standings(contest, workload, 1, [calm], []).lines())
    *_, row, warning = Standings(contest, workload, 1, [calm, noisy], []).lines()
    assert "2.00x" in row and "1/2" in row and "1.90x" in row
    assert "noisy:" in warning and "calm" not in warning


def test_a_contender_that_cannot_run_says_why(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_engine, "available", lambda: dict.fromkeys(list(CONTENDERS)[:2], "v"))
    result = run_cli(capsys, *CONTEST, "--dtype", "int3")
    assert result.code == 2 and "nanoviz cannot be measured" in result.err and "int3" in result.err


def test_a_contender_that_does_not_run_the_model_is_left_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_engine, "available", lambda: {**dict.fromkeys(list(CONTENDERS)[:2], "v"), "nobody": "v"})
    result = run_cli(capsys, *CONTEST, "--rounds", "1")
    assert result.code == 0 and not result.err
    assert "left out: nobody cannot be measured" in result.out


@pytest.mark.parametrize("flags", [("--requests", "0"), ("--prompt-len", "9-5"), ("--prompt-len", "x")])
def test_contests_that_make_no_sense(flags: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    result = run_cli(capsys, "bench", "engine", *flags)
    assert result.code == 2 and repr(flags[1]) in result.err


def test_outputs_of_ours_that_change_are_an_error() -> None:
    workload = Workload(1, 1, 1, 1)
    here, there = Pipe()
    for outputs in ([[1]], [[1]], [[2]]):
        there.send(("", 1.0, outputs))
    ours = bench_engine.Contender("nanoviz", "v", here)
    ours.run(workload)
    ours.run(workload)
    with pytest.raises(ModelError, match="bug"):
        ours.run(workload)
