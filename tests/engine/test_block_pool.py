"""BlockPool against a model that keeps one plain list, the free list in its order."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.block_pool import BlockPool
from engine.trace import BlockOp
from tests.engine.support import PoolFold

NUM_BLOCKS = 9
BLOCK_SIZE = 4
CHAIN = 5
"""Most blocks of one request."""


def chain(family: int, length: int = CHAIN) -> list[bytes]:
    """The chained hashes of a sequence; sequences of one family are the same."""
    return [b"%d/%d" % (family, index) for index in range(length)]


class PoolMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(NUM_BLOCKS, BLOCK_SIZE)
        self.fold = PoolFold(NUM_BLOCKS)
        self.free = list(range(1, NUM_BLOCKS))
        self.tables: dict[str, list[int]] = {}
        self.num_filled: dict[str, int] = {}
        self.cached: dict[int, bytes] = {}
        """In the order of entering."""
        self.num_started = 0

    def draw_request(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.tables)), label="request")

    @rule(family=st.integers(0, 2), most=st.integers(0, CHAIN))
    def start(self, family: int, most: int) -> None:
        """A request comes in on whatever the cache has of its sequence."""
        hits: list[int] = []
        for block_hash in chain(family, most):
            holders = [block for block, cached in self.cached.items() if cached == block_hash]
            if not holders:
                break
            hits.append(holders[0])
        assert self.pool.find_cached(chain(family, most)) == hits
        assert self.pool.num_idle(hits) == sum(block in self.free for block in hits)
        request_id = f"{family}-{self.num_started}"
        self.num_started += 1
        self.pool.hold(request_id, hits)
        self.tables[request_id] = hits
        self.num_filled[request_id] = len(hits)
        self.free = [block for block in self.free if block not in hits]

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def allocate(self, data: st.DataObject) -> None:
        request_id = self.draw_request(data)
        table = self.tables[request_id]
        most = min(len(self.free), CHAIN - len(table))
        count = data.draw(st.integers(0, most), label="blocks")
        assert self.pool.num_missing(request_id, (len(table) + count) * BLOCK_SIZE) == count
        self.pool.allocate(request_id, count)
        drawn, self.free = self.free[:count], self.free[count:]
        table.extend(drawn)
        for block in drawn:
            self.cached.pop(block, None)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def cache(self, data: st.DataObject) -> None:
        request_id = self.draw_request(data)
        table, first = self.tables[request_id], self.num_filled[request_id]
        full = data.draw(st.integers(first, len(table)), label="full blocks")
        hashes = chain(int(request_id[0]), full)
        if full > first:
            self.pool.cache(request_id, hashes, first)
        self.cached.update(zip(table[first:full], hashes[first:], strict=True))
        self.num_filled[request_id] = full

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        request_id = self.draw_request(data)
        table = self.tables.pop(request_id)
        still_held = {block for other in self.tables.values() for block in other}
        freed = [block for block in reversed(table) if block not in still_held]
        assert self.pool.release(request_id) == len(freed)
        uncached = [block for block in freed if block not in self.cached]
        self.free = uncached + self.free + [block for block in freed if block in self.cached]

    @invariant()
    def books_balance(self) -> None:
        self.pool.check()
        assert self.pool.num_free == len(self.free)
        assert self.pool.cached_hashes() == self.cached
        for request_id, table in self.tables.items():
            assert list(self.pool.table(request_id)) == table
        for op in self.pool.drain_ops():
            self.fold.apply(op)
        self.fold.check(self.pool, self.tables)

    def teardown(self) -> None:
        """Draw all that is left: the free list is in the order that it should be."""
        if self.free:
            self.pool.allocate("last", len(self.free))
        assert list(self.pool.table("last")) == self.free


PoolMachine.TestCase.settings = settings(
    deadline=None, max_examples=120, stateful_step_count=40, suppress_health_check=[HealthCheck.too_slow]
)
TestPoolAgainstModel = PoolMachine.TestCase


def test_blocks_are_drawn_in_order_and_the_tail_comes_back_first() -> None:
    pool = BlockPool(6, BLOCK_SIZE)
    pool.allocate("a", 3)
    assert pool.table("a") == [1, 2, 3]
    assert pool.release("a") == 3
    pool.allocate("b", 5)
    assert pool.table("b") == [3, 2, 1, 4, 5]


def test_cached_blocks_are_drawn_last_and_the_head_of_a_sequence_last_of_all() -> None:
    pool = BlockPool(6, BLOCK_SIZE)
    pool.allocate("a", 3)
    pool.cache("a", chain(0, 2), 0)
    pool.release("a")
    pool.allocate("b", 5)
    assert pool.table("b") == [3, 4, 5, 2, 1]
    assert pool.cached_hashes() == {}


def test_a_hit_takes_a_free_block_back_and_shares_a_held_one() -> None:
    pool = BlockPool(6, BLOCK_SIZE)
    pool.allocate("a", 2)
    pool.cache("a", chain(0, 2), 0)
    pool.release("a")
    hits = pool.find_cached(chain(0))
    assert hits == [1, 2]
    assert pool.num_idle(hits) == 2
    pool.hold("b", hits)
    assert pool.num_free == 3
    assert pool.num_idle(hits) == 0
    pool.hold("c", hits)
    assert pool.num_free == 3
    assert pool.release("b") == 0
    assert pool.release("c") == 2


def test_the_same_content_in_two_blocks_is_hit_where_it_was_entered_first() -> None:
    pool = BlockPool(4, BLOCK_SIZE)
    for request_id in "ab":
        pool.allocate(request_id, 1)
        pool.cache(request_id, chain(0, 1), 0)
    assert pool.cached_hashes() == {1: b"0/0", 2: b"0/0"}
    assert pool.find_cached(chain(0)) == [1]
    pool.release("a")
    pool.allocate("c", 2)  # draws block 3, then evicts block 1
    assert pool.find_cached(chain(0)) == [2]


def test_operations_tell_what_happened() -> None:
    pool = BlockPool(3, BLOCK_SIZE)
    pool.allocate("a", 1)
    pool.cache("a", chain(0, 1), 0)
    pool.hold("b", [1])
    pool.release("a")
    pool.release("b")
    pool.allocate("c", 2)
    assert pool.drain_ops() == (
        BlockOp("allocate", (1,), "a"),
        BlockOp("cache", (1,), "a"),
        BlockOp("hit", (1,), "b"),
        BlockOp("release", (1,), "a"),
        BlockOp("release", (1,), "b"),
        BlockOp("evict", (1,)),
        BlockOp("allocate", (2, 1), "c"),
    )
    assert pool.drain_ops() == ()


def test_releasing_nothing_is_nothing() -> None:
    pool = BlockPool(3, BLOCK_SIZE)
    assert pool.release("nobody") == 0
    assert pool.table("nobody") == ()
    assert pool.drain_ops() == ()
