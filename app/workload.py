"""Workload: what a preset injects, says and changes, as the cues that an engine follows.

Whatever is drawn at random is drawn from the preset's seed, so that every variant gets the same requests at the same
time.
"""

from __future__ import annotations

import random
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import Literal

import msgspec

from app.expectation import Outputs
from app.preset import Amount, Event, Inject, Preset, Scene, changes
from app.prompts import prompt
from app.protocol import AddRequest, Cue, Note, Piece, Reconfigure, SetPaused
from app.run import Run
from app.view import LONG_PROMPT
from engine.config import EngineConfig
from engine.request import SamplingParams

MAX_TOKENS = 32
"""Of output, where a preset does not say it."""
STRIDE = 7
"""Words between the beginnings of two prompts that only have a length."""

Unit = Literal["step", "second"]


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request, and when it comes: before this step, or at this second."""

    request: AddRequest
    time: float
    unit: Unit


def cues(preset: Preset, scene: Scene, held: Container[str] = ()) -> list[Cue]:
    """All that happens in a scene. What is drawn at random is the same in every scene that has the same injections.

    `held` are parameters that somebody wants to stay as they are: the script changes only the others.
    """
    events = [*preset.script, *scene.script]
    # A pause holds after its step: before anything of the next one.
    made = [Cue(SetPaused(True), step=event.step + 1) for event in events if event.pause and event.step is not None]
    for event in events:
        if event.say:
            made.append(Cue(Note(event.say), event.step, event.second))
        if changed := {name: value for name, value in changes(event.set).items() if name not in held}:
            made.append(Cue(Reconfigure(changed), event.step, event.second))
    for arrival in arrivals(preset, scene):
        is_step = arrival.unit == "step"
        made.append(Cue(arrival.request, int(arrival.time) if is_step else None, None if is_step else arrival.time))
    return made


def arrivals(preset: Preset, scene: Scene) -> list[Arrival]:
    """The scene's requests, in the order in which they stand in the preset; ids count from 1."""
    ids = map(str, count(1))
    return list(_arrivals([*preset.script, *scene.script], preset.seed, ids))


def _arrivals(events: Iterable[Event], seed: int, ids: Iterator[str]) -> Iterator[Arrival]:
    number = {"short": count(), "long": count()}
    fillers = count(1)
    injected = [(event, inject) for event in events for inject in event.inject]
    for index, (event, inject) in enumerate(injected):
        drawn = random.Random(f"{seed}/{index}")
        unit: Unit = "second" if event.step is None else "step"
        time = float(event.second or event.step or 0)
        for turn in range(inject.count):
            if inject.rate:
                time += drawn.expovariate(inject.rate)
            elif turn:
                time += inject.every
            yield Arrival(_request(inject, next(ids), drawn, number, fillers), time, unit)


def _request(
    inject: Inject, request_id: str, drawn: random.Random, number: Mapping[str, Iterator[int]], fillers: Iterator[int]
) -> AddRequest:
    max_tokens = _draw(inject.max_tokens, drawn)
    text, label = inject.text or "", "short"
    pieces: tuple[Piece, ...] = ()
    if inject.kind:
        asked = prompt(inject.kind, next(number[inject.kind]))
        text, label = asked.text, inject.kind
        max_tokens = max_tokens or asked.max_tokens
    if inject.shared:
        text = f"{inject.shared.strip()}\n\n{text}"
    if length := _draw(inject.tokens, drawn):
        label = "long" if length >= LONG_PROMPT else "short"
        own = Piece(filler(next(fillers)), length - inject.shared_tokens)
        shared = Piece(filler(0), inject.shared_tokens)
        pieces = tuple(piece for piece in (shared, own) if piece.num_tokens)
    params = SamplingParams(max_tokens=max_tokens or MAX_TOKENS, ignore_eos=inject.ignore_eos)
    return AddRequest(request_id, text, inject.label or label, params, priority=inject.priority, pieces=pieces)


def _draw(amount: Amount | None, drawn: random.Random) -> int:
    return drawn.randint(*amount) if amount else 0


def filler(number: int) -> str:
    """Readable text, begun at another word for each number, for prompts of which only the length counts."""
    words = f"{prompt('long', number).text} ".split()
    start = STRIDE * number % len(words)
    return " ".join([*words[start:], *words[:start]]) + " "


def labels(preset: Preset) -> set[str]:
    """The labels of all its requests."""
    return {arrival.request.label for scene in preset.scene for arrival in arrivals(preset, scene)}


# The same requests, each alone.


def _asked(request: AddRequest) -> str:
    """What a request asks for, by which it is known in every scene."""
    anonymous = msgspec.structs.replace(request, request_id="", label="", priority=0)
    return msgspec.json.encode(anonymous).decode()


def alone_cues(preset: Preset) -> list[Cue]:
    """All different requests of all scenes, each when the one before it has ended."""
    different = {_asked(a.request): a.request for scene in preset.scene for a in arrivals(preset, scene)}
    cues = [Cue(Note("Each request alone, for its outputs to be compared."), step=0)]
    for index, request in enumerate(different.values()):
        # No engine gets so far: the next comes when it is idle.
        cues.append(Cue(msgspec.structs.replace(request, request_id=str(index + 1)), step=index << 40))
    return cues


def alone_config(config: EngineConfig) -> EngineConfig:
    """Room for one request, and nothing that could cut it or share with it."""
    return replace(
        EngineConfig(),
        block_size=config.block_size,
        max_model_len=config.max_model_len,
        max_num_batched_tokens=config.max_model_len,
        num_blocks=-(-config.max_model_len // config.block_size) + 1,
        max_num_seqs=1,
        enable_prefix_caching=False,
    )


def outputs(run: Run, asked: Iterable[Cue]) -> Outputs:
    """The outputs of a run and of its repetitions, by what was asked for; of who was not served an empty one."""
    names = {cue.command.request_id: _asked(cue.command) for cue in asked if isinstance(cue.command, AddRequest)}
    found: dict[str, set[tuple[int, ...]]] = {name: set() for name in names.values()}
    for one in (run, *run.repeats):
        said = {row.view.request_id: tuple(row.token_ids) for row in one.requests}
        for request_id, name in names.items():
            found[name].add(said.get(request_id, ()))
    return found
