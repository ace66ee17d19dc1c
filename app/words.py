"""The decision of a step in plain words, made from the reasons in its trace and nothing else."""

from __future__ import annotations

from app.palette import CACHED, DECODE, DIM, PREEMPTED, PREFILL, RECOMPUTE, TEXT, WAITING, owner_letter, style
from app.panels.panel import Part
from app.view import EngineView
from engine.config import EngineConfig
from engine.trace import Blocked, Finished, Preemption, PreemptionCause, Scheduled, StepTrace, UnservedReason

Sentence = list[Part]

UNSERVED: dict[UnservedReason, str] = {
    "budget": "the budget is spent",
    "prefill": "prefills go first",
    "preemption": "one before them preempted itself, which ends the pass",
}
FEWER: dict[PreemptionCause, str] = {"seats": "fewer seats", "pool": "fewer blocks"}


def explain(trace: StepTrace, view: EngineView) -> list[Sentence]:
    """Who got what and why, who was thrown out for whom, who got nothing, and what the head of the queue waits for."""
    if not trace.scheduled and not trace.preemptions:
        return [[("nothing to compute", style(DIM))]]
    sentences = [preempted(preemption, view) for preemption in trace.preemptions]
    decodes = [item.request_id for item in trace.scheduled if item.kind == "decode"]
    if decodes:
        sentences.append([*letters(decodes, view), ("decode, 1 token each", style(DECODE))])
    sentences += [progressed(item, view) for item in trace.scheduled if item.kind != "decode"]
    for unserved in trace.unserved:
        why = UNSERVED[unserved.reason]
        sentences.append([*letters(list(unserved.request_ids), view), (f"got nothing: {why}", style(WAITING))])
    if trace.blocked:
        sentences.append(
            [*letters([trace.blocked.request_id], view), (waits(trace.blocked, trace.config), style(WAITING))]
        )
    if trace.new_token_ratio is not None:
        expected = f"{trace.new_token_ratio:.0%} of what is left of max_tokens is expected to be used"
        sentences.append([(expected, style(DIM))])
    return sentences


def letters(request_ids: list[str], view: EngineView) -> Sentence:
    """Letters of requests in their colours, each with a space behind it."""
    parts: Sentence = []
    for request_id in request_ids:
        request = view.requests.get(request_id)
        look = owner_letter(request.number) if request else style(DIM)
        parts.append((f"{view.letter(request_id)} ", look))
    return parts


def progressed(item: Scheduled, view: EngineView) -> Sentence:
    """One request's piece of prefill or recompute."""
    color = RECOMPUTE if item.kind == "recompute" else PREFILL
    verb = "recomputes" if item.kind == "recompute" else "prefills"
    sentence = letters([item.request_id], view)
    # What a recompute goes beyond the tokens that were lost is new, and counted as prefill everywhere.
    num_new = item.num_tokens - item.num_recomputed_tokens if item.kind == "recompute" else 0
    amount = f"{verb} {plural(item.num_tokens - num_new, 'token')}"
    if num_new:
        amount += f" and {num_new} new"
    if item.chunk:
        amount += f", chunk {item.chunk}: {item.end} of {item.target}"
    sentence.append((amount, style(color)))
    if item.cut_by:
        because = "the budget ends here" if item.cut_by == "budget" else "the threshold cuts it"
        sentence.append((f"; {because}", style(TEXT)))
    if item.num_cached_tokens:
        sentence.append((f"; {item.num_cached_tokens} from the prefix cache", style(CACHED)))
    return sentence


def preempted(preemption: Preemption, view: EngineView) -> Sentence:
    """Who was thrown out, for whom, and what it costs."""
    sentence: Sentence = [("× ", style(PREEMPTED, bold=True)), *letters([preemption.request_id], view)]
    needed = plural(preemption.num_needed_blocks, "block")
    if preemption.cause != "blocks":
        sentence.append((f"preempted: there are {FEWER[preemption.cause]} now", style(PREEMPTED)))
    elif preemption.request_id == preemption.for_request_id:
        sentence.append((f"preempts itself: it needs {needed}, ", style(PREEMPTED)))
        sentence.append((f"{preemption.num_free_blocks} free, nobody else has to go first", style(PREEMPTED)))
    else:
        sentence.append(("preempted for ", style(PREEMPTED)))
        sentence += letters([preemption.for_request_id], view)
        sentence.append((f"which needs {needed}, {preemption.num_free_blocks} free", style(PREEMPTED)))
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


def ended(finished: Finished) -> str:
    """How a request ended."""
    tokens = plural(finished.num_output_tokens, "token")
    if finished.reason == "abort":
        return f"aborted after {tokens}"
    if finished.reason == "error":
        return f"ended after {tokens}: the KV pool is too small for it"
    return f"done: {tokens}, {finished.reason}"


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
