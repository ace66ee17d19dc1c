"""Who may import whom: the app starts without torch, the engine knows no screen, the scheduler is plain Python."""

from __future__ import annotations

import ast
import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import app
import engine

HEAVY = ("torch", "transformers")
SCREEN = ("app", "textual", "rich")
PLAIN = ("config", "request", "block_pool", "scheduler", "trace", "core", "detokenizer")
"""Engine modules that can be read, tested and replayed without a model."""

BUDGETS = {"app.cli": 400, "app.dashboard": 690}
"""Most modules that these may load, of any package: each costs a fraction of a millisecond before the first frame."""

LIST_MODULES = """
import importlib, json, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


def packages_after_importing(*modules: str) -> set[str]:
    """Top-level packages that a fresh interpreter has loaded after these imports."""
    result = subprocess.run([sys.executable, "-c", LIST_MODULES, *modules], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return set(json.loads(result.stdout))


def modules_of(package: object) -> list[str]:
    name, path = getattr(package, "__name__", ""), getattr(package, "__path__", [])
    return [name, *(module.name for module in pkgutil.walk_packages(path, f"{name}."))]


def imports_of(path: Path) -> set[str]:
    """Top-level packages that a file imports, also inside functions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} has a relative import"
            found.add((node.module or "").partition(".")[0])
    return found


def test_the_app_loads_neither_torch_nor_transformers() -> None:
    modules = modules_of(app)
    assert {"app.worker", "app.cli", "app.headless", "app.panels.requests", "app.screens.help"} <= set(modules)
    loaded = packages_after_importing(*modules)
    assert "textual" in loaded, "nothing was imported"
    assert not loaded.intersection(HEAVY)


def test_every_app_module_can_be_imported_first() -> None:
    """No module works only because another was there before it; in one process, each from a clean slate."""
    script = """
import importlib, sys
for name in sys.argv[1:]:
    for loaded in [m for m in sys.modules if m.partition(".")[0] in ("app", "engine")]:
        del sys.modules[loaded]
    importlib.import_module(name)
"""
    result = subprocess.run(
        [sys.executable, "-c", script, *modules_of(app)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("name", PLAIN)
def test_the_scheduler_side_needs_no_torch(name: str) -> None:
    loaded = packages_after_importing(f"engine.{name}")
    assert "engine" in loaded
    assert not loaded.intersection((*HEAVY, *SCREEN))


def test_the_engine_never_imports_the_app_or_its_toolkit() -> None:
    files = sorted(Path(engine.__file__).parent.rglob("*.py"))
    assert len(files) > len(PLAIN)
    for path in files:
        assert not imports_of(path).intersection(SCREEN), f"{path.name} imports one of {SCREEN}"


def test_loading_the_whole_engine_loads_no_screen() -> None:
    loaded = packages_after_importing(*modules_of(engine))
    assert "torch" in loaded, "nothing was imported"
    # rich may come with somebody else's package; ours and textual cannot.
    assert not loaded.intersection(("app", "textual"))


def test_the_command_line_starts_light() -> None:
    """`nanoviz --version` and every mistake in a flag answer at once."""
    assert not packages_after_importing("app.cli").intersection((*HEAVY, "textual"))


@pytest.mark.parametrize("name", BUDGETS)
def test_what_starts_the_program_loads_few_modules(name: str) -> None:
    script = f"import {name}, sys; print(len(sys.modules))"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert 100 < int(result.stdout) <= BUDGETS[name]
