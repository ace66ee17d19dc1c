"""What OpenAI's clients send: taken as it is meant, or refused with the parameter's name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.protocol import AddRequest, decode_command, encode
from app.serve.errors import ApiError
from app.serve.openai_api import CANNOT, ChatCompletionRequest, CompletionRequest, GenerationRequest, parse
from engine.request import RequestError, SamplingParams
from engine.tokenizer import Conversation, Message
from tests.engine.support import PieceTokenizer, byte_tokenizer

MAX_MODEL_LEN = 100


def completion(**fields: Any) -> list[AddRequest]:
    return asked(CompletionRequest, {"prompt": "Why?", **fields})


def chat(**fields: Any) -> list[AddRequest]:
    return asked(ChatCompletionRequest, {"messages": [{"role": "user", "content": "Why?"}], **fields})


def asked(kind: type[GenerationRequest], body: object) -> list[AddRequest]:
    requests = parse(kind, json.dumps(body).encode()).requests("id", MAX_MODEL_LEN)
    assert [decode_command(encode(request)) for request in requests] == requests, "they come through the pipe"
    return requests


def test_a_completion_is_raw_text_with_vllms_defaults() -> None:
    params = SamplingParams(max_tokens=16, temperature=1.0)
    assert completion() == [AddRequest("id-0", "Why?", "text", params, raw=True, from_client=True)]


def test_a_chat_goes_on_to_the_end_of_the_context() -> None:
    conversation = Conversation((Message("user", "Why?"),))
    params = SamplingParams(max_tokens=MAX_MODEL_LEN, temperature=1.0)
    assert chat() == [AddRequest("id", conversation, "chat", params, from_client=True)]


def test_all_that_the_engine_knows_is_passed_on() -> None:
    (request,) = completion(
        max_tokens=7,
        temperature=0,
        top_p=0.5,
        top_k=3,
        seed=-2,
        stop=["a", "b"],
        stop_token_ids=[5],
        ignore_eos=True,
        priority=-3,
        truncate_prompt_tokens=9,
    )
    assert request.params == SamplingParams(
        max_tokens=7,
        temperature=0,
        top_p=0.5,
        top_k=3,
        seed=-2,
        stop=("a", "b"),
        stop_token_ids=(5,),
        ignore_eos=True,
    )
    assert (request.priority, request.max_prompt_tokens) == (-3, 9)


@pytest.mark.parametrize(
    ("fields", "max_tokens"),
    [
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 6}, 6),
        ({"max_tokens": 5, "max_completion_tokens": 6}, 6),
        ({"max_tokens": None}, MAX_MODEL_LEN),
    ],
)
def test_how_many_tokens_a_chat_may_have(fields: dict[str, object], max_tokens: int) -> None:
    assert chat(**fields)[0].params.max_tokens == max_tokens


def test_a_completion_without_a_limit_goes_on_to_the_end_of_the_context() -> None:
    assert completion(max_tokens=None)[0].params.max_tokens == MAX_MODEL_LEN


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("Why?", ["Why?"]),
        ([3, 1, 2], [(3, 1, 2)]),
        (["Why?", "How?"], ["Why?", "How?"]),
        ([[1, 2], [3]], [(1, 2), (3,)]),
    ],
)
def test_every_prompt_is_a_request_of_its_own(prompt: object, prompts: list[object]) -> None:
    requests = completion(prompt=prompt)
    assert [request.prompt for request in requests] == prompts
    assert [request.request_id for request in requests] == [f"id-{index}" for index in range(len(prompts))]


def test_a_conversation_keeps_its_turns_and_joins_parts_of_text() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    (request,) = chat(
        messages=[
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": parts},
            {"role": "assistant", "content": "three", "refusal": None, "tool_calls": None},
        ]
    )
    expected = Message("system", "Be brief."), Message("user", "one\ntwo"), Message("assistant", "three")
    assert request.prompt == Conversation(expected)


def test_a_single_stop_string_and_all_tokens() -> None:
    (request,) = completion(stop="end", top_k=-1)
    assert (request.params.stop, request.params.top_k) == (("end",), 0)


# What clients such as `vllm bench serve` and guidellm send beside it.
HARMLESS = {
    "repetition_penalty": 1.0,
    "frequency_penalty": 0.0,
    "logprobs": None,
    "n": 1,
    "best_of": 1,
    "stop": None,
    "user": "somebody",
    "metadata": {"a": "b"},
    "store": False,
    "nothing_that_is_known": [1],
    "min_p": 0,
    "response_format": {"type": "text"},
    "tools": [],
    "tool_choice": "none",
    "logit_bias": {},
    "stream_interval": 3,
}


def test_what_changes_nothing_is_accepted() -> None:
    assert completion(**HARMLESS) == completion()
    assert chat(**{**HARMLESS, "logprobs": False}) == chat()


@pytest.mark.parametrize("name", CANNOT)
def test_what_would_change_the_output_and_cannot_be_done_is_refused_by_name(name: str) -> None:
    for kind in (completion, chat):
        with pytest.raises(ApiError, match=name) as caught:
            kind(**{name: {"something": "else"}})
        assert caught.value.param == name and caught.value.status == 400
        for value in CANNOT[name]:
            assert kind(**{name: value})


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 2}, "n"),
        ({"n": True}, "n"),
        ({"logprobs": 0}, "logprobs"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": 5.5}, "max_tokens"),
        ({"max_tokens": 2**63}, "max_tokens"),
        ({"temperature": "hot"}, "temperature"),
        ({"stop": [1]}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"priority": 1.5}, "priority"),
        ({"stop_token_ids": [2**70]}, "stop_token_ids"),
        ({"seed": 2**64}, "seed"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"prompt": None}, "prompt"),
        ({"prompt": {"text": "Why?"}}, "prompt"),
        ({"prompt": [1, "two"]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [2**70]}, "prompt"),
        ({"add_special_tokens": False}, "add_special_tokens"),
    ],
)
def test_a_value_that_is_none_is_told_with_its_parameter(fields: dict[str, object], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        completion(**fields)
    assert (caught.value.status, caught.value.param) == (400, param)


@pytest.mark.parametrize(
    ("fields", "parameter"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": -0.5}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"stop": ""}, "stop"),
        ({"prompt": []}, "prompt"),
    ],
)
def test_a_value_that_means_nothing_is_told_with_its_parameter(fields: dict[str, object], parameter: str) -> None:
    with pytest.raises(RequestError) as caught:
        completion(**fields)
    assert caught.value.parameter == parameter


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user"},
        {"role": "user", "content": None},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]},
        {"role": "tool", "content": "42"},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]},
        "Why?",
    ],
)
def test_messages_that_cannot_be_answered_are_refused(message: object) -> None:
    with pytest.raises(ApiError) as caught:
        chat(messages=[message])
    assert (caught.value.status, caught.value.param) == (400, "messages")


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'{"prompt": "\\ud800"}', b"\xff", b'{"prompt": NaN}'])
def test_a_body_that_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        parse(CompletionRequest, body)
    assert caught.value.status == 400


def test_a_long_list_with_a_mistake_in_it_is_one_short_sentence() -> None:
    with pytest.raises(ApiError) as caught:
        completion(prompt=["a", *range(100_000)])
    assert len(str(caught.value)) < 100


def test_a_tokenizer_takes_a_whole_conversation() -> None:
    """A single message of a user is what it always was."""
    tokenizer: PieceTokenizer = byte_tokenizer()
    single = Conversation((Message("user", "Why?"),))
    assert tokenizer.encode_chat(single) == tokenizer.encode_chat("Why?") == list(b"Why?")
    assert Conversation((Message("user", "a"), Message("assistant", "b"))).last_of_user == "a"
    assert Conversation((Message("system", "a"),)).last_of_user == ""


def test_what_would_keep_everybody_waiting_is_refused_before_the_engine_sees_it() -> None:
    """A long text has to be made into tokens, and stop strings are looked for after each token."""
    for body in ({"prompt": "x" * 6401}, {"prompt": ["x", "x" * 6401]}):
        with pytest.raises(RequestError, match="6,401 characters"):
            completion(**body)
    halves = [{"role": role, "content": "x" * 3201} for role in ("system", "user")]
    with pytest.raises(RequestError, match="6,402 characters"):
        chat(messages=halves)
    for stop in (["x"] * 65, "x" * 1025, ["x" * 1025]):
        with pytest.raises(ApiError, match="stop"):
            completion(stop=stop)
    assert completion(prompt="x" * 6400, stop=["x"] * 64)


def test_values_of_vllms_clients_that_change_nothing_are_taken() -> None:
    (request,) = completion(seed=-1, chat_template_kwargs={"enable_thinking": False})
    assert request.params.seed is None
    with pytest.raises(ApiError, match="chat_template_kwargs"):
        completion(chat_template_kwargs={"enable_thinking": True})
