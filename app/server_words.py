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
    if len(poll.engines) > 1:
        sentences += [_rank(rank) for rank in poll.engines]
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
    seats = f" of {trace.config.max_num_seqs * len(poll.engines)} seats" if poll.tells("max_num_seqs") else ""
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
    kinds = ((rates.decode, "outputs"), (rates.prefill, "prompts"))
    told = ", ".join(f"{rate:.1f} of {name}" for rate, name in kinds if rate is not None)
    if rates.unit == "second":
        return [(f"tokens a second: {told}", style(DECODE))] if told else []
    iterations = f"{plural(poll.num_iterations or 0, 'iteration')} in {poll.interval:.2f} s"
    if not poll.num_iterations:
        return [(iterations, style(TEXT))]
    each = f", {rates.computed:.1f} tokens each: {told}" if told else ""
    return [(iterations, style(TEXT)), (each, style(DECODE))]


def _cache(poll: Poll) -> list[Part]:
    queried, hits = poll.num_queried_tokens, poll.num_hit_tokens
    if not queried or hits is None:
        return []
    return [(f"prefix cache: {hits:,} of {queried:,} tokens found, {percent(hits / queried)}", style(CACHED))]


def _rank(rank: Rank) -> list[Part]:
    told = {
        "run": rank.num_running,
        "wait": rank.num_waiting,
        "iterations": rank.num_iterations,
        "tokens of outputs": rank.num_generation_tokens,
        "of prompts": rank.num_prompt_tokens,
        "cached": rank.num_cached_tokens,
        "preempted": rank.num_preemptions,
        "ended": None if rank.finished is None else sum(rank.finished.values()),
    }
    facts = [f"{count:,} {name}" for name, count in told.items() if count is not None]
    if rank.kv_usage is not None:
        facts.insert(2, f"KV {percent(rank.kv_usage)}")
    for name, histogram in (("TTFT", rank.latencies.get("ttft")), ("ITL", rank.latencies.get("itl"))):
        if histogram and histogram.mean is not None:
            facts.append(f"mean {name} {histogram.mean * 1000:.0f} ms")
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
        "output tokens": poll.num_generation_tokens,
        "prompt tokens": poll.num_prompt_tokens,
        "prefix hits": poll.num_hit_tokens,
        "preemptions": poll.num_preemptions,
        "finish reasons": poll.finished,
    }
    yield from (name for name, count in counts.items() if count is None)
