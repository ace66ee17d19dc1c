"""Replay recorded decisions of vLLM's V1 scheduler and compare ours with every field.

    python -m tests.engine.golden FILE

drives `Scheduler` itself, below the engine's checks, with a fake model that gives one token to every request whose
last token was computed. It prints the first difference of each workload that differs and a last line
`N of M workloads equal`; exit code 1 if any differ. The fields of FILE are described in tests/data/README.md.

Where the recorded scheduler hits a block whose KV was never computed (the README's "A flaw"), ours does not. Such a
workload is compared up to that step, and a line says so.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine.config import EngineConfig
from engine.request import Request, SamplingParams
from engine.scheduler import Scheduler

STOP_TOKEN = 2
STALL_STEPS = 3


def workloads(path: str | Path) -> Iterator[dict[str, Any]]:
    """The workloads of a file of JSON lines, gzipped or plain."""
    opener = gzip.open if str(path).endswith(".gz") else open
    with opener(path, "rt", encoding="utf-8") as file:
        for line in file:
            if line.strip():
                yield json.loads(line)


def engine_config(config: dict[str, Any]) -> EngineConfig:
    seats = config["max_num_active_seqs"]
    return EngineConfig(
        max_num_batched_tokens=config["max_num_batched_tokens"],
        max_num_seqs=config["max_num_seqs"] if seats is None else min(seats, config["max_num_seqs"]),
        num_blocks=config["num_blocks"],
        block_size=config["block_size"],
        max_model_len=config["max_model_len"],
        enable_chunked_prefill=config["enable_chunked_prefill"],
        enable_prefix_caching=config["enable_prefix_caching"],
        long_prefill_token_threshold=config["long_prefill_token_threshold"],
        long_prefill_token_threshold_adaptive=config["long_prefill_token_threshold_adaptive"],
        watermark=config["watermark"],
        reserve_full_sequence=config["reserve_full_sequence"],
        policy=config["policy"],
    )


class Replay:
    """One workload on our scheduler, recorded in the fields of the golden file."""

    def __init__(self, workload: dict[str, Any]) -> None:
        self.workload = workload
        self.scheduler = Scheduler(engine_config(workload["config"]))
        self.stop_at = {a["id"]: a.get("stop_at") for a in workload["arrivals"]}

    def step(self, number: int) -> dict[str, Any]:
        """Run step `number`: aborts, arrivals, the decision, its tokens."""
        scheduler, pool = self.scheduler, self.scheduler.pool
        result: dict[str, Any] = {"s": number}
        aborts = [rid for step, rid in self.workload.get("aborts", ()) if step == number]
        for rid in aborts:
            scheduler.abort(str(rid))
        arrivals = [a for a in self.workload["arrivals"] if a["step"] == number]
        for arrival in arrivals:
            scheduler.add_request(self._request(arrival))
        held = {request.request_id: len(pool.table(request.request_id)) for request in scheduler.running}
        output = scheduler.schedule()
        decisions = [item.decision for item in output.scheduled]
        result |= {
            "abort": aborts,
            "add": [a["id"] for a in arrivals],
            "sched": [[int(d.request_id), d.start, d.num_tokens] for d in decisions],
            "pre": [int(p.request_id) for p in output.preemptions],
            "run": [int(r.request_id) for r in scheduler.running],
            "wait": [int(r.request_id) for r in scheduler.waiting],
            "free": pool.num_free,
            "blk": {},
        }
        for item in output.scheduled:
            old = 0 if item.decision.admitted else held[item.request_id]
            if blocks := list(item.block_ids[old:]):
                result["blk"][item.request_id] = blocks
        sampling = [item.request_id for item in output.scheduled if item.sampling_params is not None]
        ended = scheduler.update_from_output(output, {rid: self._token(rid) for rid in sampling})
        result["tok"] = [int(rid) for rid in sampling]
        result["fin"] = [[int(r.request_id), str(r.finish_reason)] for r in ended]
        if pool.num_free != result["free"]:
            result["free2"] = pool.num_free
        return result

    def _request(self, arrival: dict[str, Any]) -> Request:
        prompt = [1000 * segment + j for segment, count in arrival["prompt"] for j in range(count)]
        params = SamplingParams(max_tokens=arrival["max_tokens"])
        priority = arrival.get("priority", 0)
        return Request(str(arrival["id"]), prompt, params, priority=priority, eos_token_ids=(STOP_TOKEN,))

    def _token(self, request_id: str) -> int:
        index = self.scheduler.requests[request_id].num_output_tokens
        if self.stop_at[int(request_id)] == index + 1:
            return STOP_TOKEN
        return 10_000_000 + 10_000 * int(request_id) + index


def first_difference(workload: dict[str, Any]) -> str | None:
    """Replay a workload; None if every field of every step is equal, else where it first is not."""
    replay = Replay(workload)
    empty: dict[str, Any] = {"abort": [], "add": [], "sched": [], "pre": [], "run": [], "wait": [], "blk": {}}
    empty |= {"tok": [], "fin": [], "free2": None}
    for expected in workload["steps"][: phantom_step(workload)]:
        actual = replay.step(expected["s"])
        for key in (*empty, "free"):
            want, got = expected.get(key, empty.get(key)), actual.get(key, empty.get(key))
            if want != got:
                return f"step {expected['s']}, {key}: expected {want}, got {got}"
    if phantom_step(workload) is not None:
        return None
    idle = not any(expected.get("sched") for expected in workload["steps"][-STALL_STEPS:])
    left = len(replay.scheduler.requests)
    if bool(workload.get("stalled")) != bool(left):
        return f"at the end {left} requests are left, idle: {idle}, expected stalled: {workload.get('stalled', False)}"
    return None


def phantom_step(workload: dict[str, Any]) -> int | None:
    """The step from which a scheduler that is right differs: the first hit on a block that was never computed."""
    return next((step["s"] for step in workload["steps"] if step.get("phantom")), None)


def main(path: str) -> int:
    equal = total = 0
    for workload in workloads(path):
        total += 1
        if (step := phantom_step(workload)) is not None:
            print(f"{workload['name']}: compared up to step {step}, which reads KV that was never computed")
        difference = first_difference(workload)
        equal += difference is None
        if difference is not None:
            print(f"{workload['name']}: {difference}")
    print(f"{equal} of {total} workloads equal")
    return 0 if equal == total else 1


if __name__ == "__main__":
    if len(sys.argv) != 2:
        print("usage: python -m tests.engine.golden FILE", file=sys.stderr)
        sys.exit(2)
    sys.exit(main(sys.argv[1]))
