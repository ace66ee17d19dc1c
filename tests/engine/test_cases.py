"""Small inputs on which real engines failed (see each test's issue numbers), and their neighbours.

`config(blocks, bs, budget, seqs, len)` counts usable blocks. `Bench` asserts the step invariants after every step,
and `run_to_end` that every block is free afterwards. Greedy throughout; no engine here has an end token unless a test
gives it one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as TokenizersTokenizer
from tokenizers import decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from engine.config import ConfigError, EngineConfig
from engine.core import LLMEngine
from engine.detokenizer import Detokenizer
from engine.policy import POLICIES
from engine.request import RequestError, RequestStatus, SamplingParams
from engine.tokenizer import Tokenizer
from engine.trace import Blocked
from tests.engine.support import (
    Bench,
    FakeClock,
    PieceTokenizer,
    ScriptedRunner,
    byte_tokenizer,
    config,
    prompt,
    tiny_bench,
    tiny_model,
    tokens_of,
)

REPLACEMENT = "\ufffd"


every_policy = pytest.mark.parametrize("policy", POLICIES)
admits_what_fits_now = pytest.mark.parametrize("policy", ["fcfs", "priority", "prefill_first", "sarathi"])
"""Policies that admit whatever fits now, and preempt later on if they have to."""
looks_ahead = pytest.mark.parametrize("policy", ["orca", "static", "sglang", "sglang_lpm"])


def under(policy: str, blocks: int, bs: int, budget: int, seqs: int, length: int, **others: Any) -> EngineConfig:
    """`config` with a policy; one that computes prompts whole has a budget for the longest."""
    if POLICIES[policy].whole_prompts:
        budget = max(budget, length)
    return config(blocks, bs, budget, seqs, length, policy=policy, **others)


def tiny_alone(prompt: list[int], max_tokens: int) -> list[int]:
    """The tokens that a prompt gets from the tiny model in a big engine with nothing else."""
    bench = tiny_bench(config(64, 16, 512, 4, 512))
    bench.add(prompt, "alone", max_tokens=max_tokens)
    bench.run_to_end()
    return bench.tokens("alone")


def scripted(engine_config: EngineConfig, outputs: dict[str, list[int]], tokenizer: Tokenizer | None = None) -> Bench:
    """A bench on which each request gets the tokens listed for it."""
    return Bench(engine_config, ScriptedRunner(engine_config.block_size, tokens_of(outputs)), tokenizer)


# 1. Never fits, blocks the queue (vllm #35541, #39734; nano-vllm #274)


@every_policy
def test_case_01_what_never_fits_is_refused_with_the_numbers(policy: str) -> None:
    bench = Bench(under(policy, 8, 16, 64, 4, 128))
    with pytest.raises(RequestError, match=r"200 tokens .* 128"):
        bench.add(prompt(200), "A", max_tokens=4)
    bench.add(prompt(5), "B", max_tokens=4)
    assert len(bench.run_to_end()) <= 5
    assert [arrival.request_id for trace in bench.traces for arrival in trace.arrivals] == ["B"]


@every_policy
def test_case_01_a_pool_that_cannot_hold_one_request_is_refused(policy: str) -> None:
    under(policy, 8, 16, 64, 4, 128).validate()
    with pytest.raises(ConfigError, match=r"128 tokens .* 129"):
        under(policy, 8, 16, 64, 4, 129).validate()


@every_policy
def test_case_01_the_longest_request_fits_exactly(policy: str) -> None:
    bench = Bench(under(policy, 8, 16, 64, 4, 128))
    bench.add(prompt(127), "A", max_tokens=4)
    bench.run_to_end()
    assert len(bench.tokens("A")) == 1


# 2. Chunking off and a prompt over the budget (vllm #55130, #8378)


@every_policy
def test_case_02_chunking_off_needs_a_budget_for_the_longest_sequence(policy: str) -> None:
    with pytest.raises(ConfigError, match=r"\(32\) .*\(64\)"):
        LLMEngine(config(64, 16, 32, 4, 64, policy=policy, enable_chunked_prefill=False), ScriptedRunner(16))


@pytest.mark.parametrize("prefix_caching", [False, True])
@every_policy
def test_case_02_chunking_off_runs_whatever_it_accepts(policy: str, prefix_caching: bool) -> None:
    engine = under(policy, 6, 16, 64, 4, 64, enable_chunked_prefill=False, enable_prefix_caching=prefix_caching)
    bench = Bench(engine)
    with pytest.raises(RequestError, match="64"):
        bench.add(prompt(64), "too long")
    for seed, length in enumerate((63, 32, 40, 63)):
        bench.add(prompt(length, seed), max_tokens=30)
    for trace in bench.run_to_end():
        assert trace.num_scheduled_tokens > 0


# 3. Full prefix hit (nano-vllm #144, #199)


@pytest.mark.parametrize(("length", "cached"), [(32, 16), (1, 0), (16, 0), (17, 16), (33, 32), (31, 16)])
@every_policy
def test_case_03_a_full_hit_still_computes_the_last_token(policy: str, length: int, cached: int) -> None:
    bench = tiny_bench(under(policy, 16, 16, 64, 4, 64))
    for request_id in ("first", "second"):
        bench.add(prompt(length), request_id, max_tokens=4)
        bench.run_to_end()
    assert bench.cached_tokens("first") == [0]
    assert bench.cached_tokens("second") == [cached]
    assert bench.tokens("first") == bench.tokens("second") == tiny_alone(prompt(length), 4)


# 4. Stale length after preemption and a hit (nano-vllm #211, #233)


@admits_what_fits_now
def test_case_04_a_preempted_request_resumes_on_its_own_blocks(policy: str) -> None:
    bench = tiny_bench(under(policy, 10, 4, 64, 4, 40))
    for seed, request_id in enumerate("AB"):
        bench.add(prompt(12, seed), request_id, max_tokens=16)
    bench.run_to_end()
    assert {preemption.request_id for preemption in bench.preemptions()} == {"B"}
    first, *resumed = bench.cached_tokens("B")
    assert first == 0
    assert resumed and all(resumed)
    for seed, request_id in enumerate("AB"):
        assert bench.tokens(request_id) == tiny_alone(prompt(12, seed), 16)


@looks_ahead
def test_case_04_a_policy_that_looks_ahead_lets_the_second_one_wait(policy: str) -> None:
    bench = tiny_bench(under(policy, 10, 4, 64, 4, 40))
    for seed, request_id in enumerate("AB"):
        bench.add(prompt(12, seed), request_id, max_tokens=16)
    bench.run_to_end()
    assert bench.preemptions() == []
    assert bench.cached_tokens("B") == [0]
    for seed, request_id in enumerate("AB"):
        assert bench.tokens(request_id) == tiny_alone(prompt(12, seed), 16)


# 5. Same prompt twice in one step (nano-vllm #208; vllm #29387, #37152)


@pytest.mark.parametrize("prefix_caching", [True, False])
@every_policy
def test_case_05_twins_in_one_step(policy: str, prefix_caching: bool) -> None:
    bench = tiny_bench(under(policy, 16, 16, 128, 4, 64, enable_prefix_caching=prefix_caching))
    for request_id in ("one", "two"):
        bench.add(prompt(40), request_id, max_tokens=6)
    first = bench.step()
    assert [decision.request_id for decision in first.scheduled] == ["one", "two"]
    bench.run_to_end()
    bench.add(prompt(40), "later", max_tokens=6)
    bench.run_to_end()
    assert bench.cached_tokens("later") == [32 if prefix_caching else 0]
    expected = tiny_alone(prompt(40), 6)
    for request_id in ("one", "two", "later"):
        assert bench.tokens(request_id) == expected


@every_policy
def test_case_05_a_twin_hits_blocks_of_its_own_step_even_if_the_other_is_aborted_after_it(policy: str) -> None:
    bench = tiny_bench(under(policy, 16, 16, 128, 4, 64))
    for request_id in ("one", "two"):
        bench.add(prompt(40), request_id, max_tokens=6)
    bench.step()
    assert bench.cached_tokens("two") == [32]
    bench.engine.abort("one")
    bench.run_to_end()
    assert bench.tokens("two") == tiny_alone(prompt(40), 6)


# 6. Admit-preempt thrash (vllm #25538, #21809)


@every_policy
def test_case_06_admit_preempt_thrash(policy: str) -> None:
    bench = Bench(under(policy, 8, 4, 8, 2, 32, enable_prefix_caching=False))
    bench.add(prompt(16), "A", max_tokens=16)
    bench.steps(3)
    bench.add(prompt(20, 1), "B", max_tokens=4)
    bench.run_to_end(max_steps=57)
    assert bench.finished("B").num_preemptions <= 1
    computed = sum(d.num_tokens for trace in bench.traces for d in trace.scheduled if d.request_id == "B")
    assert computed <= 2 * 23


# 7. A preempted request loses its place (vllm #41951)


@admits_what_fits_now
def test_case_07_a_preempted_request_keeps_its_place(policy: str) -> None:
    clock = FakeClock()
    engine = under(policy, 6, 4, 32, 2, 24, enable_prefix_caching=False)
    bench = Bench(engine, clock=clock)
    for seed, request_id in enumerate("ABC"):
        clock.now = float(seed)
        bench.add(prompt(8, seed), request_id, max_tokens=12)
    clock.now = 10.0
    trace = bench.run_to_preemption()
    assert [preemption.request_id for preemption in trace.preemptions] == ["B"]
    assert trace.running == ("A",)
    assert trace.waiting == ("B", "C")
    assert bench.requests["B"].status is RequestStatus.PREEMPTED
    assert bench.requests["B"].times.arrival == 1.0
    assert bench.requests["B"].num_preemptions == 1
    bench.run_to_end()
    order = [f.request_id for trace in bench.traces for f in trace.finished]
    assert order == ["A", "B", "C"]


def test_case_07_two_victims_of_one_step_keep_their_order() -> None:
    """A takes C's only block, so nothing is left for B, which needs one as well."""
    bench = Bench(config(5, 4, 64, 3, 20))
    for seed, (request_id, length) in enumerate([("A", 8), ("B", 8), ("C", 3), ("D", 3)]):
        bench.add(prompt(length, seed), request_id, max_tokens=4)
    _, trace = bench.steps(2)
    assert [preemption.request_id for preemption in trace.preemptions] == ["C", "B"]
    assert trace.waiting == ("B", "C", "D")
    bench.run_to_end()
    admitted = [d.request_id for t in bench.traces[2:] for d in t.scheduled if d.admitted]
    assert list(dict.fromkeys(admitted)) == ["B", "C", "D"]


