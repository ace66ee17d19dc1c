"""Metrics: what the steps add up to, under the names of vLLM 0.32 (v1/metrics/loggers.py), for Prometheus.

Only what is true of this engine is there. Definitions are vLLM's: a prompt counts when its first token is there, and
who was aborted counts among neither the requests that succeeded nor the latencies. Counters go on when the engine
begins anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from engine.config import EngineConfig
from engine.trace import Arrival, Finished, Scheduled, StepTrace

LABELS = ("model_name", "engine")
ENGINE = "0"
"""The number of the only engine."""
REASONS = ("stop", "length", "abort", "error", "repetition")
SOURCES = ("local_compute", "local_cache_hit", "external_kv_transfer")
"""vLLM's; a label that never comes up stands at 0, as it does there."""

# Upper bounds of buckets, vLLM's (v1/metrics/buckets.py); one more holds what is above.
ITERATION_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
PREEMPTIONS = (1, 2, 3, 4, 5, 10, 20)
N = (1, 2, 5, 10, 20)
TTFT = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
)
ITL = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
LATENCY = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)


@dataclass(slots=True)
class _Request:
    """What is noted of a request until it ends. Times are seconds of the engine's clock."""

    arrival: Arrival
    first_scheduled: float | None = None
    num_cached_tokens: int = 0
    """Of its prompt, found in the prefix cache when it was first admitted."""
    first_token: float = 0.0
    last_token: float = 0.0
    num_tokens: int = 0


