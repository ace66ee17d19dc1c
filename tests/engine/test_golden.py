"""Our scheduler decides what vLLM's did."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.engine import golden

ROOT = Path(__file__).parents[2]
FILE = ROOT / "tests" / "data" / "vllm-scheduler.jsonl.gz"
WORKLOADS = list(golden.workloads(FILE))


def replay(file: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.engine.golden", str(file)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload["name"])
def test_decisions_are_vllms(workload: dict[str, Any]) -> None:
    assert golden.first_difference(workload) is None


def test_every_workload_is_replayed_to_its_end_but_the_one_with_a_phantom_hit() -> None:
    assert len(WORKLOADS) == 110
    assert [w["config"]["policy"] for w in WORKLOADS].count("priority") == 29
    cut = {w["name"]: golden.phantom_step(w) for w in WORKLOADS if golden.phantom_step(w) is not None}
    assert cut == {"prio-phantom-cache": 11}
    assert all(bool(w.get("phantom_hits")) == (w["name"] in cut) for w in WORKLOADS)


def test_command_says_how_many_are_equal() -> None:
    done = replay(FILE)
    assert done.stdout.splitlines() == [
        "prio-phantom-cache: compared up to step 11, which reads KV that was never computed",
        "110 of 110 workloads equal",
    ]
    assert done.returncode == 0


def test_command_shows_the_first_difference(tmp_path: Path) -> None:
    good, bad = WORKLOADS[:2]
    bad = json.loads(json.dumps(bad))
    expected = bad["steps"][1]["free"]
    for step in bad["steps"][1:]:
        step["free"] += 1
    file = tmp_path / "tampered.jsonl"
    file.write_text("".join(json.dumps(workload) + "\n" for workload in (good, bad)))
    done = replay(file)
    assert done.stdout.splitlines() == [
        f"{bad['name']}: step 1, free: expected {expected + 1}, got {expected}",
        "1 of 2 workloads equal",
    ]
    assert done.returncode == 1


@pytest.mark.parametrize("field", ["sched", "pre", "run", "wait", "blk", "tok", "fin", "free"])
def test_every_field_is_compared(field: str) -> None:
    """The replay itself can fail: a change of any field is found."""
    workload = next(w for w in WORKLOADS if any(step.get(field) for step in w["steps"]))
    workload = json.loads(json.dumps(workload))
    step = next(step for step in workload["steps"] if step.get(field))
    step[field] = step[field] + 1 if field == "free" else {} if field == "blk" else []
    assert str(golden.first_difference(workload)).startswith(f"step {step['s']}, {field}: ")
