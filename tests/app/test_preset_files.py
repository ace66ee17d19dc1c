"""Preset files: which there are, how one is found, and what is said of mistakes: file, line and key."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from textwrap import dedent

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.preset import Preset
from app.preset_files import PresetError, available, find, line_of, load, shipped
from tests.app.preset_support import EXPECT, HEAD, INJECT, text_of_preset, written
from tests.app.support import HOSTILE, repeatable, run_cli

SHIPPED = (
    "figure",
    "chat",
    "ride-along",
    "memory-pressure",
    "budget",
    "head-of-line",
    "prefix-cache",
    "no-admission",
    "priority",
    "seats",
    "sglang",
    "first-chunk",
    "edge",
)
TOML_HOSTILE = HOSTILE.replace("\x1b", "\\u001b")
"""As it can stand between quotation marks: TOML knows escapes, too."""


@pytest.fixture(autouse=True)
def config_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a test has its own settings, and so its own presets."""
    folder = tmp_path / "config"
    (folder / "presets").mkdir(parents=True)
    (folder / "config.toml").write_text("")
    monkeypatch.setenv("NANOVIZ_CONFIG", str(folder / "config.toml"))
    return folder


def mistake(folder: Path, text: str) -> str:
    """What is said of this preset, without the name of the file, which has to be there."""
    path = written(folder, text)
    with pytest.raises(PresetError) as caught:
        load(path)
    told = str(caught.value)
    assert told.startswith(str(path)) and told.endswith(".") and "\n" not in told, told
    return told.removeprefix(str(path))


def line_with(text: str, part: str) -> int:
    return text[: text.index(part)].count("\n") + 1


SCENES = '[[scene]]\nname = "one"\n[[scene]]\nname = "two"\n'


