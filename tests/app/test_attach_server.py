"""A server elsewhere as a source of events: what its captured answers, and its errors, become."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response

from app import protocol
from app.attach import connection, facts
from app.attach.requests import MAX_EVENT_BYTES
from app.attach.source import AttachedServer
from app.protocol import AddRequest, Loading, Notice, PaceSet, Ready, Refused
from app.recorded import Recorded, Recordings
from app.recording import Recording
from app.session import NOT_OURS, READ_ONLY
from engine.config import EngineConfig
from engine.poll import Poll
from engine.request import SamplingParams
from engine.trace import StepTrace, decode, encode
from tests.app.captured_server import (
    CERTIFICATE,
    DATA,
    FCFS,
    MODEL,
    PAUSE,
    PRIORITY,
    Answer,
    CapturedServer,
    Watch,
    as_metrics,
    attached,
    cut,
    data,
    eventually,
    metrics,
    saying,
    series,
)

SUMMED = {
    "num_preemptions": "num_preemptions_total",
    "num_generation_tokens": "generation_tokens_total",
    "num_prompt_tokens": "prompt_tokens_total",
    "num_iterations": "iteration_tokens_total_count",
    "num_queried_tokens": "prefix_cache_queries_total",
    "num_hit_tokens": "prefix_cache_hits_total",
}
KEY = "sk-very-secret"
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
ANSWER = "The capital of France is Paris."
NESTED = '{"error": ' + "[" * 100_000


def polls(watch: Watch) -> list[Poll]:
    return [trace.poll for trace in watch.traces if trace.poll]


def request(request_id: str = "1", prompt: str = "Hello", priority: int = 0, **params: Any) -> AddRequest:
    return AddRequest(request_id, prompt, "short", SamplingParams(**params), priority=priority)


# What it tells.


@pytest.mark.parametrize("folder", [FCFS, PRIORITY])
def test_a_captured_run_adds_up_to_its_last_counters(folder: str) -> None:
    looks = [*series(folder)[::8], series(folder)[-1]]
    with CapturedServer(folder, map(as_metrics, looks)) as server, attached(server) as watch:
        watch.until(lambda: len(watch.traces) > len(looks))
    assert [trace.step for trace in watch.traces] == list(range(len(watch.traces)))
    first, *others = polls(watch)
    assert first.num_preemptions is None and first.interval == 0
    assert all(poll.interval > 0 for poll in others)
    for name, counter in SUMMED.items():
        assert sum(getattr(poll, name) for poll in others) == looks[-1][counter]
    assert sum((poll.finished or Counter() for poll in others), Counter()) == {"stop": 1, "length": 24}
    for poll, look in zip(polls(watch), looks, strict=False):
        assert (poll.num_running, poll.num_waiting) == (look["num_requests_running"], look["num_requests_waiting"])
        assert poll.kv_usage == look["kv_cache_usage_perc"]


def test_what_a_vllm_tells_of_itself() -> None:
    texts = [metrics(FCFS, when) for when in ("before", "during", "after")]
    with CapturedServer(texts=texts) as server, attached(server) as watch:
        watch.more(4)
    (ready,) = watch.of(Ready)
    assert ready.model == MODEL
    assert ready.server == protocol.Server("vLLM", "0.32.0", server.url, interval=PAUSE)
    first, second, third = watch.traces[:3]
    assert first.config == EngineConfig(num_blocks=49, block_size=32, max_model_len=1024)
    assert first.poll and not first.poll.tells("max_num_seqs") and first.poll.tells("num_blocks")
    assert first.num_free_blocks == 48
    assert second.num_free_blocks == 2
    assert second.poll and third.poll and third.poll.num_generation_tokens
    assert (second.poll.num_prompt_tokens, second.poll.num_cached_tokens) == (357, 1248)
    assert second.poll.num_generation_tokens == 1353
    assert [sum(poll.latencies[of].count for poll in polls(watch)[1:]) for of in ("ttft", "e2e")] == [25, 24]
    assert third.poll.latencies["itl"].count == third.poll.num_generation_tokens - third.poll.latencies["ttft"].count
    assert third.started >= second.started
    assert [decode(encode(trace)) for trace in watch.traces] == watch.traces


def test_in_its_development_mode_a_vllm_tells_all_parameters() -> None:
    with CapturedServer() as server:
        server.answers["/server_info"] = saying(data(FCFS, "server_info-excerpt.json"))
        with attached(server) as watch:
            watch.until(lambda: watch.traces and watch.traces[-1].config.max_num_seqs == 12)
    config, poll = watch.traces[-1].config, polls(watch)[-1]
    assert (config.max_num_batched_tokens, config.policy, config.watermark) == (256, "fcfs", 0.0)
    assert poll.tells("policy") and poll.tells("reserve_full_sequence")
    assert not poll.tells("priority_aging")


def test_strange_parameters_are_unknown() -> None:
    strange = {"scheduler_config": {"max_num_seqs": "many", "watermark": 7, "policy": 3}, "cache_config": None}
    with CapturedServer() as server:
        server.answers["/server_info"] = saying(json.dumps({"vllm_config": strange}))
        server.answers["/v1/models"] = saying('{"data": [{"id": "a\\u001b[31m", "max_model_len": -5}]}')
        server.answers["/version"] = saying('{"version": 3}')
        with attached(server) as watch:
            watch.until(lambda: ("GET", "/server_info") in server.asked)
            watch.more(3)
    (ready,) = watch.of(Ready)
    assert (ready.model, ready.server and ready.server.version) == ("a␛[31m", "")
    assert watch.traces[-1].config == EngineConfig(num_blocks=49, block_size=32)
    assert not polls(watch)[-1].tells("max_model_len")


@pytest.mark.parametrize("kind", ["late", "cut", "nested"])
def test_its_metrics_are_enough(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "SECONDS", 0.2)
    with CapturedServer() as server:
        answer: Answer = {"late": server.hang, "cut": cut, "nested": saying(NESTED)}[kind]
        server.answers |= dict.fromkeys(("/version", "/v1/models", "/kv_event_sources"), answer)
        with attached(server) as watch:
            watch.more(3)
    (ready,) = watch.of(Ready)
    assert (ready.model, ready.server and ready.server.version) == (MODEL, "")
    assert watch.traces[0].config == EngineConfig(num_blocks=49, block_size=32)
    assert not any(poll.problem for poll in polls(watch))


def test_what_is_late_is_still_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "SECONDS", 0.2)
    is_ready = False
    with CapturedServer() as server:
        models = server.answers["/v1/models"]

        async def late(request: Request) -> Response:
            while not is_ready:
                await asyncio.sleep(PAUSE)
            return await models(request)

        server.answers["/v1/models"] = late
        with attached(server) as watch:
            watch.more(3)
            assert not polls(watch)[-1].tells("max_model_len")
            is_ready = True
            watch.until(lambda: polls(watch)[-1].tells("max_model_len"))
    assert watch.traces[-1].config == EngineConfig(num_blocks=49, block_size=32, max_model_len=1024)


def test_parameters_may_be_told_later_and_change() -> None:
    def pool(num_blocks: int) -> str:
        return as_metrics({**series(FCFS)[0], f'cache_config_info{{num_gpu_blocks="{num_blocks}"}}': 1.0})

    with CapturedServer(texts=[as_metrics(series(FCFS)[0]), pool(49), pool(25)]) as server, attached(server) as watch:
        watch.more(4)
    told = [(trace.poll.tells("num_blocks"), trace.config.num_blocks) for trace in watch.traces[:4] if trace.poll]
    assert told == [(False, EngineConfig().num_blocks), (True, 49), (True, 25), (True, 25)]
    assert all(trace.config.max_model_len == 1024 for trace in watch.traces)
    assert watch.traces[-1].num_free_blocks == 24


def test_our_own_server_is_known_by_its_name() -> None:
    with CapturedServer() as server:
        server.answers["/v1/models"] = saying('{"data": [{"id": "smollm2", "owned_by": "nanoviz"}]}')
        with attached(server) as watch:
            watch.until(lambda: watch.of(Ready))
    assert watch.of(Ready)[0].server.kind == "nanoviz"


def test_nothing_is_ever_sent_by_itself() -> None:
    with CapturedServer() as server, attached(server) as watch:
        watch.more(3)
        watch.source.send(protocol.SetPaused(True))
        watch.source.send(protocol.StepOnce())
        watch.source.send(protocol.SetPaused(False))
        watch.more(3)
    known = {"/metrics", "/version", "/v1/models", "/kv_event_sources", "/server_info"}
    assert {method for method, _ in server.asked} == {"GET"}
    assert {path for _, path in server.asked} == known


# What goes wrong.

GARBLED = metrics(FCFS, "before").replace('{engine="0"', '{engine="0')
TROUBLES: list[tuple[str, Answer, str]] = [
    ("401", saying("", 401), "wants an API key: set NANOVIZ_API_KEY"),
    ("404", saying("", 404), "answers, but has no /metrics (SGLang has them with --enable-metrics"),
    ("500", saying("", 500), "answers with an error: 500 internal server error"),
    ("503", saying("", 503), "answers with an error: 503 service unavailable"),
    ("html", saying("<html>hello</html>"), "answers, but with no metrics of a vLLM, SGLang or llama.cpp server"),
    ("garbled", saying(GARBLED), "answers with metrics that cannot be read"),
    ("binary", saying(bytes(range(256))), "answers, but with no metrics"),
    ("huge", saying(b"#" * (connection.MAX_BYTES + 1)), "answers with more than 16 MiB"),
    ("cut", cut, "broke off its answer"),
    ("elsewhere", saying("", 307, {"location": "http://elsewhere/"}), "sends elsewhere, to http://elsewhere/"),
    ("nowhere", saying("", 307, {"location": "foo:bar"}), "broke off its answer: For absolute URLs"),
]


@pytest.mark.parametrize(("answer", "says"), [one[1:] for one in TROUBLES], ids=[one[0] for one in TROUBLES])
def test_a_problem_is_told_once_and_passes(answer: Answer, says: str) -> None:
    with CapturedServer() as server, attached(server) as watch:
        watch.more(2)
        well, server.answers["/metrics"] = server.answers["/metrics"], answer
        watch.until(lambda: polls(watch)[-1].problem)
        num_asked = len(server.asked)
        eventually(lambda: len(server.asked) > num_asked + 2)
        server.answers["/metrics"] = well
        watch.until(lambda: not polls(watch)[-1].problem)
    (problem,) = [poll.problem for poll in polls(watch) if poll.problem]
    assert problem.startswith(f"{server.url} {says}") and problem.endswith(".")
    assert [trace.step for trace in watch.traces] == list(range(len(watch.traces)))
    assert not any(poll.restarted for poll in polls(watch))
    assert polls(watch)[-1].interval > 0


def test_a_server_that_does_not_answer_is_not_asked_twice_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "ANSWER_SECONDS", 0.2)
    with CapturedServer() as server:
        server.answers["/metrics"] = server.hang
        with attached(server, interval=0.5) as watch:  # time for the server to see that it was given up
            watch.until(lambda: len(server.asked) > 2)
            assert server.most_open == 1
            assert "gives no answer within 0.2 s; trying again" in watch.of(Loading)[1].what


def test_a_server_may_come_later_go_and_come_again_as_another() -> None:
    server = CapturedServer()
    with attached(f"http://127.0.0.1:{server.port}") as watch:
        watch.until(lambda: len(watch.of(Loading)) == 2)
        assert watch.of(Loading)[1].what == f"{server.url} does not answer: connection refused; trying again"
        assert watch.of(Loading)[1].hint == "nothing can be sent until it answers"
        watch.source.send(request())
        watch.until(lambda: watch.of(Refused))
        server.start()
        watch.until(lambda: watch.traces)
        server.stop()
        watch.until(lambda: polls(watch)[-1].problem)
        later = metrics(FCFS, "before").replace("process_start_time_seconds 1.79", "process_start_time_seconds 1.80")
        server.texts = [later]
        server.answers["/version"] = saying('{"version": "0.33.0"}')
        server.start()
        watch.until(lambda: not polls(watch)[-1].problem)
    server.stop()
    assert polls(watch)[-1].restarted
    assert polls(watch)[-1].interval == 0
    assert [trace.step for trace in watch.traces] == list(range(len(watch.traces)))
    (notice,) = watch.of(Notice)
    assert notice.text == f"{server.url} is another server now: vLLM 0.33.0 with {MODEL}."


def test_counters_that_fell_are_a_restart() -> None:
    looks = series(FCFS)
    texts = map(as_metrics, (looks[100], looks[50], looks[100]))
    with CapturedServer(texts=texts) as server, attached(server) as watch:
        watch.more(4)
    _, fallen, risen, *_ = polls(watch)
    assert fallen.restarted and fallen.interval == 0 and fallen.num_generation_tokens is None
    assert fallen.num_running == looks[50]["num_requests_running"]
    assert not risen.restarted
    assert risen.num_generation_tokens == (looks[100]["generation_tokens_total"] - looks[50]["generation_tokens_total"])


def test_a_certificate_has_to_be_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    with CapturedServer(is_secure=True) as server:
        with attached(server) as watch:
            watch.until(lambda: len(watch.of(Loading)) == 2)
        assert "has a TLS certificate that is not trusted (self-signed certificate): SSL_CERT_FILE" in (
            watch.of(Loading)[1].what
        )
        monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
        with attached(server) as watch:
            watch.until(lambda: watch.traces)
    assert watch.of(Ready)[0].server.url == server.url


def test_a_server_without_tls_is_not_asked_with_it() -> None:
    with CapturedServer() as server, attached(server.url.replace("http:", "https:")) as watch:
        watch.until(lambda: len(watch.of(Loading)) == 2)
    assert "does not speak TLS: is its address one with http:// ?" in watch.of(Loading)[1].what


def test_what_it_tells_can_be_recorded_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "attached.jsonl.gz"
    with CapturedServer(texts=map(as_metrics, series(FCFS)[40:60])) as server, attached(server) as watch:
        recordings = Recordings(path)
        watch.source = Recorded(watch.source, recordings)
        watch.more(5)
        recordings.close()
    recording = Recording(path)
    assert recording.traces == watch.traces
    assert recording.engine.server == watch.of(Ready)[0].server


def test_no_cookie_is_kept() -> None:
    with CapturedServer() as server:
        server.answers["/version"] = saying('{"version": "1"}', headers={"set-cookie": "ÿ=1"})
        server.answers["/kv_event_sources"] = saying("{}", headers={"set-cookie": "a=1"})
        with attached(server) as watch:
            watch.more(3)
    assert not any("cookie" in headers for headers in server.headers)
    assert not any(poll.problem for poll in polls(watch))


# The key.


def test_a_key_goes_to_the_server_and_nowhere_else() -> None:
    with CapturedServer() as elsewhere, CapturedServer() as server, attached(server, key=KEY) as watch:
        watch.more(2)
        watch.source.send(request())
        watch.until(lambda: any(trace.finished for trace in watch.traces))
        server.answers["/metrics"] = saying("", 307, {"location": f"{elsewhere.url}/metrics"})
        watch.until(lambda: polls(watch)[-1].problem)
        server.answers["/metrics"] = saying("", 401)
        watch.until(lambda: "does not accept the key in NANOVIZ_API_KEY" in polls(watch)[-1].problem)
        assert KEY not in repr(watch.source)
    assert {headers.get("authorization") for headers in server.headers} == {f"Bearer {KEY}"}
    assert not elsewhere.asked
    assert not any(KEY.encode() in protocol.encode(event) for event in watch.events)


def test_a_key_only_for_the_api_is_no_obstacle() -> None:
    """As with vLLM's --api-key: its metrics are open."""
    with CapturedServer() as server:
        server.answers["/v1/models"] = saying("", 401)
        with attached(server) as watch:
            watch.more(2)
    assert watch.of(Ready)[0].model == MODEL
    assert [notice.text for notice in watch.of(Notice)] == [f"{server.url} wants an API key: set NANOVIZ_API_KEY."]


