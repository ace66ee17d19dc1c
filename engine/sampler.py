"""Sampler: from a request's logits to its next token, the same whatever runs beside it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.request import SamplingParams

GREEDY_BELOW = 1e-5
"""Temperatures below are greedy: dividing by them would overflow (vLLM draws the line here too)."""


class Sampler:
    """Greedy, temperature, top-k and top-p; a random generator of its own for each sampling request."""

    def __init__(self) -> None:
        self._generators: dict[str, torch.Generator] = {}

    def sample(self, logits: Tensor, requests: Sequence[tuple[str, SamplingParams]]) -> list[int]:
        """One token for each row of `logits [requests, vocab]`."""
        tokens: list[int] = logits.argmax(-1).tolist()
        for row, (request_id, params) in enumerate(requests):
            if params.temperature >= GREEDY_BELOW:
                probabilities = _probabilities(logits[row].float(), params)
                tokens[row] = int(torch.multinomial(probabilities, 1, generator=self._generator(request_id, params)))
        return tokens

    def forget(self, request_id: str) -> None:
        """Drop the generator of a request that has ended."""
        self._generators.pop(request_id, None)

    def _generator(self, request_id: str, params: SamplingParams) -> torch.Generator:
        generator = self._generators.get(request_id)
        if generator is None:
            generator = self._generators[request_id] = torch.Generator()
            if params.seed is None:
                generator.seed()
            else:
                generator.manual_seed(params.seed)
        return generator


def _probabilities(logits: Tensor, params: SamplingParams) -> Tensor:
    """The distribution to draw from, `[vocab]`, on the CPU: temperature first, then top-k, then top-p, as in vLLM."""
    logits = logits.cpu() / params.temperature
    if 0 < params.top_k < len(logits):
        kth_best = logits.topk(params.top_k).values[-1]
        logits = logits.masked_fill(logits < kth_best, float("-inf"))
    probabilities = torch.softmax(logits, -1)
    if params.top_p < 1:
        ordered, order = probabilities.sort(descending=True, stable=True)
        # A token goes when those above it already make up top_p; the best one always stays.
        beyond = ordered.cumsum(-1) - ordered >= params.top_p
        beyond[0] = False
        probabilities[order[beyond]] = 0
    return probabilities
