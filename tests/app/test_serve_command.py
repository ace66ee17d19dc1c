"""`nanoviz serve` as a program: how it begins, what it says, and how it ends."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from app.recording import Recording
from tests.app.support import run_cli

PATIENCE = 120.0
"""Seconds after which a test gives up waiting; nothing here is measured."""
TINY = ("--model", "tiny", "--threads", "1")


@contextmanager
def program(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`nanoviz serve` on a free port, ready, and its URL."""
    command = [sys.executable, "-m", "app", "serve", *TINY, "--port", "0", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.fullmatch(r"Serving tiny on (http://127\.0\.0\.1:\d+)/v1 - Ctrl\+C ends it\n", line)
        assert found, line
        yield process, found[1]
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_with_what_is_in_flight(number: signal.Signals, code: int, tmp_path: Path) -> None:
    path = tmp_path / "run.gz"
    body = {"prompt": "Who is there?", "max_tokens": 900, "stream": True, "ignore_eos": True}
    with program("--record", str(path)) as (process, url):
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=PATIENCE) as response:
            lines = response.iter_lines()
            assert next(lines).startswith("data: ")
            os.kill(process.pid, number)
            *_, error, done = [line for line in lines if line]
        assert "stopped" in error and done == "data: [DONE]"
        out, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == code
        assert out == f"Wrote {path}\n" and err == ""
    assert Recording(path).traces[0].arrivals[0].prompt == "Who is there?"


def test_an_engine_that_dies_ends_it_with_what_it_died_of() -> None:
    with program() as (process, _):
        (engine,) = psutil.Process(process.pid).children()
        engine.kill()
        out, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == 1
        assert out == "" and "SIGKILL" in err and len(err.splitlines()) == 1


@pytest.mark.parametrize("command", [("serve", "--port"), ("--serve",)])
def test_a_port_that_is_taken_is_told_before_anything_is_loaded(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = run_cli(capsys, *TINY, *command, str(port)) if len(command) == 1 else None
        result = result or run_cli(capsys, *command, str(port), *TINY)
    assert result.code == 2 and f"port {port}" in result.err
    result.check_short()


def test_an_address_that_others_reach_needs_a_key(capsys: pytest.CaptureFixture[str]) -> None:
    result = run_cli(capsys, "serve", *TINY, "--host", "0.0.0.0", "--port", "0")
    assert result.code == 2 and "NANOVIZ_API_KEY" in result.err
    result.check_short()


def test_the_key_is_in_no_setting(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NANOVIZ_API_KEY", "a-secret")
    result = run_cli(capsys, "config")
    assert result.code == 0 and "a-secret" not in result.out and "max_num_queued_reqs" in result.out


def test_a_preset_without_a_dashboard_serves_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    result = run_cli(capsys, "play", "figure", "--headless", "--serve", "0")
    assert result.code == 2 and "--serve" in result.err
