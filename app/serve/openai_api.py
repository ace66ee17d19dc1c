"""What OpenAI's clients send, checked, and as requests for the engine; with the further fields that vLLM knows.

A field that nothing is known of is left out of account, as vLLM does it. One that is known, would change the output,
and cannot be obeyed is refused unless its value changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from app.protocol import AddRequest
from app.serve.errors import ApiError
from engine.request import RequestError, SamplingParams
from engine.tokenizer import Conversation, Message

AnyRequest = TypeVar("AnyRequest", bound="GenerationRequest")

MAX_STOPS, MAX_STOP_CHARACTERS = 64, 1024
"""All of them are looked for after each token of the request, while everybody waits."""
CHARACTERS_PER_TOKEN = 64
"""A text longer than so many for each token of the context is refused before it is made into tokens, for which
everybody would wait too. Few tokens of any model are as long."""
DEFAULT_MAX_TOKENS = 16
"""Of a completion; a chat goes on to the end of the context."""
CANNOT: dict[str, tuple[object, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "prompt_logprobs": (),
    "logprob_token_ids": ([],),
    "return_token_ids": (False,),
    "return_prompt_text": (False,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "min_p": (0,),
    "min_tokens": (0,),
    "logit_bias": ({},),
    "allowed_token_ids": ([],),
    "bad_words": ([],),
    "use_beam_search": (False,),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "truncation_side": ("left",),
    "thinking_token_budget": (-1,),
    "reasoning_effort": ("none",),
    "repetition_detection": (),
    "watermarking": (False,),
    "cache_salt": (),
    "prompt_embeds": (),
    "response_format": ({"type": "text"},),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
    "documents": ([],),
    "chat_template": (),
    "chat_template_kwargs": ({}, {"enable_thinking": False}),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
}
"""What would change the output and cannot be done, each with the values that change nothing; null is one always."""


Int = Annotated[int, Field(ge=-(2**63), lt=2**63)]
TokenIds = Annotated[list[Annotated[int, Field(ge=0, lt=2**63)]], Field(fail_fast=True)]
Texts = Annotated[list[str], Field(fail_fast=True)]
StopText = Annotated[str, Field(max_length=MAX_STOP_CHARACTERS)]
"""Lists fail with one mistake, not with one for each of a hundred thousand items."""


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")


class StreamOptions(_Body):
    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class GenerationRequest(_Body):
    """What completions and chats have in common."""

    model: str | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    max_tokens: Int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Int | None = None
    seed: Int | None = None
    stop: StopText | Annotated[list[StopText], Field(max_length=MAX_STOPS, fail_fast=True)] | None = None
    stop_token_ids: TokenIds | None = None
    ignore_eos: bool | None = False
    priority: Int = 0
    truncate_prompt_tokens: Int | None = None

    @property
    def with_usage(self) -> bool:
        """A stream ends with the usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def with_running_usage(self) -> bool:
        """Each chunk of a stream has the usage so far."""
        return self.with_usage and bool(self.stream_options and self.stream_options.continuous_usage_stats)

    def sampling_params(self, max_tokens: int) -> SamplingParams:
        """Raises RequestError for values that mean nothing."""
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            top_k=0 if self.top_k in (None, -1) else self.top_k,
            seed=None if self.seed == -1 else self.seed,
            stop=(self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ()),
            stop_token_ids=tuple(self.stop_token_ids or ()),
            ignore_eos=bool(self.ignore_eos),
        )

    @property
    def num_requests(self) -> int:
        """That the engine gets of it."""
        return 1

    def requests(self, request_id: str, max_model_len: int) -> list[AddRequest]:
        """What the engine is asked for it. Raises RequestError for values that mean nothing."""
        raise NotImplementedError


