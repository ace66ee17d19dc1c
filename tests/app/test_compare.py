"""Compare: what is drawn of several runs against their metrics and traces, the screen, and what the command prints."""

from __future__ import annotations

import csv
import json
import os
import pty
import re
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from io import StringIO
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from app import palette
from app.commands import COMMANDS
from app.comparison.axis import AXIS_KINDS, Axis, AxisKind, extents
from app.comparison.figures import Figure, all_labels, best, differences, figures, numbers
from app.comparison.page import comparison
from app.comparison.plots import plots
from app.comparison.table import BEST_MARK, Table
from app.comparison.timelines import FIRST_TOKEN_MARK, MAX_REQUESTS, timelines
from app.metrics import SPREADS, STATISTICS, TOTALS, Metric, amount
from app.palette import KIND_GLYPHS, PREEMPTED_GLYPH, palette_for
from app.panels.panel import Part
from app.recording import Recorder
from app.run import Run
from app.screens.compare import CompareScreen
from tests.app.support import (
    HOSTILE,
    HOSTILE_SHOWN,
    READY,
    SCENARIOS,
    ScriptedEngine,
    Stand,
    compared_runs,
    dashboard,
    repeatable,
    run_cli,
    scenario,
    text_of,
)
from tests.engine.support import config


@pytest.fixture(autouse=True)
def _colors() -> Iterator[None]:
    """What a test or a command draws with is put back."""
    palette.use(palette_for(dark=True))
    yield
    palette.use(palette_for(dark=True))


RUNS = STATIC, ORCA, CHUNKED = compared_runs()
PREEMPTING = Run("preempting", scenario("preempting"))
EMPTY = Run("empty")


def drawn(lines: list[list[Part]]) -> list[str]:
    return [text_of(line).rstrip() for line in lines]


def row_of(lines: list[str], *words: str) -> str:
    return next(line for line in lines if all(word in line for word in words))


# Figures.


def test_the_table_shows_the_metrics_of_each_run() -> None:
    lines = drawn(Table(RUNS).lines(120))
    shown = figures(RUNS)
    assert {figure.metric.name for figure in shown} >= {
        *("ttft.p50", "ttft.max", "ttft.short.p50", "ttft.long.max", "itl.p50", "itl.p95", "itl.max"),
        *("throughput", "steps", "seconds", "budget_use", "kv_max", "running_max"),
    }
    body = lines[-len(shown) :]
    for figure, line in zip(shown, body, strict=True):
        values = line[26:].replace(BEST_MARK, "").split("  ")
        expected = [amount(value, figure.metric.unit) for value in figure.values(RUNS)]
        assert [value.strip() for value in values if value.strip()] == expected, line
        assert figure.name in line


def test_names_of_labels_are_those_that_metrics_are_asked_by() -> None:
    for figure in figures(RUNS):
        assert Metric.parse(figure.metric.name) == figure.metric
    assert all_labels(RUNS) == ["short", "long"]


def test_a_label_with_a_dot_can_be_compared() -> None:
    stage = ScriptedEngine(config(blocks=40, bs=8, budget=64, seqs=2, length=128))
    stage.add(label="a.b")
    stage.add(label="c")
    stage.run_to_end()
    run = Run("dots", stage.traces)
    assert "p50" in row_of(drawn(Table([run]).lines(80)), "a.b p50")
    assert numbers(run, ["a.b"])["ttft.a.b.max"] == max(
        row.view.ttft or 0.0 for row in run.requests if row.label == "a.b"
    )


def test_what_there_is_nothing_to_say_of_is_left_out() -> None:
    text = "\n".join(drawn(comparison(RUNS, 120, "steps")))
    assert "preemptions" not in text and "Preemptions" not in text and "recomputed" not in text
    text = "\n".join(drawn(comparison([PREEMPTING, EMPTY], 120, "steps")))
    assert "preemptions" in text and "Preemptions" in text and "recomputed" in text and "saved" not in text
    assert "saved by the cache" in "\n".join(drawn(Table([Run("sharing", scenario("sharing"))]).lines(120)))


