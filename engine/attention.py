"""The paged KV cache, and attention that reads and writes it through block tables.

Registered with transformers as one more attention function, so that every decoder architecture it loads runs on
our cache. What makes it different from other paged attention is one promise: the result for a token does not
depend on what else is in the batch, bit for bit. Matrix kernels and reductions give other last bits for other
shapes, so each shape that reaches them is a fixed one:

- query rows come in multiples of ROW_TILE;
- keys come in splits of SPLIT tokens, counted from position 0, whatever is stored or scheduled; what lies behind a
  query's own position is masked, and a split that is masked whole adds exactly zero;
- splits are merged one after another, in order.

That is flash-decoding's split over keys (Dao et al. 2023), with the split's size fixed instead of its number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psutil
import torch
from torch import Tensor
from transformers import AttentionInterface

from engine.config import ConfigError
from engine.progress import ModelError

ATTENTION = "nanoviz_paged"
SPLIT = 128
"""Keys in one split; a multiple of every block size."""
ROW_TILE = 8
"""Matrix products are bitwise equal row by row for all row counts that are multiples of this (measured, and
checked again at start: `engine.selfcheck`)."""
MAX_QUERY_ROWS = 768
"""Query rows (tokens x heads of a group) scored at once. So a prompt's scores grow with its length, not its square,
most keys that are masked for all of these rows are not even read, and what is scored stays in the processor's cache:
with 4096, a prompt of 786 tokens takes half as long again."""


class PagedKVCache:
    """Keys and values of every layer, in blocks: `[kv_heads, num_blocks * block_size, head_dim]` each.

    Block 0, the null block, stays zero: it fills up the block tables of short sequences.
    Raises ConfigError if block_size does not divide SPLIT, or if there is no memory for so many blocks.
    """

    def __init__(
        self,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        if SPLIT % block_size:
            raise ConfigError(f"block_size is {block_size}; the attention needs a divisor of {SPLIT}, such as 16.")
        self.block_size = block_size
        self.keys = [torch.empty(num_kv_heads, 0, head_dim, dtype=dtype, device=device)] * num_layers
        self.values = list(self.keys)
        self.reserve(num_blocks)

    @property
    def num_blocks(self) -> int:
        return self.keys[0].shape[1] // self.block_size

    def reserve(self, num_blocks: int) -> None:
        """Have room for at least so many blocks; what is stored stays. Raises ConfigError if there is no memory."""
        if num_blocks <= self.num_blocks:
            return
        kv_heads, _, head_dim = self.keys[0].shape
        size = 2 * len(self.keys) * kv_heads * num_blocks * self.block_size * head_dim * self.keys[0].itemsize
        no_memory = ConfigError(f"there is no memory for num_blocks = {num_blocks}: {size / 1e9:.1f} GB of KV cache.")
        if self.keys[0].device.type == "cpu" and size > psutil.virtual_memory().available:
            raise no_memory  # the system would grant it, and kill the engine once it is used
        try:
            self.keys, self.values = (self._grown(layers, num_blocks) for layers in (self.keys, self.values))
        except RuntimeError as error:
            raise no_memory from error

    def resize(self, num_blocks: int, moves: Sequence[tuple[int, int]]) -> None:
        """Move the content of blocks (from, to), then keep the first `num_blocks`."""
        for layers in (self.keys, self.values):
            for layer in layers:
                for source, to in moves:
                    layer[:, self._slots(to)] = layer[:, self._slots(source)]
        self.reserve(num_blocks)
        if num_blocks < self.num_blocks:
            for layers in (self.keys, self.values):
                for index, layer in enumerate(layers):  # one after another, each frees what it leaves
                    layers[index] = layer[:, : num_blocks * self.block_size].clone()

    def _slots(self, block: int) -> slice:
        return slice(block * self.block_size, (block + 1) * self.block_size)

    def _grown(self, layers: list[Tensor], num_blocks: int) -> list[Tensor]:
        kv_heads, num_slots, head_dim = layers[0].shape
        larger = [layer.new_zeros(kv_heads, num_blocks * self.block_size, head_dim) for layer in layers]
        for layer, copy in zip(layers, larger, strict=True):
            copy[:, :num_slots] = layer
        return larger


@dataclass(frozen=True, slots=True)
class PrefillShare:
    """One request's query tokens `[first_row, first_row + num_tokens)` of the batch, more than one."""

    first_row: int
    num_tokens: int
    start: int
    """Position of the first of them."""
    blocks: Tensor
    """Its block table `[splits * SPLIT / block_size]`, filled up with null blocks."""