# 10. Ids and order (vllm #15041)


@every_policy
def test_case_10_an_id_is_unique_while_it_is_alive(policy: str) -> None:
    bench = Bench(under(policy, 16, 4, 64, 4, 32))
    bench.add(prompt(8), "a", max_tokens=4)
    bench.step()
    with pytest.raises(RequestError, match="'a' is still alive"):
        bench.engine.add_request(prompt(12, 1), SamplingParams(max_tokens=9), request_id="a")
    bench.run_to_end()
    alone = bench.tokens("a")
    assert len(alone) == 4
    bench.add(prompt(8), "a", max_tokens=4)
    bench.run_to_end()
    assert bench.tokens("a") == alone * 2


@every_policy
def test_case_10_an_id_can_be_used_again_right_after_an_abort(policy: str) -> None:
    bench = scripted(under(policy, 16, 4, 64, 4, 32), {"a": [65, 66, 67, 68]}, byte_tokenizer())
    bench.add(prompt(8), "a", max_tokens=4)
    bench.steps(2)
    bench.engine.abort("a")
    bench.add(prompt(8), "a", max_tokens=4)
    (again, *_) = bench.run_to_end()
    assert [finished.reason for finished in again.finished] == ["abort"]
    assert bench.text("a") == "AB" + "ABCD"


