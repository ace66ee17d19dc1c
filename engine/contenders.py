"""Engines that serve the same prompts greedily, to be measured against each other: ours, and what people would use.

Each one is made in a process of its own (`app.bench_engine`), so that no library's threads or memory are another's.
A contender takes prompts as token ids and gives each exactly `num_tokens` more, whatever the model says of ending.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

import msgspec

from engine.locate import locate

Prompts = Sequence[Sequence[int]]
Generate = Callable[[Prompts, int], list[list[int]]]


class Contest(msgspec.Struct, frozen=True):
    """What all contenders are given: the model, CPU threads, and room for so many requests of such a length."""

    model: str
    dtype: str
    threads: int
    num_requests: int
    max_model_len: int


def nanoviz(contest: Contest) -> Generate:
    """Our engine, with room for all requests at once and one step for their prompts."""
    from engine.build import build_engine
    from engine.config import EngineConfig
    from engine.request import SamplingParams

    block_size = EngineConfig().block_size
    config = EngineConfig(
        max_num_seqs=contest.num_requests,
        max_num_batched_tokens=contest.num_requests * contest.max_model_len,
        max_model_len=contest.max_model_len,
        num_blocks=contest.num_requests * -(-contest.max_model_len // block_size) + 1,
        enable_prefix_caching=False,
    )
    built = build_engine(contest.model, config, dtype=contest.dtype, device="cpu", threads=contest.threads)

    def generate(prompts: Prompts, num_tokens: int) -> list[list[int]]:
        outputs = built.engine.generate(prompts, SamplingParams(max_tokens=num_tokens, ignore_eos=True))
        return [output.token_ids for output in outputs]

    return generate


def one_by_one(contest: Contest) -> Generate:
    """transformers' `generate`, a prompt at a time."""
    model, config = _transformers(contest)

    def generate(prompts: Prompts, num_tokens: int) -> list[list[int]]:
        import torch

        outputs = []
        for prompt in prompts:
            ids = torch.tensor([prompt])
            output = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config(num_tokens))
            outputs.append(output[0, len(prompt) :].tolist())
        return outputs

    return generate


def padded(contest: Contest) -> Generate:
    """transformers' `generate` on one batch, short prompts padded on the left."""
    model, config = _transformers(contest)

    def generate(prompts: Prompts, num_tokens: int) -> list[list[int]]:
        import torch

        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        output = model.generate(ids, attention_mask=mask, generation_config=config(num_tokens))
        return [row[longest:].tolist() for row in output]

    return generate


def continuous(contest: Contest) -> Generate:
    """transformers' continuous batching, `generate_batch`, with room for all requests and up to 512 tokens a step."""
    from transformers import ContinuousBatchingConfig

    model, config = _transformers(contest)
    page_size = 16
    batching = ContinuousBatchingConfig(
        page_size=page_size,
        num_blocks=contest.num_requests * (-(-contest.max_model_len // page_size) + 1),
        max_batch_tokens=512,
        max_requests_per_batch=contest.num_requests,
        allow_block_sharing=False,
    )

    def generate(prompts: Prompts, num_tokens: int) -> list[list[int]]:
        outputs: dict[str, Any] = model.generate_batch(
            [list(prompt) for prompt in prompts],
            generation_config=config(num_tokens),
            continuous_batching_config=batching,
            progress_bar=False,
            warmup=False,
        )
        by_prompt = {tuple(output.prompt_ids): list(output.generated_tokens) for output in outputs.values()}
        return [by_prompt[tuple(prompt)] for prompt in prompts]

    return generate


def vllm(contest: Contest) -> Generate:
    """vLLM on the CPU, without compilation, in this process and on the same threads."""
    cores = sorted(os.sched_getaffinity(0))[: contest.threads]
    os.environ.update(
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        VLLM_CPU_KVCACHE_SPACE="1",
        VLLM_CPU_OMP_THREADS_BIND=",".join(map(str, cores)),
        VLLM_HOST_IP="127.0.0.1",
        VLLM_NO_USAGE_STATS="1",
        VLLM_LOGGING_LEVEL="ERROR",
    )
    from vllm import LLM, SamplingParams

    engine = LLM(
        _folder(contest.model),
        dtype=contest.dtype,
        max_model_len=contest.max_model_len,
        max_num_seqs=contest.num_requests,
        block_size=32,  # the smallest that it takes on a CPU
        enforce_eager=True,
        enable_prefix_caching=False,
    )

    def generate(prompts: Prompts, num_tokens: int) -> list[list[int]]:
        params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True, detokenize=False)
        inputs = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        return [list(output.outputs[0].token_ids) for output in engine.generate(inputs, params, use_tqdm=False)]

    return generate


CONTENDERS: dict[str, tuple[Callable[[Contest], Generate], str]] = {
    "nanoviz": (nanoviz, "torch"),
    "transformers, one by one": (one_by_one, "transformers"),
    "transformers, continuous batching": (continuous, "transformers"),
    "transformers, one padded batch": (padded, "transformers"),
    "vLLM, eager": (vllm, "vllm"),
}
"""How each is made, and the package whose version says which one it is; ours first, then the reference for outputs."""


def available() -> dict[str, str]:
    """The contenders that can be imported here, each with the version of what it runs on."""
    found = {}
    for name, (_, package) in CONTENDERS.items():
        if find_spec(package):
            found[name] = f"{package} {_version(package)}"
    return found


def _version(package: str) -> str:
    for distribution in (package, f"{package}-cpu"):
        try:
            return version(distribution)
        except PackageNotFoundError:
            pass
    return "?"


def _folder(model: str) -> str:
    """A folder in which others find the model too."""
    from engine import smollm2

    place, path = locate(model)
    return str(smollm2.ensure(lambda _: None) if place == "smollm2" else path)


def _transformers(contest: Contest) -> tuple[Any, Callable[[int], Any]]:
    """The model as transformers loads it, and the settings of a greedy run to the last of so many tokens."""
    import torch
    from transformers import GenerationConfig

    from engine.model import load_model

    loaded = load_model(contest.model, dtype=contest.dtype, threads=contest.threads)
    loaded.model.set_attn_implementation("sdpa")
    loaded.model.generation_config = GenerationConfig()
    torch.set_grad_enabled(False)

    def config(num_tokens: int) -> GenerationConfig:
        # -1 is no token: nothing ends early, and nothing that is generated counts as padding.
        return GenerationConfig(
            max_new_tokens=num_tokens, min_new_tokens=num_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0
        )

    return loaded.model, config
