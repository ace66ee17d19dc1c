"""Step: the decision of one step, as a bar of the budget and in words, and what it cost. Or what a server told."""

from __future__ import annotations

from app.palette import BRIGHT, DIM, FAINT, owner_cell, style
from app.panels.panel import Panel, Part, heading, wrap_parts
from app.server_words import told as told_by_server
from app.words import explain, plural
from engine.poll import Poll
from engine.trace import StepTrace


class StepPanel(Panel):
    """Each request of the step is a segment as wide as its share, one cell at least; dots are what stayed unused."""

    def draw(self, width: int, height: int) -> list[list[Part]]:
        trace = self.view.trace
        if trace is None:
            return [heading("Step", "", width), [("what each step decides, and why", style(DIM))]]
        if trace.poll:
            lines = [heading(f"Poll {trace.step:,}", "per poll", width)]
            told, costs = told_by_server(trace, trace.poll, self.view), _answered(trace.poll)
        else:
            lines = [heading(f"Step {trace.step:,}", f"{trace.times.total * 1000:.0f} ms", width)]
            lines.append(self._bar(trace, width))
            told, costs = explain(trace, self.view), self._costs(trace, width)
        sentences = [line for sentence in told for line in wrap_parts(sentence, width, indent=2)]
        room = height - len(lines) - 1
        if len(sentences) > room > 0:
            more: list[Part] = [(f"  {self.keys['why']}", style(BRIGHT, bold=True))]
            more.append((f" shows {plural(len(sentences) - room + 1, 'more line')}", style(DIM)))
            sentences = [*sentences[: room - 1], more]
        return [*lines, *sentences, costs]

    def _bar(self, trace: StepTrace, width: int) -> list[Part]:
        budget = trace.config.max_num_batched_tokens
        sizes = [max(1, round(item.num_tokens * width / budget)) for item in trace.scheduled]
        unused = budget - trace.num_scheduled_tokens
        least_unused = 1 if unused else 0
        while sum(sizes) > width - least_unused and max(sizes) > 1:
            sizes[sizes.index(max(sizes))] -= 1
        line: list[Part] = []
        for item, size in zip(trace.scheduled, sizes, strict=True):
            request = self.view.requests.get(item.request_id)
            line.append((self.view.letter(item.request_id).ljust(size), owner_cell(request.number if request else 0)))
        line.append(("·" * (width - sum(sizes)), style(FAINT)))
        return line

    @staticmethod
    def _costs(trace: StepTrace, width: int) -> list[Part]:
        """Where the time went; the forward pass, which is nearly all of it, goes last if room is short."""
        times = trace.times
        parts = [("forward", times.forward), ("schedule", times.schedule), ("sample", times.sample)]
        parts += [("prepare", times.prepare), ("update", times.update)]
        texts = [f"{name} {_milliseconds(seconds)}" for name, seconds in parts]
        while len(texts) > 1 and len(" ".join(texts)) + 3 > width:
            texts.pop()
        return [(" ".join(texts) + " ms", style(DIM))]


def _answered(poll: Poll) -> list[Part]:
    return [(f"answered in {_milliseconds(poll.seconds)} ms", style(DIM))] if poll.ranks else []


def _milliseconds(seconds: float) -> str:
    value = seconds * 1000
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}" if value >= 0.1 else f"{value:.2f}"
