"""Paged attention against torch's own, and against itself in other company, for shapes that no small model has."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from engine import paged_batch as layout
from engine.attention import attend
from engine.kv_cache import PagedKVCache
from engine.paged_batch import paged_batch
from engine.scheduler import ScheduledRequest
from engine.trace import Scheduled

HEAD_DIM = 16
SCALE = 0.3
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@dataclass
class Sequence:
    """A request of which `[start, end)` is computed in this step; all before is in the cache."""

    start: int
    end: int
    queries: Tensor
    """`[end, heads, head_dim]`"""
    states: Tensor
    """`[end, 2, kv_heads, head_dim]`"""

    def expected(self) -> Tensor:
        """`[end - start, heads, head_dim]`, by torch."""
        keys, values = self.states.permute(1, 2, 0, 3)
        group = self.queries.shape[1] // keys.shape[0]
        mask = torch.ones(self.end, self.end, dtype=torch.bool, device=keys.device).tril()[self.start :]
        return scaled_dot_product_attention(
            self.queries[self.start :].transpose(0, 1),
            keys.repeat_interleave(group, 0),
            values.repeat_interleave(group, 0),
            attn_mask=mask,
            scale=SCALE,
        ).transpose(0, 1)


def sequences(rng: random.Random, num_kv_heads: int, group: int, device: str, longest: int) -> list[Sequence]:
    made = []
    for _ in range(rng.randint(1, 7)):
        end = rng.randint(1, longest)
        start = end - 1 if rng.random() < 0.6 else rng.randrange(end)
        queries = torch.randn(end, num_kv_heads * group, HEAD_DIM, device=device)
        made.append(Sequence(start, end, queries, torch.randn(end, 2, num_kv_heads, HEAD_DIM, device=device)))
    return made


def computed(served: list[Sequence], block_size: int, num_kv_heads: int, group: int, row_tile: int) -> list[Tensor]:
    """What paged attention says to all of them in one step."""
    device = served[0].queries.device
    sizes = [-(-sequence.end // block_size) for sequence in served]
    cache = PagedKVCache(1, num_kv_heads, HEAD_DIM, 1 + sum(sizes), block_size, torch.float32, device)
    blocks = list(range(1, 1 + sum(sizes)))
    random.Random(0).shuffle(blocks)
    scheduled = []
    for index, (sequence, size) in enumerate(zip(served, sizes, strict=True)):
        own, blocks = tuple(blocks[:size]), blocks[size:]
        places = range(sequence.start)
        slots = cache.slots([own[place // block_size] for place in places], [place % block_size for place in places])
        cache.write(0, slots, sequence.states[: sequence.start])
        count = sequence.end - sequence.start
        decision = Scheduled(str(index), "decode", sequence.start, count, sequence.end)
        scheduled.append(ScheduledRequest(decision, (0,) * count, own, None))
    queries, states = (
        torch.cat([getattr(sequence, name)[sequence.start :] for sequence in served]) for name in ("queries", "states")
    )
    padding = -len(queries) % row_tile
    queries = torch.cat((queries, torch.randn(padding, *queries.shape[1:], device=device)))
    states = torch.cat((states, torch.randn(padding, *states.shape[1:], device=device)))
    out = attend(0, queries, states, paged_batch(cache, scheduled, group, len(queries)), SCALE)
    assert out.shape == queries.shape
    return list(torch.split(out[: len(out) - padding], [sequence.end - sequence.start for sequence in served]))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("block_size", [1, 2, 8, 16, 64, 128])
@pytest.mark.parametrize(("num_kv_heads", "group"), [(1, 1), (2, 3), (3, 5), (1, 9), (2, 4)])
def test_paged_attention_is_attention(
    device: str, block_size: int, num_kv_heads: int, group: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(f"{block_size} {group}")
    for max_read in (1, 200_000, layout.MAX_READ):  # one split at a time, some, all
        monkeypatch.setattr(layout, "MAX_READ", max_read)
        served = sequences(rng, num_kv_heads, group, device, 600)
        for got, sequence in zip(computed(served, block_size, num_kv_heads, group, 3), served, strict=True):
            assert torch.allclose(got, sequence.expected(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("block_size", [1, 16, 128])
@pytest.mark.parametrize(("num_kv_heads", "group"), [(1, 1), (3, 3), (1, 9)])
def test_it_is_the_same_bits_in_any_company(block_size: int, num_kv_heads: int, group: int) -> None:
    rng = random.Random(f"{block_size} {group}")
    for _ in range(5):
        served = sequences(rng, num_kv_heads, group, "cpu", 600)
        together = computed(served, block_size, num_kv_heads, group, 3)
        for got, sequence in zip(together, served, strict=True):
            [alone] = computed([sequence], 16, num_kv_heads, group, 8)
            assert torch.equal(got, alone)


def test_a_token_is_the_same_bits_as_decode_and_in_a_chunk() -> None:
    torch.manual_seed(0)
    queries, states = torch.randn(400, 6, HEAD_DIM), torch.randn(400, 2, 2, HEAD_DIM)

    def last(start: int, end: int) -> Tensor:
        [out] = computed([Sequence(start, end, queries[:end], states[:end])], 16, 2, 3, 3)
        return out[-1]

    for end in (2, 17, 128, 129, 256, 257, 400):
        expected = last(end - 1, end)
        for start in {0, end - 2, end // 2, max(0, end - 140)}:
            assert torch.equal(last(start, end), expected), (start, end)
