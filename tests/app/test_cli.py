"""The command line: exit codes, what goes to which stream, and the commands that draw nothing."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path

import pytest

from app import cli
from app.preset_files import load, shipped
from app.subcommands import SUBCOMMANDS
from app.subcommands.engine import Run
from engine.policy import POLICIES
from engine.trace import decode
from tests.app.preset_support import text_of_preset, written
from tests.app.support import run_cli

TINY = ("run", "--model", "tiny", "--threads", "1")


@pytest.mark.parametrize("command", [(), ("run",), ("verify",), ("config",)])
def test_help(capsys: pytest.CaptureFixture[str], command: tuple[str, ...]) -> None:
    result = run_cli(capsys, *command, "--help")
    assert result.code == 0 and not result.err
    for flag in ("--model", "--max-num-batched-tokens", "--block-size", "--threads"):
        assert flag in result.out
    assert ("--max-tokens" in result.out) == (command in (("run",), ("config",)))
    assert ("--history-steps" in result.out) == (command in ((), ("config",)))
    assert " ".join(("nanoviz", *command)) in result.out


def test_help_of_the_dashboard_names_the_other_commands(capsys: pytest.CaptureFixture[str]) -> None:
    text = run_cli(capsys, "--help").out
    for name in SUBCOMMANDS:
        assert f"nanoviz {name}" in text


@pytest.mark.parametrize("command", [(), ("run",), ("verify",), ("config",)])
def test_version(capsys: pytest.CaptureFixture[str], command: tuple[str, ...]) -> None:
    result = run_cli(capsys, *command, "--version")
    assert result.code == 0 and not result.err
    name, number = result.out.split()
    assert name == "nanoviz" and number[0].isdigit()


def test_an_unknown_command_is_told_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    result = run_cli(capsys, "dance")
    assert result.code == 2 and not result.out
    for name in ("dance", *SUBCOMMANDS):
        assert name in result.err
    result.check_short()


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("play",), ("nanoviz play", "NAME", "--headless", "--trace", "--runs", "--model", "--max-num-seqs")),
        (("presets",), ("nanoviz presets", "NAME")),
        (("compare",), ("nanoviz compare", "--set", "--scene", "--runs", "--axis", "--json", "--csv", "--model")),
    ],
)
def test_help_of_what_plays_presets(
    capsys: pytest.CaptureFixture[str], command: tuple[str, ...], words: tuple[str, ...]
) -> None:
    result = run_cli(capsys, *command, "--help")
    assert result.code == 0 and not result.err
    for word in words:
        assert word in result.out


def test_an_unknown_flag_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    result = run_cli(capsys, "--dance")
    assert result.code == 2
    assert "--dance" in result.err


@pytest.mark.parametrize("command", [(), ("run", "hello"), ("verify",)])
@pytest.mark.parametrize(
    ("flags", "numbers"),
    [
        (("--num-blocks", "9", "--max-model-len", "500"), ("8", "128", "500", "33")),
        (("--max-num-seqs", "0"), ("0", "1")),
        (("--watermark", "1.5"), ("1.5",)),
        (("--policy", "lifo"), ("'lifo'", "fcfs", "priority", "sglang", "sarathi")),
        (("--policy", "orca"), ("orca", "128", "1024")),
        (("--priority-aging", "-1"), ("priority_aging", "-1")),
        (("--schedule-conservativeness", "0"), ("schedule_conservativeness", "0")),
        (("--new-token-ratio-decay-steps", "0"), ("new_token_ratio_decay_steps", "0")),
        (("--no-enable-chunked-prefill",), ("128", "1024")),
    ],
)
def test_a_configuration_that_cannot_work(
    capsys: pytest.CaptureFixture[str], command: tuple[str, ...], flags: tuple[str, ...], numbers: tuple[str, ...]
) -> None:
    result = run_cli(capsys, *command, *flags, "--model", "tiny")
    assert result.code == 2 and not result.out
    for number in numbers:
        assert number in result.err
    result.check_short()


def test_the_dashboard_needs_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    result = run_cli(capsys, "--model", "tiny")
    assert result.code == 2 and not result.out
    assert "terminal" in result.err and "nanoviz run" in result.err
    result.check_short()


@pytest.mark.parametrize("command", [("run", "hello"), ("verify",)])
def test_an_unknown_model_is_named(capsys: pytest.CaptureFixture[str], command: tuple[str, ...]) -> None:
    result = run_cli(capsys, *command, "--model", "no-such-model")
    assert result.code == 2 and not result.out
    for name in ("no-such-model", "smollm2", "tiny"):
        assert name in result.err
    result.check_short()


def test_an_unknown_dtype_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    result = run_cli(capsys, *TINY, "--dtype", "int3", "hello")
    assert result.code == 2 and not result.out
    assert "int3" in result.err and "float32" in result.err
    result.check_short()


@pytest.mark.parametrize(
    ("flags", "name", "value"),
    [
        (("--max-tokens", "0"), "max_tokens", "0"),
        (("--temperature", "-1"), "temperature", "-1"),
        (("--top-p", "0"), "top_p", "0"),
        (("--top-k", "-3"), "top_k", "-3"),
    ],
)
def test_sampling_that_means_nothing(
    capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], name: str, value: str
) -> None:
    result = run_cli(capsys, *TINY, *flags, "hello")
    assert result.code == 2 and not result.out
    assert name in result.err and value in result.err
    result.check_short()


def test_an_empty_prompt(capsys: pytest.CaptureFixture[str]) -> None:
    result = run_cli(capsys, *TINY, "")
    assert result.code == 2 and not result.out
    assert "empty" in result.err
    result.check_short()


def test_a_prompt_that_is_too_long(capsys: pytest.CaptureFixture[str]) -> None:
    result = run_cli(capsys, *TINY, "--max-model-len", "64", "x" * 80)
    assert result.code == 2 and not result.out
    assert "81" in result.err and "64" in result.err, "80 bytes and the template's line end"
    result.check_short()


def test_run_prints_prompt_and_answer(capsys: pytest.CaptureFixture[str]) -> None:
    result = run_cli(capsys, *TINY, "hello", "--max-tokens", "4", "--ignore-eos")
    assert result.code == 0 and not result.err
    prompt, answer = result.out.strip("\n").split("\n", 1)
    assert prompt == "› hello" and answer


def test_run_answers_prompts_in_their_order(capsys: pytest.CaptureFixture[str]) -> None:
    result = run_cli(capsys, *TINY, "one", "two", "three", "--max-tokens", "4")
    assert result.code == 0
    assert [line for line in result.out.splitlines() if line.startswith("› ")] == ["› one", "› two", "› three"]


def test_run_reads_a_prompt_from_standard_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("from a pipe"))
    result = run_cli(capsys, *TINY, "--max-tokens", "2")
    assert result.code == 0
    assert "› from a pipe" in result.out


def test_run_says_the_same_whatever_the_schedule(capsys: pytest.CaptureFixture[str]) -> None:
    whole = run_cli(capsys, *TINY, "a little story", "--max-tokens", "12")
    chunked = run_cli(capsys, *TINY, "a little story", "--max-tokens", "12", "--max-num-batched-tokens", "4")
    assert whole.code == chunked.code == 0
    assert whole.out == chunked.out


def test_trace_is_a_table_with_a_row_for_each_step(capsys: pytest.CaptureFixture[str]) -> None:
    result = run_cli(capsys, *TINY, "--trace", "hello", "--max-tokens", "4", "--ignore-eos")
    assert result.code == 0
    table, answer = result.out.split("\n\n", 1)
    heading, *rows = table.splitlines()
    assert heading.split()[:2] == ["step", "tokens"]
    assert [row.split()[0] for row in rows] == ["0", "1", "2", "3"]
    assert [row.split()[1] for row in rows] == ["6", "1", "1", "1"], "hello and a line end, then a token a step"
    assert all(len(row) == len(heading) for row in rows)
    assert answer.startswith("› hello")


def test_json_is_traces_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    result = run_cli(capsys, *TINY, "--json", "hello", "bye", "--max-tokens", "4", "--ignore-eos")
    assert result.code == 0 and not result.err
    traces = [decode(line) for line in result.out.splitlines()]
    assert [trace.step for trace in traces] == [0, 1, 2, 3]
    assert [arrival.prompt for arrival in traces[0].arrivals] == ["hello", "bye"]
    assert [finished.reason for finished in traces[-1].finished] == ["length", "length"]


def test_a_stop_string_ends_the_output(capsys: pytest.CaptureFixture[str]) -> None:
    whole = run_cli(capsys, *TINY, "--raw", "hello", "--max-tokens", "12", "--ignore-eos")
    answer = whole.out.strip("\n").split("\n", 1)[1]
    stop = answer[2:4]
    result = run_cli(capsys, *TINY, "--raw", "hello", "--max-tokens", "12", "--ignore-eos", "--stop", stop)
    assert result.code == 0
    assert result.out.strip("\n").split("\n", 1)[1] == answer[: answer.index(stop)]


def test_a_reader_who_has_had_enough(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """`nanoviz run ... | head -1` ends quietly."""

    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", io.StringIO())  # it is closed, so that the interpreter says nothing at exit
    monkeypatch.setattr(sys, "stdout", Closed())
    assert cli.main([*TINY, "hello", "--max-tokens", "2"]) == 0
    capsys.readouterr()


def test_ctrl_c_is_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Run, arguments: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(Run, "execute", interrupted)
    assert cli.main(["run", "hello"]) == 130


@pytest.mark.parametrize(("same", "code"), [(True, 0), (False, 1)])
def test_verify_fails_if_anything_differs(monkeypatch: pytest.MonkeyPatch, same: bool, code: int) -> None:
    monkeypatch.setattr("app.headless.verify", lambda *arguments, **options: same)
    assert cli.main(["verify", "--model", "tiny"]) == code


def test_what_is_hardly_meant_is_warned_of_and_run(capsys: pytest.CaptureFixture[str]) -> None:
    result = run_cli(capsys, *TINY, "hello", "--max-tokens", "2", "--max-num-batched-tokens", "4")
    assert result.code == 0 and "› hello" in result.out
    assert "warning" in result.err and "(16)" in result.err and "(4)" in result.err
    assert not run_cli(capsys, *TINY, "hello", "--max-tokens", "2").err


@pytest.mark.parametrize("policy", POLICIES)
def test_bench_scheduler_prints_a_line_for_each_size(
    policy: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.bench.NUM_RUNNING", (2, 3))
    monkeypatch.setattr("engine.bench.NUM_WAITING", 5)
    monkeypatch.setattr("engine.bench.NUM_STEPS", 4)
    budget = ("--max-num-batched-tokens", "1024")  # policy orca would refuse less before sizes are put in its place
    result = run_cli(capsys, "bench", "scheduler", "--policy", policy, *budget)
    assert result.code == 0 and not result.err
    _machine, heading, columns, *rows = result.out.splitlines()
    assert policy in heading and "waiting" in columns
    assert [row.split()[:2] for row in rows] == [["2", "0"], ["2", "5"], ["3", "0"], ["3", "5"]]
    assert all(float(number) > 0 for row in rows for number in row.split()[2:])


def test_bench_needs_to_know_what(capsys: pytest.CaptureFixture[str]) -> None:
    for part in ((), ("everything",)):
        result = run_cli(capsys, "bench", *part)
        assert result.code == 2 and "scheduler" in result.err


def test_errors_are_printed_literally(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A model's files may say anything, for example what would set the terminal's title."""
    (tmp_path / "config.json").write_text('{"model_type": "x\\u001b]0;pwn\\u0007\\u001b[31m\\u202e"}')
    result = run_cli(capsys, "run", "--model", str(tmp_path), "hi")
    assert result.code == 2 and "pwn" in result.err
    assert not set(result.err) & set("\x1b\x07\u202e")


