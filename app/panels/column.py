"""PanelColumn: panels above each other, any of which may be hidden; those that stay use the room."""

from __future__ import annotations

from textual.containers import Vertical
from textual.css.scalar import Unit
from textual.widget import Widget


class PanelColumn(Vertical):
    """Its id is `left` or `right`; dashboard.tcss has the heights of its panels."""

    def __init__(self, *panels: Widget, id: str) -> None:
        super().__init__(*panels, id=id)
        self._stretched: Widget | None = None

    def fill(self) -> None:
        """Adapt to which panels are shown: tell dashboard.tcss, and leave no row empty."""
        shown = [panel for panel in self.children if panel.display]
        for panel in self.children:
            self.set_class(panel in shown, f"-with-{panel.id}")
        if self.parent is not None:
            self.parent.set_class(not shown, f"-without-{self.id}")
        stretched = None if not shown or any(map(_takes_the_rest, shown)) else shown[-1]
        if stretched is not self._stretched:
            if self._stretched is not None:
                self._stretched.styles.inline.clear_rule("height")
            if stretched is not None:
                stretched.styles.inline.height = "1fr"
            self._stretched = stretched


def _takes_the_rest(panel: Widget) -> bool:
    height = panel.styles.base.height
    return height is None or height.unit is Unit.FRACTION