def test_the_best_of_a_row_is_marked() -> None:
    lines = drawn(Table(RUNS).lines(120))
    assert row_of(lines, "ITL", "p50").count(BEST_MARK) <= 1
    assert BEST_MARK in row_of(lines, "short max") and "best of its row" in lines[0]
    for word in ("\nsteps", "served", "running", "budget  used"):
        line = next(line for line in lines if f"\n{line}".find(word) >= 0)
        assert BEST_MARK not in line, "there a best has no meaning"


def test_times_of_a_run_that_was_held_back_are_not_compared() -> None:
    runs = [Run(name, scenario("busy")) for name in "ab"]
    free = {figure.metric.name: figure.better for figure in figures(runs)}
    runs[1].was_held = True
    held = {figure.metric.name: figure.better for figure in figures(runs)}
    assert free["ttft.max"] == free["seconds"] == "lower" and free["throughput"] == "higher"
    assert held["ttft.max"] is held["seconds"] is held["throughput"] is None
    assert held["ttft_steps.max"] == held["itl_tokens.max"] == "lower"
    assert "best" not in drawn(Table([STATIC]).lines(120))[0]


@pytest.mark.parametrize(
    ("values", "better", "expected"),
    [
        ([3.0, 1.0, 2.0], "lower", 1),
        ([3.0, 1.0, 2.0], "higher", 0),
        ([3.0, 1.0, 2.0], None, None),
        ([1.0, 1.0, 2.0], "lower", None),
        ([1.0, 1.00001, 2.0], "lower", None),
        ([None, 1.0, 2.0], "lower", 1),
        ([None, 1.0], "lower", None),
        ([None, None], "lower", None),
    ],
)
def test_the_best(values: list[float | None], better: str | None, expected: int | None) -> None:
    figure = Figure("", "", Metric.parse("ttft.max"), better)  # type: ignore[arg-type]
    assert best(values, figure.metric, figure.better) == expected


def test_parameters_that_differ_are_listed() -> None:
    assert differences(RUNS) == [
        ("max_num_batched_tokens", ["1024", "1024", "64"]),
        ("policy", ["static", "orca", "fcfs"]),
    ]
    assert differences([STATIC, STATIC]) == differences([STATIC, EMPTY]) == []
    assert "fcfs" in row_of(drawn(Table(RUNS).lines(120)), "policy")


def test_runs_that_do_not_fit_beside_each_other_are_below() -> None:
    many = [Run(f"the run number {number}", scenario("busy")) for number in range(12)]
    lines = drawn(Table(many).lines(80))
    assert sum("TTFT" in line for line in lines) > 1
    text = " ".join(" ".join(lines).split())
    for number in range(12):
        assert f" {number} " in text


# Plots.


def test_bars_are_on_one_scale() -> None:
    lines = drawn(plots(RUNS, 100))
    start = next(index for index, line in enumerate(lines) if line.startswith("Throughput"))
    bars = [lines[start + 1 + index].count("█") for index in range(3)]
    values = [Metric.parse("throughput").of(run) or 0.0 for run in RUNS]
    for bar, value in zip(bars, values, strict=True):
        assert bar == pytest.approx(max(bars) * value / max(values), abs=1)
        assert amount(value, "tokens/s") in "\n".join(lines)


def test_marks_stand_at_the_percentiles() -> None:
    lines = drawn(plots(RUNS, 100))
    start = next(index for index, line in enumerate(lines) if line.startswith("ITL"))
    for run, line in zip(RUNS, lines[start + 1 :], strict=False):
        assert line.startswith(run.name)
        for statistic in ("p50", "p95", "max"):
            assert amount(Metric.parse(f"itl.{statistic}").of(run), "seconds") in line
    assert "█ p50" in lines[start] and "┼ p95" in lines[start] and "┤ max" in lines[start]


# Timelines.


@repeatable
@given(
    st.sampled_from(AXIS_KINDS),
    st.integers(20, 200),
    st.lists(st.sampled_from([*RUNS, PREEMPTING]), min_size=1, max_size=4),
)
def test_the_same_step_or_second_is_in_the_same_column(kind: AxisKind, width: int, runs: list[Run]) -> None:
    axis = Axis.of(runs, kind, width)
    for run in runs:
        when = extents(run, kind)
        cells = [axis.cells(extent) for extent in when]
        for extent, its, following in zip(when, cells, [*cells[1:], None], strict=True):
            assert len(its) >= 1 and 0 <= its[0] <= its[-1] < width
            assert its[0] == min(width - 1, int(extent[0] / axis.per_cell + 1e-6)), "whatever the run is"
            assert following is None or following[0] in (its[-1], its[-1] + 1), "there is no hole between steps"
    longest = max(extents(run, kind)[-1][1] for run in runs)
    assert axis.cell(longest * 0.999) >= width // 2 or axis.per_cell <= 1 / 8, "the room is used"


