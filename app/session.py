"""Session: one engine as the app knows it, without anything of the screen. What has come from it, and what was asked.

A person's key becomes a method here, a message to the engine, and with its answer a change of state. An engine that
has ended can be followed by another: parameters, load and what was sent last go on, all else begins anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import msgspec

from app import protocol
from app.history import History
from app.inject import Draft, Injector, Load
from app.parameters import Changes, Parameters
from app.protocol import EngineOptions, Event
from app.run import Run
from app.view import EngineView
from engine.config import EngineConfig
from engine.trace import StepTrace

NO_ENGINE = "this is a recording, in which nothing can be changed; `nanoviz` runs an engine."
NOT_YET = "the server has not answered yet."
READ_ONLY = "--read-only: nothing is sent to this server."
NOT_OURS = "this server was started elsewhere: its parameters stay as they are, and presets need `nanoviz` itself."
LONGEST_WAIT = 0.5
"""Seconds that count at most between two looks at the load: who stops the program and goes on later wants no flood."""

EngineState = Literal["loading", "running", "idle", "paused", "dead", "away"]


class Source(Protocol):
    """Where events come from and commands go to: the engine's process, or a script in a test."""

    def send(self, message: protocol.Command, /) -> None: ...
    def drain(self) -> list[Event]: ...
    def when_news(self, call: Callable[[], object], /) -> None: ...
    def close(self) -> None: ...


Start = Callable[[EngineOptions], Source]
_OF_ALL_RUNS = (protocol.Loading, protocol.Ready, protocol.PaceSet, protocol.Notice, protocol.Failed)


@dataclass(frozen=True, slots=True)
class Pending:
    """A request that was sent and has not been in a trace yet."""

    request_id: str
    label: str
    state: str


