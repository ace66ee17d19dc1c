"""How often a server is looked at; each look costs it something."""

from __future__ import annotations

USUAL_INTERVAL = 0.5
"""Seconds between two looks, if nobody says otherwise."""
SHORTEST_INTERVAL = 0.1
"""Seconds between two looks at least, however fast somebody wants them."""
