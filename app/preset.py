"""Presets: workloads in TOML, with the engine's parameters, what to watch, and what must be true afterwards.

Those of `presets/` come with nanoviz; a person's own are in the folder `presets` beside the settings file, or anywhere,
named by their path. README.md says what can stand in one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model, model_validator

from app.expectation import Expectation
from app.parameters import LARGEST
from engine.config import ConfigError, EngineConfig

NAME = r"^[A-Za-z0-9][A-Za-z0-9_.+-]*$"
MAX_SCENES = 9
"""A digit for each."""
LEAST_RATE = 1e-6


class Table(BaseModel):
    """A table of the file."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


if TYPE_CHECKING:
    Parameters = BaseModel
else:
    _TYPES = {"int": Annotated[int, Field(le=LARGEST)], "bool": bool, "float": float, "str": str}
    Parameters = create_model(
        "Parameters",
        __base__=Table,
        **{f.name: (_TYPES[f.type] | None, None) for f in fields(EngineConfig)},
    )


def changes(parameters: BaseModel | None) -> dict[str, Any]:
    """The parameters that a table names, with their values."""
    return parameters.model_dump(exclude_unset=True) if parameters else {}


Whole = Annotated[int, Field(ge=-LARGEST, le=LARGEST)]
"""What goes through the pipe to the engine, and what it can count to."""


def _as_range(value: object) -> object:
    return (value, value) if isinstance(value, int) else tuple(value) if isinstance(value, list) else value


def _as_list(value: object) -> object:
    return value if isinstance(value, list) else [value]


Amount = Annotated[tuple[Whole, Whole], BeforeValidator(_as_range)]
"""A number, or [least, most]: then each request draws its own, the same whenever the preset is played."""


class Inject(Table):
    """Requests that arrive. Exactly one of `kind`, `text` and `tokens` says what they ask."""

    kind: Literal["short", "long"] | None = None
    """Prompts behind the keys, one after another."""
    text: str | None = Field(None, min_length=1)
    tokens: Amount | None = None
    """A prompt of exactly so many tokens: some text, whatever it means."""
    count: int = Field(1, ge=1, le=10_000)
    every: float = Field(0, ge=0, le=LARGEST)
    """Steps or seconds from one to the next."""
    rate: float = Field(0, ge=0, le=LARGEST)
    """So many a step or a second, at random: Poisson arrivals."""
    max_tokens: Amount | None = None
    """Of output; by default what the kind has, or 32."""
    priority: Whole = 0
    label: str = ""
    """By default the kind, or "short" and "long" by the prompt's length."""
    shared: str = ""
    """Text that all of them begin with."""
    shared_tokens: int = Field(0, ge=0)
    """Of `tokens`, how many all requests of the preset have in common at the front."""
    ignore_eos: bool = True
    """Go on to max_tokens whatever the model says, so that lengths are always the same."""

    @model_validator(mode="after")
    def _fits_together(self) -> Inject:
        if sum(value is not None for value in (self.kind, self.text, self.tokens)) != 1:
            raise ValueError("say what they ask with one of kind, text and tokens")
        if self.every and self.rate:
            raise ValueError("every and rate exclude each other")
        if 0 < self.rate < LEAST_RATE:
            raise ValueError(f"rate is 0 for none, or at least {LEAST_RATE:g}")
        for name in ("tokens", "max_tokens"):
            least, most = getattr(self, name) or (1, 1)
            if not 1 <= least <= most:
                raise ValueError(f"{name} is a number from 1 on, or [least, most]")
        if self.shared_tokens and (self.tokens is None or self.shared_tokens > self.tokens[0]):
            raise ValueError("shared_tokens is a part of tokens, and no larger")
        if self.shared and self.tokens:
            raise ValueError("with tokens use shared_tokens, not shared")
        return self


class Event(Table):
    """What happens before a step is computed, or so many seconds after the start; a pause comes after the step."""

    step: int | None = Field(None, ge=0, le=LARGEST)
    second: float | None = Field(None, ge=0, le=LARGEST)
    say: str = ""
    """What is to be watched: shown from this step on, until something else is said."""
    inject: Annotated[list[Inject], BeforeValidator(_as_list)] = []
    set: Parameters | None = None
    """Parameters that change."""
    pause: bool = False

    @model_validator(mode="after")
    def _has_one_time(self) -> Event:
        if (self.step is None) == (self.second is None):
            raise ValueError("say when, with either step or second")
        if self.pause and self.step is None:
            raise ValueError("pause goes with step")
        return self


def _when(event: Event) -> str:
    return f"second {event.second:g}" if event.second is not None else f"step {event.step}"


class Scene(Table):
    """One run: the preset's parameters and script, and its own on top of them."""

    name: str = Field(pattern=NAME, max_length=24)
    parameters: Parameters | None = None
    script: list[Event] = []


class Expect(Table):
    """What must be true when all scenes have been played; `app.expectation` says how `check` is written."""

    check: str
    text: str = ""
    """The same for people."""


class Preset(Table):
    """One file."""

    title: str = Field(min_length=1, max_length=60)
    moral: str = Field(min_length=1)
    """What one has seen, in a sentence."""
    model: str = "tiny"
    """The one that it was written for; another plays it as well, unless it `needs_text`."""
    needs_text: bool = False
    """Not for a model with random weights: it counts what is said, or how long a real model takes."""
    speed: float = Field(0, ge=0)
    """Most steps a second on the screen; 0 is as fast as it goes."""
    seed: Whole = 0
    """Of all that is drawn at random."""
    parameters: Parameters | None = None
    script: list[Event] = []
    scene: list[Scene] = Field([Scene(name="run")], min_length=1, max_length=MAX_SCENES)
    expect: list[Expect] = Field(min_length=1)

    @property
    def scenes(self) -> dict[str, Scene]:
        return {scene.name: scene for scene in self.scene}

    def config(self, scene: Scene, overrides: Mapping[str, Any]) -> EngineConfig:
        """The parameters that a scene begins with. Raises ConfigError if the engine could not take them."""
        config = replace(EngineConfig(), **{**changes(self.parameters), **changes(scene.parameters), **overrides})
        config.validate()
        return config

    def check_changes(self, scene: Scene, overrides: Mapping[str, Any]) -> None:
        """Raise ConfigError if the engine could not take what the script changes, one after another."""
        config = self.config(scene, overrides)
        events = [event for event in (*self.script, *scene.script) if event.set]
        for event in sorted(events, key=lambda event: (event.step is None, event.step or event.second or 0)):
            config = replace(config, **{k: v for k, v in changes(event.set).items() if k not in overrides})
            try:
                config.validate()
            except ConfigError as error:
                raise ConfigError(f"set at {_when(event)}: {error}") from None

    @property
    def expectations(self) -> list[Expectation]:
        """Raises ExpectationError for a check that cannot be read."""
        return [Expectation.parse(expect.check, expect.text, list(self.scenes)) for expect in self.expect]
