"""The KV cache of a server elsewhere: how much of it is held, and what its prefix cache holds, as a tree of blocks.

A server tells no physical blocks: there is no map of them here, and no request can be seen in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from math import ceil

from app.palette import BRIGHT, CACHED, DIM, FAINT, PREEMPTED, TEXT, WAITING, style
from app.panels.panel import Part, heading, wrap_parts
from app.prefix_tree import Branch, PrefixTree
from app.server_words import NOT_TOLD, percent
from app.text import printable
from app.view import EngineView
from app.words import plural
from engine.poll import Poll

HELD, FREE, BLOCK, NEW = "█", "·", "▪", "▣"
FULL = 0.95
WIDE = 40
"""Columns from which there is room for all the words."""
INDENT = "└"
LEAF = 8
"""Most cells of a branch that shares its row with others."""
LABEL = 8
"""Cells that another one keeps for its figures."""
Row = tuple[list[Part], int]
"""A line, and how many blocks are in it."""


def server_cache(view: EngineView, poll: Poll, width: int, height: int) -> list[list[Part]]:
    """Lines for a panel of this size."""
    assert view.trace is not None and view.server is not None
    if poll.problem:
        return [heading("KV cache", "", width), [("no answer", style(DIM))]]
    lines = [_heading(view, poll, width)]
    lines += _bar(poll, width)
    if poll.prefix_known:
        return [*lines, *_tree(view, poll, width, height - len(lines))][:height]
    why = poll.prefix_hint or f"which block holds what: {NOT_TOLD}"
    return [*lines, *wrap_parts([(printable(why), style(DIM))], width, indent=2)]


def _heading(view: EngineView, poll: Poll, width: int) -> list[Part]:
    if poll.kv_usage is None:
        return heading("KV cache", NOT_TOLD, width)
    if not poll.tells("num_blocks"):
        return heading(f"KV cache {percent(poll.kv_usage)} held", "per poll", width)
    assert view.config is not None
    total = view.config.num_usable_blocks * len(poll.engines)
    title = f"{round(poll.kv_usage * total):,} of {total:,} held"
    return heading(f"KV blocks {title}" if width >= WIDE else f"KV {title}", "per poll", width)


def _bar(poll: Poll, width: int) -> Iterator[list[Part]]:
    """What requests hold. Cached blocks that nobody holds count as free."""
    if poll.kv_usage is None:
        return
    held = width if poll.kv_usage >= 1 else min(width - 1, ceil(poll.kv_usage * width))
    look = style(PREEMPTED if poll.kv_usage >= FULL else TEXT)
    yield [(HELD * held, look), (FREE * (width - held), style(FAINT))]


def _tree(view: EngineView, poll: Poll, width: int, height: int) -> list[list[Part]]:
    """The prefix cache from its beginnings on, the largest branches first; what does not fit is counted."""
    assert view.trace is not None and view.server is not None
    tree = view.server.tree
    forest = tree.forest(view.trace.step)
    known = "exact" if poll.prefix_known == "whole" else "since we listen"
    source = ", by KV events" if width >= WIDE else ""
    lines: list[list[Part]] = [
        [(f"prefix cache {len(tree.blocks):,}", style(CACHED)), (f" · {known}{source}", style(DIM))]
    ]
    if poll.prefix_hint:
        lines += wrap_parts([(printable(poll.prefix_hint), style(PREEMPTED))], width, indent=2)
    foot = _changes(tree, forest.num_shared)
    room = max(0, height - len(lines) - len(foot))
    # One more than there is room for tells that there are more; a large cache has thousands.
    rows = list(islice(_by_rank(forest.roots, has_ranks=len(poll.engines) > 1, width=width), room + 1))
    if len(rows) > room:
        rows = rows[: max(0, room - 1)]
    hidden = len(tree.blocks) - sum(num_blocks for _, num_blocks in rows)
    if hidden and room:
        rows.append(([(f"… and {plural(hidden, 'block')} more", style(DIM))], hidden))
    return [*lines, *(parts for parts, _ in rows), *foot]


def _changes(tree: PrefixTree, num_shared: int) -> list[list[Part]]:
    counts = {"stored": tree.num_stored, "evicted": tree.num_evicted, "shared": num_shared}
    told = " · ".join(f"{count:,} {name}" for name, count in counts.items() if count)
    return [[(told, style(WAITING if tree.num_stored or tree.num_evicted else DIM))]] if told else []


def _by_rank(roots: list[Branch], *, has_ranks: bool, width: int) -> Iterator[Row]:
    """Rows of the branches of each rank, under its name if there are several."""
    for rank in sorted({root.rank for root in roots}):
        if has_ranks:
            yield [(f"rank {printable(rank)}", style(DIM))], 0
        yield from _rows([root for root in roots if root.rank == rank], width)


def _rows(roots: list[Branch], width: int) -> Iterator[Row]:
    """Those that fork have a row each, and under it what follows them; the others share rows behind them."""
    todo = [(branch, "") for branch in reversed(roots) if branch.branches]
    while todo:
        branch, indent = todo.pop()
        yield [(indent, style(FAINT)), *_cells(branch, width - len(indent) - LABEL)], branch.num_blocks
        under = (indent + INDENT)[: width // 2]
        yield from _flow([behind for behind in branch.branches if not behind.branches], under, width)
        todo += [(behind, under) for behind in reversed(branch.branches) if behind.branches]
    yield from _flow([branch for branch in roots if not branch.branches], "", width)


def _flow(leaves: list[Branch], indent: str, width: int) -> Iterator[Row]:
    """Branches that do not fork, several in a row."""
    line: list[Part] = []
    used = num_blocks = 0
    for leaf in leaves:
        cells = _cells(leaf, LEAF)
        size = sum(len(text) for text, _ in cells)
        if line and used + 1 + size > width:
            yield line, num_blocks
            line, num_blocks = [], 0
        if not line:
            line, used = [(indent, style(FAINT))], len(indent)
        else:
            line.append((" ", style()))
            used += 1
        line += cells
        used, num_blocks = used + size, num_blocks + leaf.num_blocks
    if line:
        yield line, num_blocks


def _cells(branch: Branch, room: int) -> list[Part]:
    """A cell for each block, the new ones at the end; of more than there is room for the number stands behind."""
    shown = min(branch.num_blocks, max(1, room))
    new = min(branch.num_new, shown)
    count = f"{branch.num_blocks:,}" if branch.num_blocks > shown or branch.branches else ""
    copies = f"+{branch.num_copies:,}" if branch.num_copies else ""
    return [
        ("┄" if branch.is_orphan else "", style(FAINT)),
        (BLOCK * (shown - new), style(CACHED)),
        (NEW * new, style(BRIGHT, bold=True)),
        (count + copies, style(DIM)),
    ]
