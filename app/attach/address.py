"""Addresses as a person writes them: of a server, and of where KV events can be heard."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from engine.progress import one_line

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
_ANY_HOSTS = ("*", "0.0.0.0", "::", "[::]", "")


class AttachError(ValueError):
    """Nothing can be attached to as it was asked; the text is a sentence for people."""


def server_url(text: str) -> str:
    """The server's root as a URL without anything secret, also from the place of its API or its metrics. Raises
    AttachError for what cannot be meant as one."""
    text = text.strip()
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise AttachError(f"this is no address of a server: {one_line(error)}.") from None
    if parts.username is not None or parts.password is not None:
        raise AttachError("an address must not hold a name or password: set NANOVIZ_API_KEY instead.")
    if parts.scheme not in ("http", "https"):
        raise AttachError(f"a server is reached by http or https, not {parts.scheme}.")
    if not host or any(character.isspace() for character in host):
        raise AttachError(f"{text!r} is no address of a server, such as http://localhost:8000.")
    if parts.query or parts.fragment:
        raise AttachError("the address of a server ends with its path; leave out what comes from ? or # on.")
    path = parts.path.rstrip("/").removesuffix("/v1").removesuffix("/metrics").rstrip("/")
    return f"{parts.scheme}://{_bracketed(host)}{f':{port}' if port is not None else ''}{path}"


@dataclass(frozen=True, slots=True)
class KvAddress:
    """Where a server's KV events can be heard, and where those that were missed can be had again ("" for nowhere).

    A publisher connects to an endpoint that names a host, and then it is the listener who has to bind (vLLM:
    `ZmqEventPublisher`). So an endpoint with * for its host is bound here, and any other one is connected to.
    """

    endpoint: str
    replay: str = ""

    def of_rank(self, rank: int) -> KvAddress:
        """Of another engine of the same server: ports go up with the rank (vLLM: `offset_endpoint_port`)."""
        return KvAddress(_offset(self.endpoint, rank), _offset(self.replay, rank))


def is_bound(endpoint: str) -> bool:
    """Whether whoever is given this endpoint binds it, rather than connecting to it (vLLM: `_is_bind_endpoint`)."""
    return "*" in endpoint or "::" in endpoint or endpoint.startswith(("ipc://", "inproc://"))


def kv_address(text: str) -> KvAddress:
    """From `ENDPOINT` or `ENDPOINT,REPLAY`, each as ZeroMQ has it or a mere host:port. Raises AttachError."""
    endpoint, _, replay = text.strip().partition(",")
    if replay and "*" in replay:
        raise AttachError("missed KV events are asked for: their endpoint needs a host in the place of *.")
    return KvAddress(_endpoint(endpoint), _endpoint(replay) if replay else "")


def reachable(endpoint: str, url: str) -> str:
    """An endpoint that a server has bound, as it can be reached from here; "" if only its own machine can reach it."""
    host, port = _split_tcp(endpoint)
    server = urlsplit(url).hostname or ""
    if not port:
        return endpoint if server in LOCAL_NAMES and endpoint.startswith("ipc:///") else ""
    if host in _ANY_HOSTS:
        return f"tcp://{_bracketed(server)}:{port}"
    return "" if host.strip("[]") in LOCAL_NAMES and server not in LOCAL_NAMES else endpoint


def _endpoint(text: str) -> str:
    endpoint = text if "://" in text else f"tcp://{text}"
    if endpoint.startswith("ipc://") and len(endpoint) > len("ipc://"):
        return endpoint
    host, port = _split_tcp(endpoint)
    if not host or not port:
        raise AttachError(f"{text!r} is no endpoint of KV events, such as tcp://localhost:5557.")
    return endpoint


def _split_tcp(endpoint: str) -> tuple[str, str]:
    """Host and port; both "" if it is none of TCP."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    is_tcp = endpoint.startswith("tcp://") and port.isdecimal() and len(port) <= 5 and 0 < int(port) < 1 << 16
    return (host, port) if is_tcp else ("", "")


def _offset(endpoint: str, rank: int) -> str:
    host, port = _split_tcp(endpoint)
    return f"tcp://{host}:{int(port) + rank}" if port else endpoint


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
