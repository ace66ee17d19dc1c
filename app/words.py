"""The decision of a step in plain words, made from the reasons in its trace and nothing else."""

from __future__ import annotations

from rich.cells import cell_len

from app.palette import (
    BRIGHT,
    CACHED,
    DECODE,
    DIM,
    PREEMPTED,
    PREFILL,
    RECOMPUTE,
    TEXT,
    WAITING,
    owner_letter,
    style,
)
from app.panels.panel import Part
from app.text import fit, printable
from app.view import EngineView, EventView, letter
from engine.config import EngineConfig
from engine.trace import Blocked, Finished, Preemption, PreemptionCause, Scheduled, StepTrace, UnservedReason

Sentence = list[Part]

UNSERVED: dict[UnservedReason, str] = {
    "budget": "the budget is spent",
    "prefill": "prefills go first",
    "preemption": "one before them preempted itself, which ends the pass",
}
FEWER: dict[PreemptionCause, str] = {"seats": "fewer seats", "pool": "fewer blocks"}
VICTIMS = {
    **dict.fromkeys(("fcfs", "sarathi", "prefill_first", "static", "orca"), "was admitted last"),
    "priority": "is the least urgent, of equals the last to come",
    "sglang": "has the fewest output tokens",
    "sglang_lpm": "has the fewest output tokens",
}
"""Why it is this one who has to go, by policy. Of a policy that somebody wrote, nothing is known."""


def explain(trace: StepTrace, view: EngineView) -> list[Sentence]:
    """Who got what and why, who was thrown out for whom, who got nothing, and what the head of the queue waits for."""
    sentences = [preempted(preemption, view, trace.config.policy) for preemption in trace.preemptions]
    decodes = [item.request_id for item in trace.scheduled if item.kind == "decode" and not item.admitted]
    if decodes:
        what = "decodes 1 token" if len(decodes) == 1 else "decode, 1 token each"
        sentences.append([*letters(decodes, view), (what, style(DECODE))])
    sentences += [progressed(item, view) for item in trace.scheduled if item.request_id not in decodes]
    for unserved in trace.unserved:
        why = UNSERVED[unserved.reason]
        sentences.append([*letters(list(unserved.request_ids), view), (f"got nothing: {why}", style(WAITING))])
    if trace.blocked:
        sentence = letters([trace.blocked.request_id], view)
        sentence.append((waits(trace.blocked, trace.config), style(WAITING)))
        if trace.num_waiting > 1:
            sentence.append((f"; {trace.num_waiting - 1:,} more behind it", style(TEXT)))
        sentences.append(sentence)
    for finished in trace.finished:
        if blocks := given_back(finished.request_id, trace):
            sentence = letters([finished.request_id], view)
            sentence.append((f"has ended and gives back {plural(blocks, 'block')}", style(TEXT)))
            sentences.append(sentence)
    if trace.new_token_ratio is not None:
        expected = f"{trace.new_token_ratio:.0%} of the output that is still allowed is expected to come"
        sentences.append([(expected, style(DIM))])
    return sentences or [[("nothing to compute", style(DIM))]]


def given_back(request_id: str, trace: StepTrace) -> int:
    """Blocks that a request let go of at the end of this step."""
    released = [op.blocks for op in trace.blocks if op.op == "release" and op.request_id == request_id]
    return len(released[-1]) if released else 0


def letters(request_ids: list[str], view: EngineView) -> Sentence:
    """Letters of requests in their colours, each with a space behind it."""
    parts: Sentence = []
    for request_id in request_ids:
        request = view.requests.get(request_id)
        look = owner_letter(request.number) if request else style(DIM)
        parts.append((f"{view.letter(request_id)} ", look))
    return parts


def letter_of(number: int | None) -> Sentence:
    """The letter of the request before which so many arrived, in its colour, with a space behind it."""
    return [("? ", style(DIM))] if number is None else [(f"{letter(number)} ", owner_letter(number))]


