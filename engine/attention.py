"""Attention that reads and writes the paged cache through block tables.

Registered with transformers as one more attention function, so that every decoder architecture it loads runs on
our cache. What makes it different from other paged attention is one promise: the result for a token does not
depend on what else is in the batch, bit for bit. Matrix kernels and reductions give other last bits for other
shapes, so what reaches them is cut in fixed ways (`engine.paged_batch`):

- keys come in splits of SPLIT tokens, counted from position 0, whatever is stored or scheduled. That is no more than
  a matrix kernel sums up in one piece: masked keys behind the last one would change how it cuts the others;
- of a request's last split only what it fills is read, in multiples of KEY_TILE; what lies behind a query's own
  position is masked. Zeros at the end of a sum change nothing, and these multiples keep the other keys in their places;
- the query rows that read a split (tokens x the heads that share its keys) come in multiples of QUERY_TILE: a kernel
  takes another way for fewer;
- the results of a query's splits are merged one after another, in order.

That is flash-decoding's split over keys (Dao et al. 2023), with the split's size fixed instead of its number. Whether
a machine's kernels behave is tried at start (`engine.selfcheck`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import AttentionInterface

from engine.kv_cache import PagedKVCache
from engine.paged_batch import QUERY_TILE, DecodeBatch, PagedBatch, PrefillTile, SplitRead
from engine.progress import ModelError

ATTENTION = "nanoviz_paged"


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
    states = torch.cat((key, value))  # [2, kv_heads, rows, head_dim]
    layer: int = module.layer_idx  # type: ignore[assignment]
    return attend(layer, query[0].transpose(0, 1), states.permute(2, 0, 1, 3), paged_batch, scale)[None], None


def attend(layer: int, queries: Tensor, states: Tensor, batch: PagedBatch, scale: float) -> Tensor:
    """Store the keys and values of a layer, then attend to all that the batch's requests have stored.

    queries `[rows, heads, head_dim]`, states: keys and values, `[rows, 2, kv_heads, head_dim]`; returns
    `[rows, heads, head_dim]`.
    """
    # First all writes, then all reads: a request may share blocks that another one fills in this very step.
    batch.cache.write(layer, batch.slots, states[: batch.num_tokens])
    num_rows, num_heads, head_dim = queries.shape
    # Heads that read the same keys lie together.
    queries = queries.view(num_rows, states.shape[2], -1, head_dim)
    parts = [_attend_prefill(queries, batch.cache, layer, tile, scale) for tile in batch.prefills]
    if batch.decodes is not None:
        parts.append(_attend_decodes(queries, batch.cache, layer, batch.decodes, scale))
    computed = torch.cat(parts) if len(parts) > 1 else parts[0]
    return computed.index_select(0, batch.places).view(num_rows, num_heads, head_dim).to(queries.dtype)


def _attend_prefill(queries: Tensor, cache: PagedKVCache, layer: int, tile: PrefillTile, scale: float) -> Tensor:
    """`[tokens, kv_heads, group, head_dim]`."""
    num_kv_heads, group, head_dim = queries.shape[1:]
    of_tile = queries[tile.first_row : tile.first_row + tile.num_tokens]
    query = _tiled(of_tile.transpose(0, 1).reshape(num_kv_heads, -1, head_dim))
    outputs: list[Tensor] = []
    sums: list[Tensor] = []
    for read in tile.reads:
        part = _attend_splits(_repeated(query, read.num_splits), cache, layer, read, scale)
        outputs += torch.split(part.outputs, num_kv_heads)
        if len(tile.reads) > 1:
            sums += torch.split(part.logsumexp(), num_kv_heads)
    merged = _merge(outputs, torch.stack(sums)) if sums else outputs[0]
    return merged[:, : tile.num_tokens * group].view(num_kv_heads, -1, group, head_dim).transpose(0, 1)


def _attend_decodes(queries: Tensor, cache: PagedKVCache, layer: int, decodes: DecodeBatch, scale: float) -> Tensor:
    """`[pairs, kv_heads, group, head_dim]`; requests instead of pairs if some have several."""
    num_kv_heads, group = queries.shape[1:3]
    query = _tiled(queries.index_select(0, decodes.pair_rows)).flatten(0, 1)
    parts = []
    first = 0
    for read in decodes.reads:
        end = first + read.num_splits * num_kv_heads
        parts.append(_attend_splits(query[first:end], cache, layer, read, scale))
        first = end
    outputs = torch.cat([part.outputs for part in parts]).view(-1, num_kv_heads, *query.shape[1:])
    if decodes.merge is not None:
        sums = torch.cat([part.logsumexp() for part in parts]).view(outputs.shape[:3])
        # An empty pair at the end, for requests with fewer splits than others.
        outputs = torch.cat((outputs, torch.zeros_like(outputs[:1])))
        sums = torch.cat((sums, torch.full_like(sums[:1], float("-inf"))))
        outputs = _merge(outputs[decodes.merge].unbind(0), sums[decodes.merge])
    return outputs[:, :, :group]


def _tiled(query: Tensor) -> Tensor:
    """Query rows `[..., rows, head_dim]`, up to a whole number of tiles; float32 on the CPU, like what they read."""
    if query.device.type == "cpu":
        query = query.float()
    return pad(query, (0, 0, 0, -query.shape[-2] % QUERY_TILE))


def _repeated(query: Tensor, times: int) -> Tensor:
    return query if times == 1 else query.repeat(times, 1, 1)


class _Part(NamedTuple):
    """What some splits give, in float32: outputs `[splits x kv_heads, rows, head_dim]`, scores and their softmax
    `[splits x kv_heads, rows, keys]`."""

    outputs: Tensor
    scores: Tensor
    weights: Tensor

    def logsumexp(self) -> Tensor:
        """Of the scores, `[splits x kv_heads, rows]`: the weight of the largest is 1 / sum(exp(score - largest))."""
        return self.scores.amax(-1) - self.weights.amax(-1).log()


def _attend_splits(query: Tensor, cache: PagedKVCache, layer: int, read: SplitRead, scale: float) -> _Part:
    """Attention of query rows `[splits x kv_heads, rows, head_dim]` to one split of keys each.

    Every row has to see a key.
    """
    keys, values = cache.read(layer, read.pages, read.num_keys)
    scores = torch.baddbmm(query.new_empty(()), query, keys.transpose(1, 2), beta=0, alpha=scale).float()
    if read.mask is not None:
        scores.view(read.num_splits, -1, *scores.shape[1:]).add_(read.mask)
    weights = torch.softmax(scores, -1)
    return _Part(torch.bmm(weights.to(values.dtype), values).float(), scores, weights)


def _merge(outputs: Sequence[Tensor], sums: Tensor) -> Tensor:
    """Join what splits gave, one after another; `sums`: their logsumexp, `[splits, ..., rows]`.

    Works in place: the outputs are gone afterwards.
    """
    weights = torch.exp(sums - sums.amax(0))[..., None]
    total = weights[0]
    result = outputs[0].mul_(weights[0])
    for output, weight in zip(outputs[1:], weights[1:], strict=True):
        total = total + weight
        result.add_(output.mul_(weight))
    return result.div_(total)


AttentionInterface.register(ATTENTION, paged_attention)
