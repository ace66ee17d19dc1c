"""The whole screen as text, in the states that matter and at three sizes, and at the smallest.

A mismatch is a diff to look at: UPDATE_SNAPSHOTS=1 takes the new screens over.
"""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from msgspec.structs import replace

from app import protocol
from app.demo import Demo
from app.panels.narration import Programme
from app.protocol import Event
from app.run import Run
from tests.app.server_support import SERIES, series, server_events
from tests.app.support import READY, compared_runs, dashboard, scenario, stepped

FOLDER = Path(__file__).parents[1] / "data" / "snapshots"
Size = tuple[int, int]
SIZES: tuple[Size, ...] = ((80, 24), (120, 40), (200, 50))
NARROW: Size = (60, 16)


@dataclass(frozen=True)
class State:
    """What has happened, what was pressed then, and how the dashboard was started."""

    events: list[Event]
    keys: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    finished_runs: tuple[Run, ...] = ()
    programme: Programme | None = None


NOTE = "The long prompt is cut to what the decodes leave of the budget. Watch them: each gets its token in every step."
*BEFORE, LAST = scenario("busy")
NARRATED: list[Event] = [READY, *map(protocol.Stepped, (*BEFORE, replace(LAST, note=NOTE)))]
PROGRAMME = Programme("Static, continuous, chunked", ("static", "continuous", "chunked", "alone"), 2)

STATES = {
    "empty": State(stepped("empty")),
    "loading": State([protocol.Loading("fetching SmolLM2-135M-Instruct", 31_000_000, 98_362_432)]),
    "busy": State(stepped("busy")),
    "preempting": State(stepped("preempting")),
    "presets": State(stepped("busy"), ("D", "down")),
    "narrated": State(NARRATED, programme=PROGRAMME),
    "past": State(stepped("preempting"), ("left_square_bracket",)),
    "why": State(stepped("preempting"), ("left_square_bracket", "w")),
    "parameters": State(stepped("busy"), ("p",)),
    "request": State(stepped("preempting"), ("j", "enter")),
    "compare": State(stepped("busy"), ("c",), finished_runs=compared_runs()),
    "compare-timelines": State(stepped("busy"), ("c", "end"), finished_runs=compared_runs()),
    "compare-ascii": State(stepped("busy"), ("c", "end", "a"), {"ascii": True}, compared_runs()),
    "ascii": State(stepped("preempting"), options={"ascii": True}),
    "server": State(server_events(series())),
    "server-times": State(server_events(series()), ("t",)),
    "server-request": State(server_events(series()), ("j", "enter")),
    "server-away": State(server_events(SERIES["away"]())),
    "dead": State(
        [*stepped("busy"), protocol.Failed("the engine's process was killed by signal 9 (SIGKILL).")], ("j",)
    ),
}
SCREENS = [
    *product(STATES, SIZES),
    *product(("empty", "busy", "presets", "narrated", "past", "parameters", "request", "server"), (NARROW,)),
]


def name_of(state: str, size: Size) -> str:
    return f"{state}-{size[0]}x{size[1]}.txt"


@pytest.mark.parametrize(("state", "size"), SCREENS, ids=[name_of(*screen) for screen in SCREENS])
async def test_screen(state: str, size: Size) -> None:
    how = STATES[state]
    with patch.object(Demo, "programme", lambda *_: how.programme):
        screen = await _screen(how, size)
    assert len(screen) == size[1]
    path = FOLDER / name_of(state, size)
    if os.environ.get("UPDATE_SNAPSHOTS") == "1":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(screen) + "\n", encoding="utf-8")
    assert path.exists(), f"{path} is missing; UPDATE_SNAPSHOTS=1 writes it"
    stored = path.read_text(encoding="utf-8").splitlines()
    diff = difflib.unified_diff(stored, screen, path.name, "the screen now", lineterm="")
    assert stored == screen, "\n".join(("the screen has changed:", *diff))


async def _screen(how: State, size: Size) -> list[str]:
    async with dashboard(size, *how.events, **how.options) as stand:
        stand.app.demo.finished_runs.extend(how.finished_runs)
        for key in how.keys:
            await stand.press(key)
        return [line.rstrip() for line in stand.lines()]


def test_no_snapshot_is_left_over() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {name_of(*screen) for screen in SCREENS}
