"""Preset files: which there are, and reading one; a mistake is told with file, line and key."""

from __future__ import annotations

import os.path
import re
import tomllib
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from app.expectation import ALONE, Expectation, ExpectationError
from app.preset import Preset, Table, changes
from app.settings import expanded, settings_place
from app.workload import arrivals, labels
from engine.config import ConfigError

SHIPPED = "[0-9][0-9]-*.toml"
"""The presets that come with nanoviz, in their order; its prompts lie beside them."""
Loc = Sequence[int | str]


class PresetError(ValueError):
    """A preset that cannot be played; the text names the file, and the line and the key if it is about one."""


def shipped() -> dict[str, Path]:
    """The presets that come with nanoviz, by name: the file's, without its number."""
    folder = Path(str(files("presets")))
    return {name_of(path): path for path in sorted(folder.glob(SHIPPED))}


def name_of(path: Path) -> str:
    """What the preset in a file is called."""
    return re.sub(r"^\d\d-", "", path.stem)


def own_folder() -> Path:
    """Where a person's own presets are."""
    return settings_place().parent / "presets"


def available() -> dict[str, Path]:
    """All presets by name. A person's own goes before one of nanoviz with the same name."""
    own = {name_of(path): path for path in sorted(own_folder().glob("*.toml"))}
    return {**shipped(), **own}


def find(name: str) -> Path:
    """The file of a preset: its name, its number among those of nanoviz, or a path. Raises PresetError."""
    known = available()
    if name in known:
        return known[name]
    if name.isdecimal() and 1 <= int(name) <= len(shipped()):
        return list(shipped().values())[int(name) - 1]
    path = expanded(name)
    if path.suffix == ".toml" or os.path.isfile(path):  # noqa: PTH113  what cannot even be looked at is none
        return path
    raise PresetError(f"there is no preset {name!r}; there are: {', '.join(known)}, or the path of a .toml file.")


def is_preset(name: str) -> bool:
    """Whether this is meant to be a preset, and not some other file."""
    if name.endswith(".toml") or name in available() or name.isdecimal():
        return True
    is_word = not Path(name).suffix and Path(name).name == name
    return is_word and not os.path.exists(name)  # noqa: PTH110  for the same reason


