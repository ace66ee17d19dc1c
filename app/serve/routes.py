"""The HTTP side: who may ask, what may come, and which route leads where."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from http import HTTPStatus
from importlib.metadata import version
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from app.serve.errors import ApiError
from app.serve.gateway import Answer, Gateway
from app.serve.openai_api import ChatCompletionRequest, CompletionRequest, GenerationRequest, parse
from app.serve.replies import ChatReply, CompletionReply, Reply
from engine.request import RequestError

MAX_BODY_BYTES = 1 << 20
"""Far more than a context holds. The engine stands still while it makes tokens of a text."""
BODY_SECONDS = 60
LOCAL_NAMES = ("localhost", "host.docker.internal")


def application(gateway: Gateway, api_key: str | None) -> ASGIApp:
    """The server as an ASGI application. With a key, everything but /health asks for it."""
    created = int(time.time())

    async def health(_: Request) -> Response:
        gateway.check_ready()
        return Response()

    async def server_version(_: Request) -> Response:
        return JSONResponse({"version": version("nanoviz")})

    async def load(_: Request) -> Response:
        return JSONResponse({"server_load": gateway.num_in_flight})

    async def metrics(_: Request) -> Response:
        if gateway.metrics is None:  # later they are known also while there is no engine
            gateway.check_ready()
        assert gateway.metrics is not None
        return Response(gateway.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    async def models(_: Request) -> Response:
        model = {
            "id": gateway.check_ready().model,
            "object": "model",
            "created": created,
            "owned_by": "nanoviz",
            "root": gateway.model_asked_for,
            "parent": None,
            "max_model_len": gateway.config.max_model_len,
        }
        return JSONResponse({"object": "list", "data": [model]})

    return _Guard(
        Starlette(
            routes=[
                Route("/health", health),
                Route("/version", server_version),
                Route("/load", load),
                Route("/metrics", metrics),
                Route("/v1/models", models),
                Route("/v1/completions", _generation(gateway, CompletionRequest, CompletionReply), methods=["POST"]),
                Route("/v1/chat/completions", _generation(gateway, ChatCompletionRequest, ChatReply), methods=["POST"]),
            ],
            exception_handlers={
                ApiError: _answer_error,
                RequestError: _answer_request_error,
                HTTPException: _answer_http_error,
                ClientDisconnect: _answer_nobody,
                Exception: _answer_unforeseen,
            },
        ),
        api_key,
    )


class _Guard:
    """Lets nobody in without the key, if there is one.

    Without one only this machine can ask. Then a page in a browser must not get at it under a name of its own that
    leads here (DNS rebinding), so the name has to be one of this machine's.
    """

    def __init__(self, app: ASGIApp, api_key: str | None) -> None:
        self._app = app
        self._key = api_key.encode() if api_key else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (error := self._error(Headers(scope=scope), scope["path"])):
            await JSONResponse(error.body(), error.status)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _error(self, headers: Headers, path: str) -> ApiError | None:
        if self._key is None:
            if _is_local(headers.get("host", "")):
                return None
            return ApiError(HTTPStatus.FORBIDDEN, "Under this name the server answers only if it has an API key.")
        scheme, _, given = headers.get("authorization", "").partition(" ")
        is_right = scheme.lower() == "bearer" and hmac.compare_digest(given.encode("latin-1"), self._key)
        if is_right or path == "/health":
            return None
        return ApiError(HTTPStatus.UNAUTHORIZED, "The API key is missing or wrong: send Authorization: Bearer KEY.")


def _is_local(host: str) -> bool:
    """An address, or a name that only this machine has."""
    with suppress(ValueError):
        name = urlsplit(f"//{host}").hostname or ""
        if name in LOCAL_NAMES or name.endswith(".localhost"):
            return True
        ip_address(name)
        return True
    return False


def _generation(
    gateway: Gateway, kind: type[GenerationRequest], reply_kind: type[Reply]
) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    """The handler of an endpoint that generates text."""

    async def generate(http: Request) -> Response:
        ready = gateway.check_ready()
        request = parse(kind, await _body(http))
        if request.model not in (None, ready.model, gateway.model_asked_for):
            raise ApiError(HTTPStatus.NOT_FOUND, f"The model `{request.model}` does not exist.", "model")
        if request.num_requests > gateway.max_num_queued_reqs:
            what = (
                f"{request.num_requests:,} prompts are more than max_num_queued_reqs, {gateway.max_num_queued_reqs:,}."
            )
            raise ApiError(HTTPStatus.BAD_REQUEST, what, "prompt")
        return _Generated(gateway, request, reply_kind(request, ready.model))

    return generate


class _Generated(Response):
    """The engine's answer, sent as it comes or as a whole. A client that goes away ends it, and aborts the request."""

    def __init__(self, gateway: Gateway, request: GenerationRequest, reply: Reply) -> None:
        super().__init__()
        self._gateway = gateway
        self._request = request
        self._reply = reply
        self._requests = request.requests(reply.id, gateway.config.max_model_len)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.create_task(self._send(scope, receive, send))
        leaving = asyncio.create_task(_until_gone(receive))
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, leaving):
                task.cancel()
        with suppress(asyncio.CancelledError):
            await sending

    async def _send(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._gateway.send(self._requests) as answer:
            await answer.accepted()
            if self._request.stream:
                await self._stream(answer, send)
            else:
                await JSONResponse(await self._reply.whole(answer))(scope, receive, send)

    async def _stream(self, answer: Answer, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": HTTPStatus.OK, "headers": headers})
        async for event in self._reply.stream(answer):
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _body(http: Request) -> bytes:
    """Raises ApiError for one that is too large, however it comes, and for what is not called JSON.

    Browsers let any page send other types here without asking.
    """
    if http.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise ApiError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Send the header Content-Type: application/json.")
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in http.stream():
                body += part
                if len(body) > MAX_BODY_BYTES:
                    what = f"The body has more than {MAX_BODY_BYTES:,} bytes."
                    raise ApiError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, what)
    except TimeoutError:
        raise ApiError(HTTPStatus.REQUEST_TIMEOUT, f"The body did not come within {BODY_SECONDS} seconds.") from None
    return bytes(body)


async def _answer_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return JSONResponse(error.body(), error.status)


async def _answer_request_error(http: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return await _answer_error(http, ApiError(HTTPStatus.BAD_REQUEST, str(error), error.parameter))


async def _answer_http_error(http: Request, error: Exception) -> Response:
    """A path or a method that there is not."""
    assert isinstance(error, HTTPException)
    answer = await _answer_error(http, ApiError(HTTPStatus(error.status_code), f"{error.detail}: {http.url.path}"))
    answer.headers.update(error.headers or {})
    return answer


async def _answer_nobody(_: Request, __: Exception) -> Response:
    """The client went away while it sent its body."""
    return Response(status_code=HTTPStatus.BAD_REQUEST)


async def _answer_unforeseen(http: Request, error: Exception) -> Response:
    what = f"{type(error).__name__}: {error}"
    return await _answer_error(http, ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, what))
