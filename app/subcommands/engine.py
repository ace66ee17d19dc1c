"""The commands that run the engine in this process: `nanoviz run`, `nanoviz verify` and `nanoviz bench`."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterable
from typing import TYPE_CHECKING

from pydantic import Field

from app.settings import Settings, SettingsMistake
from engine.locate import locate
from engine.request import SamplingParams

if TYPE_CHECKING:
    from app.bench_engine import Workload
    from app.bench_report import Result
    from app.protocol import EngineOptions
    from engine.contenders import Contest


class Run(Settings):
    """Answer prompts, all together, and print the outputs; without a prompt, read one from standard input."""

    max_tokens: int = Field(64, description="most output tokens of each")
    temperature: float = Field(0.0, description="0 is greedy")
    top_p: float = Field(1.0, description="draw only from the likeliest tokens that make up this much")
    top_k: int = Field(0, description="draw only from so many of the likeliest tokens; 0 is all")
    seed: int | None = Field(None, description="makes sampling repeatable")
    ignore_eos: bool = Field(False, description="go on to max_tokens whatever the model says")

    @classmethod
    def add_arguments(cls, parser: ArgumentParser) -> None:
        """What is said anew in each call. Prompts and stop strings are text, whatever commas or brackets they hold."""
        parser.add_argument("prompts", nargs="*", metavar="PROMPT", help="what to ask; several are served together")
        parser.add_argument(
            "--stop", action="append", default=[], help="a text that ends the output; may be given again"
        )
        parser.add_argument("--raw", action="store_true", help="take prompts as they are, without a chat template")
        output = parser.add_mutually_exclusive_group()
        output.add_argument("--trace", action="store_true", help="print a table with a line for each step")
        output.add_argument("--json", action="store_true", help="print one trace a line, as JSON, and nothing else")

    def execute(self, arguments: Namespace) -> int:
        from app import headless

        params = SamplingParams(
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            seed=self.seed,
            stop=tuple(arguments.stop),
            ignore_eos=self.ignore_eos,
        )
        headless.run(
            arguments.prompts or [headless.read_prompt()],
            params,
            self.engine_config(),
            model=self.model,
            dtype=self.dtype,
            device=self.device,
            threads=self.num_threads(),
            chat=not arguments.raw,
            trace=arguments.trace,
            json=arguments.json,
        )
        return 0


class Verify(Settings):
    """Serve six chat requests under three configurations and compare each output with transformers alone.

    Exit code 1 if any differs.
    """

    def execute(self, arguments: Namespace) -> int:
        from app import headless

        same = headless.verify(
            self.engine_config(), model=self.model, dtype=self.dtype, device=self.device, threads=self.num_threads()
        )
        return 0 if same else 1


class Bench(Settings):
    """Measure a part of nanoviz on this machine.

    engine: tokens a second of our engine against transformers (one by one, continuous batching, one padded batch) and
    vLLM, if it can be imported; greedy, on the same prompts and threads, in turns, on all cores unless
    --threads says otherwise.

    scheduler: microseconds that the decision of a step takes, with growing numbers of running and waiting requests and
    no model; the policy and the other parameters that are no sizes are those of the settings.

    ui: what the dashboard costs, in four minutes: from a key to its frame, bytes a frame, CPU and memory on a fast and
    on a slow terminal, idle and paused, and in front of ten thousand waiting requests; what it costs to tell it of a
    step, and by how much it slows the engine down, with the model tiny and with that of the settings.

    startup: seconds until the help, the first frame and the first token are there, and what memory that takes.

    soak: a hundred thousand steps of the model tiny under a random load, in half an hour or more: whether memory keeps
    growing, blocks leak, or the history is wrong at one of its ends; exit code 1 if so.
    """

    @classmethod
    def add_arguments(cls, parser: ArgumentParser) -> None:
        parser.add_argument("part", choices=["engine", "scheduler", "ui", "startup", "soak"], help="what to measure")
        parser.add_argument(
            "--json", action="store_true", help="print the results as JSON, and nothing else (not soak)"
        )
        engine = parser.add_argument_group("of engine alone")
        engine.add_argument("--requests", type=_positive, default=16, metavar="N", help="how many, all at once (16)")
        engine.add_argument(
            "--prompt-len", type=_lengths, default=(16, 64), metavar="N or A-B", help="tokens of each prompt (16-64)"
        )
        engine.add_argument("--new-tokens", type=_positive, default=64, metavar="N", help="to generate for each (64)")
        engine.add_argument("--rounds", type=_positive, default=3, metavar="N", help="that count, after one more (3)")

    def execute(self, arguments: Namespace) -> int:
        from app.bench_report import print_results
        from app.protocol import EngineOptions

        config = self.engine_config()
        options = EngineOptions(self.model, self.dtype, self.device, self.num_threads(), config)
        if arguments.part == "soak":
            from app.bench_soak import soak

            if arguments.json:
                raise SettingsMistake("--json: the soak test prints text only.")
            config.validate()
            return 0 if soak(options) else 1
        print_results(self._results(options, arguments), json=arguments.json)
        return 0

    def _results(self, options: EngineOptions, arguments: Namespace) -> Iterable[Result]:
        if arguments.part == "scheduler":
            from app.bench_scheduler import bench_scheduler

            return bench_scheduler(options.config)
        locate(self.model)
        if arguments.part == "engine":
            from app.bench_engine import bench_engine

            return bench_engine(*self._contest(arguments), arguments.rounds)
        options.config.validate()
        if arguments.part == "startup":
            from app.bench_startup import bench_startup

            return bench_startup(options)
        from app.bench_ui import bench_ui

        return bench_ui(options)

    def _contest(self, arguments: Namespace) -> tuple[Contest, Workload]:
        from app.bench_engine import Workload
        from engine.contenders import Contest

        shortest, longest = arguments.prompt_len
        contest = Contest(
            self.model,
            "float32" if self.dtype == "auto" else self.dtype,
            self.num_threads(all_cores=True),
            arguments.requests,
            longest + arguments.new_tokens + 1,
        )
        return contest, Workload(arguments.requests, shortest, longest, arguments.new_tokens)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return int(text)


def _lengths(text: str) -> tuple[int, int]:
    """`40`, or `16-64` for random ones between these."""
    first, dash, last = text.partition("-")
    shortest = _positive(first)
    longest = _positive(last) if dash else shortest
    if longest < shortest:
        raise ArgumentTypeError(f"{text!r} goes from more to less")
    return shortest, longest
