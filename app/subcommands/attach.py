"""The command that opens the dashboard on a server elsewhere: `nanoviz attach`."""

from __future__ import annotations

import os
from argparse import ArgumentParser, ArgumentTypeError, Namespace

from app.attach.pace import SHORTEST_INTERVAL, USUAL_INTERVAL
from app.settings import API_KEY, expanded
from app.subcommands.dashboard import Display
from app.subcommands.on_presets import started
from engine.config import EngineConfig


class Attach(Display):
    """Watch a running vLLM server in the same dashboard; also one of SGLang, llama.cpp, or nanoviz itself.

    It reads what the server tells everybody (/metrics, /version, /v1/models), again and again, and sends requests only
    when a key is pressed. A server that wants an API key gets the one in the variable NANOVIZ_API_KEY; certificates of
    your own authority are found by the variable SSL_CERT_FILE. llama.cpp has to be started with --metrics, SGLang with
    --enable-metrics.
    """

    @classmethod
    def add_arguments(cls, parser: ArgumentParser) -> None:
        parser.add_argument("url", metavar="URL", help="the server, such as http://localhost:8000")
        parser.add_argument("--read-only", action="store_true", help="never send anything, whatever key is pressed")
        parser.add_argument(
            "--interval",
            type=_seconds,
            default=USUAL_INTERVAL,
            metavar="SECONDS",
            help=f"between two polls ({USUAL_INTERVAL})",
        )
        parser.add_argument(
            "--kv-events",
            default="",
            metavar="ENDPOINT",
            help="where vLLM publishes KV events, such as tcp://localhost:5557; behind a comma where it replays them, "
            "if it does not say so itself",
        )
        parser.add_argument("--record", type=expanded, metavar="FILE", help="write all polls to a new file")

    def execute(self, arguments: Namespace) -> int:
        from app.attach.address import kv_address, server_url
        from app.attach.source import AttachedServer
        from app.protocol import EngineOptions, Server
        from app.session import Source

        url = server_url(arguments.url)
        if arguments.kv_events:
            kv_address(arguments.kv_events)

        def attach(_: EngineOptions) -> Source:
            return AttachedServer(
                url,
                key=os.environ.get(API_KEY, ""),
                read_only=arguments.read_only,
                interval=arguments.interval,
                kv_events=arguments.kv_events,
            )

        with started(arguments.record, attach) as start:
            server = Server("", "", url, arguments.read_only, interval=arguments.interval)
            return self.show(EngineOptions(url, "auto", "cpu", 1, EngineConfig(), server), start)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not SHORTEST_INTERVAL <= seconds <= 3600:
        raise ArgumentTypeError(f"{text!r} is no number of seconds from {SHORTEST_INTERVAL} to 3600")
    return seconds
