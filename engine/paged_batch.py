"""A step as attention sees it: where each token is stored, and which keys it reads, cut into shapes that keep the
results of a token apart from its batch (`engine.attention` says how)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.kv_cache import SPLIT, PagedKVCache
from engine.scheduler import ScheduledRequest

QUERY_TILE = 4
"""Query rows come in multiples of this."""
KEY_TILE = 16
"""Keys come in multiples of this."""
MAX_READ = 4 << 20
"""Bytes of keys, values and scores that are worked on at once: what is made stays in the processor's own memory."""
MIN_SAVED = 16 * KEY_TILE
"""Keys that have to be saved for a read of its own: its few calls cost as much as copying and computing these."""


@dataclass(frozen=True, slots=True)
class SplitRead:
    """Splits that are copied out of the cache and computed together, with as many keys of each."""

    num_splits: int
    num_keys: int
    pages: Tensor
    """`[2 * splits * kv_heads * blocks]`: what `PagedKVCache.read` takes."""
    mask: Tensor | None
    """`[splits, 1, rows or 1, num_keys]`: 0, or -inf for keys that a row does not see; None if all are seen."""


@dataclass(frozen=True, slots=True)
class PrefillTile:
    """Query tokens `[first_row, first_row + num_tokens)` of the batch: of one request, and within one split of it."""

    first_row: int
    num_tokens: int
    reads: tuple[SplitRead, ...]
    """The request's splits up to that one."""


@dataclass(frozen=True, slots=True)
class DecodeBatch:
    """All requests with a single query token, read together: one entry a (request, split) pair."""

    pair_rows: Tensor
    """`[pairs]`: row of each pair's query in the batch."""
    reads: tuple[SplitRead, ...]
    """All pairs, in this order."""
    merge: Tensor | None
    """`[most splits, requests]`: the pair that is a request's split, `pairs` where it has none.

    None if no request has more than one."""


@dataclass(frozen=True, slots=True)
class PagedBatch:
    """Where each token of a flat batch is stored and what it attends to."""

    cache: PagedKVCache
    num_tokens: int
    slots: Tensor
    """`[tokens * 2 * kv_heads]`: what `PagedKVCache.write` takes."""
    prefills: tuple[PrefillTile, ...]
    decodes: DecodeBatch | None
    places: Tensor
    """`[rows]`: which result is a row's own, counted from the first tile's to the last decode's; 0 for padding."""


@dataclass(frozen=True, slots=True)
class _Pair:
    """What a request's last token sees of one split."""

    request: int
    split: int
    num_seen: int
    num_keys: int


def paged_batch(cache: PagedKVCache, scheduled: Sequence[ScheduledRequest], group: int, num_rows: int) -> PagedBatch:
    """Lay out the scheduled tokens, requests one after another, in a batch of at least as many rows.

    `group`: query heads that read the same keys.
    """
    blocks: list[int] = []
    offsets: list[int] = []
    prefills: list[PrefillTile] = []
    decodes: list[tuple[int, int, Sequence[int]]] = []
    for item in scheduled:
        start, count, first_row = item.decision.start, item.decision.num_tokens, len(blocks)
        for position in range(start, start + count):
            block, offset = divmod(position, cache.block_size)
            blocks.append(item.block_ids[block])
            offsets.append(offset)
        if count == 1:
            decodes.append((first_row, start, item.block_ids))
        else:
            prefills += _prefill_tiles(cache, first_row, range(start, start + count), item.block_ids, group)
    decode_batch, decoded_rows = _decode_batch(cache, decodes, group) if decodes else (None, [])
    places = [0] * num_rows
    computed = [row for tile in prefills for row in range(tile.first_row, tile.first_row + tile.num_tokens)]
    for place, row in enumerate(computed + decoded_rows):
        places[row] = place
    return PagedBatch(
        cache,
        len(blocks),
        cache.slots(blocks, offsets),
        tuple(prefills),
        decode_batch,
        torch.tensor(places, device=cache.device),
    )


