"""The commands that draw no dashboard: `run`, `verify` and `bench`. They run the engine in this process."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from app.text import printable
from engine.config import EngineConfig
from engine.progress import Progress
from engine.request import RequestError, SamplingParams
from engine.trace import StepTrace, encode

TABLE = "{:>5}  {:>6}  {:>8}  {:>7}  {:>9}  {:>7}  {:>9}  {:>6}"
COLUMNS = ("step", "tokens", "requests", "prefill", "recompute", "waiting", "preempted", "blocks")
CLEAR_LINE = "\r\x1b[2K"


def run(
    prompts: Sequence[str],
    params: SamplingParams,
    config: EngineConfig,
    *,
    model: str,
    dtype: str,
    device: str,
    threads: int | None,
    chat: bool,
    trace: bool,
    json: bool,
) -> None:
    """Serve the prompts together and print their outputs; or with `json` one trace a line and nothing else."""
    wait_passively()
    from engine.build import build_engine

    warn(config)
    built = build_engine(model, config, dtype=dtype, device=device, threads=threads, report=report)
    engine = built.engine
    ids = [engine.add_request(prompt, params, chat=chat) for prompt in prompts]
    texts = dict.fromkeys(ids, "")
    clear_report()
    if trace:
        print(TABLE.format(*COLUMNS))
    while engine.has_unfinished_requests:
        step = engine.step()
        for output in step.outputs:
            texts[output.request_id] += output.text
        if json:
            line = encode(step).decode()
            print(printable(line) if sys.stdout.isatty() else line, flush=True)
        if trace:
            print(row(step))
    if json:
        return
    for prompt, text in zip(prompts, texts.values(), strict=True):
        answer = f"\n› {prompt}\n{text}"
        # On a terminal, text of a model is drawn and never obeyed; into a file it goes as it is.
        print(printable(answer, newlines=True) if sys.stdout.isatty() else answer)


def read_prompt() -> str:
    """A prompt from standard input, asked for if a person sits there."""
    if sys.stdin.isatty():
        print("Type a prompt; Ctrl+D on a line of its own ends it.", file=sys.stderr)
    prompt = sys.stdin.read().strip()
    if not prompt:
        raise RequestError("no prompt was given, neither as an argument nor on standard input.")
    return prompt


def row(step: StepTrace) -> str:
    """One step as a line of the table."""
    used = step.config.num_usable_blocks - step.num_free_blocks
    kinds = (step.num_tokens_of("prefill"), step.num_tokens_of("recompute"))
    numbers = (step.step, step.num_scheduled_tokens, len(step.scheduled), *kinds, step.num_waiting)
    return TABLE.format(*numbers, len(step.preemptions), used)


def verify(config: EngineConfig, *, model: str, dtype: str, device: str, threads: int | None) -> bool:
    """Print the experiment's table; True if all outputs are the same."""
    wait_passively()
    from engine.model import load_model
    from engine.verify import QUESTIONS, configurations
    from engine.verify import verify as results

    for variant in configurations(config).values():
        variant.validate()
    warn(config)
    loaded = load_model(model, dtype=dtype, device=device, threads=threads, report=report)
    clear_report()
    name = printable(loaded.name)
    print(f"{name}: {len(QUESTIONS)} chat requests, greedy, each compared with transformers generating it alone")
    print(f"{'':26}{'steps':>6}{'preempted':>11}{'seconds':>9}  same")
    all_same = True
    for result in results(loaded, config):
        all_same = all_same and result.same
        steps = str(result.steps) if result.steps else "-"
        same = "yes" if result.same else "NO"
        print(f"{result.name:26}{steps:>6}{result.preemptions:>11}{result.seconds:>9.1f}  {same}", flush=True)
    return all_same


def warn(config: EngineConfig) -> None:
    """Say on standard error what is hardly meant."""
    for warning in config.warnings():
        print(f"nanoviz: warning: {warning}", file=sys.stderr)


def wait_passively() -> None:
    """Before torch is imported: let its threads sleep while they wait. Spinning, they keep each other from a core."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def report(progress: Progress) -> None:
    """Progress on standard error, one line that is written over; silent where nobody watches."""
    if sys.stderr.isatty():
        share = f" {100 * progress.done // progress.total}%" if progress.total else ""
        print(f"{CLEAR_LINE}{printable(progress.what)}{share}", end="", file=sys.stderr, flush=True)


def clear_report() -> None:
    if sys.stderr.isatty():
        print(CLEAR_LINE, end="", file=sys.stderr, flush=True)