# The pace.


def test_it_looks_only_when_it_is_asked_to_while_paused() -> None:
    with CapturedServer() as server, attached(server) as watch:
        watch.until(lambda: watch.traces)
        watch.source.send(protocol.SetPaused(True))
        watch.until(lambda: watch.of(PaceSet))
        watch.more(0)
        num = len(watch.traces)
        for _ in range(2):
            watch.source.send(protocol.StepOnce())
        watch.more(2)
        watch.source.send(protocol.SetSpeed(2.0))
        watch.until(lambda: len(watch.of(PaceSet)) == 4)
        assert num + 2 <= len(watch.traces) <= num + 3  # a look may have been under way
        watch.source.send(protocol.SetPaused(False))
        watch.until(lambda: len(watch.of(PaceSet)) == 5)
        watch.more(1)
    assert watch.of(PaceSet)[0] == PaceSet(True, 0.0)
    assert watch.of(PaceSet)[-2:] == [PaceSet(True, 2.0), PaceSet(False, 2.0)]


def test_its_parameters_cannot_be_changed() -> None:
    with CapturedServer() as server, attached(server) as watch:
        watch.source.send(protocol.Reconfigure({"max_num_seqs": 3}))
        watch.until(lambda: watch.of(protocol.ReconfigureRefused))
    assert watch.of(protocol.ReconfigureRefused) == [protocol.ReconfigureRefused(NOT_OURS)]


