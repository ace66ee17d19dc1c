"""The command line: exit codes, what goes to which stream, and the commands that draw nothing."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from app import cli
from app.subcommands import SUBCOMMANDS
from app.subcommands.engine import Run
from engine.policy import POLICIES
from engine.trace import decode
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
    heading, columns, *rows = result.out.splitlines()
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