def progressed(item: Scheduled, view: EngineView) -> Sentence:
    """One request's share of the step: how much, and why not more."""
    look = style({"recompute": RECOMPUTE, "prefill": PREFILL}.get(item.kind, DECODE))
    sentence = letters([item.request_id], view)
    # What a recompute goes beyond the tokens that were lost is new, and counted as prefill everywhere.
    num_new = item.num_tokens - item.num_recomputed_tokens if item.kind == "recompute" else 0
    if item.admitted:
        sentence.append(("comes back: " if item.kind == "recompute" else "is admitted: ", style(TEXT)))
    amount = plural(item.num_tokens - num_new, "token" if item.kind != "recompute" else "lost token")
    sentence.append((f"{item.kind}s {amount}" + (f" and {num_new} new" if num_new else ""), look))
    sentence.append((f", {_limit(item)}", style(TEXT)))
    if item.chunk:
        sentence.append((f"; chunk {item.chunk}, {item.end} of {item.target}", look))
    if item.num_cached_tokens:
        sentence.append((f"; {item.num_cached_tokens} came from the prefix cache", style(CACHED)))
    return sentence


def _limit(item: Scheduled) -> str:
    """Why it is so many tokens and not more."""
    if item.cut_by == "budget":
        return "all that the budget has left"
    if item.cut_by == "threshold":
        return "the most that the threshold allows"
    if item.kind != "prefill":
        return "all that it lacks"
    return "the rest of its prompt" if item.start else "its whole prompt"


def preempted(preemption: Preemption, view: EngineView, policy: str = "") -> Sentence:
    """Who was thrown out, for whom, why it was this one, and what it costs."""
    sentence: Sentence = [("× ", style(PREEMPTED, bold=True)), *letters([preemption.request_id], view)]
    needs = f"needs {plural(preemption.num_needed_blocks, 'block')}, {preemption.num_free_blocks} free"
    if preemption.cause != "blocks":
        sentence.append((f"preempted: there are {FEWER[preemption.cause]} now", style(PREEMPTED)))
    elif preemption.request_id == preemption.for_request_id:
        sentence.append((f"preempts itself: it {needs}", style(PREEMPTED)))
    else:
        sentence.append(("preempted for ", style(PREEMPTED)))
        sentence += letters([preemption.for_request_id], view)
        sentence.append((f"which {needs}", style(PREEMPTED)))
    if policy in VICTIMS:
        sentence += [("; ", style(TEXT)), *letters([preemption.request_id], view), (VICTIMS[policy], style(TEXT))]
    freed = plural(preemption.num_freed_blocks, "block")
    sentence.append((f"; frees {freed}, up to {plural(preemption.num_lost_tokens, 'token')} to redo", style(TEXT)))
    if preemption.num_returned_tokens:
        returned = plural(preemption.num_returned_tokens, "token")
        sentence.append((f"; {returned} of this step go back to the budget", style(TEXT)))
    return sentence


def waits(blocked: Blocked, config: EngineConfig) -> str:
    """What the head of the queue waits for, as the end of a sentence that begins with its letter."""
    match blocked.reason:
        case "seats":
            return f"waits: all {config.max_num_seqs} seats are taken"
        case "budget":
            return f"waits: the budget of {config.max_num_batched_tokens} is spent"
        case "preemption":
            return "waits: somebody was preempted in this step"
        case "chunking":
            left = f"{blocked.available} left in the budget"
            return f"waits: {blocked.needed} tokens at once, {left} (prompts are not cut)"
        case "blocks":
            kept = f", {blocked.kept} of them kept by the watermark" if blocked.kept else ""
            return f"waits: needs {plural(blocked.needed, 'block')}, {blocked.available} were free{kept}"
        case "reserved":
            needs = f"needs {plural(blocked.needed, 'block')} at most"
            return f"waits: {needs}, {blocked.available} were free, {blocked.kept} of them reserved"
        case "room":
            needs = f"may need {plural(blocked.needed, 'token')} of KV"
            left = f"{max(0, blocked.available)} are left"
            return f"waits: {needs}, {left} beside what the others are expected to need"
        case "full":
            return "waits: no room before, and nobody has left"
        case "batch":
            return "waits for the next batch"


