"""Hints: what to press first, where there are no requests to show yet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from app.palette import BRIGHT, DIM, TEXT, style
from app.panels.panel import Part, wrap_parts
from app.protocol import Server

TOO_MUCH = "{long} {long} {long} {long} {burst}"
"""The keys that ask for more memory than the default pool has."""
ESSENTIAL = (
    (TOO_MUCH, "more than the memory holds: one is preempted, ×"),
    ("{previous_preemption}", "go back there: who was thrown out for whom"),
    ("{help}", "what all this means"),
)
HINTS = (
    ("{presets}", "a preset, which explains itself"),
    ("{short}", "send a short request"),
    ("{long}", "a long one, some 500 tokens"),
    ("{burst}", "several short ones at once"),
    *ESSENTIAL,
)
MORE = (
    ("{more_load} {less_load}", "let requests arrive by themselves"),
    ("{parameters}", "change the rules while it runs"),
    ("{measures}", "latency and waste"),
)
SEND = (
    ("{short}", "send a short request of your own"),
    ("{long}", "a long one, some 500 tokens"),
    ("{burst}", "several short ones at once"),
)
LOOK = (
    ("{step_back}", "look back at earlier polls"),
    ("{measures}", "latency and waste"),
    ("{help}", "what all this means"),
)
"""What helps in front of a server elsewhere. The requests of others are not told one by one."""
KEYS_WIDTH = 11
INDENT = 4
"""Where keys and texts do not fit beside each other."""
WIDE_FROM = 40


def hints(
    keys: Mapping[str, str], width: int, height: int, *, server: Server | None = None, can_send: bool = True
) -> list[list[Part]]:
    """As many as fit; `keys` are the keys of all commands, by name."""
    if server:
        only_own = wrap_parts([("  only requests that are sent from here have rows", style(DIM))], width, indent=2)
        return [*only_own, [], *_lines((*SEND, *LOOK) if can_send else LOOK, keys, width)][:height]
    usual = _lines(HINTS, keys, width)
    for lines in ([[], *usual, [], *_lines(MORE, keys, width)], [[], *usual], usual):
        if len(lines) <= height:
            return lines
    return _lines(ESSENTIAL, keys, width)


def _lines(chosen: Iterable[tuple[str, str]], keys: Mapping[str, str], width: int) -> list[list[Part]]:
    lines: list[list[Part]] = []
    for template, text in chosen:
        pressed = template.format(**keys)
        name: Part = (
            f"  {pressed:<{KEYS_WIDTH - 1}} " if width >= WIDE_FROM else f"  {pressed}  ",
            style(BRIGHT, bold=True),
        )
        indent = len(name[0]) if width >= WIDE_FROM else INDENT
        lines += wrap_parts([name, (text, style(TEXT))], width, indent=indent)
    return lines
