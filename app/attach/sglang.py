"""SGLang's metrics, with --enable-metrics: from its source (python/sglang/srt/metrics/collector.py, since moved to
observability/metrics_collector.py) and its documentation. Untested against a live server.

Its schedulers tell how they are now, each for its rank of data parallelism; newer ones also which tokens they compute
(`realtime_tokens_total`). Without that there are only counts of requests that have ended, over all ranks.
"""

from __future__ import annotations

from app.attach.metrics import Readings, Sample, ranks_of
from engine.poll import Measured, Rank

PREFIX = "sglang:"
_LATENCIES: dict[Measured, tuple[str, ...]] = {
    "ttft": ("sglang:time_to_first_token_seconds",),
    "itl": ("sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds"),
    "queue": ("sglang:queue_time_seconds",),
    "e2e": ("sglang:e2e_request_latency_seconds",),
}
NAMES = (
    "process_start_time_seconds",
    "sglang:num_running_reqs",
    "sglang:num_queue_reqs",
    "sglang:token_usage",
    "sglang:realtime_tokens",
    "sglang:prompt_tokens",
    "sglang:cached_tokens",
    "sglang:generation_tokens",
    "sglang:num_retracted_requests",
    "sglang:num_requests",
    "sglang:num_aborted_requests",
    "sglang:cache_config_info",
    "sglang:page_size",
    "sglang:num_pages",
    *(name for names in _LATENCIES.values() for name in names),
)


def read(readings: Readings) -> Sample:
    """All of it. Ranks of other kinds than data parallelism say the same once more: only the first is heard."""
    readings = readings.where(tp_rank="0", pp_rank="0")
    return Sample(
        ranks_of(readings, "dp_rank", _rank, _LATENCIES),
        readings.histograms(_LATENCIES),
        began=readings.value("process_start_time_seconds"),
        model=readings.labels_of("sglang:num_running_reqs").get("model_name", ""),
        counts_at_end=_counts_at_end(readings),
        config=_config(readings),
    )


def _rank(name: str, readings: Readings) -> Rank:
    computed = readings.count("sglang:realtime_tokens", mode="prefill_compute")
    cached = readings.count("sglang:realtime_tokens", mode="prefill_cache")
    generated = readings.count("sglang:realtime_tokens", mode="decode")
    if computed is None:
        computed, cached = readings.count("sglang:prompt_tokens"), readings.count("sglang:cached_tokens")
        if computed is not None and cached is not None:
            computed -= cached
    finished = {
        reason: count
        for reason, count in (
            ("ended", readings.count("sglang:num_requests")),
            ("abort", readings.count("sglang:num_aborted_requests")),
        )
        if count is not None
    }
    return Rank(
        name=name,
        num_running=readings.count("sglang:num_running_reqs"),
        num_waiting=readings.count("sglang:num_queue_reqs"),
        kv_usage=readings.share("sglang:token_usage"),
        num_prompt_tokens=computed,
        num_cached_tokens=cached,
        num_generation_tokens=readings.count("sglang:generation_tokens") if generated is None else generated,
        num_queried_tokens=computed + cached if computed is not None and cached is not None else None,
        num_hit_tokens=cached,
        num_preemptions=readings.count("sglang:num_retracted_requests"),
        finished=finished or None,
    )


def _counts_at_end(readings: Readings) -> bool:
    """The schedulers do not tell which tokens they compute."""
    return readings.count("sglang:realtime_tokens") is None and readings.count("sglang:generation_tokens") is not None


def _config(readings: Readings) -> dict[str, bool | int]:
    """Its pages are our blocks, without a null block among them. Until 0.5.10 they stood in labels."""
    labels = readings.labels_of("sglang:cache_config_info")
    told = {name: readings.count(f"sglang:{name}") for name in ("page_size", "num_pages")}
    told |= {name: int(labels[name]) for name in told if labels.get(name, "").isdecimal()}
    config: dict[str, bool | int] = {}
    if page_size := told["page_size"]:
        config["block_size"] = page_size
    if num_pages := told["num_pages"]:
        config["num_blocks"] = num_pages + 1
    return config