@repeatable
@given(st.sampled_from(AXIS_KINDS), st.integers(60, 200))
def test_a_run_is_drawn_the_same_beside_a_copy_of_it(kind: AxisKind, width: int) -> None:
    alone = drawn(timelines([CHUNKED], width, kind))
    twice = drawn(timelines([CHUNKED, CHUNKED], width, kind))
    assert twice == alone + alone[alone.index("") :]


def lives(lines: list[str], label: str) -> list[str]:
    return [line for line in lines if line[3:].lstrip().startswith(label) and line[1:2].isalpha()]


def test_a_life_is_what_the_trace_says_step_by_step() -> None:
    run = PREEMPTING
    gutter = 14
    lines = drawn(timelines([run], gutter + len(run.steps), "steps"))
    assert "a step is 1 cell" in lines[0] and len(lives(lines, "short")) == len(run.requests)
    for row, line in zip(run.requests, lives(lines, "short"), strict=True):
        life = line[gutter:].ljust(len(run.steps))
        for index, trace in enumerate(scenario("preempting")):
            if trace.step in row.view.preempted_at:
                expected = PREEMPTED_GLYPH
            elif row.token_steps[:1] == [trace.step]:
                expected = FIRST_TOKEN_MARK
            else:
                kinds = [item.kind for item in trace.scheduled if item.request_id == row.view.request_id]
                waits = row.view.request_id in trace.waiting
                expected = KIND_GLYPHS[kinds[0]] if kinds else KIND_GLYPHS["waiting"] if waits else " "
            assert life[index] == expected, (row.view.letter, trace.step)


def test_on_the_axis_of_seconds_a_long_step_is_as_long_as_it_took() -> None:
    stage = ScriptedEngine(config(blocks=40, bs=8, budget=64, seqs=2, length=128))
    stage.add(max_tokens=4)
    stage.run_to_end()
    run = Run("even", stage.traces)
    (line,) = lives(drawn(timelines([run], 100, "seconds")), "short")
    axis = Axis.of([run], "seconds", 80)
    tokens = [index for index, sign in enumerate(line[20:]) if sign in (FIRST_TOKEN_MARK, KIND_GLYPHS["decode"])]
    assert tokens == [axis.cells(extent)[-1] for extent in extents(run, "seconds")], "a sign for each token"
    assert "─" in line[20:]


def test_a_request_waits_from_its_arrival_on_also_within_a_step() -> None:
    lines = drawn(timelines([ORCA], 120, "seconds"))
    (long,) = lives(lines, "long")
    assert long[20:].lstrip()[0] == KIND_GLYPHS["waiting"]


def test_of_many_requests_the_first_are_shown_and_the_others_counted() -> None:
    run = Run("queue", scenario("queue"))
    lines = drawn(timelines([run], 100, "steps"))
    assert len(lives(lines, "short")) == MAX_REQUESTS
    assert any(f"{len(run.requests) - MAX_REQUESTS:,} more" in line for line in lines)


def test_the_scale_and_the_axis_are_told() -> None:
    steps, seconds = (drawn(timelines(RUNS, 100, kind)) for kind in AXIS_KINDS[::-1])
    assert "a cell is 10 ms" not in steps[0] and "step" in steps[0] and " ms" in seconds[0]
    for lines, name in ((steps, "step "), (seconds, "second ")):
        axes = [line for line in lines if line.lstrip().startswith(name)]
        assert len(axes) == len(RUNS) and len(set(axes)) == 1, "each run has the same axis below"


