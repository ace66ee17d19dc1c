"""Our own server under our own attach: what one end does, the other end sees."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from app import protocol
from app.attach.source import AttachedServer
from app.protocol import AddRequest, Event
from app.serve.server import serving
from app.view import EngineView
from engine.request import SamplingParams
from engine.trace import StepTrace
from tests.app.test_serve import CONFIG, GREEDY, HELLO, LOOPBACK, Served, wait_for


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(LOOPBACK, 0, 1000) as (gateway, url):
        served = Served(gateway, url)
        yield served
        served.process.close()


class Watched:
    """A server that is attached to, and all that was seen of it."""

    def __init__(self, url: str, *, read_only: bool = False) -> None:
        self.source = AttachedServer(url, interval=0.1, read_only=read_only)
        self.events: list[Event] = []
        self.view = EngineView()
        wait_for(lambda: len(self.traces) > 1)

    @property
    def traces(self) -> list[StepTrace]:
        for event in self.source.drain():
            self.events.append(event)
            if isinstance(event, protocol.Stepped):
                self.view.apply(event.trace)
        return [event.trace for event in self.events if isinstance(event, protocol.Stepped)]

    def reason(self, request_id: str) -> str | None:
        """Why a request has ended, if it has."""
        return next(
            (one.reason for trace in self.traces for one in trace.finished if one.request_id == request_id), None
        )


@pytest.fixture
def watched(served: Served) -> Iterator[Watched]:
    watched = Watched(served.url)
    yield watched
    watched.source.close()


def send(watched: Watched, request_id: str, max_tokens: int) -> None:
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    watched.source.send(AddRequest(request_id, HELLO, "short", params))


def test_it_is_known_for_what_it_is(watched: Watched, served: Served) -> None:
    (ready,) = [event for event in watched.events if isinstance(event, protocol.Ready)]
    assert ready.server is not None
    assert (ready.server.kind, ready.server.is_tested) == ("nanoviz", True)
    poll = watched.traces[-1].poll
    assert poll is not None and (poll.num_running, poll.num_waiting, poll.kv_usage) == (0, 0, 0)
    assert served.post("/v1/completions", prompt=HELLO, max_tokens=1).status_code == 200
    # Its pool is told from its first step on.
    own = ("num_blocks", "block_size", "max_model_len")
    wait_for(lambda: all(trace.poll and trace.poll.tells(name) for trace in watched.traces[-1:] for name in own))
    config = watched.traces[-1].config
    assert [getattr(config, name) for name in own] == [getattr(CONFIG, name) for name in own]


def test_what_is_sent_from_here_comes_back_token_by_token(watched: Watched, served: Served) -> None:
    send(watched, "1", 24)
    wait_for(lambda: watched.reason("1"))
    seen = watched.view.requests["1"]
    alone = served.openai.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": HELLO}],
        max_tokens=24,
        temperature=0,
        extra_body={"ignore_eos": True},
    )
    assert seen.text == alone.choices[0].message.content
    assert (seen.num_output_tokens, len(seen.itl)) == (24, 23)
    assert alone.usage is not None and seen.num_prompt_tokens == alone.usage.prompt_tokens
    assert seen.finished is not None and seen.finished.e2e is not None
    assert seen.ttft is not None and 0 < seen.ttft < seen.finished.e2e


def test_polls_add_up_to_what_was_served(watched: Watched, served: Served) -> None:
    for number in range(4):
        assert (
            served.post("/v1/completions", prompt=f"{number} {HELLO}", max_tokens=10 + number, **GREEDY).status_code
            == 200
        )
    wait_for(lambda: watched.traces and watched.view.num_finished == 4)
    polls = [trace.poll for trace in watched.traces if trace.poll]
    assert sum(poll.num_generation_tokens or 0 for poll in polls) == 10 + 11 + 12 + 13
    assert sum(poll.latencies["ttft"].count for poll in polls if "ttft" in poll.latencies) == 4
    assert not any(trace.arrivals or trace.outputs for trace in watched.traces), "they are not ours"
    mine = [trace for trace in served.traces if trace.scheduled]
    assert sum(poll.num_iterations or 0 for poll in polls) <= len(mine)


def test_abort_ends_it_at_the_other_end(watched: Watched, served: Served) -> None:
    send(watched, "1", 900)
    wait_for(lambda: any(trace.outputs for trace in watched.traces))
    watched.source.send(protocol.Abort("1"))
    wait_for(lambda: watched.reason("1"))
    request_id = served.sent()[-1]
    wait_for(lambda: request_id in served.ended())
    assert (watched.reason("1"), served.ended()[request_id]) == ("abort", "abort")
    wait_for(served.has_all_blocks)


def test_who_only_looks_sends_nothing(served: Served) -> None:
    before = len(served.sent())
    watched = Watched(served.url, read_only=True)
    send(watched, "1", 4)
    wait_for(lambda: watched.traces and any(isinstance(event, protocol.Refused) for event in watched.events))
    watched.source.close()
    assert len(served.sent()) == before
