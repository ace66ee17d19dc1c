"""Questions to a server, each with a short answer in a short time; whatever goes wrong is a sentence."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator
from http.cookiejar import DefaultCookiePolicy
from typing import TypeVar

import httpx
import msgspec

from app.attach.address import AttachError
from app.attach.cleaning import cleaned
from app.settings import API_KEY
from engine.progress import one_line

ANSWER_SECONDS = 5.0
"""That a server has for a whole answer, usually."""
MAX_BYTES = 16 << 20
"""Of an answer. vLLM's metrics are some 64 KiB for each of its engines."""
MAX_STREAMS = 512
"""Of our own requests open at once; each is a connection."""
METRICS = "/metrics"
NEEDED_FLAGS = "SGLang has them with --enable-metrics, llama.cpp with --metrics"

WHAT_GOES_WRONG = (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL, OSError, ValueError, RecursionError)
"""All that an answer can raise, whatever stands in it: the last ones where it is nested without end, or names a place
that is none."""

Answer = TypeVar("Answer")


class Trouble(Exception):
    """A server that gives no proper answer; the text says what it does instead, without naming it."""


class Refusal(Trouble):
    """A server that answers, but not with what it was asked for."""

    def __init__(self, what: str, status: int) -> None:
        super().__init__(what)
        self.wants_key = status in (401, 403)


class Connection:
    """To one server, by its URL. A key goes with every question to it, and nowhere else: no redirect is followed.

    Raises AttachError for a URL, a key or an environment with which nothing can be asked.
    """

    def __init__(self, url: str, key: str) -> None:
        key = key.strip()
        self._has_key = bool(key)
        if not (key.isascii() and key.isprintable()):
            raise AttachError(f"{API_KEY} holds characters that no key can have.")
        # A compressed answer would cost the server more than it saves.
        headers = {"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {key}"} if key else {})
        limits = httpx.Limits(max_connections=MAX_STREAMS + 8, max_keepalive_connections=8)
        timeout = httpx.Timeout(None, connect=ANSWER_SECONDS)
        try:
            self.http = httpx.AsyncClient(base_url=url, headers=headers, limits=limits, timeout=timeout)
        except (httpx.InvalidURL, ValueError, ImportError, OSError) as error:
            # The last ones are about proxies and certificates that the environment names.
            raise AttachError(f"{url} cannot be asked anything: {one_line(error)}.") from None
        # A cookie would come back with each question, and some cannot even be written into one.
        self.http.cookies.jar.set_policy(DefaultCookiePolicy(allowed_domains=[]))

    async def text(self, path: str) -> str:
        """What stands there. Raises Trouble."""
        return (await self._get(path)).decode("utf-8", "replace")

    async def json(self, path: str, kind: type[Answer], seconds: float | None = None) -> Answer | None:
        """What stands there in JSON; None if the server has nothing of that kind there. `seconds` if it may take longer
        than usual, or less. Raises Trouble if it gives no whole answer, and Refusal if it wants a key."""
        try:
            return msgspec.json.decode(await self._get(path, seconds), type=kind)
        except Refusal as refusal:
            if refusal.wants_key:
                raise
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
        return None

    async def _get(self, path: str, seconds: float | None = None) -> bytes:
        try:
            async with asyncio.timeout(seconds or ANSWER_SECONDS), self.http.stream("GET", path) as response:
                body = await read_all(response)
        except WHAT_GOES_WRONG as error:
            raise Trouble(why(error)) from None
        if response.status_code == httpx.codes.OK:
            return body
        raise self.refusal(response, path)

    def refusal(self, response: httpx.Response, path: str) -> Refusal:
        """What an answer means that is none."""
        status = response.status_code
        if status in (401, 403):
            does = "does not accept the key in" if self._has_key else "wants an API key: set"
            what = f"{does} {API_KEY}"
        elif response.is_redirect:
            place = cleaned(response.headers.get("location", "nowhere"), 100)
            what = f"sends elsewhere, to {place}: attach to that, if it is meant"
        elif status in (404, 405, 501):
            what = f"answers, but has no {path}{f' ({NEEDED_FLAGS})' if path == METRICS else ''}"
        else:
            what = f"answers with an error: {status} {httpx.codes.get_reason_phrase(status).lower()}".rstrip()
        return Refusal(what, status)


async def read_all(response: httpx.Response) -> bytes:
    """The body of an answer. Raises Trouble for a far too large one."""
    body = bytearray()
    async for piece in response.aiter_bytes():
        body += piece
        if len(body) > MAX_BYTES:
            raise Trouble(f"answers with more than {MAX_BYTES >> 20} MiB")
    return bytes(body)


def why(error: BaseException) -> str:
    """What a server does instead of answering, as the end of a sentence about it."""
    for cause in _causes(error):
        match cause:
            case ssl.SSLCertVerificationError():
                reason = cleaned(cause.verify_message, 100)
                return f"has a TLS certificate that is not trusted ({reason}): SSL_CERT_FILE names those to trust"
            case ssl.SSLError():
                return "does not speak TLS: is its address one with http:// ?"
            case socket.gaierror():
                return "cannot be found: there is no host of that name"
            case ConnectionRefusedError():
                return "does not answer: connection refused"
            case TimeoutError() | httpx.TimeoutException():
                return f"gives no answer within {ANSWER_SECONDS:g} s"
    if isinstance(error, httpx.ConnectError):
        return f"cannot be reached: {cleaned(one_line(error), 100)}"
    return f"broke off its answer: {cleaned(one_line(error), 100)}"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error and what it came from, first to last."""
    while error is not None:
        yield error
        if isinstance(error, BaseExceptionGroup):
            for one in error.exceptions:
                yield from _causes(one)
        error = error.__cause__ or error.__context__
