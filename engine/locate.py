"""What a model's name means, found out before anything heavy is imported."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from engine.progress import ModelError

Place = Literal["smollm2", "tiny", "gguf", "folder", "hub"]


def locate(spec: str) -> tuple[Place, Path]:
    """The kind of model that `spec` names, and its path if it lies on this machine (or its name as a path).

    Raises ModelError if it names nothing.
    """
    path = Path(spec).expanduser()
    if spec == "smollm2":
        return "smollm2", path
    if spec == "tiny":
        return "tiny", path
    if spec.endswith(".gguf"):
        if not path.is_file():
            raise ModelError(f"there is no file {spec}.")
        return "gguf", path
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError(f"the folder {spec} has no config.json; it is not a model that transformers can load.")
        return "folder", path
    if spec.count("/") != 1 or spec.startswith((".", "/", "~")) or path.exists():
        raise ModelError(
            f"there is no model {spec!r}: not a known name (smollm2, tiny), not a folder, not a .gguf file, "
            "and not a hub id such as Qwen/Qwen3-0.6B."
        )
    return "hub", path
