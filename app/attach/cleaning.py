"""What a server writes is data, and never more than that on the screen."""

from __future__ import annotations

from app.text import printable


def cleaned(text: str, length: int = 300) -> str:
    """As a part of a sentence: one line, cut, and nothing that a terminal would obey."""
    line = " ".join(text.split())
    return printable(line if len(line) <= length else f"{line[: length - 1]}…")