@pytest.mark.parametrize(
    ("parts", "at", "key", "words"),
    [
        # A key that is not known, at each level.
        ({"middle": "spede = 3\n"}, "spede", "spede", ("no such key", "speed", "title")),
        ({"middle": "[parameters]\nnum_blcks = 3\n"}, "num_blcks", "parameters.num_blcks", ("num_blocks", "policy")),
        ({"inject": f"{INJECT}saying = 'x'\n"}, "saying", "script[1].saying", ("say", "pause")),
        (
            {"inject": "[[script]]\nstep = 0\ninject = [{ tokens = 3 }, { toks = 3 }]\n"},
            "inject",
            "script[1].inject[2].toks",
            ("tokens", "kind"),
        ),
        ({"inject": f"{INJECT}set = {{ no_such = 1 }}\n"}, "set", "script[1].set.no_such", ("watermark",)),
        ({"middle": "[[scene]]\nname = 'a'\nmodel = 'tiny'\n"}, "model", "scene[1].model", ("name", "script")),
        (
            {"middle": "[[scene]]\nname = 'a'\nparameters = { n = 1 }\n"},
            "parameters",
            "scene[1].parameters.n",
            ("num_blocks",),
        ),
        ({"expect": f"{EXPECT}scene = 'a'\n"}, "scene", "expect[1].scene", ("check", "text")),
        # Wrong types.
        ({"head": "title = 3\nmoral = 'x'\n"}, "title", "title", ("string", "3")),
        ({"middle": "speed = 'fast'\n"}, "speed", "speed", ("number", "'fast'")),
        ({"middle": "[parameters]\nnum_blocks = '80'\n"}, "num_blocks", "parameters.num_blocks", ("integer", "'80'")),
        ({"middle": "[parameters]\nnum_blocks = true\n"}, "num_blocks", "parameters.num_blocks", ("integer", "True")),
        ({"middle": "scene = 'one'\n"}, "scene", "scene", ("list", "'one'")),
        ({"inject": "[[script]]\nstep = 1.5\n"}, "step = 1.5", "script[1].step", ("integer", "1.5")),
        ({"inject": "[[script]]\nstep = 0\ninject = 7\n"}, "inject", "script[1].inject[1]", ("7",)),
        (
            {"inject": "[[script]]\nstep = 0\ninject = { tokens = 'many' }\n"},
            "inject",
            "script[1].inject[1].tokens",
            ("[least, most]", "'many'"),
        ),
        (
            {"inject": "[[script]]\nstep = 0\ninject = { tokens = [1, 2, 3] }\n"},
            "inject",
            "script[1].inject[1].tokens",
            ("[least, most]", "[1, 2, 3]"),
        ),
        # Out of range.
        ({"middle": "speed = -1\n"}, "speed", "speed", ("0", "-1")),
        ({"middle": "speed = inf\n"}, "speed", "speed", ("finite", "inf")),
        ({"inject": "[[script]]\nstep = -1\n"}, "step = -1", "script[1].step", ("0", "-1")),
        ({"inject": "[[script]]\nsecond = nan\n"}, "second", "script[1].second", ("nan",)),
        ({"inject": "[[script]]\nstep = 99999999999999999999\n"}, "step", "script[1].step", ("1000000000",)),
        (
            {"middle": "[parameters]\nnum_blocks = 99999999999999999999\n"},
            "num_blocks",
            "parameters.num_blocks",
            ("1000000000",),
        ),
        ({"head": f"title = '{'x' * 61}'\nmoral = 'x'\n"}, "title", "title", ("60",)),
        ({"head": "title = ''\nmoral = 'x'\n"}, "title", "title", ("1 character",)),
        ({"middle": "[[scene]]\nname = 'a b'\n"}, "name", "scene[1].name", ("'a b'",)),
        # Missing.
        ({"head": "moral = 'x'\n"}, "moral", "title", ("missing",)),
        ({"expect": "[[expect]]\ntext = 'x'\n"}, "[[expect]]", "expect[1].check", ("missing",)),
        ({"expect": ""}, "title", "expect", ("missing",)),
        ({"middle": "[[scene]]\nscript = []\n"}, "[[scene]]", "scene[1].name", ("missing",)),
        # What does not go together.
        ({"inject": "[[script]]\nsay = 'x'\n"}, "[[script]]", "script[1]", ("step", "second")),
        ({"inject": "[[script]]\nstep = 1\nsecond = 1\n"}, "[[script]]", "script[1]", ("step", "second")),
        ({"inject": "[[script]]\nsecond = 1\npause = true\n"}, "[[script]]", "script[1]", ("pause",)),
        (
            {"inject": "[[script]]\nstep = 0\ninject = { tokens = 3, text = 'x' }\n"},
            "inject",
            "script[1].inject[1]",
            ("kind", "text", "tokens"),
        ),
        (
            {"inject": "[[script]]\nstep = 0\ninject = { tokens = 3, count = 2, every = 1, rate = 1 }\n"},
            "inject",
            "script[1].inject[1]",
            ("every", "rate"),
        ),
        (
            {"inject": "[[script]]\nstep = 0\ninject = { tokens = [5, 3] }\n"},
            "inject",
            "script[1].inject[1]",
            ("tokens", "[least, most]"),
        ),
        (
            {"inject": "[[script]]\nstep = 0\ninject = { tokens = 5, shared_tokens = 6 }\n"},
            "inject",
            "script[1].inject[1]",
            ("shared_tokens",),
        ),
        (
            {"inject": "[[script]]\nstep = 0\ninject = { tokens = 5, rate = 1e-300 }\n"},
            "inject",
            "script[1].inject[1]",
            ("rate",),
        ),
        # What the engine would refuse.
        (
            {"middle": "[parameters]\nnum_blocks = 10\n"},
            "[parameters]",
            "parameters",
            ("'run'", "outgrow", "65 blocks"),
        ),
        (
            {"middle": "[[scene]]\nname = 'good'\n[[scene]]\nname = 'bad'\nparameters = { policy = 'lifo' }\n"},
            "parameters",
            "scene[2].parameters.policy",
            ("'bad'", "'lifo'", "sglang"),
        ),
        (
            {"inject": f"{INJECT}[[script]]\nstep = 3\nset = {{ max_num_seqs = 0 }}\n"},
            "[[script]]",
            "script",
            ("step 3", "max_num_seqs is 0"),
        ),
        ({"inject": f"{INJECT}set = {{ block_size = 8 }}\n"}, "set", "script[1].set.block_size", ("cannot change",)),
        (
            {"middle": "[[scene]]\nname = 'a'\n[[scene.script]]\nstep = 2\nset = { max_model_len = 64 }\n"},
            "set",
            "scene[1].script[1].set.max_model_len",
            ("cannot change",),
        ),
        # Names.
        ({"middle": f'{SCENES}[[scene]]\nname = "one" # again\n'}, '"one" # again', "scene[3].name", ("'one'",)),
        ({"middle": "[[scene]]\nname = 'alone'\n"}, "name", "scene[1].name", ("'alone'",)),
        ({"inject": ""}, "title", "scene[1]", ("'run'", "no request")),
        # Checks.
        ({"expect": "[[expect]]\ncheck = 'hunger > 2'\n"}, "check", "expect[1].check", ("'hunger'", "preemptions")),
        (
            {"middle": SCENES, "expect": "[[expect]]\ncheck = 'steps@three > 2'\n"},
            "check",
            "expect[1].check",
            ("'three'", "one, two"),
        ),
        (
            {"expect": "[[expect]]\ncheck = 'ttft.late.max > 2'\n"},
            "check",
            "expect[1].check",
            ("'late'", "short"),
        ),
        ({"expect": "[[expect]]\ncheck = 'steps => 2'\n"}, "check", "expect[1].check", ("'steps ='",)),
        ({"expect": "[[expect]]\ncheck = 'steps'\n"}, "check", "expect[1].check", ("compares nothing",)),
    ],
)
def test_a_mistake_is_told_with_file_line_and_key(
    parts: dict[str, str], at: str, key: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    text = text_of_preset(**parts)
    told = mistake(tmp_path, text)
    assert told.startswith(f", line {line_with(text, at)}: {key}: "), told
    for word in words:
        assert word in told


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("title = \n", ("not TOML", "line 1")),
        (f"{HEAD}{HEAD}", ("not TOML", "line 3")),
        ("a = " + "9" * 5000, ("not TOML",)),
        ("a = " + "[" * 5000, ("nested",)),
    ],
)
def test_what_is_no_toml_is_told_with_the_file(text: str, words: tuple[str, ...], tmp_path: Path) -> None:
    told = mistake(tmp_path, text)
    for word in words:
        assert word in told