class Session:
    """`start` starts an engine. What the engine says goes into `take`."""

    def __init__(self, options: EngineOptions, start: Start, history_steps: int) -> None:
        self.options = options
        self._start = start
        self._history_steps = history_steps
        self._num_sent = 0
        self.parameters = Parameters(options.config, is_elsewhere=options.server is not None)
        self.injector = Injector()
        self.last_sent: tuple[Draft, ...] = ()
        """What a person has sent last, to be sent again."""
        self.load = Load()
        self._load_clock = 0.0
        """Seconds during which the load could arrive: it stands still while the engine is paused."""
        self._load_looked_at: float | None = None
        self.was_ready = False
        """This engine or one before it came up."""
        self._start_engine()

    def _start_engine(self) -> None:
        """A new process, of which nothing is known yet."""
        self.ready: protocol.Ready | None = None
        starting = "asking the server" if self.options.server else "starting the engine"
        self.loading: protocol.Loading | None = protocol.Loading(starting)
        self.failed: protocol.Failed | None = None
        self.paused = False
        self.speed = 0.0
        """Most steps a second; 0 is no limit."""
        self._num_unanswered = 0
        """Commands about the pace that the engine has not acknowledged yet."""
        self._num_runs = 0
        self._is_heard = True
        """What comes is of this run; not while an older one may still have something to say."""
        self.could_not_begin = False
        """The engine has ended because it could not begin a run as it was asked to."""
        self._forget_run()
        self.source = self._start(msgspec.structs.replace(self.options, config=self.config))

    def _forget_run(self) -> None:
        """Nothing has happened yet."""
        self.history = History(self._history_steps, self.config)
        self.pending: dict[str, Pending] = {}
        self.aborting: set[str] = set()
        """Requests whose abort takes effect with the next step."""
        self.run: Run | None = None
        """The run of a script as tables, up to its end."""
        self.script_ended = False
        self.was_touched = False
        """A person or a client has sent something into this run, or changed it."""
        self.was_held = False
        """Its pace was limited, or it was stepped by hand."""
        self._sent: dict[str, protocol.AddRequest] = {}
        """What was sent into this run, by the script, by a person or by a client of our server."""
        self.parameters.forget()

    @property
    def config(self) -> EngineConfig:
        """The parameters as the engine has last confirmed them."""
        return self.parameters.config

    @property
    def view(self) -> EngineView:
        """The state after the newest step."""
        return self.history.live

    @property
    def state(self) -> EngineState:
        """What the engine does now, in a word."""
        if self.failed:
            return "dead"
        if self.ready is None:
            return "loading"
        if self.paused:
            return "paused"
        if self.problem:
            return "away"
        return "running" if self.is_busy else "idle"

    @property
    def is_first_run(self) -> bool:
        """The engine has not begun anew yet: its parameters are the program's."""
        return self._num_runs == 0

    @property
    def is_busy(self) -> bool:
        """Somebody has not been served to the end."""
        trace = self.view.trace
        if trace and trace.poll:
            return bool(self.pending or trace.poll.num_running or trace.poll.num_waiting)
        return bool(self.pending) or (
            trace is not None
            and (trace.num_waiting > 0 or any(self.view.requests[r].finished is None for r in trace.running))
        )

    @property
    def problem(self) -> str:
        """Why a server elsewhere told nothing when it was asked last; "" if it answered."""
        return self.view.poll.problem if self.view.poll else ""

    @property
    def server(self) -> protocol.Server | None:
        """The server elsewhere that is looked at, if there is no engine of ours."""
        return self.ready.server if self.ready else self.options.server

    @property
    def why_not_sent(self) -> str:
        """Why nothing can be sent; "" if it can."""
        if self.is_recording:
            return NO_ENGINE
        if self.server and self.server.read_only:
            return READ_ONLY
        return NOT_YET if self.server and not self.ready else ""

    @property
    def why_not_changed(self) -> str:
        """Why no parameter can be changed and no preset be played; "" if they can."""
        if self.is_recording:
            return NO_ENGINE
        return NOT_OURS if self.server else ""

    def can_abort(self, request_id: str | None) -> bool:
        """Whether this is a request that was sent and has not ended."""
        request = self.view.requests.get(request_id or "")
        is_alive = request_id in self.pending or (request is not None and not request.finished)
        return is_alive and not self.failed

    # What comes from the engine.

    def is_heard(self, event: Event) -> bool:
        """Whether it counts: what the engine said of a run before this one does not."""
        return self._is_heard or isinstance(event, _OF_ALL_RUNS)

    def take(self, event: Event) -> None:
        """Note what the engine says."""
        if not self.is_heard(event):
            return
        match event:
            case protocol.Stepped(trace):
                for arrival in trace.arrivals:
                    self.pending.pop(arrival.request_id, None)
                self.aborting.difference_update(finished.request_id for finished in trace.finished)
                self.history.apply(trace)
                if self.history.first_step:  # now this run can never be played once more
                    self._sent.clear()
                self.was_held = self.was_held or bool(self.speed) or self.paused
                if self.run and not self.script_ended:
                    self.run.apply(trace)
                    self.run.was_held, self.run.was_touched = self.was_held, self.was_touched
                self._learn(trace)
            case protocol.Loading():
                self.loading = event
            case protocol.Ready():
                self.was_ready = True
                if event.run == self._num_runs:
                    self.ready, self.loading, self._is_heard = event, None, True
            case protocol.FromClient(request):
                self.was_touched = True
                self._sent[request.request_id] = request
                self.pending[request.request_id] = Pending(request.request_id, request.label, "sent")
            case protocol.Accepted(request_id, num_prompt_tokens):
                if pending := self.pending.get(request_id):
                    state = f"{num_prompt_tokens} tokens, accepted for the next step"
                    self.pending[request_id] = replace(pending, state=state)
            case protocol.Refused(request_id, reason):
                if self.run and not self.script_ended and not event.from_client:
                    self.run.refused.append(reason)
                self._sent.pop(request_id, None)
                self.pending.pop(request_id, None)
                self.aborting.discard(request_id)
            case protocol.Reconfigured(config):
                self.parameters.confirm(config)
            case protocol.ReconfigureRefused(reason):
                self.parameters.refuse(reason)
            case protocol.PaceSet(paused, steps_per_second):
                self._num_unanswered = max(0, self._num_unanswered - 1)
                if not self._num_unanswered:  # an answer to an older key must not undo a newer one
                    self.paused, self.speed = paused, steps_per_second
            case protocol.ScriptEnded():
                self.script_ended = True
            case protocol.Failed():
                # The first failure is the cause; what follows only says that the process is gone as well.
                self.failed = self.failed or event
                self.loading = None
                self.pending.clear()
                self.aborting.clear()
                self.parameters.forget()
                if not self._is_heard:  # it could not begin anew with these
                    self.parameters.begin(self.options.config)
                    self.could_not_begin = True

    def _learn(self, trace: StepTrace) -> None:
        """Take over the parameters of a step."""
        if trace.poll is None:
            self.parameters.config = trace.config
        elif not trace.poll.problem:
            self.parameters.look_at(trace.config, trace.poll.unknown)

    # What is asked of it.

    def begin(
        self, config: EngineConfig, cues: Sequence[protocol.Cue] = (), run: Run | None = None, preset: str = ""
    ) -> None:
        """Begin anew, with these parameters, and let the engine follow a script. What comes of it goes into `run`.

        `preset` is the title of the one whose scene this is. Nothing arrives by itself any more.
        """
        self._num_runs += 1
        self._is_heard = False
        self.parameters.begin(config)
        self.load.stop()
        self._forget_run()
        self.run = run
        scripted = [cue.command for cue in cues if isinstance(cue.command, protocol.AddRequest)]
        self._sent = {request.request_id: request for request in scripted}
        # They need not count from 1 on without a gap: some may have been refused when they were first sent.
        self._num_sent = max((int(r.request_id) for r in scripted if r.request_id.isdecimal()), default=0)
        self.source.send(
            protocol.Begin(self._num_runs, config, tuple(cues), preset, run.name if run and preset else "")
        )

    def as_script(self) -> list[protocol.Cue]:
        """The requests of this run, each at the step at which it came, to be sent once more.

        Raises ValueError if the oldest steps are no longer kept.
        """
        if self.history.first_step:
            raise ValueError(f"the steps before {self.history.first_step:,} are no longer kept")
        arrivals = [(trace.step, arrival.request_id) for trace in self.history.traces() for arrival in trace.arrivals]
        sent = ((step, self._sent.get(request_id)) for step, request_id in arrivals)
        return [protocol.Cue(_as_scripted(request), step) for step, request in sent if request]

    def inject(self, drafts: Iterable[Draft]) -> None:
        """Send what a person has asked for."""
        self.was_touched = True
        self.last_sent = tuple(drafts)
        self._send(self.last_sent)

    @property
    def is_load_on(self) -> bool:
        """Requests arrive by themselves now."""
        return bool(self.load.rate and self.ready and not self.failed and not self.paused and not self.why_not_sent)

    @property
    def is_recording(self) -> bool:
        """There is no engine: what comes was recorded."""
        return self.ready is not None and bool(self.ready.recorded)

    def send_load(self, now: float) -> bool:
        """Send what the load has brought until `now`, in seconds of a clock that never goes back; True if anything."""
        if not self.is_load_on:
            self._load_looked_at = None
            return False
        waited = 0.0 if self._load_looked_at is None else now - self._load_looked_at
        self._load_looked_at = now
        self._load_clock += min(waited, LONGEST_WAIT)
        arrived = self.load.due(self._load_clock)
        self.was_touched = self.was_touched or bool(arrived)
        for kind in arrived:
            self._send(self.injector.drafts(kind))
        return bool(arrived)

    def _send(self, drafts: Iterable[Draft]) -> None:
        # A model with a byte tokenizer needs many more tokens for the same text: it gets the end of it.
        longest = self.config.max_model_len * 3 // 5
        for draft in drafts:
            self._num_sent += 1
            request_id = str(self._num_sent)
            limit = None if draft.whole else longest
            request = protocol.AddRequest(request_id, draft.text, draft.label, draft.params, limit, draft.priority)
            self.source.send(request)
            self._sent[request_id] = request
            self.pending[request_id] = Pending(request_id, draft.label, "sent" if self.ready else "waits for the model")

    def abort(self, request_id: str) -> None:
        self.was_touched = True
        self.source.send(protocol.Abort(request_id))
        self.aborting.add(request_id)

    def reconfigure(self, changes: Changes) -> None:
        """Ask for other parameters; the engine confirms them, or says why not."""
        self.was_touched = True
        self.source.send(protocol.Reconfigure(changes))
        self.parameters.ask(changes)

    def set_paused(self, paused: bool) -> None:
        self.paused = paused
        self._set_pace(protocol.SetPaused(paused))

    def step_once(self) -> None:
        """Run one step, and pause first if it is not paused."""
        if not self.paused:
            self.set_paused(True)
        self._set_pace(protocol.StepOnce())

    def set_speed(self, steps_per_second: float) -> None:
        self.speed = steps_per_second
        self._set_pace(protocol.SetSpeed(steps_per_second))

    def _set_pace(self, command: protocol.SetPaused | protocol.StepOnce | protocol.SetSpeed) -> None:
        self._num_unanswered += 1
        self.source.send(command)

    def close(self) -> None:
        """End the engine."""
        self.source.close()

    def restart(self) -> None:
        """Another engine in the place of this one, with the same parameters and at the same pace."""
        paused, speed = self.paused, self.speed
        self.close()
        self._start_engine()
        if paused:
            self.set_paused(True)
        if speed:
            self.set_speed(speed)


def _as_scripted(request: protocol.AddRequest) -> protocol.AddRequest:
    """The same request, sent by a script. One of a client gets another id: what the client does matters no more."""
    if not request.from_client:
        return request
    return msgspec.structs.replace(request, request_id=f"again-{request.request_id}", from_client=False)