def test_an_idle_engine_is_seen_as_a_hole() -> None:
    stage = ScriptedEngine(config(blocks=40, bs=8, budget=64, seqs=2, length=128))
    stage.add(max_tokens=3)
    stage.run_to_end()
    stage.traces += [None] * 40  # type: ignore[list-item]
    stage.add(max_tokens=3)
    stage.run_to_end()
    run = Run("idle", [trace for trace in stage.traces if trace])
    gaps = [following[0] - before[1] for before, following in pairwise(extents(run, "seconds"))]
    assert sum(gap > 1.0 for gap in gaps) == 1 and sum(gap == 0.0 for gap in gaps) == len(gaps) - 1


# Whatever the runs are.


@pytest.mark.parametrize("textured", [False, True])
@pytest.mark.parametrize("name", SCENARIOS)
def test_nothing_is_wider_than_the_width(name: str, textured: bool) -> None:
    palette.use(palette_for(dark=True), textured=textured)
    runs = [Run(f"{HOSTILE} 日本語 {name}" * 2, scenario(name)), STATIC, Run("budget 64", scenario(name)[:3]), EMPTY]
    for width in (60, 61, 79, 80, 100, 120, 163, 200):
        for kind in AXIS_KINDS:
            for line in comparison(runs, width, kind):
                assert cell_len(text_of(line)) <= width, text_of(line)
                assert text_of(line).isprintable()


def test_every_run_appears_everywhere() -> None:
    lines = drawn(comparison(RUNS, 100, "seconds"))
    starts = [index for index, line in enumerate(lines) if line.startswith(("Figures", "TTFT ─", "Timelines"))]
    assert len(starts) == 3
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        for run in RUNS:
            assert run.name in "\n".join(lines[start:end])


def test_a_run_without_steps_is_told_of() -> None:
    lines = drawn(comparison([EMPTY], 80, "seconds"))
    assert "nothing was computed" in lines
    assert drawn(comparison([EMPTY, STATIC], 80, "steps"))


def test_signs_tell_the_kinds_apart_where_there_are_no_colors() -> None:
    palette.use(palette_for(dark=True), textured=True)
    lines = drawn(timelines([PREEMPTING], 100, "steps"))
    strip = "".join(line[20:] for line in lines[4:7])
    assert all(KIND_GLYPHS[kind] in strip for kind in ("decode", "prefill", "recompute"))
    assert not set(strip) & set("▁▂▃▄▅▆▇")


# The screen.


async def opened(stand: Stand, *runs: Run) -> None:
    stand.app.demo.finished_runs = list(runs)
    await stand.press("c")
    assert isinstance(stand.app.screen, CompareScreen)


def is_open(stand: Stand) -> bool:
    return isinstance(stand.app.screen, CompareScreen)


@pytest.mark.parametrize("size", [(60, 16), (80, 24), (120, 40), (200, 50)])
async def test_all_of_it_can_be_read(size: tuple[int, int]) -> None:
    async with dashboard(size, READY) as stand:
        await opened(stand, *RUNS)
        top = stand.lines()
        seen: list[list[str]] = []
        while not seen or seen[-1] != stand.lines():
            seen.append(stand.lines())
            await stand.press("pagedown")
            assert len(seen) < 30
        text = "\n".join("\n".join(page) for page in seen)
        for run in RUNS:
            assert text.count(run.name) >= 4
        assert "Timelines" in text and "second" in text
        await stand.press("home")
        assert stand.lines() == top
        await stand.press("end")
        assert stand.lines() == seen[-1]
        await stand.press("k", "up", "j", "down")
        assert stand.lines() == seen[-1]
        await stand.press("pageup")
        assert stand.lines() != seen[-1]


async def test_a_key_changes_the_axis() -> None:
    async with dashboard((120, 40), READY) as stand:
        await opened(stand, *RUNS)
        await stand.press("end")
        assert "second " in stand.text() and "a in steps" in stand.text()
        await stand.press("a")
        assert "second " not in stand.text() and "step " in stand.text() and "a in seconds" in stand.text()
        await stand.press("a", "end")
        assert "second " in stand.text()
        assert stand.source.take_sent() == [], "nothing was sent again"


async def test_digits_hide_and_show_runs() -> None:
    async with dashboard((200, 50), READY) as stand:
        await opened(stand, *RUNS)
        before = stand.lines()
        await stand.press("2")
        assert "orca (hidden)" in stand.text() and stand.text().count("orca") == 1
        await stand.press("1")
        assert "static (hidden)" in stand.text() and "budget 64" in stand.text()
        await stand.press("3", "9")
        assert "budget 64 (hidden)" not in stand.text(), "one stays"
        await stand.press("1", "2")
        assert stand.lines() == before


