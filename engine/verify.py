"""The chapter's experiment: the same requests under three configurations, each against transformers alone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from transformers import GenerationConfig

from engine.build import serve_model
from engine.config import EngineConfig
from engine.model import LoadedModel
from engine.policy import policy_class
from engine.request import SamplingParams

QUESTIONS = (
    "What is a KV cache?",
    "Explain continuous batching in one sentence.",
    "What does a scheduler do when memory runs out?",
    "Write a metaphor about the moon.",
    "Explain tensor parallelism in one sentence.",
    "What is 1 + 1? Answer directly.",
)
NUM_TOKENS = 24
FEW_BLOCKS = 11
"""Ten that can be used, for six requests of which each fills about five."""


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the experiment's table."""

    name: str
    steps: int
    preemptions: int
    seconds: float
    same: bool


def verify(loaded: LoadedModel, config: EngineConfig) -> Iterator[Result]:
    """First transformers, one request after another; then our engine, all together, three times.

    Call it with a model that no runner has taken over yet.
    """
    prompts = [loaded.tokenizer.encode_chat(question) for question in QUESTIONS]
    begin = time.perf_counter()
    reference = [generate_alone(loaded, prompt, NUM_TOKENS) for prompt in prompts]
    yield Result("transformers, one by one", 0, 0, time.perf_counter() - begin, True)
    for name, variant in configurations(config).items():
        engine = serve_model(loaded, variant).engine
        steps = preemptions = 0
        outputs: dict[str, list[int]] = {}
        begin = time.perf_counter()
        for index, prompt in enumerate(prompts):
            engine.add_request(prompt, SamplingParams(max_tokens=NUM_TOKENS), request_id=str(index))
        while engine.has_unfinished_requests:
            trace = engine.step()
            steps += 1
            preemptions += len(trace.preemptions)
            for output in trace.outputs:
                outputs.setdefault(output.request_id, []).append(output.token_id)
        seconds = time.perf_counter() - begin
        same = [outputs[str(index)] for index in range(len(prompts))] == reference
        yield Result(name, steps, preemptions, seconds, same)


def configurations(config: EngineConfig) -> dict[str, EngineConfig]:
    """The three configurations of the experiment, from the one in the settings."""
    cuts = "fcfs" if policy_class(config.policy).whole_prompts else config.policy
    room = (FEW_BLOCKS - 1) * config.block_size
    return {
        "as configured": config,
        "budget of 32 tokens": replace(config, max_num_batched_tokens=32, enable_chunked_prefill=True, policy=cuts),
        f"{FEW_BLOCKS - 1} KV blocks": replace(
            config, num_blocks=FEW_BLOCKS, max_model_len=min(room, config.max_model_len)
        ),
    }


@torch.inference_mode()
def generate_alone(loaded: LoadedModel, prompt: list[int], max_tokens: int) -> list[int]:
    """Greedy output of transformers' own `generate` for one prompt, with the model's own attention."""
    model = loaded.model
    model.set_attn_implementation("sdpa")
    ids = torch.tensor([prompt], device=model.device)
    # Not the model's own generation config: a repetition penalty in it would make another text.
    config = GenerationConfig(
        max_new_tokens=max_tokens, do_sample=False, eos_token_id=sorted(loaded.tokenizer.eos_token_ids) or None
    )
    own, model.generation_config = model.generation_config, config
    try:
        output = model.generate(ids, attention_mask=torch.ones_like(ids))
    finally:
        model.generation_config = own
    tokens: list[int] = output[0, len(prompt) :].tolist()
    return tokens
