"""`nanoviz config`: where each setting comes from, and a settings file that explains itself."""

from __future__ import annotations

import os
import stat
import tomllib
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field

from app import cli, config_command
from app.commands import COMMANDS
from app.keys import rebound
from app.settings import CommandSettings, key_table, settings_place
from app.subcommands import SUBCOMMANDS
from app.subcommands.config import Config
from app.subcommands.dashboard import Watch
from app.subcommands.engine import Bench, Run, Verify
from tests.app.support import run_cli

ALL: dict[str, type[CommandSettings]] = {"": Watch, **SUBCOMMANDS}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without a settings file."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv("NANOVIZ_CONFIG", raising=False)
    return tmp_path


@pytest.fixture
def settings_file(home: Path) -> Path:
    """The settings file in its usual place, empty until a test writes it."""
    path = settings_place()
    path.parent.mkdir(parents=True)
    path.touch()
    return path


def printed(capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, tuple[str, str]]:
    """What `nanoviz config` says of each setting and each key: its value, and where that comes from."""
    result = run_cli(capsys, "config", *flags)
    assert result.code == 0 and not result.err
    lines = [line.rsplit(" # ", 1) for line in result.out.splitlines() if " = " in line]
    return {line.split(" = ")[0]: (line.split(" = ")[1].strip(), origin) for line, origin in lines}


def uncommented(text: str) -> str:
    """The file with all its settings in force."""
    return "\n".join(
        line[1:] if line.startswith("#") and not line.startswith("# ") else line for line in text.splitlines()
    )


def test_without_anything_all_are_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    told = printed(capsys)
    assert {origin for _, origin in told.values()} == {"default"}
    assert told["model"] == ('"smollm2"', "default") and told["watermark"] == ("0.0", "default")
    assert told["enable_prefix_caching"] == ("true", "default") and told["max_tokens"] == ("64", "default")


def test_every_setting_of_every_command_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    out = run_cli(capsys, "config").out
    for command in ALL.values():
        for name in command.model_fields:
            lines = [line for line in out.splitlines() if line.removeprefix("# ").split(" ")[0] == name]
            assert len(lines) == 1, f"{name}: {lines}"


