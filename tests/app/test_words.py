"""The decision in words: every number of the trace that matters is in its sentence, and nobody is left out."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from app.view import Change, EngineView, EventKind, EventView
from app.words import (
    VICTIMS,
    Sentence,
    ended,
    explain,
    given_back,
    happened,
    letters,
    plural,
    preempted,
    progressed,
    waits,
)
from engine.config import EngineConfig
from engine.policy import POLICIES
from engine.trace import (
    Arrival,
    Blocked,
    Finished,
    Preemption,
    PreemptionCause,
    Scheduled,
    StepTrace,
    Unserved,
    UnservedReason,
)
from tests.app.support import SCENARIOS, repeatable, scenario, text_of, view_of

CONFIG = EngineConfig(max_num_seqs=7, max_num_batched_tokens=93)


def numbers_in(text: str) -> list[int]:
    return [int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*", text)]


def small_view(num_requests: int = 4) -> EngineView:
    """Requests "1" to "4", with the letters a to d, and nothing else."""
    arrivals = tuple(Arrival(str(i + 1), "short", "p", 3, 4, 0.0) for i in range(num_requests))
    return view_of([StepTrace(step=0, started=0.0, config=CONFIG, arrivals=arrivals, num_free_blocks=9)])


def words(trace: StepTrace, view: EngineView) -> str:
    return "\n".join(map(text_of, explain(trace, view)))


def named(*sentences: Sentence) -> set[str]:
    """The letters of requests: each is a part of its own, which the article "a" is not."""
    return {text.strip() for sentence in sentences for text, _ in sentence if len(text.strip()) == 1} - {"×", ";"}


@pytest.mark.parametrize("name", SCENARIOS)
def test_everybody_in_a_step_is_named(name: str) -> None:
    view = EngineView()
    for trace in scenario(name):
        view.apply(trace)
        ids = [item.request_id for item in trace.scheduled]
        ids += [preemption.request_id for preemption in trace.preemptions]
        ids += [preemption.for_request_id for preemption in trace.preemptions]
        ids += [trace.blocked.request_id] if trace.blocked else []
        ids += [finished.request_id for finished in trace.finished if given_back(finished.request_id, trace)]
        assert named(*explain(trace, view)) == set(map(view.letter, ids))


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_number_comes_from_the_trace(name: str) -> None:
    """What is said in figures is a field of the trace: nothing is made up, nothing is an estimate."""
    view = EngineView()
    for trace in scenario(name):
        view.apply(trace)
        known = {1, trace.config.max_num_seqs, trace.config.max_num_batched_tokens}
        parts: list[msgspec.Struct] = [
            *trace.scheduled,
            *trace.preemptions,
            *([trace.blocked] if trace.blocked else []),
        ]
        for part in parts:
            known |= {value for value in msgspec.structs.astuple(part) if isinstance(value, int)}
        known |= {item.end for item in trace.scheduled} | {trace.num_waiting - 1}
        known |= {len(op.blocks) for op in trace.blocks if op.op == "release"}
        assert set(numbers_in(words(trace, view))) <= known


def test_nothing_to_compute() -> None:
    trace = StepTrace(step=3, started=0.0, config=CONFIG, num_free_blocks=9)
    (line,) = explain(trace, small_view())
    assert "nothing" in text_of(line)


def test_a_decode_alone_is_singular() -> None:
    trace = StepTrace(
        step=1, started=0.0, config=CONFIG, scheduled=(Scheduled("2", "decode", 10, 1, 11),), num_free_blocks=9
    )
    assert words(trace, small_view()) == "b decodes 1 token"


def test_decodes_share_one_sentence() -> None:
    view = small_view()
    items = tuple(Scheduled(str(i), "decode", 10, 1, 11) for i in (1, 2, 4))
    trace = StepTrace(step=1, started=0.0, config=CONFIG, scheduled=items, running=("1", "2", "4"), num_free_blocks=9)
    (line,) = explain(trace, view)
    assert text_of(line).startswith("a b d ") and "decode" in text_of(line)
    assert numbers_in(text_of(line)) == [1]


@pytest.mark.parametrize(
    ("item", "numbers", "has"),
    [
        (Scheduled("1", "prefill", 0, 45, 45, admitted=True), [45], "tokens"),
        (Scheduled("1", "prefill", 0, 1, 1, admitted=True), [1], "1 token"),
        (Scheduled("2", "prefill", 60, 40, 786, chunk=3, cut_by="budget"), [40, 3, 100, 786], "budget"),
        (Scheduled("2", "prefill", 60, 40, 786, chunk=3, cut_by="threshold"), [40, 3, 100, 786], "threshold"),
        (Scheduled("2", "prefill", 760, 26, 786, chunk=9), [26, 9, 786, 786], "prefill"),
        (Scheduled("3", "prefill", 48, 12, 60, admitted=True, num_cached_tokens=48), [12, 48], "cache"),
        (Scheduled("3", "recompute", 0, 31, 31, admitted=True, num_recomputed_tokens=30), [30, 1], "recompute"),
    ],
)
def test_progress_says_how_much_and_why_not_more(item: Scheduled, numbers: list[int], has: str) -> None:
    text = text_of(progressed(item, small_view()))
    assert text.startswith({"1": "a ", "2": "b ", "3": "c "}[item.request_id])
    assert numbers_in(text) == numbers
    assert has in text
    assert ("budget" in text, "threshold" in text) == (item.cut_by == "budget", item.cut_by == "threshold")


def test_preempted_says_for_whom_and_what_it_costs() -> None:
    sentence = preempted(Preemption("3", "1", 2, 0, 5, 37), small_view())
    text = text_of(sentence)
    assert [part.strip() for part, _ in sentence if len(part.strip()) == 1] == ["×", "c", "a"]
    assert numbers_in(text) == [2, 0, 5, 37]
    assert "2 blocks" in text and "5 blocks" in text and "37 tokens" in text


def test_preempted_by_itself_says_so() -> None:
    sentence = preempted(Preemption("2", "2", 3, 1, 4, 1), small_view())
    text = text_of(sentence)
    assert named(sentence) == {"b"} and "itself" in text
    assert numbers_in(text) == [3, 1, 4, 1]


def test_preempted_says_what_goes_back_to_the_budget() -> None:
    text = text_of(preempted(Preemption("3", "1", 2, 0, 5, 37, num_returned_tokens=4), small_view()))
    assert numbers_in(text) == [2, 0, 5, 37, 4] and "budget" in text


@pytest.mark.parametrize(
    ("policy", "because"),
    [("fcfs", "c was admitted last"), ("priority", "c is the least urgent"), ("sglang", "c has the fewest output")],
)
@pytest.mark.parametrize("asker", ["1", "3"])
def test_preempted_says_why_it_is_this_one(policy: str, because: str, asker: str) -> None:
    assert because in text_of(preempted(Preemption("3", asker, 2, 0, 5, 37), small_view(), policy))


def test_of_a_policy_that_somebody_wrote_no_reason_is_made_up() -> None:
    preemption = Preemption("3", "1", 2, 0, 5, 37)
    assert preempted(preemption, small_view(), "shortest_first") == preempted(preemption, small_view())


def test_every_policy_says_who_has_to_go() -> None:
    assert VICTIMS.keys() == POLICIES.keys()


def test_it_is_true_that_who_was_preempted_was_admitted_last() -> None:
    admitted: list[str] = []
    num_preemptions = 0
    for trace in scenario("preempting"):
        for preemption in trace.preemptions:
            assert admitted.pop() == preemption.request_id
            num_preemptions += 1
        admitted += [item.request_id for item in trace.scheduled if item.admitted]
        for finished in trace.finished:
            admitted.remove(finished.request_id)
    assert num_preemptions


@pytest.mark.parametrize(
    ("item", "has"),
    [
        (Scheduled("1", "prefill", 0, 45, 45, admitted=True), "a is admitted: prefills 45 tokens, its whole prompt"),
        (Scheduled("1", "prefill", 40, 5, 45, chunk=2), "a prefills 5 tokens, the rest of its prompt; chunk 2, 45 of"),
        (Scheduled("1", "decode", 48, 1, 49, True, 48), "a is admitted: decodes 1 token, all that it lacks; 48 came"),
        (Scheduled("1", "recompute", 0, 31, 31, True, 0, 30), "a comes back: recomputes 30 lost tokens and 1 new, all"),
        (
            Scheduled("1", "prefill", 8, 40, 99, chunk=2, cut_by="budget"),
            "a prefills 40 tokens, all that the budget has left; chunk 2, 48 of 99",
        ),
    ],
)
def test_progress_reads_as_a_sentence(item: Scheduled, has: str) -> None:
    assert text_of(progressed(item, small_view())).startswith(has)


def test_an_admission_that_the_cache_pays_for_is_not_lost_among_the_decodes() -> None:
    items = (Scheduled("1", "decode", 10, 1, 11), Scheduled("2", "decode", 48, 1, 49, True, 48))
    trace = StepTrace(step=1, started=0.0, config=CONFIG, scheduled=items, num_free_blocks=9)
    decoding, admitted = explain(trace, small_view())
    assert named(decoding) == {"a"} and named(admitted) == {"b"}
    assert "48 came from the prefix cache" in text_of(admitted)


def test_how_many_wait_behind_the_head_of_the_queue() -> None:
    trace = StepTrace(
        step=1, started=0.0, config=CONFIG, blocked=Blocked("2", "seats"), num_waiting=1_234, num_free_blocks=9
    )
    assert words(trace, small_view()).endswith("; 1,233 more behind it")
    assert "behind" not in words(msgspec.structs.replace(trace, num_waiting=1), small_view())


def an_event(kind: EventKind, **about: Any) -> EventView:
    return EventView(7, kind, "3", number=2, **about)


LOST = Preemption("3", "1", 2, 0, 5, 1_500)


@pytest.mark.parametrize(
    ("event", "width", "text"),
    [
        (an_event("first token"), 30, "▸ c first token"),
        (an_event("finished", finished=Finished("3", "stop", 12)), 40, "✓ c done: 12 tokens, stop"),
        (an_event("finished", finished=Finished("3", "length", 1_200)), 24, "✓ c done: 1,200, length"),
        (an_event("aborted", finished=Finished("3", "abort", 2)), 40, "■ c aborted after 2 tokens"),
        (an_event("resumed", num_redo_tokens=64, num_cached_tokens=432), 40, "↺ c is back · 64 to redo, 432 cached"),
        (an_event("resumed", num_redo_tokens=64, num_cached_tokens=432), 34, "↺ c is back · 64 tokens to redo"),
        (an_event("resumed", num_redo_tokens=1), 34, "↺ c is back · 1 token to redo"),
        (an_event("resumed", num_redo_tokens=64), 12, "↺ c is back"),
        (an_event("preempted", preemption=LOST, for_number=0), 60, "× c preempted for a · costs up to 1,500 tokens"),
        (an_event("preempted", preemption=LOST, for_number=0), 40, "× c preempted for a · costs up to 1,500"),
        (an_event("preempted", preemption=LOST, for_number=0), 33, "× c preempted for a · up to 1,500"),
        (an_event("preempted", preemption=LOST, for_number=0), 20, "× c preempted for a "),
        (an_event("preempted", preemption=LOST), 34, "× c preempted for ? · up to 1,500"),
        (
            an_event("preempted", preemption=Preemption("3", "3", 2, 0, 5, 1), for_number=2),
            60,
            "× c preempted itself · costs up to 1 token",
        ),
        (
            an_event("preempted", preemption=Preemption("3", "", 0, 0, 5, 9, cause="seats")),
            60,
            "× c preempted, fewer seats · costs up to 9 tokens",
        ),
        (
            EventView(7, "changed", change=Change("max_num_batched_tokens", 128, 64)),
            60,
            "± max_num_batched_tokens 128 → 64",
        ),
        (EventView(7, "changed", change=Change("max_num_batched_tokens", 128, 64)), 26, "± max_num_batche… 128 → 64"),
        (EventView(7, "changed", change=Change("watermark", 0.0, 0.05)), 40, "± watermark 0 → 0.05"),
        (EventView(7, "changed", change=Change("mixed_chunk", False, True)), 40, "± mixed_chunk off → on"),
        (EventView(7, "changed", change=Change("policy", "fcfs", "[31m")), 40, "± policy fcfs → ␛[31m"),
    ],
)
def test_what_happened_fits_into_a_line(event: EventView, width: int, text: str) -> None:
    assert text_of(happened(event, width)) == text
    assert cell_len(text) <= width


@pytest.mark.parametrize(("cause", "has"), [("seats", "fewer seats"), ("pool", "fewer blocks")])
def test_preempted_by_a_change_of_parameters(cause: PreemptionCause, has: str) -> None:
    sentence = preempted(Preemption("3", "", 0, 0, 5, 37, cause=cause), small_view())
    assert named(sentence) == {"c"} and has in text_of(sentence)
    assert numbers_in(text_of(sentence)) == [5, 37]


def test_one_of_a_thing_is_singular() -> None:
    text = text_of(preempted(Preemption("2", "1", 1, 0, 1, 1), small_view()))
    assert "1 blocks" not in text and "1 tokens" not in text
    assert text.count("1 block") == 2 and "1 token" in text


@pytest.mark.parametrize(
    ("blocked", "numbers", "has"),
    [
        (Blocked("1", "seats"), [7], "seats"),
        (Blocked("1", "budget"), [93], "budget"),
        (Blocked("1", "preemption"), [], "preempt"),
        (Blocked("1", "chunking", needed=40, available=24), [40, 24], "not cut"),
        (Blocked("1", "blocks", needed=5, available=3), [5, 3], "5 blocks"),
        (Blocked("1", "blocks", needed=1, available=0), [1, 0], "1 block,"),
        (Blocked("1", "blocks", needed=5, available=6, kept=2), [5, 6, 2], "watermark"),
        (Blocked("1", "reserved", needed=5, available=6, kept=2), [5, 6, 2], "reserved"),
        (Blocked("1", "room", needed=120, available=96), [120, 96], "120 tokens"),
        (Blocked("1", "full"), [], "nobody has left"),
        (Blocked("1", "batch"), [], "batch"),
    ],
)
def test_waits_says_what_is_missing(blocked: Blocked, numbers: list[int], has: str) -> None:
    text = waits(blocked, CONFIG)
    assert "wait" in text and has in text
    assert numbers_in(text) == numbers


def test_blocked_with_a_watermark_reads_as_a_reason() -> None:
    """Needs 1 and 1 is free is no reason, unless one has to stay free: every block reason shows needed > left."""
    text = waits(Blocked("1", "blocks", needed=1, available=1, kept=1), CONFIG)
    assert numbers_in(text) == [1, 1, 1]
    assert "1 of them" in text


@pytest.mark.parametrize(
    ("finished", "numbers", "has"),
    [
        (Finished("1", "stop", 12), [12], "stop"),
        (Finished("1", "length", 60), [60], "length"),
        (Finished("1", "abort", 0), [0], "0 tokens"),
        (Finished("1", "abort", 1), [1], "1 token"),
        (Finished("1", "stop", 1234), [1234], "1,234 tokens"),
        (Finished("1", "error", 3), [3], "too small"),
    ],
)
def test_ended_says_how(finished: Finished, numbers: list[int], has: str) -> None:
    text = ended(finished)
    assert has in text and numbers_in(text) == numbers
    assert ("abort" in text) == (finished.reason == "abort")
    assert "1 tokens" not in text


@pytest.mark.parametrize(("reason", "has"), [("budget", "spent"), ("prefill", "prefill"), ("preemption", "itself")])
def test_the_starved_are_named(reason: UnservedReason, has: str) -> None:
    """A running request without a share: it must not look as if nothing was wrong."""
    trace = StepTrace(
        step=1,
        started=0.0,
        config=CONFIG,
        scheduled=(Scheduled("1", "decode", 10, 1, 11),),
        unserved=(Unserved(reason, ("2", "4")),),
        running=("1", "2", "4"),
        num_free_blocks=9,
    )
    served, starved = explain(trace, small_view())
    assert named(served) == {"a"}
    assert named(starved) == {"b", "d"} and "nothing" in text_of(starved) and has in text_of(starved)


def test_what_sglang_expects_is_said() -> None:
    trace = StepTrace(
        step=1,
        started=0.0,
        config=CONFIG,
        scheduled=(Scheduled("1", "decode", 10, 1, 11),),
        num_free_blocks=9,
        new_token_ratio=0.423,
    )
    assert text_of(explain(trace, small_view())[-1]).startswith("42% ")


def test_a_forgotten_request_is_a_question_mark() -> None:
    assert text_of(letters(["1", "no such request"], small_view())) == "a ? "


@given(st.integers(0, 10**9))
@repeatable
def test_plural(count: int) -> None:
    text = plural(count, "block")
    assert numbers_in(text) == [count]
    assert text.endswith("s") == (count != 1)
