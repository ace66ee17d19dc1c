"""A server's KV events: what enters its prefix cache and what leaves it (vLLM: distributed/kv_events.py).

A publisher numbers its messages, one for each engine step that has events. What was missed can be asked for again, as
long as the server keeps it, if it has an endpoint for that. Nothing of the prompts is kept here, neither their tokens
nor anything else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from app.attach.address import KvAddress
from app.attach.cleaning import cleaned
from engine.poll import PrefixKnown, PrefixOp
from engine.progress import one_line

MAX_HASHES = 200_000
"""Of blocks that are kept at most until somebody takes them."""
MAX_MESSAGES = 100_000
"""That wait to be read; vLLM's publisher lets as many wait to be sent."""
MAX_MESSAGE_BYTES = 64 << 20
REPLAY_SECONDS = 5.0
"""Without an answer, after which what was missed is given up."""
_END = -1
"""The number of a replay's last message, which says nothing else."""
_GPU = "GPU"
_FIELDS = {
    "BlockStored": ("type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium"),
    "BlockRemoved": ("type", "block_hashes", "medium"),
    "AllBlocksCleared": ("type",),
}
"""Of an event that is an array, as older versions of vLLM write it, and SGLang after them; now it is a map."""


class KvListener:
    """Listens to the publishers of one server, one for each of its engines, until it is cancelled."""

    def __init__(self, addresses: Mapping[str, KvAddress]) -> None:
        self._publishers = [_Publisher(rank, address) for rank, address in addresses.items()]

    async def listen(self) -> None:
        """Does not return."""
        # Sockets must not outlive their context, and the context must not be collected before them.
        context = zmq.asyncio.Context()
        try:
            async with asyncio.TaskGroup() as tasks:
                for publisher in self._publishers:
                    tasks.create_task(publisher.listen(context))
        finally:
            context.destroy(linger=0)

    @property
    def known(self) -> PrefixKnown:
        return "whole" if all(publisher.is_whole for publisher in self._publishers) else "partial"

    @property
    def problem(self) -> str:
        """What is wrong with hearing them, as a sentence; "" if nothing is known to be."""
        return next((publisher.problem for publisher in self._publishers if publisher.problem), "")

    def take(self) -> tuple[PrefixOp, ...]:
        """What has happened since the last call."""
        return tuple(op for publisher in self._publishers for op in publisher.take())

    def clear(self) -> tuple[PrefixOp, ...]:
        """What makes all that it has told void."""
        return tuple(PrefixOp("clear", rank=publisher.rank) for publisher in self._publishers)


