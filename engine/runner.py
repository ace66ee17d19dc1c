"""ModelRunner: from a SchedulerOutput to the next tokens, through one flat batch and one forward pass."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from engine.attention import ATTENTION, QUERY_TILE, SPLIT, DecodeBatch, PagedBatch, PagedKVCache, PrefillTile
from engine.config import EngineConfig
from engine.core import RunnerOutput
from engine.packed import is_packed_whole, pack
from engine.sampler import Sampler
from engine.scheduler import ScheduledRequest, SchedulerOutput

ROW_TILE = 8
"""Rows of a product that no packed weights take part in are equal bit for bit for all row counts that are multiples of
this (measured, and checked again at start: `engine.selfcheck`). Packed ones are for any number of rows."""


class ModelRunner:
    """Runs a transformers causal decoder on the paged cache. It takes the model over, and packs its weights.

    All tokens of a step go through the model as one row of a batch, `[1, rows]`, requests one after another, with
    no padding but a tail up to the next multiple of `row_tile`; which token may see which is the attention's business.
    """

    def __init__(self, model: PreTrainedModel, config: EngineConfig, sampler: Sampler | None = None) -> None:
        self.model = model
        self.sampler = sampler or Sampler()
        self.block_size = config.block_size
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
        self.row_tile = 1 if is_packed_whole(model) else ROW_TILE

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
        slots: list[int] = []
        prefills: list[PrefillTile] = []
        decodes: list[tuple[int, int, Sequence[int]]] = []
        sampling_rows: list[int] = []
        for item in scheduled:
            start, count = item.decision.start, item.decision.num_tokens
            first_row = len(token_ids)
            token_ids += item.token_ids
            for position in range(start, start + count):
                block, offset = divmod(position, self.block_size)
                slots.append(item.block_ids[block] * self.block_size + offset)
                positions.append(position)
            if count == 1:
                decodes.append((first_row, start, item.block_ids))
            else:
                prefills += self._prefill_tiles(first_row, start, count, item.block_ids)
            if item.sampling_params is not None:
                sampling_rows.append(len(token_ids) - 1)
        padding = -len(token_ids) % self.row_tile
        # Also the rows that sample fill whole tiles; what the added ones give is dropped.
        sampling_rows += [0] * (-len(sampling_rows) % self.row_tile)
        batch = PagedBatch(self.cache, self._tensor(slots), tuple(prefills), self._decode_batch(decodes))
        return (
            self._tensor([token_ids + [0] * padding]),
            self._tensor([positions + [0] * padding]),
            batch,
            self._tensor(sampling_rows),
        )

    def _prefill_tiles(self, first_row: int, start: int, count: int, block_ids: Sequence[int]) -> Iterator[PrefillTile]:
        """The tokens at positions `[start, start + count)`, cut where splits end."""
        blocks = self._tensor(self._whole_splits(block_ids))
        for split in range(start // SPLIT, (start + count - 1) // SPLIT + 1):
            first, end = max(start, split * SPLIT), min(start + count, (split + 1) * SPLIT)
            # Rows that fill up the last tile go on counting; nobody reads what they give.
            num_rows = -(-(end - first) * self.group // QUERY_TILE) * QUERY_TILE
            last_seen = torch.arange(num_rows) // self.group + first - split * SPLIT
            yield PrefillTile(
                first_row + first - start,
                end - first,
                blocks[: (split + 1) * (SPLIT // self.block_size)],
                causal_mask(last_seen)[None, None].to(self.device),
            )

    def _decode_batch(self, decodes: Sequence[tuple[int, int, Sequence[int]]]) -> DecodeBatch | None:
        """The requests (row, position, block table) with one query token, as (request, split) pairs."""
        if not decodes:
            return None
        pair_request: list[int] = []
        last_seen: list[int] = []
        blocks: list[int] = []
        pairs: list[list[int]] = []
        for index, (_, position, block_ids) in enumerate(decodes):
            num_splits = position // SPLIT + 1
            pairs.append(list(range(len(pair_request), len(pair_request) + num_splits)))
            pair_request += [index] * num_splits
            last_seen += [SPLIT - 1] * (num_splits - 1) + [position % SPLIT]
            blocks += self._whole_splits(block_ids)
        most_splits, no_pair = max(map(len, pairs)), len(pair_request)
        merge = [[own[split] if split < len(own) else no_pair for own in pairs] for split in range(most_splits)]
        return DecodeBatch(
            rows=self._tensor([row for row, _, _ in decodes]),
            pair_request=self._tensor(pair_request),
            mask=causal_mask(torch.tensor(last_seen))[:, None, None].to(self.device),
            blocks=self._tensor(blocks),
            merge=self._tensor(merge),
        )

    def _whole_splits(self, block_ids: Sequence[int]) -> list[int]:
        """A block table filled up with null blocks to whole splits."""
        return [*block_ids, *[0] * (-len(block_ids) % (SPLIT // self.block_size))]

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


def causal_mask(last_seen: Tensor) -> Tensor:
    """`[rows, SPLIT]`: 0 up to the last key of a split that a row sees, -inf behind it."""
    return torch.zeros(len(last_seen), SPLIT).masked_fill_(torch.arange(SPLIT) > last_seen[:, None], float("-inf"))
