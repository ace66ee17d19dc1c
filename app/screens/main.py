"""MainScreen: all panels on one screen. One of them can have the focus, and fill the screen; any can be hidden."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.screen import Screen
from textual.widgets import Static

from app.commands import Command, Fact
from app.cursor import Cursor
from app.footer import KeysFooter
from app.panels.banner import Banner
from app.panels.blocks import BlocksPanel
from app.panels.budget import BudgetPanel
from app.panels.column import PanelColumn
from app.panels.events import EventsPanel
from app.panels.header import Header
from app.panels.latency import LatencyPanel
from app.panels.narration import Narration, Programme
from app.panels.output import OutputPanel
from app.panels.panel import Panel
from app.panels.requests import RequestsPanel
from app.panels.step import StepPanel
from app.panels.timeline import Timeline
from app.panels.waste import WastePanel
from app.screens.panels import TITLES
from app.selection import Selection
from app.session import Session

BANNER_MARGIN = 2
MIN_WIDTH, MIN_HEIGHT = 60, 16
MEASURES = frozenset(("latency", "waste"))
"""Ids of the panels that most screens have no room for at first."""


class MainScreen(Screen[None]):
    """No panel has the focus until somebody chooses one. A double click on a heading is the key for maximising.

    `keys` are what the screen calls the keys of the commands.
    """

    AUTO_FOCUS: ClassVar[str | None] = ""
    ALLOW_IN_MAXIMIZED_VIEW: ClassVar[str | None] = "#header, #banner, #narration, #timeline, #too-small, Footer"

    def __init__(self, commands: Iterable[Command], keys: dict[str, str], *, id: str) -> None:
        super().__init__(id=id)
        self._keys = keys
        self._header = Header(id="header")
        self._banner = Banner(id="banner", keys=keys)
        self._narration = Narration(id="narration")
        self.requests = RequestsPanel(id="requests", keys=keys)
        self._blocks = BlocksPanel(id="blocks", keys=keys)
        self._output = OutputPanel(id="output")
        self._timeline = Timeline(id="timeline")
        self._footer = KeysFooter(commands)

    def compose(self) -> ComposeResult:
        yield self._header
        yield self._banner
        yield self._narration
        with Horizontal(id="body"):
            with PanelColumn(id="left"):
                yield BudgetPanel(id="budget")
                yield self.requests
                yield LatencyPanel(id="latency")
                yield WastePanel(id="waste")
            with PanelColumn(id="right"):
                yield StepPanel(id="step", keys=self._keys)
                yield self._blocks
                yield EventsPanel(id="events", keys=self._keys)
                yield self._output
        yield self._timeline
        needs = f"nanoviz needs {MIN_WIDTH} columns and {MIN_HEIGHT} rows; {self._keys['quit']} leaves"
        yield Static(needs, id="too-small", markup=False)
        yield self._footer

    def on_mount(self) -> None:
        # Panels come and go with the screen's size as well, by the style sheet, which nobody else is told.
        self.screen_layout_refresh_signal.subscribe(self, self.fill_columns)
        self.call_after_refresh(self.fill_columns)

    def show(
        self,
        session: Session,
        cursor: Cursor,
        selection: Selection,
        programme: Programme | None,
        *,
        slow: float | None,
        address: str,
    ) -> None:
        """Bring every panel up to the step at the cursor; `slow` are the frames a second of a slow terminal.

        `address` is where clients reach the engine, if it is served.
        """
        view = cursor.view
        header = self._header
        header.ready, header.state, header.steps_per_second = session.ready, session.state, session.speed
        header.paused, header.steps_back, header.slow = session.paused, cursor.steps_back, slow
        header.load, header.address = session.load.rate, address
        # What has been changed since the newest step holds already; a step of the past had its own.
        header.config = session.config if cursor.step is None or view.config is None else view.config
        self._timeline.history, self._timeline.step = session.history, cursor.step
        self._banner.progress, self._banner.failed = session.loading, session.failed
        self._banner.problem = session.problem
        _give_room(self._banner, self.num_banner_lines)
        self._narration.programme, self._narration.view = programme, view
        _give_room(self._narration, self.num_narration_lines)
        self.requests.selected = self._output.selected = selection.request_id
        self.requests.server, self.requests.can_send = session.server, not session.why_not_sent
        self.requests.aborting = frozenset(session.aborting)
        self._blocks.only = selection.request_id if selection.only else None
        for panel in self.query(Panel):
            panel.show(view)
        self._footer.tell(_facts(session, cursor, selection))

    @property
    def num_banner_lines(self) -> int:
        return len(self._banner.lines(self.app.size.width - BANNER_MARGIN))

    @property
    def num_narration_lines(self) -> int:
        return len(self._narration.lines(self.app.size.width - BANNER_MARGIN))

    def rows(self, session: Session, cursor: Cursor) -> list[str]:
        """The ids of all requests that can be selected, in the order of the list at the cursor."""
        self.requests.view = cursor.view
        self.requests.pending = tuple(session.pending.values()) if cursor.step is None else ()
        return self.requests.order()

    # Which panels are seen.

    @property
    def shown_panels(self) -> list[str]:
        """The ids of the panels that are shown now."""
        return [panel_id for panel_id in TITLES if self._panel(panel_id).display]

    def show_panels(self, shown: Collection[str]) -> None:
        """Show these panels and no others. Those that stay as they are still come and go with the screen's size."""
        for panel_id in TITLES:
            panel = self._panel(panel_id)
            if panel.display != (panel_id in shown):
                panel.display = panel_id in shown
        if self.maximized is not None and self.maximized.id not in shown:
            self.minimize()
        self.fill_columns()

    def toggle_measures(self) -> None:
        """Show the panels of MEASURES, or hide them if one is shown."""
        shown = frozenset(self.shown_panels)
        self.show_panels(shown - MEASURES if shown & MEASURES else shown | MEASURES)

    def _panel(self, panel_id: str) -> Panel:
        return self.query_one(f"#{panel_id}", Panel)

    def fill_columns(self, _: object = None) -> None:
        """Adapt the columns to which of their panels are shown."""
        for column in self.query(PanelColumn):
            column.fill()

    def toggle_maximized(self) -> bool:
        """Let the panel that has the focus fill the screen, or put back the one that does; False without either."""
        if self.maximized is not None:
            self.minimize()
            return True
        return self.focused is not None and self.maximize(self.focused, container=False)

    def on_click(self, event: events.Click) -> None:
        panel = event.widget
        if event.chain == 2 and isinstance(panel, Panel) and event.screen_y == panel.region.y:
            self.toggle_maximized()


def _give_room(panel: Panel, num_lines: int) -> None:
    """So many rows; none is not to be seen."""
    panel.set_class(num_lines > 0, "-shown")
    panel.styles.height = num_lines


def _facts(session: Session, cursor: Cursor, selection: Selection) -> frozenset[Fact]:
    """What is true now, for the footer."""
    facts: dict[Fact, object] = {
        "a step": session.view.trace,
        "a request": selection.request_id,
        "a preemption": session.view.num_preemptions,
        "can send": cursor.step is None and not session.failed and not session.why_not_sent,
        "can play": cursor.step is None and not session.failed and not session.why_not_changed,
        "in the past": cursor.step is not None,
        "paused": session.paused,
        "failed": session.failed,
    }
    return frozenset(fact for fact, holds in facts.items() if holds)