class _Publisher:
    """One publisher, as it is heard here."""

    def __init__(self, rank: str, address: KvAddress) -> None:
        self.rank = rank
        self.is_whole = False
        """All that is cached now is known: it was heard from the beginning, or since the cache was emptied."""
        self.problem = ""
        self._address = address
        self._next = 0
        """The number of the message that has to come next."""
        self._time = 0.0
        """When the last message was sent, by the server's clock."""
        self._ops: list[PrefixOp] = []
        self._num_hashes = 0

    def take(self) -> list[PrefixOp]:
        ops, self._ops, self._num_hashes = self._ops, [], 0
        return ops

    async def listen(self, context: zmq.asyncio.Context) -> None:
        try:
            with _socket(context, zmq.SUB, self._address.endpoint) as socket:
                socket.subscribe(b"")
                if "*" in self._address.endpoint:
                    socket.bind(self._address.endpoint)
                else:
                    socket.connect(self._address.endpoint)
                await self._replay(context)
                while True:
                    frames = await socket.recv_multipart()
                    if len(frames) == 3 and (sequence := _number(frames[1])) != _END:
                        await self._take(context, sequence, frames[2])
                    await asyncio.sleep(0)  # receiving what is there already lets nobody else have a turn
        except zmq.ZMQError as error:
            reason = cleaned(one_line(error), 200).lower()
            self.problem = f"KV events cannot be heard at {self._address.endpoint}: {reason}."

    async def _take(self, context: zmq.asyncio.Context, sequence: int, body: bytes) -> None:
        """The next message, one that was had already, one behind a gap, or the first ones of a new server."""
        found = _decoded(body, self.rank)
        if sequence < self._next:
            if found is None or found[0] <= self._time:
                return
            self._next = 0
            self._keep([PrefixOp("clear", rank=self.rank)])
        if sequence > self._next:
            await self._replay(context)
        if sequence >= self._next:  # else the replay had it too
            self._apply(sequence, found)

    async def _replay(self, context: zmq.asyncio.Context) -> None:
        """Ask for everything from the next message on."""
        if not self._address.replay:
            return
        first = None
        # Answers end with a message of their own: a DEALER gets them all, a REQ only the first.
        with _socket(context, zmq.DEALER, self._address.replay) as socket:
            socket.connect(self._address.replay)
            await socket.send_multipart([b"", self._next.to_bytes(8, "big")])
            while True:
                try:
                    async with asyncio.timeout(REPLAY_SECONDS):
                        frames = await socket.recv_multipart()
                except TimeoutError:
                    replay = cleaned(self._address.replay, 100)
                    self.problem = f"missed KV events cannot be had again: {replay} does not answer."
                    return
                if len(frames) < 3 or (sequence := _number(frames[-2])) == _END:
                    break
                first = sequence if first is None else first
                if sequence >= self._next:
                    self._apply(sequence, _decoded(frames[-1], self.rank))
                await asyncio.sleep(0)
        self.problem = ""
        if first is None and self._next == 0:  # nothing has happened yet
            self.is_whole = True

    def _apply(self, sequence: int, found: tuple[float, list[PrefixOp]] | None) -> None:
        """Keep what a message says. Whatever was between it and the last one is lost."""
        if sequence > self._next or found is None:
            self.is_whole = False
        elif sequence == 0:
            self.is_whole = True
        self._next = sequence + 1
        if found:
            self._time, ops = found
            self._keep(ops)

    def _keep(self, ops: Iterable[PrefixOp]) -> None:
        for op in ops:
            if op.op == "clear":
                self.is_whole = True
            self._ops.append(op)
            self._num_hashes += len(op.hashes)
        if self._num_hashes > MAX_HASHES:
            self._ops, self._num_hashes = [PrefixOp("clear", rank=self.rank)], 0
            self.is_whole = False


def _socket(context: zmq.asyncio.Context, kind: int, endpoint: str) -> zmq.asyncio.Socket:
    socket = context.socket(kind)
    socket.linger = 0
    socket.rcvhwm = MAX_MESSAGES
    socket.maxmsgsize = MAX_MESSAGE_BYTES
    # Otherwise a name may stand for an address of IPv6, at which nobody listens.
    socket.ipv6 = "[" in endpoint
    return socket


def _number(frame: bytes) -> int:
    """Of a message; that of a last one for anything that is none."""
    return max(_END, int.from_bytes(frame, "big", signed=True)) if len(frame) == 8 else _END


def _decoded(body: bytes, rank: str) -> tuple[float, list[PrefixOp]] | None:
    """When a message was sent and what it says, without what is unknown here; None if nothing can be made of it."""
    try:
        time, events, *_ = msgspec.msgpack.decode(body)
        return float(time), [op for event in events if (op := _op(event, rank))]
    except (msgspec.DecodeError, ValueError, TypeError, RecursionError):
        return None


def _op(event: object, rank: str) -> PrefixOp | None:
    """None for an event of another kind, or about blocks that are elsewhere than on the GPU."""
    if isinstance(event, list) and event:
        event = dict(zip(_FIELDS.get(str(event[0]), ()), event, strict=False))
    if not isinstance(event, dict) or (event.get("medium") or _GPU) != _GPU:
        return None
    match event.get("type"):
        case "BlockStored":
            parent = event.get("parent_block_hash")
            return PrefixOp("store", _hashes(event), "" if parent is None else _hash(parent), rank)
        case "BlockRemoved":
            return PrefixOp("remove", _hashes(event), rank=rank)
        case "AllBlocksCleared":
            return PrefixOp("clear", rank=rank)
    return None


def _hashes(event: Mapping[str, Any]) -> tuple[str, ...]:
    """Raises TypeError for an event without any."""
    hashes = event.get("block_hashes")
    if not isinstance(hashes, list):
        raise TypeError("an event about blocks names none")
    return tuple(map(_hash, hashes))


def _hash(value: object) -> str:
    """In hexadecimal digits. vLLM's are numbers of 64 bits, or bytes. Raises TypeError for anything else."""
    if isinstance(value, int):
        return f"{value % (1 << 64):016x}"
    if isinstance(value, bytes):
        return value.hex()
    raise TypeError(f"{value!r} is no hash")
