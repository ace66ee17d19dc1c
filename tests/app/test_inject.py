"""What the keys send and what the load sends: the right prompts in their order, and arrivals at random."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from statistics import mean

import pytest

from app import protocol
from app.inject import BURST, LOADS, LONG_SHARE, URGENT_PRIORITY, Draft, Injector, Kind, Load
from app.prompts import pair, prompt
from app.protocol import AddRequest, Failed, PaceSet, Refused, SetPaused
from engine.config import EngineConfig
from engine.core import LLMEngine
from engine.request import SamplingParams
from tests.app.support import READY, Stand, dashboard, stepped
from tests.engine.support import tiny_model

KILLED = Failed("the engine's process was killed by signal 9 (SIGKILL).")
TICK = 0.05


def texts(drafts: Sequence[Draft]) -> list[str]:
    return [draft.text for draft in drafts]


def added(stand: Stand) -> list[AddRequest]:
    """The requests that were sent since the last call."""
    return [command for command in stand.source.take_sent() if isinstance(command, AddRequest)]


def toasts(stand: Stand) -> list[str]:
    return [notification.message for notification in stand.app._notifications]


# Drafts.


@pytest.mark.parametrize(
    ("kind", "labels"),
    [
        ("short", ["short"]),
        ("long", ["long"]),
        ("burst", ["short"] * BURST),
        ("pair", ["pair", "pair"]),
        ("urgent", ["urgent"]),
    ],
)
def test_each_kind_makes_its_requests(kind: Kind, labels: list[str]) -> None:
    drafts = Injector().drafts(kind)
    assert [draft.label for draft in drafts] == labels
    assert all(draft.params.max_tokens > 0 and draft.text for draft in drafts)
    assert {draft.priority for draft in drafts} == {URGENT_PRIORITY if kind == "urgent" else 0}
    assert len(set(texts(drafts))) == len(drafts)


def test_urgent_is_more_urgent_than_the_others() -> None:
    assert Draft("short", "?", SamplingParams()).priority > URGENT_PRIORITY


def test_each_kind_goes_through_its_prompts_and_begins_again() -> None:
    injector = Injector()
    for kind, count in (("long", 9), ("pair", 5)):
        for index in range(count):
            drafts = injector.drafts(kind)  # type: ignore[arg-type]
            expected = [prompt("long", index)] if kind == "long" else pair(index)
            assert texts(drafts) == [one.text for one in expected]
            assert [draft.params.max_tokens for draft in drafts] == [one.max_tokens for one in expected]
    assert texts(Injector().drafts("long")) == [prompt("long", 0).text]


def test_short_burst_and_urgent_share_one_order() -> None:
    """So that two after one another are never the same."""
    injector = Injector()
    kinds: list[Kind] = ["short", "burst", "urgent", "short", "burst"]
    seen = [text for kind in kinds for text in texts(injector.drafts(kind))]
    assert seen == [prompt("short", index).text for index in range(len(seen))]


# The load.


def arrivals(load: Load, seconds: float, since: float = 0.0) -> list[tuple[float, Kind]]:
    """All arrivals of so many seconds, by ticks as the dashboard has them."""
    seen = []
    for tick in range(round(seconds / TICK)):
        now = since + tick * TICK
        seen += [(now, kind) for kind in load.due(now)]
    return seen


def load_of(rate: float, seed: int = 0) -> Load:
    load = Load(seed)
    load.change(LOADS.index(rate))
    assert load.rate == rate
    return load


def test_it_is_off_at_first() -> None:
    load = Load()
    assert load.rate == LOADS[0] == 0
    assert arrivals(load, 1000) == []


def test_the_rate_goes_through_all_loads_and_stops_at_both_ends() -> None:
    load = Load()
    load.change(-1)
    assert load.rate == 0
    for rate in (*LOADS[1:], LOADS[-1]):
        load.change(1)
        assert load.rate == rate
    for rate in (*LOADS[-2::-1], 0):
        load.change(-1)
        assert load.rate == rate
    assert list(LOADS) == sorted(set(LOADS))


def test_the_same_seed_brings_the_same_arrivals() -> None:
    assert arrivals(load_of(2.0), 500) == arrivals(load_of(2.0), 500)
    assert arrivals(load_of(2.0, seed=1), 500) != arrivals(load_of(2.0), 500)


@pytest.mark.parametrize("rate", LOADS[1:])
def test_so_many_a_second_in_the_long_run(rate: float) -> None:
    """Within four standard deviations of a Poisson count."""
    expected = 4_000
    count = len(arrivals(load_of(rate), expected / rate))
    assert abs(count - expected) < 4 * expected**0.5


def test_how_often_it_is_asked_makes_no_difference() -> None:
    """A tick that comes late misses nobody."""
    often, seldom = load_of(5.0), load_of(5.0)
    assert often.due(0.0) == seldom.due(0.0)
    assert [kind for _, kind in arrivals(often, 100.0 + TICK)] == seldom.due(100.0)


def test_counts_scatter_as_those_of_a_poisson_process_do() -> None:
    """In windows of a second their variance is their mean, and every seventh or so is empty: no steady drip."""
    load = load_of(2.0)
    load.due(0.0)
    counts = [len(load.due(float(second))) for second in range(1, 4001)]
    average = mean(counts)
    variance = mean((count - average) ** 2 for count in counts)
    assert average == pytest.approx(2, rel=0.05)
    assert variance == pytest.approx(2, rel=0.1)
    assert counts.count(0) / len(counts) == pytest.approx(2.718281828**-2, rel=0.15)


def test_gaps_are_as_often_short_as_an_exponential_distribution_has_it() -> None:
    load = load_of(1.0)
    times = [now for now, _ in arrivals(load, 4_000)]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    for limit, share in ((0.5, 0.393), (1.0, 0.632), (2.0, 0.865), (4.0, 0.982)):
        assert sum(gap < limit for gap in gaps) / len(gaps) == pytest.approx(share, abs=0.04)


def test_some_are_long() -> None:
    kinds = Counter(kind for _, kind in arrivals(load_of(10.0), 400))
    assert set(kinds) == {"short", "long"}
    assert kinds["long"] / kinds.total() == pytest.approx(LONG_SHARE, rel=0.15)


def test_off_is_off_and_on_again_makes_up_for_nothing() -> None:
    load = load_of(50.0)
    assert arrivals(load, 2)
    load.change(-len(LOADS))
    assert load.rate == 0 and arrivals(load, 1000, since=2) == []
    load.change(LOADS.index(1.0))
    late = arrivals(load, 10, since=1002)
    assert len(late) < 40, "a thousand seconds without a load bring no flood"


def test_another_rate_holds_at_once() -> None:
    """Also where the next arrival of the old rate was far away."""
    load = load_of(0.1)
    load.due(0.0)
    load.change(len(LOADS))
    assert load.rate == 50
    assert len(arrivals(load, 2)) > 50
    load.change(-1)
    assert load.rate == 20
    assert len(arrivals(load, 100, since=2)) == pytest.approx(2_000, rel=0.1)


# Their keys.


KEYS: dict[str, Kind] = {"s": "short", "l": "long", "b": "burst", "d": "pair", "u": "urgent"}


async def test_keys_send_their_kind() -> None:
    injector, ids = Injector(), set()
    async with dashboard((120, 40), READY) as stand:
        for key, kind in KEYS.items():
            await stand.press(key)
            expected = injector.drafts(kind)
            sent = added(stand)
            assert [command.prompt for command in sent] == texts(expected), kind
            assert [command.label for command in sent] == [draft.label for draft in expected], kind
            assert [command.priority for command in sent] == [draft.priority for draft in expected], kind
            assert [command.params for command in sent] == [draft.params for draft in expected], kind
            ids |= {command.request_id for command in sent}
            assert set(stand.app.session.pending) == ids, kind


async def test_again_sends_the_same_under_new_ids() -> None:
    async with dashboard((120, 40), READY) as stand:
        for key in KEYS:
            await stand.press(key)
            first = added(stand)
            await stand.press("a", "a")
            again = added(stand)
            same = [(command.prompt, command.priority, command.params, command.label) for command in first]
            sent = [(command.prompt, command.priority, command.params, command.label) for command in again]
            assert sent == 2 * same, key
            assert len({command.request_id for command in [*first, *again]}) == 3 * len(first), key


async def test_again_before_anything_was_sent() -> None:
    async with dashboard((120, 40), READY) as stand:
        await stand.press("a")
        assert stand.source.take_sent() == []
        assert "Nothing was sent yet" in str(toasts(stand))


async def test_again_goes_on_with_the_next_prompt_afterwards() -> None:
    async with dashboard((120, 40), READY) as stand:
        await stand.press("s", "a", "s")
        assert [command.prompt for command in added(stand)] == [prompt("short", index).text for index in (0, 0, 1)]


@pytest.mark.parametrize(("policy", "ignored"), [("fcfs", True), ("priority", False)])
async def test_urgent_says_when_nobody_looks_at_it(policy: str, ignored: bool) -> None:
    async with dashboard((120, 40), READY) as stand:
        await stand.feed(protocol.Reconfigured(EngineConfig(policy=policy)))
        await stand.press("u")
        assert [command.priority for command in added(stand)] == [URGENT_PRIORITY]
        assert any("ignores it" in message for message in toasts(stand)) == ignored


@pytest.mark.parametrize("before", [(), ("s",)])
async def test_nothing_is_sent_to_an_engine_that_has_ended(before: tuple[str, ...]) -> None:
    async with dashboard((120, 40), READY) as stand:
        await stand.press(*before)
        await stand.feed(KILLED)
        stand.source.take_sent()
        for key in (*KEYS, "a"):
            stand.app.clear_notifications()
            await stand.press(key)
            assert stand.source.take_sent() == [] and not stand.app.session.pending, key
            assert len(toasts(stand)) == 1, key


async def test_sending_shows_the_newest_step_and_leaves_it_paused() -> None:
    async with dashboard((120, 40), *stepped("busy")) as stand:
        await stand.press("left", "left")
        assert stand.source.take_sent() == [SetPaused(True)]
        await stand.feed(PaceSet(True, 0.0))
        await stand.press("s")
        assert len(stand.source.take_sent()) == 1, "no word about the pause"
        assert "back" not in stand.lines()[0] and "paused" in stand.lines()[0]


class Clock:
    """In the place of the module `time`."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The dashboard's clock, which goes on only when a test says so."""
    clock = Clock()
    monkeypatch.setattr("app.dashboard.time", clock)
    return clock


