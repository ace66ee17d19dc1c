"""The metrics of llama.cpp's server, with --metrics: from its documentation (tools/server/README.md) and source.
Untested against a live server.

It has slots, of which each serves one request, and counts the output of a request when that has ended. Until 2025 it
also told how full its KV cache is. It has no distributions, and nothing about an engine that preempts.
"""

from __future__ import annotations

from app.attach.metrics import Readings, Sample
from engine.poll import Rank

PREFIX = "llamacpp:"
NAMES = (
    "llamacpp:requests_processing",
    "llamacpp:requests_deferred",
    "llamacpp:kv_cache_usage_ratio",
    "llamacpp:n_decode",
    "llamacpp:prompt_tokens_total",
    "llamacpp:tokens_predicted_total",
)


def read(readings: Readings) -> Sample:
    """All of it. Its prompt tokens are those that were computed."""
    rank = Rank(
        num_running=readings.count("llamacpp:requests_processing"),
        num_waiting=readings.count("llamacpp:requests_deferred"),
        kv_usage=readings.share("llamacpp:kv_cache_usage_ratio"),
        num_iterations=readings.count("llamacpp:n_decode"),
        num_prompt_tokens=readings.count("llamacpp:prompt_tokens"),
        num_generation_tokens=readings.count("llamacpp:tokens_predicted"),
    )
    return Sample((rank,), {}, counts_at_end=True)
