"""What panels draw as lines of parts, as text for Textual's own widgets."""

from __future__ import annotations

from collections.abc import Iterable

from rich.style import Style
from rich.text import Text

from app.palette import DIM, style
from app.panels.panel import Part


def rich_text(parts: Iterable[Part]) -> Text:
    """One line with the same words and colours. The background is the widget's, which marks the chosen line with it;
    what is dim in a panel could not be read there."""
    dim = style(DIM).color
    looks = ((text, Style(color=None if look.color == dim else look.color, bold=look.bold)) for text, look in parts)
    return Text.assemble(*looks, no_wrap=True, overflow="ellipsis")