def _prefill_tiles(
    cache: PagedKVCache, first_row: int, positions: range, block_ids: Sequence[int], group: int
) -> Iterator[PrefillTile]:
    """Several tokens of a request, cut where splits end."""
    for split in range(positions.start // SPLIT, positions[-1] // SPLIT + 1):
        first, end = max(positions.start, split * SPLIT), min(positions.stop, (split + 1) * SPLIT)
        num_rows = -(-(end - first) * group // QUERY_TILE) * QUERY_TILE
        at_once = _at_once(cache, num_rows)
        # Of the splits before its own, every row sees every key.
        before = [_split_blocks(cache, block_ids, index, SPLIT) for index in range(split)]
        reads = [_read(cache, before[index : index + at_once], None) for index in range(0, split, at_once)]
        own = _split_blocks(cache, block_ids, split, _num_keys(cache, end - split * SPLIT))
        # Rows that fill up the last tile see what the last token sees; nobody reads what they give.
        num_seen = (torch.arange(num_rows) // group + first + 1 - split * SPLIT).clamp_(max=end - split * SPLIT)
        reads.append(_read(cache, [own], num_seen[None]))
        yield PrefillTile(first_row + first - positions.start, end - first, tuple(reads))


def _decode_batch(
    cache: PagedKVCache, decodes: Sequence[tuple[int, int, Sequence[int]]], group: int
) -> tuple[DecodeBatch, list[int]]:
    """Requests (row, position, block table) with one query token; also their rows, in the order of the results."""
    pairs = []
    for request, (_, position, _) in enumerate(decodes):
        last, num_seen = position // SPLIT, position % SPLIT + 1
        pairs += [_Pair(request, split, SPLIT, SPLIT) for split in range(last)]
        pairs.append(_Pair(request, last, num_seen, _num_keys(cache, num_seen)))
    pairs.sort(key=lambda pair: pair.num_keys, reverse=True)
    reads = []
    for together in _of_similar_length(pairs, _at_once(cache, -(-group // QUERY_TILE) * QUERY_TILE)):
        num_keys = together[0].num_keys
        blocks = [_split_blocks(cache, decodes[pair.request][2], pair.split, num_keys) for pair in together]
        reads.append(_read(cache, blocks, torch.tensor([[pair.num_seen] for pair in together])))
    rows = [row for row, _, _ in decodes]
    pair_rows = [rows[pair.request] for pair in pairs]
    merge = None
    if len(pairs) > len(decodes):
        merge = torch.full((max(pair.split for pair in pairs) + 1, len(decodes)), len(pairs))
        splits, requests = torch.tensor([(pair.split, pair.request) for pair in pairs]).T
        merge[splits, requests] = torch.arange(len(pairs))
        merge = merge.to(cache.device)
    batch = DecodeBatch(torch.tensor(pair_rows, device=cache.device), tuple(reads), merge)
    return batch, pair_rows if merge is None else rows


def _of_similar_length(pairs: Sequence[_Pair], at_once: int) -> Iterator[list[_Pair]]:
    """Cut pairs, the longest first, where reading the rest with fewer keys saves enough."""
    together: list[_Pair] = []
    for index, pair in enumerate(pairs):
        if together:
            saved = (together[0].num_keys - pair.num_keys) * (len(pairs) - index)
            if len(together) == at_once or saved >= MIN_SAVED:
                yield together
                together = []
        together.append(pair)
    yield together


def _at_once(cache: PagedKVCache, num_rows: int) -> int:
    """Splits of so many query rows that are worked on at once."""
    floats = 2 * SPLIT * cache.num_kv_heads * (cache.head_dim + num_rows)
    return max(1, MAX_READ // (4 * floats))


def _num_keys(cache: PagedKVCache, num_seen: int) -> int:
    """How many keys of a split are read if so many are seen: whole blocks, and whole tiles."""
    unit = max(KEY_TILE, cache.block_size)
    return -(-num_seen // unit) * unit


def _split_blocks(cache: PagedKVCache, block_ids: Sequence[int], split: int, num_keys: int) -> list[int]:
    """The blocks of a request's split up to so many keys, filled up with null blocks."""
    first, count = split * SPLIT // cache.block_size, num_keys // cache.block_size
    blocks = list(block_ids[first : first + count])
    return blocks + [0] * (count - len(blocks))


def _read(cache: PagedKVCache, blocks: Sequence[Sequence[int]], num_seen: Tensor | None) -> SplitRead:
    """num_seen `[splits, rows or 1]`: keys that each row sees, all if None."""
    num_keys = len(blocks[0]) * cache.block_size
    mask = None
    if num_seen is not None and int(num_seen.min()) < num_keys:
        hidden = torch.arange(num_keys) >= num_seen[:, None, :, None]
        mask = torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf")).to(cache.device)
    return SplitRead(len(blocks), num_keys, cache.pages(blocks), mask)
