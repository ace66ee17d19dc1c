"""AttachedServer: a running server in the place of an engine. What it tells becomes step traces, one for each look."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from msgspec.structs import replace

from app import protocol
from app.attach import facts, publishers
from app.attach.address import kv_address, server_url
from app.attach.cleaning import cleaned
from app.attach.connection import METRICS, NEEDED_FLAGS, Connection, Trouble
from app.attach.dialects import VLLM, Dialect, dialect_of
from app.attach.difference import poll_of
from app.attach.facts import Facts
from app.attach.kv_events import KvListener
from app.attach.metrics import Readings, Sample
from app.attach.pace import SHORTEST_INTERVAL, USUAL_INTERVAL
from app.attach.requests import OwnRequests
from app.event_queue import EventQueue
from app.protocol import Command
from app.session import NOT_OURS, NOT_YET, READ_ONLY
from engine.poll import Poll, PrefixOp
from engine.progress import one_line
from engine.trace import StepTrace

LONGEST_BACKOFF = 5.0
"""Seconds after which a server that did not answer is asked again, at most."""
CLOSE_SECONDS = 2.0
_UNTIL_IT_ANSWERS = "nothing can be sent until it answers"


class _Closed(Exception):
    pass


class AttachedServer:
    """Looks at a server every `interval` seconds, and takes the commands of a dashboard as an engine's process does.

    It only ever reads, unless a request is sent. A look begins when the one before it has ended, so that nothing piles
    up at a slow server; one that does not answer is asked again and again. `key` goes to the server and nowhere else.
    `kv_events` says where its KV events can be heard, as `kv_address` understands it; "" for nowhere. Raises
    AttachError for an address or a key that cannot be one.
    """

    def __init__(
        self,
        url: str,
        *,
        key: str = "",
        read_only: bool = False,
        interval: float = USUAL_INTERVAL,
        kv_events: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.url = server_url(url)
        self._connection = Connection(self.url, key)
        self._kv_address = kv_address(kv_events) if kv_events else None
        self._kv: KvListener | None = None
        self._kv_task: asyncio.Task[None] | None = None
        self._read_only = read_only
        self._interval = interval
        self._clock = clock
        self._attached = clock()
        events = EventQueue()
        self._put, self.drain, self.when_news = events.put, events.drain, events.when_news
        self._requests = OwnRequests(self._connection, self._seconds, self._put)
        self._facts: Facts | None = None
        self._more_task: asyncio.Task[None] | None = None
        self._sample: Sample | None = None
        """The last one, and when it was taken."""
        self._sampled_at = 0.0
        self._cleared: tuple[PrefixOp, ...] = ()
        """What the prefix caches of a server that is gone have come to."""
        self._problem = ""
        self._num_failures = 0
        """Looks without an answer since the last one with."""
        self._num_steps = 0
        self._paused = False
        self._num_asked = 0
        """Looks that were asked for while paused, and not taken yet."""
        self._steps_per_second = 0.0
        self._looked_at: float | None = None
        """When the last look began."""
        self._put(protocol.Loading(f"attaching to {self.url}", hint=_UNTIL_IT_ANSWERS))
        self._pace_changed = asyncio.Event()
        self._closing = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True, name="attach")
        self._thread.start()

    # What the dashboard calls, from its own thread.

    def send(self, message: Command) -> None:
        with suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(self._take, message)

    def close(self) -> None:
        """End all streams, which the server takes for an abort, and the thread."""
        with suppress(RuntimeError):  # it has ended by itself
            self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join(CLOSE_SECONDS)

    # What happens in the thread.

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._live())
        except Exception as error:
            cause: BaseException = error
            while isinstance(cause, BaseExceptionGroup):
                cause = cause.exceptions[0]
            self._put(protocol.Failed(f"looking at {self.url} has failed: {one_line(cause)}"))

    async def _live(self) -> None:
        try:
            async with self._connection.http, asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                tasks.create_task(self._look_again_and_again())
                await self._closing.wait()
                raise _Closed  # which ends the tasks
        except* _Closed:
            pass

    def _take(self, message: Command) -> None:
        match message:
            case protocol.AddRequest(request_id) if self._read_only:
                self._put(protocol.Refused(request_id, READ_ONLY))
            case protocol.AddRequest(request_id) if self._facts is None:
                self._put(protocol.Refused(request_id, NOT_YET))
            case protocol.AddRequest() if self._facts:
                self._requests.begin(message, self._facts.model, self._tasks)
            case protocol.Abort(request_id):
                self._requests.abort(request_id)
            case protocol.Reconfigure():
                self._put(protocol.ReconfigureRefused(NOT_OURS))
            case protocol.SetPaused(paused):
                self._paused, self._num_asked = paused, 0
                self._answer_pace()
            case protocol.StepOnce():
                self._num_asked += self._paused
                self._answer_pace()
            case protocol.SetSpeed(steps_per_second):
                self._steps_per_second = steps_per_second
                self._answer_pace()

    def _answer_pace(self) -> None:
        self._pace_changed.set()
        self._put(protocol.PaceSet(self._paused, self._steps_per_second))

    async def _look_again_and_again(self) -> None:
        while True:
            await self._next_turn()
            self._looked_at = self._clock()
            try:
                await self._look()
                self._num_failures = 0
            except Trouble as trouble:
                self._num_failures += 1
                self._report(str(trouble))

    async def _next_turn(self) -> None:
        """Wait until the next look is due, or was asked for."""
        while not (self._paused and self._num_asked):
            seconds = None if self._paused else self._seconds_to_wait()
            if seconds == 0:
                return
            self._pace_changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._pace_changed.wait()
        self._num_asked -= 1

    def _seconds_to_wait(self) -> float:
        if self._looked_at is None:
            return 0.0
        interval = self._interval
        if self._steps_per_second:
            interval = max(SHORTEST_INTERVAL, 1 / self._steps_per_second)
        # A server that is away is left alone for longer and longer, unless somebody wants to look seldom anyway.
        backoff = min(LONGEST_BACKOFF, interval * float(1 << min(self._num_failures, 16)))
        return max(0.0, self._looked_at + max(interval, backoff) - self._clock())

    async def _look(self) -> None:
        """Take a sample, and tell what happened since the last one. Raises Trouble."""
        started = self._clock()
        text = await self._connection.text(METRICS)
        seconds = self._clock() - started
        dialect = dialect_of(text)
        if dialect is None:
            raise Trouble(f"answers, but with no metrics of a vLLM, SGLang or llama.cpp server ({NEEDED_FLAGS})")
        try:
            sample = dialect.read(Readings(text, dialect.names))
        except ValueError as error:
            raise Trouble(f"answers with metrics that cannot be read: {cleaned(one_line(error))}") from None
        poll = replace(poll_of(self._sample, sample, started - self._sampled_at), seconds=seconds)
        # Not every server tells when its process began: after a problem it may be another one unnoticed.
        if self._facts is None or poll.restarted or (self._problem and sample.began is None):
            await self._ask(dialect, sample)
        elif sample.config:  # which a server may tell later, or change
            self._facts = self._facts.knowing(sample.config)
        self._sample, self._sampled_at, self._problem = sample, started, ""
        self._trace(started, poll)

    async def _ask(self, dialect: Dialect, sample: Sample) -> None:
        """Learn what this server is, and say so if it is another than before."""
        before, self._facts = self._facts, await facts.ask(self._connection, dialect, sample)
        if before is None:
            server = protocol.Server(
                self._facts.kind, self._facts.version, self.url, self._read_only, dialect.is_tested, self._interval
            )
            self._put(_ready(self._facts, server))
        elif before.name != self._facts.name:
            self._requests.forget_server()
            self._put(protocol.Notice(f"{self.url} is another server now: {self._facts.name}."))
        if self._facts.complaint and (before is None or before.complaint != self._facts.complaint):
            self._put(protocol.Notice(f"{self.url} {self._facts.complaint}."))
        if self._more_task:
            self._more_task.cancel()
        self._more_task = self._tasks.create_task(self._ask_more(dialect, sample, self._facts))
        await self._listen(sample)

    async def _listen(self, sample: Sample) -> None:
        """Hear the KV events of the server that is there now, and no longer those of the one before."""
        if self._kv_task:
            self._kv_task.cancel()
            await asyncio.wait([self._kv_task])  # what it has bound can be bound again then
        if self._kv:
            self._cleared = self._kv.clear()
        if self._kv_address and self._facts:
            ranks = [rank.name for rank in sample.ranks if rank.name]
            self._kv = KvListener(publishers.addresses(self._kv_address, self._facts, self.url, ranks))
            self._kv_task = self._tasks.create_task(self._kv.listen())

    async def _ask_more(self, dialect: Dialect, sample: Sample, known: Facts) -> None:
        """Learn what takes longer. Whatever the looks have told meanwhile is newer."""
        if known.is_late:
            again = await facts.ask(self._connection, dialect, sample, facts.PATIENCE_SECONDS)
            self._facts = again.knowing((self._facts or known).known)
            await self._listen(sample)
        if dialect is VLLM:
            with suppress(Trouble):
                told = await facts.ask_more(self._connection)
                self._facts = (self._facts or known).knowing(told)

    def _report(self, problem: str) -> None:
        """Tell once what is wrong, until something else is; or once more if our own requests have come on meanwhile."""
        if problem == self._problem and not self._requests.has_news:
            return
        self._problem = problem
        if self._facts is None:
            self._put(protocol.Loading(f"{self.url} {problem}; trying again", hint=_UNTIL_IT_ANSWERS))
        else:
            self._trace(self._clock(), Poll(problem=f"{self.url} {problem}."))

    def _seconds(self) -> float:
        """Of a trace's clock."""
        return self._clock() - self._attached

    def _trace(self, started: float, poll: Poll) -> None:
        """Tell one look, and what has become of our own requests since the last one."""
        assert self._facts is not None
        own = self._requests.take()
        if self._kv:
            poll = replace(poll, prefix=self._cleared + self._kv.take(), prefix_known=self._kv.known)
        problem = self._kv.problem if self._kv else ""
        hint = problem or publishers.hint(self._kv_address, self._facts, self.url)
        trace = StepTrace(
            step=self._num_steps,
            started=started - self._attached,
            config=self._facts.config,
            arrivals=own.arrivals,
            outputs=own.outputs,
            finished=own.finished,
            running=own.running,
            waiting=own.waiting,
            num_waiting=own.num_waiting,
            num_free_blocks=self._num_free_blocks(poll.kv_usage),
            poll=replace(poll, unknown=self._facts.unknown, prefix_hint=hint),
        )
        self._cleared = ()
        self._num_steps += 1
        self._put(protocol.Stepped(trace))

    def _num_free_blocks(self, kv_usage: float | None) -> int:
        """0 if it is not known."""
        if self._facts is None or kv_usage is None or "num_blocks" in self._facts.unknown:
            return 0
        return round((1 - kv_usage) * self._facts.config.num_usable_blocks)


def _ready(facts: Facts, server: protocol.Server) -> protocol.Ready:
    return protocol.Ready(
        model=cleaned(facts.model),
        num_parameters=0,
        dtype="",
        device="",
        threads=0,
        exactness="",
        bitwise=False,
        random_weights=False,
        server=server,
    )