async def test_of_two_runs_none_can_be_hidden() -> None:
    async with dashboard((120, 40), READY) as stand:
        await opened(stand, STATIC, ORCA)
        before = stand.lines()
        await stand.press("1", "2")
        assert stand.lines() == before and "hide" not in stand.text()


@pytest.mark.parametrize("key", ["escape", "q", "c"])
async def test_it_closes(key: str) -> None:
    async with dashboard((80, 24), READY) as stand:
        before = stand.lines()
        await opened(stand, *RUNS)
        await stand.press(key)
        assert not is_open(stand) and stand.lines() == before and stand.app.return_code is None


async def test_the_key_of_the_command_is_the_one_in_the_settings() -> None:
    commands = [replace(c, keys="f7") if c.name == "compare" else c for c in COMMANDS]
    async with dashboard((80, 24), READY, commands=commands) as stand:
        await stand.press("f7")
        assert is_open(stand)
        await stand.press("f7")
        assert not is_open(stand)


async def test_it_fits_itself_to_another_size() -> None:
    async with dashboard((120, 40), READY) as stand:
        await opened(stand, *RUNS)
        before = stand.lines()
        await stand.resize(80, 24)
        assert "Figures" in stand.text() and all(cell_len(line) <= 80 for line in stand.lines())
        await stand.resize(200, 50)
        assert "Figures" in stand.text() and "Throughput" in stand.text()
        await stand.resize(120, 40)
        assert stand.lines() == before


async def test_it_takes_the_colors_of_another_theme() -> None:
    async with dashboard((120, 40), READY) as stand:
        await opened(stand, *RUNS)

        def grounds() -> set[str]:
            (shown,) = stand.app.screen.query("#compare-text")
            strips = [shown.render_line(y) for y in range(shown.size.height)]
            return {str(segment.style.bgcolor) for strip in strips for segment in strip if segment.style}

        dark = grounds()
        stand.app.theme = "light"
        await stand.settle()
        assert not any(palette_for(dark=True).colors["background"] in ground for ground in grounds())
        stand.app.theme = "dark"
        await stand.settle()
        assert grounds() == dark


async def test_without_a_run_it_says_how_to_get_one() -> None:
    async with dashboard((80, 24), READY) as stand:
        await opened(stand)
        assert "no finished run" in stand.text() and "nanoviz compare" in stand.text()
        await stand.press("a", "1", "down", "end", "escape")
        assert not is_open(stand)


async def test_an_intro_and_a_title_stand_above() -> None:
    async with dashboard((80, 24), READY) as stand:
        intro = [[("A moral of " + "many words " * 10, palette.style())], [("Second line.", palette.style())]]
        await stand.app.push_screen(CompareScreen([STATIC], intro, title=f"Preset {HOSTILE}"))
        await stand.settle()
        assert "A moral of many" in stand.text() and "Second line." in stand.text()
        assert stand.text().index("Second line.") < stand.text().index("Figures")
        assert f"Preset {HOSTILE_SHOWN}" in stand.lines()[0]


async def test_steps_of_the_engine_do_not_disturb_it() -> None:
    async with dashboard((80, 24), READY) as stand:
        await opened(stand, *RUNS)
        await stand.press("pagedown")
        before = stand.lines()
        await stand.play(scenario("busy"))
        assert stand.lines() == before


# The command.


def recorded(folder: Path, name: str, run_name: str) -> str:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    recorder = Recorder(path)
    recorder.begin(READY)
    for trace in scenario(run_name):
        recorder.write(trace)
    recorder.close()
    return str(path)


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    return [recorded(tmp_path, f"{name}.gz", name) for name in ("busy", "preempting")]


def test_it_prints_the_comparison(capsys: pytest.CaptureFixture[str], files: list[str]) -> None:
    result = run_cli(capsys, "compare", *files)
    runs = [Run(name, scenario(name)) for name in ("busy", "preempting")]
    assert result.code == 0 and result.err == "" and "\x1b" not in result.out
    palette.use(palette_for(dark=True), textured=True)
    assert result.out.splitlines() == drawn(comparison(runs, 100, "seconds"))
    result = run_cli(capsys, "compare", *files, "--axis", "steps")
    assert result.out.splitlines() == drawn(comparison(runs, 100, "steps"))