def happened(event: EventView, width: int) -> Sentence:
    """An event in one line of at most `width` cells, its sign first. What matters least goes if room is short."""
    match event.kind:
        case "preempted":
            if event.preemption is None:
                texts = [f"{plural(event.count, 'preemption')}; of whom is not told", plural(event.count, "preemption")]
                return [("× ", style(PREEMPTED, bold=True)), _longest(texts, width - 2)]
            return _was_preempted(event, event.preemption, width)
        case "server":
            look = style(PREEMPTED if event.is_trouble else DECODE, bold=True)
            return [
                ("✗ " if event.is_trouble else "↺ ", look),
                (fit(printable(event.told), width - 2).rstrip(), style(TEXT)),
            ]
        case "first token":
            return [("▸ ", style(DECODE)), *letter_of(event.number), ("first token", style(DIM))]
        case "resumed":
            redo, cached = event.num_redo_tokens, event.num_cached_tokens
            texts = [f"is back · {plural(redo, 'token')} to redo", f"is back · {redo:,} to redo", "is back"]
            if cached:
                texts.insert(0, f"is back · {redo:,} to redo, {cached:,} cached")
            return [("↺ ", style(RECOMPUTE, bold=True)), *letter_of(event.number), _longest(texts, width - 4)]
        case "finished" | "aborted":
            assert event.finished is not None
            sign: Part = ("✓ ", style(DECODE)) if event.kind == "finished" else ("■ ", style(PREEMPTED))
            texts = [ended(event.finished), f"done: {event.finished.num_output_tokens:,}, {event.finished.reason}"]
            return [sign, *letter_of(event.number), _longest(texts, width - 4)]
        case "changed":
            assert event.change is not None
            old, new = printable(value(event.change.old)), printable(value(event.change.new))
            name, room = event.change.name, width - cell_len(f"±  {old} → {new}")
            name = name if len(name) <= room else f"{name[: max(1, room - 1)]}…"
            values: Sentence = [(f"{old} → ", style(DIM)), (new, style(BRIGHT, bold=True))]
            return [("± ", style(WAITING, bold=True)), (f"{name} ", style(TEXT)), *values]


def _was_preempted(event: EventView, preemption: Preemption, width: int) -> Sentence:
    line: Sentence = [("× ", style(PREEMPTED, bold=True)), *letter_of(event.number)]
    if preemption.cause != "blocks":
        line.append((f"preempted, {FEWER[preemption.cause]}", style(TEXT)))
    elif preemption.for_request_id == preemption.request_id:
        line.append(("preempted itself", style(TEXT)))
    else:
        line += [("preempted for ", style(TEXT)), *letter_of(event.for_number)]
    used = sum(cell_len(text) for text, _ in line)
    gap = "" if line[-1][0].endswith(" ") else " "
    lost = preemption.num_lost_tokens
    most = f"up to {lost:,}"
    costs = (f"{gap}· costs up to {plural(lost, 'token')}", f"{gap}· costs {most}", f"{gap}· {most}")
    return [*line, (next((cost for cost in costs if used + cell_len(cost) <= width), ""), style(DIM))]


def _longest(texts: list[str], width: int) -> Part:
    """The first of these that fits, or the last."""
    return (next((text for text in texts if len(text) <= width), texts[-1]), style(TEXT))


def value(parameter: int | float | str) -> str:
    """A parameter's value as people write it."""
    if isinstance(parameter, bool):
        return "on" if parameter else "off"
    return f"{parameter:g}" if isinstance(parameter, float) else str(parameter)


def ended(finished: Finished) -> str:
    """How a request ended."""
    tokens = plural(finished.num_output_tokens, "token")
    if finished.reason == "abort":
        return f"aborted after {tokens}"
    if finished.reason == "error":
        return f"ended after {tokens}: {printable(finished.told) or 'the KV pool is too small for it'}"
    return f"done: {tokens}, {finished.reason}"


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def short(count: int) -> str:
    """A count in four characters at most, up to a thousand million."""
    if count >= 999_500:
        return f"{count / 1_000_000:.0f}M"
    return str(count) if count < 10_000 else f"{count / 1000:.0f}k"
