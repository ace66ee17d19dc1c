"""vLLM's metrics (v1/metrics/loggers.py; tried with 0.32), with the names that older versions had for them.

Those of the KV cache were called after the GPU: `gpu_cache_usage_perc` until 0.9.1 (both until 0.10), and
`gpu_prefix_cache_queries` and `_hits` alike. What is inter_token_latency_seconds since 0.10.2 was
`time_per_output_token_seconds`. Before there was data parallelism nothing had the label of an engine.
"""

from __future__ import annotations

from app.attach.metrics import Readings, Sample, ranks_of
from engine.poll import Measured, Rank

PREFIX = "vllm:"
_LATENCIES: dict[Measured, tuple[str, ...]] = {
    "ttft": ("vllm:time_to_first_token_seconds",),
    "itl": ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
    "queue": ("vllm:request_queue_time_seconds",),
    "e2e": ("vllm:e2e_request_latency_seconds",),
}
NAMES = (
    "process_start_time_seconds",
    "vllm:num_requests_",
    "vllm:kv_cache_usage_perc",
    "vllm:gpu_cache_usage_perc",
    "vllm:prefix_cache_",
    "vllm:gpu_prefix_cache_",
    "vllm:num_preemptions",
    "vllm:prompt_tokens",
    "vllm:generation_tokens",
    "vllm:iteration_tokens_total_count",
    "vllm:request_success",
    "vllm:cache_config_info",
    *(name for names in _LATENCIES.values() for name in names),
)
_CONFIG = {"block_size": "block_size", "num_gpu_blocks": "num_blocks"}
"""Labels of cache_config_info, and the parameter that each is."""


def read(readings: Readings) -> Sample:
    """All of it, for each engine of the server."""
    return Sample(
        ranks_of(readings, "engine", _rank, _LATENCIES),
        readings.histograms(_LATENCIES),
        began=readings.value("process_start_time_seconds"),
        model=readings.labels_of("vllm:num_requests_running").get("model_name", ""),
        config=_config(readings),
    )


def _rank(name: str, readings: Readings) -> Rank:
    prompt = readings.count("vllm:prompt_tokens")
    cached = readings.count("vllm:prompt_tokens_cached")
    computed = readings.count("vllm:prompt_tokens_by_source", source="local_compute")
    if computed is None:
        computed = prompt - cached if prompt is not None and cached is not None else prompt
    return Rank(
        name=name,
        num_running=readings.count("vllm:num_requests_running"),
        num_waiting=readings.count("vllm:num_requests_waiting"),
        waiting_by_reason=readings.counts_by("reason", "vllm:num_requests_waiting_by_reason") or {},
        kv_usage=readings.share("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        num_iterations=readings.count("vllm:iteration_tokens_total_count"),
        num_prompt_tokens=computed,
        num_cached_tokens=cached,
        num_generation_tokens=readings.count("vllm:generation_tokens"),
        num_queried_tokens=readings.count("vllm:prefix_cache_queries", "vllm:gpu_prefix_cache_queries"),
        num_hit_tokens=readings.count("vllm:prefix_cache_hits", "vllm:gpu_prefix_cache_hits"),
        num_preemptions=readings.count("vllm:num_preemptions"),
        finished=readings.counts_by("finished_reason", "vllm:request_success"),
    )


def _config(readings: Readings) -> dict[str, bool | int]:
    """num_gpu_blocks includes the null block, as our num_blocks does."""
    labels = readings.labels_of("vllm:cache_config_info")
    config: dict[str, bool | int] = {
        parameter: int(labels[label]) for label, parameter in _CONFIG.items() if labels.get(label, "").isdecimal()
    }
    if (caching := labels.get("enable_prefix_caching")) in ("True", "False"):
        config["enable_prefix_caching"] = caching == "True"
    return config