# Our own requests.


def ended(watch: Watch) -> bool:
    return any(trace.finished for trace in watch.traces)


def of_traces(watch: Watch, part: Callable[[StepTrace], tuple[Any, ...]]) -> list[Any]:
    return [one for trace in watch.traces for one in part(trace)]


def test_a_request_of_ours_is_known_token_by_token() -> None:
    with CapturedServer() as server, attached(server) as watch:
        watch.until(lambda: watch.traces)
        watch.source.send(request(prompt="What is the capital of France?", max_tokens=32, seed=7, stop=("\n",)))
        watch.until(lambda: ended(watch))
    (body,) = server.bodies
    assert body["messages"] == [{"role": "user", "content": "What is the capital of France?"}]
    assert (body["model"], body["max_tokens"], body["seed"], body["stop"]) == (MODEL, 32, 7, ["\n"])
    assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert not {"top_k", "ignore_eos", "priority", "stop_token_ids"} & set(body)
    (arrival,) = of_traces(watch, lambda trace: trace.arrivals)
    assert (arrival.request_id, arrival.label, arrival.max_tokens) == ("1", "short", 32)
    outputs = of_traces(watch, lambda trace: trace.outputs)
    assert "".join(output.text for output in outputs) == ANSWER
    assert sum(output.num_tokens for output in outputs) == 7  # one more is the end of the text, which nobody saw
    assert [output.time for output in outputs] == sorted(output.time for output in outputs)
    (finished,) = of_traces(watch, lambda trace: trace.finished)
    assert (finished.reason, finished.num_output_tokens) == ("stop", 8)
    assert 0 <= finished.ttft <= finished.e2e
    assert finished.ttft == outputs[0].time - arrival.time
    assert "each piece of text counts as one" in watch.of(Notice)[0].text