@dataclass(frozen=True, slots=True)
class DecodeShare:
    """All requests of the batch with a single query token, read together: one entry a (request, split) pair."""

    rows: Tensor
    """`[requests]`: row of each request's query in the batch."""
    pair_request: Tensor
    """`[pairs]`: index of the request in `rows`."""
    pair_limit: Tensor
    """`[pairs]`: keys of this split that the query sees, 1..SPLIT."""
    blocks: Tensor
    """`[pairs * SPLIT / block_size]`: the blocks of each pair's split."""
    merge: Tensor
    """`[max splits, requests]`: index of the pair that is a request's split; `pairs` where it has none."""


@dataclass(frozen=True, slots=True)
class PagedBatch:
    """Where each token of a flat batch is stored and what it attends to."""

    cache: PagedKVCache
    slots: Tensor
    """`[tokens]`: where the K and V of each real token go; rows behind them are padding and store nothing."""
    prefills: tuple[PrefillShare, ...]
    decodes: DecodeShare | None


def paged_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    paged_batch: PagedBatch,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention over the paged cache, in the form that transformers calls.

    query `[1, heads, rows, head_dim]`, key and value `[1, kv_heads, rows, head_dim]`; returns
    `[1, rows, heads, head_dim]`. Raises ModelError if the architecture asks for more than causal attention.
    """
    for name in ("sliding_window", "softcap", "s_aux"):
        if kwargs.get(name) is not None:
            raise ModelError(f"this model's attention uses {name}; only plain causal attention is paged here.")
    layer: int = module.layer_idx  # type: ignore[assignment]
    cache = paged_batch.cache
    keys, values = cache.keys[layer], cache.values[layer]
    num_tokens = len(paged_batch.slots)
    # First all writes, then all reads: a request may share blocks that another one fills in this very step.
    keys.index_copy_(1, paged_batch.slots, key[0, :, :num_tokens])
    if values.dtype == torch.float16:
        # What overflows must not stay behind: masked keys weigh zero, but zero times infinity is not a number.
        value = torch.nan_to_num(value)
    values.index_copy_(1, paged_batch.slots, value[0, :, :num_tokens])

    num_heads, num_rows, head_dim = query.shape[1:]
    num_kv_heads = keys.shape[0]
    scale = head_dim**-0.5 if scaling is None else scaling
    # [rows, kv_heads, group, head_dim]: heads that read the same keys lie together
    queries = (query[0] * scale).transpose(0, 1).reshape(num_rows, num_kv_heads, -1, head_dim)
    out = torch.zeros_like(queries)
    for share in paged_batch.prefills:
        _attend_prefill(queries, keys, values, cache.block_size, share, out)
    if paged_batch.decodes is not None:
        _attend_decodes(queries, keys, values, cache.block_size, paged_batch.decodes, out)
    return out.reshape(1, num_rows, num_heads, head_dim), None


def _gather(store: Tensor, blocks: Tensor, block_size: int) -> Tensor:
    """Blocks of a layer's keys or values, as splits: `[kv_heads, splits, SPLIT, head_dim]`."""
    num_kv_heads, _, head_dim = store.shape
    paged = store.view(num_kv_heads, -1, block_size * head_dim)
    return paged.index_select(1, blocks).view(num_kv_heads, -1, SPLIT, head_dim)