def test_case_10_given_ids_do_not_collide_with_those_that_are_made() -> None:
    bench = Bench(config(16, 4, 64, 4, 32))
    ids = [bench.add(prompt(4), request_id, max_tokens=1) for request_id in ("0", None, "2", None)]
    assert len(set(ids)) == 4
    bench.run_to_end()


@every_policy
def test_case_10_generate_returns_in_prompt_order_every_time(policy: str) -> None:
    """The first prompt of each call takes longest, so they end in the opposite order."""
    end = 9
    outputs = {str(i): [20 + i] * (6 - 2 * (i % 3)) + [end] for i in range(6)}
    engine = LLMEngine(
        under(policy, 16, 4, 64, 4, 32),
        ScriptedRunner(4, tokens_of(outputs)),
        byte_tokenizer(eos_token_ids=[end]),
        clock=FakeClock(),
    )
    for first in (0, 3):
        results = engine.generate([prompt(4, seed) for seed in range(3)])
        assert [result.token_ids for result in results] == [outputs[str(first + i)] for i in range(3)]
        assert [result.finish_reason for result in results] == ["stop"] * 3
        assert [result.text for result in results] == [
            "".join(chr(token_id) for token_id in result.token_ids[:-1]) for result in results
        ]


# 11. Empty prompt (vllm #7283, #7632)


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("empty", [[], ""])
@every_policy
def test_case_11_an_empty_prompt_is_an_error_for_that_call_only(
    policy: str, empty: list[int] | str, chat: bool
) -> None:
    bench = scripted(under(policy, 16, 4, 64, 4, 32), {"a": [65, 66, 67, 68]}, byte_tokenizer())
    bench.add(prompt(8), "a", max_tokens=4)
    bench.step()
    with pytest.raises(RequestError, match="empty"):
        bench.engine.add_request(empty, request_id="b", chat=chat)
    bench.run_to_end()
    assert bench.text("a") == "ABCD"
    assert {arrival.request_id for trace in bench.traces for arrival in trace.arrivals} == {"a"}


@every_policy
def test_case_11_generate_with_an_empty_prompt_leaves_nothing_behind(policy: str) -> None:
    engine = LLMEngine(under(policy, 16, 4, 64, 4, 32), ScriptedRunner(4))
    with pytest.raises(RequestError, match="empty"):
        engine.generate([prompt(8), []])
    assert not engine.has_unfinished_requests


@pytest.mark.parametrize("priority", ["high", 1.5, None])
def test_case_11_a_priority_that_is_no_number_is_an_error_for_that_call_only(priority: Any) -> None:
    bench = Bench(config(8, 4, 16, 4, 32, policy="priority"))
    bench.add(prompt(4), "A", max_tokens=4)
    with pytest.raises(RequestError, match="priority"):
        bench.add(prompt(4), "B", priority=priority, max_tokens=4)
    bench.run_to_end()


def test_case_11_a_token_outside_the_vocabulary_is_an_error_for_that_call_only() -> None:
    engine = LLMEngine(config(16, 4, 64, 4, 32), ScriptedRunner(4), vocab_size=100)
    for wrong in (-1, 100):
        with pytest.raises(RequestError, match=f"{wrong} is not in the vocabulary of 100"):
            engine.add_request([1, wrong, 2])
    assert not engine.has_unfinished_requests
    engine.add_request([0, 99])


# 12. max_tokens 0 and 1 (vllm #6521)


@pytest.mark.parametrize("max_tokens", [0, -1])
def test_case_12_no_tokens_is_refused(max_tokens: int) -> None:
    with pytest.raises(RequestError, match=f"max_tokens is {max_tokens}"):
        SamplingParams(max_tokens=max_tokens)


@pytest.mark.parametrize("length", [1, 15, 16, 40])
@every_policy
def test_case_12_one_token_comes_with_the_last_chunk(policy: str, length: int) -> None:
    bench = Bench(under(policy, 16, 4, 16, 4, 64))
    bench.add(prompt(4, 1), "decoding", max_tokens=12)
    bench.step()
    bench.add(prompt(length), "one", max_tokens=1)
    bench.run_to_end()
    shares = [(trace, d) for trace in bench.traces for d in trace.scheduled if d.request_id == "one"]
    assert {decision.kind for _, decision in shares} == {"prefill"}
    assert sum(decision.num_tokens for _, decision in shares) == length
    for trace, decision in shares:
        assert ("one" in {output.request_id for output in trace.outputs}) == (decision.end == length)
    last, _ = shares[-1]
    assert [finished.request_id for finished in last.finished] == ["one"]
    assert len(bench.tokens("one")) == 1


