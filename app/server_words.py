"""What a poll of a server told, in plain words, and what it did not tell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from app.palette import BRIGHT, CACHED, DECODE, DIM, PREEMPTED, TEXT, WAITING, style
from app.panels.panel import Part
from app.server_view import token_rates
from app.text import printable
from app.view import EngineView
from app.words import letters, plural
from engine.poll import Poll, Rank
from engine.trace import StepTrace

NOT_TOLD = "not available from this server"
COUNTED_LATE = "counted when the one that was thrown out runs again"


def told(trace: StepTrace, poll: Poll, view: EngineView) -> list[list[Part]]:
    """A sentence for each thing that the server told, and one for all that it did not."""
    if poll.problem:
        return [[(printable(poll.problem), style(PREEMPTED, bold=True))]]
    sentences = [sentence for sentence in (_load(trace, poll), _work(poll), _cache(poll)) if sentence]
    if poll.num_preemptions:
        count = plural(poll.num_preemptions, "preemption")
        sentences.append([(f"{count}; ", style(PREEMPTED)), (COUNTED_LATE, style(DIM))])
    if poll.finished:
        sentences.append([(f"{poll.finished.total():,} ended: {listed(poll.finished)}", style(TEXT))])
    if len(poll.ranks) > 1:
        sentences += [_rank(rank, poll) for rank in poll.ranks]
    sentences += _own(trace, view)
    if missing := list(_missing(poll)):
        sentences.append([(f"{NOT_TOLD}: {', '.join(missing)}", style(DIM))])
    return sentences


def listed(counts: Mapping[str, int]) -> str:
    """Counts by what they count, the highest first."""
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    return ", ".join(f"{count:,} {printable(name)}" for name, count in ordered if count)


def percent(share: float) -> str:
    """100 % only if it is all, 0 % only if it is nothing."""
    if 0 < share < 0.01:
        return "<1%"
    return ">99%" if 0.99 < share < 1 else f"{share:.0%}"


def _load(trace: StepTrace, poll: Poll) -> list[Part]:
    if poll.num_running is None:
        return []
    seats = f" of {trace.config.max_num_seqs * len(poll.ranks)} seats" if poll.tells("max_num_seqs") else ""
    parts: list[Part] = [(f"{poll.num_running:,} run{seats}", style(BRIGHT))]
    if poll.num_waiting is not None:
        parts.append((f", {poll.num_waiting:,} wait", style(WAITING if poll.num_waiting else TEXT)))
    if reasons := listed(poll.waiting_by_reason):
        parts.append((f" ({reasons})", style(DIM)))
    return parts


def _work(poll: Poll) -> list[Part]:
    if not poll.interval:
        return [("what it counts is known from the next poll on", style(DIM))]
    rates = token_rates(poll)
    if rates.unit == "second":
        return [(f"{rates.decode:.1f} output tokens a second, {rates.prefill:.1f} of prompts", style(DECODE))]
    iterations = f"{plural(poll.num_iterations or 0, 'iteration')} in {poll.interval:.2f} s"
    if not poll.num_iterations:
        return [(iterations, style(TEXT))]
    each = f", {rates.computed:.1f} tokens each: {rates.decode:.1f} of outputs, {rates.prefill:.1f} of prompts"
    return [(iterations, style(TEXT)), (each, style(DECODE))]


def _cache(poll: Poll) -> list[Part]:
    queried, hits = poll.num_queried_tokens, poll.num_hit_tokens
    if not queried or hits is None:
        return []
    return [(f"prefix cache: {hits:,} of {queried:,} tokens found, {percent(hits / queried)}", style(CACHED))]


def _rank(rank: Rank, poll: Poll) -> list[Part]:
    facts = []
    if rank.num_running is not None:
        facts.append(f"{rank.num_running:,} run")
    if rank.num_waiting is not None:
        facts.append(f"{rank.num_waiting:,} wait")
    if rank.kv_usage is not None:
        facts.append(f"KV {percent(rank.kv_usage)}")
    if rank.num_generation_tokens is not None and poll.interval:
        facts.append(f"{rank.num_generation_tokens / poll.interval:.0f} tok/s")
    return [(f"rank {printable(rank.name)}: ", style(DIM)), (", ".join(facts), style(TEXT))]


def _own(trace: StepTrace, view: EngineView) -> Iterator[list[Part]]:
    served = list(dict.fromkeys(output.request_id for output in trace.outputs))
    if served:
        count = sum(output.num_tokens for output in trace.outputs)
        yield [*letters(served, view), (f"got {plural(count, 'token')}", style(DECODE))]
    if trace.waiting:
        yield [*letters(list(trace.waiting), view), ("no token yet: waits, or its prompt is computed", style(WAITING))]


def _missing(poll: Poll) -> Iterator[str]:
    """What this server does not tell, of what others do."""
    if poll.num_running is None:
        yield "how many run"
    if poll.num_waiting is None:
        yield "how many wait"
    if poll.kv_usage is None:
        yield "KV use"
    if not poll.interval:
        return
    counts = {
        "iterations": poll.num_iterations,
        "prefix hits": poll.num_hit_tokens,
        "preemptions": poll.num_preemptions,
        "finish reasons": poll.finished,
    }
    yield from (name for name, count in counts.items() if count is None)
