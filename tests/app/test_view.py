"""The fold: after every step the view says what the engine's own books say."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.view import (
    LETTERS,
    LONG_PROMPT,
    MAX_EVENTS,
    MAX_FINISHED,
    MAX_SAMPLES,
    EngineView,
    EventView,
    RequestView,
    Totals,
)
from engine.config import EngineConfig
from engine.policy import POLICIES
from engine.request import Request, SamplingParams
from engine.trace import Kind, StepTrace
from tests.app.support import SCENARIOS, STEP_SECONDS, TIMES, ScriptedEngine, repeatable, scenario, view_of
from tests.engine.support import config

PREFIX = [9, 8, 7, 6, 5, 4, 3, 2] * 3
"""Prompts that begin with it share blocks."""


@dataclass(frozen=True)
class Add:
    """A request whose prompt shares `shared` tokens with others and has `own` more."""

    shared: int
    own: int
    max_tokens: int


@dataclass(frozen=True)
class Abort:
    """End one of the unfinished requests."""

    choice: int


@dataclass(frozen=True)
class Change:
    """Other parameters; `extra_blocks` above what one request can need."""

    policy: str
    max_num_seqs: int
    extra_blocks: int
    enable_prefix_caching: bool


@dataclass(frozen=True)
class Step:
    pass


Action = Add | Abort | Change | Step

actions = st.lists(
    st.one_of(
        st.builds(Add, st.sampled_from([0, 8, 16, 24]), st.integers(1, 12), st.integers(1, 14)),
        st.builds(Step),
        st.builds(Step),
        st.builds(Abort, st.integers(0, 5)),
        st.builds(
            Change,
            st.sampled_from(sorted(POLICIES.keys() - {"orca"})),
            st.integers(1, 6),
            st.integers(0, 20),
            st.booleans(),
        ),
    ),
    max_size=40,
)
configs = st.builds(
    config,
    blocks=st.sampled_from([13, 16, 30]),
    bs=st.just(4),
    budget=st.sampled_from([7, 16, 64]),
    seqs=st.sampled_from([2, 6]),
    length=st.just(50),
    enable_prefix_caching=st.booleans(),
    long_prefill_token_threshold=st.sampled_from([0, 5]),
)


@dataclass
class Checked:
    """An engine whose every step is folded into a view and compared with the engine."""

    stage: ScriptedEngine
    view: EngineView = field(default_factory=EngineView)
    requests: dict[str, Request] = field(default_factory=dict)

    def obey(self, action: Action) -> None:
        scheduler = self.stage.engine.scheduler
        match action:
            case Add(shared, own, max_tokens):
                number = len(self.requests)
                prompt = PREFIX[:shared] + [(number * 17 + i) % 120 for i in range(own)]
                request_id = self.stage.add(prompt, max_tokens)
                self.requests[request_id] = scheduler.requests[request_id]
            case Abort(choice):
                if ids := list(scheduler.requests):
                    self.stage.engine.abort(ids[choice % len(ids)])
            case Change(policy, max_num_seqs, extra_blocks, enable_prefix_caching):
                self.stage.engine.reconfigure(
                    policy=policy,
                    max_num_seqs=max_num_seqs,
                    num_blocks=14 + extra_blocks,
                    enable_prefix_caching=enable_prefix_caching,
                )
            case Step():
                if self.stage.engine.has_news:
                    self.step()

    def step(self) -> None:
        self.view.apply(self.stage.step())
        self.compare()

    def run_to_end(self) -> None:
        while self.stage.engine.has_news:
            self.step()

    def compare(self) -> None:
        scheduler, view = self.stage.engine.scheduler, self.view
        pool, block_size = scheduler.pool, scheduler.config.block_size
        tables = {rid: list(pool.table(rid)) for rid in scheduler.requests if pool.table(rid)}
        assert view.tables == tables
        holders: dict[int, list[str]] = {}
        for request_id, table in tables.items():
            for block in table:
                holders.setdefault(block, []).append(request_id)
        assert {block: sorted(ids) for block, ids in view.holders.items()} == {
            block: sorted(ids) for block, ids in holders.items()
        }
        assert view.cached == set(pool.cached_hashes())
        for request_id, request in self.requests.items():
            seen = view.requests[request_id]
            assert seen.num_prompt_tokens == request.num_prompt_tokens
            assert seen.num_output_tokens == request.num_output_tokens
            assert len(seen.preempted_at) == request.num_preemptions
            assert (seen.finished is None) == (request.finish_reason is None)
            if request.finish_reason is not None:
                assert seen.finished is not None and seen.finished.reason == request.finish_reason.value
                assert seen.num_blocks == 0
                continue
            assert seen.num_computed_tokens == request.num_computed_tokens
            assert seen.num_blocks == len(tables.get(request_id, ()))
            fills = [view.fill(request_id, index) for index in range(seen.num_blocks)]
            assert sum(fills) == request.num_computed_tokens
            assert all(fill == block_size for fill in fills[:-1])
        assert view.num_finished == sum(r.finish_reason is not None for r in self.requests.values())
        assert view.num_preemptions == sum(r.num_preemptions for r in self.requests.values())


def check_life(request: RequestView, traces: list[StepTrace]) -> None:
    """Its spans say of every step what the traces say: one kind from arrival to end, none where it got nothing."""
    expected = life_of(request.request_id, traces)
    newest = traces[-1].step
    seen: dict[int, str] = {}
    for span in request.spans:
        last = newest if span.last is None else span.last
        for step in range(span.first, last + 1):
            assert step not in seen, f"{request.request_id} is both {seen[step]} and {span.kind} in step {step}"
            seen[step] = span.kind
    assert seen == expected
    assert all(span.last is not None for span in request.spans[:-1]), "only the newest span goes on"
    if request.finished:
        assert request.spans[-1].last is not None, "a life that has ended goes on"


def life_of(request_id: str, traces: list[StepTrace]) -> dict[int, str]:
    """What a request did in each step, straight from the traces."""
    life: dict[int, str] = {}
    waiting = False
    for trace in traces:
        if any(arrival.request_id == request_id for arrival in trace.arrivals):
            waiting = True
        if any(preemption.request_id == request_id for preemption in trace.preemptions):
            waiting = True
        aborted = any(f.request_id == request_id and f.reason == "abort" for f in trace.finished)
        if aborted:
            break
        for item in trace.scheduled:
            if item.request_id == request_id:
                waiting = False
                life[trace.step] = item.kind
        if waiting:
            life[trace.step] = "waiting"
        if any(finished.request_id == request_id for finished in trace.finished):
            break
    return life


@given(configs, actions)
@settings(repeatable, max_examples=300)
def test_fold_says_what_the_engine_says(engine_config: EngineConfig, script: list[Action]) -> None:
    checked = Checked(ScriptedEngine(engine_config))
    for action in script:
        checked.obey(action)
    checked.run_to_end()
    assert not checked.view.tables and not checked.view.holders
    for request in checked.view.requests.values():
        check_life(request, checked.stage.traces)


@pytest.mark.parametrize("seed", range(6))
def test_fold_through_preemptions_and_prefix_hits(seed: int) -> None:
    """The same, with workloads that are certain to contain both."""
    checked = Checked(ScriptedEngine(config(blocks=13, bs=4, budget=24, seqs=6, length=50)))
    for number in range(14):
        checked.obey(Add(shared=8 * ((number + seed) % 4), own=3 + (number * 5 + seed) % 9, max_tokens=10))
        checked.obey(Step())
    checked.run_to_end()
    scheduled = [item for trace in checked.stage.traces for item in trace.scheduled]
    assert checked.view.num_preemptions > 0
    assert any(item.num_cached_tokens for item in scheduled)
    assert any(item.kind == "recompute" for item in scheduled)
    for request in checked.view.requests.values():
        check_life(request, checked.stage.traces)


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_step_on_the_way_has_a_life_too(name: str) -> None:
    """Spans that still go on are right at every step, not only at the end."""
    view, traces = EngineView(), list(scenario(name))
    for index, trace in enumerate(traces):
        view.apply(trace)
        for request in list(view.requests.values())[:40]:
            check_life(request, traces[: index + 1])


def test_a_running_request_that_got_nothing_has_a_gap() -> None:
    traces = list(scenario("seats"))
    # The scheduler of today serves every running request; a live change of the budget will not.
    starved = msgspec.structs.replace(
        traces[2], scheduled=traces[2].scheduled[:1], outputs=traces[2].outputs[:1], blocks=()
    )
    view = view_of([*traces[:2], starved, traces[3]])
    request = view.requests["2"]
    assert [(span.kind, span.first, span.last) for span in request.spans if span.first <= (span.last or 99)] == [
        ("prefill", 0, 0),
        ("decode", 1, 1),
        ("decode", 3, 3),
    ]


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name != "empty"])
def test_bars_are_the_tokens_of_the_steps(name: str) -> None:
    traces = scenario(name)
    view = view_of(traces)
    assert [bar.step for bar in view.bars] == [trace.step for trace in traces]
    for bar, trace in zip(view.bars, traces, strict=True):
        kinds: tuple[Kind, ...] = ("decode", "prefill", "recompute")
        assert (bar.decode, bar.prefill, bar.recompute) == tuple(map(trace.num_tokens_of, kinds))
        assert bar.total == trace.num_scheduled_tokens <= bar.budget == trace.config.max_num_batched_tokens
        assert bar.cached == sum(item.num_cached_tokens for item in trace.scheduled)
        assert bar.num_preemptions == len(trace.preemptions)


def test_bars_are_bounded() -> None:
    view = EngineView(max_bars=5)
    for trace in scenario("preempting"):
        view.apply(trace)
    assert [bar.step for bar in view.bars] == [trace.step for trace in scenario("preempting")][-5:]


def test_text_is_all_that_was_output() -> None:
    traces = scenario("busy")
    view = view_of(traces)
    for request in view.requests.values():
        outputs = [output for trace in traces for output in trace.outputs if output.request_id == request.request_id]
        assert request.text == "".join(output.text for output in outputs)
        assert request.num_output_tokens == len(outputs)
    served = view.requests["1"]
    assert served.last_step == traces[-1].step and served.text.endswith(served.last_text) and served.last_text


def test_prefix_hits_are_counted() -> None:
    view = view_of(scenario("sharing"))
    assert [view.requests[str(i)].num_cached_tokens for i in (1, 2, 3, 4)] == [0, 40, 40, 40]
    shared = [block for block, ids in view.holders.items() if len(ids) == 3]
    assert len(shared) == 5, "forty tokens in blocks of eight"


def test_evicted_are_the_blocks_of_the_last_step_only() -> None:
    traces = scenario("evicting")
    view = view_of(traces)
    evicted = {block for op in traces[-1].blocks if op.op == "evict" for block in op.blocks}
    assert view.evicted == evicted and evicted
    stage = ScriptedEngine(EngineConfig())
    stage.add()
    view.apply(stage.step())
    assert not view.evicted


def test_lost_tokens_and_preemptions_add_up() -> None:
    traces = scenario("preempting")
    view = view_of(traces)
    preemptions = [(trace.step, preemption) for trace in traces for preemption in trace.preemptions]
    assert preemptions and view.num_preemptions == len(preemptions)
    for request_id, request in view.requests.items():
        own = [(step, p) for step, p in preemptions if p.request_id == request_id]
        assert request.preempted_at == [step for step, _ in own]
        assert request.num_lost_tokens == (own[-1][1].num_lost_tokens if own else 0)


def test_letters_go_round_and_are_forgotten() -> None:
    stage = ScriptedEngine(config(blocks=200, bs=4, budget=200, seqs=200, length=40))
    for _ in range(60):
        stage.add([1, 2], 3)
    view = view_of([stage.step()])
    letters = [view.letter(str(number)) for number in range(1, 61)]
    assert letters == list(LETTERS) + list(LETTERS)[:8]
    assert letters[0] == "a" and len(set(LETTERS)) == 52
    assert view.letter("no such request") == "?"


def test_nobody_gets_a_letter_of_somebody_who_has_not_ended() -> None:
    """Some wait for ever and keep theirs, while hundreds of urgent ones come and go."""
    stage = ScriptedEngine(config(blocks=20, bs=4, budget=20, seqs=1, length=60, policy="priority"))
    view = EngineView()
    for number in range(200):
        params = SamplingParams(max_tokens=1)
        stage.engine.add_request([1], params, request_id=str(1000 + number), priority=-1)
        if number < 5:
            stage.add([number], 50)
        view.apply(stage.step())
        letters = [request.letter for request in view.requests.values() if request.finished is None]
        assert len(letters) == len(set(letters)) == min(number + 1, 5)


def test_who_comes_back_after_a_preemption_is_told_with_what_it_costs() -> None:
    """The cost is known when it comes back: what the prefix cache still holds it need not compute again."""
    stage = ScriptedEngine(config(blocks=14, bs=8, budget=200, seqs=4, length=96))
    for number, max_tokens in enumerate((30, 40, 26, 34)):
        stage.add([7] * 16 + [number] * (2 + max_tokens % 9), max_tokens)
    stage.run_to_end()
    view = view_of(stage.traces)
    lost: dict[str, int] = {}
    expected = []
    for trace in stage.traces:
        for item in trace.scheduled:
            if item.admitted and item.request_id in lost:
                again = lost.pop(item.request_id) - item.num_cached_tokens
                expected.append((trace.step, item.request_id, again, item.num_cached_tokens))
        lost |= {preemption.request_id: preemption.num_lost_tokens for preemption in trace.preemptions}
    told = [(e.step, e.request_id, e.num_redo_tokens, e.num_cached_tokens) for e in view.events if e.kind == "resumed"]
    assert told == expected and any(cached for *_, cached in told) and any(again for *_, again, _ in told)
    assert sum(again for *_, again, _ in told) == view.totals.recomputed


def test_an_id_that_is_given_again_means_the_newer_request() -> None:
    stage = ScriptedEngine(config(blocks=20, bs=4, budget=20, seqs=4, length=40))
    for max_tokens in (2, 3):
        stage.engine.add_request([1, 2], SamplingParams(max_tokens=max_tokens), request_id="1000")
        stage.run_to_end()
    view = view_of(stage.traces)
    assert list(view.finished) == ["1000"] and view.requests["1000"].max_tokens == 3
    for number in range(MAX_FINISHED + 1):
        stage.add([number], 1)
        stage.run_to_end()
    assert "1000" not in view_of(stage.traces).requests


def test_only_the_last_finished_are_kept() -> None:
    stage = ScriptedEngine(config(blocks=20, bs=4, budget=20, seqs=4, length=40))
    for _ in range(MAX_FINISHED + 20):
        stage.add([1, 2], 2)
    stage.run_to_end()
    view = view_of(stage.traces)
    assert view.num_finished == MAX_FINISHED + 20
    # Those of the last step may come on top: its trace still names them.
    assert MAX_FINISHED <= len(view.finished) == len(view.requests) <= MAX_FINISHED + 4
    assert list(view.finished) == [str(number) for number in range(1, MAX_FINISHED + 21)][-len(view.finished) :]
    assert view.letter("1") == "?"


def test_everybody_in_the_last_trace_is_known() -> None:
    """Panels look up whoever the trace names; more may end in one step than are kept of those that ended."""
    stage = ScriptedEngine(config(blocks=200, bs=4, budget=400, seqs=100, length=40))
    for _ in range(MAX_FINISHED + 20):
        stage.add([1, 2], 2)
    stage.run_to_end()
    view = EngineView()
    for trace in stage.traces:
        view.apply(trace)
        assert set(trace.running) | set(trace.waiting) <= set(view.requests)


@pytest.mark.parametrize("name", SCENARIOS)
def test_events_are_those_of_the_traces_in_order(name: str) -> None:
    expected: list[tuple[int, str, str]] = []
    started: set[str] = set()
    preempted: set[str] = set()
    for trace in scenario(name):
        expected += [(trace.step, "preempted", preemption.request_id) for preemption in trace.preemptions]
        preempted |= {preemption.request_id for preemption in trace.preemptions}
        back = [item.request_id for item in trace.scheduled if item.admitted and item.request_id in preempted]
        expected += [(trace.step, "resumed", request_id) for request_id in back]
        for output in trace.outputs:
            if output.request_id not in started:
                started.add(output.request_id)
                expected.append((trace.step, "first token", output.request_id))
        for finished in trace.finished:
            kind = "aborted" if finished.reason == "abort" else "finished"
            expected.append((trace.step, kind, finished.request_id))
    events = view_of(scenario(name)).events
    assert [(event.step, event.kind, event.request_id) for event in events] == expected
    assert all((event.preemption is not None) == (event.kind == "preempted") for event in events)
    assert all((event.finished is not None) == (event.kind in ("finished", "aborted")) for event in events)


def test_events_are_bounded() -> None:
    stage = ScriptedEngine(config(blocks=20, bs=4, budget=20, seqs=4, length=40))
    for _ in range(MAX_EVENTS):
        stage.add([1], 1)
    stage.run_to_end()
    view = view_of(stage.traces)
    assert len(view.events) == MAX_EVENTS
    last: EventView = view.events[-1]
    assert (last.step, last.kind, last.request_id) == (stage.traces[-1].step, "finished", str(MAX_EVENTS))


def test_aborted_before_any_step() -> None:
    stage = ScriptedEngine(EngineConfig())
    request_id = stage.add()
    stage.engine.abort(request_id)
    view = view_of([stage.step()])
    request = view.requests[request_id]
    assert request.finished is not None and request.finished.reason == "abort"
    assert life_of(request_id, stage.traces) == {}
    check_life(request, stage.traces)


def test_rates_are_by_the_engines_clock() -> None:
    view = view_of(scenario("seats"))
    # Four steps of two tokens: three whole gaps between their starts, whatever a step itself took.
    steps, tokens = view.rates()
    assert steps == pytest.approx(1 / STEP_SECONDS)
    assert tokens == pytest.approx(2 / STEP_SECONDS)
    assert view.rates(seconds=1.5 * STEP_SECONDS)[0] == pytest.approx(1 / STEP_SECONDS)
    assert view.rates(seconds=0.5 * STEP_SECONDS)[0] == pytest.approx(1 / STEP_SECONDS), "a step may take longer"
    assert EngineView().rates() == (0.0, 0.0)


def test_rates_leave_out_the_time_in_which_nothing_was_to_do() -> None:
    stage = ScriptedEngine(config(blocks=40, bs=8, budget=64, seqs=4, length=64))
    stage.add([1] * 10, 6)
    stage.run_to_end()
    first = stage.traces
    stage.add([2] * 10, 6)
    stage.run_to_end()
    later = [msgspec.structs.replace(trace, started=trace.started + 60) for trace in stage.traces[6:]]
    view = view_of([*first[:6], *later])
    assert view.rates(seconds=1000) == pytest.approx((1 / STEP_SECONDS, 1 / STEP_SECONDS))
    assert view_of([*first[:6], later[0]]).rates() == (0.0, 0.0), "one step has no rate"


# Latencies of a request.


def test_the_time_to_the_first_token_includes_the_queue() -> None:
    """One seat: the second waits for five steps; the third comes after three of them and waits for the second too."""
    stage = ScriptedEngine(config(blocks=40, bs=8, budget=64, seqs=1, length=64))
    stage.add([1] * 10, 5)
    stage.add([2] * 10, 4)
    stage.step(3)
    stage.add([3] * 10, 4)
    stage.run_to_end()
    requests = view_of(stage.traces).requests
    busy = TIMES.total
    # The third arrives while the engine's clock says that step 2 has begun.
    assert [requests[i].arrived for i in "123"] == pytest.approx([0, 0, 2 * STEP_SECONDS])
    assert [requests[i].queue_time for i in "123"] == pytest.approx([0, 5 * STEP_SECONDS, 7 * STEP_SECONDS])
    assert [requests[i].ttft for i in "123"] == pytest.approx([busy, 5 * STEP_SECONDS + busy, 7 * STEP_SECONDS + busy])


def test_a_chunked_prompt_has_its_first_token_after_the_last_chunk() -> None:
    stage = ScriptedEngine(config(blocks=40, bs=8, budget=16, seqs=4, length=128))
    stage.add([1] * 50, 3)
    stage.run_to_end()
    request = view_of(stage.traces).requests["1"]
    assert request.ttft == pytest.approx(3 * STEP_SECONDS + TIMES.total)
    assert request.itl == pytest.approx([STEP_SECONDS, STEP_SECONDS])


def test_a_preemption_resets_nothing_and_is_spanned_by_a_gap() -> None:
    """While others get a token a step, the gap of the one that was thrown out is its whole way out and back in."""
    traces = scenario("preempting")
    victim = next(item.request_id for trace in traces for item in trace.scheduled if item.kind == "recompute")
    request = view_of(traces).requests[victim]
    step = request.preempted_at[0]
    got = [trace.step for trace in traces if any(output.request_id == victim for output in trace.outputs)]
    last_before = max(s for s in got if s < step)
    first_after = min(s for s in got if s > step)
    assert first_after > step > last_before
    assert request.ttft == pytest.approx(got[0] * STEP_SECONDS + TIMES.total), "it has arrived at 0"
    index = got.index(last_before)
    assert request.itl[index] == pytest.approx((first_after - last_before) * STEP_SECONDS)
    assert request.itl[index] > max(request.itl[:index])
    admitted = next(trace.step for trace in traces for item in trace.scheduled if item.request_id == victim)
    assert request.queue_time == pytest.approx(admitted * STEP_SECONDS), "coming back is no second queue"
    gaps = [(sample.step, sample.preempted) for sample in view_of(traces).samples["itl"] if sample.preempted]
    assert (first_after, True) in gaps


@pytest.mark.parametrize(("length", "is_long"), [(LONG_PROMPT - 1, False), (LONG_PROMPT, True)])
def test_outputs_do_not_make_a_prompt_long(length: int, is_long: bool) -> None:
    stage = ScriptedEngine(config(blocks=40, bs=8, budget=256, seqs=4, length=256))
    stage.add([1] * length, 6)
    stage.run_to_end()
    view = view_of(stage.traces)
    assert view.requests["1"].is_long == is_long
    assert {len(samples) for samples in view.samples.values()} == {1, 5}
    assert {sample.is_long for samples in view.samples.values() for sample in samples} == {is_long}


def test_an_abort_is_no_end_to_end_time() -> None:
    """One is aborted while it runs and one while it waits: only the first was ever out of the queue."""
    view = view_of(scenario("ended"))
    aborted = {rid for rid, request in view.requests.items() if request.finished and request.finished.reason == "abort"}
    assert aborted == {"1", "4"}
    assert len(view.samples["e2e"]) == 2 and len(view.samples["queue"]) == 3
    assert view.requests["4"].queue_time is None and view.requests["4"].ttft is None


def test_the_queue_is_measured_as_soon_as_somebody_is_out_of_it() -> None:
    view = view_of(scenario("seats"))
    assert view.num_finished == 0 and len(view.samples["queue"]) == 2


def test_samples_are_bounded() -> None:
    stage = ScriptedEngine(config(blocks=200, bs=4, budget=64, seqs=40, length=80))
    for _ in range(40):
        stage.add([1], MAX_SAMPLES // 40 + 10)
    stage.run_to_end()
    view = view_of(stage.traces)
    assert len(view.samples["itl"]) == MAX_SAMPLES
    assert view.samples["itl"][-1].step == stage.traces[-1].step


# Totals.


@pytest.mark.parametrize("name", SCENARIOS)
def test_totals_are_the_sums_of_the_steps(name: str) -> None:
    view, computing = EngineView(), []
    for trace in scenario(name):
        view.apply(trace)
        computing += [trace] if trace.scheduled else []
        totals = view.totals
        assert totals.computed == sum(trace.num_scheduled_tokens for trace in computing)
        assert totals.recomputed == sum(trace.num_tokens_of("recompute") for trace in computing)
        assert totals.saved == sum(item.num_cached_tokens for trace in computing for item in trace.scheduled)
        assert totals.budget == sum(trace.config.max_num_batched_tokens for trace in computing)
        assert totals.unused.total() == totals.budget - totals.computed
        assert all(totals.unused.values()), "a reason that left nothing is not there"


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name != "queue"])
def test_the_work_for_a_request_is_what_it_got(name: str) -> None:
    traces = scenario(name)
    view = view_of(traces)
    for request in view.requests.values():
        own = [item for trace in traces for item in trace.scheduled if item.request_id == request.request_id]
        assert request.num_work_tokens == sum(item.num_tokens for item in own)
        assert request.num_recomputed_tokens == sum(item.num_recomputed_tokens for item in own)
    assert sum(request.num_work_tokens for request in view.requests.values()) == view.totals.computed


def test_a_step_that_computes_nothing_had_no_budget() -> None:
    stage = ScriptedEngine(EngineConfig())
    stage.engine.abort(stage.add())
    stage.step()
    stage.engine.reconfigure(max_num_seqs=3)
    stage.step()
    view = view_of(stage.traces)
    assert len(view.bars) == 2 and view.totals == Totals()


@pytest.mark.parametrize(
    ("name", "reasons"),
    [
        ("busy", {"idle"}),  # the long prompt takes all of its steps
        ("seats", {"seats"}),
        ("budget", set()),
        ("blocks", {"blocks"}),
        ("chunking", {"chunking"}),
        ("threshold", {"threshold"}),
        ("preempting", {"idle", "blocks", "preemption"}),
    ],
)
def test_what_left_the_budget_unused(name: str, reasons: set[str]) -> None:
    assert set(view_of(scenario(name)).totals.unused) == reasons


@pytest.mark.parametrize(
    ("policy", "reason"),
    [("static", "batch"), ("prefill_first", "prefill"), ("orca", "reserved"), ("sglang", "room")],
)
def test_policies_leave_the_budget_unused_for_their_own_reasons(policy: str, reason: str) -> None:
    stage = ScriptedEngine(config(blocks=16, bs=8, budget=128, seqs=8, length=128, policy=policy))
    stage.add([1] * 20, 60)
    stage.step()
    stage.add([2] * 20, 70)
    stage.step()
    view = view_of(stage.traces)
    alone = 128 - 20
    used = stage.traces[1].num_scheduled_tokens
    assert view.totals.unused == {"idle": alone, reason: 128 - used}


def test_a_budget_that_changes_counts_as_it_was_in_each_step() -> None:
    stage = ScriptedEngine(config(blocks=40, bs=8, budget=32, seqs=4, length=128))
    stage.add([1] * 10, 6)
    stage.step()
    stage.engine.reconfigure(max_num_batched_tokens=100)
    stage.step(2)
    totals = view_of(stage.traces).totals
    assert (totals.budget, totals.computed, totals.unused) == (232, 12, {"idle": 22 + 99 + 99})


# Changes of parameters.


def changes_of(view: EngineView) -> list[tuple[int, str, Any, Any]]:
    seen = [(event.step, event.change) for event in view.events if event.kind == "changed"]
    return [(step, change.name, change.old, change.new) for step, change in seen if change]


def test_changes_are_told_at_the_step_from_which_they_hold() -> None:
    stage = ScriptedEngine(config(blocks=40, bs=8, budget=32, seqs=4, length=128))
    stage.add([1] * 10, 20)
    stage.step(2)
    stage.engine.reconfigure(policy="priority", max_num_batched_tokens=16)
    stage.step(2)
    stage.engine.reconfigure(watermark=0.25)
    stage.step()
    view = view_of(stage.traces)
    assert changes_of(view) == [
        (2, "max_num_batched_tokens", 32, 16),
        (2, "policy", "fcfs", "priority"),
        (4, "watermark", 0.0, 0.25),
    ]
    assert [bar.num_changes for bar in view.bars] == [0, 0, 2, 0, 1]
    assert [bar.budget for bar in view.bars] == [32, 32, 16, 16, 16]
    assert all(event.request_id == "" and event.number is None for event in view.events if event.kind == "changed")


def test_only_what_is_different_in_the_next_step_has_changed() -> None:
    stage = ScriptedEngine(config(blocks=40, bs=8, budget=32, seqs=4, length=128))
    stage.engine.reconfigure(max_num_seqs=2)  # before the first step: nothing was seen to be otherwise
    stage.add([1] * 10, 20)
    stage.step()
    stage.engine.reconfigure(max_num_seqs=2)  # the same
    stage.step()
    stage.engine.reconfigure(max_num_seqs=8)  # there and back
    stage.engine.reconfigure(max_num_seqs=2)
    stage.step()
    stage.engine.reconfigure(max_num_seqs=5)  # twice
    stage.engine.reconfigure(max_num_seqs=7)
    stage.step()
    view = view_of(stage.traces)
    assert changes_of(view) == [(3, "max_num_seqs", 2, 7)]
    assert [bar.num_changes for bar in view.bars] == [0, 0, 0, 1]


def test_a_change_comes_before_what_it_brought_about() -> None:
    stage = ScriptedEngine(config(blocks=40, bs=8, budget=32, seqs=4, length=128))
    for number in range(3):
        stage.add([number] * 8, 20)
    stage.step(3)
    stage.engine.reconfigure(max_num_seqs=2)
    stage.step()
    view = view_of(stage.traces)
    assert [event.kind for event in view.events if event.step == 3] == ["changed", "preempted"]
    preempted = [event.preemption for event in view.events if event.kind == "preempted"]
    assert preempted[0] is not None and preempted[0].cause == "seats"