# 13. Length limit off by one (vllm #16445, #23683)


@every_policy
def test_case_13_a_prompt_as_long_as_the_limit_is_refused(policy: str) -> None:
    bench = Bench(under(policy, 4, 8, 64, 4, 32))
    with pytest.raises(RequestError, match="at most 31"):
        bench.add(prompt(32), max_tokens=10)


@pytest.mark.parametrize(("length", "num_tokens"), [(31, 1), (30, 2), (23, 9), (22, 10), (21, 10)])
@every_policy
def test_case_13_output_ends_at_the_limit(policy: str, length: int, num_tokens: int) -> None:
    bench = Bench(under(policy, 4, 8, 64, 4, 32))
    bench.add(prompt(length), "a", max_tokens=10)
    bench.run_to_end()
    assert len(bench.tokens("a")) == num_tokens
    assert bench.finished("a").reason == "length"


def test_case_13_truncation_keeps_the_end_of_a_prompt() -> None:
    bench = Bench(config(4, 8, 64, 4, 32))
    params = SamplingParams(max_tokens=4)
    for request_id, length in (("a", 90), ("b", 20)):
        bench.engine.add_request(prompt(length), params, request_id=request_id, truncate_prompt_tokens=30)
    assert bench.engine.scheduler.requests["a"].token_ids == prompt(90)[-30:]
    assert bench.engine.scheduler.requests["b"].token_ids == prompt(20)
    bench.run_to_end()
    assert len(bench.tokens("a")) == 2


@pytest.mark.parametrize("kept", [0, -1])
def test_case_13_truncation_to_nothing_is_refused(kept: int) -> None:
    engine = LLMEngine(config(4, 8, 64, 4, 32), ScriptedRunner(8))
    with pytest.raises(RequestError):
        engine.add_request(prompt(20), truncate_prompt_tokens=kept)


# 14. Stop string across tokens (vllm #2577, #3574, #11089)

LETTERS = PieceTokenizer([b"DEF", b"G", b"HI", b"J"])


def serve_pieces(stop: tuple[str, ...], max_tokens: int = 4) -> Bench:
    bench = scripted(config(8, 4, 16, 2, 32), {"a": [0, 1, 2, 3]}, LETTERS)
    bench.add([3], "a", max_tokens=max_tokens, stop=stop)
    bench.run_to_end()
    return bench


@pytest.mark.parametrize(
    ("stop", "max_tokens", "deltas", "reason"),
    [
        (("DEFGHIJ",), 4, ["", "", "", ""], "stop"),
        (("FX",), 4, ["DE", "FG", "HI", "J"], "length"),
        (("FX",), 1, ["DEF"], "length"),
        (("DEFGHIJ",), 3, ["", "", "DEFGHI"], "length"),
        (("GH",), 4, ["DEF", "", ""], "stop"),
        (("EF",), 4, ["D"], "stop"),
        (("HIJK", "J"), 4, ["DEF", "G", "", "HI"], "stop"),
        (("GHX", "HI"), 4, ["DEF", "", "G"], "stop"),
        (("I", "FGH"), 4, ["DE", "", ""], "stop"),
        ((), 4, ["DEF", "G", "HI", "J"], "length"),
    ],
)
def test_case_14_a_stop_string_is_never_shown(
    stop: tuple[str, ...], max_tokens: int, deltas: list[str], reason: str
) -> None:
    bench = serve_pieces(stop, max_tokens)
    assert bench.deltas("a") == deltas
    assert bench.finished("a").reason == reason


@pytest.mark.parametrize("stop", [("",), ("a", "")])
def test_case_14_an_empty_stop_string_is_refused(stop: tuple[str, ...]) -> None:
    with pytest.raises(RequestError, match="stop string is empty"):
        SamplingParams(stop=stop)


@admits_what_fits_now
def test_case_14_a_match_straddles_a_preemption(policy: str) -> None:
    bench = scripted(
        under(policy, 6, 4, 16, 2, 24), {"A": [ord("a")] * 12, "B": list(b"a two three")}, byte_tokenizer()
    )
    bench.add("the first", "A", max_tokens=12)
    bench.add("the other", "B", max_tokens=11, stop=("two three",))
    trace = bench.run_to_preemption()
    assert [preemption.request_id for preemption in trace.preemptions] == ["B"]
    assert len("a t") <= len(bench.tokens("B")) < len("a two three"), "it is to fall into the stop string"
    bench.run_to_end()
    assert bench.text("B") == "a "
    assert bench.finished("B").reason == "stop"


def test_case_14_a_stop_string_in_the_prompt_stops_nothing() -> None:
    bench = scripted(config(8, 4, 16, 2, 32), {"a": [0, 1, 2, 3]}, LETTERS)
    bench.add([0, 1], "a", max_tokens=4, stop=("DEFGDE", "GDEF"))
    bench.run_to_end()
    assert bench.text("a") == "DEFGHIJ"


