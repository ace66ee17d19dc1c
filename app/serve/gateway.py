"""Gateway: the requests of clients on their way through the engine, each with what it was answered so far.

It lives on the event loop of the server. The engine's events come to it from the thread that reads them; commands go
straight to the engine's process, past the dashboard, which the engine tells of them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus

from app import protocol
from app.engine_process import EngineProcess
from app.protocol import AddRequest, EngineOptions, Event
from app.serve.errors import ApiError
from app.serve.metrics import Metrics
from engine.config import EngineConfig
from engine.trace import StepTrace

BUSY = "The engine is busy: {} requests are waiting or running, and no more are taken. Try again later."
BEGAN_ANEW = "The engine began anew, without the requests that it had."


@dataclass(frozen=True, slots=True)
class Delta:
    """What one step brought a request: a token with the text that became readable, its end, or both."""

    index: int
    """Which of the requests that were sent together."""
    text: str = ""
    token_id: int | None = None
    finish_reason: str | None = None


class Answer:
    """What becomes of requests that were sent together: one, or one for each prompt of a completion.

    Iterated over, it gives each Delta as it comes, and ends with the last request. Raises ApiError if the engine
    cannot go on with them.
    """

    def __init__(self, num_requests: int) -> None:
        self.num_prompt_tokens = [0] * num_requests
        self.num_cached_tokens = [0] * num_requests
        """Of the prompt, found in the prefix cache when the request was first admitted."""
        self._num_unaccepted = num_requests
        self._num_unfinished = num_requests
        self._is_accepted = asyncio.Event()
        self._error: ApiError | None = None
        self._news: asyncio.Queue[Delta | None] = asyncio.Queue()

    async def accepted(self) -> None:
        """Wait until the engine has taken all of them. Raises ApiError if it refuses one."""
        await self._is_accepted.wait()
        if self._error:
            raise self._error

    async def __aiter__(self) -> AsyncIterator[Delta]:
        while self._num_unfinished:
            delta = await self._news.get()
            if delta is None:
                assert self._error is not None
                raise self._error
            self._num_unfinished -= delta.finish_reason is not None
            yield delta

    def note_accepted(self, index: int, num_prompt_tokens: int) -> None:
        self.num_prompt_tokens[index] = num_prompt_tokens
        self._num_unaccepted -= 1
        if not self._num_unaccepted:
            self._is_accepted.set()

    def put(self, delta: Delta) -> None:
        self._news.put_nowait(delta)

    def fail(self, error: ApiError) -> None:
        if self._error is None:
            self._error = error
            self._is_accepted.set()
            self._news.put_nowait(None)


@dataclass(slots=True)
class _InFlight:
    """A request that was sent and has not ended."""

    answer: Answer
    index: int
    is_accepted: bool = False
    has_arrived: bool = False
    """It was in a trace."""
    was_admitted: bool = False


class Gateway:
    """`start` starts an engine that clients can be served by. What comes from clients is called on the server's loop.

    At most `max_num_queued_reqs` requests wait or run at a time, whoever sent them (vLLM's parameter of that name).
    """

    def __init__(self, max_num_queued_reqs: int) -> None:
        self.max_num_queued_reqs = max_num_queued_reqs
        self.metrics: Metrics | None = None
        """From the first time on that an engine was ready."""
        self.model_asked_for = ""
        """The model's name as it was given to the program."""
        self.ready: protocol.Ready | None = None
        """What serves, if it can serve now."""
        self.config = EngineConfig()
        """As far as is known: a run that began anew says it with its first step."""
        self._process: EngineProcess | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._in_flight: dict[str, _InFlight] = {}
        self._num_unfinished = 0
        """Requests in the last trace that did not end with it, whoever sent them."""
        self._why_not_ready = "The engine is starting."
        self._heard: list[Event] = []
        self._hearing = threading.Lock()

    # From the engine.

    def start(self, options: EngineOptions) -> EngineProcess:
        """Start an engine, in the place of one that has ended if there was one. Not from the server's thread."""
        self.model_asked_for = options.model
        self.config = options.config
        self._process = EngineProcess(options, hear=self._hear)
        return self._process

    def listen(self, loop: asyncio.AbstractEventLoop) -> None:
        """Take the engine's events on this loop, from now on."""
        self._loop = loop

    def close(self) -> None:
        """Serve nobody any more, and end all requests with an error. From any thread."""
        self._soon(lambda: self._stop("The server has been stopped."))

    def _hear(self, event: Event) -> None:
        """On the thread that reads events, a thousand times a second: those of a busy moment are taken together."""
        with self._hearing:
            self._heard.append(event)
            is_first = len(self._heard) == 1
        if is_first:
            self._soon(self._take_all)

    def _soon(self, call: Callable[[], object]) -> None:
        with suppress(RuntimeError):  # the event loop has ended
            if self._loop:
                self._loop.call_soon_threadsafe(call)

    def _take_all(self) -> None:
        with self._hearing:
            heard, self._heard = self._heard, []
        for event in heard:
            try:
                self.take(event)
            except Exception as error:  # whoever waits must not do so for ever
                self._stop(f"The server has failed: {type(error).__name__}: {error}")

    def take(self, event: Event) -> None:
        """Note what the engine says."""
        match event:
            case protocol.Stepped(trace):
                self._step(trace)
            case protocol.Accepted(request_id, num_prompt_tokens):
                if request := self._in_flight.get(request_id):
                    request.is_accepted = True
                    request.answer.note_accepted(request.index, num_prompt_tokens)
            case protocol.Refused(request_id, reason, parameter):
                self._fail(request_id, ApiError(HTTPStatus.BAD_REQUEST, reason, parameter))
            case protocol.Loading(what):
                self._why_not_ready = f"The model is not loaded yet: {what}."
            case protocol.Ready():
                self._begin(event)
            case protocol.Failed(error):
                self._stop(f"The engine has ended: {error}")

    def _stop(self, why: str) -> None:
        """Nothing more comes for anybody, unless another engine is ready one day."""
        self.ready = None
        self._why_not_ready = why
        self._num_unfinished = 0
        if self.metrics:
            self.metrics.forget_requests()
        for request_id in list(self._in_flight):
            self._fail(request_id, self._unavailable())

    def _begin(self, ready: protocol.Ready) -> None:
        """A run begins. Whom the engine has taken before it went with the run before; others are still to come."""
        self.ready = ready
        self._num_unfinished = 0
        if self.metrics is None:
            self.metrics = Metrics(ready.model, self.config)
        self.metrics.forget_requests()
        for request_id, request in list(self._in_flight.items()):
            if request.is_accepted:
                self._fail(request_id, ApiError(HTTPStatus.SERVICE_UNAVAILABLE, BEGAN_ANEW))

    def _step(self, trace: StepTrace) -> None:
        assert self.metrics is not None
        self.metrics.apply(trace)
        self.config = trace.config
        ended = {finished.request_id for finished in trace.finished}
        self._num_unfinished = sum(request_id not in ended for request_id in trace.running) + trace.num_waiting
        for arrival in trace.arrivals:
            if request := self._in_flight.get(arrival.request_id):
                request.has_arrived = True
        for item in trace.scheduled:
            request = self._in_flight.get(item.request_id) if item.admitted else None
            if request and not request.was_admitted:
                request.was_admitted = True
                request.answer.num_cached_tokens[request.index] = item.num_cached_tokens
        reasons = {finished.request_id: finished.reason for finished in trace.finished}
        for output in trace.outputs:
            if request := self._in_flight.get(output.request_id):
                reason = reasons.pop(output.request_id, None)
                request.answer.put(Delta(request.index, output.text, output.token_id, reason))
        for request_id, reason in reasons.items():
            if request := self._in_flight.get(request_id):
                request.answer.put(Delta(request.index, finish_reason=reason))
        for request_id in ended:
            self._in_flight.pop(request_id, None)

    # From clients.

    @property
    def num_in_flight(self) -> int:
        """Requests of clients that have not ended, and whose client is there."""
        return len(self._in_flight)

    def check_ready(self) -> protocol.Ready:
        """What serves. Raises ApiError if nothing can be served now."""
        if self.ready is None:
            raise self._unavailable()
        return self.ready

    def _unavailable(self) -> ApiError:
        return ApiError(HTTPStatus.SERVICE_UNAVAILABLE, self._why_not_ready)

    @contextmanager
    def send(self, requests: Sequence[AddRequest]) -> Iterator[Answer]:
        """Send these requests to the engine. Those that have not ended at the end of the block are aborted.

        Raises ApiError if the engine is not ready, or has as many as it may.
        """
        self.check_ready()
        num_on_the_way = sum(not request.has_arrived for request in self._in_flight.values())
        if self._num_unfinished + num_on_the_way + len(requests) > self.max_num_queued_reqs:
            assert self.metrics is not None
            self.metrics.count_rejection()
            raise ApiError(HTTPStatus.SERVICE_UNAVAILABLE, BUSY.format(self._num_unfinished + num_on_the_way))
        process, answer = self._process, Answer(len(requests))
        assert process is not None
        for index, request in enumerate(requests):
            self._in_flight[request.request_id] = _InFlight(answer, index)
            process.send(request)
        try:
            yield answer
        finally:
            for request in requests:
                if self._in_flight.pop(request.request_id, None):
                    process.send(protocol.Abort(request.request_id))

    def _fail(self, request_id: str, error: ApiError) -> None:
        if request := self._in_flight.pop(request_id, None):
            request.answer.fail(error)
