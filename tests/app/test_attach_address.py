"""Addresses as people write them."""

from __future__ import annotations

import pytest

from app.attach.address import AttachError, KvAddress, kv_address, reachable, server_url
from app.attach.source import AttachedServer


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("localhost:8000", "http://localhost:8000"),
        (" http://localhost:8000/ ", "http://localhost:8000"),
        ("https://Host.example/v1/", "https://host.example"),
        ("http://host/models/a/v1", "http://host/models/a"),
        ("[::1]:8000", "http://[::1]:8000"),
        ("10.0.0.5", "http://10.0.0.5"),
        ("http://host:8000/metrics", "http://host:8000"),
    ],
)
def test_a_server_may_be_named_in_several_ways(text: str, url: str) -> None:
    assert server_url(text) == url


@pytest.mark.parametrize(
    "text",
    [
        "",
        "http://",
        "ftp://host",
        "host:eight",
        "http://me:secret@host",
        "http://secret@host",
        "host/?a=b",
        "a b",
        "http://[::1",
    ],
)
def test_what_is_no_server_is_a_mistake(text: str) -> None:
    with pytest.raises(AttachError) as mistake:
        server_url(text)
    assert str(mistake.value).endswith(".")
    assert "secret" not in str(mistake.value)


def test_a_key_that_cannot_be_sent_is_a_mistake() -> None:
    with pytest.raises(AttachError) as mistake:
        AttachedServer("localhost", key="clé\n")
    assert "clé" not in str(mistake.value)


def test_certificates_that_are_not_there_are_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/no/such/file")
    with pytest.raises(AttachError):
        AttachedServer("https://localhost")


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("tcp://host:5557", KvAddress("tcp://host:5557")),
        ("host:5557", KvAddress("tcp://host:5557")),
        ("tcp://*:5557,host:5558", KvAddress("tcp://*:5557", "tcp://host:5558")),
        ("ipc:///tmp/kv.sock", KvAddress("ipc:///tmp/kv.sock")),
    ],
)
def test_where_kv_events_are_heard(text: str, address: KvAddress) -> None:
    assert kv_address(text) == address


@pytest.mark.parametrize("text", ["", "host", "tcp://host:0", "tcp://host:99999", "ipc://", "udp://a:1", "a:1,*:2"])
def test_what_is_no_endpoint_is_a_mistake(text: str) -> None:
    with pytest.raises(AttachError):
        kv_address(text)


def test_ports_go_up_with_the_rank() -> None:
    assert KvAddress("tcp://h:5557", "tcp://h:6000").of_rank(3) == KvAddress("tcp://h:5560", "tcp://h:6003")
    assert KvAddress("ipc:///kv").of_rank(3) == KvAddress("ipc:///kv")


@pytest.mark.parametrize(
    ("endpoint", "url", "place"),
    [
        ("tcp://*:5558", "http://host:8000", "tcp://host:5558"),
        ("tcp://0.0.0.0:5558", "http://[fe80::1]:8000", "tcp://[fe80::1]:5558"),
        ("tcp://[::]:5558", "http://host", "tcp://host:5558"),
        ("tcp://10.0.0.5:5558", "http://host", "tcp://10.0.0.5:5558"),
        ("tcp://127.0.0.1:5558", "http://localhost:8000", "tcp://127.0.0.1:5558"),
        ("tcp://127.0.0.1:5558", "http://host:8000", ""),
        ("ipc:///kv.sock", "http://localhost", "ipc:///kv.sock"),
        ("ipc://kv.sock", "http://localhost", ""),
        ("ipc:///kv.sock", "http://host", ""),
        ("what is this", "http://host", ""),
    ],
)
def test_what_a_server_says_is_seen_from_here(endpoint: str, url: str, place: str) -> None:
    assert reachable(endpoint, url) == place
