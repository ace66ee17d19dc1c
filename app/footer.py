"""Footer: the keys that are of use now, as many as fit."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.events import Resize
from textual.widgets import Footer
from textual.widgets._footer import FooterKey

from app.commands import FOOTER, Command, Fact

ALWAYS = ("help", "quit")
"""Who knows no other key has to find these."""


class KeysFooter(Footer):
    """Textual's footer, without keys that lead nowhere at the moment, and with none that is cut at the edge."""

    def __init__(self, commands: Iterable[Command]) -> None:
        super().__init__(compact=True, show_command_palette=False)
        self._commands = {command.action: command for command in commands}
        self._facts: frozenset[Fact] = frozenset()
        self._width = 0

    def tell(self, facts: frozenset[Fact]) -> None:
        """What is true now."""
        if facts != self._facts:
            self._facts = facts
            self._choose(list(self.query(FooterKey)))

    def on_resize(self, event: Resize) -> None:
        self._width = event.size.width
        self._choose(list(self.query(FooterKey)))

    def compose(self) -> ComposeResult:
        keys = [key for key in super().compose() if isinstance(key, FooterKey)]
        keys.sort(key=lambda key: FOOTER.index(self._commands[key.action].name))
        self._choose(keys)
        yield from keys

    def _choose(self, keys: Collection[FooterKey]) -> None:
        """Show those that are of use and fit, and ALWAYS in any case."""
        for key in keys:
            command = self._commands[key.action]
            now = command.renamed[1] if command.renamed and command.renamed[0] in self._facts else command.short
            if key.description != now:
                key.description = now
                key.refresh(layout=True)
        widths = {key: cell_len(f"{key.key_display} {key.description} ") for key in keys}
        room = self._width - sum(width for key, width in widths.items() if key.action in ALWAYS)
        for key, width in widths.items():
            when = self._commands[key.action].when
            is_of_use = when is None or when in self._facts
            if key.action not in ALWAYS:
                room -= width if is_of_use else 0
                key.display = is_of_use and room >= 0
