"""Replies: what the engine gives, as OpenAI's objects, whole or as server-sent events, with the fields of vLLM's."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any, ClassVar
from uuid import uuid4

import msgspec

from app.serve.errors import ApiError
from app.serve.gateway import Answer, Delta
from app.serve.openai_api import GenerationRequest

Json = dict[str, Any]
DONE = b"data: [DONE]\n\n"


class Reply:
    """The reply to one request of a client. A subclass for each endpoint says how its choices look."""

    prefix: ClassVar[str]
    """Of its id."""
    whole_object: ClassVar[str]
    chunk_object: ClassVar[str]

    def __init__(self, request: GenerationRequest, model: str) -> None:
        self.id = f"{self.prefix}-{uuid4().hex[:16]}"
        self._request = request
        self._model = model
        self._created = int(time.time())
        self._num_tokens = 0

    def _choice(self, index: int, text: str, finish_reason: str | None, stop_reason: int | None) -> Json:
        raise NotImplementedError

    def _chunk_choice(self, delta: Delta) -> Json:
        raise NotImplementedError

    def _opening(self) -> list[Json]:
        """Choices of a chunk that comes before all others, if there is one."""
        return []

    async def whole(self, answer: Answer) -> Json:
        """Everything at once, when all of it is there. Raises ApiError if the engine cannot go on."""
        texts = [""] * len(answer.num_prompt_tokens)
        ends: dict[int, Delta] = {}
        async for delta in answer:
            texts[delta.index] += delta.text
            self._num_tokens += delta.token_id is not None
            if delta.finish_reason:
                ends[delta.index] = delta
        choices = [
            self._choice(index, text, ends[index].finish_reason, self._stop_reason(ends[index]))
            for index, text in enumerate(texts)
        ]
        return {**self._head(self.whole_object), "choices": choices, "usage": self._usage(answer)}

    async def stream(self, answer: Answer) -> AsyncIterator[bytes]:
        """An event for each token. An error is one as well, and the last before the end."""
        has_begun = False
        try:
            async for delta in answer:
                if not has_begun and (opening := self._opening()):
                    yield self._event(opening, answer)
                has_begun = True
                self._num_tokens += delta.token_id is not None
                yield self._event([self._chunk_choice(delta)], answer)
        except ApiError as error:
            yield _sse(error.body())
        else:
            if self._request.with_usage:
                yield _sse({**self._head(self.chunk_object), "choices": [], "usage": self._usage(answer)})
        yield DONE

    def _event(self, choices: list[Json], answer: Answer) -> bytes:
        chunk = {**self._head(self.chunk_object), "choices": choices}
        if self._request.with_running_usage:
            chunk["usage"] = self._usage(answer)
        return _sse(chunk)

    def _head(self, kind: str) -> Json:
        return {"id": self.id, "object": kind, "created": self._created, "model": self._model}

    def _usage(self, answer: Answer) -> Json:
        num_prompt_tokens = sum(answer.num_prompt_tokens)
        return {
            "prompt_tokens": num_prompt_tokens,
            "total_tokens": num_prompt_tokens + self._num_tokens,
            "completion_tokens": self._num_tokens,
            "prompt_tokens_details": {"cached_tokens": sum(answer.num_cached_tokens)},
        }

    def _stop_reason(self, end: Delta) -> int | None:
        """The one of `stop_token_ids` that ended it. Which stop string did is not known here."""
        stops = self._request.stop_token_ids or ()
        return end.token_id if end.finish_reason == "stop" and end.token_id in stops else None


class CompletionReply(Reply):
    prefix = "cmpl"
    whole_object = chunk_object = "text_completion"

    def _choice(self, index: int, text: str, finish_reason: str | None, stop_reason: int | None) -> Json:
        ended = {"finish_reason": finish_reason, "stop_reason": stop_reason}
        return {"index": index, "text": text, "logprobs": None, **ended}

    def _chunk_choice(self, delta: Delta) -> Json:
        return self._choice(delta.index, delta.text, delta.finish_reason, self._stop_reason(delta))


class ChatReply(Reply):
    prefix = "chatcmpl"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def _choice(self, index: int, text: str, finish_reason: str | None, stop_reason: int | None) -> Json:
        message = {"role": "assistant", "content": text, "refusal": None}
        ended = {"finish_reason": finish_reason, "stop_reason": stop_reason}
        return {"index": index, "message": message, "logprobs": None, **ended}

    def _chunk_choice(self, delta: Delta) -> Json:
        ended: Json = {"finish_reason": delta.finish_reason}
        if delta.finish_reason:
            ended["stop_reason"] = self._stop_reason(delta)
        return {"index": delta.index, "delta": {"content": delta.text}, "logprobs": None, **ended}

    def _opening(self) -> list[Json]:
        delta = {"role": "assistant", "content": ""}
        return [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}]


def _sse(data: Json) -> bytes:
    return b"data: " + msgspec.json.encode(data) + b"\n\n"
