"""A small server that answers as real ones have: vLLM's captured metrics, streams and KV events, and errors."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
import zmq
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from app.attach.source import AttachedServer
from app.protocol import Event, Stepped
from app.session import Source
from engine.trace import StepTrace

DATA = Path(__file__).parent.parent / "data" / "attach"
CERTIFICATE = DATA / "self-signed.pem"
FCFS, PRIORITY = "a-fcfs-kv-events", "b-priority-iterations"
MODEL = "smollm2-135m-instruct"
PAUSE = 0.01
MAX_PAUSES = 6000
"""Far more than anything here takes: what has not come by then never will."""
Answer = Callable[[Request], Awaitable[Response]]


def data(folder: str, name: str) -> bytes:
    path = DATA / folder / name
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


def metrics(folder: str, when: str) -> str:
    """All of /metrics: before, during or after the load."""
    return data(folder, f"metrics-{when}.txt.gz").decode()


def series(folder: str) -> list[dict[str, float]]:
    """The scheduler's gauges and counters, about every quarter of a second."""
    return [json.loads(line)["m"] for line in data(folder, "metrics-series.jsonl.gz").splitlines()]


def as_metrics(values: dict[str, float], rank: int = 0) -> str:
    """One look of a series as /metrics had it: names without their prefix, labels without those that all have."""
    lines = []
    for name, value in values.items():
        name, _, labels = name.partition("{")
        own = f",{labels.rstrip('}')}" if labels else ""
        lines.append(f'vllm:{name}{{engine="{rank}",model_name="{MODEL}"{own}}} {value}')
    return "\n".join([*lines, ""])


def frames() -> list[tuple[bytes, bytes, bytes]]:
    """The captured messages with KV events: topic, number and body."""
    raw, parts = data(FCFS, "kv-events.frames.bin.gz"), []
    while raw:
        size = int.from_bytes(raw[:4], "big")
        parts.append(raw[4 : 4 + size])
        raw = raw[4 + size :]
    return [(parts[i], parts[i + 1], parts[i + 2]) for i in range(0, len(parts), 3)]


class CapturedServer:
    """On a free port from `start` to `stop`. What it answers can be changed at any time: `answers` by path."""

    def __init__(self, folder: str = FCFS, texts: Iterable[str] = (), *, is_secure: bool = False) -> None:
        self.texts = list(texts) or [metrics(folder, "before")]
        """Of /metrics: each look gets the next, and the last one again and again."""
        self.asked: list[tuple[str, str]] = []
        """Method and path of all requests."""
        self.headers: list[dict[str, str]] = []
        self.bodies: list[Any] = []
        """Of the POST requests."""
        self.num_open = 0
        """Answers that have not ended, and that nobody has given up."""
        self.most_open = 0
        self.answers: dict[str, Answer] = {
            "/metrics": self._next_metrics,
            "/v1/chat/completions": self.streaming(data(FCFS, "chat-stream.sse")),
            "/v1/completions": self.streaming(data(FCFS, "completion-stream.sse")),
        }
        for path in ("version", "v1/models", "kv_event_sources"):
            self.answers[f"/{path}"] = saying(data(folder, f"{path.rpartition('/')[2]}.json"))
        self._socket = bound_socket(0)
        self.port = self._socket.getsockname()[1]
        self.url = f"http{'s' if is_secure else ''}://127.0.0.1:{self.port}"
        self._certificate = CERTIFICATE if is_secure else None
        self._app = Starlette(routes=[Route("/{path:path}", self._answer, methods=["GET", "POST"])])

    def start(self) -> None:
        if self._socket.fileno() < 0:
            self._socket = bound_socket(self.port)
        self._socket.listen()
        config = uvicorn.Config(
            self._app, log_level="critical", lifespan="off", ws="none", ssl_certfile=self._certificate
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), daemon=True)
        self._thread.start()
        eventually(lambda: self._server.started)

    def stop(self) -> None:
        """At once, as if it had been killed."""
        self._server.should_exit = self._server.force_exit = True
        self._thread.join()
        self._socket.close()

    def __enter__(self) -> CapturedServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def streaming(self, sse: bytes, *, is_endless: bool = False) -> Answer:
        """An answer of these server-sent events; an endless one then says nothing more, and does not end."""
        events = [event + b"\n\n" for event in sse.split(b"\n\n") if event]

        async def pieces() -> AsyncIterator[bytes]:
            self.num_open += 1
            try:
                for event in events:
                    yield event
                while is_endless:
                    await asyncio.sleep(PAUSE)
            finally:
                self.num_open -= 1

        async def answer(request: Request) -> Response:
            return StreamingResponse(pieces(), media_type="text/event-stream; charset=utf-8")

        return answer

    async def hang(self, request: Request) -> Response:
        """No answer, ever."""
        self.num_open += 1
        self.most_open = max(self.most_open, self.num_open)
        while not await request.is_disconnected():
            await asyncio.sleep(PAUSE)
        self.num_open -= 1
        return Response()

    async def _answer(self, request: Request) -> Response:
        path = request.url.path
        self.asked.append((request.method, path))
        self.headers.append(dict(request.headers))
        if request.method == "POST":
            self.bodies.append(await request.json())
        answer = self.answers.get(path)
        return await answer(request) if answer else PlainTextResponse('{"detail":"Not Found"}', 404)

    async def _next_metrics(self, request: Request) -> Response:
        text = self.texts.pop(0) if len(self.texts) > 1 else self.texts[0]
        return PlainTextResponse(text)