def test_files_that_cannot_be_read_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def reason(path: Path) -> str:
        with pytest.raises(PresetError) as caught:
            load(path)
        assert str(path) in str(caught.value)
        return str(caught.value)

    (tmp_path / "latin.toml").write_bytes(b"title = '\xfcber'")
    (tmp_path / "folder.toml").mkdir()
    assert "UTF-8" in reason(tmp_path / "latin.toml")
    assert "No such file" in reason(tmp_path / "missing.toml")
    assert "directory" in reason(tmp_path / "folder.toml")
    path = written(tmp_path, text_of_preset(), "locked.toml")
    if os.geteuid():
        path.chmod(0)
    else:  # root may read everything

        def refuse(self: Path, encoding: str) -> str:
            raise PermissionError(13, "Permission denied", str(self))

        monkeypatch.setattr(Path, "read_text", refuse)
    assert "Permission denied" in reason(path)


def test_lines_are_right_behind_whatever_takes_several(tmp_path: Path) -> None:
    text = dedent('''
        # A comment with "quotes" and [brackets

        title = "A test"
        moral = """
        First line.
        title = "not a key"

        [[scene]]
        """
        parameters.num_blocks = 100   # a dotted key
        parameters."max_num_seqs" = 2

        [[script]]
        step = 0
        say = \'\'\'
        """ [ { \'\'\'
        inject = [
            { tokens = 5 },   # a comment

            { text = "a ] b", max_tokens = [1,
              2] },
            { tokens = 5, max_toks = 3 },
        ]

        [[scene]]
        name = "one"

        [[expect]]
        check = "served == 3"
    ''')
    assert mistake(tmp_path, text).startswith(
        f", line {line_with(text, '{ tokens = 5, max_toks')}: script[1].inject[3]"
    )
    text = text.replace("max_toks", "max_tokens")
    load(written(tmp_path, text))
    for right, wrong in [
        ("num_blocks = 100", "num_blocks = 1"),
        ('"max_num_seqs" = 2', '"max_num_seqs" = 2.5'),
        ('name = "one"', 'name = "-"'),
        ('check = "served == 3"', 'check = "served"'),
        ('text = "a ] b"', 'test = "a ] b"'),
    ]:
        broken = text.replace(right, wrong)
        first = "parameters.num_blocks" if right == "num_blocks = 100" else wrong  # the table as a whole is refused
        assert mistake(tmp_path, broken).startswith(f", line {line_with(broken, first)}: "), wrong