def load(path: Path) -> Preset:
    """Read a preset. Raises PresetError."""
    try:
        text = path.read_text(encoding="utf-8")
        data = tomllib.loads(text)
    except OSError as error:
        raise PresetError(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise PresetError(f"{path} is no text in UTF-8.") from None
    except ValueError as error:  # TOMLDecodeError, and what Python says to numbers of thousands of digits
        raise PresetError(f"{path} is not TOML: {str(error).rstrip('.')}.") from None
    except RecursionError:
        raise PresetError(f"{path} is nested too deeply.") from None
    try:
        preset = Preset.model_validate(data)
    except ValidationError as error:
        # A key that is not known is often why another one is missing.
        first = min(error.errors(), key=lambda mistake: mistake["type"] != "extra_forbidden")
        raise _mistake(path, text, first["loc"], _sentence(first)) from None
    _check(path, text, preset)
    return preset


def _check(path: Path, text: str, preset: Preset) -> None:
    """What cannot be seen from one key alone."""
    names = [scene.name for scene in preset.scene]
    for index, scene in enumerate(preset.scene):
        if scene.name == ALONE:
            raise _mistake(path, text, ("scene", index, "name"), f"{ALONE!r} is what each request alone is called")
        if not any(event.inject for event in (*preset.script, *scene.script)):
            raise _mistake(path, text, ("scene", index), f"scene {scene.name!r}: no request is injected")
        if scene.name in names[:index]:
            raise _mistake(path, text, ("scene", index, "name"), f"there is a scene {scene.name!r} already")
        try:
            config = preset.config(scene, {})
        except ConfigError as error:
            raise _mistake(path, text, _blamed(preset, index, error), f"scene {scene.name!r}: {error}") from None
        for table, script in ((("script",), preset.script), (("scene", index, "script"), scene.script)):
            for number, event in enumerate(script):
                asked = changes(event.set)
                for fixed in ("block_size", "max_model_len"):
                    if asked.get(fixed, getattr(config, fixed)) != getattr(config, fixed):
                        raise _mistake(path, text, (*table, number, "set", fixed), "it cannot change while it runs")
        try:
            preset.check_changes(scene, {})
        except ConfigError as error:
            where = ("scene", index) if scene.script else ("script",)
            raise _mistake(path, text, where, f"scene {scene.name!r}: {error}") from None
        for arrival in arrivals(preset, scene):
            length = sum(piece.num_tokens for piece in arrival.request.pieces)
            if length >= config.max_model_len:
                told = f"scene {scene.name!r}: a prompt of {length} tokens, and max_model_len is {config.max_model_len}"
                raise _mistake(path, text, ("scene", index) if scene.script else ("script",), told)
    if preset.needs_text and preset.model == "tiny":
        raise _mistake(path, text, ("model",), "needs_text is true, and tiny writes none")
    known = labels(preset)
    for index, expect in enumerate(preset.expect):
        try:
            parsed = Expectation.parse(expect.check, expect.text, names)
        except ExpectationError as error:
            raise _mistake(path, text, ("expect", index, "check"), str(error)) from None
        for label in (term.metric.label for term in parsed.terms if term.metric and term.metric.label):
            if label not in known:
                told = f"no request is called {label!r}; there are: {', '.join(sorted(known))}"
                raise _mistake(path, text, ("expect", index, "check"), told)


def _blamed(preset: Preset, index: int, error: ConfigError) -> Loc:
    """Where the parameter stands that an error of a scene's configuration speaks of."""
    named = set(re.findall(r"\w+", str(error)))
    for where, parameters in (
        (("scene", index, "parameters"), preset.scene[index].parameters),
        ((), preset.parameters),
    ):
        for name in changes(parameters):
            if name in named:
                return (*where, name) if where else ("parameters", name)
    return ("parameters",) if preset.parameters else ("scene", index)


def _sentence(error: Any) -> str:
    """One of pydantic's mistakes in our words."""
    match error["type"]:
        case "extra_forbidden":
            return f"there is no such key here; there are: {', '.join(_table(error['loc']).model_fields)}"
        case "missing":
            return "it is missing"
        case "value_error":
            return str(error["ctx"]["error"])
        case "tuple_type":
            return f"it is a number or [least, most], not {error['input']!r}"
        case "too_long" if isinstance(error["input"], tuple):
            return f"it is a number or [least, most], not {list(error['input'])!r}"
    return f"{str(error['msg'])[0].lower()}{str(error['msg'])[1:]}, not {error['input']!r}"


def _table(loc: Loc) -> type[Table]:
    """The table that a wrong key stands in."""
    table: Any = Preset
    for key in loc[:-1]:
        if isinstance(key, str) and key in table.model_fields:
            annotation = table.model_fields[key].annotation
            arguments = getattr(annotation, "__args__", (annotation,))
            table = next((kind for kind in arguments if isinstance(kind, type) and issubclass(kind, Table)), table)
    return table  # type: ignore[no-any-return]


def _mistake(path: Path, text: str, loc: Loc, sentence: str) -> PresetError:
    where = ".".join(f"[{key + 1}]" if isinstance(key, int) else key for key in loc).replace(".[", "[")
    return PresetError(f"{path}, line {line_of(text, loc)}: {where or 'the preset'}: {sentence.rstrip('.')}.")


def line_of(text: str, loc: Loc) -> int:
    """The line on which what is at this place begins; of something that is missing, the table that it is missing in.

    Looked for is the shortest beginning of the text that gets as far along the place as the whole of it: what is meant
    stands behind the beginning before that. One that ends between two elements of an array counts, once it is closed.
    """
    lines = text.split("\n")
    wanted = _depth(_beginning(lines, len(lines)) or {}, loc)
    low, high = 0, len(lines)
    while low < high:
        middle = (low + high) // 2
        count = middle
        while (data := _beginning(lines, count)) is None and count < high:
            count += 1
        if data is None or _depth(data, loc) >= wanted:
            high = middle
        else:
            low = count + 1
    before = low - 1
    while before > 0 and _beginning(lines, before) is None:
        before -= 1
    return max(0, before) + 1


def _beginning(lines: Sequence[str], count: int) -> dict[str, Any] | None:
    """What stands in the first lines; None if they end in the middle of something."""
    text = "\n".join(lines[:count])
    for end in ("", "\n]", "\n]]"):
        try:
            return tomllib.loads(text + end)
        except tomllib.TOMLDecodeError:
            continue
    return None


def _depth(data: Any, loc: Loc) -> int:
    """How far one gets along a place. What stands alone counts as a list of one."""
    for depth, key in enumerate(loc):
        match data:
            case list() if isinstance(key, int) and key < len(data):
                data = data[key]
            case dict() if key in data:
                data = data[key]
            case _ if key != 0:
                return depth
    return len(loc)
