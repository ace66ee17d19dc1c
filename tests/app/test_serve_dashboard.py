"""Clients' requests on the dashboard: rows like any other."""

from __future__ import annotations

from msgspec.structs import replace

from app import protocol
from app.protocol import AddRequest, FromClient
from app.run import Run
from engine.config import EngineConfig
from engine.core import LLMEngine
from engine.request import SamplingParams
from engine.tokenizer import Conversation, Message
from engine.trace import StepTrace
from tests.app.support import READY, STEP_SECONDS, TIMES, Stand, dashboard, saying
from tests.engine.support import FakeClock, ScriptedRunner, byte_tokenizer

CONVERSATION = Conversation((Message("user", "What is it?"),))
REQUEST = AddRequest("chatcmpl-1f", CONVERSATION, "chat", SamplingParams(max_tokens=3), from_client=True)


class Client:
    """An engine with the request of a client, whose traces a dashboard is told of."""

    def __init__(self) -> None:
        config = EngineConfig()
        self._clock = FakeClock()
        runner = ScriptedRunner(config.block_size, saying("It is late. "))
        self._engine = LLMEngine(config, runner, byte_tokenizer(), clock=self._clock)
        self._num_steps = 0

    def send(self) -> None:
        self._engine.add_request(CONVERSATION, REQUEST.params, request_id=REQUEST.request_id, label=REQUEST.label)

    def step(self) -> protocol.Stepped:
        self._clock.now = started = STEP_SECONDS * self._num_steps
        self._num_steps += 1
        trace: StepTrace = self._engine.step()
        return protocol.Stepped(replace(trace, started=started, times=TIMES))


def rows(stand: Stand) -> list[str]:
    return [line for line in stand.lines() if " chat " in line]


def is_busy(stand: Stand) -> bool:
    return stand.app.session.is_busy


def toasts(stand: Stand) -> list[str]:
    return [notification.message for notification in stand.app._notifications]


async def test_the_header_says_where_the_engine_is_served() -> None:
    async with dashboard((160, 40), READY, address="http://127.0.0.1:8000") as stand:
        assert "serves http://127.0.0.1:8000" in stand.lines()[0]
    async with dashboard((160, 40), READY) as stand:
        assert "serves" not in stand.lines()[0]


async def test_a_request_of_a_client_is_a_row_from_when_it_was_sent_to_its_end() -> None:
    client = Client()
    async with dashboard((120, 40), READY) as stand:
        await stand.feed(FromClient(REQUEST))
        assert is_busy(stand)
        assert len(rows(stand)) == 1 and "sent" in rows(stand)[0]
        client.send()
        await stand.feed(protocol.Accepted(REQUEST.request_id, 11), client.step())
        assert len(rows(stand)) == 1 and "1/3" in rows(stand)[0]
        assert "What is it?" in stand.text()
        await stand.feed(client.step(), client.step())
        assert len(rows(stand)) == 1 and "done 3" in rows(stand)[0]
        assert not is_busy(stand) and not stand.app.session.pending


async def test_it_can_be_aborted_by_the_key_that_aborts() -> None:
    client = Client()
    async with dashboard((120, 40), READY) as stand:
        await stand.feed(FromClient(REQUEST))
        await stand.press("x")
        assert stand.source.take_sent() == [protocol.Abort(REQUEST.request_id)]
        client.send()
        await stand.feed(client.step())
        await stand.press("x")
        assert stand.source.take_sent() == [protocol.Abort(REQUEST.request_id)]


async def test_what_a_client_did_wrong_is_told_to_the_client_only() -> None:
    async with dashboard((120, 40), READY) as stand:
        await stand.feed(protocol.Refused(REQUEST.request_id, "the prompt is too long.", from_client=True))
        assert rows(stand) == [] and toasts(stand) == []
        await stand.feed(protocol.Refused("1", "the prompt is empty."))
        assert len(toasts(stand)) == 1


async def test_who_comes_while_a_run_begins_has_joined_in() -> None:
    """The engine tells of it behind the Ready of the run that it is in."""
    async with dashboard((120, 40), READY) as stand:
        stand.app.session.begin(EngineConfig(), run=Run("a scene"))
        await stand.feed(replace(READY, run=1), FromClient(REQUEST))
        session = stand.app.session
        assert session.was_touched and REQUEST.request_id in session.pending


async def test_what_a_client_did_wrong_is_not_the_runs_fault() -> None:
    async with dashboard((120, 40), READY) as stand:
        run = Run("a scene")
        stand.app.session.begin(EngineConfig(), run=run)
        await stand.feed(replace(READY, run=1), protocol.Refused(REQUEST.request_id, "too long.", from_client=True))
        assert run.refused == []


async def test_it_is_played_once_more_with_all_else() -> None:
    client = Client()
    client.send()
    async with dashboard((120, 40), READY) as stand:
        await stand.feed(FromClient(REQUEST), *(client.step() for _ in range(3)))
        await stand.press("N")
        (begin,) = stand.source.take_sent()
        assert isinstance(begin, protocol.Begin)
        scripted = replace(REQUEST, request_id=f"again-{REQUEST.request_id}", from_client=False)
        assert begin.cues == (protocol.Cue(scripted, step=0),), "its client has nothing to do with it any more"