async def run_load(stand: Stand, clock: Clock, seconds: float) -> list[AddRequest]:
    """Let time go by in ticks; what was sent meanwhile."""
    added(stand)
    for _ in range(round(seconds / TICK)):
        clock.now += TICK
        stand.app.tick()
    return added(stand)


async def test_the_load_sends_by_itself(clock: Clock) -> None:
    async with dashboard((120, 40), READY) as stand:
        assert await run_load(stand, clock, 10) == []
        await stand.press(*["greater_than_sign"] * LOADS.index(5.0))
        assert stand.app.session.load.rate == 5 and "5 requests a second" in toasts(stand)[-1]
        sent = await run_load(stand, clock, 40)
        assert len(sent) == pytest.approx(200, rel=0.3)
        assert {command.label for command in sent} == {"short", "long"}
        assert len({command.request_id for command in sent}) == len(sent)
        await stand.press(*["less_than_sign"] * len(LOADS))
        assert "off" in toasts(stand)[-1]
        assert await run_load(stand, clock, 40) == []


async def test_the_load_waits_while_nothing_runs(clock: Clock) -> None:
    """Until the model is there, while the engine is paused, after it has ended; and it makes up for nothing."""
    async with dashboard((120, 40)) as stand:
        await stand.press(*["greater_than_sign"] * len(LOADS))
        assert await run_load(stand, clock, 5) == []
        await stand.feed(READY)
        assert len(await run_load(stand, clock, 1)) < 100
        await stand.press("space")
        assert await run_load(stand, clock, 5) == []
        await stand.feed(PaceSet(True, 0.0))
        await stand.press("space")
        await stand.feed(PaceSet(False, 0.0))
        assert 0 < len(await run_load(stand, clock, 1)) < 100
        await stand.feed(KILLED)
        assert await run_load(stand, clock, 5) == []
        await stand.press("r")
        await stand.feed(READY)
        assert 0 < len(await run_load(stand, clock, 1)) < 100, "and it goes on with the next engine"


