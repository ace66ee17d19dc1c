"""One thread for torch in tests: small models gain nothing from more, and threads that wait spin."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A test must not depend on what the user has set or on what a hub says.
os.environ["HF_HUB_OFFLINE"] = "1"
for name in list(os.environ):
    if name.startswith("NANOVIZ_") and name != "NANOVIZ_CACHE":
        del os.environ[name]
os.environ["NANOVIZ_CONFIG"] = os.devnull
# Nor on the terminal that it is started in.
for name in ("NO_COLOR", "COLUMNS", "LINES"):  # pytest-xdist gives its processes a size
    os.environ.pop(name, None)
os.environ["TERM"], os.environ["COLORTERM"] = "xterm-256color", "truecolor"
