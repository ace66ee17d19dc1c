"""Settings: one model for flags, NANOVIZ_* variables and the settings file, in that order of precedence."""

from __future__ import annotations

import os
import tomllib
from argparse import ArgumentParser, Namespace
from collections.abc import Container, Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import platformdirs
from pydantic import Field, create_model
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from engine.config import EngineConfig

PREFIX = "NANOVIZ_"
API_KEY = "NANOVIZ_API_KEY"
"""The key of a server: a variable and nothing else. Flags and files can be seen by others."""
OTHER_VARIABLES = ("NANOVIZ_CONFIG", "NANOVIZ_CACHE", API_KEY)
KEYS = "keys"
"""The table of the settings file that says which keys run which command; `app.keys` reads it."""


class SettingsMistake(ValueError):
    """A settings file or variable that cannot be meant so; the text says which, and why."""


def settings_place() -> Path:
    """Where the settings file is or would be: what NANOVIZ_CONFIG names, or config.toml in the user's config folder."""
    configured = os.environ.get("NANOVIZ_CONFIG")
    return expanded(configured) if configured else platformdirs.user_config_path("nanoviz") / "config.toml"


def expanded(path: str) -> Path:
    """The path that a person wrote; a ~ of somebody who does not exist stays as it is."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def settings_path() -> Path:
    """The settings file to read. There need not be one, unless NANOVIZ_CONFIG names it."""
    path = settings_place()
    if os.environ.get("NANOVIZ_CONFIG") and (not path.exists() or path.is_dir()):
        raise SettingsMistake(f"NANOVIZ_CONFIG names {path}, which is no file.")
    return path


class _File(TomlConfigSettingsSource):
    """The settings file. It serves all commands: another's option is left out, what is nobody's is refused.

    Commands are the subclasses of `CommandSettings`; `app.subcommands` defines them all.
    """

    def __call__(self) -> dict[str, Any]:
        known = {name for command in _all_subclasses(CommandSettings) for name in command.model_fields}
        if unknown := sorted(self.toml_data.keys() - known - {KEYS}):
            raise SettingsMistake(f"there is no setting {unknown[0]!r} (in {settings_path()}).")
        own = self.settings_cls.model_fields
        return {name: value for name, value in self.toml_data.items() if name in own}

    def _read_file(self, file_path: Any) -> dict[str, Any]:
        try:
            return super()._read_file(file_path)
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise SettingsMistake(f"{file_path} is not TOML: {error}") from None
        except OSError as error:
            raise SettingsMistake(f"{file_path} cannot be read: {error.strerror}") from None


def _all_subclasses(base: type[BaseSettings]) -> Iterator[type[BaseSettings]]:
    for subclass in base.__subclasses__():
        yield subclass
        yield from _all_subclasses(subclass)


class CommandSettings(BaseSettings):
    """Settings of a command, from flags, variables and the settings file; subclasses say which."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        extra="forbid",
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_hide_none_type=True,
        cli_avoid_json=True,
        use_attribute_docstrings=True,
        protected_namespaces=(),
    )

    @classmethod
    def add_arguments(cls, parser: ArgumentParser) -> None:
        """Arguments of a command that are no settings: they are said anew in each call."""

    @classmethod
    def execute_without_settings(cls, arguments: Namespace) -> int | None:
        """What can be done before any setting is read: its exit code, or None if the settings are needed."""
        return None

    def execute(self, arguments: Namespace) -> int:
        """Do it; returns the exit code."""
        raise NotImplementedError

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        known = {
            f"{PREFIX}{name}".upper() for command in _all_subclasses(CommandSettings) for name in command.model_fields
        }
        for name in sorted(os.environ):
            if name.startswith(PREFIX) and name not in known and name not in OTHER_VARIABLES:
                raise SettingsMistake(f"there is no setting {name} (in the environment).")
        return init_settings, env_settings, _File(settings_cls, settings_path())


def _engine_fields() -> dict[str, Any]:
    """EngineConfig's fields as settings: their names, types, defaults and help stand in one place only."""
    types = {"int": int, "bool": bool, "float": float, "str": str}
    assert all(f.default is not MISSING for f in fields(EngineConfig))
    return {
        f.name: (types[str(f.type)], Field(f.default, description=f.metadata["help"])) for f in fields(EngineConfig)
    }


_EngineSettings: type[CommandSettings] = create_model("_EngineSettings", __base__=CommandSettings, **_engine_fields())


class Settings(_EngineSettings):  # type: ignore[misc, valid-type]
    """What every command understands that runs an engine."""

    model: str = "smollm2"
    """smollm2, tiny, a folder, a .gguf file, or a hub id such as Qwen/Qwen3-0.6B"""
    dtype: str = "auto"
    """float32, bfloat16 or float16; auto is float32 on the CPU, where results are kept bit for bit"""
    device: str = "cpu"
    """cpu, cuda or mps, as torch calls them"""
    threads: int | None = Field(None, ge=1)
    """CPU threads of the engine; by default one less than there are cores, since a screen wants one too"""

    def engine_config(self) -> EngineConfig:
        return EngineConfig(**{f.name: getattr(self, f.name) for f in fields(EngineConfig)})

    def num_threads(self, *, all_cores: bool = False) -> int:
        return self.threads or (num_cores() if all_cores else max(1, num_cores() - 1))


def num_cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 2


def key_table() -> tuple[dict[str, object], Path]:
    """What the settings file says about keys, as it stands there, and the file."""
    path = settings_path()
    table = _File(Settings, path).toml_data.get(KEYS, {})
    if not isinstance(table, dict):
        raise SettingsMistake(f"{KEYS} is the table [{KEYS}], not {table!r} (in {path}).")
    return table, path


def origins(command: type[BaseSettings], flags: Container[str]) -> dict[str, str]:
    """Where the value of each setting comes from: a flag, a variable, the settings file or its default."""
    path = settings_path()
    in_file = _File(command, path).toml_data

    def origin(name: str) -> str:
        if name in flags:
            return "flag"
        if (variable := f"{PREFIX}{name}".upper()) in os.environ:
            return f"variable {variable}"
        return f"file {path}" if name in in_file else "default"

    return {name: origin(name) for name in command.model_fields}
