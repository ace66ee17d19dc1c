"""Benchmarks of the engine's own parts. `scheduler`: what a step's decision costs, without a model."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import median

from engine.config import EngineConfig
from engine.core import LLMEngine, RunnerOutput
from engine.request import Request, SamplingParams
from engine.scheduler import Scheduler, SchedulerOutput

NUM_RUNNING = (16, 64, 256, 1024)
NUM_WAITING = 10_000
NUM_STEPS = 200
PROMPT_LENGTH = 64
TOKEN = 1


@dataclass(frozen=True, slots=True)
class SchedulerCost:
    """Medians over steps in which every running request decodes one token."""

    num_running: int
    num_waiting: int
    decision: float
    """Seconds of `schedule` and `update_from_output`."""
    step: float
    """Seconds of a whole engine step around a model that takes none: decision, trace and all."""


class InstantRunner:
    """A model that takes no time: every request gets the same token again and again."""

    def execute(self, output: SchedulerOutput) -> RunnerOutput:
        return RunnerOutput(_tokens(output))

    def reserve(self, num_blocks: int) -> None:
        """There is no cache."""


def scheduler_costs(config: EngineConfig) -> Iterator[SchedulerCost]:
    """Measure growing numbers of running requests, alone and in front of a long queue; sizes override the config's.

    Each pair of measurements is taken in turns, step by step, so that both see the same machine.
    """
    for num_running in NUM_RUNNING:
        sized = replace(
            config,
            max_num_batched_tokens=num_running * PROMPT_LENGTH,
            max_num_seqs=num_running,
            max_model_len=PROMPT_LENGTH + 2 * NUM_STEPS,
            # One block more for each than it can fill: policy sglang wants it so.
            num_blocks=num_running * (-(-(PROMPT_LENGTH + 2 * NUM_STEPS) // config.block_size) + 1) + 1,
            watermark=0.0,
        )
        for num_waiting in (0, NUM_WAITING):
            yield _measure(sized, num_waiting)


def _measure(config: EngineConfig, num_waiting: int) -> SchedulerCost:
    engine, scheduler = LLMEngine(config, InstantRunner()), Scheduler(config)
    params = SamplingParams(max_tokens=2 * NUM_STEPS)
    for index in range(config.max_num_seqs + num_waiting):
        prompt = [(index + position) % 1000 for position in range(PROMPT_LENGTH)]
        engine.add_request(prompt, params, request_id=str(index))
        scheduler.add_request(Request(str(index), prompt, params))
    for _ in range(config.max_num_seqs):
        if len(scheduler.running) == config.max_num_seqs:
            break
        engine.step()
        _decide(scheduler)
    assert len(scheduler.running) == config.max_num_seqs, f"policy {config.policy} does not fill all seats"
    steps, decisions = [], []
    for _ in range(NUM_STEPS):
        begin = time.perf_counter()
        engine.step()
        between = time.perf_counter()
        _decide(scheduler)
        decisions.append(time.perf_counter() - between)
        steps.append(between - begin)
        scheduler.pool.drain_ops()
    return SchedulerCost(config.max_num_seqs, num_waiting, median(decisions), median(steps))


def _decide(scheduler: Scheduler) -> None:
    output = scheduler.schedule()
    scheduler.update_from_output(output, _tokens(output))


def _tokens(output: SchedulerOutput) -> dict[str, int]:
    return {item.decision.request_id: TOKEN for item in output.scheduled if item.sampling_params is not None}