def test_a_server_that_counts_tokens_as_it_streams_is_believed() -> None:
    with CapturedServer() as server, attached(server) as watch:
        server.answers[CHAT] = saying('{"error": {"message": "no Chat Template here"}}', 400)
        watch.until(lambda: watch.traces)
        watch.source.send(request(prompt="The sea is", priority=3, top_k=5, ignore_eos=True))
        watch.until(lambda: ended(watch))
        watch.source.send(request("2"))
        watch.until(lambda: len(server.bodies) == 3)
    assert [path for method, path in server.asked if method == "POST"] == [CHAT, COMPLETIONS, COMPLETIONS]
    body = server.bodies[1]
    assert (body["prompt"], body["priority"], body["top_k"], body["ignore_eos"]) == ("The sea is", 3, 5, True)
    outputs = [output for output in of_traces(watch, lambda trace: trace.outputs) if output.request_id == "1"]
    assert [output.num_tokens for output in outputs] == [1] * 12
    assert [output.num_prompt_tokens for output in outputs] == [3] + [0] * 11
    assert of_traces(watch, lambda trace: trace.finished)[0].reason == "length"
    assert not watch.of(Notice)


def chunk(usage: int | None = None, finish: str | None = None, **delta: str) -> bytes:
    choice = {"delta": delta, "finish_reason": finish}
    counted = {"prompt_tokens": 4, "completion_tokens": usage} if usage is not None else None
    return b"data: " + json.dumps({"choices": [choice], "usage": counted}).encode() + b"\n\n"