def _softmax_parts(scores: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of masked scores `[..., rows, SPLIT]`: their maximum, the sum of exponentials, the weighted values."""
    top = scores.amax(-1, keepdim=True)
    # A split that is masked whole has top = -inf; against 0 its weights are exp(-inf) = 0, not NaN.
    weights = torch.exp(scores - top.clamp(min=torch.finfo(scores.dtype).min))
    return top, weights.sum(-1, keepdim=True), torch.matmul(weights.to(values.dtype), values)


def _merge(tops: Tensor, sums: Tensor, weighted: Tensor) -> Tensor:
    """Join splits, the first dimension of each, one after another."""
    factors = torch.exp(tops - tops.amax(0, keepdim=True))
    total = factors[0] * sums[0]
    result = factors[0] * weighted[0]
    for split in range(1, len(tops)):
        total = total + factors[split] * sums[split]
        result = result + factors[split] * weighted[split]
    return result / total


def _attend_prefill(
    queries: Tensor, keys: Tensor, values: Tensor, block_size: int, share: PrefillShare, out: Tensor
) -> None:
    num_kv_heads, group, head_dim = queries.shape[1:]
    tokens_at_once = max(ROW_TILE, MAX_QUERY_ROWS // group // ROW_TILE * ROW_TILE)
    gathered_keys = _gather(keys, share.blocks, block_size).transpose(2, 3)
    gathered_values = _gather(values, share.blocks, block_size)
    for first in range(0, share.num_tokens, tokens_at_once):
        count = min(tokens_at_once, share.num_tokens - first)
        padded = -(-count // ROW_TILE) * ROW_TILE
        start = share.start + first
        num_splits = -(-(start + count) // SPLIT)
        rows = slice(share.first_row + first, share.first_row + first + count)
        tile = queries.new_zeros(num_kv_heads, 1, padded * group, head_dim)
        tile[:, 0, : count * group] = queries[rows].transpose(0, 1).reshape(num_kv_heads, count * group, head_dim)
        scores = torch.matmul(tile, gathered_keys[:, :num_splits])
        positions = torch.arange(padded, device=tile.device).repeat_interleave(group) + start
        key_positions = torch.arange(num_splits * SPLIT, device=tile.device).view(num_splits, 1, SPLIT)
        scores = scores.float().masked_fill_(key_positions > positions[:, None], float("-inf"))
        tops, sums, weighted = _softmax_parts(scores, gathered_values[:, :num_splits])
        merged = _merge(tops.transpose(0, 1), sums.transpose(0, 1), weighted.transpose(0, 1))
        merged = merged[:, : count * group].reshape(num_kv_heads, count, group, head_dim)
        out[rows] = merged.transpose(0, 1).to(out.dtype)


def _attend_decodes(
    queries: Tensor, keys: Tensor, values: Tensor, block_size: int, share: DecodeShare, out: Tensor
) -> None:
    num_kv_heads, group, head_dim = queries.shape[1:]
    padded = -(-group // ROW_TILE) * ROW_TILE
    tile = queries.new_zeros(num_kv_heads, len(share.rows), padded, head_dim)
    tile[:, :, :group] = queries[share.rows].transpose(0, 1)
    gathered_keys = _gather(keys, share.blocks, block_size).transpose(2, 3)
    scores = torch.matmul(tile[:, share.pair_request], gathered_keys).float()
    hidden = torch.arange(SPLIT, device=tile.device) >= share.pair_limit[:, None, None]
    scores.masked_fill_(hidden, float("-inf"))
    parts = _softmax_parts(scores, _gather(values, share.blocks, block_size))
    # Lay the pairs out as [splits, kv_heads, requests, ...]; requests with fewer splits get empty ones.
    empties = (float("-inf"), 0.0, 0.0)
    laid_out = []
    for part, empty in zip(parts, empties, strict=True):
        extended = torch.cat([part, part.new_full((num_kv_heads, 1, *part.shape[2:]), empty)], 1)
        laid_out.append(extended[:, share.merge].transpose(0, 1))
    merged = _merge(*laid_out)
    out[share.rows] = merged[:, :, :group].transpose(0, 1).to(out.dtype)


AttentionInterface.register(ATTENTION, paged_attention)
