"""Waste: where the tokens of all steps went, what was computed twice, and what left the budget unused."""

from __future__ import annotations

from app.palette import CACHED, DECODE, DIM, FAINT, RECOMPUTE, TEXT, style
from app.panels.axis import WIDE_FROM
from app.panels.panel import Panel, Part, heading, wrap_parts
from app.server_words import NOT_TOLD, listed
from app.view import EngineView, Totals
from app.words import plural

UNUSED = {
    "idle": "no more to do",
    "seats": "all seats taken",
    "blocks": "too few free blocks",
    "chunking": "prompts may not be cut",
    "threshold": "the threshold cut prompts",
    "preemption": "a preemption came first",
    "reserved": "blocks reserved for others",
    "room": "room kept for others",
    "full": "nobody had left",
    "batch": "the batch was closed",
    "prefill": "decodes waited for prefills",
    "budget": "spent, then given back",
}
"""What left a part of the budget unused, by the reason in `Totals.unused`."""


WITHOUT_BAR = 3
"""Lines up to which there is no room for the bar."""


class WastePanel(Panel):
    """Counts from the engine's start to the step that is shown."""

    def draw(self, width: int, height: int) -> list[list[Part]]:
        totals = self.view.totals
        if self.view.poll:
            return _of_server(self.view, width)[:height]
        if not totals.budget:
            return [heading("Waste", "", width), [("nothing computed yet", style(DIM))]][:height]
        wide = width >= WIDE_FROM
        unused = _share(totals.budget - totals.computed, totals.budget)
        lines = [heading("Waste", f"{unused} {'of the budget ' if wide else ''}unused", width)]
        computed = wrap_parts(_tokens(totals, wide=wide), width, indent=2)
        # As many reasons as there is room for, the most frequent first; one at least.
        tries = [wrap_parts(_unused(totals, count), width, indent=2) for count in range(len(totals.unused), 0, -1)]
        room = height - len(lines) - len(computed) - (height > WITHOUT_BAR)
        unused_for = next((told for told in tries if len(told) <= room), tries[-1] if tries else [])
        sentences = [*computed, *unused_for]
        if len(lines) + len(sentences) < height:
            lines.append(_bar(totals, width))
        return [*lines, *sentences][:height]


def _of_server(view: EngineView, width: int) -> list[list[Part]]:
    """What is known of it, since we look at it."""
    server = view.server
    assert server is not None
    lines = [heading("Waste", "per poll", width)]
    parts: list[Part] = []
    if server.num_computed_tokens is not None:
        among = ", cached ones perhaps among them" if view.poll and view.poll.may_hold_cached else ""
        parts.append((f"{plural(server.num_computed_tokens, 'token')} computed{among}", style(TEXT)))
    if server.num_queried_tokens:
        share = _share(server.num_hit_tokens, server.num_queried_tokens)
        hits = f"{server.num_hit_tokens:,} of {server.num_queried_tokens:,}"
        parts.append((f"{', ' if parts else ''}{hits} ({share}) found in the prefix cache", style(CACHED)))
    lines += wrap_parts(parts, width, indent=2) if parts else []
    if server.num_budget_tokens:
        unused = max(0, server.num_budget_tokens - server.num_budgeted_tokens)
        told = f"{_share(unused, server.num_budget_tokens)} of the budget of all iterations unused"
        lines += wrap_parts([(told, style(TEXT))], width, indent=2)
    if server.finished:
        lines += wrap_parts([(f"ended: {listed(server.finished)}", style(TEXT))], width, indent=2)
    missing = "recomputed tokens" if server.num_budget_tokens else "recomputed tokens, the budget"
    return lines + wrap_parts([(f"{NOT_TOLD}: {missing}", style(DIM))], width, indent=2)


def _bar(totals: Totals, width: int) -> list[Part]:
    """The whole budget: what was computed for the first time, what again, and what was not used."""
    kinds = (
        (totals.computed - totals.recomputed, "█", DECODE),
        (totals.recomputed, "▒", RECOMPUTE),
        (totals.budget - totals.computed, "·", FAINT),
    )
    # One cell at least for whatever there is; the largest makes way.
    sizes = [max(1, tokens * width // totals.budget) if tokens else 0 for tokens, _, _ in kinds]
    largest = sizes.index(max(sizes))
    sizes[largest] = max(0, sizes[largest] + width - sum(sizes))
    return [(glyph * size, style(color)) for size, (_, glyph, color) in zip(sizes, kinds, strict=True)]


def _tokens(totals: Totals, *, wide: bool) -> list[Part]:
    """The shares are of what was computed, and of what would have been without the cache."""
    computed, recomputed, saved = (
        plural(totals.computed, "token"),
        f"{totals.recomputed:,} recomputed",
        f"{totals.saved:,}",
    )
    if wide:
        computed += " computed"
        recomputed += f" ({_share(totals.recomputed, totals.computed)})"
        saved += f" saved by the prefix cache ({_share(totals.saved, totals.computed + totals.saved)})"
    else:
        saved += " saved"
    return [(f"{computed}, ", style(TEXT)), (f"{recomputed}, ", style(RECOMPUTE)), (saved, style(CACHED))]


def _unused(totals: Totals, count: int) -> list[Part]:
    """What left the budget unused: so many reasons."""
    num_unused = totals.unused.total()
    parts: list[Part] = [("unused: ", style(DIM))]
    for index, (reason, tokens) in enumerate(totals.unused.most_common(count)):
        words = UNUSED.get(reason, reason)
        parts.append(
            (f"{', ' if index else ''}{words} {_share(tokens, num_unused)}", style(TEXT if not index else DIM))
        )
    return parts


def _share(part: int, whole: int) -> str:
    """Nothing is 0 % only if it is nothing, and all is 100 % only if it is all."""
    percent = 100 * part / whole if whole else 0.0
    if 0 < percent < 1:
        return "<1%"
    if 99 < percent < 100:
        return ">99%"
    return f"{percent:.0f}%"