KEYS = st.sampled_from(["alpha", "beta", "gamma", "delta"])
VALUES = st.sampled_from(
    [
        "1",
        '"text # with [ signs"',
        '"""\ntwo\n\nalpha = 1\n[[lines]]\n"""',
        "'''\n[alpha]\n'''",
        "[1, 2]",
        "[\n  1, # one\n\n  [2,\n 3],\n]",
        "{ x = 1, y = [1, 2] }",
        "[{ x = 1 },\n { x = 2 }]",
    ]
)
GAPS = st.lists(st.sampled_from(["\n", "# a comment\n", "  \n"]), max_size=3).map("".join)


@settings(repeatable, max_examples=30)
@given(st.data())
def test_the_line_of_every_key_of_any_document(data: st.DataObject) -> None:
    text, wanted = "", {}

    def entries(prefix: tuple[int | str, ...]) -> None:
        nonlocal text
        for key in data.draw(st.lists(KEYS, unique=True, max_size=4)):
            text += data.draw(GAPS)
            wanted[*prefix, key] = text.count("\n") + 1
            text += f"{key} = {data.draw(VALUES)}\n"

    entries(())
    for index in range(data.draw(st.integers(0, 3))):
        text += data.draw(GAPS)
        wanted["table", index] = text.count("\n") + 1
        text += "[[table]]\n"
        entries(("table", index))
        if data.draw(st.booleans()):
            text += data.draw(GAPS)
            wanted["table", index, "inner"] = text.count("\n") + 1
            text += "[table.inner]\n"
            entries(("table", index, "inner"))
    tomllib.loads(text)
    for loc, line in wanted.items():
        assert line_of(text, loc) == line, loc
        assert line_of(text, (*loc, "missing")) == line, "of what is missing, that of its table"


# Which there are.


def test_all_shipped_presets_are_there_in_their_order() -> None:
    assert tuple(shipped()) == SHIPPED
    assert tuple(available()) == SHIPPED


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_preset_tells_what_happens_and_what_one_has_seen(name: str) -> None:
    preset = load(shipped()[name])
    for scene in preset.scene:
        assert any(event.say for event in (*preset.script, *scene.script)), scene.name
    assert 1 <= sum(preset.moral.count(sign + " ") for sign in ".!?") + 1 <= 2 and preset.moral.strip().endswith(".")
    assert len(preset.expect) >= 2 and all(expect.text for expect in preset.expect)


def test_a_preset_is_found_by_name_number_and_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find("budget") == find("5") == shipped()["budget"]
    path = written(tmp_path, text_of_preset(), "mine.toml")
    plain = written(tmp_path, text_of_preset(), "mine")
    assert find(str(path)) == path and find(str(plain)) == plain
    monkeypatch.chdir(tmp_path)
    assert find("mine.toml") == Path("mine.toml")
    for name in ("0", "14", "nothing", "", "x" * 5000, str(tmp_path)):
        with pytest.raises(PresetError) as caught:
            find(name)
        assert all(known in str(caught.value) for known in SHIPPED)


def test_a_persons_own_presets_are_beside_the_settings(config_folder: Path) -> None:
    own = written(config_folder / "presets", text_of_preset(), "mine.toml")
    assert find("mine") == own
    assert tuple(available()) == (*SHIPPED, "mine")
    same = written(config_folder / "presets", text_of_preset(), "budget.toml")
    assert find("budget") == same, "one's own goes before one of nanoviz"
    assert find("5") == shipped()["budget"], "numbers are those of nanoviz"