def pieces_of(data: st.DataObject, text: str) -> list[bytes]:
    """The bytes of a text, cut anywhere, inside characters too."""
    raw = text.encode()
    cuts = data.draw(st.sets(st.integers(0, len(raw))) | st.just(set(range(len(raw) + 1))), label="cuts")
    edges = sorted({0, len(raw)} | cuts)
    return [raw[start:end] for start, end in pairwise(edges)]


def detokenizer_of(pieces: list[bytes], context: bytes = b"", stop: Sequence[str] = ()) -> Detokenizer:
    """A detokenizer for the tokens 0, 1, ... that stand for these pieces, behind a prompt of single bytes."""
    vocabulary = [*pieces, *(bytes([byte]) for byte in context)]
    prompt_token_ids = range(len(pieces), len(vocabulary))
    return Detokenizer(PieceTokenizer(vocabulary).decode, prompt_token_ids, stop)


# A text may well hold U+FFFD, but at its very end it looks like half a character: see the flush of `Detokenizer`.
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters=REPLACEMENT), max_size=20)
FEW_LETTERS = "abč🌶"
"""Few enough that stop strings match, and nearly match, often."""


@settings(deadline=None, max_examples=300)
@given(
    text=st.text(FEW_LETTERS, max_size=24),
    stops=st.lists(st.text(FEW_LETTERS, min_size=1, max_size=4), max_size=3),
    context=st.text(FEW_LETTERS, max_size=4),
    data=st.data(),
)
def test_case_14_any_stop_string_in_any_split(text: str, stops: list[str], context: str, data: st.DataObject) -> None:
    """What is shown is the text up to the first match, as if the text had come in these pieces without streaming."""
    pieces = pieces_of(data, text)
    detokenizer = detokenizer_of(pieces, context.encode(), stops)
    arrived, shown, expected = b"", "", text
    for token_id, piece in enumerate(pieces):
        shown += detokenizer.append(token_id)
        arrived += piece
        whole = arrived.decode(errors="ignore")
        ends = [whole.index(stop) for stop in stops if stop in whole]
        if ends:
            expected = whole[: min(ends)]
            assert detokenizer.stopped
            break
        assert whole.startswith(shown)
    else:
        assert not detokenizer.stopped
    assert shown + detokenizer.flush() == expected


# 15. Split UTF-8 (vllm-mlx #109)

SPICY = "ďábel 🌶 你好"


def serve_bytes(raw: bytes, max_tokens: int) -> Bench:
    bench = scripted(config(32, 4, 16, 2, 96), {"a": list(raw)}, byte_tokenizer())
    bench.add("čau", "a", max_tokens=max_tokens)
    bench.run_to_end()
    return bench


def test_case_15_no_delta_has_half_a_character() -> None:
    raw = SPICY.encode()
    bench = serve_bytes(raw, len(raw))
    assert "".join(bench.deltas("a")) == SPICY
    assert not any(REPLACEMENT in delta for delta in bench.deltas("a"))
    assert max(map(len, bench.deltas("a"))) == 1, "each character comes with its last byte"


@pytest.mark.parametrize("length", range(1, len(SPICY.encode()) + 1))
def test_case_15_ending_inside_a_character_loses_nothing_before_it(length: int) -> None:
    raw = SPICY.encode()
    assert serve_bytes(raw, length).text("a") == raw[:length].decode(errors="ignore")


def test_case_15_an_abort_inside_a_character_leaves_nothing_behind() -> None:
    bench = scripted(config(32, 4, 16, 2, 96), {"a": list("🌶🌶".encode())}, byte_tokenizer())
    bench.add("x", "a", max_tokens=8)
    bench.steps(6)
    assert bench.text("a") == "🌶"
    bench.engine.abort("a")
    bench.run_to_end()
    bench.add("x", "a", max_tokens=8)
    bench.run_to_end()
    assert bench.text("a") == "🌶" + "🌶🌶"


@settings(deadline=None, max_examples=300)
@given(text=TEXTS, context=st.text(max_size=4), data=st.data())
def test_case_15_any_text_in_any_split(text: str, context: str, data: st.DataObject) -> None:
    pieces = pieces_of(data, text)
    detokenizer = detokenizer_of(pieces, context.encode())
    deltas = [detokenizer.append(token_id) for token_id in range(len(pieces))]
    assert not any(REPLACEMENT in delta for delta in deltas)
    assert detokenizer.flush() == ""
    assert "".join(deltas) == text


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=24), st.text(max_size=3))
def test_case_15_bytes_that_are_no_text_at_all(raw: bytes, context: str) -> None:
    """A model may well write such. How many signs stand for a run of it is nobody's concern; at the end none need."""
    detokenizer = detokenizer_of([bytes([byte]) for byte in raw], context.encode())
    shown = "".join(detokenizer.append(token_id) for token_id in range(len(raw))) + detokenizer.flush()
    one_sign = re.compile(f"{REPLACEMENT}+")
    expected = one_sign.sub(REPLACEMENT, raw.decode(errors="replace"))
    assert one_sign.sub(REPLACEMENT, shown) in (expected, expected.removesuffix(REPLACEMENT))


