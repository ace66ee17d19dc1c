"""Keys from the settings file: what is understood, what is refused, and that the whole dashboard follows them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from textual.command import CommandPalette

from app.commands import COMMANDS, LEAVE, Command, displayed
from app.keys import RESERVED, key_name, rebound, written
from app.protocol import AddRequest, Failed
from app.settings import SettingsMistake
from tests.app.support import READY, Stand, dashboard, run_cli

FILE = Path("/somewhere/config.toml")
BY_NAME = {command.name: command for command in COMMANDS}


@pytest.fixture
def settings_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The settings file, empty until a test writes it."""
    path = tmp_path / "config.toml"
    path.touch()
    monkeypatch.setenv("NANOVIZ_CONFIG", str(path))
    return path


def bound(**keys: object) -> dict[str, Command]:
    """The commands by name, under a table of keys."""
    return {command.name: command for command in rebound(keys, FILE)}


def refusal(**keys: object) -> str:
    with pytest.raises(SettingsMistake) as refused:
        rebound(keys, FILE)
    return str(refused.value)


def footer(stand: Stand) -> str:
    return stand.lines()[-1]


def labels(stand: Stand) -> list[str]:
    """Of the requests that were sent since the last call."""
    return [command.label for command in stand.source.take_sent() if isinstance(command, AddRequest)]


def test_without_a_table_all_is_as_it_was() -> None:
    assert rebound({}, FILE) == COMMANDS


def test_no_key_has_two_commands() -> None:
    """Each name stands for the key that it names, and reserved ones are nobody's but for leaving."""
    owners: dict[str, str] = {}
    for command in COMMANDS:
        for key in command.keys.split(","):
            if key != LEAVE:
                assert key_name(key, command.name) == key
            assert owners.setdefault(key, command.name) == command.name, f"{key} has two commands"


def test_every_command_as_the_settings_file_would_say_it_is_the_same() -> None:
    assert rebound({command.name: written(command) for command in COMMANDS}, FILE) == COMMANDS


@pytest.mark.parametrize(
    ("keys", "names", "shown"),
    [
        ("y", "y", "y"),
        ("Y", "Y", "Y"),
        ("shift+y", "Y", "Y"),
        ("ctrl+y", "ctrl+y", "ctrl+y"),
        ("ctrl+Y", "ctrl+y", "ctrl+y"),
        ("shift+ctrl+y", "ctrl+shift+y", "ctrl+shift+y"),
        ("*", "asterisk", "*"),
        ("asterisk", "asterisk", "*"),
        ("%", "percent_sign", "%"),
        ("comma", "comma", ","),
        ("é", "é", "é"),
        ("f5", "f5", "f5"),
        ("shift+f5", "shift+f5", "shift+f5"),
        ("ctrl+up", "ctrl+up", "ctrl+↑"),
        ("ctrl++", "ctrl+plus", "ctrl++"),
        ("backspace", "backspace", "⌫"),
        ("ctrl+space", "ctrl+at", "ctrl+@"),
        (" f5 , f6,f5 ", "f5,f6", "f5"),
    ],
)
def test_what_a_key_may_be_called(keys: str, names: str, shown: str) -> None:
    command = bound(short=keys)["short"]
    assert (command.keys, command.key_display) == (names, shown)


def test_keys_can_be_exchanged() -> None:
    commands = bound(short="l", long="s")
    assert (commands["short"].keys, commands["long"].keys) == ("l", "s")
    assert all(commands[name] == BY_NAME[name] for name in BY_NAME if name not in ("short", "long"))


def test_the_readmes_example_is_understood() -> None:
    readme = Path(__file__, "../../../README.md").resolve().read_text(encoding="utf-8")
    (example,) = [text for text in re.findall(r"```toml\n(.*?)```", readme, re.DOTALL) if "[keys]" in text]
    assert rebound(tomllib.loads(example)["keys"], FILE) != COMMANDS


def test_what_is_said_of_a_command_stays() -> None:
    short, before = bound(short="f5")["short"], BY_NAME["short"]
    assert (short.title, short.help, short.short) == (before.title, before.help, before.short)


@pytest.mark.parametrize(
    "keys", ["nokey", "f5,nokey", "hyperspace+x", "return", "ab", "\x1b", "ctrl+", "+ctrl", "<any>"]
)
def test_an_unknown_key_is_named_with_its_command_and_file(keys: str) -> None:
    text = refusal(short=keys)
    assert "short" in text and str(FILE) in text and repr(keys.split(",")[-1]) in text


@pytest.mark.parametrize("keys", ["", ",", "f5,,f6", " "])
def test_a_missing_key(keys: str) -> None:
    text = refusal(short=keys)
    assert "short" in text and str(FILE) in text and "missing" in text


@pytest.mark.parametrize("keys", [3, True, ["s"], {"s": 1}])
def test_keys_that_are_no_text(keys: object) -> None:
    text = refusal(short=keys)
    assert "short" in text and str(FILE) in text and repr(keys) in text