def test_thoughts_are_text_and_several_tokens_may_come_at_once() -> None:
    stream = (
        b": keep-alive\n\n" + chunk(2, reasoning="Hm") + chunk(3, reasoning_content="m\u2028") + chunk(5, content="Yes")
    )
    with CapturedServer() as server, attached(server) as watch:
        server.answers[CHAT] = server.streaming(stream + chunk(6, "tool_calls") + b"data: [DONE]\n\n")
        watch.until(lambda: watch.traces)
        watch.source.send(request())
        watch.until(lambda: ended(watch))
    outputs = of_traces(watch, lambda trace: trace.outputs)
    assert [(output.text, output.num_tokens) for output in outputs] == [("Hm", 2), ("m\u2028", 1), ("Yes", 2), ("", 1)]
    (finished,) = of_traces(watch, lambda trace: trace.finished)
    assert (finished.reason, finished.told) == ("error", "the server ended it for another reason: tool_calls.")


def counts(usage: int) -> bytes:
    """A chunk that only counts."""
    return b"data: " + json.dumps({"choices": [], "usage": {"completion_tokens": usage}}).encode() + b"\n\n"


@pytest.mark.parametrize(
    ("stream", "tokens", "total"),
    [
        (chunk(0, role="assistant") + chunk(1, content="a") + chunk(1) + chunk(2, "stop") + counts(2), [1, 1], 2),
        (chunk(1, content="a") + chunk(1, "stop", content="b") + counts(1), [1, 0], 1),
        (
            chunk(role="assistant") + chunk(content="a") + chunk(content="b") + chunk(finish="stop") + counts(5),
            [1, 1],
            5,
        ),
        (chunk(content="a") + chunk(content="b") + chunk(1, "stop"), [1, 1], 1),
        (chunk(0, content="a") + chunk(0, content="b") + chunk(3, "stop", content="c"), [1, 1, 1], 3),
        (chunk(role="assistant") + chunk(finish="stop") + counts(4), [], 4),
    ],
)
def test_a_count_alone_is_no_token(stream: bytes, tokens: list[int], total: int) -> None:
    with CapturedServer() as server, attached(server) as watch:
        server.answers[CHAT] = server.streaming(stream + b"data: [DONE]\n\n")
        watch.until(lambda: watch.traces)
        watch.source.send(request())
        watch.until(lambda: ended(watch))
    outputs = of_traces(watch, lambda trace: trace.outputs)
    assert [output.num_tokens for output in outputs] == tokens
    (finished,) = of_traces(watch, lambda trace: trace.finished)
    assert (finished.reason, finished.num_output_tokens) == ("stop", total)
    assert (finished.ttft is None) == (not tokens)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (
            saying(json.dumps(json.loads(data(FCFS, "error-prompt-too-long.json"))["body"]), 400),
            "refuses it (400): This",
        ),
        (saying('{"object": "error", "message": "not\\u001b here"}', 404), "refuses it (404): not␛ here"),
        (saying('{"detail": "too many"}', 429), "refuses it (429): too many"),
        (saying("<html>", 503), "answers with an error: 503 service unavailable"),
        (saying("", 401), "wants an API key: set NANOVIZ_API_KEY"),
        (saying(NESTED, 400), "answers with an error: 400 bad request"),
        (saying("", 307, {"location": "foo:bar"}), "broke off its answer"),
        (cut, "broke off its answer"),
    ],
)
def test_a_request_that_is_not_taken_is_refused(answer: Answer, says: str) -> None:
    with CapturedServer() as server, attached(server) as watch:
        server.answers[CHAT] = answer
        watch.until(lambda: watch.traces)
        watch.source.send(request())
        watch.until(lambda: watch.of(Refused) or watch.of(Notice))
        watch.more(2)
    texts = [event.reason for event in watch.of(Refused)] + [event.text for event in watch.of(Notice)]
    assert f"the server {says}" in texts[0]


