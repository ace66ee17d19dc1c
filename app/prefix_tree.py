"""PrefixTree: what a server's prefix cache holds, by its KV events. Blocks behind blocks, from where texts begin.

It knows no physical blocks and no requests: who holds a block, and where it lies, is in no event.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec
from immutables import Map

from engine.poll import PrefixOp


class CachedBlock(msgspec.Struct, frozen=True, gc=False):
    """A full block that a prompt can hit."""

    parent: str
    """The block before it; "" for a beginning."""
    step: int
    """When it was stored last."""
    num_copies: int = 1


@dataclass(slots=True)
class Branch:
    """Blocks that follow each other without a fork, and what follows them."""

    num_blocks: int = 0
    num_new: int = 0
    """Of them, stored in the newest step; they are the last ones."""
    num_copies: int = 0
    """Copies of blocks beyond the first."""
    size: int = 0
    """Blocks of it and of all branches behind it."""
    rank: str = ""
    branches: list[Branch] = field(default_factory=list)
    """The largest first."""
    is_orphan: bool = False
    """What stood before it is gone, so that no prompt can hit it."""


@dataclass(frozen=True, slots=True)
class Forest:
    """A prefix cache as branches."""

    roots: list[Branch]
    """The largest first."""
    num_shared: int
    """Blocks that more than one other follows: different texts begin with them."""


class PrefixTree:
    """Copies share what they have in common, so that every past state can be kept."""

    def __init__(self) -> None:
        self.blocks: Map[str, CachedBlock] = Map()
        """By rank and hash."""
        self.num_stored = 0
        self.num_evicted = 0
        """In the newest step."""
        self._forest: tuple[Map[str, CachedBlock], int, Forest] | None = None
        """What the last question came to, and for which blocks and step: a screen is drawn oftener than they change."""

    def copy(self) -> PrefixTree:
        """One that goes on by itself."""
        tree = PrefixTree()
        tree.blocks, tree.num_stored, tree.num_evicted = self.blocks, self.num_stored, self.num_evicted
        tree._forest = self._forest
        return tree

    def apply(self, ops: Iterable[PrefixOp], step: int) -> None:
        """Take in what has changed by this step."""
        self.num_stored = self.num_evicted = 0
        for op in ops:
            match op.op:
                case "store":
                    self._store(op, step)
                    self.num_stored += len(op.hashes)
                case "remove":
                    self._remove(op)
                    self.num_evicted += len(op.hashes)
                case "clear":
                    kept = {key: block for key, block in self.blocks.items() if not key.startswith(_key(op.rank, ""))}
                    self.num_evicted += len(self.blocks) - len(kept)
                    self.blocks = Map(kept)

    def _store(self, op: PrefixOp, step: int) -> None:
        parent = _key(op.rank, op.parent) if op.parent else ""
        with self.blocks.mutate() as blocks:
            for block in op.hashes:
                key = _key(op.rank, block)
                known = blocks.get(key)
                blocks[key] = CachedBlock(parent, step, known.num_copies + 1 if known else 1)
                parent = key
            self.blocks = blocks.finish()

    def _remove(self, op: PrefixOp) -> None:
        with self.blocks.mutate() as blocks:
            for block in op.hashes:
                key = _key(op.rank, block)
                known = blocks.pop(key, None)
                if known and known.num_copies > 1:
                    blocks[key] = CachedBlock(known.parent, known.step, known.num_copies - 1)
            self.blocks = blocks.finish()

    def forest(self, step: int) -> Forest:
        """All that it holds, from its beginnings on; `step` is the newest."""
        if self._forest is None or self._forest[0] is not self.blocks or self._forest[1] != step:
            self._forest = self.blocks, step, self._grow(step)
        return self._forest[2]

    def _grow(self, step: int) -> Forest:
        followers: dict[str, list[str]] = {}
        beginnings = []
        blocks = dict(self.blocks)
        for key, block in blocks.items():
            if block.parent in blocks:
                followers.setdefault(block.parent, []).append(key)
            else:
                beginnings.append(key)
        roots = [Branch(rank=key.partition("/")[0], is_orphan=blocks[key].parent != "") for key in beginnings]
        made: list[Branch] = []
        todo = list(zip(beginnings, roots, strict=True))
        while todo:  # a text may be thousands of blocks long: too deep for recursion
            key, branch = todo.pop()
            made.append(branch)
            following = [key]
            while len(following) == 1:
                block = blocks[following[0]]
                branch.num_blocks += 1
                branch.num_copies += block.num_copies - 1
                branch.num_new += block.step == step
                following = followers.get(following[0], [])
            branch.branches = [Branch() for _ in following]
            todo += zip(following, branch.branches, strict=True)
        for branch in reversed(made):  # those behind it were made after it
            branch.size = branch.num_blocks + sum(behind.size for behind in branch.branches)
            branch.branches.sort(key=lambda one: -one.size)
        num_shared = sum(bool(branch.branches) for branch in made)
        return Forest(sorted(roots, key=lambda one: -one.size), num_shared)


def _key(rank: str, block: str) -> str:
    return f"{rank}/{block}"
