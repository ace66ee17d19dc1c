"""The presets that come with nanoviz: each of them played, and what it expects of itself checked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from app.player import Part, parts
from app.preset import Preset, changes
from app.preset_files import load, shipped
from app.recording import Recording
from app.run import Run
from engine.trace import PhaseTimes, StepTrace
from tests.app.preset_support import text_of_preset, traces_of, written
from tests.app.support import CommandResult, run_cli

SHIPPED = tuple(shipped())
TIMED = tuple(
    name
    for name, path in shipped().items()
    if any(
        term.metric and term.metric.unit in ("seconds", "tokens/s")
        for expectation in load(path).expectations
        for term in expectation.terms
    )
)
ATTEMPTS = 3
"""For a preset whose expectations compare times: a machine that does something else meanwhile makes one of them fail,
and not three in a row, as a real fault does."""


def play(capsys: pytest.CaptureFixture[str], name: str, *flags: str) -> CommandResult:
    """`nanoviz play NAME --headless`, with the real engine's process and a real model."""
    return run_cli(capsys, "play", name, "--headless", "--threads", "1", *flags)


def check_played(preset: Preset, result: CommandResult) -> None:
    """All of it was played and found to be so, and told in full."""
    assert result.code == 0, result.out
    assert not result.err
    told = " ".join(result.out.split())
    assert told.startswith(preset.title) and " ".join(preset.moral.split()) in told
    for scene in preset.scene:
        assert f"\n{scene.name}\n" in result.out
        for event in (*preset.script, *scene.script):
            assert " ".join(event.say.split()) in told
            assert not event.say or event.step is None or f"step {event.step:,}" in told
    assert result.out.count("✓ ") >= len(preset.expect)
    assert "✗" not in result.out and "refused" not in result.out
    for expect in preset.expect:
        assert (f"✓ {expect.text}: " in told and f" [{expect.check}]" in told) or f"✓ {expect.check}: " in told