def test_where_each_comes_from(
    settings_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings_file.write_text('num_blocks = 80\nmax_num_seqs = 5\nblock_size = 8\ntop_k = 3\n[keys]\nshort = "f5"\n')
    monkeypatch.setenv("NANOVIZ_MAX_NUM_SEQS", "6")
    monkeypatch.setenv("NANOVIZ_BLOCK_SIZE", "4")
    told = printed(capsys, "--block-size", "2", "--no-mixed-chunk")
    assert told["num_blocks"] == ("80", f"file {settings_file}")
    assert told["top_k"] == ("3", f"file {settings_file}")
    assert told["max_num_seqs"] == ("6", "variable NANOVIZ_MAX_NUM_SEQS")
    assert told["block_size"] == ("2", "flag")
    assert told["mixed_chunk"] == ("false", "flag")
    assert told["short"] == ('"f5"', f"file {settings_file}")
    assert told["long"] == ('"l"', "default")


def test_it_names_the_file_and_whether_there_is_one(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run_cli(capsys, "config").out.splitlines()[0]
    assert str(settings_place()) in first and "there is none" in first
    mine = home / "mine.toml"
    mine.touch()
    monkeypatch.setenv("NANOVIZ_CONFIG", str(mine))
    first = run_cli(capsys, "config").out.splitlines()[0]
    assert str(mine) in first and "there is none" not in first


def test_what_is_printed_is_a_settings_file_too(settings_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = run_cli(
        capsys,
        "config",
        "--model",
        'a "quoted" \\ name\x7f\x1b',
        "--watermark",
        "0.25",
        "--priority-aging",
        "inf",
        "--threads",
        "2",
    ).out
    settings_file.write_text(out)
    settings, _ = cli.parse(Watch, [])
    assert settings.model == 'a "quoted" \\ name\x7f\x1b'
    assert (settings.watermark, settings.priority_aging, settings.threads) == (0.25, float("inf"), 2)
    assert rebound(*key_table()) == COMMANDS


def test_a_value_is_drawn_and_not_obeyed_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert "\u202e" not in run_cli(capsys, "config", "--model", "\u202e").out


@pytest.mark.parametrize(
    "content", ["model = 3\n", "no_such = 1\n", "= =\n", "[keys]\nno_such = 'x'\n", "max_tokens = 'many'\n"]
)
def test_a_mistake_in_the_file(settings_file: Path, capsys: pytest.CaptureFixture[str], content: str) -> None:
    settings_file.write_text(content)
    result = run_cli(capsys, "config")
    assert result.code == 2
    result.check_short()


def test_init_writes_the_file_in_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    path = settings_place()
    assert not path.parent.exists()
    result = run_cli(capsys, "config", "--init")
    assert result.code == 0 and str(path) in result.out and not result.err
    assert list(path.parent.iterdir()) == [path], "no scratch file is left"
    assert {origin for _, origin in printed(capsys).values()} == {"default"}


def test_init_writes_every_setting_with_its_help() -> None:
    text = config_command.template(Config.sections(), Config.model_fields)
    words = " ".join(text.replace("\n# ", " ").split())
    for command in ALL.values():
        for name, field in command.model_fields.items():
            assert text.count(f"\n#{name} = ") == 1
            assert field.description and " ".join(field.description.split()) in words
    for binding in COMMANDS:
        assert text.count(f"\n#{binding.name} = ") == 1 and binding.help in words
    assert max(map(len, text.splitlines())) <= config_command.LINE_WIDTH


def test_what_init_wrote_is_a_comment_until_it_is_changed(capsys: pytest.CaptureFixture[str]) -> None:
    run_cli(capsys, "config", "--init")
    assert tomllib.loads(settings_place().read_text()) == {"keys": {}}


def test_what_init_wrote_can_be_read_with_every_setting_in_force(capsys: pytest.CaptureFixture[str]) -> None:
    run_cli(capsys, "config", "--init")
    path = settings_place()
    path.write_text(uncommented(path.read_text()))
    said_each_time = {
        "bench": ["scheduler"],
        "replay": ["run.gz"],
        "attach": ["localhost:8000"],
        "compare": ["run.gz"],
        "export": ["run.gz", "--as=csv"],
        "play": ["figure"],
    }
    for called, command in ALL.items():
        settings = cli.parse(command, said_each_time.get(called, []))[0]
        for name, field in command.model_fields.items():
            default = config_command.EXAMPLE if field.default is None else field.default
            assert getattr(settings, name) == default, name
    assert rebound(*key_table()) == COMMANDS
    assert {origin for _, origin in printed(capsys).values()} == {f"file {path}"}


def test_a_new_setting_needs_no_word_here() -> None:
    class Wider(Watch):
        ratio: float = Field(0.5, description="a setting of tomorrow")
        names: tuple[str, ...] = Field(("a", "ü"), description="several at once")

    text = config_command.template([("", list(Wider.model_fields))], Wider.model_fields)
    assert "\n# a setting of tomorrow\n#ratio = 0.5\n" in text
    written = tomllib.loads(uncommented(text))
    assert written["ratio"] == 0.5 and written["names"] == ["a", "ü"]


def test_init_writes_where_it_is_told(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run_cli(capsys, "config", "--init", "--path", "~/a/b/mine.toml")
    assert result.code == 0 and str(home / "a/b/mine.toml") in result.out
    assert "max_num_seqs" in (home / "a/b/mine.toml").read_text()
    assert not settings_place().exists()


def test_a_home_of_nobody_stays_as_it_is(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NANOVIZ_CONFIG", "~nobody-of-that-name/mine.toml")
    assert run_cli(capsys, "config", "--path").out == "~nobody-of-that-name/mine.toml\n"
    result = run_cli(capsys, "config")
    assert result.code == 2
    result.check_short()


def test_init_writes_what_nanoviz_config_names(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NANOVIZ_CONFIG", str(home / "new.toml"))
    assert run_cli(capsys, "config", "--init").code == 0
    assert run_cli(capsys, "config").code == 0


def kept(path: Path) -> Any:
    return path.read_bytes() if path.is_file() else path.readlink() if path.is_symlink() else None


@pytest.mark.parametrize("kind", ["file", "empty file", "folder", "broken link"])
def test_init_never_writes_over_anything(home: Path, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    path = home / "mine.toml"
    match kind:
        case "file":
            path.write_text("= broken, and kept\n")
        case "empty file":
            path.touch()
        case "folder":
            path.mkdir()
        case _:
            path.symlink_to(home / "nowhere")
    before = kept(path)
    result = run_cli(capsys, "config", "--init", "--path", str(path))
    assert result.code == 2 and not result.out and str(path) in result.err
    result.check_short()
    assert kept(path) == before and list(home.iterdir()) == [path]


def test_init_in_a_place_that_cannot_be(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "file").touch()
    result = run_cli(capsys, "config", "--init", "--path", str(home / "file" / "mine.toml"))
    assert result.code == 2 and not result.out and str(home / "file") in result.err
    result.check_short()


def test_a_failed_init_leaves_nothing(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, target: object) -> None:
        raise OSError(28, os.strerror(28), str(target))

    monkeypatch.setattr(Path, "rename", full)
    result = run_cli(capsys, "config", "--init", "--path", str(home / "mine.toml"))
    assert result.code == 2 and os.strerror(28) in result.err
    assert list(home.iterdir()) == []


def test_the_file_can_be_read_by_whom_the_umask_lets(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = os.umask(0o022)
    try:
        run_cli(capsys, "config", "--init", "--path", str(home / "mine.toml"))
    finally:
        os.umask(before)
    assert stat.S_IMODE((home / "mine.toml").stat().st_mode) == 0o644


def test_path_alone_says_where_the_file_would_be(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_cli(capsys, "config", "--path").out == f"{settings_place()}\n"
    monkeypatch.setenv("NANOVIZ_CONFIG", "~/not there yet.toml")
    assert run_cli(capsys, "config", "--path").out == f"{home}/not there yet.toml\n"


def test_a_path_without_init_is_told_what_to_do(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run_cli(capsys, "config", "--path", str(home / "mine.toml"))
    assert result.code == 2 and "--init" in result.err and "NANOVIZ_CONFIG" in result.err
    result.check_short()


def test_only_config_does_without_settings() -> None:
    for command in (Watch, Run, Verify, Bench):
        assert command.execute_without_settings(Namespace()) is None
