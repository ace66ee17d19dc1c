"""EngineConfig: every parameter that the scheduler and the KV cache obey, under vLLM's names."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Any


class ConfigError(ValueError):
    """A configuration that cannot work; the text says which value, and what would."""


def _param(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """The parameters in force for a step. Immutable: a change is a new config.

    The class itself checks nothing, so that `Scheduler` can be driven with settings that an engine refuses;
    `LLMEngine` calls `validate()`.
    """

    max_num_batched_tokens: int = _param(128, "token budget of one step")
    max_num_seqs: int = _param(16, "most requests that run at once")
    num_blocks: int = _param(128, "KV blocks in the pool; block 0 is the null block and is never handed out")
    block_size: int = _param(16, "tokens in a KV block")
    max_model_len: int = _param(1024, "most tokens (prompt and output) of one request")
    enable_chunked_prefill: bool = _param(True, "let a prompt be computed in pieces")
    enable_prefix_caching: bool = _param(True, "reuse the KV of full blocks that start alike")
    long_prefill_token_threshold: int = _param(0, "most tokens of one request in a step when others wait (0: no cap)")
    long_prefill_token_threshold_adaptive: bool = _param(False, "raise that cap to budget // number of requests")
    watermark: float = _param(0.0, "share of the pool to leave free when a request is admitted beside others")
    reserve_full_sequence: bool = _param(True, "admit a request only if all its present tokens fit, not just a chunk")
    policy: str = _param(
        "fcfs",
        "who is served first, who waits and who has to go: fcfs or priority (vLLM), sglang or sglang_lpm, "
        "static, orca, prefill_first (vLLM 0), sarathi",
    )
    priority_aging: float = _param(0.0, "policy priority: urgency that a request gains with each step since it arrived")
    admit_after_preemption: bool = _param(
        False, "admit even in a step that preempted, to see the thrash (sarathi does so anyway)"
    )
    schedule_conservativeness: float = _param(1.0, "policy sglang: above 1 it admits more cautiously, below 1 less")
    new_token_ratio_decay_steps: int = _param(60, "policy sglang: decode steps until its ratio has fallen to the floor")
    mixed_chunk: bool = _param(False, "policy sglang: let decodes join a prefill batch")

    @property
    def num_usable_blocks(self) -> int:
        """Blocks that requests can hold: all but the null block."""
        return self.num_blocks - 1

    @property
    def num_watermark_blocks(self) -> int:
        """Whole blocks that `watermark` keeps free at admission."""
        return int(self.watermark * self.num_blocks)

    def validate(self) -> None:
        """Raise ConfigError for settings under which some admissible request could never finish."""
        from engine.policy import policy_class  # which imports this module

        policy = policy_class(self.policy)
        for name in ("max_num_batched_tokens", "max_num_seqs", "block_size", "new_token_ratio_decay_steps"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1.")
        if self.num_blocks < 2:
            raise ConfigError(f"num_blocks is {self.num_blocks}; it must be at least 2 (block 0 is never used).")
        if self.max_model_len < 2:
            raise ConfigError(f"max_model_len is {self.max_model_len}; one prompt and one output token need 2.")
        if self.long_prefill_token_threshold < 0:
            raise ConfigError(f"long_prefill_token_threshold is {self.long_prefill_token_threshold}; use 0 for no cap.")
        if not 0 <= self.watermark < 1:
            raise ConfigError(f"watermark is {self.watermark}; it is a share of the pool, from 0 up to below 1.")
        if not 0 <= self.priority_aging < inf:
            raise ConfigError(f"priority_aging is {self.priority_aging}; use 0 for none, or how much a step counts.")
        if not 0 < self.schedule_conservativeness < inf:
            raise ConfigError(f"schedule_conservativeness is {self.schedule_conservativeness}; it must be above 0.")
        room = self.num_usable_blocks * self.block_size
        if room < self.max_model_len:
            raise ConfigError(
                f"the KV pool holds {room} tokens ({self.num_usable_blocks} usable blocks of {self.block_size}), "
                f"but max_model_len is {self.max_model_len}: a single request could outgrow it. "
                f"Use at least {-(-self.max_model_len // self.block_size) + 1} blocks, or max_model_len <= {room}."
            )
        if self.max_num_batched_tokens < self.max_model_len and (
            policy.whole_prompts or not self.enable_chunked_prefill
        ):
            why = (
                f"policy {self.policy} computes prompts whole, so"
                if policy.whole_prompts
                else "without chunked prefill"
            )
            raise ConfigError(
                f"{why} max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least "
                f"max_model_len ({self.max_model_len}): a longer sequence would never fit into one step."
            )

    def warnings(self) -> tuple[str, ...]:
        """What works, but is hardly meant: vLLM refuses such a configuration, here it can be watched."""
        if self.max_num_seqs > self.max_num_batched_tokens:
            return (
                f"max_num_seqs ({self.max_num_seqs}) is above max_num_batched_tokens ({self.max_num_batched_tokens}): "
                "a step has no token for so many, and whoever gets none waits, in the queue or in its seat.",
            )
        return ()
