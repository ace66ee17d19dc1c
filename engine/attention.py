"""The paged KV cache, and attention that reads and writes it through block tables.

Registered with transformers as one more attention function, so that every decoder architecture it loads runs on
our cache. What makes it different from other paged attention is one promise: the result for a token does not
depend on what else is in the batch, bit for bit. Matrix kernels and reductions give other last bits for other
shapes, so each shape that reaches them is a fixed one:

- keys come in splits of SPLIT tokens, counted from position 0, whatever is stored or scheduled; what lies behind a
  query's own position is masked;
- the query rows that read a split (tokens x the heads that share its keys) come in multiples of QUERY_TILE;
- the results of a query's splits are merged one after another, in order.

That is flash-decoding's split over keys (Dao et al. 2023), with the split's size fixed instead of its number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psutil
import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import AttentionInterface

from engine.config import ConfigError
from engine.progress import ModelError

ATTENTION = "nanoviz_paged"
SPLIT = 128
"""Keys in one split; a multiple of every block size. No longer than what a matrix kernel sums up in one piece, or
masked keys behind the last one would change how it cuts the others."""
QUERY_TILE = 4
"""Rows of a small matrix product are equal bit for bit for all row counts that are multiples of this (measured, and
checked again at start: `engine.selfcheck`)."""
MAX_GATHERED = 4 << 20
"""Bytes of keys and values that are copied out of the cache at once: what is read right after stays in the
processor's own. Sixteen requests with 1,000 tokens each take half as long again without that limit."""


class PagedKVCache:
    """Keys and values of every layer, in blocks: `[num_blocks, block_size, 2, kv_heads, head_dim]` each.

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
        self.layers = [torch.empty(0, block_size, 2, num_kv_heads, head_dim, dtype=dtype, device=device)] * num_layers
        self.reserve(num_blocks)

    @property
    def num_blocks(self) -> int:
        return len(self.layers[0])

    def reserve(self, num_blocks: int) -> None:
        """Have room for at least so many blocks; what is stored stays. Raises ConfigError if there is no memory."""
        if num_blocks <= self.num_blocks:
            return
        block = self.layers[0].new_empty(self.layers[0].shape[1:])
        size = len(self.layers) * num_blocks * block.nbytes
        no_memory = ConfigError(f"there is no memory for num_blocks = {num_blocks}: {size / 1e9:.1f} GB of KV cache.")
        if block.device.type == "cpu" and size > psutil.virtual_memory().available:
            raise no_memory  # the system would grant it, and kill the engine once it is used
        try:
            larger = [block.new_zeros(num_blocks, *block.shape) for _ in self.layers]
        except RuntimeError as error:
            raise no_memory from error
        for layer, copy in zip(self.layers, larger, strict=True):
            copy[: len(layer)] = layer
        self.layers = larger

    def resize(self, num_blocks: int, moves: Sequence[tuple[int, int]]) -> None:
        """Move the content of blocks (from, to), then keep the first `num_blocks`."""
        for layer in self.layers:
            for source, to in moves:
                layer[to] = layer[source]
        self.reserve(num_blocks)
        if num_blocks < self.num_blocks:
            for index, layer in enumerate(self.layers):  # one after another, each frees what it leaves
                self.layers[index] = layer[:num_blocks].clone()

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store `[tokens, kv_heads, head_dim]` at `slots` (block * block_size + offset)."""
        states = torch.stack((keys, values), 1).to(self.layers[layer].dtype)
        if states.dtype == torch.float16:
            # What overflows must not stay behind: masked keys weigh zero, but zero times infinity is not a number.
            states = torch.nan_to_num(states)
        self.layers[layer].flatten(0, 1).index_copy_(0, slots, states)

    def read(self, layer: int, blocks: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of whole splits, `[splits, kv_heads, SPLIT, head_dim]` each, given the blocks of all.

        In float32 on the CPU, whose kernels for shorter types are slow, or sum in an order of their own.
        """
        gathered = self.layers[layer].index_select(0, blocks)
        splits = gathered.view(-1, SPLIT, *gathered.shape[2:])
        if splits.device.type == "cpu":
            splits = splits.float()
        keys, values = splits.transpose(1, 3).unbind(2)
        return keys, values


@dataclass(frozen=True, slots=True)
class PrefillTile:
    """Query tokens `[first_row, first_row + num_tokens)` of the batch: of one request, and within one split of it."""

    first_row: int
    num_tokens: int
    blocks: Tensor
    """`[splits * SPLIT / block_size]`: the request's blocks up to the end of that split; null blocks fill it up."""
    mask: Tensor
    """`[1, 1, rows, SPLIT]`: 0, or -inf for the keys of that split which a row does not see."""


@dataclass(frozen=True, slots=True)
class DecodeBatch:
    """All requests with a single query token, read together: one entry a (request, split) pair."""

    rows: Tensor
    """`[requests]`: row of each request's query in the batch."""
    pair_request: Tensor
    """`[pairs]`: index of the request in `rows`."""
    mask: Tensor
    """`[pairs, 1, 1, SPLIT]`: 0, or -inf for keys that the query does not see."""
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
    prefills: tuple[PrefillTile, ...]
    decodes: DecodeBatch | None


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
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    queries, keys, values = (states[0].transpose(0, 1) for states in (query, key, value))
    layer: int = module.layer_idx  # type: ignore[assignment]
    return attend(layer, queries, keys, values, paged_batch, scale)[None], None


def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor, batch: PagedBatch, scale: float) -> Tensor:
    """Store the keys and values of a layer, then attend to all that the batch's requests have stored.

    queries `[rows, heads, head_dim]`, keys and values `[rows, kv_heads, head_dim]`; returns `[rows, heads, head_dim]`.
    """
    num_tokens = len(batch.slots)
    # First all writes, then all reads: a request may share blocks that another one fills in this very step.
    batch.cache.write(layer, batch.slots, keys[:num_tokens], values[:num_tokens])
    num_rows, num_heads, head_dim = queries.shape
    # Heads that read the same keys lie together.
    queries = queries.view(num_rows, keys.shape[1], -1, head_dim)
    out = torch.zeros(queries.shape, dtype=queries.dtype, device=queries.device)
    for tile in batch.prefills:
        _attend_prefill(queries, batch.cache, layer, tile, scale, out)
    if batch.decodes is not None:
        _attend_decodes(queries, batch.cache, layer, batch.decodes, scale, out)
    return out.view(num_rows, num_heads, head_dim)