def test_the_list_of_presets_names_what_cannot_be_read_and_goes_on(
    config_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(config_folder / "presets", text_of_preset(middle="speed = -1\n"), "broken.toml")
    written(config_folder / "presets", text_of_preset(head="title = 'Mine'\nmoral = 'It works.'\n"), "mine.toml")
    result = run_cli(capsys, "presets")
    assert result.code == 0
    for name in (*SHIPPED, "mine", "It works."):
        assert name in result.out
    assert "broken.toml, line 3: speed" in result.err
    result.check_short()


# Hostile text: markup, escape sequences, direction marks.


def check_harmless(text: str) -> None:
    assert not set(text) & set("\x1b\u202e\x07"), text


def test_hostile_text_in_a_preset_is_drawn_and_never_obeyed(
    config_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = f"""
title = "{TOML_HOSTILE}"
moral = '''
{HOSTILE.replace(chr(27), "")} moral'''
model = "tiny"
parameters.policy = "{TOML_HOSTILE}"
[[scene]]
name = "a"
parameters = {{ policy = "fcfs" }}
[[script]]
step = 0
say = "{TOML_HOSTILE} said"
inject = [{{ text = "{TOML_HOSTILE}", label = "{TOML_HOSTILE}", max_tokens = 2 }}, {{ text = "{"a " * 2000}" }}]
[[expect]]
check = "served == 1"
text = "{TOML_HOSTILE} text"
[[expect]]
check = "served == 2"
text = "{TOML_HOSTILE} text"
"""
    name = "a\x1b[31m\u202eb"
    written(config_folder / "presets", text, f"{name}.toml")
    for arguments in [
        ("presets",),
        ("presets", name),
        ("play", name, "--headless", "--trace"),
        ("compare", name),
        ("compare", name, "--set", "max_num_seqs=1,2"),
    ]:
        result = run_cli(capsys, *arguments)
        assert result.code == (1 if arguments[0] == "play" else 0), result
        assert "[bold red]hi[/]" in result.out
        check_harmless(result.out + result.err)


@pytest.mark.parametrize(
    "text",
    [
        text_of_preset(middle=f'"{TOML_HOSTILE}" = 1\n'),
        text_of_preset(middle=f'model = "x"\nspeed = "{TOML_HOSTILE}"\n'),
        text_of_preset(middle=f'[[scene]]\nname = "{TOML_HOSTILE}"\n'),
        text_of_preset(middle=f'[parameters]\npolicy = "{TOML_HOSTILE}"\n'),
        text_of_preset(expect=f'[[expect]]\ncheck = "{TOML_HOSTILE} > 1"\n'),
        text_of_preset(expect=f'[[expect]]\ncheck = "steps@{TOML_HOSTILE.split()[1]} > 1"\n'),
        text_of_preset(middle=f'model = "{TOML_HOSTILE}"\n'),
        f"{HEAD}\x1b[31m = 1\n",
    ],
)
def test_hostile_text_in_a_mistake_is_drawn_and_never_obeyed(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, text, "a\x1b[31m\u202eb.toml")
    result = run_cli(capsys, "play", str(path), "--headless")
    assert result.code == 2
    result.check_short()
    check_harmless(result.err + result.out)


def test_a_preset_has_every_key_that_its_tables_know(tmp_path: Path) -> None:
    """All of them at once, with other values than the defaults."""
    text = """
title = "All"
moral = "Every key."
model = "smollm2"
needs_text = true
speed = 4
seed = 7
[parameters]
watermark = 0
policy = "sarathi"
[[script]]
step = 1
say = "x"
pause = true
set = { max_num_seqs = 3 }
inject = { kind = "short", count = 2, every = 0.5, max_tokens = [1, 3], priority = -1, label = "x", ignore_eos = false }
[[script]]
second = 0.25
inject = [{ text = "x", shared = "y", rate = 3 }, { tokens = [3, 5], shared_tokens = 2 }]
[[scene]]
name = "a"
script = [{ step = 3, say = "z" }]
[[expect]]
check = "served > 1"
text = "t"
"""
    preset = load(written(tmp_path, text))
    assert set(Preset.model_fields) == preset.model_fields_set
    assert preset.config(preset.scene[0], {"policy": "fcfs"}).policy == "fcfs"


def test_the_readme_tells_the_moral_of_each_preset() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    for name, path in shipped().items():
        preset = load(path)
        assert f"| `{name}` | {preset.title} | {' '.join(preset.moral.split())} |\n" in readme