def test_an_unknown_command_is_named_with_its_file() -> None:
    text = refusal(model="tiny", short="f5")
    assert "'model'" in text and str(FILE) in text and "[keys]" in text


@pytest.mark.parametrize(
    "keys", [{"short": "l"}, {"long": "f5,s"}, {"short": "f5", "long": "f5"}, {"abort": "shift+s"}]
)
def test_one_key_for_two_commands(keys: dict[str, str]) -> None:
    text = refusal(**keys)
    assert str(FILE) in text and text.split(":")[0] in keys, "the line to look at comes first"


@pytest.mark.parametrize("key", [*RESERVED, "ctrl+C", "ctrl+i"])
def test_reserved_keys(key: str) -> None:
    text = refusal(short=key)
    assert "short" in text and str(FILE) in text and "cannot be bound" in text


def test_leaving_is_always_possible() -> None:
    assert bound(quit="Q")["quit"].keys == f"Q,{LEAVE}"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[keys]\nshrt = 's'\n", ("shrt",)),
        ("[keys]\nshort = 'no key'\n", ("short", "no key")),
        ("[keys]\nshort = 'l'\n", ("short", "long", "l")),
        ("[keys]\nshort = 's'\nmodel = 'tiny'\n", ("model", "above")),
        ("keys = 's'\n", ("[keys]",)),
    ],
)
@pytest.mark.parametrize("command", [(), ("config",)])
def test_a_mistake_is_told_and_nothing_is_opened(
    settings_file: Path,
    capsys: pytest.CaptureFixture[str],
    command: tuple[str, ...],
    content: str,
    words: tuple[str, ...],
) -> None:
    settings_file.write_text(content)
    result = run_cli(capsys, *command)
    assert result.code == 2
    for word in (*words, str(settings_file)):
        assert word in result.err
    result.check_short()


def test_keys_are_neither_flag_nor_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(capsys, "--keys", "x").code == 2
    monkeypatch.setenv("NANOVIZ_KEYS", "x")
    result = run_cli(capsys)
    assert result.code == 2 and "NANOVIZ_KEYS" in result.err


async def test_a_rebound_key_acts_and_the_old_one_does_not() -> None:
    async with dashboard((120, 40), READY, commands=rebound({"short": "f5,%"}, FILE)) as stand:
        await stand.press("s")
        assert labels(stand) == []
        await stand.press("f5", "percent_sign", "l")
        assert labels(stand) == ["short", "short", "long"]


async def test_exchanged_keys_act() -> None:
    async with dashboard((120, 40), READY, commands=rebound({"short": "l", "long": "s"}, FILE)) as stand:
        await stand.press("s", "l")
        assert labels(stand) == ["long", "short"]


async def test_the_footer_shows_the_keys_in_force_in_their_usual_places() -> None:
    async with dashboard((160, 40), READY) as stand:
        before = footer(stand)
    async with dashboard((160, 40), READY, commands=rebound({"short": "y", "help": "f1,?"}, FILE)) as stand:
        assert footer(stand) != before
        assert footer(stand).split() == before.replace("s short", "y short").replace("? help", "f1 help").split()


async def test_help_shows_the_keys_in_force() -> None:
    async with dashboard((120, 60), READY, commands=rebound({"short": "f5"}, FILE)) as stand:
        await stand.press("question_mark")
        await stand.press("right")  # on to the section of keys
        for name, keys in (("short", "f5"), ("long", "l")):
            (line,) = [line for line in stand.lines() if BY_NAME[name].help in line]
            assert f"│ {keys} " in line


async def test_the_palette_shows_the_keys_in_force() -> None:
    async with dashboard((120, 40), READY, commands=rebound({"abort": "f5"}, FILE)) as stand:
        await stand.press("ctrl+p")
        await stand.until(lambda: isinstance(stand.app.screen, CommandPalette) and "f5 · End" in stand.text())


async def test_hints_show_the_keys_in_force() -> None:
    commands = rebound({"short": "f5", "restart": "f6", "quit": "f7", "long": "f8"}, FILE)
    async with dashboard((120, 40), READY, commands=commands) as stand:
        requests = [line.split() for line in stand.lines()[:-1]]
        assert any(words[:1] == ["f5"] for words in requests)
        assert any(words[:5] == ["f8", "f8", "f8", "f8", "b"] for words in requests)
        await stand.feed(Failed("gone"))
        assert "f6 starts it again, f7 leaves" in stand.text()
        await stand.resize(40, 10)
        assert "f7 leaves" in " ".join(stand.text().split())


@pytest.mark.parametrize("keys", ["Q", "f10,Q"])
async def test_ctrl_c_leaves_whatever_quit_is_bound_to(keys: str) -> None:
    async with dashboard((120, 40), READY, commands=rebound({"quit": keys}, FILE)) as stand:
        await stand.press("q", "question_mark")
        assert stand.app.return_value is None
        await stand.press("ctrl+c")
        await stand.until(lambda: stand.app.return_value == 0)


def test_displayed() -> None:
    assert [displayed(key) for key in ("question_mark", "shift+left", "ctrl+minus")] == ["?", "shift+←", "ctrl+-"]
