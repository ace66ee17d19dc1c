"""What a server says of itself, once: which model, which version, and the parameters that are in force."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import msgspec

from app.attach.cleaning import cleaned
from app.attach.connection import Answer, Connection, Refusal
from app.attach.dialects import LLAMA_CPP, VLLM, Dialect
from app.attach.metrics import Sample
from engine.config import EngineConfig

OURS = "nanoviz"
"""`owned_by` of a server that this program runs. It speaks vLLM's dialect."""
_SECTIONS = ("model_config", "cache_config", "scheduler_config")
_OTHER_NAMES = {"num_gpu_blocks": "num_blocks", "scheduler_reserve_full_isl": "reserve_full_sequence"}
"""vLLM's names of parameters that are called otherwise here."""
_LEAST = {
    "max_num_batched_tokens": 1,
    "max_num_seqs": 1,
    "num_blocks": 2,
    "block_size": 1,
    "max_model_len": 2,
    "long_prefill_token_threshold": 0,
}
_MOST = 1 << 53
_POLICIES = ("fcfs", "priority")
PATIENCE_SECONDS = 60.0
"""For all parameters of a vLLM at once."""


class _Model(msgspec.Struct):
    id: str
    owned_by: str = ""
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


class _Version(msgspec.Struct):
    version: str


class _Props(msgspec.Struct):
    build_info: str


class _Slot(msgspec.Struct):
    """Of llama.cpp. What else stands there, such as a prompt, is not even decoded."""

    n_ctx: int


class _ServerInfo(msgspec.Struct):
    vllm_config: dict[str, Any] = {}


class KvSource(msgspec.Struct, frozen=True):
    """A publisher of KV events, as its server names it (vLLM: `KVEventsConfig`)."""

    endpoint: str = ""
    replay_endpoint: str | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """Of one server, as long as its process lives."""

    kind: str
    version: str
    model: str
    """As requests have to name it."""
    config: EngineConfig
    unknown: tuple[str, ...]
    """The parameters of `config` that it does not tell."""
    kv_sources: Mapping[str, KvSource] | None = None
    """Its publishers of KV events by rank; None if it does not say."""
    complaint: str = ""
    """Why it did not say all of this."""

    @property
    def name(self) -> str:
        """What it is and what it serves, for people."""
        return f"{f'{self.kind} {self.version}'.rstrip()} with {cleaned(self.model)}"


async def ask(connection: Connection, dialect: Dialect, sample: Sample) -> Facts:
    """Ask what such a server answers at once. Raises Trouble if it goes away meanwhile."""
    complaint = version = ""
    sources = None
    told: dict[str, Any] = dict(sample.config)

    async def answer(path: str, kind: type[Answer]) -> Answer | None:
        nonlocal complaint
        try:
            return await connection.json(path, kind)
        except Refusal as refusal:  # vLLM guards what begins with /v1 with its key, and not its metrics
            complaint = str(refusal)
            return None

    models = await answer("/v1/models", _Models)
    first = models.data[0] if models and models.data else _Model(sample.model)
    if first.max_model_len is not None:
        told["max_model_len"] = first.max_model_len
    if dialect is VLLM:
        if found := await answer("/version", _Version):
            version = found.version
        sources = await answer("/kv_event_sources", dict[str, KvSource])
    elif dialect is LLAMA_CPP:
        if props := await answer("/props", _Props):
            version = props.build_info
        if slots := await answer("/slots", list[_Slot]):
            told |= {"max_num_seqs": len(slots), "max_model_len": slots[0].n_ctx}
    config, unknown = configured(told)
    return Facts(
        kind=OURS if first.owned_by == OURS else dialect.kind,
        version=cleaned(version, 40),
        model=first.id,
        config=config,
        unknown=unknown,
        kv_sources=sources,
        complaint=complaint,
    )


async def ask_more(connection: Connection, facts: Facts) -> Facts:
    """The same with all parameters, if this is a vLLM in its development mode (VLLM_SERVER_DEV_MODE=1).

    The first time it takes seconds: vLLM also gathers there what is installed on its machine. Raises Trouble.
    """
    info = await connection.json("/server_info?config_format=json", _ServerInfo, PATIENCE_SECONDS)
    known = {name: value for name, value in asdict(facts.config).items() if name not in facts.unknown}
    for section in _SECTIONS:
        part = info.vllm_config.get(section) if info else None
        if isinstance(part, dict):
            known |= {_OTHER_NAMES.get(str(name), str(name)): value for name, value in part.items()}
    config, unknown = configured(known)
    return replace(facts, config=config, unknown=unknown)


def configured(told: Mapping[str, Any]) -> tuple[EngineConfig, tuple[str, ...]]:
    """The config with what was told, where it makes sense; and the names of all other parameters."""
    own = {one.name: told[one.name] for one in fields(EngineConfig) if _makes_sense(one.name, told.get(one.name))}
    return EngineConfig(**own), tuple(one.name for one in fields(EngineConfig) if one.name not in own)


def _makes_sense(name: str, value: object) -> bool:
    if name in _LEAST:
        return type(value) is int and _LEAST[name] <= value < _MOST
    if name == "watermark":
        return type(value) in (int, float) and 0 <= value < 1  # type: ignore[operator]
    if name == "policy":
        return value in _POLICIES
    return type(value) is bool
