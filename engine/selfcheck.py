"""Self-check at start: does this machine keep the promise that a schedule never changes a result?

Which matrix kernels a machine has decides how many rows have to come together before their results stop depending on
each other. So it is tried, at the model's own shapes: one prompt computed whole and alone, then in pieces beside
others. Layers have the same shapes, so the first and the last of them are enough, and it takes a moment only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from engine.config import EngineConfig
from engine.kv_cache import SPLIT
from engine.packed import compute_dtype, is_packed, is_packed_whole
from engine.progress import ModelError, one_line
from engine.request import Request, SamplingParams
from engine.runner import ModelRunner
from engine.sampler import Sampler
from engine.scheduler import Scheduler

WIDEST = 64
"""Rows that are tried to come together."""
NUM_TOKENS = SPLIT + 6
"""Prompt length: enough for a second split of keys."""
NUM_OUTPUTS = 4
"""So many of the prompt's are compared: the first comes of its last chunk, the others are decodes."""
MATE_OUTPUTS = 24
"""Enough to go on until the prompt has its own."""
MATES = (3, 5, 12, 20, 33, 45, 70, 100)
"""Prompt lengths of the others, which go on decoding beside it: keys of many lengths, and more rows than a tile has."""
BUDGET = 45
"""Of the schedule that cuts the prompts up."""
TOLERANCE = 0.02
"""Largest difference to the model's own attention, as a share of the logits' spread: far above rounding in any
dtype, far below what a wrong mask or position makes."""


@dataclass(frozen=True, slots=True)
class Exactness:
    """`bitwise`: logits are the same bits whatever the schedule. `max_difference`: the largest one seen in the check.

    Only dense models whose products are computed in float32 on the CPU are ever called bitwise: elsewhere rare
    differences escape a check this small.
    """

    bitwise: bool
    row_tile: int
    max_difference: float = 0.0

    def __str__(self) -> str:
        if self.bitwise:
            return "bitwise"
        seen = f"logits differ by up to {self.max_difference:.2g}" if self.max_difference else "no difference seen"
        return f"best effort ({seen} in the self-check)"


def own_logits(model: PreTrainedModel, config: EngineConfig) -> Tensor | None:
    """What the model's own modules and attention say to the check's prompt; None once a runner has packed them.

    Raises ModelError if it cannot be run.
    """
    if is_packed(model):
        return None
    with _two_layers(model), _refusing_what_cannot_run(model), torch.inference_mode():
        implementation = model.config._attn_implementation
        model.set_attn_implementation("sdpa")
        try:
            ids = torch.tensor([_prompt(model, config)], device=model.device)
            logits: Tensor = model(input_ids=ids, use_cache=False, logits_to_keep=1).logits[0, -1].float()
        finally:
            model.set_attn_implementation(implementation)
    return logits


def self_check(runner: ModelRunner, config: EngineConfig, own: Tensor | None = None) -> Exactness:
    """Try the runner out on its own model and set the narrowest row tile that keeps results exact.

    `own`: what `own_logits` gave before the runner took the model over. Raises ModelError if the paged attention does
    not compute the same: then the architecture needs something that a causal paged cache does not give.
    """
    prompt = _prompt(runner.model, config)
    mates = _mates(runner.model, config)
    least = runner.row_tile
    differences: list[float] = []
    with _two_layers(runner.model), _refusing_what_cannot_run(runner.model):
        tile = least
        while tile <= WIDEST:
            runner.row_tile = tile
            alone = _logits(runner, config, [], prompt, budget=len(prompt))
            if own is not None and not differences:
                _compare(runner.model, own, alone[0])
            mixed = _logits(runner, config, mates, prompt, BUDGET)
            differences.append(max(float((a - b).abs().max()) for a, b in zip(alone, mixed, strict=True)))
            if differences[-1] == 0.0:
                return Exactness(_can_be_exact(runner.model), tile)
            tile *= 2
    runner.row_tile = least
    return Exactness(False, least, differences[0])


def _prompt(model: PreTrainedModel, config: EngineConfig) -> list[int]:
    vocab_size = model.get_input_embeddings().weight.shape[0]
    return [(7 * i + i * i) % vocab_size for i in range(min(NUM_TOKENS, max(1, config.max_model_len - NUM_OUTPUTS)))]