FULL = b'data: {"error": {"message": "The engine is currently busy.", "code": 503}}\n\n'


def test_a_full_server_may_say_so_in_a_stream() -> None:
    with CapturedServer() as server, attached(server, interval=3600) as watch:  # no look tells of an arrival meanwhile
        server.answers[CHAT] = server.streaming(FULL)
        watch.until(lambda: watch.traces)
        watch.source.send(request())
        watch.until(lambda: watch.of(Refused))
        watch.source.send(protocol.SetPaused(True))
        watch.source.send(protocol.StepOnce())
        watch.more(1)
    assert watch.of(Refused) == [Refused("1", "the server gave up: The engine is currently busy.")]
    assert not of_traces(watch, lambda trace: trace.arrivals)
    assert not watch.of(Notice)


def test_a_burst_survives_a_model_without_a_chat_template() -> None:
    with CapturedServer() as server, attached(server) as watch:
        server.answers[CHAT] = saying('{"message": "default chat template is no longer allowed"}', 400)
        watch.until(lambda: watch.traces)
        for request_id in "123456":
            watch.source.send(request(request_id))
        watch.until(lambda: len(of_traces(watch, lambda trace: trace.finished)) == 6)
    assert not watch.of(Refused)


@pytest.mark.parametrize(
    ("stream", "says"),
    [
        (chunk(1, content="So"), "broke off its answer"),
        (chunk(1, content="So") + b"data: {\n\n", "broke off its answer"),
        (chunk(1, content="So") + f"data: {NESTED}\n\n".encode(), "broke off its answer"),
        (chunk(1, content="So") + chunk(10**30, content="!"), "broke off its answer"),
        (chunk(1, content="So") + b"data: " + b"x" * 2 * MAX_EVENT_BYTES, "sends more than 1 MiB at once"),
        (chunk(1, content="So") + b"data: x\n" * (MAX_EVENT_BYTES >> 2), "sends more than 1 MiB at once"),
        (chunk(1, content="So") + b'data: {"error": {"message": "out of memory"}}\n\n', "gave up: out of memory"),
        (chunk(1, "content_filter", content="So"), "ended it for another reason: content_filter"),
        (chunk(1, "\x1b[31m" + "x" * 99, content="So"), "ended it for another reason: ␛[31m" + "x" * 34 + "…"),
    ],
)
def test_an_answer_that_breaks_off_is_an_error(stream: bytes, says: str) -> None:
    with CapturedServer() as server, attached(server) as watch:
        server.answers[CHAT] = server.streaming(stream)
        watch.until(lambda: watch.traces)
        watch.source.send(request())
        watch.until(lambda: ended(watch))
    (finished,) = of_traces(watch, lambda trace: trace.finished)
    assert (finished.reason, finished.num_output_tokens) == ("error", 1)
    assert finished.told.startswith(f"the server {says}") and finished.told.endswith(".")
    assert watch.of(Notice)[0].text == f"request 1 has failed: {finished.told}"


