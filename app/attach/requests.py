"""Our own requests to a server, through its OpenAI API and streamed: what a person's keys send, and what comes of it.

Times are taken at this end: from sending a request until a piece of its answer is here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import httpx
import msgspec
from httpx_sse import EventSource

from app.attach.cleaning import cleaned
from app.attach.connection import MAX_STREAMS, WHAT_GOES_WRONG, Connection, Trouble, read_all, why
from app.protocol import AddRequest, Event, Notice, Refused
from engine.trace import MAX_WAITING_IDS, Arrival, Finished, Output

Reason = Literal["stop", "length", "abort", "error"]
_REASONS: dict[str, Reason] = {"stop": "stop", "length": "length", "abort": "abort"}
_REFUSED_PARAMETERS = (400, 422)
MAX_EVENT_BYTES = 1 << 20
"""Of one event of a stream. With one token it has some hundred."""

_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    """An older name of `reasoning`."""


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: str | None = None
    """In the place of `delta` where there is no chat."""
    finish_reason: str | None = None

    @property
    def piece(self) -> str:
        delta = self.delta or _Delta()
        return (delta.reasoning or delta.reasoning_content or "") + (delta.content or self.text or "")


class _Usage(msgspec.Struct):
    prompt_tokens: _Count | None = None
    completion_tokens: _Count | None = None


class _Chunk(msgspec.Struct):
    """One event of a stream (vLLM: entrypoints/openai/chat_completion/protocol.py and completion/protocol.py)."""

    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: msgspec.Raw = msgspec.Raw()


_decode_chunk = msgspec.json.Decoder(_Chunk).decode


@dataclass(slots=True, eq=False)
class _Own:
    """One request of ours that has not ended."""

    request: AddRequest
    prompt: str
    sent: float
    is_taken: bool = False
    """The server has begun to answer."""
    is_aborted: bool = False
    task: asyncio.Task[None] | None = None
    num_tokens: int = 0
    is_estimated: bool = False
    """Pieces of its text were taken for tokens, since the server did not count them."""
    first_token: float | None = None


@dataclass(frozen=True, slots=True)
class News:
    """What has become of our requests since the last time, as a step trace has it."""

    arrivals: tuple[Arrival, ...]
    outputs: tuple[Output, ...]
    finished: tuple[Finished, ...]
    running: tuple[str, ...]
    waiting: tuple[str, ...]
    num_waiting: int


class OwnRequests:
    """The requests that we have sent to a server. `clock` gives the seconds of a trace; `put` tells at once what is no
    part of a trace."""

    def __init__(self, connection: Connection, clock: Callable[[], float], put: Callable[[Event], None]) -> None:
        self._connection = connection
        self._clock = clock
        self._put = put
        self._open: dict[str, _Own] = {}
        self._arrivals: list[Arrival] = []
        self._outputs: list[Output] = []
        self._finished: list[Finished] = []
        self.forget_server()

    def forget_server(self) -> None:
        """Whatever was learnt of how it wants to be asked may not hold for the one that is there now."""
        self._has_chat = True
        """Its model has a chat template."""
        self._takes_options = True
        """It knows how to count tokens in a stream."""
        self._has_said_so = False
        """That it does not count them."""

    def begin(self, request: AddRequest, model: str, tasks: asyncio.TaskGroup) -> None:
        """Send a request, unless too many are under way."""
        assert isinstance(request.prompt, str), "what keys send is text"
        if len(self._open) >= MAX_STREAMS:
            self._put(Refused(request.request_id, f"{MAX_STREAMS} requests of ours are open, which is the most."))
            return
        own = _Own(request, request.prompt, self._clock())
        self._open[request.request_id] = own
        own.task = tasks.create_task(self._serve(own, model))

    def abort(self, request_id: str) -> None:
        """Close the stream of a request: that is how a server learns that nobody wants the rest."""
        if (own := self._open.get(request_id)) and own.task:
            own.is_aborted = True
            # A task that is cancelled before it has begun would not notice.
            asyncio.get_running_loop().call_soon(own.task.cancel)

    @property
    def has_news(self) -> bool:
        return bool(self._arrivals or self._outputs or self._finished)

    def take(self) -> News:
        """All that there is to tell now, once."""
        taken = [own for own in self._open.values() if own.is_taken]
        waiting = [own.request.request_id for own in taken if own.first_token is None]
        news = News(
            tuple(self._arrivals),
            tuple(self._outputs),
            tuple(self._finished),
            tuple(own.request.request_id for own in taken if own.first_token is not None),
            tuple(waiting[:MAX_WAITING_IDS]),
            len(waiting),
        )
        self._arrivals, self._outputs, self._finished = [], [], []
        return news

    async def _serve(self, own: _Own, model: str) -> None:
        reason: Reason | None = None
        problem = ""
        try:
            async with self._answer(own.request, model) as response:
                self._arrive(own)
                reason = await self._read(own, response)
        except asyncio.CancelledError:
            if not own.is_aborted:
                raise
            reason = reason or "abort"
        except Trouble as trouble:
            problem = str(trouble)
        except WHAT_GOES_WRONG as error:
            problem = why(error)
        finally:
            del self._open[own.request.request_id]
        # Only here, where nothing can come in between, so that it ends once. What was whole before its stream was
        # closed stays so, however that went.
        if reason:
            self._end(own, reason)
        else:
            self._fail(own, problem)

    @asynccontextmanager
    async def _answer(self, request: AddRequest, model: str) -> AsyncIterator[httpx.Response]:
        """The stream of a server that has taken this request. Raises Trouble if it does not take it."""
        while True:
            is_chat, with_options = self._has_chat, self._takes_options
            path = "/v1/chat/completions" if is_chat else "/v1/completions"
            body = _body(request, model, is_chat=is_chat, with_options=with_options)
            async with self._connection.http.stream("POST", path, json=body) as response:
                if response.status_code == httpx.codes.OK:
                    yield response
                    return
                message = _message(await read_all(response))
            # What a server need not be asked for is left out from now on.
            refuses_parameters = response.status_code in _REFUSED_PARAMETERS
            if refuses_parameters and is_chat and "chat template" in message.lower():
                self._has_chat = False
            elif refuses_parameters and with_options and "stream_options" in message:
                self._takes_options = False
            else:
                raise self._refusal(response, path, message)

    def _refusal(self, response: httpx.Response, path: str, message: str) -> Trouble:
        trouble = self._connection.refusal(response, path)
        if response.status_code in (401, 403) or not message:
            return trouble
        return Trouble(f"refuses it ({response.status_code}): {message}")

    async def _read(self, own: _Own, response: httpx.Response) -> Reason:
        """Take in a stream to its end; why it ended. Raises Trouble if it broke off, or ended in another way than a
        text does."""
        reason = ""
        async with aclosing(EventSource(_bounded(response)).aiter_sse()) as events:
            async for event in events:
                if event.data == "[DONE]":
                    break
                chunk = _decode_chunk(event.data)
                if bytes(chunk.error) not in (b"", b"null"):
                    raise Trouble(f"gave up: {_message(event.data.encode()) or 'it does not say why'}")
                self._take_chunk(own, chunk)
                reason = next((choice.finish_reason for choice in chunk.choices if choice.finish_reason), reason)
        if not reason:
            raise Trouble("broke off its answer")
        if reason not in _REASONS:
            raise Trouble(f"ended it for another reason: {cleaned(reason, 40)}")
        return _REASONS[reason]

    def _take_chunk(self, own: _Own, chunk: _Chunk) -> None:
        """A piece of text, and how many tokens it is: as many more as the server has counted, otherwise one.

        A count that only comes at the end, or without any choice, puts right how many there were: nothing came with it.
        """
        text = "".join(choice.piece for choice in chunk.choices)
        counted = (chunk.usage and chunk.usage.completion_tokens) or 0
        num_tokens = 1 if text else 0
        if text and not counted:
            own.is_estimated = True
            self._say_so()
        elif counted and chunk.choices and not own.is_estimated:
            num_tokens = max(0, counted - own.num_tokens)
        own.num_tokens = counted or own.num_tokens + num_tokens
        if not num_tokens and not text:
            return
        now = self._clock()
        num_prompt_tokens = 0
        if own.first_token is None:
            own.first_token = now
            num_prompt_tokens = (chunk.usage and chunk.usage.prompt_tokens) or 0
        self._outputs.append(
            Output(
                own.request.request_id,
                token_id=-1,
                text=text,
                num_tokens=num_tokens,
                time=now,
                num_prompt_tokens=num_prompt_tokens,
            )
        )

    def _say_so(self) -> None:
        if not self._has_said_so:
            self._has_said_so = True
            self._put(Notice("the server does not count tokens as it streams: each piece of text counts as one."))

    def _arrive(self, own: _Own) -> None:
        own.is_taken = True
        request = own.request
        self._arrivals.append(
            Arrival(
                request_id=request.request_id,
                label=request.label,
                prompt=own.prompt,
                num_prompt_tokens=0,
                max_tokens=request.params.max_tokens,
                time=own.sent,
                priority=request.priority,
            )
        )

    def _fail(self, own: _Own, why: str) -> None:
        """It has not come to its end. vLLM may say only as it answers that its queue is full: as long as nobody heard
        that the request has arrived, this is a refusal like any other."""
        request_id = own.request.request_id
        untold = [arrival for arrival in self._arrivals if arrival.request_id == request_id]
        if own.is_taken and (own.first_token is not None or not untold):
            self._end(own, "error", f"the server {why}.")
            self._put(Notice(f"request {request_id} has failed: the server {why}."))
            return
        for arrival in untold:
            self._arrivals.remove(arrival)
        self._put(Refused(request_id, f"the server {why}."))

    def _end(self, own: _Own, reason: Reason, told: str = "") -> None:
        if not own.is_taken:
            self._put(Refused(own.request.request_id, "it was aborted before the server took it."))
            return
        self._finished.append(
            Finished(
                own.request.request_id,
                reason,
                own.num_tokens,
                ttft=own.first_token - own.sent if own.first_token is not None else None,
                e2e=self._clock() - own.sent,
                told=told,
            )
        )


def _body(request: AddRequest, model: str, *, is_chat: bool, with_options: bool) -> dict[str, Any]:
    """A request as the API has it; what is at its default is left out, since not every server knows it.

    The prompt is never cut to `max_prompt_tokens`, nor made of `pieces`: only the server can count its tokens, and it
    says what is too long.
    """
    params = request.params
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": params.max_tokens,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "stream": True,
    }
    if is_chat:
        body["messages"] = [{"role": "user", "content": request.prompt}]
    else:
        body["prompt"] = request.prompt
    if with_options:
        body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    optional: dict[str, tuple[object, object]] = {
        "seed": (params.seed, None),
        "stop": (list(params.stop), []),
        "stop_token_ids": (list(params.stop_token_ids), []),
        "top_k": (params.top_k, 0),
        "ignore_eos": (params.ignore_eos, False),
        "priority": (request.priority, 0),
    }
    return body | {name: value for name, (value, default) in optional.items() if value != default}


def _bounded(response: httpx.Response) -> httpx.Response:
    """The same stream, read as UTF-8 whatever it says it is, as far as none of its events is endless."""

    async def pieces() -> AsyncIterator[bytes]:
        size, tail = 0, b""
        async for piece in response.aiter_bytes():
            tail += piece
            size = 0 if any(end in tail for end in (b"\n\n", b"\r\n\r\n", b"\r\r")) else size + len(piece)
            tail = tail[-3:]
            if size > MAX_EVENT_BYTES:
                raise Trouble(f"sends more than {MAX_EVENT_BYTES >> 20} MiB at once")
            yield piece

    kind, _, _ = response.headers.get("content-type", "").partition(";")
    return httpx.Response(response.status_code, headers={"content-type": kind}, content=pieces())


def _message(body: bytes) -> str:
    """What an error answer says, as the end of a sentence: {"error": {"message": ...}} as OpenAI has it, or one of the
    forms of others. "" if it says nothing."""
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    for name in ("error", "message", "detail"):
        if isinstance(found, dict) and name in found:
            found = found[name]
    return cleaned(found).rstrip(".") if isinstance(found, str) else ""
