"""The promise of the engine: whatever the schedule, a request's logits are those that it gets alone, bit for bit."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

import pytest
import torch
from torch import Tensor
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from engine.config import EngineConfig
from engine.core import LLMEngine
from engine.model import LoadedModel, load_model
from engine.packed import compute_dtype
from engine.policy import POLICIES
from engine.request import SamplingParams
from engine.runner import ModelRunner
from engine.sampler import Sampler
from engine.selfcheck import own_logits, self_check
from engine.verify import QUESTIONS, generate_alone

NUM_SCHEDULES = 50
MAX_MODEL_LEN = 192
VOCAB_SIZE = 384
SHAPES = {
    "llama": (LlamaConfig, LlamaForCausalLM, {"num_attention_heads": 6, "num_key_value_heads": 2}),
    "llama-untied": (LlamaConfig, LlamaForCausalLM, {"num_attention_heads": 4, "num_key_value_heads": 4, "untied": 1}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {"num_attention_heads": 6, "num_key_value_heads": 1}),
    # As published: float16 can hold the weights.
    "qwen2-half": (Qwen2Config, Qwen2ForCausalLM, {"num_attention_heads": 6, "num_key_value_heads": 1}),
    "llama-unpacked": (LlamaConfig, LlamaForCausalLM, {"num_attention_heads": 6, "num_key_value_heads": 2}),
    "llama-bfloat16": (LlamaConfig, LlamaForCausalLM, {"num_attention_heads": 6, "num_key_value_heads": 2}),
    # Of no family that is packed in whole layers: its linear modules are.
    "olmo2": (Olmo2Config, Olmo2ForCausalLM, {"num_attention_heads": 6, "num_key_value_heads": 2}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"num_attention_heads": 9, "num_key_value_heads": 3, "untied": 1}),
}


class RecordingSampler(Sampler):
    """Keeps every row of logits that a request sampled from."""

    def __init__(self) -> None:
        super().__init__()
        self.logits: dict[str, list[Tensor]] = {}

    def sample(self, logits: Tensor, requests: Sequence[tuple[str, SamplingParams]]) -> list[int]:
        for row, (request_id, _) in zip(logits, requests, strict=True):
            self.logits.setdefault(request_id, []).append(row.clone())
        return super().sample(logits, requests)


@dataclass
class Served:
    """What a schedule did, and the logits of each request, by its place in the list of prompts."""

    logits: dict[str, list[Tensor]]
    preemptions: Counter[str] = field(default_factory=Counter)
    """By their causes."""
    hits: int = 0
    chunks: int = 0
    moves: int = 0
    changes: int = 0
    policies: set[str] = field(default_factory=set)
    """Under which anything was computed."""


def serve(
    model: PreTrainedModel,
    config: EngineConfig,
    prompts: Sequence[Sequence[int]],
    params: Sequence[SamplingParams],
    arrivals: Sequence[tuple[int, int]],
    changes: Mapping[int, EngineConfig] | None = None,
) -> Served:
    """Add prompt number i at step s for each (s, i) of `arrivals`; run to the end.

    Its priority is i as well. `changes`: at which step the engine gets which other configuration.
    """
    sampler = RecordingSampler()
    engine = LLMEngine(config, ModelRunner(model, config, sampler))
    served = Served(sampler.logits)
    todo = sorted(arrivals)
    step = 0
    while todo or engine.has_unfinished_requests:
        while todo and todo[0][0] <= step:
            index = todo.pop(0)[1]
            engine.add_request(prompts[index], params[index], request_id=str(index), priority=index)
        if changes and step in changes:
            engine.reconfigure(**asdict(changes[step]))
            served.changes += 1
        trace = engine.step()
        engine.scheduler.pool.check()
        served.preemptions.update(preemption.cause for preemption in trace.preemptions)
        served.hits += sum(item.num_cached_tokens for item in trace.scheduled)
        served.chunks += sum(item.chunk > 1 for item in trace.scheduled)
        served.moves += sum(op.op == "move" for op in trace.blocks)
        if trace.scheduled:
            served.policies.add(trace.config.policy)
        step += 1
        assert step < 5000
    return served


def serve_alone(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]
) -> dict[str, list[Tensor]]:
    config = EngineConfig(
        max_num_batched_tokens=4096, max_num_seqs=1, num_blocks=400, max_model_len=2048, enable_prefix_caching=False
    )
    return serve(model, config, prompts, params, [(0, i) for i in range(len(prompts))]).logits


def random_prompts(rng: random.Random, vocab_size: int, lengths: Sequence[int]) -> list[list[int]]:
    """Some begin alike, so that the prefix cache has something to find."""
    head = [rng.randrange(vocab_size) for _ in range(max(lengths))]
    prompts = []
    for length in lengths:
        shared = rng.choice([0, 0, length // 2, length])
        prompts.append(head[:shared] + [rng.randrange(vocab_size) for _ in range(length - shared)])
    return prompts


def random_config(rng: random.Random, block_size: int, max_model_len: int) -> EngineConfig:
    """Budgets from a few tokens to all, and pools that often hold little more than one request."""
    least = -(-max_model_len // block_size) + 1
    policy = rng.choice(list(POLICIES))
    chunked = rng.random() < 0.8
    whole = POLICIES[policy].whole_prompts or not chunked
    return EngineConfig(
        max_num_batched_tokens=rng.choice([300, 1000] if whole else [5, 16, 33, 100, 300, 1000]),
        max_num_seqs=rng.choice([2, 3, 6]),
        num_blocks=least + rng.choice([0, 0, 1, least // 4]),
        block_size=block_size,
        max_model_len=max_model_len,
        enable_chunked_prefill=chunked,
        enable_prefix_caching=rng.random() < 0.7,
        reserve_full_sequence=rng.random() < 0.5,
        long_prefill_token_threshold=rng.choice([0, 0, 7, 64]),
        watermark=rng.choice([0.0, 0.0, 0.0, 0.2]),
        policy=policy,
        priority_aging=rng.choice([0.0, 0.5]),
        schedule_conservativeness=rng.choice([0.3, 1.0]),
        mixed_chunk=rng.random() < 0.5,
    )


def random_changes(rng: random.Random, config: EngineConfig) -> dict[int, EngineConfig]:
    """Every few steps another configuration; every other one has twice the memory, which then goes again."""
    changes: dict[int, EngineConfig] = {}
    step = 0
    while step < 200:
        step += rng.choice([1, 2, 5, 10])
        changes[step] = random_config(rng, config.block_size, config.max_model_len)
        if len(changes) % 2:
            changes[step] = replace(changes[step], num_blocks=2 * config.num_blocks)
    return changes


def random_model(shape: str) -> PreTrainedModel:
    config_class, model_class, options = SHAPES[shape]
    options = dict(options)
    untied = bool(options.pop("untied", 0))
    config = config_class(
        vocab_size=VOCAB_SIZE,
        hidden_size=96,
        intermediate_size=208,
        num_hidden_layers=2,
        head_dim=16,
        tie_word_embeddings=not untied,
        initializer_range=0.2,
        eos_token_id=None,
        **options,
    )
    torch.manual_seed(1)
    model: PreTrainedModel = model_class(config).eval()
    return model


def assert_same(alone: dict[str, list[Tensor]], served: Served, config: EngineConfig) -> None:
    assert alone.keys() == served.logits.keys()
    for request_id, rows in alone.items():
        for index, (expected, got) in enumerate(zip(rows, served.logits[request_id], strict=True)):
            assert torch.equal(expected, got), f"request {request_id}, output {index}, under {config}"


@pytest.mark.parametrize("shape", SHAPES)
def test_logits_do_not_depend_on_the_schedule(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if shape.endswith("unpacked"):
        monkeypatch.setattr("engine.packed.can_pack", lambda device: False)
    model = random_model(shape)
    if shape.endswith("half"):
        for parameter in model.parameters():
            parameter.data = parameter.data.half().float()
    if shape.endswith("bfloat16"):
        if compute_dtype(torch.bfloat16) != torch.float32:
            pytest.skip("this processor computes in bfloat16; only float32 is promised")
        for parameter in model.parameters():
            parameter.data = parameter.data.to(torch.bfloat16)
    own = own_logits(model, EngineConfig())
    assert own is not None
    assert self_check(ModelRunner(model, EngineConfig()), EngineConfig(), own).bitwise
    rng = random.Random(shape)
    prompts = random_prompts(rng, VOCAB_SIZE, [1, 3, 17, 40, 60, 80, 129, 150])
    params = [SamplingParams(max_tokens=(4, 24, 40)[index % 3]) for index in range(len(prompts))]
    alone = serve_alone(model, prompts, params)
    total = Served({})
    for _ in range(NUM_SCHEDULES):
        config = random_config(rng, rng.choice([1, 4, 8, 16, 32, 64]), MAX_MODEL_LEN)
        changes = random_changes(rng, config) if rng.random() < 0.5 else {}
        chosen = rng.sample(range(len(prompts)), 5)
        served = serve(model, config, prompts, params, [(rng.choice([0, 0, 1, 3, 10]), i) for i in chosen], changes)
        assert_same({str(i): alone[str(i)] for i in chosen}, served, config)
        total.preemptions += served.preemptions
        total.hits += served.hits
        total.chunks += served.chunks
        total.moves += served.moves
        total.changes += served.changes
        total.policies |= served.policies
    # Without these the test would say nothing about them.
    assert min(total.preemptions[cause] for cause in ("blocks", "seats", "pool")) > 10
    assert total.hits > 200 and total.chunks > 100
    assert total.changes > 100 and total.moves > 100 and total.policies == set(POLICIES)


@pytest.fixture(scope="module")
def smollm2() -> LoadedModel:
    return load_model("smollm2")


def test_smollm2_logits_do_not_depend_on_the_schedule(smollm2: LoadedModel) -> None:
    rng = random.Random(2)
    prompts = random_prompts(rng, smollm2.vocab_size, [2, 19, 64, 150])
    params = [SamplingParams(max_tokens=6, ignore_eos=True) for _ in prompts]
    alone = serve_alone(smollm2.model, prompts, params)
    preemptions = Counter[str]()
    for budget in (13, 64, 200):
        config = EngineConfig(
            max_num_batched_tokens=budget,
            num_blocks=13,
            max_model_len=160,
            reserve_full_sequence=False,
            enable_prefix_caching=budget == 64,
        )
        served = serve(smollm2.model, config, prompts, params, [(0, 0), (0, 2), (1, 1), (2, 3)])
        assert_same(alone, served, config)
        preemptions += served.preemptions
    assert preemptions


def test_smollm2_says_what_transformers_says() -> None:
    smollm2 = load_model("smollm2")  # not the one that a runner has taken over
    prompts = [smollm2.tokenizer.encode_chat(question) for question in QUESTIONS[:3]]
    expected = [generate_alone(smollm2, prompt, 12) for prompt in prompts]
    config = EngineConfig(max_num_batched_tokens=40)
    engine = LLMEngine(config, ModelRunner(smollm2.model, config), smollm2.tokenizer)
    outputs = engine.generate(prompts, SamplingParams(max_tokens=12))
    assert [output.token_ids for output in outputs] == expected


def test_numbers_are_split_into_digits(smollm2: LoadedModel) -> None:
    """As SmolLM2 was trained; the reader of GGUF files drops the rule."""
    tokenizer = smollm2.tokenizer
    for text in ("2024", " 2024", "x2024", "10000"):
        digits = [piece for t in tokenizer.encode(text) if (piece := tokenizer.decode([t]).strip()).isdigit()]
        assert digits == [d for d in text if d.isdigit()]
