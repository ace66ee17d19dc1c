"""Keys: which of them run which command, once the settings file has had its say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from textual.keys import KEY_ALIASES, REPLACED_KEYS, Keys, _character_to_key, key_to_character

from app.commands import COMMANDS, LEAVE, Command, displayed
from app.settings import SettingsMistake

RESERVED = {
    LEAVE: "it always leaves",
    "ctrl+q": "it always leaves",
    "ctrl+p": "it lists the commands",
    "tab": "it moves the focus",
    "shift+tab": "it moves the focus back",
}
MODIFIERS = {"alt", "ctrl", "hyper", "meta", "shift", "super"}
NAMED = {name for key in Keys if (name := key.value.rpartition("+")[2]).isalnum() and len(name) > 1} - {"return"}
"""Keys that are no character: enter, left, f5. Textual knows a `return` that no terminal sends."""
SENT_AS = {alias: key for key, aliases in KEY_ALIASES.items() for alias in aliases}
"""What a terminal sends for a key of which it has none: ctrl+i is its tab."""


def rebound(table: Mapping[str, object], file: Path) -> tuple[Command, ...]:
    """The commands with the keys that a settings file gives them; `table` is its [keys].

    Raises SettingsMistake for a command or key that does not exist, and for a key that two commands have.
    """
    where = f"(in [keys] of {file})"
    if unknown := sorted(table.keys() - {command.name for command in COMMANDS}):
        raise SettingsMistake(
            f"there is no command {unknown[0]!r} {where}; settings stand above it, `nanoviz config` lists the commands."
        )
    try:
        commands = tuple(_rebind(command, table.get(command.name)) for command in COMMANDS)
        _check_clashes(commands, table)
    except ValueError as error:
        raise SettingsMistake(f"{error} {where}.") from None
    return commands


def _rebind(command: Command, keys: object) -> Command:
    if keys is None:
        return command
    if not isinstance(keys, str):
        raise ValueError(f"{command.name}: keys are a text such as {command.keys!r}, not {keys!r}")
    names = list(dict.fromkeys(key_name(key, command.name) for key in keys.split(",")))
    if command.name == "quit":
        names.append(LEAVE)
    if names == command.keys.split(","):
        return command
    return replace(command, keys=",".join(names))


def key_name(written: str, command: str) -> str:
    """Textual's name of a key that a person wrote, which may be the character itself."""
    written = written.strip()
    if not written:
        raise ValueError(f"{command}: a key is missing; the comma as a key is called comma")
    head, _, base = written.rpartition("+")
    if not base and (not head or head.endswith("+")):
        head, base = head.removesuffix("+"), "+"
    modifiers = sorted(set(head.split("+"))) if head else []
    character = base if len(base) == 1 else None if base in NAMED else key_to_character(base)
    exists = base in NAMED or base in REPLACED_KEYS or (character is not None and character.isprintable())
    if not exists or not MODIFIERS.issuperset(modifiers):
        raise ValueError(f"{command}: there is no key {written!r}")
    if character is not None and character.isalpha() and modifiers:
        # A terminal sends a capital letter for shift, and with any other modifier a small one.
        alone = modifiers == ["shift"]
        character, modifiers = (character.upper(), []) if alone else (character.lower(), modifiers)
    name = "+".join([*modifiers, _character_to_key(character) if character else base])
    name = SENT_AS.get(name, name)
    if name in RESERVED:
        raise ValueError(f"{command}: {name} cannot be bound, {RESERVED[name]}")
    return name


def _check_clashes(commands: Iterable[Command], table: Mapping[str, object]) -> None:
    owners: dict[str, Command] = {}
    for command in commands:
        for key in command.keys.split(","):
            other = owners.setdefault(key, command)
            # The one that the file names comes first: that is the line to look at.
            names = sorted((command.name, other.name), key=lambda name: name not in table)
            if other is not command and names[0] in table:
                raise ValueError(f"{names[0]}: {displayed(key)} is also a key of {names[1]}; give that another one")


def written(command: Command) -> str:
    """A command's own keys as one would write them in the settings file."""
    return ",".join(_written(key) for key in command.keys.split(",") if key != LEAVE)


def _written(key: str) -> str:
    shown = displayed(key)
    return shown if len(shown) == 1 and shown.isascii() and shown != "," else key
