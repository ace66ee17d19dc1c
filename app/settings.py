"""Settings: one model for flags, NANOVIZ_* variables and the settings file, in that order of precedence."""

from __future__ import annotations

import os
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import platformdirs
from pydantic import Field, create_model
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from engine.config import EngineConfig


def settings_path() -> Path:
    """The settings file: NANOVIZ_CONFIG, or nanoviz/config.toml in the user's config folder."""
    configured = os.environ.get("NANOVIZ_CONFIG")
    return Path(configured).expanduser() if configured else platformdirs.user_config_path("nanoviz") / "config.toml"


class _Base(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix="NANOVIZ_",
        extra="forbid",
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_hide_none_type=True,
        cli_avoid_json=True,
        use_attribute_docstrings=True,
        protected_namespaces=(),
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, settings_path())


def _engine_fields() -> dict[str, Any]:
    """EngineConfig's fields as settings: their names, types, defaults and help stand in one place only."""
    types = {"int": int, "bool": bool, "float": float}
    assert all(f.default is not MISSING for f in fields(EngineConfig))
    return {
        f.name: (types[str(f.type)], Field(f.default, description=f.metadata["help"])) for f in fields(EngineConfig)
    }


_EngineSettings: type[_Base] = create_model("_EngineSettings", __base__=_Base, **_engine_fields())


class Settings(_EngineSettings):  # type: ignore[misc, valid-type]
    """What every command understands."""

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

    def num_threads(self) -> int:
        return self.threads or max(1, (os.cpu_count() or 2) - 1)
