"""What goes through the pipe between the app and the engine's process: commands down, events up."""

from __future__ import annotations

import msgspec

from engine.config import EngineConfig
from engine.request import SamplingParams
from engine.tokenizer import Conversation
from engine.trace import StepTrace


class _Message(msgspec.Struct, frozen=True, tag=True, tag_field="type"):
    pass


class Server(msgspec.Struct, frozen=True):
    """A server elsewhere that is only looked at, and what it is."""

    kind: str
    """What serves: vLLM, SGLang, llama.cpp, or nanoviz; "" until it has answered."""
    version: str
    """"" if it does not tell."""
    url: str
    """Without anything secret."""
    read_only: bool = False
    """Nothing is ever sent to it."""
    is_tested: bool = True
    """Whether this program was tried with such a server, or only follows its documentation."""
    interval: float = 0.5
    """Seconds between two polls, unless somebody wants them faster or slower."""


class EngineOptions(_Message, frozen=True):
    """The first thing that the child is told: what to load and how to run it.

    With `server` there is no child, and nothing else in it holds: a server elsewhere is looked at.
    """

    model: str
    dtype: str
    device: str
    threads: int | None
    config: EngineConfig
    server: Server | None = None


class Piece(msgspec.Struct, frozen=True):
    """Text, repeated and cut so that it has exactly so many tokens."""

    text: str
    num_tokens: int


class AddRequest(_Message, frozen=True):
    """A chat message or a conversation to answer, or token ids to continue.

    `max_prompt_tokens` keeps only the last so many tokens of it. With `pieces` the prompt is these, one behind the
    other, and no chat message: what counts is how long it is.
    """

    request_id: str
    prompt: str | tuple[int, ...] | Conversation
    label: str
    params: SamplingParams
    max_prompt_tokens: int | None = None
    priority: int = 0
    pieces: tuple[Piece, ...] = ()
    raw: bool = False
    """A text goes in as it stands, without a chat template."""
    from_client: bool = False
    """A client of our server has sent it, past whoever else listens to the engine: those are told when it is taken."""


class Abort(_Message, frozen=True):
    request_id: str


class Reconfigure(_Message, frozen=True):
    """Change parameters of EngineConfig, by their names, from the next step on."""

    changes: dict[str, bool | int | float | str]


class SetPaused(_Message, frozen=True):
    paused: bool


class StepOnce(_Message, frozen=True):
    """Run one step while paused."""


class SetSpeed(_Message, frozen=True):
    """Most steps a second; 0 means as fast as it goes."""

    steps_per_second: float


class Note(_Message, frozen=True):
    """Say this in the trace of the next step."""

    text: str


class Cue(msgspec.Struct, frozen=True, omit_defaults=True):
    """A command of a script, and when it is obeyed: before a step is computed, or so many seconds after the start.

    The seconds are those of the engine's clock. If nobody is left to make a step for, the next step comes at once.
    """

    command: Scripted
    step: int | None = None
    second: float | None = None


class Begin(_Message, frozen=True):
    """Begin anew: an empty engine with these parameters around the same model, which follows a script.

    What the engine says about this run comes behind a Ready with its number.
    """

    run: int
    config: EngineConfig
    cues: tuple[Cue, ...] = ()
    preset: str = ""
    scene: str = ""
    """What is played, for people."""


class Loading(_Message, frozen=True):
    """The model is on its way. `total` is 0 where there is no measure."""

    what: str
    done: int = 0
    total: int = 0
    hint: str = "keys work already; what you send waits for the model"
    """What a person can do meanwhile."""


class Ready(_Message, frozen=True):
    """The model is loaded; what the screen says of it."""

    model: str
    num_parameters: int
    dtype: str
    device: str
    threads: int
    exactness: str
    bitwise: bool
    random_weights: bool
    recorded: str = ""
    """If this is a recording: when it was made."""
    run: int = 0
    """The number of the Begin that this answers; 0 is the engine's first run."""
    preset: str = ""
    scene: str = ""
    """What that Begin said is played."""
    server: Server | None = None
    """If there is no engine of ours: which server this is. Nothing is known then of parameters, threads and so on."""


class Stepped(_Message, frozen=True):
    trace: StepTrace


class Accepted(_Message, frozen=True):
    """A request is in the queue; it will be seen in the trace of the next step."""

    request_id: str
    num_prompt_tokens: int


class Refused(_Message, frozen=True):
    """A request that was not taken, and why. `parameter` is the one whose value was wrong, if it was one."""

    request_id: str
    reason: str
    parameter: str | None = None
    from_client: bool = False
    """A client had sent it, and is told as well."""


class Reconfigured(_Message, frozen=True):
    """The parameters as they are from the next step on."""

    config: EngineConfig


class ReconfigureRefused(_Message, frozen=True):
    """A change that was not made, and why."""

    reason: str


class PaceSet(_Message, frozen=True):
    """Pause and speed as they are now: the answer to SetPaused, SetSpeed and StepOnce."""

    paused: bool
    steps_per_second: float


class ScriptEnded(_Message, frozen=True):
    """All of the script was obeyed, and nobody is left."""


class Notice(_Message, frozen=True):
    """Something that people have to know, of which nothing else follows."""

    text: str


class FromClient(_Message, frozen=True):
    """The engine has taken this request of a client; it comes before its Accepted, and behind the Ready of its run."""

    request: AddRequest


class Failed(_Message, frozen=True):
    """The engine cannot go on, and why."""

    error: str


Scripted = AddRequest | Abort | Reconfigure | SetPaused | Note
Command = Scripted | StepOnce | SetSpeed | Begin
Event = (
    Loading
    | Ready
    | Stepped
    | Accepted
    | Refused
    | Reconfigured
    | ReconfigureRefused
    | PaceSet
    | ScriptEnded
    | Notice
    | FromClient
    | Failed
)

encode = msgspec.msgpack.Encoder().encode
decode_options = msgspec.msgpack.Decoder(EngineOptions).decode
decode_command = msgspec.msgpack.Decoder(Command).decode
decode_event = msgspec.msgpack.Decoder(Event).decode
