"""`nanoviz bench scheduler`: what the decision of a step costs, a line for each size."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from app.bench_report import Heading, Result
from engine.bench import SchedulerCost, scheduler_costs
from engine.config import EngineConfig


class Size(msgspec.Struct, frozen=True, tag=True):
    """What steps cost with so many requests."""

    cost: SchedulerCost

    def lines(self) -> Iterator[str]:
        cost = self.cost
        decision, step = (1e6 * seconds for seconds in (cost.decision, cost.step))
        line = f"{cost.num_running:8,}{cost.num_waiting:9,}{decision:20,.0f}{decision / cost.num_running:11.2f}"
        yield f"{line}{step:13,.0f}{step / cost.num_running:11.2f}"


def bench_scheduler(config: EngineConfig) -> Iterator[Result]:
    """Growing numbers of running requests, alone and in front of a long queue."""
    yield Heading(
        f"policy {config.policy}: median microseconds of a step in which all running requests decode, without a model"
    )
    yield Heading(
        f"{'running':>8}{'waiting':>9}{'schedule + update':>20}{'a request':>11}{'with trace':>13}{'a request':>11}"
    )
    yield from map(Size, scheduler_costs(config))
