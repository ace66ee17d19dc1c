"""ModelRunner: from a SchedulerOutput to the next tokens, through one flat batch and one forward pass."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from engine.attention import ATTENTION
from engine.config import EngineConfig
from engine.core import RunnerOutput
from engine.kv_cache import PagedKVCache
from engine.packed import pack, row_tile
from engine.paged_batch import PagedBatch, paged_batch
from engine.sampler import Sampler
from engine.scheduler import ScheduledRequest, SchedulerOutput


class ModelRunner:
    """Runs a transformers causal decoder on the paged cache. It takes the model over, and packs its weights.

    All tokens of a step go through the model as one row of a batch, `[1, rows]`, requests one after another, with
    no padding but a tail up to the next multiple of `row_tile`; which token may see which is the attention's business.
    """

    def __init__(self, model: PreTrainedModel, config: EngineConfig, sampler: Sampler | None = None) -> None:
        self.model = model
        self.sampler = sampler or Sampler()
        self.device = model.device
        text = model.config.get_text_config()
        num_kv_heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
        head_dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        self.group = text.num_attention_heads // num_kv_heads
        """Query heads that read the same keys."""
        self.cache = PagedKVCache(
            text.num_hidden_layers,
            num_kv_heads,
            head_dim,
            config.num_blocks,
            config.block_size,
            model.dtype,
            model.device,
        )
        model.set_attn_implementation(ATTENTION)
        pack(model)
        self.row_tile = row_tile(model)

    @torch.inference_mode()
    def execute(self, output: SchedulerOutput) -> RunnerOutput:
        """Compute all scheduled tokens and sample for every request that reached its last one."""
        for request_id in output.finished_request_ids:
            self.sampler.forget(request_id)
        if output.resize is not None:
            self.cache.resize(output.resize.num_blocks, output.resize.moves)
        if not output.scheduled:
            return RunnerOutput({})
        begin = time.perf_counter()
        batch = self._prepare(output.scheduled)
        prepared = time.perf_counter()
        logits = self._forward(*batch)
        if self.device.type != "cpu":
            torch.accelerator.synchronize()  # else the time of the forward pass would be counted as sampling
        computed = time.perf_counter()
        sampling = [
            (item.request_id, item.sampling_params) for item in output.scheduled if item.sampling_params is not None
        ]
        tokens = self.sampler.sample(logits[: len(sampling)], sampling) if sampling else []
        sampled = {request_id: token for (request_id, _), token in zip(sampling, tokens, strict=True)}
        return RunnerOutput(sampled, prepared - begin, computed - prepared, time.perf_counter() - computed)

    def reserve(self, num_blocks: int) -> None:
        """Room in the KV cache for at least so many blocks. Raises ConfigError if there is no memory for them."""
        self.cache.reserve(num_blocks)

    def _prepare(self, scheduled: Sequence[ScheduledRequest]) -> tuple[Tensor, Tensor, PagedBatch, Tensor]:
        """The step as tensors: token ids and positions `[1, rows]`, where to store and read, rows that sample."""
        token_ids: list[int] = []
        positions: list[int] = []
        sampling_rows: list[int] = []
        for item in scheduled:
            token_ids += item.token_ids
            positions += range(item.decision.start, item.decision.start + item.decision.num_tokens)
            if item.sampling_params is not None:
                sampling_rows.append(len(token_ids) - 1)
        padding = [0] * (-len(token_ids) % self.row_tile)
        # Also the rows that sample fill whole tiles; what the added ones give is dropped.
        sampling_rows += [0] * (-len(sampling_rows) % self.row_tile)
        return (
            self._tensor([token_ids + padding]),
            self._tensor([positions + padding]),
            paged_batch(self.cache, scheduled, self.group, len(token_ids) + len(padding)),
            self._tensor(sampling_rows),
        )

    def _tensor(self, values: Sequence[int] | Sequence[Sequence[int]]) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=self.device)

    def _forward(self, token_ids: Tensor, positions: Tensor, batch: PagedBatch, sampling_rows: Tensor) -> Tensor:
        """Logits `[sampling rows, vocab]`; no other row goes through the output layer."""
        if not len(sampling_rows):
            self.model.base_model(input_ids=token_ids, position_ids=positions, use_cache=False, paged_batch=batch)
            return torch.empty(0, 0)
        result = self.model(
            input_ids=token_ids,
            position_ids=positions,
            use_cache=False,
            logits_to_keep=sampling_rows,
            paged_batch=batch,
        )
        logits: Tensor = result.logits[0]
        return logits