def byte_fallback_tokenizer() -> tuple[Callable[[Sequence[int]], str], dict[str, int]]:
    """As Llama 2's and Gemma's: words with a leading space, and a token for each byte that no word has.

    It decodes a run of bytes as a whole: one that is incomplete makes signs of all the others too.
    """
    vocabulary = {"<unk>": 0, **{f"<0x{byte:02X}>": byte + 1 for byte in range(256)}, "▁hello": 257, "▁world": 258}
    tokenizer = TokenizersTokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True, unk_token="<unk>"))
    replace, strip = decoders.Replace("▁", " "), decoders.Strip(" ", 1, 0)
    tokenizer.decoder = decoders.Sequence([replace, decoders.ByteFallback(), decoders.Fuse(), strip])
    return lambda token_ids: tokenizer.decode(list(token_ids)), vocabulary


@settings(deadline=None, max_examples=200)
@given(st.lists(st.sampled_from(["▁hello", "▁world", *"ďábel 🌶 你好\n"]), max_size=12))
def test_case_15_tokenizers_that_fall_back_to_bytes(pieces: list[str]) -> None:
    decode, vocabulary = byte_fallback_tokenizer()
    token_ids = []
    for piece in pieces:
        token_ids += [vocabulary[piece]] if piece in vocabulary else [byte + 1 for byte in piece.encode()]
    detokenizer = Detokenizer(decode, [vocabulary["▁hello"]])
    deltas = [detokenizer.append(token_id) for token_id in token_ids]
    assert not any(REPLACEMENT in delta for delta in deltas)
    assert "".join(deltas) == "".join(pieces).replace("▁", " ")
    assert detokenizer.flush() == ""


def test_case_15_bytes_that_never_become_text_do_not_pile_up() -> None:
    decoded: list[int] = []

    def decode(token_ids: Sequence[int]) -> str:
        decoded.append(len(token_ids))
        return bytes(token_ids).decode(errors="replace")

    detokenizer = Detokenizer(decode)
    text = "".join(detokenizer.append(0xFF) for _ in range(1000))
    assert set(text) == {REPLACEMENT} and len(text) >= 996
    assert max(decoded) < 10


@pytest.mark.parametrize(
    "end", [b"\xf0", b"\xf0\x9f\x8c", b"\x8c\xb6", b"\xb6", REPLACEMENT.encode()], ids=lambda end: end.hex()
)
def test_case_15_the_end_of_a_prompt_does_not_show_in_the_output(end: bytes) -> None:
    """Not even if it is half a character: `truncate_prompt_tokens` cuts there, and token ids may be anything."""
    bench = scripted(config(32, 4, 16, 2, 96), {"a": list(b"yes")}, byte_tokenizer())
    bench.add(list(end), "a", max_tokens=3)
    bench.run_to_end()
    assert bench.deltas("a") == ["y", "e", "s"]


@settings(deadline=None, max_examples=100)
@given(text=TEXTS, context=st.text(max_size=4), data=st.data())
def test_case_15_the_tiny_models_own_tokenizer_too(text: str, context: str, data: st.DataObject) -> None:
    tokenizer = tiny_model().tokenizer
    tokens = tokenizer.encode(text)
    count = data.draw(st.integers(0, len(tokens)), label="tokens")
    detokenizer = Detokenizer(tokenizer.decode, tokenizer.encode(context))
    shown = "".join(detokenizer.append(token_id) for token_id in tokens[:count]) + detokenizer.flush()
    assert shown == text.encode()[:count].decode(errors="ignore")


# 16. Which token ends it (vllm #4180)


def numbered_tokenizer(eos_token_ids: tuple[int, ...]) -> Tokenizer:
    """Token i reads `ti`; the tokenizer's own end token is 7."""
    vocab = {f"t{i}": i for i in range(12)}
    words = TokenizersTokenizer(models.WordLevel(vocab, unk_token="t0"))
    return Tokenizer(PreTrainedTokenizerFast(tokenizer_object=words, eos_token="t7"), eos_token_ids)


@pytest.mark.parametrize(
    ("output", "params", "expected", "reason"),
    [
        ([3, 9, 4], {}, [3, 9], "stop"),
        ([3, 7, 4], {}, [3, 7], "stop"),
        ([3, 8, 4], {}, [3, 8, 4], "length"),
        ([3, 9, 7], {"ignore_eos": True}, [3, 9, 7], "length"),
        ([3, 9, 4], {"ignore_eos": True, "stop_token_ids": (4,)}, [3, 9, 4], "stop"),
        ([3, 4, 9], {"ignore_eos": True, "stop_token_ids": (4,)}, [3, 4], "stop"),
        ([9, 3, 4], {"ignore_eos": True, "stop_token_ids": (9,)}, [9], "stop"),
        ([3, 4, 9], {"stop_token_ids": (4,)}, [3, 4], "stop"),
        ([3, 9, 4], {"stop_token_ids": (4,)}, [3, 9], "stop"),
    ],
)
def test_case_16_which_token_ends_it(
    output: list[int], params: dict[str, Any], expected: list[int], reason: str
) -> None:
    bench = scripted(config(8, 4, 16, 2, 32), {"a": output}, numbered_tokenizer((7, 9)))
    bench.add([1, 2], "a", max_tokens=3, **params)
    bench.run_to_end()
    assert bench.tokens("a") == expected
    assert bench.finished("a").reason == reason


def test_case_16_the_tokenizers_own_end_counts_if_the_model_names_none() -> None:
    assert numbered_tokenizer(()).eos_token_ids == {7}
    assert numbered_tokenizer((9,)).eos_token_ids == {7, 9}


