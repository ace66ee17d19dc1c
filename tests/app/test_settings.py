"""Settings: a flag wins over a variable, a variable over the file, the file over the default; mistakes are named."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import platformdirs
import pytest

from app import cli
from app.settings import Settings, settings_path
from app.subcommands.dashboard import Watch
from app.subcommands.engine import Run
from engine.config import EngineConfig
from tests.app.support import READY, dashboard, run_cli, scenario


@pytest.fixture
def settings_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The settings file, empty until a test writes it."""
    path = tmp_path / "nanoviz settings.toml"
    path.touch()
    monkeypatch.setenv("NANOVIZ_CONFIG", str(path))
    return path


def read(*flags: str) -> Settings:
    """The settings of a command line, as the dashboard would have them."""
    return cli.parse(Watch, list(flags))[0]


def test_settings_are_the_engines_parameters_and_four_more() -> None:
    parameters = {field.name: field.default for field in dataclasses.fields(EngineConfig)}
    assert {name: field.default for name, field in Settings.model_fields.items()} == {
        **parameters,
        "model": "smollm2",
        "dtype": "auto",
        "device": "cpu",
        "threads": None,
    }
    for field in dataclasses.fields(EngineConfig):
        setting = Settings.model_fields[field.name]
        assert setting.annotation is not None and setting.annotation.__name__ == field.type
        assert setting.description == field.metadata["help"]


def test_without_anything_all_are_defaults(settings_file: Path) -> None:
    assert read().engine_config() == EngineConfig()
    assert read().num_threads() >= 1


@pytest.mark.parametrize(
    ("name", "flag", "in_flag", "in_variable", "in_file", "default"),
    [
        ("max_num_seqs", "--max-num-seqs", 7, 6, 5, 16),
        ("model", "--model", "flag/model", "variable/model", "file/model", "smollm2"),
        ("watermark", "--watermark", 0.3, 0.2, 0.1, 0.0),
    ],
)
def test_precedence(
    settings_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    flag: str,
    in_flag: object,
    in_variable: object,
    in_file: object,
    default: object,
) -> None:
    assert getattr(read(), name) == default
    settings_file.write_text(f"{name} = {in_file!r}\n")
    assert getattr(read(), name) == in_file
    monkeypatch.setenv(f"NANOVIZ_{name.upper()}", str(in_variable))
    assert getattr(read(), name) == in_variable
    assert getattr(read(flag, str(in_flag)), name) == in_flag


def test_booleans_have_a_no_flag(settings_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings_file.write_text("enable_prefix_caching = false\n")
    assert not read().engine_config().enable_prefix_caching
    assert read("--enable-prefix-caching").engine_config().enable_prefix_caching
    monkeypatch.setenv("NANOVIZ_ENABLE_PREFIX_CACHING", "true")
    assert read().engine_config().enable_prefix_caching
    assert not read("--no-enable-prefix-caching").engine_config().enable_prefix_caching


def test_every_parameter_reaches_the_engine(settings_file: Path) -> None:
    other = {"int": 77, "float": 0.25, "str": "sarathi"}
    values = {
        field.name: not field.default if field.type == "bool" else other[str(field.type)]
        for field in dataclasses.fields(EngineConfig)
    }
    settings_file.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items()))
    assert dataclasses.asdict(read().engine_config()) == values


def test_threads(settings_file: Path) -> None:
    assert read("--threads", "3").num_threads() == 3
    settings_file.write_text("threads = 2\n")
    assert read().num_threads() == 2


async def test_history_steps() -> None:
    assert read("--history-steps", "100").history_steps == 100
    async with dashboard((80, 24), READY, history_steps=3) as stand:
        await stand.play(scenario("busy"))
        assert [bar.step for bar in stand.app.session.history.bars] == [17, 18, 19]


def test_where_the_file_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "my.toml").touch()
    monkeypatch.setenv("NANOVIZ_CONFIG", "~/my.toml")
    assert settings_path() == tmp_path / "my.toml"
    monkeypatch.delenv("NANOVIZ_CONFIG")
    assert settings_path() == platformdirs.user_config_path("nanoviz") / "config.toml"


