"""`nanoviz serve` as clients see it: a real engine behind a real port, and the openai client in front of it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from app import protocol
from app.engine_process import EngineProcess
from app.protocol import EngineOptions, Event
from app.serve.gateway import Gateway
from app.serve.routes import MAX_BODY_BYTES
from app.serve.server import listening_socket, serving
from app.settings import API_KEY
from engine.config import ConfigError, EngineConfig
from engine.core import LLMEngine, Prompt, RequestOutput
from engine.request import SamplingParams
from engine.tokenizer import Conversation, Message
from engine.trace import StepTrace

PATIENCE = 120.0
"""Seconds after which a test gives up waiting; nothing here is measured."""
CONFIG = EngineConfig(max_num_seqs=32, max_num_batched_tokens=256)
LOOPBACK = "127.0.0.1"
HELLO = "Hello, who is there?"
GREEDY = {"temperature": 0.0, "ignore_eos": True}
QUESTION: list[Any] = [
    {"role": "system", "content": "You are a clock."},
    {"role": "user", "content": [{"type": "text", "text": "What is it?"}]},
]


def wait_for(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


class Served:
    """An engine that is served, its process, and all that it has said so far."""

    def __init__(self, gateway: Gateway, url: str) -> None:
        self.gateway = gateway
        self.url = url
        self.http = httpx.Client(base_url=url, timeout=PATIENCE)
        self.openai = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=PATIENCE)
        self.events: list[Event] = []
        self.start()

    def start(self) -> None:
        self.process: EngineProcess = self.gateway.start(EngineOptions("tiny", "auto", "cpu", 1, CONFIG))
        wait_for(lambda: self.http.get("/health").status_code == 200)

    def heard(self) -> list[Event]:
        self.events += self.process.drain()
        return self.events

    @property
    def traces(self) -> list[StepTrace]:
        return [event.trace for event in self.heard() if isinstance(event, protocol.Stepped)]

    def sent(self) -> list[str]:
        """Ids of all requests that came from clients."""
        return [event.request.request_id for event in self.heard() if isinstance(event, protocol.FromClient)]

    def ended(self) -> dict[str, str]:
        """Why requests ended, by their ids."""
        return {finished.request_id: finished.reason for trace in self.traces for finished in trace.finished}

    def has_all_blocks(self) -> bool:
        """By the last trace, and by what Prometheus is told."""
        text = self.http.get("/metrics").text
        usage = [f for f in text_string_to_metric_families(text) if f.name == "vllm:kv_cache_usage_perc"]
        wait_for(lambda: self.traces[-1].num_free_blocks == CONFIG.num_usable_blocks)
        return usage[0].samples[0].value == 0

    def load(self) -> int:
        """Requests of clients that are in flight."""
        return int(self.http.get("/load").json()["server_load"])

    @contextmanager
    def paused(self) -> Iterator[None]:
        """As by the dashboard's key."""
        self.process.send(protocol.SetPaused(True))
        wait_for(lambda: protocol.PaceSet(True, 0.0) in self.heard())
        yield
        self.process.send(protocol.SetPaused(False))

    def post(self, path: str, **body: object) -> httpx.Response:
        return self.http.post(path, json=body)

    @contextmanager
    def raw(self, path: str, **body: object) -> Iterator[socket.socket]:
        """A connection on which this was posted, and that is closed at the end without waiting for anything."""
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        with socket.create_connection((LOOPBACK, int(self.url.rpartition(":")[2]))) as connection:
            connection.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
            yield connection


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(LOOPBACK, 0, 1000) as (gateway, url):
        served = Served(gateway, url)
        yield served
        served.process.close()


@pytest.fixture(scope="module")
def alone() -> Callable[..., RequestOutput]:
    """What the engine says to a request when nobody else is there, without any server."""
    from engine.build import build_engine

    engine: LLMEngine = build_engine("tiny", CONFIG, dtype="auto", device="cpu", threads=1).engine

    def generate(prompt: Prompt, **params: Any) -> RequestOutput:
        return engine.generate([prompt], SamplingParams(**params))[0]

    return generate


