"""What the README shows of the engine works as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.core import LLMEngine
from engine.policy import POLICIES
from engine.request import SamplingParams
from engine.trace import StepTrace
from tests.engine.support import ScriptedRunner, config, prompt

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
(EXAMPLE,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
BUILT_IN = ("fcfs", "priority", "sglang", "sglang_lpm", "static", "orca", "prefill_first", "sarathi")
PROMPTS = {"long": prompt(40), "middle": prompt(20, 1), "short": prompt(8, 2)}


@pytest.fixture
def shortest_first(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of the README's own policy, registered for one test."""
    monkeypatch.setattr("engine.policy.POLICIES", dict(POLICIES))
    exec(EXAMPLE, {})
    return "shortest_first"


def serve(engine_config: EngineConfig) -> tuple[list[StepTrace], dict[str, list[int]]]:
    """All prompts at once, to their ends: the steps, and the tokens of each."""
    engine = LLMEngine(engine_config, ScriptedRunner(engine_config.block_size))
    for request_id, tokens in PROMPTS.items():
        engine.add_request(tokens, SamplingParams(max_tokens=16), request_id=request_id)
    traces = []
    while engine.has_unfinished_requests:
        traces.append(engine.step())
    outputs: dict[str, list[int]] = {request_id: [] for request_id in PROMPTS}
    for trace in traces:
        for output in trace.outputs:
            outputs[output.request_id].append(output.token_id)
    return traces, outputs


def test_the_example_is_about_twenty_lines() -> None:
    assert len([line for line in EXAMPLE.splitlines() if line]) <= 20


def test_the_example_serves_the_shortest_first(shortest_first: str) -> None:
    traces, outputs = serve(config(40, 4, 16, 1, 64, policy=shortest_first))
    assert [f.request_id for trace in traces for f in trace.finished] == ["short", "middle", "long"]
    assert outputs == serve(config(40, 4, 16, 1, 64))[1]


def test_the_example_throws_the_longest_out(shortest_first: str) -> None:
    tight = config(21, 4, 80, 3, 64, policy=shortest_first, enable_prefix_caching=False)
    traces, outputs = serve(tight)
    assert {p.request_id for trace in traces for p in trace.preemptions} == {"long"}
    assert outputs == serve(config(64, 4, 80, 3, 64))[1]


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_policy_is_in_the_readme_and_in_the_help(name: str) -> None:
    assert f"| `{name}` |" in README
    assert name in EngineConfig.__dataclass_fields__["policy"].metadata["help"]