def test_case_16_the_token_that_ends_it_gives_no_text() -> None:
    bench = scripted(config(8, 4, 16, 2, 32), {"a": [1, 3]}, LETTERS)
    bench.add([0], "a", max_tokens=4, stop_token_ids=(3,))
    bench.run_to_end()
    assert bench.text("a") == "G"


# 17. Finish reason on the boundary (llama.cpp #7198)


@pytest.mark.parametrize(
    ("output", "reason", "text"),
    [("abcd\0", "stop", "abcd"), ("abcxy", "stop", "abc"), ("abcde", "length", "abcde"), ("abcdx", "length", "abcdx")],
)
@every_policy
def test_case_17_the_reason_on_the_boundary(policy: str, output: str, reason: str, text: str) -> None:
    bench = scripted(under(policy, 8, 4, 16, 2, 32), {"a": list(output.encode())}, byte_tokenizer(eos_token_ids=[0]))
    bench.add([1, 2], "a", max_tokens=5, stop=("xy",))
    bench.run_to_end()
    finished = bench.finished("a")
    assert (finished.reason, finished.num_output_tokens) == (reason, 5)
    assert bench.text("a") == text


@pytest.mark.parametrize(("last", "reason"), [(0, "stop"), (5, "length")])
@every_policy
def test_case_17_the_reason_at_the_models_limit(policy: str, last: int, reason: str) -> None:
    bench = scripted(under(policy, 8, 4, 16, 2, 10), {"a": [1, last]}, byte_tokenizer(eos_token_ids=[0]))
    bench.add(prompt(8), "a", max_tokens=5)
    bench.run_to_end()
    assert bench.finished("a").reason == reason
    assert bench.finished("a").num_output_tokens == 2


# 18. Timings (vllm #6337, #8115, #9998)


def test_case_18_timings() -> None:
    """R waits a step for A's prompt, comes in by three chunks, is thrown out at 4, and recomputed from 7 on."""
    clock = FakeClock()
    bench = Bench(config(15, 4, 17, 2, 60, enable_prefix_caching=False), clock=clock)
    bench.add(prompt(17), "A", max_tokens=7)
    bench.add(prompt(40, 1), "R", max_tokens=2)
    for now in range(10):
        clock.now = float(now)
        bench.step()
    assert not bench.engine.has_news
    shares = [(trace.started, d.num_tokens) for trace in bench.traces for d in trace.scheduled if d.request_id == "R"]
    assert shares == [(1, 16), (2, 16), (3, 8), (7, 17), (8, 17), (9, 7)]
    assert [trace.started for trace in bench.traces if trace.preemptions] == [4]
    finished, times = bench.finished("R"), bench.requests["R"].times
    assert (finished.queue_time, finished.ttft, finished.e2e, finished.num_preemptions) == (1, 3, 9, 1)
    assert (times.queue, times.ttft, times.itl, times.e2e) == (1, 3, [6], 9)
    assert times.tokens == [3, 9]
    assert bench.finished("A").queue_time == 0
    bench.run_to_end()


@every_policy
def test_case_18_aborted_in_the_queue(policy: str) -> None:
    clock = FakeClock()
    bench = Bench(under(policy, 8, 4, 16, 1, 32), clock=clock)
    bench.add(prompt(8), "A", max_tokens=3)
    bench.add(prompt(8, 1), "R", max_tokens=3)
    bench.step()
    clock.now = 5.0
    assert bench.engine.abort("R")
    assert not bench.engine.abort("R")
    bench.run_to_end()
    finished = bench.finished("R")
    assert (finished.reason, finished.num_output_tokens) == ("abort", 0)
    assert (finished.queue_time, finished.ttft, finished.e2e) == (None, None, 5)


def test_case_18_times_count_from_the_engines_start() -> None:
    clock = FakeClock()
    clock.now = 1000.0
    bench = Bench(config(8, 4, 16, 1, 32), clock=clock)
    clock.now = 1002.0
    bench.add(prompt(8), "A", max_tokens=1)
    clock.now = 1003.0
    (trace,) = bench.run_to_end()
    assert (trace.arrivals[0].time, trace.started) == (2, 3)
    assert bench.finished("A").ttft == 1


# 19. Budget exact (TensorRT-LLM #13318; sglang #2255)


def serve_19(policy: str, seqs: int, **others: Any) -> Bench:
    """A decodes, B has a prompt of 40 and C one of 30."""
    bench = Bench(config(64, 4, 16, seqs, 64, policy=policy, **others))
    bench.add(prompt(4), "A", max_tokens=30)
    bench.step()
    bench.add(prompt(40, 1), "B", max_tokens=10)
    bench.add(prompt(30, 2), "C", max_tokens=10)
    return bench


decodes_beside_prefills = pytest.mark.parametrize(
    ("policy", "others"),
    [("fcfs", {}), ("priority", {}), ("sarathi", {}), ("sglang", {"mixed_chunk": True})],
    ids=["fcfs", "priority", "sarathi", "sglang mixed"],
)
prefills_alone = pytest.mark.parametrize("policy", ["prefill_first", "sglang", "sglang_lpm"])


@decodes_beside_prefills
def test_case_19_the_budget_is_used_to_the_last_token(policy: str, others: dict[str, Any]) -> None:
    bench = serve_19(policy, 3, **others)
    steps = [[(d.request_id, d.num_tokens) for d in trace.scheduled] for trace in bench.steps(5)]
    assert steps == [
        [("A", 1), ("B", 15)],
        [("A", 1), ("B", 15)],
        [("A", 1), ("B", 10), ("C", 5)],
        [("A", 1), ("B", 1), ("C", 14)],
        [("A", 1), ("B", 1), ("C", 11)],
    ]
    assert [trace.num_scheduled_tokens for trace in bench.traces[1:5]] == [16] * 4
    bench.run_to_end()


