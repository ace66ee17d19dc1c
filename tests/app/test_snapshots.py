"""The whole screen as text, in five states and three sizes.

A mismatch is a diff to look at: UPDATE_SNAPSHOTS=1 takes the new screens over.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path

import pytest

from app import protocol
from app.protocol import Event
from tests.app.support import dashboard, stepped

FOLDER = Path(__file__).parents[1] / "data" / "snapshots"
SIZES = [(80, 24), (120, 40), (200, 50)]
STATES: dict[str, list[Event]] = {
    "empty": stepped("empty"),
    "loading": [protocol.Loading("fetching SmolLM2-135M-Instruct", 31_000_000, 98_362_432)],
    "busy": stepped("busy"),
    "preempting": stepped("preempting"),
    "dead": [*stepped("busy"), protocol.Failed("the engine's process was killed by signal 9 (SIGKILL).")],
}


def name_of(state: str, size: tuple[int, int]) -> str:
    return f"{state}-{size[0]}x{size[1]}.txt"


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("state", STATES)
async def test_screen(state: str, size: tuple[int, int]) -> None:
    async with dashboard(size, *STATES[state]) as stand:
        if state == "dead":
            await stand.press("j")
        screen = [line.rstrip() for line in stand.lines()]
    assert len(screen) == size[1]
    path = FOLDER / name_of(state, size)
    if os.environ.get("UPDATE_SNAPSHOTS") == "1":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(screen) + "\n", encoding="utf-8")
    assert path.exists(), f"{path} is missing; UPDATE_SNAPSHOTS=1 writes it"
    stored = path.read_text(encoding="utf-8").splitlines()
    diff = difflib.unified_diff(stored, screen, path.name, "the screen now", lineterm="")
    assert stored == screen, "\n".join(("the screen has changed:", *diff))


def test_no_snapshot_is_left_over() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {name_of(state, size) for state in STATES for size in SIZES}