# Presets. What is played in full is in test_presets.py.

SCENES = '[[scene]]\nname = "few"\nparameters = { max_num_seqs = 1 }\n[[scene]]\nname = "many"\n'
REQUESTS = "[[script]]\nstep = 0\ninject = { tokens = 5, max_tokens = 4, count = 3 }\n"


@pytest.fixture
def preset(tmp_path: Path) -> str:
    return str(written(tmp_path, text_of_preset(middle=SCENES, inject=REQUESTS), "mine.toml"))


def test_presets_lists_all_with_their_morals(capsys: pytest.CaptureFixture[str]) -> None:
    result = run_cli(capsys, "presets")
    assert result.code == 0 and not result.err
    names = [line.split()[0] for line in result.out.splitlines() if not line.startswith(" ")]
    assert names == list(shipped())
    told = " ".join(result.out.split())
    for path in shipped().values():
        assert load(path).title in told and " ".join(load(path).moral.split()) in told
    assert max(map(len, result.out.splitlines())) <= 100


@pytest.mark.parametrize("name", ["budget", "5"])
def test_presets_with_a_name_tells_all_about_one(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    result = run_cli(capsys, "presets", name)
    assert result.code == 0 and not result.err
    preset = load(shipped()["budget"])
    for word in (preset.title, "smollm2", "needs a model", "num_blocks 256", "scene 1: 2048", "scene 3: 64"):
        assert word in result.out
    assert "max_num_batched_tokens 256" in result.out and str(shipped()["budget"]) in result.out
    for expect in preset.expect:
        assert expect.check in result.out and expect.text in result.out


def test_a_preset_that_is_not_there_is_told_those_that_are(capsys: pytest.CaptureFixture[str]) -> None:
    for command in (
        ("presets", "nothing"),
        ("play", "nothing"),
        ("play", "nothing", "--headless"),
        ("--preset", "nothing"),
        ("compare", "nothing"),
        ("compare", "nothing", "more"),
    ):
        result = run_cli(capsys, *command)
        assert result.code == 2 and not result.out, command
        assert "'nothing'" in result.err and all(name in result.err for name in shipped())
        result.check_short()


@pytest.mark.parametrize("command", [("--preset", "chat"), ("play", "chat"), ("compare", "chat")])
def test_a_preset_that_needs_text_is_not_for_a_random_model(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    result = run_cli(capsys, *command, "--model", "tiny")
    assert result.code == 2 and not result.out
    assert "tiny" in result.err and "--model smollm2" in result.err
    result.check_short()


def test_only_flags_change_what_a_preset_plays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A preset is the same for everybody, whatever stands in the settings."""
    monkeypatch.setenv("NANOVIZ_MODEL", "no-such-model")
    monkeypatch.setenv("NANOVIZ_MAX_NUM_SEQS", "1")
    expect = '[[expect]]\ncheck = "running_max == 1"\n'
    inject = "[[script]]\nstep = 0\ninject = { tokens = 5, count = 2 }\n"
    path = str(written(tmp_path, text_of_preset(inject=inject, expect=expect)))
    assert run_cli(capsys, "play", path, "--headless").code == 1
    assert run_cli(capsys, "play", path, "--headless", "--max-num-seqs", "1").code == 0


def test_a_preset_on_the_screen_needs_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    for command in (("play", "figure"), ("--preset", "figure")):
        result = run_cli(capsys, *command)
        assert result.code == 2 and "terminal" in result.err
        result.check_short()


COMPARE = ("--model", "tiny", "--threads", "1")


def test_compare_plays_all_scenes_of_a_preset(preset: str, capsys: pytest.CaptureFixture[str]) -> None:
    result = run_cli(capsys, "compare", preset, *COMPARE)
    assert result.code == 0 and not result.err
    heading = next(line for line in result.out.splitlines() if "few" in line)
    assert "many" in heading and "alone" not in result.out
    row = next(line.split() for line in result.out.splitlines() if line.startswith("max_num_seqs"))
    assert row == ["max_num_seqs", "1", "16"]


def test_compare_plays_one_scene_with_each_combination_of_values(
    preset: str, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ("--set", "max_num_seqs=1,2", "--set", "enable_prefix_caching=on,off")
    flags = ("--num-blocks", "100", "--runs", "2", *COMPARE)
    told = json.loads(run_cli(capsys, "compare", preset, *settings, "--json", *flags).out)["runs"]
    assert [run["name"] for run in told] == ["1 on", "1 off", "2 on", "2 off"]
    for run in told:
        seats, caching = run["name"].split()
        assert run["config"]["max_num_seqs"] == int(seats)
        assert run["config"]["enable_prefix_caching"] == (caching == "on")
        assert run["config"]["num_blocks"] == 100
        assert run["metrics"]["running_max"] == int(seats) and run["metrics"]["served"] == 3
    result = run_cli(capsys, "compare", preset, *settings, "--csv", "--scene", "many", *flags)
    assert result.code == 0 and not result.err
    rows = list(csv.DictReader(io.StringIO(result.out)))
    assert [row["run"] for row in rows] == [run["name"] for run in told]
    for row, run in zip(rows, told, strict=True):
        assert row["steps"] == str(run["metrics"]["steps"]) and row["max_num_seqs"] == str(
            run["config"]["max_num_seqs"]
        )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--set", "seats=1,2"), ("'seats'", "max_num_seqs")),
        (("--set", "max_num_seqs=one"), ("one",)),
        (("--set", "max_num_seqs=0"), ("max_num_seqs is 0",)),
        (("--set", "max_num_seqs"), ("NAME=VALUE",)),
        (("--set", "max_num_seqs=1", "--set", "max_num_seqs=2"), ("twice",)),
        (("--scene", "other"), ("'other'", "few, many")),
        (("--scene", "other", "--set", "max_num_seqs=1"), ("'other'",)),
        (("other.gz",), ("mine.toml is a preset",)),
        (("--max-num-seqs", "0"), ("max_num_seqs is 0",)),
    ],
)
def test_what_cannot_be_compared_is_told_in_one_sentence(
    arguments: tuple[str, ...], words: tuple[str, ...], preset: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run_cli(capsys, "compare", preset, *arguments, *COMPARE)
    assert result.code == 2 and not result.out
    for word in words:
        assert word in result.err
    result.check_short()


def test_recordings_that_are_not_there_are_not_taken_for_presets(capsys: pytest.CaptureFixture[str]) -> None:
    for names in (("missing.gz",), ("missing.gz", "other.gz"), ("./missing", "other"), ("missing.d/run", "other")):
        result = run_cli(capsys, "compare", *names)
        assert result.code == 2 and names[0].removeprefix("./") in result.err and "preset" not in result.err
        result.check_short()
    result = run_cli(capsys, "compare", "missing.gz", "--set", "max_num_seqs=1")
    assert result.code == 2 and "goes with a preset" in result.err


@pytest.mark.parametrize("number", ["0", "-1", "many"])
def test_how_often_to_play_is_a_whole_number(number: str, preset: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (("play", preset, "--headless"), ("compare", preset)):
        result = run_cli(capsys, *command, "--runs", number)
        assert result.code == 2 and "--runs" in result.err
