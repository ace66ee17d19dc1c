"""The paged KV cache: the tensors behind the block ids that the scheduler hands out."""

from __future__ import annotations

from collections.abc import Sequence

import psutil
import torch
from torch import Tensor

from engine.config import ConfigError

SPLIT = 128
"""Keys that attention takes as one (`engine.attention`); a multiple of every block size."""


class PagedKVCache:
    """Keys and values of every layer, in blocks: `[num_blocks, 2, kv_heads, block_size, head_dim]` each.

    What one head keeps in a block, of keys or of values, is a page: pages are what is copied out, so that each head's
    keys come to lie one after another, as matrix products like them. Block 0, the null block, stays zero: it fills up
    the block tables of short sequences. Raises ConfigError if block_size does not divide SPLIT, or if there is no
    memory for so many blocks.
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
        self.num_kv_heads, self.head_dim, self.block_size = num_kv_heads, head_dim, block_size
        self.device = device
        self.layers = [torch.empty(0, 2, num_kv_heads, block_size, head_dim, dtype=dtype, device=device)] * num_layers
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

    def slots(self, block_ids: Sequence[int], offsets: Sequence[int]) -> Tensor:
        """Where to `write` tokens, given the block of each and its place in there: `[tokens * 2 * kv_heads]`."""
        states = 2 * self.num_kv_heads
        blocks, places = torch.tensor([block_ids, offsets], dtype=torch.long)
        first = blocks * (states * self.block_size) + places
        slots: Tensor = first[:, None] + torch.arange(states) * self.block_size
        return slots.flatten().to(self.device)

    def write(self, layer: int, slots: Tensor, states: Tensor) -> None:
        """Store keys and values of tokens, `[tokens, 2, kv_heads, head_dim]`."""
        states = states.flatten(0, 2).to(self.layers[layer].dtype)
        if states.dtype == torch.float16:
            # What overflows must not stay behind: masked keys weigh zero, but zero times infinity is not a number.
            states = torch.nan_to_num(states)
        self.layers[layer].view(-1, self.head_dim).index_copy_(0, slots, states)

    def pages(self, block_ids: Sequence[Sequence[int]]) -> Tensor:
        """What to `read`, given as many blocks for each of some sequences: `[2 * sequences * kv_heads * blocks]`."""
        blocks = torch.tensor(block_ids)[:, None] * (2 * self.num_kv_heads)
        of_keys = blocks + torch.arange(self.num_kv_heads)[:, None]
        return torch.cat((of_keys.flatten(), of_keys.flatten() + self.num_kv_heads)).to(self.device)

    def read(self, layer: int, pages: Tensor, num_keys: int) -> tuple[Tensor, Tensor]:
        """Keys and values, `[sequences * kv_heads, num_keys, head_dim]` each.

        In float32 on the CPU, whose kernels for shorter types are slow, or sum in an order of their own.
        """
        copied = self.layers[layer].view(-1, self.block_size, self.head_dim).index_select(0, pages)
        if self.device.type == "cpu":
            copied = copied.float()
        keys, values = copied.view(2, -1, num_keys, self.head_dim).unbind(0)
        return keys, values
