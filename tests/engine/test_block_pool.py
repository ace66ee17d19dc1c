"""BlockPool against a model that keeps one plain list, the free list in its order."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.block_pool import BlockPool
from engine.request import Request, SamplingParams
from engine.trace import BlockOp
from tests.engine.support import PoolFold, prompt

NUM_BLOCKS = 9
BLOCK_SIZE = 4
CHAIN = 5
"""Most blocks of one request."""


def request(request_id: str, family: int = 0, num_tokens: int = CHAIN * BLOCK_SIZE) -> Request:
    """A request for one of a few sequences; sequences of one family are the same."""
    return Request(request_id, prompt(num_tokens, family), SamplingParams())


def chain(family: int, length: int = CHAIN) -> list[bytes]:
    """The chained hashes of a family's sequence."""
    return request("", family).block_hashes(BLOCK_SIZE, length)


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
        family = int(request_id[0])
        self.pool.cache(request(request_id, family), first * BLOCK_SIZE, full * BLOCK_SIZE)
        if self.pool.enable_caching:
            self.cached.update(zip(table[first:full], chain(family, full)[first:], strict=True))
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

    @rule(data=st.data())
    def uncache(self, data: st.DataObject) -> None:
        blocks = data.draw(st.sets(st.integers(1, self.pool.num_blocks - 1)), label="blocks")
        self.pool.uncache(blocks)
        for block in blocks:
            self.cached.pop(block, None)

    @rule(enable_caching=st.booleans())
    def set_caching(self, enable_caching: bool) -> None:
        self.pool.set_caching(enable_caching)
        if not enable_caching:
            self.cached.clear()

    @rule(data=st.data())
    def resize(self, data: st.DataObject) -> None:
        """New blocks are drawn first; what is held in a block that goes moves to the free ones that stay."""
        old = self.pool.num_blocks
        num_blocks = data.draw(st.integers(max(2, self.pool.num_held + 1), 2 * NUM_BLOCKS), label="blocks")
        held = sorted({block for table in self.tables.values() for block in table})
        staying = [block for block in self.free if block < num_blocks]
        going = [block for block in held if block >= num_blocks]
        moves = dict(zip(going, staying, strict=False))
        assert self.pool.resize(num_blocks) == tuple(moves.items())
        self.free = list(range(old, num_blocks)) + staying[len(moves) :]
        self.tables = {rid: [moves.get(b, b) for b in table] for rid, table in self.tables.items()}
        overwritten = set(moves.values()) | {b for b in self.cached if b >= num_blocks and b not in moves}
        self.cached = {moves.get(b, b): h for b, h in self.cached.items() if b not in overwritten}
        self.fold.num_usable = num_blocks - 1

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
    assert list(pool.table("a")) == [1, 2, 3]
    assert pool.release("a") == 3
    pool.allocate("b", 5)
    assert list(pool.table("b")) == [3, 2, 1, 4, 5]


def test_cached_blocks_are_drawn_last_and_the_head_of_a_sequence_last_of_all() -> None:
    pool = BlockPool(6, BLOCK_SIZE)
    pool.allocate("a", 3)
    pool.cache(request("a"), 0, 2 * BLOCK_SIZE)
    pool.release("a")
    pool.allocate("b", 5)
    assert list(pool.table("b")) == [3, 4, 5, 2, 1]
    assert pool.cached_hashes() == {}


def test_a_hit_takes_a_free_block_back_and_shares_a_held_one() -> None:
    pool = BlockPool(6, BLOCK_SIZE)
    pool.allocate("a", 2)
    pool.cache(request("a"), 0, 2 * BLOCK_SIZE)
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
        pool.cache(request(request_id), 0, BLOCK_SIZE)
    assert pool.cached_hashes() == {1: chain(0)[0], 2: chain(0)[0]}
    assert pool.find_cached(chain(0)) == [1]
    pool.release("a")
    pool.allocate("c", 2)  # draws block 3, then evicts block 1
    assert pool.find_cached(chain(0)) == [2]


def test_operations_tell_what_happened() -> None:
    pool = BlockPool(3, BLOCK_SIZE)
    pool.allocate("a", 1)
    pool.cache(request("a"), 0, BLOCK_SIZE)
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


def test_a_prefix_is_found_short_of_the_last_token() -> None:
    pool = BlockPool(6, BLOCK_SIZE)
    pool.allocate("a", 2)
    pool.cache(request("a"), 0, 2 * BLOCK_SIZE)
    assert pool.find_prefix(request("b")) == [1, 2]
    assert pool.find_prefix(request("b", num_tokens=2 * BLOCK_SIZE)) == [1]
    assert pool.find_prefix(request("b", family=1)) == []
    pool.set_caching(False)
    assert pool.find_prefix(request("b")) == []


def test_a_held_block_moves_to_an_unused_one_before_a_cached_one() -> None:
    pool = BlockPool(6, BLOCK_SIZE)
    pool.allocate("a", 1)
    pool.cache(request("a"), 0, BLOCK_SIZE)
    pool.allocate("b", 4)
    pool.release("a")
    pool.release("b")
    pool.allocate("c", 1)
    assert list(pool.table("c")) == [5]
    assert pool.resize(4) == ((5, 3),)
    assert list(pool.table("c")) == [3]
    assert pool.find_cached(chain(0)) == [1]
    assert pool.num_free == 2


def test_releasing_nothing_is_nothing() -> None:
    pool = BlockPool(3, BLOCK_SIZE)
    assert pool.release("nobody") == 0
    assert pool.table("nobody") == ()
    assert pool.drain_ops() == ()
