"""Transcript: a request's prompt and output as one text that scrolls, with what a step computed marked in it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache

from rich.style import Style

from app.palette import BACKGROUND, DECODE, DIM, KIND_COLORS, TEXT, style
from app.panels.panel import Part
from app.text import printable, wrap
from app.view import RequestView

SIGN = "› "
"""Stands before the prompt; its other lines are indented as far."""
Runs = Sequence[tuple[int, Style]]
"""Looks of a text one after another, each with the character before which it ends."""


class Transcript:
    """What was written until a step.

    Traces do not say which characters a token is. Those of an output token are known because they came with it; those
    of a prefill are reckoned from its share of the prompt, and hence about right.
    """

    def __init__(self, request: RequestView, step: int, width: int) -> None:
        is_now = request.last_step == step and request.last is not None
        self._prompt = _Text(request.prompt, max(1, width - len(SIGN)))
        self._prompt_runs, computed = _prompt_looks(request, self._prompt.length, is_now=is_now)
        self._output = _Text(request.text, width) if request.text else None
        self._output_runs = _output_looks(request, self._output.length, is_now=is_now) if self._output else ()
        self._output_at = self._prompt.num_lines + 1
        """The line at which the output begins: an empty one separates it."""
        self.num_lines = self._output_at + self._output.num_lines if self._output else self._prompt.num_lines
        self.focus = self.num_lines - 1 if self._output else self._prompt.line_of(computed)
        """The line to look at: the one that was computed last, or the newest."""

    def line(self, number: int) -> list[Part]:
        if number < self._prompt.num_lines:
            sign = SIGN if number == 0 else " " * len(SIGN)
            return [(sign, style(DIM)), *self._prompt.line(number, self._prompt_runs)]
        if self._output is None or number < self._output_at:
            return []
        return self._output.line(number - self._output_at, self._output_runs)


def _prompt_looks(request: RequestView, length: int, *, is_now: bool) -> tuple[Runs, int]:
    """While a prompt is being computed, what is still to come is dim. And where the computed part ends."""
    last = request.last
    if last is None or last.kind == "decode" or (last.end >= last.target and not is_now):
        return [(length, style(DIM))], 0
    num_tokens = max(1, request.num_prompt_tokens)
    start = length * min(last.start if is_now else last.end, num_tokens) // num_tokens
    end = -(-length * min(last.end, num_tokens) // num_tokens)
    return [(start, style(TEXT)), (end, _mark(KIND_COLORS[last.kind])), (length, style(DIM))], end


def _output_looks(request: RequestView, length: int, *, is_now: bool) -> Runs:
    runs: list[tuple[int, Style]] = []
    last = request.last
    fresh = len(printable(request.last_text, newlines=True)) if is_now else 0
    if is_now and last is not None and last.kind == "recompute":
        num_tokens = max(1, last.target - request.num_prompt_tokens)
        start = (length - fresh) * max(0, last.start - request.num_prompt_tokens) // num_tokens
        end = (length - fresh) * max(0, last.end - request.num_prompt_tokens) // num_tokens
        runs += [(start, style(TEXT)), (end, _mark(KIND_COLORS[last.kind]))]
    return [*runs, (length - fresh, style(TEXT)), (length, _mark(DECODE))]


def _mark(color: str) -> Style:
    return style(BACKGROUND, color, bold=True)


class _Text:
    """A text as it is printed: broken into lines, each of which knows where in it it begins."""

    def __init__(self, text: str, width: int) -> None:
        self._lines: list[str] = []
        self._starts: list[int] = []
        self.length = 0
        for paragraph in text.split("\n"):
            lines, starts, length = _laid_out(paragraph, width)
            self._lines += lines
            self._starts += [self.length + start for start in starts]
            self.length += length + 1
        self.length -= 1

    def line_of(self, position: int) -> int:
        """The line in which the character before this position is."""
        return max(0, bisect_right(self._starts, max(0, position - 1)) - 1)

    @property
    def num_lines(self) -> int:
        return len(self._lines)

    def line(self, number: int, runs: Runs) -> list[Part]:
        line, start = self._lines[number], self._starts[number]
        parts: list[Part] = []
        position = start
        for end, look in runs:
            if end > position:
                parts.append((line[position - start : end - start], look))
                position = end
        return parts


@lru_cache(maxsize=1024)
def _laid_out(paragraph: str, width: int) -> tuple[list[str], list[int], int]:
    """Its lines, where each begins, and its length. An output grows by its last paragraph: the others stay as they are,
    and are not laid out anew at every step."""
    text = printable(paragraph)
    lines = wrap(paragraph, width)
    starts: list[int] = []
    position = 0
    for line in lines:
        starts.append(position)
        position += len(line)
        if text[position : position + 1] == " ":  # the line was broken here, and the space is in none of the two
            position += 1
    return lines, starts, len(text)
