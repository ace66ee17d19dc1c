"""KV blocks: a map of the pool. Who holds each block, how full it is, what is cached, and what was just evicted."""

from __future__ import annotations

from app.palette import CACHED, DIM, FAINT, owner_cell, owner_color, owner_letter, style
from app.panels.panel import Panel, Part, heading

FILL = "▏▎▍▌▋▊▉"
CELL = 2
"""Cells of the screen for a block, where there is room: its letter, and how full it is."""


class BlocksPanel(Panel):
    """One block after another by number, from 1. If they do not fit, a cell stands for several and says so."""

    def draw(self, width: int, height: int) -> list[list[Part]]:
        config = self.view.config
        if config is None:
            return [heading("KV blocks", "", width)]
        total = config.num_usable_blocks
        rows = max(1, height - 2)
        cells = CELL if total <= width // CELL * rows else 1
        per_row = width // cells
        per_cell = -(-total // (per_row * rows))
        lines = [heading(f"KV blocks {len(self.view.holders)} of {total}", f"{config.block_size} tokens each", width)]
        indices = {block: i for table in self.view.tables.values() for i, block in enumerate(table)}
        line: list[Part] = []
        for first in range(1, total + 1, per_cell):
            line += self._cell(first, min(first + per_cell, total + 1), indices, cells)
            if (first - 1) // per_cell % per_row == per_row - 1:
                lines.append(line)
                line = []
        if line:
            lines.append(line)
        return [*lines, self._legend(width, cells, per_cell)]

    def _cell(self, first: int, last: int, indices: dict[int, int], cells: int) -> list[Part]:
        """The blocks [first, last) as one cell: the first that is held speaks for all of them."""
        block = next((b for b in range(first, last) if b in self.view.holders), first)
        holders = self.view.holders.get(block)
        if not holders:
            return [self._free(block, cells)]
        request = self.view.requests[holders[0]]
        assert self.view.config is not None
        share = self.view.fill(holders[0], indices[block]) / self.view.config.block_size
        full = share >= 1
        look = owner_cell(request.number) if full or cells == CELL else owner_letter(request.number)
        if cells == 1:
            return [(request.letter, look)]
        if block in self.view.evicted:
            return [(request.letter, look), ("~", owner_cell(request.number))]
        if len(holders) > 1:
            count = str(len(holders)) if len(holders) < 10 else "+"
            return [(request.letter, look), (count, owner_cell(request.number))]
        if full:
            return [(f"{request.letter} ", look)]
        return [(request.letter, look), (FILL[int(share * len(FILL))], style(owner_color(request.number)))]

    def _free(self, block: int, cells: int) -> Part:
        if block in self.view.cached:
            return ("░" * cells, style(CACHED))
        return ("·".ljust(cells), style(FAINT))

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
