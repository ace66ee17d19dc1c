"""Server: the HTTP server in a thread of its own, beside a dashboard or alone."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address

import uvicorn

from app.serve.gateway import Gateway
from app.serve.routes import application
from app.settings import API_KEY
from engine.config import ConfigError

MAX_CONNECTIONS = 4096
GOODBYE_SECONDS = 2
"""That clients have at the end to take what was sent to them."""


@contextmanager
def serving(host: str, port: int, max_num_queued_reqs: int) -> Iterator[tuple[Gateway, str]]:
    """A gateway that can be reached at this address, as long as the block lasts, and its URL; port 0 takes a free one.

    It is there before an engine is, and says so then. Raises ConfigError if it cannot be.
    """
    gateway = Gateway(max_num_queued_reqs)
    api_key = os.environ.get(API_KEY) or None
    with listening_socket(host, port, has_key=api_key is not None) as listener:
        config = uvicorn.Config(
            application(gateway, api_key),
            lifespan="off",
            ws="none",
            log_config=None,
            log_level="critical",  # the screen is the dashboard's
            access_log=False,
            server_header=False,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_graceful_shutdown=GOODBYE_SECONDS,
        )
        server = uvicorn.Server(config)
        listens = threading.Event()

        async def serve() -> None:
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(lambda *_: None)  # a full table of files would write all over the screen
            gateway.listen(loop)
            listens.set()
            await server.serve([listener])

        thread = threading.Thread(target=lambda: asyncio.run(serve()), name="serve", daemon=True)
        thread.start()
        listens.wait()
        try:
            yield gateway, _url(listener, host)
        finally:
            gateway.close()
            server.should_exit = True
            thread.join()


def listening_socket(host: str, port: int, *, has_key: bool) -> socket.socket:
    """Raises ConfigError for an address that others can reach without a key, or that cannot be had."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"there is no address {host!r}: {_reason(error)}.") from None
    if not ip_address(str(address[0]).partition("%")[0]).is_loopback and not has_key:
        raise ConfigError(
            f"{host} can be reached from other machines: set an API key in {API_KEY} first, or serve on 127.0.0.1."
        )
    try:
        return socket.create_server(address[:2], family=family)
    except OSError as error:
        raise ConfigError(f"port {port} of {host} cannot be served on: {_reason(error)}. Choose another one.") from None


def _reason(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)


def _url(listener: socket.socket, host: str) -> str:
    port = listener.getsockname()[1]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