@prefills_alone
def test_case_19_prefills_alone_use_the_budget_to_the_last_token(policy: str) -> None:
    bench = serve_19(policy, 3)
    steps = [[(d.request_id, d.num_tokens) for d in trace.scheduled] for trace in bench.steps(6)]
    assert steps == [
        [("B", 16)],
        [("B", 16)],
        [("B", 8), ("C", 8)],
        [("C", 16)],
        [("C", 6)],
        [("A", 1), ("B", 1), ("C", 1)],
    ]
    bench.run_to_end()


@decodes_beside_prefills
def test_case_19_half_prefilled_requests_take_a_seat(policy: str, others: dict[str, Any]) -> None:
    bench = serve_19(policy, 2, **others)
    for trace in bench.steps(2):
        assert trace.running == ("A", "B")
        assert trace.blocked == Blocked("C", "seats")
    assert bench.requests["B"].num_computed_tokens == 30
    bench.run_to_end()


@prefills_alone
def test_case_19_requests_half_prefilled_alone_take_a_seat_too(policy: str) -> None:
    bench = serve_19(policy, 2)
    for trace in bench.steps(3):
        assert trace.running == ("A", "B")
        assert trace.blocked == Blocked("C", "seats")
    assert bench.requests["B"].num_computed_tokens == 40
    bench.run_to_end()


# 20. BOS and template (vllm #27486; llama.cpp #7107)

BOS, END = "<s>", "</s>"
CHAT = "{% for message in messages %}[{{ message['content'] }}]{% endfor %}"


def bos_tokenizer(chat_template: str | None, add_bos: bool = True) -> PreTrainedTokenizerFast:
    """A byte tokenizer that puts `<s>` before every text, as Llama's does, or only knows it."""
    vocab = {character: index for index, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = TokenizersTokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([BOS, END])
    if add_bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{BOS} $A", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=BOS, eos_token=END, chat_template=chat_template
    )


@pytest.mark.parametrize("text", ["hi", BOS + "hi", BOS + BOS + "hi", f"hi {BOS} hi", BOS])
@pytest.mark.parametrize("template", [None, CHAT, "{{ bos_token }}" + CHAT])
def test_case_20_one_bos_at_the_start(text: str, template: str | None) -> None:
    raw = bos_tokenizer(template)
    tokenizer = Tokenizer(raw)
    for tokens in (tokenizer.encode(text), tokenizer.encode_chat(text)):
        assert tokens[0] == raw.bos_token_id
        assert tokens[1:2] != [raw.bos_token_id]
    body = text.removeprefix(BOS).removeprefix(BOS)
    plain = raw(body, add_special_tokens=False).input_ids
    assert tokenizer.encode(text) == [raw.bos_token_id, *plain]


def test_case_20_the_template_is_applied() -> None:
    raw = bos_tokenizer("{{ bos_token }}" + CHAT)
    tokenizer = Tokenizer(raw)
    assert tokenizer.has_chat_template
    assert tokenizer.encode_chat("hi") == [raw.bos_token_id, *raw("[hi]", add_special_tokens=False).input_ids]
    assert tokenizer.decode(tokenizer.encode_chat("hi")) == "[hi]"


def test_case_20_no_template_is_the_plain_text() -> None:
    tokenizer = Tokenizer(bos_tokenizer(None))
    assert not tokenizer.has_chat_template
    assert tokenizer.encode_chat("hi") == tokenizer.encode("hi")


@pytest.mark.parametrize("template", [None, CHAT])
def test_case_20_a_bos_that_the_model_does_not_want_is_not_added(template: str | None) -> None:
    raw = bos_tokenizer(template, add_bos=False)
    tokenizer = Tokenizer(raw)
    assert raw.bos_token_id not in [*tokenizer.encode("hi"), *tokenizer.encode_chat("hi")]


@pytest.mark.parametrize("template", [None, CHAT])
def test_case_20_an_empty_text_is_an_empty_prompt(template: str | None) -> None:
    """Also where a BOS or a template would make something of it."""
    tokenizer = Tokenizer(bos_tokenizer(template))
    assert tokenizer.encode("") == tokenizer.encode_chat("") == []


def test_case_20_the_tiny_model_has_no_bos() -> None:
    tokenizer = tiny_model().tokenizer
    assert len(tokenizer.encode(SPICY)) == len(SPICY.encode())
    assert tokenizer.decode(tokenizer.encode(SPICY)) == SPICY
    assert tokenizer.decode(tokenizer.encode_chat("hi")) == "hi\n"


@pytest.mark.parametrize("template", [None, CHAT])
def test_case_20_a_chat_is_served_with_and_without_a_template(template: str | None) -> None:
    tokenizer = Tokenizer(bos_tokenizer(template))
    bench = scripted(config(16, 4, 64, 2, 64), {"a": tokenizer.encode("yes")[1:]}, tokenizer)
    bench.engine.add_request("hello", SamplingParams(max_tokens=3), request_id="a", chat=True)
    bench.run_to_end()
    assert bench.text("a") == "yes"
    assert bench.traces[0].arrivals[0].prompt == "hello"