def events_of(text: str) -> list[Any]:
    """The objects of a stream, which has to end as it should."""
    *events, done, nothing = text.split("\n\n")
    assert done == "data: [DONE]" and nothing == ""
    return [json.loads(event.removeprefix("data: ")) for event in events]


# The openai client.


def test_the_model_is_listed(served: Served) -> None:
    (model,) = served.openai.models.list().data
    assert (model.id, model.object) == ("tiny", "model")
    assert model.model_dump()["max_model_len"] == CONFIG.max_model_len
    assert "version" in served.http.get("/version").json()


def test_a_completion_is_what_the_engine_says_alone(served: Served, alone: Callable[..., RequestOutput]) -> None:
    expected = alone(HELLO, max_tokens=24, ignore_eos=True)
    answer = served.openai.completions.create(
        model="tiny", prompt=HELLO, max_tokens=24, temperature=0, extra_body={"ignore_eos": True}
    )
    assert answer.choices[0].text == expected.text and answer.choices[0].finish_reason == "length"
    assert answer.id.startswith("cmpl-") and answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (20, 24, 44)


def test_a_chat_is_what_the_engine_says_alone(served: Served, alone: Callable[..., RequestOutput]) -> None:
    conversation = Conversation((Message("system", "You are a clock."), Message("user", "What is it?")))
    expected = alone(conversation, max_tokens=24, ignore_eos=True)
    answer = served.openai.chat.completions.create(
        model="tiny", messages=QUESTION, max_completion_tokens=24, temperature=0, extra_body={"ignore_eos": True}
    )
    message = answer.choices[0].message
    assert (message.role, message.content) == ("assistant", expected.text)
    assert answer.id.startswith("chatcmpl-")
    arrival = next(a for trace in served.traces for a in trace.arrivals if a.request_id == answer.id)
    assert (arrival.label, arrival.prompt) == ("chat", "What is it?")


def test_a_streamed_chat_is_the_same_in_pieces(served: Served) -> None:
    asked: dict[str, Any] = {"model": "tiny", "messages": QUESTION, "max_tokens": 24, "temperature": 0}
    whole = served.openai.chat.completions.create(**asked)
    chunks = list(served.openai.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    *pieces, last = chunks
    assert pieces[0].choices[0].delta.role == "assistant" and pieces[0].choices[0].delta.content == ""
    assert "".join(piece.choices[0].delta.content for piece in pieces) == whole.choices[0].message.content
    assert [piece.choices[0].finish_reason for piece in pieces[:-1]] == [None] * (len(pieces) - 1)
    assert pieces[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert last.choices == [] and last.usage is not None and whole.usage is not None
    assert last.usage.completion_tokens == whole.usage.completion_tokens
    assert {chunk.id for chunk in chunks} == {pieces[0].id}


def test_a_stream_has_an_event_for_each_token_as_vllm_writes_them(served: Served) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"prompt": HELLO, "max_tokens": 5, "stream": True, "stream_options": options, **GREEDY}
    with served.http.stream("POST", "/v1/completions", json=body) as response:
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        *chunks, usage = events_of(response.read().decode())
    assert len(chunks) == 5
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 2, 3, 4, 5]
    for chunk in chunks:
        assert list(chunk) == ["id", "object", "created", "model", "choices", "usage"]
        assert chunk["object"] == "text_completion"
        assert list(chunk["choices"][0]) == ["index", "text", "logprobs", "finish_reason", "stop_reason"]
    assert usage["choices"] == [] and usage["usage"]["total_tokens"] == 25


def test_without_being_asked_a_stream_says_nothing_of_usage(served: Served) -> None:
    response = served.post("/v1/completions", prompt=HELLO, max_tokens=2, stream=True, **GREEDY)
    assert [list(chunk)[-1] for chunk in events_of(response.text)] == ["choices", "choices"]