def test_a_server_that_goes_away_is_why_a_request_has_failed() -> None:
    with CapturedServer() as server, attached(server) as watch:
        server.answers[CHAT] = server.streaming(chunk(1, content="So"), is_endless=True)
        watch.until(lambda: watch.traces)
        watch.source.send(request())
        watch.until(lambda: watch.traces[-1].running == ("1",))
        server.stop()
        watch.until(lambda: ended(watch))
    (finished,) = of_traces(watch, lambda trace: trace.finished)
    assert (finished.reason, finished.num_output_tokens) == ("error", 1)
    assert finished.told.startswith("the server broke off its answer")


def test_an_abort_closes_the_stream() -> None:
    with CapturedServer() as server, attached(server) as watch:
        server.answers[CHAT] = server.streaming(chunk(1, content="So"), is_endless=True)
        watch.until(lambda: watch.traces)
        for request_id in "12":
            watch.source.send(request(request_id))
        watch.until(lambda: watch.traces[-1].running == ("1", "2"))
        assert server.num_open == 2
        watch.source.send(protocol.Abort("1"))
        watch.source.send(protocol.Abort("17"))
        watch.until(lambda: ended(watch))
        eventually(lambda: server.num_open == 1)
        (finished,) = of_traces(watch, lambda trace: trace.finished)
        assert (finished.request_id, finished.reason, finished.num_output_tokens) == ("1", "abort", 1)
        watch.until(lambda: watch.traces[-1].running == ("2",))
        watch.source.close()
        eventually(lambda: server.num_open == 0)