async def test_a_program_that_was_stopped_sends_no_flood(clock: Clock) -> None:
    async with dashboard((120, 40), READY) as stand:
        await stand.press(*["greater_than_sign"] * len(LOADS))
        await run_load(stand, clock, 1)
        clock.now += 3600
        stand.app.tick()
        assert len(added(stand)) < 100


async def test_the_load_does_not_change_what_again_means(clock: Clock) -> None:
    async with dashboard((120, 40), READY) as stand:
        await stand.press("u")
        (urgent,) = added(stand)
        await stand.press(*["greater_than_sign"] * len(LOADS))
        assert await run_load(stand, clock, 2)
        await stand.press("a")
        assert [command.prompt for command in added(stand) if command.label == "urgent"] == [urgent.prompt]


async def test_the_load_leaves_the_shown_step_alone(clock: Clock) -> None:
    """Only who sends something himself wants to see the newest step."""
    async with dashboard((120, 40), *stepped("busy")) as stand:
        await stand.press(*["greater_than_sign"] * len(LOADS))
        assert await run_load(stand, clock, 2)
        await stand.press("left")
        await run_load(stand, clock, 2)
        assert "1 back" in stand.lines()[0]


async def test_a_refused_one_of_the_load_is_gone(clock: Clock) -> None:
    async with dashboard((120, 40), READY) as stand:
        await stand.press(*["greater_than_sign"] * len(LOADS))
        sent = await run_load(stand, clock, 1)
        await stand.feed(*(Refused(command.request_id, "no") for command in sent))
        assert not set(stand.app.session.pending) & {command.request_id for command in sent}