def test_several_prompts_are_a_choice_each(served: Served, alone: Callable[..., RequestOutput]) -> None:
    prompts = ["one", "two two", "three"]
    expected = [alone(prompt, max_tokens=8, ignore_eos=True).text for prompt in prompts]
    answer = served.post("/v1/completions", prompt=prompts, max_tokens=8, **GREEDY).json()
    assert [choice["text"] for choice in answer["choices"]] == expected
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert answer["usage"]["completion_tokens"] == 24
    assert answer["usage"]["prompt_tokens"] == sum(map(len, prompts)), "a token of the tiny model is a byte"
    streamed = served.post("/v1/completions", prompt=prompts, max_tokens=8, stream=True, **GREEDY).text
    texts = ["", "", ""]
    for chunk in events_of(streamed):
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert texts == expected


def test_token_ids_are_continued_as_they_are(served: Served, alone: Callable[..., RequestOutput]) -> None:
    token_ids = [33, 7] * 5
    expected = alone(token_ids, max_tokens=8, ignore_eos=True)
    answer = served.post("/v1/completions", prompt=token_ids, max_tokens=8, **GREEDY).json()
    assert answer["usage"]["prompt_tokens"] == 10 and answer["choices"][0]["text"] == expected.text
    wrong = served.post("/v1/completions", prompt=[10**6], max_tokens=8)
    assert wrong.status_code == 400 and "vocabulary" in wrong.json()["error"]["message"]


def test_a_stop_string_ends_the_output_before_it(served: Served, alone: Callable[..., RequestOutput]) -> None:
    text = alone(HELLO, max_tokens=24, ignore_eos=True).text
    stop = text[6:8]
    answer = served.post("/v1/completions", prompt=HELLO, max_tokens=24, stop=["never to be", stop], **GREEDY).json()
    (choice,) = answer["choices"]
    assert (choice["text"], choice["finish_reason"]) == (text[: text.index(stop)], "stop")


def test_a_stop_token_is_named(served: Served, alone: Callable[..., RequestOutput]) -> None:
    token_id = alone(HELLO, max_tokens=8, ignore_eos=True).token_ids[4]
    answer = served.post("/v1/completions", prompt=HELLO, max_tokens=24, stop_token_ids=[token_id], **GREEDY).json()
    assert answer["choices"][0]["finish_reason"] == "stop" and answer["choices"][0]["stop_reason"] == token_id


def test_a_seed_makes_sampling_repeatable(served: Served) -> None:
    def text(seed: int) -> str:
        answer = served.post("/v1/completions", prompt=HELLO, max_tokens=24, seed=seed, temperature=1.0).json()
        return str(answer["choices"][0]["text"])

    assert text(1) == text(1) != text(2)


def test_what_the_prefix_cache_held_is_told(served: Served) -> None:
    prompt = "Nobody else says this. " * 4
    usages = [served.post("/v1/completions", prompt=prompt, max_tokens=2, **GREEDY).json()["usage"] for _ in range(2)]
    assert [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages] == [0, 80]


def test_an_output_that_would_leave_the_context_is_cut(served: Served) -> None:
    for limit in ({"max_tokens": 5000}, {"max_tokens": None}):
        answer = served.post("/v1/completions", prompt="x" * 1000, **limit, **GREEDY).json()
        assert answer["usage"]["completion_tokens"] == 24
        assert answer["choices"][0]["finish_reason"] == "length"


# Mistakes.

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