@pytest.mark.parametrize("is_slow", [True, False])
def test_a_request_ends_once_however_its_stream_is_closed(is_slow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    closing: list[str] = []
    close = httpx.Response.aclose

    async def badly(response: httpx.Response) -> None:
        await close(response)
        if response.status_code == 200 and response.request.method == "POST":
            closing.append(response.url.path)
            if is_slow:
                await asyncio.Event().wait()
            raise httpx.ReadError("broken")

    with CapturedServer() as server, attached(server) as watch:
        watch.until(lambda: watch.traces)
        monkeypatch.setattr(httpx.Response, "aclose", badly)
        watch.source.send(request())
        watch.until(lambda: closing)
        watch.source.send(protocol.Abort("1"))
        watch.until(lambda: ended(watch))
        watch.more(3)
    (finished,) = of_traces(watch, lambda trace: trace.finished)
    assert (finished.reason, finished.num_output_tokens) == ("stop", 8)
    assert not watch.of(Refused)


def test_a_request_that_is_aborted_at_once_is_no_longer_there() -> None:
    with CapturedServer() as server, attached(server) as watch:
        server.answers[CHAT] = server.hang
        watch.until(lambda: watch.traces)
        watch.source.send(request())
        watch.source.send(protocol.Abort("1"))
        watch.until(lambda: watch.of(Refused))
        watch.more(2)
    assert not of_traces(watch, lambda trace: trace.arrivals)


def test_requests_go_on_while_the_metrics_do_not_answer() -> None:
    with CapturedServer() as server, attached(server) as watch:
        watch.until(lambda: watch.traces)
        server.answers["/metrics"] = saying("", 500)
        watch.until(lambda: polls(watch)[-1].problem)
        watch.source.send(request())
        watch.until(lambda: ended(watch))
    assert polls(watch)[-1].problem


def test_only_so_many_of_our_requests_are_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.attach.requests.MAX_STREAMS", 2)
    with CapturedServer() as server, attached(server) as watch:
        server.answers[CHAT] = server.streaming(chunk(1, content="So"), is_endless=True)
        watch.until(lambda: watch.traces)
        for request_id in "123":
            watch.source.send(request(request_id))
        watch.until(lambda: watch.traces[-1].running == ("1", "2") and watch.of(Refused))
    assert watch.of(Refused)[0].request_id == "3"


def test_read_only_sends_nothing() -> None:
    with CapturedServer() as server, attached(server, read_only=True) as watch:
        watch.until(lambda: watch.traces)
        watch.source.send(request())
        watch.until(lambda: watch.of(Refused))
        assert watch.of(Ready)[0].server.read_only
    assert watch.of(Refused) == [Refused("1", READ_ONLY)]
    assert {method for method, _ in server.asked} == {"GET"}


def test_a_mistake_of_this_program_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.attach.source.poll_of", lambda *_: 1 // 0)
    with CapturedServer() as server, attached(server) as watch:
        watch.until(lambda: watch.of(protocol.Failed))
    says = f"looking at {server.url} has failed: integer division or modulo by zero"
    assert watch.of(protocol.Failed) == [protocol.Failed(says)]


def test_it_can_be_closed_before_and_after_anything() -> None:
    source = AttachedServer("localhost:1")
    source.close()
    source.close()
    source.send(protocol.SetPaused(True))


# The other kinds.


@pytest.mark.parametrize("name", ["sglang", "llama_cpp"])
def test_other_kinds_of_servers_are_watched_alike(name: str) -> None:
    text = (DATA / f"{name}.txt").read_text()
    with CapturedServer(texts=[text]) as server:
        server.answers["/v1/models"] = saying('{"data": [{"id": "m", "owned_by": "somebody"}]}')
        server.answers["/props"] = saying('{"build_info": "b7000-abc", "total_slots": 4}')
        server.answers["/slots"] = saying('[{"n_ctx": 4096, "prompt": "secret"}, {"n_ctx": 4096}]')
        with attached(server) as watch:
            watch.more(2)
    (ready,) = watch.of(Ready)
    assert ready.server and not ready.server.is_tested
    assert polls(watch)[1].num_generation_tokens == 0
    assert not any(b"secret" in protocol.encode(event) for event in watch.events)
    if name == "llama_cpp":
        assert (ready.server.kind, ready.server.version) == ("llama.cpp", "b7000-abc")
        assert (watch.traces[0].config.max_num_seqs, watch.traces[0].config.max_model_len) == (2, 4096)
