"""ModelRunner: from a SchedulerOutput to the next tokens, through one flat batch and one forward pass."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from engine.attention import ATTENTION, ROW_TILE, SPLIT, DecodeShare, PagedBatch, PagedKVCache, PrefillShare
from engine.config import EngineConfig
from engine.core import RunnerOutput
from engine.sampler import Sampler
from engine.scheduler import ScheduledRequest, SchedulerOutput


class ModelRunner:
    """Runs a transformers causal decoder on the paged cache.

    All tokens of a step go through the model as one row of a batch, `[1, rows]`, requests one after another, with
    no padding but a tail up to the next multiple of ROW_TILE; which token may see which is the attention's business.
    """

    def __init__(self, model: PreTrainedModel, config: EngineConfig, sampler: Sampler | None = None) -> None:
        self.model = model
        self.sampler = sampler or Sampler()
        self.block_size = config.block_size
        self.row_tile = ROW_TILE
        self.device = model.device
        self.cache = new_cache(model, config.num_blocks, config.block_size)
        model.set_attn_implementation(ATTENTION)

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
        positions: list[Tensor] = []
        slots: list[Tensor] = []
        prefills: list[PrefillShare] = []
        decodes: list[tuple[int, int, Sequence[int]]] = []
        sampling_rows: list[int] = []
        for item in scheduled:
            start, count = item.decision.start, item.decision.num_tokens
            first_row = len(token_ids)
            token_ids += item.token_ids
            position = torch.arange(start, start + count)
            positions.append(position)
            table = torch.tensor(item.block_ids)
            slots.append(table[position // self.block_size] * self.block_size + position % self.block_size)
            if count == 1:
                decodes.append((first_row, start, item.block_ids))
            else:
                prefills.append(
                    PrefillShare(first_row, count, start, self._to_device(self._pad_blocks(item.block_ids)))
                )
            if item.sampling_params is not None:
                sampling_rows.append(len(token_ids) - 1)
        padding = -len(token_ids) % self.row_tile
        token_ids += [0] * padding
        positions.append(torch.zeros(padding, dtype=torch.long))
        # Also the rows that sample fill whole tiles; what the added ones give is dropped.
        sampling_rows += [0] * (-len(sampling_rows) % self.row_tile)
        batch = PagedBatch(self.cache, self._to_device(torch.cat(slots)), tuple(prefills), self._decode_share(decodes))
        return (
            self._to_device(torch.tensor(token_ids)[None]),
            self._to_device(torch.cat(positions)[None]),
            batch,
            self._to_device(torch.tensor(sampling_rows, dtype=torch.long)),
        )

    def _pad_blocks(self, block_ids: Sequence[int]) -> Tensor:
        """A block table filled up with null blocks to whole splits."""
        return torch.tensor([*block_ids, *[0] * (-len(block_ids) % (SPLIT // self.block_size))])

    def _decode_share(self, decodes: Sequence[tuple[int, int, Sequence[int]]]) -> DecodeShare | None:
        """The requests (row, position, block table) with one query token, as (request, split) pairs."""
        if not decodes:
            return None
        splits = [position // SPLIT + 1 for _, position, _ in decodes]
        num_pairs = sum(splits)
        pair_request = [index for index, count in enumerate(splits) for _ in range(count)]
        pair_limit = [
            min(SPLIT, position + 1 - split * SPLIT)
            for (_, position, _), count in zip(decodes, splits, strict=True)
            for split in range(count)
        ]
        merge = torch.full((max(splits), len(decodes)), num_pairs)
        pair = 0
        for index, count in enumerate(splits):
            merge[:count, index] = torch.arange(pair, pair + count)
            pair += count
        return DecodeShare(
            rows=self._to_device(torch.tensor([row for row, _, _ in decodes])),
            pair_request=self._to_device(torch.tensor(pair_request)),
            pair_limit=self._to_device(torch.tensor(pair_limit)),
            blocks=self._to_device(torch.cat([self._pad_blocks(block_ids) for _, _, block_ids in decodes])),
            merge=self._to_device(merge),
        )

    def _to_device(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device)

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


def new_cache(model: PreTrainedModel, num_blocks: int, block_size: int) -> PagedKVCache:
    """An empty cache of the model's own shape, type and device."""
    text = model.config.get_text_config()
    num_kv_heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return PagedKVCache(
        text.num_hidden_layers, num_kv_heads, head_dim, num_blocks, block_size, model.dtype, model.device
    )
