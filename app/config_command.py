"""`nanoviz config`: print the settings in force, or write a settings file in which everything is explained."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from app.commands import COMMANDS
from app.keys import rebound, written
from app.settings import KEYS, SettingsMistake, key_table, settings_place
from app.text import printable

Section = tuple[str, Iterable[str]]
"""A heading, which may be empty, and the names of the settings under it."""

LINE_WIDTH = 100
ORIGIN_COLUMN = 48
EXAMPLE = 1
HEAD = (
    "Settings of nanoviz, all at their defaults. To change one, take away the # before its name. A variable "
    "NANOVIZ_NAME wins over this file, and a flag over both. `nanoviz config` prints what is in force, and why."
)
KEYS_HEAD = (
    "Keys of the dashboard, by command: one key or several with commas between them. A key is a character, or a name "
    "such as space, left, enter, f5, ctrl+r or comma. ctrl+c always leaves. Settings stand above this table."
)


def show(sections: Iterable[Section], values: Mapping[str, Any], origins: Mapping[str, str]) -> None:
    """Print every setting with where its value comes from, and the keys: a file that could be read again."""
    place = settings_place()
    _say(f"# settings file: {place}" + ("" if place.exists() else " (there is none)"))
    for heading, names in sections:
        if heading:
            _say(f"\n# {heading}")
        for name in names:
            _say(_with_origin(_assignment(name, values[name]), origins[name]))
    table, file = key_table()
    commands = rebound(table, file)
    _say(f"\n[{KEYS}]")
    for command in commands:
        origin = f"file {file}" if command.name in table else "default"
        _say(_with_origin(_assignment(command.name, written(command)), origin))


def write(path: Path, sections: Iterable[Section], fields: Mapping[str, FieldInfo]) -> None:
    """Write a settings file with every setting at its default, commented out; whole or not at all, and over none."""
    try:
        if os.path.lexists(path):
            raise SettingsMistake(f"there is already a file {path}; nothing was written.")
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            scratch.write_text(template(sections, fields), encoding="utf-8")
            scratch.rename(path)
        finally:
            scratch.unlink(missing_ok=True)
    except OSError as error:
        raise SettingsMistake(f"{path} cannot be written: {error.strerror} ({error.filename}).") from None


def template(sections: Iterable[Section], fields: Mapping[str, FieldInfo]) -> str:
    """The text of that file. A help line begins with "# ", a setting with "#" alone."""
    lines = _comment(HEAD)
    for heading, names in sections:
        lines += ["", *_comment(f"--- {heading} ---")] if heading else []
        for name in names:
            default = fields[name].default
            unset = " (not set by default; this is an example)" if default is None else ""
            lines += ["", *_comment(f"{fields[name].description or name}{unset}")]
            lines.append(f"#{name} = {_toml(EXAMPLE if default is None else default)}")
    lines += ["", f"[{KEYS}]", *_comment(KEYS_HEAD)]
    for command in COMMANDS:
        lines += ["", *_comment(command.help), f"#{command.name} = {_toml(written(command))}"]
    return "\n".join(lines) + "\n"


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, LINE_WIDTH, initial_indent="# ", subsequent_indent="# ", break_long_words=False)


def _assignment(name: str, value: Any) -> str:
    return f"# {name} is not set" if value is None else f"{name} = {_toml(value)}"


def _with_origin(line: str, origin: str) -> str:
    return f"{line:{ORIGIN_COLUMN}} # {origin}"


def _toml(value: Any) -> str:
    """A value as TOML writes it. JSON writes the same, but for numbers without end and one control character."""
    if isinstance(value, float):
        return repr(value)
    return json.dumps(to_jsonable_python(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def _say(line: str) -> None:
    """On a terminal, what somebody typed is drawn and never obeyed."""
    print(printable(line, newlines=True) if sys.stdout.isatty() else line)
