"""KV blocks: a map of the pool. Who holds each block, how full it is, what is cached, and what was just evicted."""

from __future__ import annotations

from collections.abc import Mapping

from app.palette import CACHED, DIM, FAINT, TEXT, owner_cell, owner_color, owner_letter, style
from app.panels.panel import Panel, Part, heading
from app.panels.server_cache import server_cache
from app.view import EngineView, RequestView
from app.words import letters, plural

FILL = "▏▎▍▌▋▊▉"
CELL = 2
"""Cells of the screen for a block, where there is room: its letter, and how full it is."""


def held(view: EngineView, request: RequestView, index: int) -> list[Part]:
    """Block number `index` of a request's table in CELL cells: whose it is, and what is to be said of it."""
    assert view.config is not None
    block = view.tables[request.request_id][index]
    num_holders = len(view.holders[block])
    share = view.fill(request.request_id, index) / view.config.block_size
    look = owner_cell(request.number)
    if block in view.evicted:
        return [(f"{request.letter}~", look)]
    if num_holders > 1:
        return [(request.letter + (str(num_holders) if num_holders < 10 else "+"), look)]
    if share >= 1:
        return [(f"{request.letter} ", look)]
    return [(request.letter, look), (FILL[int(share * len(FILL))], style(owner_color(request.number)))]


class BlocksPanel(Panel):
    """One block after another by number, from 1. If they do not fit, a cell stands for several and says so."""

    def __init__(self, *, id: str, keys: Mapping[str, str] | None = None) -> None:
        super().__init__(id=id, keys=keys)
        self.only: str | None = None
        """The request whose blocks are to stand out, if they are; all others are dim then."""

    def draw(self, width: int, height: int) -> list[list[Part]]:
        config = self.view.config
        if config is None:
            return [heading("KV blocks", "", width), [("memory: who holds which block", style(DIM))]]
        if self.view.poll:
            return server_cache(self.view, self.view.poll, width, height)
        total = config.num_usable_blocks
        rows = max(1, height - 2)
        cells = CELL if total <= width // CELL * rows else 1
        per_row = width // cells
        per_cell = -(-total // (per_row * rows))
        lines = [heading(f"KV blocks {len(self.view.holders)} of {total}", f"{config.block_size} tokens each", width)]
        indices = {block: i for table in self.view.tables.values() for i, block in enumerate(table)}
        taken: dict[int, list[int]] = {}
        for block in sorted(self.view.holders):
            taken.setdefault((block - 1) // per_cell, []).append(block)
        line: list[Part] = []
        for first in range(1, total + 1, per_cell):
            line += self._cell(first, taken.get((first - 1) // per_cell, []), indices, cells)
            if (first - 1) // per_cell % per_row == per_row - 1:
                lines.append(line)
                line = []
        if line:
            lines.append(line)
        return [*lines, self._whose(self.only) if self.only else self._legend(width, cells, per_cell)]

    def _cell(self, first: int, taken: list[int], indices: dict[int, int], cells: int) -> list[Part]:
        """Blocks from `first` on as one cell: one that stands out speaks for all, else the first that is held."""
        block = next((b for b in taken if self.only in self.view.holders[b]), taken[0] if taken else first)
        holders = self.view.holders.get(block)
        if not holders:
            return [self._free(block, cells)]
        if self.only:
            holders = sorted(holders, key=lambda request_id: request_id != self.only)
        request = self.view.requests[holders[0]]
        if self.only not in (None, holders[0]):
            return [(request.letter.ljust(cells), style(DIM))]
        index = indices[block]
        if cells == CELL:
            return held(self.view, request, index)
        assert self.view.config is not None
        full = self.view.fill(request.request_id, index) == self.view.config.block_size
        return [(request.letter, owner_cell(request.number) if full else owner_letter(request.number))]

    def _free(self, block: int, cells: int) -> Part:
        if block in self.view.cached:
            return ("░" * cells, style(FAINT if self.only else CACHED))
        return ("·".ljust(cells), style(FAINT))

    def _whose(self, request_id: str) -> list[Part]:
        """Whose blocks stand out, and how many there are."""
        if request_id not in self.view.requests:
            return [("only those of the selected request: none", style(DIM))]
        table = self.view.tables.get(request_id, [])
        num_shared = sum(len(self.view.holders[block]) > 1 for block in table)
        shared = f", {num_shared} shared" if num_shared else ""
        who = letters([request_id], self.view)
        count = f"{plural(len(table), 'block')}{shared}"
        return [("only ", style(DIM)), *who, (count, style(TEXT)), (f"; {self.keys['only']}: all", style(DIM))]

    @staticmethod
    def _legend(width: int, cells: int, per_cell: int) -> list[Part]:
        """Only the signs that are drawn at this size."""
        dim, cached = style(DIM), style(CACHED)
        if per_cell > 1:
            return [(f"a cell is {per_cell} blocks ", dim), ("░", cached), (" cached", dim)]
        if cells == 1:
            full, part = owner_cell(0), owner_letter(0)
            return [("a", full), (" full ", dim), ("a", part), (" part ", dim), ("░", cached), (" cached", dim)]
        evicted = " a~ evicted" if width >= 37 else ""
        return [("a▌ part a2 shared ", dim), ("░", cached), (f" cached{evicted}", dim)]