@pytest.mark.parametrize("name", ["no such file.toml", "."])
def test_a_file_that_is_named_and_not_there(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NANOVIZ_CONFIG", str(tmp_path / name))
    result = run_cli(capsys)
    assert result.code == 2 and "no file" in result.err
    result.check_short()


def test_an_unknown_variable_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("NANOVIZ_MAX_NUM_SEQ", "3")
    result = run_cli(capsys)
    assert result.code == 2 and "NANOVIZ_MAX_NUM_SEQ " in result.err
    result.check_short()


def test_an_unknown_key_names_the_key_and_the_file(settings_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings_file.write_text("max_num_sequences = 4\n")
    result = run_cli(capsys)
    assert result.code == 2 and not result.out
    assert "max_num_sequences" in result.err and str(settings_file) in result.err
    result.check_short()


def test_broken_toml_names_the_file(settings_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings_file.write_text("max_num_seqs = = 4\n")
    result = run_cli(capsys, "run", "hello")
    assert result.code == 2 and not result.out
    assert str(settings_file) in result.err and "line 1" in result.err
    result.check_short()


def test_a_file_that_is_no_text_names_the_file(settings_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings_file.write_bytes(b"\xff\xfe\x00model = 1")
    result = run_cli(capsys)
    assert result.code == 2 and not result.out
    assert str(settings_file) in result.err
    result.check_short()


@pytest.mark.parametrize(
    ("content", "name", "value"),
    [
        ('max_num_seqs = "many"', "max_num_seqs", "many"),
        ("max_num_seqs = 1.5", "max_num_seqs", "1.5"),
        ("model = 3", "model", "3"),
        ('enable_prefix_caching = "perhaps"', "enable_prefix_caching", "perhaps"),
        ("threads = 0", "threads", "0"),
        ("history_steps = 99", "history_steps", "99"),
    ],
)
def test_a_wrong_value_in_the_file_is_named(
    settings_file: Path, capsys: pytest.CaptureFixture[str], content: str, name: str, value: str
) -> None:
    settings_file.write_text(content)
    result = run_cli(capsys)
    assert result.code == 2 and not result.out
    assert name in result.err and value in result.err
    result.check_short()


def test_a_wrong_variable_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NANOVIZ_BLOCK_SIZE", "big")
    result = run_cli(capsys)
    assert result.code == 2
    assert "block_size" in result.err and "big" in result.err
    result.check_short()


def test_a_wrong_flag_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    result = run_cli(capsys, "--block-size", "big")
    assert result.code == 2
    assert "block" in result.err and "big" in result.err
    result.check_short()


def test_two_mistakes_are_both_named(settings_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings_file.write_text('max_num_seqs = "many"\nblock_size = "big"\n')
    result = run_cli(capsys)
    assert result.code == 2
    assert "many" in result.err and "big" in result.err
    assert len(result.err.strip().splitlines()) == 2


def test_one_file_serves_all_commands(settings_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What only `run` understands may stand in the file: the dashboard and verify then do without it."""
    settings_file.write_text('model = "tiny"\nmax_tokens = 3\n')
    result = run_cli(capsys, "run", "--ignore-eos", "--json", "hello")
    assert result.code == 0
    assert "max_tokens" not in run_cli(capsys).err
    assert read().model == "tiny"


def test_settings_of_run_have_variables_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NANOVIZ_MAX_TOKENS", "5")
    settings, arguments = cli.parse(Run, ["hello"])
    assert settings.max_tokens == 5 and arguments.prompts == ["hello"]


@pytest.mark.parametrize("text", ["Hello, world", "[a, b] c", '["a","b"]', '{"a": 1}', "'", '"', "\x1b[31m", "a\\b"])
def test_prompts_and_stop_strings_are_text(text: str) -> None:
    """No comma splits them and no bracket makes a list of them."""
    _, arguments = cli.parse(Run, [text, "--stop", text, "--stop", ",", "second"])
    assert arguments.prompts == [text, "second"] and arguments.stop == [text, ","]