@pytest.mark.parametrize("plain", [False, True])
def test_only_a_terminal_gets_colors_and_only_if_it_may_have_them(files: list[str], plain: bool) -> None:
    leader, follower = pty.openpty()
    termios.tcsetwinsize(follower, (30, 90))
    environment = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    environment |= {"TERM": "xterm-256color", "COLORTERM": "truecolor", **({"NO_COLOR": "1"} if plain else {})}
    command = [sys.executable, "-m", "app.cli", "compare", *files]
    with subprocess.Popen(command, stdout=follower, env=environment, close_fds=True) as process:
        os.close(follower)
        out = b""
        with suppress(OSError):  # the other end is closed
            while piece := os.read(leader, 65536):
                out += piece
    os.close(leader)
    assert process.returncode == 0
    colors = {int(number) for codes in re.findall(rb"\x1b\[([0-9;]*)m", out) for number in codes.split(b";") if number}
    assert bool(colors & {32, 92, 94}) == (not plain), "the kinds"
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in out.decode().splitlines()]
    assert max(map(cell_len, lines)) == 90, "as wide as the terminal"


def test_where_there_is_only_ascii_it_prints_ascii(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, files: list[str]
) -> None:
    monkeypatch.setenv("TERM", "linux")
    assert run_cli(capsys, "compare", *files).out.isascii()


def test_json_is_all_metrics_of_each_run(capsys: pytest.CaptureFixture[str], files: list[str]) -> None:
    result = run_cli(capsys, "compare", "--json", *files)
    told = json.loads(result.out)["runs"]
    assert [run["name"] for run in told] == ["busy", "preempting"]
    for one in told:
        run = Run(one["name"], scenario(one["name"]))
        assert run.first_config and one["config"] == asdict(run.first_config)
        names = [*TOTALS, *(f"{m}{i}.{s}" for m in SPREADS for i in ("", ".short", ".long") for s in STATISTICS)]
        assert one["metrics"] == {name: Metric.parse(name).of(run) for name in names}


def test_csv_is_a_row_for_each_run(capsys: pytest.CaptureFixture[str], files: list[str]) -> None:
    result = run_cli(capsys, "compare", "--csv", *files)
    rows = list(csv.DictReader(StringIO(result.out)))
    assert [row["run"] for row in rows] == ["busy", "preempting"]
    for row in rows:
        run = Run(row["run"], scenario(row["run"]))
        assert run.first_config and row["max_num_batched_tokens"] == str(run.first_config.max_num_batched_tokens)
        for name in (*TOTALS, "ttft.p50", "itl.max", "ttft.long.max"):
            value = Metric.parse(name).of(run)
            assert row[name] == "" if value is None else float(row[name]) == value


def test_recordings_of_one_name_are_told_apart_by_their_paths(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    paths = [recorded(tmp_path / folder, "run.gz", "seats") for folder in ("a", "b")]
    told = json.loads(run_cli(capsys, "compare", "--json", *paths).out)["runs"]
    assert [run["name"] for run in told] == paths


def test_a_recording_without_a_step_can_be_compared(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = recorded(tmp_path, "none", "empty")
    for arguments in ([], ["--json"], ["--csv"]):
        assert run_cli(capsys, "compare", path, *arguments).code == 0


def test_a_damaged_recording_is_compared_up_to_the_damage(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = Path(recorded(tmp_path, "run", "busy"))
    path.write_bytes(path.read_bytes()[:-20])
    result = run_cli(capsys, "compare", str(path))
    assert result.code == 0 and "warning" in result.err and "damaged" in result.err and "Figures" in result.out


@pytest.mark.parametrize("arguments", [["missing"], [__file__]])
def test_what_is_no_recording_is_refused(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    result = run_cli(capsys, "compare", *arguments)
    assert result.code == 2 and result.out == ""
    result.check_short()


@pytest.mark.parametrize("arguments", [[], ["--json", "--csv", "x"], ["x", "--axis", "days"]])
def test_a_call_that_cannot_be_meant_is_refused(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert run_cli(capsys, "compare", *arguments).code == 2
