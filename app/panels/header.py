"""Header: what runs, how fast, and how full it is, in one line."""

from __future__ import annotations

from rich.cells import cell_len

from app.palette import BACKGROUND, BRIGHT, DECODE, DIM, PREEMPTED, TEXT, WAITING, style
from app.panels.panel import Panel, Part
from app.protocol import Ready, Server
from app.server_words import percent
from app.session import EngineState
from app.text import printable
from app.words import plural
from engine.config import EngineConfig
from engine.poll import Poll

SIGNS: dict[EngineState, str] = {"running": "▶", "paused": "‖", "idle": "◦", "loading": "…", "dead": "✗", "away": "✗"}
COLORS: dict[EngineState, str] = {"running": DECODE, "paused": WAITING, "dead": PREEMPTED, "away": PREEMPTED}


class Header(Panel):
    """Drops what matters least where room is short."""

    can_focus = False

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self.ready: Ready | None = None
        self.state: EngineState = "loading"
        self.steps_per_second = 0.0
        self.paused = False
        self.load = 0.0
        """Requests a second that arrive by themselves."""
        self.address = ""
        """Where clients reach the engine, if it is served."""
        self.steps_back = 0
        self.slow: float | None = None
        """Frames a second, if the terminal takes fewer than are wanted."""
        self.config = EngineConfig()

    def draw(self, width: int, height: int) -> list[list[Part]]:
        groups = self._groups()
        while sum(cell_len(text) for _, parts in groups for text, _ in parts) > width and len(groups) > 1:
            groups.remove(max(groups, key=lambda group: group[0]))
        return [[part for _, parts in groups for part in parts]]

    def _groups(self) -> list[tuple[int, list[Part]]]:
        """Groups of parts from left to right, each with how readily it goes: the highest first."""
        groups: list[tuple[int, list[Part]]] = [(0, [(" nanoviz ", style(BACKGROUND, DECODE, bold=True))])]
        ready = self.ready
        if ready:
            dtype = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}.get(ready.dtype, ready.dtype)
            groups.append((4, [(f"  {printable(ready.model)}", style(BRIGHT, bold=True))]))
            if ready.recorded:
                groups.append((1, [(" recording", style(WAITING, bold=True))]))
                groups.append((9, [(f" of {ready.recorded[:10]}", style(DIM))]))
        if ready and ready.server:
            groups += _server(ready.server)
        elif ready:
            if ready.random_weights:
                groups.append((3, [(" random weights", style(WAITING))]))
            groups.append((6, [(f" {ready.device} {dtype}", style(DIM))]))
            exact = "bitwise" if ready.bitwise else "best effort"
            groups.append((8, [(f" {exact}", style(DIM if ready.bitwise else WAITING))]))
            weights = f"{ready.num_parameters / 1e6:.0f}M weights"
            groups.append((11, [(f" · {weights} · {plural(ready.threads, 'thread')}", style(DIM))]))
            groups.append((9, [(f" · policy {self.config.policy}", style(DIM))]))
            pool = f"{self.config.num_usable_blocks}×{self.config.block_size}"
            text = f" · budget {self.config.max_num_batched_tokens} · {pool} KV"
            groups.append((10, [(text, style(DIM))]))
        groups.append((1, self._pace()))
        if self.slow is not None and self.state == "running":
            groups.append((3, [(f" {self.slow:.0f} fps", style(WAITING))]))
            groups.append((12, [(" slow terminal", style(WAITING))]))
        if self.load:
            groups.append((3, [(f" load {self.load:g}/s", style(WAITING))]))
        if self.address:
            groups.append((4, [(" serves ", style(DIM)), (self.address, style(BRIGHT))]))
        view = self.view
        if view.trace is None:
            return groups
        trace = view.trace
        if trace.poll:
            return groups + self._polled(trace.poll)
        if self.state == "running" or self.steps_back:
            steps, tokens = view.rates()
            groups.append((7, [(f" {steps:.1f} steps/s", style(DIM))]))
            groups.append((5, [(f"  {tokens:.0f} tok/s", style(DIM))]))
        running = sum(view.requests[request_id].finished is None for request_id in trace.running)
        seats = trace.config.max_num_seqs
        groups.append((2, [("  run ", style(DIM)), (f"{running}/{seats}", style(BRIGHT, bold=True))]))
        groups.append((2, [(" wait ", style(DIM)), (f"{trace.num_waiting}", style(WAITING, bold=True))]))
        color = PREEMPTED if view.num_preemptions else DIM
        groups.append((3, [(f" ×{view.num_preemptions}", style(color, bold=True)), (" preempted", style(DIM))]))
        total = trace.config.num_usable_blocks
        full = 100 * (total - trace.num_free_blocks) // total
        groups.append((2, [("  KV ", style(DIM)), (f"{full}%", style(PREEMPTED if full >= 95 else BRIGHT, bold=True))]))
        return groups

    def _polled(self, poll: Poll) -> list[tuple[int, list[Part]]]:
        """What a server told of all its requests."""
        groups: list[tuple[int, list[Part]]] = []
        if poll.interval and poll.num_iterations is not None:
            groups.append((7, [(f" {poll.num_iterations / poll.interval:.1f} iterations/s", style(DIM))]))
        if poll.interval and poll.num_generation_tokens is not None:
            groups.append((5, [(f"  {poll.num_generation_tokens / poll.interval:.0f} tok/s", style(DIM))]))
        if poll.num_running is not None:
            seats = f"/{self.config.max_num_seqs * len(poll.engines)}" if poll.tells("max_num_seqs") else ""
            groups.append((2, [("  run ", style(DIM)), (f"{poll.num_running:,}{seats}", style(BRIGHT, bold=True))]))
        if poll.num_waiting is not None:
            groups.append((2, [(" wait ", style(DIM)), (f"{poll.num_waiting:,}", style(WAITING, bold=True))]))
        if poll.num_preemptions is not None:
            count = self.view.num_preemptions
            color = PREEMPTED if count else DIM
            groups.append((3, [(f" ×{count:,}", style(color, bold=True)), (" preempted", style(DIM))]))
        if poll.kv_usage is not None:
            color = PREEMPTED if poll.kv_usage >= 0.95 else BRIGHT
            groups.append((2, [("  KV ", style(DIM)), (percent(poll.kv_usage), style(color, bold=True))]))
        return groups

    def _pace(self) -> list[Part]:
        step = f" {self.view.unit} {self.view.trace.step:,}" if self.view.trace else ""
        color = COLORS.get(self.state, DIM)
        parts: list[Part] = [(f"  {SIGNS[self.state]}", style(color, bold=True))]
        if self.state != "running":
            parts.append((f" {self.state}", style(color, bold=True)))
        if self.paused and self.state == "loading":
            parts.append((f" {SIGNS['paused']} paused", style(WAITING, bold=True)))
        parts.append((step, style(TEXT, bold=True)))
        if self.steps_back:
            parts.append((f" ◂ {self.steps_back:,} back", style(WAITING, bold=True)))
        if self.steps_per_second:
            parts.append((f" ≤{self.steps_per_second:g}/s", style(WAITING)))
        return parts


def _server(server: Server) -> list[tuple[int, list[Part]]]:
    """What serves, and where."""
    what = printable(f"{server.kind} {server.version}".strip())
    groups: list[tuple[int, list[Part]]] = [(4, [(f" {what}", style(TEXT))])]
    groups.append((8, [(f" {printable(server.url)}", style(DIM))]))
    if server.read_only:
        groups.append((3, [(" read-only", style(WAITING))]))
    if not server.is_tested:
        groups.append((5, [(" untested", style(WAITING))]))
    return groups
