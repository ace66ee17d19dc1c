"""Metrics: vLLM's names, and what the traces say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from app.serve.metrics import Metrics
from engine.config import EngineConfig
from engine.trace import StepTrace
from tests.app.support import SCENARIOS, STEP_SECONDS, TIMES, ScriptedEngine, scenario, scenario_view
from tests.engine.support import config

VLLM = json.loads((Path(__file__).parents[1] / "data" / "vllm-metrics.json").read_text(encoding="utf-8"))


def metrics_of(traces: tuple[StepTrace, ...] | list[StepTrace]) -> Metrics:
    metrics = Metrics("a-model", EngineConfig())
    for trace in traces:
        metrics.apply(trace)
    return metrics


def families(metrics: Metrics) -> list[Metric]:
    found = text_string_to_metric_families(metrics.text().decode())
    return [family for family in found if not family.name.endswith("_created")]


def values(metrics: Metrics) -> dict[str, float]:
    """Samples by name, and by the label that only some have."""
    found = {}
    for family in families(metrics):
        for sample in family.samples:
            label = sample.labels.get("source") or sample.labels.get("reason") or sample.labels.get("finished_reason")
            if "le" not in sample.labels:
                found[f"{sample.name}{{{label}}}" if label else sample.name] = sample.value
    return found


def test_names_types_labels_and_buckets_are_vllms() -> None:
    found = families(metrics_of(scenario("busy")))
    assert len(found) > 25
    for family in found:
        vllm = VLLM[family.name]
        assert family.type == vllm["type"]
        for sample in family.samples:
            labels = set(sample.labels) - {"le"}
            if family.name == "vllm:cache_config_info":
                assert labels < set(vllm["labels"])
            else:
                assert labels == set(vllm["labels"]), family.name
        if family.type == "histogram":
            bounds = [sample.labels["le"] for sample in family.samples if "le" in sample.labels]
            assert bounds == vllm["buckets"], family.name


@pytest.mark.parametrize("name", SCENARIOS)
def test_they_agree_with_the_traces(name: str) -> None:
    traces = scenario(name)
    if not traces:
        return
    view, found = scenario_view(name), values(metrics_of(traces))
    last = traces[-1]
    ended = [finished for trace in traces for finished in trace.finished]
    alive = {*last.running} - {finished.request_id for finished in ended}
    assert found["vllm:num_requests_running"] == len(alive)
    assert found["vllm:num_requests_waiting"] == last.num_waiting
    assert found["vllm:num_requests_waiting_by_reason{capacity}"] == last.num_waiting
    held = len(view.holders) / last.config.num_usable_blocks
    assert found["vllm:kv_cache_usage_perc"] == pytest.approx(held)
    assert found["vllm:num_preemptions_total"] == sum(len(trace.preemptions) for trace in traces)
    assert found["vllm:generation_tokens_total"] == sum(len(trace.outputs) for trace in traces)
    for reason in ("stop", "length"):
        count = sum(finished.reason == reason for finished in ended)
        assert found[f"vllm:request_success_total{{{reason}}}"] == count
    by_themselves = sum(finished.reason != "abort" for finished in ended)
    assert found["vllm:e2e_request_latency_seconds_count"] == by_themselves
    assert found["vllm:request_success_total{abort}"] == 0, "as in vLLM"
    with_tokens = {output.request_id for trace in traces for output in trace.outputs}
    assert found["vllm:time_to_first_token_seconds_count"] == len(with_tokens)
    assert found["vllm:inter_token_latency_seconds_count"] == found["vllm:generation_tokens_total"] - len(with_tokens)
    if len(view.requests) < 50:
        gaps = [gap for request in view.requests.values() for gap in request.itl]
        assert found["vllm:inter_token_latency_seconds_sum"] == pytest.approx(sum(gaps))
        firsts = [request.ttft for request in view.requests.values() if request.ttft is not None]
        assert found["vllm:time_to_first_token_seconds_sum"] == pytest.approx(sum(firsts))


def test_what_one_request_adds_up_to() -> None:
    """Three chunks of a prompt of 40 tokens at 16 a step, then three more tokens, each step taking as long."""
    stage = ScriptedEngine(config(blocks=8, bs=8, budget=16, seqs=2, length=64))
    stage.add([7] * 40, 4)
    stage.run_to_end()
    found = values(metrics_of(stage.traces))
    last = TIMES.total
    expected = {
        "queue_time": 0.0,
        "prefill_time": 2 * STEP_SECONDS + last,
        "decode_time": 3 * STEP_SECONDS,
        "inference_time": 5 * STEP_SECONDS + last,
        "time_per_output_token": STEP_SECONDS,
    }
    for name, seconds in expected.items():
        assert found[f"vllm:request_{name}_seconds_sum"] == pytest.approx(seconds, abs=1e-6), name
    assert found["vllm:request_prompt_tokens_sum"] == found["vllm:prompt_tokens_total"] == 40
    assert found["vllm:request_generation_tokens_sum"] == 4
    assert found["vllm:request_params_max_tokens_sum"] == 4
    assert (found["vllm:iteration_tokens_total_count"], found["vllm:iteration_tokens_total_sum"]) == (4, 44)


def test_the_prefix_cache_counts_first_admissions_only() -> None:
    stage = ScriptedEngine(config(blocks=40, bs=8, budget=64, seqs=4, length=128))
    for _ in range(2):
        stage.add([3] * 20, 2)
        stage.run_to_end()
    found = values(metrics_of(stage.traces))
    assert (found["vllm:prefix_cache_queries_total"], found["vllm:prefix_cache_hits_total"]) == (40, 16)
    assert found["vllm:prompt_tokens_cached_total"] == 16
    assert found["vllm:prompt_tokens_by_source_total{local_compute}"] == 24
    assert found["vllm:request_prefill_kv_computed_tokens_sum"] == 24


def test_the_pool_is_told_with_its_null_block_and_as_it_is_now() -> None:
    stage = ScriptedEngine(EngineConfig())
    stage.add()
    metrics = metrics_of([stage.step()])
    for num_blocks in (128, 100):
        (family,) = (family for family in families(metrics) if family.name == "vllm:cache_config_info")
        (sample,) = family.samples
        assert sample.labels["num_gpu_blocks"] == str(num_blocks) and sample.labels["block_size"] == "16"
        stage.engine.reconfigure(num_blocks=100)
        metrics.apply(stage.step())


def test_counters_go_on_when_the_engine_begins_anew() -> None:
    """And nobody runs who ran before."""
    traces = scenario("busy")
    metrics = metrics_of(traces)
    metrics.forget_requests()
    assert values(metrics)["vllm:num_requests_running"] == 0
    before = values(metrics)["vllm:generation_tokens_total"]
    for trace in traces:
        metrics.apply(trace)
    assert values(metrics)["vllm:generation_tokens_total"] == 2 * before > 0
