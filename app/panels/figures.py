"""Figures: a request in numbers. How long it waited and for what, its latencies, and what its tokens cost."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from app.palette import (
    CACHED,
    DIM,
    FAINT,
    PREEMPTED,
    PREEMPTED_GLYPH,
    RECOMPUTE,
    TEXT,
    WAITING,
    style,
)
from app.panels.panel import Part, wrap_parts
from app.server_words import NOT_TOLD
from app.view import EngineView, EventView, RequestView
from app.words import FEWER, letter_of, plural, waits

LABEL = 11
MAX_BAR = 40
TOLD_PREEMPTIONS = 3
SPARKS = "▁▂▃▄▅▆▇█"


def figures(view: EngineView, request: RequestView, width: int, *, brief: bool = False) -> list[list[Part]]:
    """A line or more for each figure. `brief` leaves out what there is nothing to say of."""
    if view.poll:
        facts = [
            ("TTFT", _ttft(request)),
            ("ITL", _itl(request, width - LABEL)),
            ("", [("exact, as measured at this end", style(DIM))]),
            ("else", [(f"queue time, KV blocks and preemptions of a request are {NOT_TOLD}", style(DIM))]),
        ]
        return _listed(facts, width)
    facts = [
        ("queued", _queued(view, request)),
        ("waits", _waits(view, request)),
        ("TTFT", _ttft(request)),
        ("ITL", _itl(request, width - LABEL)),
        ("tokens", _tokens(request)),
        ("", [] if brief else _tokens_bar(request, min(MAX_BAR, width - LABEL))),
        ("preempted", _preemptions(view, request, brief=brief)),
    ]
    return _listed(facts, width)


def _listed(facts: Iterable[tuple[str, list[Part]]], width: int) -> list[list[Part]]:
    lines: list[list[Part]] = []
    for label, parts in facts:
        if parts:
            lines += wrap_parts([(label.ljust(LABEL), style(DIM)), *parts], width, indent=LABEL)
    return lines


def _queued(view: EngineView, request: RequestView) -> list[Part]:
    assert view.trace is not None
    first = request.spans[0]
    end = view.trace.step if first.last is None else first.last
    steps = plural(max(0, end - first.first + 1), "step")
    if request.queue_time is None:
        return [(f"{steps}, never scheduled" if request.finished else f"for {steps} now", style(TEXT))]
    return [(f"{steps}, {seconds(request.queue_time)}", style(TEXT))]


def _waits(view: EngineView, request: RequestView) -> list[Part]:
    """Where in the queue it is, and what for if it is the head of it."""
    trace = view.trace
    if trace is None or request.finished or request.request_id in trace.running:
        return []
    if trace.blocked and trace.blocked.request_id == request.request_id:
        return [(waits(trace.blocked, trace.config).removeprefix("waits: "), style(WAITING))]
    if request.request_id not in trace.waiting:
        return [(f"behind {len(trace.waiting):,} others at least, of {trace.num_waiting:,}", style(WAITING))]
    return [(f"number {trace.waiting.index(request.request_id) + 1} of {trace.num_waiting:,}", style(WAITING))]


def _preemptions(view: EngineView, request: RequestView, *, brief: bool) -> list[Part]:
    if not request.preempted_at:
        return [] if brief else [("never", style(DIM))]
    mine = (event for event in view.events if event.request_id == request.request_id)
    told = {event.step: event for event in mine if event.kind == "preempted"}
    shown = request.preempted_at[-(1 if brief else TOLD_PREEMPTIONS) :]
    earlier = len(request.preempted_at) - len(shown)
    parts: list[Part] = [(f"{earlier:,} times before  ", style(DIM))] if earlier else []
    for step in shown:
        parts += [(f"{PREEMPTED_GLYPH} ", style(PREEMPTED, bold=True)), (f"step {step:,} ", style(TEXT))]
        parts += _reason(told[step]) if step in told else []
    return parts


def seconds(time: float) -> str:
    return f"{time * 1000:.0f} ms" if time < 1 else f"{time:.2f} s"


def _reason(event: EventView) -> list[Part]:
    """For whom it was preempted, and what that cost."""
    preemption = event.preemption
    assert preemption is not None
    lost = f"up to {preemption.num_lost_tokens:,} to redo  "
    if preemption.cause != "blocks":
        return [(f"{FEWER[preemption.cause]}, {lost}", style(TEXT))]
    if preemption.for_request_id == event.request_id:
        return [(f"by itself, {lost}", style(TEXT))]
    return [("for ", style(TEXT)), *letter_of(event.for_number), (lost, style(TEXT))]


def _ttft(request: RequestView) -> list[Part]:
    finished = request.finished
    parts: list[Part] = [
        (seconds(request.ttft), style(TEXT)) if request.ttft is not None else ("no token yet", style(DIM)),
    ]
    if finished and finished.e2e is not None:
        parts += [("  end to end ", style(DIM)), (seconds(finished.e2e), style(TEXT))]
    return parts


def _itl(request: RequestView, width: int) -> list[Part]:
    """The gaps between its tokens: the last, the median and the longest, and the last ones as a sparkline."""
    if not request.itl:
        return [("no gap yet", style(DIM))]
    parts: list[Part] = []
    figures = (("last", request.itl[-1]), ("median", median(request.itl)), ("max", max(request.itl)))
    for name, value in figures:
        parts += [(f"{name} ", style(DIM)), (f"{seconds(value)}  ", style(TEXT))]
    used = sum(len(text) for text, _ in parts)
    room = width - used
    if room < len(SPARKS):
        room = max(1, width)
    recent = request.itl[-room:]
    longest = max(recent)
    sparks = "".join(SPARKS[int(value / longest * (len(SPARKS) - 1))] if longest else SPARKS[0] for value in recent)
    return [*parts, (sparks, style(TEXT))]


def _tokens(request: RequestView) -> list[Part]:
    """What it took to get where it is, against what it needs."""
    needed = _needed(request)
    parts: list[Part] = [("needs ", style(DIM)), (f"{needed:,}", style(TEXT))]
    if not request.finished:
        parts += [("  has ", style(DIM)), (f"{request.num_computed_tokens:,}", style(TEXT))]
    parts += [("  computed ", style(DIM)), (f"{request.num_work_tokens:,}", style(TEXT))]
    if again := request.num_recomputed_tokens:
        parts.append((f", {again:,} of them again", style(RECOMPUTE)))
    if request.num_cached_tokens:
        parts.append((f"  from the cache {request.num_cached_tokens:,}", style(CACHED)))
    return parts


def _tokens_bar(request: RequestView, width: int) -> list[Part]:
    """The same as a bar: computed, computed again, found in the cache, and still to come."""
    needed = _needed(request)
    again, cached = request.num_recomputed_tokens, request.num_cached_tokens
    once = request.num_work_tokens - again
    missing = max(0, needed - request.num_computed_tokens) if not request.finished else 0
    total = max(1, once + again + cached + missing)
    parts: list[Part] = []
    used = done = 0
    for count, glyph, color in (
        (once, "█", TEXT),
        (again, "▒", RECOMPUTE),
        (cached, "░", CACHED),
        (missing, "·", FAINT),
    ):
        done += count
        cells = round(done * width / total) - used
        parts.append((glyph * cells, style(color)))
        used += cells
    return parts


def _needed(request: RequestView) -> int:
    """Tokens whose KV its output has taken so far, or the rest of its prompt will take."""
    return request.num_prompt_tokens + max(0, request.num_output_tokens - 1)