class CompletionRequest(GenerationRequest):
    """POST /v1/completions (vLLM: `CompletionRequest`)."""

    prompt: str | TokenIds | Texts | Annotated[list[TokenIds], Field(fail_fast=True)]
    max_tokens: Int | None = DEFAULT_MAX_TOKENS
    add_special_tokens: Literal[True] | None = True

    def requests(self, request_id: str, max_model_len: int) -> list[AddRequest]:
        params = self.sampling_params(max_model_len if self.max_tokens is None else self.max_tokens)
        for prompt in self._prompts():
            if isinstance(prompt, str):
                _refuse_if_too_long(len(prompt), max_model_len, "prompt")
        return [
            AddRequest(
                f"{request_id}-{index}",
                prompt if isinstance(prompt, str) else tuple(prompt),
                "text",
                params,
                self.truncate_prompt_tokens,
                self.priority,
                raw=True,
                from_client=True,
            )
            for index, prompt in enumerate(self._prompts())
        ]

    @property
    def num_requests(self) -> int:
        return len(self._prompts())

    def _prompts(self) -> Sequence[str | TokenIds]:
        if isinstance(self.prompt, str):
            return [self.prompt]
        if not self.prompt:
            raise RequestError("the prompt is empty; there is nothing to continue.", "prompt")
        token_ids = [item for item in self.prompt if isinstance(item, int)]
        return [token_ids] if token_ids else [item for item in self.prompt if not isinstance(item, int)]


class TextPart(_Body):
    type: Literal["text"]
    text: str


class ChatMessage(_Body):
    """One turn. Content of several parts is joined by line ends, as vLLM does it."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], Field(fail_fast=True)]

    @model_validator(mode="before")
    @classmethod
    def _refuse_tool_calls(cls, message: Any) -> Any:
        if isinstance(message, dict) and message.get("tool_calls"):
            raise ValueError("tool calls are not supported by this server")
        return message

    def as_message(self) -> Message:
        content = self.content if isinstance(self.content, str) else "\n".join(part.text for part in self.content)
        return Message("system" if self.role == "developer" else self.role, content)


class ChatCompletionRequest(GenerationRequest):
    """POST /v1/chat/completions (vLLM: `ChatCompletionRequest`)."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, fail_fast=True)]
    max_completion_tokens: Int | None = None
    add_special_tokens: Literal[False] | None = False

    def requests(self, request_id: str, max_model_len: int) -> list[AddRequest]:
        limits = (self.max_completion_tokens, self.max_tokens, max_model_len)
        params = self.sampling_params(next(limit for limit in limits if limit is not None))
        conversation = Conversation(tuple(message.as_message() for message in self.messages))
        _refuse_if_too_long(sum(len(one.content) for one in conversation.messages), max_model_len, "messages")
        return [
            AddRequest(
                request_id,
                conversation,
                "chat",
                params,
                self.truncate_prompt_tokens,
                self.priority,
                from_client=True,
            )
        ]


def _refuse_if_too_long(num_characters: int, max_model_len: int, parameter: str) -> None:
    if num_characters > max_model_len * CHARACTERS_PER_TOKEN:
        raise RequestError(
            f"the prompt has {num_characters:,} characters, which is far more than the {max_model_len:,} tokens of the "
            "context. Shorten it.",
            parameter,
        )


def parse(kind: type[AnyRequest], body: bytes) -> AnyRequest:
    """The request in this body. Raises ApiError for what is none, or asks for what cannot be done."""
    try:
        request = kind.model_validate_json(body)
    except ValidationError as error:
        raise _described(error) from None
    others = request.model_extra or {}
    for name, harmless in CANNOT.items():
        value = others.get(name)
        if value is not None and not any(_is_same(value, allowed) for allowed in harmless):
            raise ApiError(HTTPStatus.BAD_REQUEST, f"{name} is not supported by this server.", name)
    if request.stream_options and not request.stream:
        raise ApiError(
            HTTPStatus.BAD_REQUEST, "stream_options can only be given together with stream.", "stream_options"
        )
    return request


def _is_same(value: object, other: object) -> bool:
    """Equal, and not true for 1 or false for 0."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def _described(error: ValidationError) -> ApiError:
    """A mistake in a sentence. Where a value may be of several kinds, the one that it fits furthest was meant."""
    mistakes = error.errors(include_url=False, include_input=False, include_context=False)
    mistake = max(mistakes, key=lambda one: len(one["loc"]))
    place = [str(part) for part in mistake["loc"] if str(part).isalnum() or "_" in str(part)]
    place = [part for part in place if part != "str"]  # which of several kinds it was not
    where = ".".join(place) or "the body"
    return ApiError(HTTPStatus.BAD_REQUEST, f"{where}: {mistake['msg']}.", place[0] if place else None)
