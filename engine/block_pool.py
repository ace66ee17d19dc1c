"""BlockPool: who holds which KV block, which blocks are free, and which can be reused for their content.

The idea is vLLM's (v1/core/block_pool.py): the free list is the LRU list of the prefix cache. A block that nobody
holds keeps its content and its place in the cache until it is drawn for something else.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from engine.request import Request
from engine.trace import BlockOp

NULL_BLOCK = 0


class BlockPool:
    """`num_blocks` blocks of `block_size` tokens; block 0 is the null block, never free and never handed out.

    Without `enable_caching` no block is ever in the prefix cache.
    """

    def __init__(self, num_blocks: int, block_size: int, enable_caching: bool = True) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.enable_caching = enable_caching
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks))
        self._ref_counts = [0] * num_blocks
        self._tables: dict[str, tuple[int, ...]] = {}
        self._hash_of: dict[int, bytes] = {}
        self._cached: dict[bytes, dict[int, None]] = {}
        self._ops: list[BlockOp] = []

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds, cached or not."""
        return len(self._free)

    @property
    def num_held(self) -> int:
        """Blocks that some request holds."""
        return self.num_blocks - 1 - len(self._free)

    def table(self, request_id: str) -> tuple[int, ...]:
        """The request's block table: block i holds its tokens [i * block_size, (i + 1) * block_size)."""
        return self._tables.get(request_id, ())

    def num_missing(self, request_id: str, num_tokens: int) -> int:
        """Blocks to add to the request's table before it can store `num_tokens` tokens."""
        return -(-num_tokens // self.block_size) - len(self._tables.get(request_id, ()))

    def find_prefix(self, request: Request) -> list[int]:
        """Cached blocks that a request can start behind; its last token is always computed, to get its logits."""
        if not self.enable_caching:
            return []
        most = (request.num_tokens - 1) // self.block_size
        return self.find_cached(request.block_hashes(self.block_size, most))

    def find_cached(self, hashes: Iterable[bytes]) -> list[int]:
        """The longest run of cached blocks for these chained hashes, from the first; nothing is taken."""
        found = []
        for block_hash in hashes:
            blocks = self._cached.get(block_hash)
            if not blocks:
                break
            found.append(next(iter(blocks)))
        return found

    def num_idle(self, blocks: Iterable[int]) -> int:
        """How many of these blocks nobody holds, so that taking them would use up free ones."""
        return sum(not self._ref_counts[block] for block in blocks)

    def hold(self, request_id: str, blocks: Sequence[int]) -> None:
        """Start or extend a request's table with blocks found in the prefix cache."""
        if not blocks:
            return
        for block in blocks:
            if not self._ref_counts[block]:
                del self._free[block]
            self._ref_counts[block] += 1
        self._tables[request_id] = (*self.table(request_id), *blocks)
        self._ops.append(BlockOp("hit", tuple(blocks), request_id))

    def allocate(self, request_id: str, num_blocks: int) -> None:
        """Append `num_blocks` fresh blocks to the request's table; the caller has made sure that they are free."""
        if num_blocks <= 0:
            return
        blocks = [self._free.popitem(last=False)[0] for _ in range(num_blocks)]
        self._evict(blocks)
        for block in blocks:
            self._ref_counts[block] = 1
        self._tables[request_id] = (*self.table(request_id), *blocks)
        self._ops.append(BlockOp("allocate", tuple(blocks), request_id))

    def cache(self, request: Request, start: int, end: int) -> None:
        """Enter the blocks in the prefix cache that become full with the request's tokens [start, end)."""
        first, full = start // self.block_size, end // self.block_size
        if first == full or not self.enable_caching:
            return
        request_id = request.request_id
        hashes = request.block_hashes(self.block_size, full)
        table = self._tables[request_id]
        entered = []
        for index in range(first, len(hashes)):
            block = table[index]
            if block not in self._hash_of:
                self._hash_of[block] = hashes[index]
                self._cached.setdefault(hashes[index], {})[block] = None
                entered.append(block)
        if entered:
            self._ops.append(BlockOp("cache", tuple(entered), request_id))

    def release(self, request_id: str) -> int:
        """Let go of all blocks of a request; returns how many became free by it.

        The tail goes first, so that it is also reused first: the head of a sequence is what others share. Blocks
        without cached content go to the front of the free list, cached ones to its back.
        """
        table = self._tables.pop(request_id, ())[::-1]
        if not table:
            return 0
        uncached = []
        freed = 0
        for block in table:
            self._ref_counts[block] -= 1
            if self._ref_counts[block]:
                continue
            freed += 1
            self._free[block] = None
            if block not in self._hash_of:
                uncached.append(block)
        for block in reversed(uncached):
            self._free.move_to_end(block, last=False)
        self._ops.append(BlockOp("release", table, request_id))
        return freed

    def uncache(self, blocks: Iterable[int]) -> None:
        """Take blocks out of the prefix cache that are in it; whoever holds them keeps them."""
        self._evict(blocks)

    def set_caching(self, enable_caching: bool) -> None:
        """Turn the prefix cache on or off; off, it is emptied."""
        self.enable_caching = enable_caching
        if not enable_caching:
            self._evict(list(self._hash_of))

    def resize(self, num_blocks: int) -> tuple[tuple[int, int], ...]:
        """Grow or shrink to `num_blocks`; no more blocks may be held than are left. Returns moves (from, to).

        New blocks are drawn first. Of those that go, free ones lose their cached content, and what is held in one
        moves to a free one that stays: an unused one if there is any, else the one whose content was of use longest
        ago.
        """
        old, self.num_blocks = self.num_blocks, num_blocks
        for block in reversed(range(old, num_blocks)):
            self._ref_counts.append(0)
            self._free[block] = None
            self._free.move_to_end(block, last=False)
        going = range(num_blocks, old)
        gone = [block for block in going if block in self._free]
        for block in gone:
            del self._free[block]
        self._evict(gone)
        moves = [(block, self._free.popitem(last=False)[0]) for block in going if self._ref_counts[block]]
        self._evict(to for _, to in moves)
        moved = dict(moves)
        self._tables = {rid: tuple(moved.get(block, block) for block in table) for rid, table in self._tables.items()}
        for source, to in moves:
            self._ref_counts[to] = self._ref_counts[source]
            block_hash = self._hash_of.pop(source, None)
            if block_hash is not None:
                self._hash_of[to] = block_hash
                self._cached[block_hash] = {moved.get(block, block): None for block in self._cached[block_hash]}
            self._ops.append(BlockOp("move", (source, to)))
        del self._ref_counts[num_blocks:]
        return tuple(moves)

    def drain_ops(self) -> tuple[BlockOp, ...]:
        """All changes since the last call, in order."""
        ops, self._ops = tuple(self._ops), []
        return ops

    def _evict(self, blocks: Iterable[int]) -> None:
        evicted = []
        for block in blocks:
            block_hash = self._hash_of.pop(block, None)
            if block_hash is None:
                continue
            holders = self._cached[block_hash]
            del holders[block]
            if not holders:
                del self._cached[block_hash]
            evicted.append(block)
        if evicted:
            self._ops.append(BlockOp("evict", tuple(evicted)))

    def check(self) -> None:
        """Raise AssertionError if the books do not balance. For tests; its cost grows with the pool."""
        counts = [0] * self.num_blocks
        for table in self._tables.values():
            assert len(set(table)) == len(table), f"a table holds a block twice: {table}"
            for block in table:
                counts[block] += 1
        assert counts == self._ref_counts, "a reference count is not the number of tables that hold the block"
        assert counts[NULL_BLOCK] == 0 and NULL_BLOCK not in self._free, "the null block was handed out"
        idle = {block for block in range(1, self.num_blocks) if not counts[block]}
        assert idle == set(self._free), "a block is on the free list exactly when nobody holds it"
        listed = {block: h for h, blocks in self._cached.items() for block in blocks}
        assert listed == self._hash_of and all(self._cached.values()), "cache and hashes disagree"

    def cached_hashes(self) -> dict[int, bytes]:
        """Block number to hash, for every block in the prefix cache."""
        return dict(self._hash_of)