class Metrics:
    """`apply` takes one step after another, with everybody's requests; `text` is what Prometheus reads."""

    def __init__(self, model_name: str, config: EngineConfig) -> None:
        """`config` is what the engine was started with."""
        self._requests: dict[str, _Request] = {}
        self._registry = registry = CollectorRegistry()
        labels = (model_name, ENGINE)

        def gauge(name: str, help: str) -> Gauge:
            return Gauge(f"vllm:{name}", help, LABELS, registry=registry).labels(*labels)

        def counter(name: str, help: str) -> Counter:
            return Counter(f"vllm:{name}", help, LABELS, registry=registry).labels(*labels)

        def counters(name: str, help: str, label: str, values: Iterable[str]) -> dict[str, Counter]:
            """One for each value of one more label."""
            parent = Counter(f"vllm:{name}", help, (*LABELS, label), registry=registry)
            return {value: parent.labels(*labels, value) for value in values}

        def histogram(name: str, help: str, buckets: Iterable[float]) -> Histogram:
            made = Histogram(f"vllm:{name}", help, LABELS, registry=registry, buckets=tuple(buckets))
            return made.labels(*labels)

        self._running = gauge("num_requests_running", "Requests that run.")
        self._waiting = gauge("num_requests_waiting", "Requests that wait.")
        waiting = Gauge("vllm:num_requests_waiting_by_reason", "The same.", (*LABELS, "reason"), registry=registry)
        self._waiting_for_capacity = waiting.labels(*labels, "capacity")
        waiting.labels(*labels, "deferred")
        self._usage = gauge("kv_cache_usage_perc", "Share of the KV blocks that requests hold, from 0 to 1.")
        self._cache_config = Gauge(
            "vllm:cache_config_info",
            "The KV pool; num_gpu_blocks counts the null block, which is never handed out.",
            ("engine", "block_size", "num_gpu_blocks", "enable_prefix_caching"),
            registry=registry,
        )
        self._tell_config(config)
        self._queries = counter("prefix_cache_queries", "Tokens looked up in the prefix cache at first admissions.")
        self._hits = counter("prefix_cache_hits", "Of these, the tokens found.")
        self._preemptions = counter("num_preemptions", "Preemptions.")
        self._prompt_tokens = counter("prompt_tokens", "Prompt tokens of requests that got their first token.")
        self._by_source = counters("prompt_tokens_by_source", "The same, by where they came from.", "source", SOURCES)
        self._cached = counter("prompt_tokens_cached", "The same, as far as the prefix cache held them.")
        self._generation_tokens = counter("generation_tokens", "Output tokens.")
        self._success = counters("request_success", "Requests that ended by themselves.", "finished_reason", REASONS)
        self._rejections = Counter(
            "vllm:admission_rejections", "Requests refused by a limit.", ("model_name", "reason"), registry=registry
        ).labels(model_name, "max_num_queued_reqs")

        tokens = _buckets_1_2_5(config.max_model_len)
        self._iteration_tokens = histogram(
            "iteration_tokens_total", "Prompt and output tokens of each step that gave a token.", ITERATION_TOKENS
        )
        self._ttft = histogram("time_to_first_token_seconds", "From arrival to first token, with the queue.", TTFT)
        self._itl = histogram("inter_token_latency_seconds", "Gaps between two tokens of a request.", ITL)
        self._tpot = histogram("request_time_per_output_token_seconds", "Mean gap between a request's tokens.", ITL)
        self._e2e = histogram("e2e_request_latency_seconds", "From arrival to the end.", LATENCY)
        self._queue = histogram("request_queue_time_seconds", "From arrival until first scheduled.", LATENCY)
        self._inference = histogram("request_inference_time_seconds", "First scheduled to last token.", LATENCY)
        self._prefill = histogram("request_prefill_time_seconds", "First scheduled to first token.", LATENCY)
        self._decode = histogram("request_decode_time_seconds", "First token to last token.", LATENCY)
        self._num_prompt = histogram("request_prompt_tokens", "Prompt tokens of a request.", tokens)
        self._num_computed = histogram(
            "request_prefill_kv_computed_tokens", "The same, without those in the prefix cache.", tokens
        )
        self._num_generated = histogram("request_generation_tokens", "Output tokens of a request.", tokens)
        self._max_generated = histogram(
            "request_max_num_generation_tokens", "The same, of the longest of its n outputs.", tokens
        )
        self._max_tokens = histogram("request_params_max_tokens", "max_tokens, as far as there is room.", tokens)
        self._n = histogram("request_params_n", "n, which is 1.", N)
        self._num_preemptions = histogram("request_num_preemptions", "Preemptions of a request.", PREEMPTIONS)

    def text(self) -> bytes:
        """All of it in Prometheus' text format."""
        return generate_latest(self._registry)

    def count_rejection(self) -> None:
        """A request found the queue full."""
        self._rejections.inc()

    def forget_requests(self) -> None:
        """The engine has ended or begins anew: nobody is left."""
        self._requests.clear()
        for gauge in (self._running, self._waiting, self._waiting_for_capacity, self._usage):
            gauge.set(0)

    def apply(self, trace: StepTrace) -> None:
        """Take in the next step."""
        for arrival in trace.arrivals:
            self._requests[arrival.request_id] = _Request(arrival)
        for item in trace.scheduled:
            self._schedule(item, trace)
        self._preemptions.inc(len(trace.preemptions))
        self._give_tokens(trace)
        for finished in trace.finished:
            self._finish(finished, trace.config)
        self._running.set(sum(request_id in self._requests for request_id in trace.running))
        self._waiting.set(trace.num_waiting)
        self._waiting_for_capacity.set(trace.num_waiting)
        self._usage.set(1 - trace.num_free_blocks / trace.config.num_usable_blocks)
        if trace.config != self._config:
            self._tell_config(trace.config)

    def _tell_config(self, config: EngineConfig) -> None:
        """What `cache_config_info` tells about."""
        self._config = config
        self._cache_config.clear()
        self._cache_config.labels(
            ENGINE, str(config.block_size), str(config.num_blocks), str(config.enable_prefix_caching)
        ).set(1)

    def _schedule(self, item: Scheduled, trace: StepTrace) -> None:
        request = self._requests[item.request_id]
        if request.first_scheduled is not None:
            return
        request.first_scheduled = trace.started
        request.num_cached_tokens = item.num_cached_tokens
        if trace.config.enable_prefix_caching:
            self._queries.inc(request.arrival.num_prompt_tokens)
            self._hits.inc(item.num_cached_tokens)

    def _give_tokens(self, trace: StepTrace) -> None:
        """A token is there when its step is over."""
        now = trace.started + trace.times.total
        num_computed = 0
        for output in trace.outputs:
            request = self._requests[output.request_id]
            if request.num_tokens:
                self._itl.observe(now - request.last_token)
            else:
                request.first_token = now
                self._ttft.observe(now - request.arrival.time)
                num_computed += self._count_prompt(request)
            request.last_token = now
            request.num_tokens += 1
        self._generation_tokens.inc(len(trace.outputs))
        if trace.outputs:
            self._iteration_tokens.observe(num_computed + len(trace.outputs))

    def _count_prompt(self, request: _Request) -> int:
        """Its prompt is through; returns how many tokens of it were computed."""
        num_prompt, num_cached = request.arrival.num_prompt_tokens, request.num_cached_tokens
        self._prompt_tokens.inc(num_prompt)
        self._cached.inc(num_cached)
        self._by_source["local_compute"].inc(num_prompt - num_cached)
        self._by_source["local_cache_hit"].inc(num_cached)
        return num_prompt - num_cached

    def _finish(self, finished: Finished, config: EngineConfig) -> None:
        request = self._requests.pop(finished.request_id)
        if finished.reason == "abort" or request.first_scheduled is None or not request.num_tokens:
            return
        num_prompt = request.arrival.num_prompt_tokens
        decode = request.last_token - request.first_token
        self._success[finished.reason].inc()
        self._e2e.observe(finished.e2e or 0.0)
        self._queue.observe(request.first_scheduled - request.arrival.time)
        self._prefill.observe(request.first_token - request.first_scheduled)
        self._inference.observe(request.last_token - request.first_scheduled)
        self._decode.observe(decode)
        self._tpot.observe(decode / (request.num_tokens - 1) if request.num_tokens > 1 else 0.0)
        self._num_prompt.observe(num_prompt)
        self._num_computed.observe(num_prompt - request.num_cached_tokens)
        self._num_generated.observe(request.num_tokens)
        self._max_generated.observe(request.num_tokens)
        self._max_tokens.observe(min(request.arrival.max_tokens, config.max_model_len - num_prompt))
        self._n.observe(1)
        self._num_preemptions.observe(finished.num_preemptions)


def _buckets_1_2_5(largest: int) -> list[int]:
    """1, 2, 5, 10, 20, 50 ... up to `largest`."""
    steps = (step * 10**power for power in range(len(str(largest))) for step in (1, 2, 5))
    return [step for step in steps if step <= largest]
