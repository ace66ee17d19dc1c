"""What a server says of itself: which model, which version, and the parameters that are in force."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import msgspec

from app.attach.cleaning import cleaned
from app.attach.connection import Answer, Connection, Refusal, Trouble
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
SECONDS = 2.0
"""For each answer that a server has at hand."""
PATIENCE_SECONDS = 60.0
"""For what may take longer, while the metrics are looked at already."""


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
    known: Mapping[str, Any]
    """The parameters of our config that it tells."""
    kv_sources: Mapping[str, KvSource] | None = None
    """Its publishers of KV events by rank; None if it does not say."""
    complaint: str = ""
    """Why it did not say all of this."""
    is_late: bool = False
    """It may say more if it is given more time."""

    @property
    def name(self) -> str:
        """What it is and what it serves, for people."""
        return f"{f'{self.kind} {self.version}'.rstrip()} with {cleaned(self.model)}"

    @property
    def config(self) -> EngineConfig:
        """With our defaults for what is unknown."""
        return EngineConfig(**self.known)

    @property
    def unknown(self) -> tuple[str, ...]:
        """The parameters that it does not tell."""
        return tuple(one.name for one in fields(EngineConfig) if one.name not in self.known)

    def knowing(self, told: Mapping[str, Any]) -> Facts:
        """With these parameters too, as far as they make sense."""
        return replace(self, known={**self.known, **_sensible(told)})


async def ask(connection: Connection, dialect: Dialect, sample: Sample, seconds: float | None = None) -> Facts:
    """Ask what such a server answers at once. What it does not answer is not known: its metrics are what matters."""
    complaint = ""
    is_late = False

    async def answer(path: str, kind: type[Answer], *kinds: Dialect) -> Answer | None:
        """None from another kind of server, too."""
        nonlocal complaint, is_late
        if kinds and dialect not in kinds:
            return None
        try:
            return await connection.json(path, kind, seconds or SECONDS)
        except Refusal as refusal:  # vLLM guards what begins with /v1 with its key, and not its metrics
            complaint = str(refusal)
        except Trouble:
            is_late = True
        return None

    # All at once, since each may be late.
    models, version, sources, props, slots = await asyncio.gather(
        answer("/v1/models", _Models),
        answer("/version", _Version, VLLM),
        answer("/kv_event_sources", dict[str, KvSource], VLLM),
        answer("/props", _Props, LLAMA_CPP),
        answer("/slots", list[_Slot], LLAMA_CPP),
    )
    first = models.data[0] if models and models.data else _Model(sample.model)
    told: dict[str, Any] = {**sample.config, "max_model_len": first.max_model_len}
    if slots:
        told |= {"max_num_seqs": len(slots), "max_model_len": slots[0].n_ctx}
    return Facts(
        kind=OURS if first.owned_by == OURS else dialect.kind,
        version=cleaned(version.version if version else props.build_info if props else "", 40),
        model=first.id,
        known=_sensible(told),
        kv_sources=None if sources is None else {cleaned(rank, 40): source for rank, source in sources.items()},
        complaint=complaint,
        is_late=is_late,
    )


async def ask_more(connection: Connection) -> Mapping[str, Any]:
    """All parameters, if this is a vLLM in its development mode (VLLM_SERVER_DEV_MODE=1), otherwise none.

    The first time it takes seconds: vLLM also gathers there what is installed on its machine. Raises Trouble.
    """
    info = await connection.json("/server_info?config_format=json", _ServerInfo, PATIENCE_SECONDS)
    told: dict[str, Any] = {}
    for section in _SECTIONS:
        part = info.vllm_config.get(section) if info else None
        if isinstance(part, dict):
            told |= {_OTHER_NAMES.get(str(name), str(name)): value for name, value in part.items()}
    return told


def _sensible(told: Mapping[str, Any]) -> dict[str, Any]:
    """Of what was told, the parameters of our config that can be meant so."""
    return {one.name: told[one.name] for one in fields(EngineConfig) if _makes_sense(one.name, told.get(one.name))}


def _makes_sense(name: str, value: object) -> bool:
    if name in _LEAST:
        return type(value) is int and _LEAST[name] <= value < _MOST
    if name == "watermark":
        return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1
    if name == "policy":
        return value in _POLICIES
    return type(value) is bool