def bound_socket(port: int) -> socket.socket:
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    one.bind(("127.0.0.1", port))
    return one


def saying(body: bytes | str, status: int = 200, headers: dict[str, str] | None = None) -> Answer:
    async def answer(request: Request) -> Response:
        return Response(body, status, headers)

    return answer


class _Cut(Response):
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"1000")]})
        await send({"type": "http.response.body", "body": b"vllm:num", "more_body": True})
        raise ConnectionError


async def cut(request: Request) -> Response:
    """The beginning of an answer."""
    return _Cut()


class Publisher:
    """Publishes the captured KV events as vLLM does, and answers who asks for what it has missed."""

    def __init__(self) -> None:
        self._context = zmq.Context()
        self._pub = self._context.socket(zmq.XPUB)  # a PUB that hears of its listeners
        self.endpoint = f"tcp://127.0.0.1:{self._pub.bind_to_random_port('tcp://127.0.0.1')}"
        self._router = self._context.socket(zmq.ROUTER)
        self.replay = f"tcp://127.0.0.1:{self._router.bind_to_random_port('tcp://127.0.0.1')}"
        self.kept: list[tuple[bytes, bytes, bytes]] = []
        self.num_replays = 0
        self._closing = False
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def publish(self, message: tuple[bytes, bytes, bytes], *, is_lost: bool = False) -> None:
        self.kept.append(message)
        if not is_lost:
            self._pub.send_multipart(message)

    def await_listener(self) -> None:
        """What is published before somebody listens is lost."""
        eventually(lambda: self._pub.poll(0) > 0)
        self._pub.recv()

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing = True
        self._thread.join()
        self._context.destroy(linger=0)

    def _serve(self) -> None:
        while not self._closing:
            if not self._router.poll(10):
                continue
            client, _, start = self._router.recv_multipart()
            self.num_replays += 1
            for message in list(self.kept):
                if message[1] >= start:
                    self._router.send_multipart((client, b"", *message))
            self._router.send_multipart((client, b"", b"", (-1).to_bytes(8, "big", signed=True), b""))


class Watch:
    """What an attached server has said so far."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.events: list[Event] = []

    @property
    def traces(self) -> list[StepTrace]:
        return [event.trace for event in self.events if isinstance(event, Stepped)]

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def until(self, condition: Callable[[], object]) -> None:
        """Take in what it says until this is true."""

        def is_true() -> bool:
            self.events += self.source.drain()
            return bool(condition())

        eventually(is_true)

    def more(self, num: int) -> None:
        """So many traces more."""
        wanted = len(self.traces) + num
        self.until(lambda: len(self.traces) >= wanted)


@contextmanager
def attached(server: CapturedServer | str, **options: Any) -> Iterator[Watch]:
    """An attached server that looks often."""
    url = server if isinstance(server, str) else server.url
    source = AttachedServer(url, **{"interval": PAUSE, **options})
    try:
        yield Watch(source)
    finally:
        source.close()


def eventually(condition: Callable[[], bool]) -> None:
    for _ in range(MAX_PAUSES):
        if condition():
            return
        time.sleep(PAUSE)
    raise AssertionError("it never came to be")