# Pairs that can be seen to share.


@pytest.mark.parametrize(("index", "together"), [(0, True), (1, False)])
async def test_the_second_of_a_pair_starts_behind_blocks_of_the_first(index: int, together: bool) -> None:
    """On a real model, cut where the dashboard cuts, whether they come in at once or one after the other has ended."""
    from engine.runner import ModelRunner

    async with dashboard((120, 40), READY) as stand:
        await stand.press(*["d"] * (index + 1))
        first, second = added(stand)[-2:]
    loaded, config = tiny_model(), EngineConfig()
    assert config.enable_prefix_caching
    engine = LLMEngine(config, ModelRunner(loaded.model, config), loaded.tokenizer)
    cached = {}
    for command in (first, second):
        engine.add_request(
            command.prompt,
            SamplingParams(max_tokens=2),
            request_id=command.request_id,
            chat=True,
            truncate_prompt_tokens=command.max_prompt_tokens,
        )
        while engine.has_unfinished_requests and (not together or command is second):
            for item in engine.step().scheduled:
                if item.admitted:
                    cached[item.request_id] = item.num_cached_tokens
    assert isinstance(first.prompt, str) and isinstance(second.prompt, str)
    shared = len(first.prompt.rpartition("\n\n")[0])  # of which each character is a token of the model
    assert first.prompt[:shared] == second.prompt[:shared] and first.prompt != second.prompt
    assert cached[first.request_id] == 0
    assert shared - config.block_size < cached[second.request_id] < shared + config.block_size


def test_pairs_that_follow_each_other_differ() -> None:
    assert pair(0)[0].text[:40] != pair(1)[0].text[:40]
    assert pair(0) == pair(2)