@pytest.mark.parametrize(
    ("path", "body", "status", "kind", "param"),
    [
        (COMPLETIONS, {"prompt": "x" * 1024}, 400, "BadRequestError", "input_tokens"),
        (COMPLETIONS, {"prompt": ""}, 400, "BadRequestError", "prompt"),
        (COMPLETIONS, {"prompt": ["x", ""]}, 400, "BadRequestError", "prompt"),
        (COMPLETIONS, {"prompt": "x", "n": 2}, 400, "BadRequestError", "n"),
        (COMPLETIONS, {"prompt": "x", "max_tokens": 0}, 400, "BadRequestError", "max_tokens"),
        (COMPLETIONS, {"prompt": "x", "truncate_prompt_tokens": 0}, 400, "BadRequestError", "truncate_prompt_tokens"),
        (COMPLETIONS, {"prompt": "x", "model": "gpt-4"}, 404, "NotFoundError", "model"),
        (CHAT, {}, 400, "BadRequestError", "messages"),
        (CHAT, {"messages": [{"role": "user", "content": "x" * 2000}]}, 400, "BadRequestError", "input_tokens"),
        (CHAT, {"messages": [{"role": "user", "content": "x"}], "tools": [{}]}, 400, "BadRequestError", "tools"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_mistakes_are_told_in_openais_shape(
    path: str, body: dict[str, object], status: int, kind: str, param: str | None, stream: bool, served: Served
) -> None:
    response = served.post(path, **body, stream=stream)
    assert response.status_code == status
    assert list(response.json()) == ["error"]
    error = response.json()["error"]
    assert error.pop("message")
    assert error == {"type": kind, "param": param, "code": status}


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", COMPLETIONS, 405), ("POST", "/v1/models", 405), ("GET", "/v1/files", 404), ("POST", "/", 404)],
)
def test_paths_and_methods_that_there_are_not(method: str, path: str, status: int, served: Served) -> None:
    response = served.http.request(method, path)
    assert response.status_code == status and response.json()["error"]["code"] == status


def test_the_openai_client_raises_what_it_should(served: Served) -> None:
    with pytest.raises(openai.NotFoundError, match="gpt-4"):
        served.openai.completions.create(model="gpt-4", prompt="x")
    with pytest.raises(openai.BadRequestError) as caught:
        served.openai.completions.create(model="tiny", prompt="x", n=2)
    assert caught.value.param == "n"


def test_a_body_has_to_be_called_json(served: Served) -> None:
    response = served.http.post(COMPLETIONS, content=b'{"prompt": "x"}', headers={"content-type": "text/plain"})
    assert response.status_code == 415 and "application/json" in response.json()["error"]["message"]
    broken = served.http.post(COMPLETIONS, content=b"{", headers={"content-type": "application/json; charset=utf-8"})
    assert broken.status_code == 400 and "JSON" in broken.json()["error"]["message"]


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_is_too_large_is_not_read_to_its_end(chunked: bool, served: Served) -> None:
    body = b" " * (MAX_BODY_BYTES + 1)
    content = iter([body[: 1 << 19], body[1 << 19 :]]) if chunked else body
    headers = {"content-type": "application/json"}
    response = httpx.post(f"{served.url}{COMPLETIONS}", content=content, headers=headers, timeout=PATIENCE)
    assert response.status_code == 413 and response.json()["error"]["code"] == 413


# Clients that go away.


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_aborts_its_request(stream: bool, served: Served) -> None:
    before = len(served.sent())
    with served.raw(COMPLETIONS, prompt=HELLO, max_tokens=900, stream=stream, **GREEDY) as connection:
        wait_for(lambda: len(served.sent()) > before)
        request_id = served.sent()[-1]
        wait_for(lambda: any(output.request_id == request_id for trace in served.traces for output in trace.outputs))
        if stream:
            assert connection.recv(12) == b"HTTP/1.1 200"
    wait_for(lambda: request_id in served.ended())
    assert served.ended()[request_id] == "abort"
    assert served.has_all_blocks()


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_while_it_waits_is_never_computed(stream: bool, served: Served) -> None:
    before = len(served.sent())
    with served.paused():
        with served.raw(CHAT, messages=QUESTION, max_tokens=900, stream=stream, **GREEDY):
            wait_for(lambda: len(served.sent()) > before)
            request_id = served.sent()[-1]
        # What is sent now is obeyed behind the abort, if that is on its way once nobody else is in flight.
        wait_for(lambda: not served.load())
    wait_for(lambda: request_id in served.ended())
    assert served.ended()[request_id] == "abort"
    assert not any(item.request_id == request_id for trace in served.traces for item in trace.scheduled)
    assert served.has_all_blocks()


def test_a_request_that_somebody_else_aborts_ends_with_that_reason(served: Served) -> None:
    before = len(served.sent())
    answers: list[httpx.Response] = []
    body: dict[str, object] = {"prompt": HELLO, "max_tokens": 900, "stream": True, **GREEDY}
    thread = threading.Thread(target=lambda: answers.append(served.post(COMPLETIONS, **body)))
    thread.start()
    wait_for(lambda: len(served.sent()) > before)
    served.process.send(protocol.Abort(served.sent()[-1]))
    thread.join(PATIENCE)
    assert events_of(answers[0].text)[-1]["choices"][0]["finish_reason"] == "abort"


def test_a_full_queue_takes_nobody_until_somebody_has_left(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served.gateway, "max_num_queued_reqs", 2)
    before = len(served.sent())
    with served.paused():
        with served.raw(COMPLETIONS, prompt="a", **GREEDY), served.raw(COMPLETIONS, prompt="b", **GREEDY):
            wait_for(lambda: len(served.sent()) == before + 2)
            response = served.post(COMPLETIONS, prompt="c")
            assert response.status_code == 503 and "2 requests" in response.json()["error"]["message"]
            assert 'reason="max_num_queued_reqs"} 1.0' in served.http.get("/metrics").text
        wait_for(lambda: not served.load())
    wait_for(lambda: served.post(COMPLETIONS, prompt="c").status_code == 200)
    answer = served.post(COMPLETIONS, prompt=["c", "d", "e"])
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt"), "three can never fit"
    assert "max_num_queued_reqs" in answer.json()["error"]["message"]


def test_a_body_that_does_not_come_is_not_waited_for(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.serve.routes.BODY_SECONDS", 0.05)
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with socket.create_connection((LOOPBACK, int(served.url.rpartition(":")[2]))) as connection:
        connection.sendall(f"{head}Content-Length: 100\r\n\r\n{{".encode())
        assert connection.recv(1000).startswith(b"HTTP/1.1 408 ")


# Many.


async def test_two_hundred_streams_at_once_lose_nothing(served: Served, alone: Callable[..., RequestOutput]) -> None:
    """Each gets what it gets alone, token for token, and no block stays behind."""
    prompts = [f"Number {number} asks: what is {number} times {number}?" for number in range(20)]
    expected = [alone(prompt, max_tokens=16, ignore_eos=True) for prompt in prompts]
    async with openai.AsyncOpenAI(
        base_url=f"{served.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE
    ) as client:

        async def stream(number: int) -> tuple[list[str], str | None]:
            texts, reason = [], None
            async for chunk in await client.completions.create(
                model="tiny",
                prompt=prompts[number % len(prompts)],
                max_tokens=16,
                temperature=0,
                stream=True,
                extra_body={"ignore_eos": True},
            ):
                texts.append(chunk.choices[0].text)
                reason = chunk.choices[0].finish_reason
            return texts, reason

        answers = await asyncio.gather(*(stream(number) for number in range(200)))
    for number, (texts, reason) in enumerate(answers):
        assert len(texts) == 16 and reason == "length"
        assert "".join(texts) == expected[number % len(prompts)].text
    assert served.load() == 0
    assert served.has_all_blocks()


# An engine that begins anew, or ends. These come last: they leave another one behind.


def test_what_was_in_flight_when_the_engine_began_anew_ends_with_an_error(served: Served) -> None:
    before = len(served.sent())
    answers: list[httpx.Response] = []
    body: dict[str, object] = {"prompt": HELLO, "max_tokens": 900, **GREEDY}
    threads = [
        threading.Thread(target=lambda stream=stream: answers.append(served.post(COMPLETIONS, **body, stream=stream)))
        for stream in (True, False)
    ]
    for thread in threads:
        thread.start()
    wait_for(lambda: len(served.sent()) == before + 2)
    wait_for(lambda: any(len(trace.outputs) == 2 for trace in served.traces[-5:]))
    served.process.send(protocol.Begin(1, CONFIG))
    for thread in threads:
        thread.join(PATIENCE)
    whole, streamed = sorted(answers, key=lambda response: response.status_code, reverse=True)
    assert whole.status_code == 503 and "anew" in whole.json()["error"]["message"]
    assert events_of(streamed.text)[-1]["error"]["code"] == 503
    assert served.post(COMPLETIONS, prompt=HELLO, max_tokens=3).status_code == 200


def test_an_engine_that_is_killed_ends_all_streams_and_another_one_goes_on(served: Served) -> None:
    before = len(served.sent())
    answers: list[httpx.Response] = []
    body: dict[str, object] = {"prompt": HELLO, "max_tokens": 900, "stream": True, **GREEDY}
    thread = threading.Thread(target=lambda: answers.append(served.post(COMPLETIONS, **body)))
    thread.start()
    wait_for(lambda: len(served.sent()) > before)
    request_id = served.sent()[-1]
    wait_for(lambda: any(output.request_id == request_id for trace in served.traces[-5:] for output in trace.outputs))
    os.kill(served.process.pid, signal.SIGKILL)
    thread.join(PATIENCE)
    error = events_of(answers[0].text)[-1]["error"]
    assert error["code"] == 503 and "SIGKILL" in error["message"]
    assert served.http.get("/health").status_code == 503
    assert "SIGKILL" in served.post(COMPLETIONS, prompt=HELLO).json()["error"]["message"]
    served.process.close()
    served.start()
    assert served.post(COMPLETIONS, prompt=HELLO, max_tokens=3).status_code == 200


# Who may ask. No engine is needed for it.


def test_with_a_key_all_but_health_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(API_KEY, "a-secret")
    with serving(LOOPBACK, 0, 1) as (_, url), httpx.Client(base_url=url) as http:
        for path in ("/v1/models", "/metrics", "/version", "/v1/nothing"):
            for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "a-secret"}):
                response = http.get(path, headers=headers)
                assert response.status_code == 401 and response.json()["error"]["code"] == 401
                assert "a-secret" not in response.text
        allowed = {"authorization": "Bearer a-secret", "host": "anything.example"}
        assert http.get("/version", headers=allowed).status_code == 200
        assert http.get("/v1/models", headers=allowed).status_code == 503, "let in, and no model is there"
        assert http.get("/health").status_code == 503


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:8000", 200),
        ("127.0.0.1:8000", 200),
        ("[::1]:8000", 200),
        ("host.docker.internal:8000", 200),
        ("nanoviz.localhost", 200),
        ("rebound.example", 403),
        ("127.0.0.1.example:8000", 403),
        ("", 403),
    ],
)
def test_without_a_key_a_foreign_name_for_this_machine_is_refused(host: str, status: int) -> None:
    with serving(LOOPBACK, 0, 1) as (_, url):
        assert httpx.get(f"{url}/version", headers={"host": host}).status_code == status


def test_an_address_that_others_reach_needs_a_key() -> None:
    with pytest.raises(ConfigError, match=API_KEY):
        listening_socket("0.0.0.0", 0, has_key=False)
    listening_socket("0.0.0.0", 0, has_key=True).close()
    listening_socket("localhost", 0, has_key=False).close()


def test_addresses_that_cannot_be_had_are_told_in_a_sentence() -> None:
    with listening_socket(LOOPBACK, 0, has_key=False) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} .* in use"):
            listening_socket(LOOPBACK, port, has_key=False)
    with pytest.raises(ConfigError, match=r"nowhere\.invalid"):
        listening_socket("nowhere.invalid", 0, has_key=False)