def _mates(model: PreTrainedModel, config: EngineConfig) -> list[list[int]]:
    """Prompts to be served before the check's own, as many as there are blocks for."""
    vocab_size = model.get_input_embeddings().weight.shape[0]
    num_free = config.num_usable_blocks - -(-(NUM_TOKENS + NUM_OUTPUTS) // config.block_size)
    mates = []
    for length in MATES:
        num_free -= -(-(length + MATE_OUTPUTS) // config.block_size)
        if num_free < 0 or length + MATE_OUTPUTS > config.max_model_len:
            break
        mates.append([(11 * index + 3 * length) % vocab_size for index in range(length)])
    return mates


@contextmanager
def _two_layers(model: PreTrainedModel) -> Iterator[None]:
    """Leave only the first and the last decoder layer in place, where the architecture keeps them in `layers`."""
    base = model.base_model
    layers = getattr(base, "layers", None)
    if not isinstance(layers, torch.nn.ModuleList) or len(layers) <= 2:
        yield
        return
    base.layers = torch.nn.ModuleList([layers[0], layers[-1]])
    try:
        yield
    finally:
        base.layers = layers


@contextmanager
def _refusing_what_cannot_run(model: PreTrainedModel) -> Iterator[None]:
    """An architecture that calls its attention in another way fails in its first step: say so in one sentence."""
    try:
        yield
    except (TypeError, ValueError, RuntimeError, AttributeError, IndexError) as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(
            f"a {model.config.model_type} model cannot be run on the paged cache: {one_line(error, 200)}"
        ) from error


def _can_be_exact(model: PreTrainedModel) -> bool:
    """What may be called bitwise if it passes. Experts get rows in numbers that depend on the whole batch."""
    config = model.config.get_text_config()
    has_experts = any(getattr(config, name, None) for name in ("num_experts", "num_local_experts", "n_routed_experts"))
    computes_in_float32 = model.dtype == torch.float32 or (
        is_packed_whole(model) and compute_dtype(model.dtype) == torch.float32
    )
    return computes_in_float32 and model.device.type == "cpu" and not has_experts


class _Recorder(Sampler):
    """Keeps the logits of a request."""

    def __init__(self, request_id: str) -> None:
        super().__init__()
        self.request_id = request_id
        self.logits: list[Tensor] = []

    def sample(self, logits: Tensor, requests: Sequence[tuple[str, SamplingParams]]) -> list[int]:
        for row, (request_id, _) in zip(logits, requests, strict=True):
            if request_id == self.request_id:
                self.logits.append(row.float())
        return super().sample(logits, requests)


def _logits(
    runner: ModelRunner, config: EngineConfig, mates: Sequence[list[int]], prompt: list[int], budget: int
) -> list[Tensor]:
    """Serve the prompt behind its mates until it has its outputs; the logits that it sampled from."""
    check = replace(
        config,
        max_num_batched_tokens=budget,
        max_num_seqs=1 + len(mates),
        enable_chunked_prefill=True,
        enable_prefix_caching=False,
        policy="fcfs",
    )
    scheduler = Scheduler(check)
    for index, mate in enumerate(mates):
        scheduler.add_request(Request(str(index), mate, SamplingParams(max_tokens=MATE_OUTPUTS)))
    scheduler.add_request(Request("checked", prompt, SamplingParams(max_tokens=NUM_OUTPUTS)))
    recorder = _Recorder("checked")
    sampler, runner.sampler = runner.sampler, recorder
    try:
        while "checked" in scheduler.requests:
            output = scheduler.schedule()
            scheduler.update_from_output(output, runner.execute(output).sampled)
    finally:
        runner.sampler = sampler
    return recorder.logits


def _compare(model: PreTrainedModel, own: Tensor, ours: Tensor) -> None:
    difference = float((ours - own).abs().max() / own.std().clamp(min=1e-6))
    if not difference < TOLERANCE * (1 if model.dtype == torch.float32 else 10):
        raise ModelError(
            f"this {model.config.model_type} model does not give the same results on the paged cache (off by "
            f"{difference:.2g} of the logits' spread): it does more than plain causal attention. It cannot be run."
        )
