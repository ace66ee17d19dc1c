"""`nanoviz serve`: the engine for clients, without a screen; and what it shares with a dashboard that serves."""

from __future__ import annotations

import signal
import sys
import threading
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pydantic import Field

from app.headless import clear_report, report, warn
from app.settings import expanded
from app.subcommands.on_presets import OnPresets, started
from app.text import printable
from engine.progress import Progress

if TYPE_CHECKING:
    from app.session import Source, Start

MAX_PORT = 65535
PATIENCE = 0.2
"""Seconds between two looks at an engine that says nothing, or for a signal."""


class Serving(OnPresets):
    """Where clients reach the engine, and how many."""

    host: str = Field("127.0.0.1", description="address to serve on; one that others can reach needs an API key")
    max_num_queued_reqs: int = Field(1000, ge=1, description="most requests that wait or run; clients get a 503 then")

    @contextmanager
    def served(self, port: int | None) -> Iterator[tuple[Start | None, str]]:
        """What starts an engine that clients reach at this port, and its URL; without a port, nothing and none."""
        if port is None:
            yield None, ""
            return
        from app.serve.server import serving

        with serving(self.host, port, self.max_num_queued_reqs) as (gateway, url):
            yield gateway.start, url


class Serve(Serving):
    """Serve clients of OpenAI's interface: /v1/completions, /v1/chat/completions, /v1/models, /metrics, /health.

    Without a dashboard, until Ctrl+C; `nanoviz --serve PORT` serves beside one. An API key is read from the variable
    NANOVIZ_API_KEY; then everything but /health asks for it.
    """

    port: int = Field(8000, ge=0, le=MAX_PORT, description="port to serve on; 0 takes a free one")

    @classmethod
    def add_arguments(cls, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--record",
            type=expanded,
            metavar="FILE",
            help="write all steps to a new file, to be replayed",
        )

    def execute(self, arguments: Namespace) -> int:
        config = self.engine_config()
        config.validate()
        options = self.options(self.model, config)
        warn(config)
        with self.served(self.port) as (serve, url), started(arguments.record, serve) as start:
            source = start(options)
            try:
                return _attend(source, url)
            finally:
                source.close()
                source.drain()  # what came last is to be recorded as well


def port_number(text: str) -> int:
    """A port's number, for an argument."""
    number = int(text)
    if not 0 <= number <= MAX_PORT:
        raise ValueError
    return number


def _attend(source: Source, url: str) -> int:
    """Tell what the engine says, as long as it lives or until a signal; returns the exit code."""
    from app import protocol

    signals: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        # An exception in the midst of taking events would lose some of them, and with them a part of the recording.
        signal.signal(number, lambda number, _: signals.append(number))
    while not signals:
        news = threading.Event()
        source.when_news(news.set)
        news.wait(PATIENCE)
        for event in source.drain():
            match event:
                case protocol.Loading(what, done, total):
                    report(Progress(what, done, total))
                case protocol.Ready(model=model):
                    clear_report()
                    print(f"Serving {printable(model)} on {url}/v1 - Ctrl+C ends it", flush=True)
                case protocol.Notice(text):
                    print(f"nanoviz: warning: {printable(text)}", file=sys.stderr)
                case protocol.Failed(error):
                    clear_report()
                    print(f"nanoviz: {printable(error)}", file=sys.stderr)
                    return 1
    return 128 + signals[0]