def _attend_prefill(
    queries: Tensor, cache: PagedKVCache, layer: int, tile: PrefillTile, scale: float, out: Tensor
) -> None:
    rows = slice(tile.first_row, tile.first_row + tile.num_tokens)
    num_kv_heads, group, head_dim = queries.shape[1:]
    # [1, kv_heads, tokens x group, head_dim]
    query = _padded(queries[rows].transpose(0, 1).flatten(1, 2))[None]
    own = SPLIT // cache.block_size
    parts = [_attend(query, *cache.read(layer, tile.blocks[-own:]), tile.mask, scale)]
    if len(tile.blocks) > own:  # of the splits before its own, every row sees every key
        parts.insert(0, _attend_splits(query, cache, layer, tile.blocks[:-own], None, scale))
    outputs, sums = (torch.cat(part) for part in zip(*parts, strict=True))
    merged = _merge(outputs, sums)[:, : tile.num_tokens * group]
    out[rows] = merged.reshape(num_kv_heads, tile.num_tokens, group, head_dim).transpose(0, 1).to(out.dtype)


def _attend_decodes(
    queries: Tensor, cache: PagedKVCache, layer: int, batch: DecodeBatch, scale: float, out: Tensor
) -> None:
    group = queries.shape[2]
    query = _padded(queries.index_select(0, batch.rows))  # [requests, kv_heads, group, head_dim]
    if len(batch.merge) > 1:
        query = query.index_select(0, batch.pair_request)
    outputs, sums = _attend_splits(query, cache, layer, batch.blocks, batch.mask, scale)
    if len(batch.merge) > 1:
        # An empty pair at the end, for requests with fewer splits than others.
        outputs = torch.cat((outputs, outputs.new_zeros(1, *outputs.shape[1:])))
        sums = torch.cat((sums, sums.new_full((1, *sums.shape[1:]), float("-inf"))))
        outputs = _merge(outputs[batch.merge], sums[batch.merge])
    out.index_copy_(0, batch.rows, outputs[:, :, :group].to(out.dtype))


def _padded(query: Tensor) -> Tensor:
    """Query rows `[..., rows, head_dim]` up to a whole number of tiles; on the CPU in float32, like what they read."""
    if query.device.type == "cpu":
        query = query.float()
    return pad(query, (0, 0, 0, -query.shape[-2] % QUERY_TILE))


def _attend_splits(
    query: Tensor, cache: PagedKVCache, layer: int, blocks: Tensor, mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """`_attend` for the splits that `blocks` make up; query `[splits or 1, kv_heads, rows, head_dim]`."""
    num_blocks = SPLIT // cache.block_size
    num_splits = len(blocks) // num_blocks
    query = query.expand(num_splits, -1, -1, -1)
    bytes_per_split = 2 * 4 * SPLIT * query.shape[1] * query.shape[3]
    at_once = max(1, MAX_GATHERED // bytes_per_split)
    if num_splits <= at_once:
        return _attend(query, *cache.read(layer, blocks), mask, scale)
    parts = []
    for first in range(0, num_splits, at_once):
        splits = slice(first, first + at_once)
        keys, values = cache.read(layer, blocks[first * num_blocks : (first + at_once) * num_blocks])
        parts.append(_attend(query[splits], keys, values, None if mask is None else mask[splits], scale))
    outputs, sums = zip(*parts, strict=True)
    return torch.cat(outputs), torch.cat(sums)


def _attend(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    """Attention of query rows `[splits, kv_heads, rows, head_dim]` to one split of keys each, and its logsumexp.

    Every row has to see a key.
    """
    if query.device.type != "cpu":
        return _attend_anywhere(query, keys, values, mask, scale)
    outputs, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, keys, values, attn_mask=mask, scale=scale
    )
    return outputs, sums.contiguous()


def _attend_anywhere(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """The same in plain operations, for devices without a kernel that tells the logsumexp."""
    scores = torch.matmul(query, keys.transpose(2, 3)).float() * scale
    if mask is not None:
        scores += mask
    sums = scores.logsumexp(-1)
    return torch.matmul(torch.exp(scores - sums[..., None]).to(values.dtype), values), sums


def _merge(outputs: Tensor, sums: Tensor) -> Tensor:
    """Join what the splits, the first dimension, gave, one after another; `sums`: their logsumexp."""
    weights = torch.exp(sums - sums.amax(0))[..., None]
    total = weights[0]
    result = outputs[0] * weights[0]
    for output, weight in zip(outputs[1:], weights[1:], strict=True):
        total = total + weight
        result = result + output * weight
    return result / total


AttentionInterface.register(ATTENTION, paged_attention)
