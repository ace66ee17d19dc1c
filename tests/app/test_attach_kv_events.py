"""KV events over ZeroMQ: what is in a server's prefix cache, also if messages are lost or the server begins anew."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
import zmq

from app.attach import kv_events
from app.protocol import encode
from engine.poll import PrefixOp
from tests.app.captured_server import (
    FCFS,
    CapturedServer,
    Publisher,
    Watch,
    as_metrics,
    attached,
    bound_socket,
    eventually,
    frames,
    metrics,
    saying,
    series,
)

FRAMES = frames()
LAST = len(FRAMES) - 1


def ops(watch: Watch) -> list[PrefixOp]:
    return [op for trace in watch.traces if trace.poll for op in trace.poll.prefix]


def known(watch: Watch) -> str:
    poll = watch.traces[-1].poll if watch.traces else None
    return poll.prefix_known if poll else ""


def hint(watch: Watch) -> str:
    poll = watch.traces[-1].poll
    assert poll
    return poll.prefix_hint


def expected(messages: Iterable[tuple[bytes, bytes, bytes]] = FRAMES) -> list[PrefixOp]:
    """What the captured messages say, read in another way."""
    found = []
    for _, _, body in messages:
        _, events, rank = msgspec.msgpack.decode(body)
        for event in events:
            hashes = tuple(f"{number:016x}" for number in event.get("block_hashes", ()))
            parent = event.get("parent_block_hash")
            match event["type"]:
                case "BlockStored":
                    found.append(PrefixOp("store", hashes, f"{parent:016x}" if parent is not None else "", str(rank)))
                case "BlockRemoved":
                    found.append(PrefixOp("remove", hashes, rank=str(rank)))
                case "AllBlocksCleared":
                    found.append(PrefixOp("clear", rank=str(rank)))
    return found


def tells_of(server: CapturedServer, publisher: Publisher, **more: Any) -> None:
    source = {"endpoint": publisher.endpoint, "replay_endpoint": publisher.replay, **more}
    server.answers["/kv_event_sources"] = saying(json.dumps({"0": source}))


def message(sequence: int, *events: object, time: float = 2e9, rank: int | None = 0) -> tuple[bytes, bytes, bytes]:
    return b"", sequence.to_bytes(8, "big"), msgspec.msgpack.encode([time, events, rank])


def stored(number: int | bytes, parent: int | bytes | None = None, **more: object) -> dict[str, object]:
    return {"type": "BlockStored", "block_hashes": [number], "parent_block_hash": parent, "token_ids": [1, 2], **more}


def test_all_captured_events_are_told_in_their_order() -> None:
    with Publisher() as publisher, CapturedServer() as server:
        tells_of(server, publisher)
        for one in FRAMES[: LAST // 2]:  # before anybody listens
            publisher.publish(one)
        with attached(server, kv_events=publisher.endpoint) as watch:
            watch.until(lambda: known(watch) == "whole")
            publisher.await_listener()
            for one in FRAMES[LAST // 2 :]:
                publisher.publish(one)
            watch.until(lambda: ops(watch)[-1:] == expected()[-1:] and len(ops(watch)) >= len(expected()))
    assert ops(watch) == expected()
    assert Counter(op.op for op in ops(watch)) == {"store": 117, "remove": 75, "clear": 1}
    assert known(watch) == "whole"
    assert hint(watch) == ""
    assert b"token_ids" not in b"".join(encode(event) for event in watch.events)


def test_what_was_lost_is_asked_for_again() -> None:
    with Publisher() as publisher, CapturedServer() as server:
        tells_of(server, publisher)
        publisher.publish(FRAMES[0])
        with attached(server, kv_events=publisher.endpoint) as watch:
            watch.until(lambda: known(watch) == "whole")
            publisher.await_listener()
            lost = (3, 7, 8, 20)
            for i, one in enumerate(FRAMES[1:40], 1):
                publisher.publish(one, is_lost=i in lost)
            watch.until(lambda: len(ops(watch)) >= len(expected(FRAMES[:40])))
    assert ops(watch) == expected(FRAMES[:40])
    assert known(watch) == "whole"
    assert publisher.num_replays > 1


def test_without_a_replay_only_a_part_is_known() -> None:
    with Publisher() as publisher, CapturedServer() as server:
        server.answers["/kv_event_sources"] = saying("no", 404)
        with attached(server, kv_events=publisher.endpoint) as watch:
            publisher.await_listener()
            publisher.publish(message(5, stored(5)))
            watch.until(lambda: ops(watch))
            assert known(watch) == "partial"
            publisher.publish(message(6, {"type": "AllBlocksCleared"}))
            watch.until(lambda: known(watch) == "whole")
            publisher.publish(message(8, stored(1)))
            watch.until(lambda: known(watch) == "partial")
    five, one = "0000000000000005", "0000000000000001"
    assert ops(watch) == [PrefixOp("store", (five,)), PrefixOp("clear"), PrefixOp("store", (one,))]


def test_a_replay_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_events, "REPLAY_SECONDS", 0.1)
    with Publisher() as publisher, CapturedServer() as server:
        tells_of(server, publisher, replay_endpoint="tcp://127.0.0.1:9")
        with attached(server, kv_events=publisher.endpoint) as watch:
            watch.until(lambda: watch.traces and "tcp://127.0.0.1:9 does not answer" in hint(watch))
            assert known(watch) == "partial"


@pytest.mark.parametrize("replay", ["tcp://a\x1b[31m:5558", "tcp://*:99999", "nonsense", "tcp://\x00:1"])
def test_a_replay_that_is_nowhere_is_a_hint(replay: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_events, "REPLAY_SECONDS", 0.1)
    with Publisher() as publisher, CapturedServer() as server:
        source = {"endpoint": publisher.endpoint, "replay_endpoint": replay}
        server.answers["/kv_event_sources"] = saying(json.dumps({"0": source, "9" * 5000: source, "\x1b": {}}))
        with attached(server, kv_events=publisher.endpoint) as watch:
            watch.until(lambda: watch.traces and known(watch) == "partial")
            watch.more(3)
    assert hint(watch).isprintable()


def test_a_server_that_begins_anew_has_an_empty_cache() -> None:
    with Publisher() as publisher, CapturedServer() as server:
        tells_of(server, publisher)
        for one in FRAMES[:5]:
            publisher.publish(one)
        with attached(server, kv_events=publisher.endpoint) as watch:
            watch.until(lambda: known(watch) == "whole")
            publisher.await_listener()
            publisher.kept.clear()
            publisher.publish(message(0, stored(1)), is_lost=True)
            publisher.publish(message(1, stored(2, 1)))
            watch.until(lambda: ops(watch)[-1].parent == "0000000000000001")
    first, second = "0000000000000001", "0000000000000002"
    assert ops(watch)[-3:] == [PrefixOp("clear"), PrefixOp("store", (first,)), PrefixOp("store", (second,), first)]
    assert ops(watch)[:-3] == expected(FRAMES[:5])
    assert known(watch) == "whole"


def test_metrics_that_began_anew_clear_it_too() -> None:
    later = metrics(FCFS, "before").replace("process_start_time_seconds 1.79", "process_start_time_seconds 1.80")
    with Publisher() as publisher, CapturedServer() as server:
        tells_of(server, publisher)
        for one in FRAMES[:5]:
            publisher.publish(one)
        with attached(server, kv_events=publisher.endpoint) as watch:
            watch.until(lambda: len(ops(watch)) >= len(expected(FRAMES[:5])))  # whole it is from the first one on
            publisher.kept[:] = [message(0, stored(1))]
            server.texts = [later]
            watch.until(lambda: len(ops(watch)) >= len(expected(FRAMES[:5])) + 2)
    assert ops(watch)[-2:] == [PrefixOp("clear"), PrefixOp("store", ("0000000000000001",))]


def test_what_is_unknown_or_broken_is_left_out() -> None:
    messages = [
        message(0, {"type": "SomethingNew", "x": 1}, stored(1), 7, [], ["New", 1], {"a": 1}),
        message(1, stored(2, 1, medium="CPU"), {"type": "BlockRemoved", "block_hashes": [1], "medium": "CPU"}),
        message(2, stored(3, 1, medium="GPU", more={"a": [1]}), stored(b"\xab\xcd", b"\x01", medium=None)),
        message(3, ["BlockStored", [4], 3, [9, 9], 16, None], ["BlockRemoved", [4]], ["AllBlocksCleared"], rank=None),
        (b"", (4).to_bytes(8, "big"), b"\xc1 no message"),
        (b"", b"\x7f" * 20, b"no number"),
        (b"", (5).to_bytes(8, "big"), msgspec.msgpack.encode({"not": "a batch"})),
        (b"", (6).to_bytes(8, "big"), b"\x91" * 100_000),
        message(7, stored(5)),
    ]
    with Publisher() as publisher, CapturedServer() as server:
        tells_of(server, publisher)
        publisher.publish(messages[0])
        with attached(server, kv_events=publisher.endpoint) as watch:
            watch.until(lambda: ops(watch))
            publisher.await_listener()
            for each in messages[1:]:
                publisher.publish(each)
            watch.until(lambda: ops(watch)[-1].hashes == ("0000000000000005",))
    one, three, four, five = (f"{number:016x}" for number in (1, 3, 4, 5))
    assert ops(watch) == [
        PrefixOp("store", (one,)),
        PrefixOp("store", (three,), one),
        PrefixOp("store", ("abcd",), "01"),
        PrefixOp("store", (four,), three),
        PrefixOp("remove", (four,)),
        PrefixOp("clear"),
        PrefixOp("store", (five,)),
    ]
    assert known(watch) == "partial"


def test_what_nobody_takes_does_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_events, "MAX_HASHES", 10)
    with Publisher() as publisher, CapturedServer() as server:
        tells_of(server, publisher)
        publisher.publish(message(0, *(stored(number) for number in range(20))))
        publisher.publish(message(1, stored(99)))
        with attached(server, kv_events=publisher.endpoint) as watch:
            watch.until(lambda: ops(watch))
            watch.more(2)
    assert ops(watch) == [PrefixOp("clear"), PrefixOp("store", (f"{99:016x}",))]
    assert known(watch) == "partial"


def test_a_publisher_that_connects_is_heard_where_we_bind() -> None:
    with bound_socket(0) as probe:
        port = probe.getsockname()[1]
    context = zmq.Context()
    endpoint = f"tcp://*:{port}"
    with CapturedServer() as server, attached(server, kv_events=endpoint) as watch, context.socket(zmq.XPUB) as pub:
        pub.linger = 0
        pub.connect(f"tcp://127.0.0.1:{port}")
        eventually(lambda: pub.poll(0) > 0)
        pub.send_multipart(message(0, stored(1)))
        watch.until(lambda: ops(watch))
    context.term()
    assert known(watch) == "whole"


def test_an_endpoint_that_is_taken_is_a_hint() -> None:
    with Publisher() as publisher, CapturedServer() as server:
        port = publisher.endpoint.rpartition(":")[2]
        with attached(server, kv_events=f"tcp://*:{port}") as watch:
            watch.until(lambda: watch.traces and "address already in use" in hint(watch))


def test_each_rank_has_a_publisher() -> None:
    """They differ by their port; here only the second one is there."""
    with Publisher() as publisher, CapturedServer() as server:
        base = int(publisher.endpoint.rpartition(":")[2]) - 1
        looks = series(FCFS)
        server.texts = [as_metrics(looks[0], 0) + as_metrics(looks[0], 1)]
        replay = {"endpoint": "tcp://*:5557", "replay_endpoint": publisher.replay}
        server.answers["/kv_event_sources"] = saying(json.dumps({"0": {"endpoint": "tcp://*:5557"}, "1": replay}))
        publisher.publish(message(0, stored(1), rank=1))
        with attached(server, kv_events=f"tcp://127.0.0.1:{base}") as watch:
            watch.until(lambda: ops(watch))
    assert ops(watch) == [PrefixOp("store", ("0000000000000001",), rank="1")]
    assert known(watch) == "partial"


@pytest.mark.parametrize(
    ("sources", "kv_events", "says"),
    [
        ({"0": {"endpoint": "tcp://*:5557"}}, "", "it publishes KV events: --kv-events tcp://127.0.0.1:5557 shows"),
        ({"0": {"endpoint": "tcp://10.0.0.5:5557"}}, "", "there, --kv-events 'tcp://*:5557' listens."),
        ({"0": {"endpoint": "ipc://kv.sock"}}, "", "which only its own machine can reach."),
        ({}, "", "it publishes no KV events; vLLM does with --kv-events-config."),
        ({}, "tcp://127.0.0.1:5557", "it publishes no KV events"),
        (None, "", ""),
    ],
)
def test_how_they_could_be_heard(sources: dict[str, Any] | None, kv_events: str, says: str) -> None:
    with CapturedServer() as server:
        server.answers["/kv_event_sources"] = saying("", 404) if sources is None else saying(json.dumps(sources))
        with attached(server, kv_events=kv_events) as watch:
            watch.until(lambda: watch.traces)
    assert says in hint(watch)
    assert bool(says) == bool(hint(watch))
