"""From a model's name to an engine that serves it: load, self-check, connect."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from engine.config import ConfigError, EngineConfig
from engine.core import LLMEngine
from engine.model import LoadedModel, load_model
from engine.progress import Progress, Report
from engine.runner import ModelRunner
from engine.selfcheck import Exactness, own_logits, self_check


@dataclass(frozen=True, slots=True)
class BuiltEngine:
    engine: LLMEngine
    loaded: LoadedModel
    exactness: Exactness


def build_engine(
    model: str,
    config: EngineConfig,
    *,
    dtype: str,
    device: str,
    threads: int | None,
    report: Report = lambda _: None,
    clock: Callable[[], float] = time.perf_counter,
) -> BuiltEngine:
    """Load the model that `model` names (see `load_model`) and put an engine around it, which tells time by `clock`.

    Raises ConfigError or ModelError, each with a text for people.
    """
    config.validate()
    loaded = load_model(model, dtype=dtype, device=device, threads=threads, report=report)
    return serve_model(loaded, config, report, clock)


def serve_model(
    loaded: LoadedModel,
    config: EngineConfig,
    report: Report = lambda _: None,
    clock: Callable[[], float] = time.perf_counter,
) -> BuiltEngine:
    """An engine for a model that is loaded already. Raises ConfigError if the model cannot follow the configuration."""
    longest = getattr(loaded.model.config.get_text_config(), "max_position_embeddings", None)
    if longest is not None and config.max_model_len > longest:
        raise ConfigError(
            f"max_model_len is {config.max_model_len}, but {loaded.name} was made for at most {longest} tokens; "
            f"use --max-model-len {longest} or less."
        )
    report(Progress("checking that schedules do not change results"))
    own = own_logits(loaded.model, config)
    runner = ModelRunner(loaded.model, config)
    exactness = self_check(runner, config, own)
    engine = LLMEngine(config, runner, loaded.tokenizer, vocab_size=loaded.vocab_size, clock=clock)
    return BuiltEngine(engine, loaded, exactness)
