"""The sampler: a request's tokens are its own, whatever runs beside it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.request import RequestError, SamplingParams
from engine.sampler import Sampler
from tests.engine.support import config, prompt, tiny_bench

VOCAB = 12
NUM_DRAWS = 4000


def some_logits(rows: int, seed: int = 0, vocab: int = VOCAB) -> torch.Tensor:
    return 2 * torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed))


def draw(logits: torch.Tensor, params: SamplingParams, count: int = NUM_DRAWS) -> Counter[int]:
    """How often each token comes when one request samples the same logits again and again."""
    sampler = Sampler()
    return Counter(sampler.sample(logits[None], [("a", params)])[0] for _ in range(count))


def shares(counts: Counter[int], vocab: int = VOCAB) -> torch.Tensor:
    return torch.tensor([counts[token] / counts.total() for token in range(vocab)])


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 1000), rows=st.integers(1, 6))
def test_greedy_is_argmax(seed: int, rows: int) -> None:
    logits = some_logits(rows, seed)
    best = logits.argmax(-1).tolist()
    for params in (
        SamplingParams(),
        SamplingParams(temperature=0.0, top_p=0.5, top_k=3, seed=1),
        SamplingParams(temperature=1.5, top_k=1),
        SamplingParams(temperature=1.5, top_p=1e-9),
    ):
        assert Sampler().sample(logits, [(str(row), params) for row in range(rows)]) == best


@settings(deadline=None, max_examples=50)
@given(data=st.data(), logits_seed=st.integers(0, 1000))
def test_tokens_do_not_depend_on_the_batch(data: st.DataObject, logits_seed: int) -> None:
    """Four requests sample eight times; in any order, any company and any number of batches they get the same."""
    num_draws = 8
    logits = some_logits(4 * num_draws, logits_seed).view(4, num_draws, VOCAB)
    params = [
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=1.0, seed=1),
        SamplingParams(temperature=2.0, seed=1, top_k=5),
        SamplingParams(temperature=0.7, seed=2, top_p=0.8),
    ]
    alone: list[list[int]] = []
    for request in range(4):
        sampler = Sampler()
        draws = logits[request]
        alone.append([sampler.sample(row[None], [(str(request), params[request])])[0] for row in draws])

    sampler, together = Sampler(), [list[int]() for _ in range(4)]
    while any(len(tokens) < num_draws for tokens in together):
        unfinished = [request for request in range(4) if len(together[request]) < num_draws]
        batch = data.draw(st.lists(st.sampled_from(unfinished), unique=True, min_size=1), label="batch")
        rows = torch.stack([logits[request, len(together[request])] for request in batch])
        sampled = sampler.sample(rows, [(str(request), params[request]) for request in batch])
        for request, token_id in zip(batch, sampled, strict=True):
            together[request].append(token_id)
    assert together == alone


def test_a_seed_repeats_itself_and_another_one_does_not() -> None:
    logits = some_logits(1, vocab=1000)
    first, again, other = (
        [sampler.sample(logits, [("a", SamplingParams(temperature=1.0, seed=seed))])[0] for _ in range(20)]
        for sampler, seed in ((Sampler(), 1), (Sampler(), 1), (Sampler(), 2))
    )
    assert first == again != other
    assert len(set(first)) > 1


def test_a_request_that_ended_leaves_nothing_to_the_next_of_its_id() -> None:
    logits = some_logits(1, vocab=1000)
    sampler, params = Sampler(), SamplingParams(temperature=1.0, seed=1)
    first = [sampler.sample(logits, [("a", params)])[0] for _ in range(5)]
    sampler.forget("a")
    assert [sampler.sample(logits, [("a", params)])[0] for _ in range(5)] == first
    sampler.forget("nobody")


def test_requests_without_a_seed_differ() -> None:
    logits = some_logits(1, vocab=1000).expand(2, -1)
    sampler, params = Sampler(), SamplingParams(temperature=1.0)
    draws = [sampler.sample(logits, [("a", params), ("b", params)]) for _ in range(20)]
    assert [a for a, _ in draws] != [b for _, b in draws]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_distribution(temperature: float) -> None:
    logits = some_logits(1)[0]
    counts = draw(logits, SamplingParams(temperature=temperature, seed=5))
    expected = torch.softmax(logits / temperature, -1)
    # Five standard deviations of a share, and the seed is fixed: what fails here is no bad luck.
    tolerance = 5 * (expected * (1 - expected) / NUM_DRAWS).sqrt() + 1e-6
    assert bool(((shares(counts) - expected).abs() <= tolerance).all())


def test_top_k_keeps_the_best_k() -> None:
    logits = some_logits(1)[0]
    best = logits.topk(3).indices.tolist()
    counts = draw(logits, SamplingParams(temperature=2.0, seed=5, top_k=3))
    assert set(counts) == set(best)
    expected = torch.softmax(logits[best] / 2.0, -1)
    assert torch.allclose(shares(counts)[best], expected, atol=0.04)


def test_top_k_beyond_the_vocabulary_keeps_all() -> None:
    params = SamplingParams(temperature=1.0, seed=5)
    logits = some_logits(1)[0]
    assert draw(logits, replace(params, top_k=10 * VOCAB), 50) == draw(logits, params, 50)


@pytest.mark.parametrize(("top_p", "kept"), [(0.49, 1), (0.51, 2), (0.79, 2), (0.81, 3), (0.94, 3), (0.96, 4)])
def test_top_p_keeps_the_fewest_tokens_that_make_it_up(top_p: float, kept: int) -> None:
    probabilities = torch.tensor([0.15, 0.5, 0.05, 0.3])
    in_order = [1, 3, 0, 2]
    counts = draw(probabilities.log(), SamplingParams(temperature=1.0, seed=5, top_p=top_p), 1000)
    assert set(counts) == set(in_order[:kept])


def test_top_p_comes_after_temperature_and_top_k() -> None:
    """Of the two tokens that top_k leaves, with 5/8 and 3/8, the first alone makes up 0.6; of all four it does not."""
    logits = torch.tensor([0.15, 0.5, 0.05, 0.3]).log()
    params = SamplingParams(temperature=1.0, seed=5, top_p=0.6)
    assert set(draw(logits, params, 200)) == {1, 3}
    assert set(draw(logits, replace(params, top_k=2), 200)) == {1}
    assert set(draw(logits, replace(params, top_k=2, temperature=4.0), 200)) == {1, 3}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("inf")),
        ("temperature", float("nan")),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_p", float("nan")),
        ("top_k", -1),
        ("seed", 2**64),
        ("seed", -(2**63) - 1),
    ],
)
def test_parameters_that_mean_nothing_are_refused(name: str, value: float) -> None:
    """Before they come into a batch: there they would end the step for everybody."""
    with pytest.raises(RequestError, match=name):
        SamplingParams(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [1e-6, 1e-39, 5e-324])
@pytest.mark.parametrize("name", ["temperature", "top_p"])
def test_next_to_nothing_is_greedy(name: str, value: float) -> None:
    logits = some_logits(3)
    given_params: dict[str, Any] = {"temperature": 1.0, "seed": 1, name: value}
    params = SamplingParams(**given_params)
    assert Sampler().sample(logits, [(str(row), params) for row in range(3)]) == logits.argmax(-1).tolist()


@pytest.mark.parametrize("seed", [2**64 - 1, -(2**63), 0])
def test_any_seed_of_64_bits_will_do(seed: int) -> None:
    params = SamplingParams(temperature=1.0, seed=seed)
    assert draw(some_logits(1)[0], params, 20) == draw(some_logits(1)[0], params, 20)


SAMPLED: dict[str, Any] = {"max_tokens": 16, "temperature": 1.0, "seed": 3, "top_p": 0.95}


def test_a_seeded_request_gets_the_same_tokens_in_any_company() -> None:
    alone = tiny_bench(config(64, 4, 256, 8, 128))
    alone.add(prompt(12, 1), "it", **SAMPLED)
    alone.run_to_end()
    assert len(set(alone.tokens("it"))) > 4

    beside = tiny_bench(config(64, 4, 16, 8, 128))
    for seed in range(2, 5):
        beside.add(prompt(20, seed), max_tokens=20, temperature=1.0)
    beside.add(prompt(12, 1), "it", **SAMPLED)
    beside.run_to_end()
    assert beside.preemptions() == []
    assert beside.tokens("it") == alone.tokens("it")


@pytest.mark.parametrize("prefix_caching", [False, True])
def test_a_seeded_request_gets_the_same_tokens_through_preemptions(prefix_caching: bool) -> None:
    alone = tiny_bench(config(64, 4, 256, 8, 64))
    alone.add(prompt(12, 1), "it", **SAMPLED)
    alone.run_to_end()

    tight = tiny_bench(config(12, 4, 24, 3, 48, enable_prefix_caching=prefix_caching))
    tight.add(prompt(12, 2), max_tokens=16)
    tight.add(prompt(12, 3), max_tokens=16, temperature=1.0)
    tight.add(prompt(12, 1), "it", **SAMPLED)
    tight.run_to_end()
    assert tight.finished("it").num_preemptions > 0
    assert tight.tokens("it") == alone.tokens("it")


@pytest.mark.parametrize("ending", ["length", "abort"])
def test_an_id_that_is_used_again_starts_its_seed_afresh(ending: str) -> None:
    bench = tiny_bench(config(64, 4, 256, 8, 64))
    bench.add(prompt(12, 1), "it", **SAMPLED)
    if ending == "abort":
        bench.steps(5)
        bench.engine.abort("it")
    else:
        bench.run_to_end()
    first = bench.tokens("it")
    assert len(first) >= 5
    bench.add(prompt(12, 1), "it", **SAMPLED)
    bench.run_to_end()
    assert bench.tokens("it")[len(first) :][: len(first)] == first