@pytest.mark.parametrize("name", [name for name in SHIPPED if load(shipped()[name]).model == "tiny"])
def test_a_preset_keeps_what_it_promises(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert name not in TIMED, "a random model says nothing about times"
    check_played(load(shipped()[name]), play(capsys, name))


@pytest.mark.parametrize(("name", "flags"), [("budget", ()), ("chat", ()), ("ride-along", ("--model", "smollm2"))])
def test_the_experiments_hold_with_a_model_that_writes_text(
    name: str, flags: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    preset = load(shipped()[name])
    for attempt in range(1, ATTEMPTS + 1):
        result = play(capsys, name, *flags)
        if name not in TIMED or attempt == ATTEMPTS or result.code == 0:
            break
    check_played(preset, result)
    assert "(smollm2)" in result.out.splitlines()[0]


def test_the_readmes_example_keeps_what_it_promises(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    readme = Path(__file__, "../../../README.md").resolve().read_text(encoding="utf-8")
    (example,) = [text for text in re.findall(r"```toml\n(.*?)```", readme, re.DOTALL) if "[[expect]]" in text]
    path = written(tmp_path, example)
    result = play(capsys, str(path))
    assert result.code == 0, result.out
    assert load(path).title in result.out and result.out.count("✓ ") >= 2 and "refused" not in result.out
    for part in parts(load(path), {}):
        check_told(load(path), part, traces_of(part))


def test_all_presets_are_played_here() -> None:
    models = {name: load(path).model for name, path in shipped().items()}
    assert {name for name, model in models.items() if model != "tiny"} == {"chat", "budget"} == set(TIMED)


def test_an_expectation_that_fails_makes_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = shipped()["memory-pressure"].read_text(encoding="utf-8")
    broken = text.replace("preemptions >= 2", "preemptions >= 200")
    assert broken != text
    result = play(capsys, str(written(tmp_path, broken, "broken.toml")))
    assert result.code == 1 and not result.err
    assert "✗ The pool is too small for four: 2  [preemptions >= 200]\n" in result.out
    assert result.out.count("✗") == 1 and "✓ Preempted or not" in result.out


def test_who_is_refused_makes_exit_code_1_and_is_told_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inject = "[[script]]\nstep = 0\ninject = [{ tokens = 5 }, { text = '" + 70 * "a" + "' }]\n"
    text = text_of_preset(
        middle="parameters.max_model_len = 64\n",
        inject=inject,
        expect='[[expect]]\ncheck = "outputs equal"\n[[expect]]\ncheck = "refused == 1"\n',
    )
    result = play(capsys, str(written(tmp_path, text)))
    assert result.code == 1
    assert "✗ outputs equal: 1 of 2 requests" in result.out and "✓ refused == 1: 1" in result.out
    assert "run refused: the prompt has 71 tokens and max_model_len is 64" in result.out


def test_a_pause_of_the_script_holds_up_nobody_who_does_not_watch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = "[[script]]\nstep = 1\npause = true\n[[script]]\nstep = 900\npause = true\n"
    scenes = '[[scene]]\nname = "a"\n[[scene]]\nname = "b"\n'
    text = text_of_preset(middle=scenes + script)
    result = play(capsys, str(written(tmp_path, text)), "--runs", "2")
    assert result.code == 0 and "✓ served == 1: a 1; b 1" in result.out


def test_with_trace_there_is_a_line_for_each_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = play(capsys, str(written(tmp_path, text_of_preset())), "--trace", "--runs", "2")
    assert result.code == 0
    rows = [line.split() for line in result.out.splitlines() if line.startswith("    ")]
    assert [row[:2] for row in rows] == [["0", "5"], ["1", "1"], ["2", "1"], ["3", "1"]], "of the first time only"


def test_scenes_are_recorded_into_a_file_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scenes = '[[scene]]\nname = "a"\n[[scene]]\nname = "b"\nparameters = { max_num_seqs = 3 }\n'
    script = '[[script]]\nstep = 2\nsay = "Now."\n'
    path = written(tmp_path, text_of_preset(middle=scenes + script))
    result = play(capsys, str(path), "--record", str(tmp_path / "run.jsonl.gz"))
    assert result.code == 0
    for name, seats in (("run.jsonl.gz", 16), ("run-2.jsonl.gz", 3)):
        assert f"Wrote {tmp_path / name}" in result.out
        recording = Recording(tmp_path / name)
        assert [trace.step for trace in recording.traces] == [0, 1, 2, 3] and recording.engine.run == 0
        assert {trace.config.max_num_seqs for trace in recording.traces} == {seats}
        assert [trace.note for trace in recording.traces] == ["", "", "Now.", ""]


def test_a_scene_that_cannot_be_recorded_is_no_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scenes = '[[scene]]\nname = "a"\n[[scene]]\nname = "b"\n'
    (tmp_path / "run-2.gz").write_text("mine")
    result = play(capsys, str(written(tmp_path, text_of_preset(middle=scenes))), "--record", str(tmp_path / "run.gz"))
    assert result.code == 2 and "run-2.gz exists already" in result.err
    assert (tmp_path / "run-2.gz").read_text() == "mine"


def test_flags_hold_in_every_scene(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scenes = '[[scene]]\nname = "a"\nparameters = { max_num_seqs = 4 }\n[[scene]]\nname = "b"\n'
    change = "[[script]]\nstep = 1\nset = { max_num_seqs = 3 }\n"
    inject = "[[script]]\nstep = 0\ninject = { tokens = 5, max_tokens = 4, count = 4 }\n"
    expect = '[[expect]]\ncheck = "running_max == 1"\n'
    text = text_of_preset(middle=scenes, inject=inject + change, expect=expect)
    path = str(written(tmp_path, text))
    result = play(capsys, path, "--max-num-seqs", "1")
    assert result.code == 0 and "with max_num_seqs 1" in result.out.splitlines()[0]
    assert play(capsys, path).code == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nothing",), ("'nothing'", *SHIPPED)),
        (("99",), ("'99'",)),
        (("missing.toml",), ("missing.toml", "No such file")),
        (("memory-pressure", "--num-blocks", "4"), ("max_model_len is 128", "outgrow")),
        (("figure", "--max-num-seqs", "0"), ("max_num_seqs is 0",)),
        (("chat", "--model", "tiny"), ("writes text", "--model smollm2")),
        (("figure", "--model", "no-such-model"), ("no-such-model",)),
    ],
)
def test_a_mistake_is_exit_code_2_and_one_sentence(
    arguments: tuple[str, ...], words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    result = play(capsys, *arguments)
    assert result.code == 2
    for word in words:
        assert word in result.err
    result.check_short()


def test_parameters_that_the_model_cannot_follow_are_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What only the engine knows, and of a scene behind the first."""
    scenes = '[[scene]]\nname = "a"\n[[scene]]\nname = "b"\nparameters = { max_model_len = 50000, num_blocks = 4000 }\n'
    result = play(capsys, str(written(tmp_path, text_of_preset(middle=scenes))))
    assert result.code == 2 and "50000" in result.err and "tiny" in result.err
    result.check_short()


@pytest.mark.parametrize("flag", [("--trace",), ("--runs", "2")])
def test_what_goes_with_headless_is_refused_without_it(
    flag: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    result = run_cli(capsys, "play", "figure", *flag)
    assert result.code == 2 and "--headless" in result.err
    result.check_short()


# Without a model.


def decisions(trace: StepTrace) -> StepTrace:
    """A trace without what a clock has told."""
    return msgspec.structs.replace(
        trace,
        started=0.0,
        times=PhaseTimes(0, 0, 0, 0, 0),
        arrivals=tuple(msgspec.structs.replace(arrival, time=0.0) for arrival in trace.arrivals),
        finished=tuple(
            msgspec.structs.replace(finished, queue_time=None, ttft=None, e2e=None) for finished in trace.finished
        ),
    )


def check_told(preset: Preset, part: Part, traces: Sequence[StepTrace]) -> None:
    """Whatever the scene says is said at its step, and a pause comes before its end."""
    scene = preset.scenes.get(part.name)
    if scene is None:
        return
    for event in (*preset.script, *scene.script):
        assert event.step is not None and event.step < len(traces), (part.name, event)
        if event.say:
            assert event.say in traces[event.step].note.split("\n"), (part.name, event.step)
        if event.set:
            config = traces[event.step].config
            assert all(getattr(config, name) == value for name, value in changes(event.set).items())


@pytest.mark.parametrize("name", SHIPPED)
def test_a_preset_takes_the_same_decisions_each_time_and_says_all_that_it_has_to_say(name: str) -> None:
    preset = load(shipped()[name])
    for part in parts(preset, {}):
        first, second = traces_of(part), traces_of(part)
        assert [decisions(trace) for trace in first] == [decisions(trace) for trace in second]
        check_told(preset, part, first)
        run = Run(part.name, first)
        assert not run.refused and all(row.is_served for row in run.requests)
