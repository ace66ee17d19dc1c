"""Detokenizer: turns one request's tokens into text as they come, and watches for its stop strings.

Two things are held back until they are certain: bytes that may be the beginning of a character, and text that may be
the beginning of a stop string. So no delta ever has to be taken back, and all deltas joined are the final text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

REPLACEMENT = "\ufffd"
CONTEXT_TOKENS = 5
"""Prompt tokens decoded along with the first output: some tokenizers drop a leading space otherwise (vLLM does the
same, v1/engine/detokenizer.py)."""


class Detokenizer:
    """Incremental decoding of one output. `decode` maps token ids to text and leaves special tokens out."""

    def __init__(
        self, decode: Callable[[Sequence[int]], str], prompt_token_ids: Sequence[int] = (), stop: Sequence[str] = ()
    ) -> None:
        self._decode = decode
        self._stop = tuple(stop)
        # The window that is decoded: some tokens already shown, for their context, then those not yet shown whole.
        self._window = list(prompt_token_ids[-CONTEXT_TOKENS:])
        self._num_context = len(self._window)
        self._prompt_end = decode(self._window) if self._window else ""
        self._shown = len(self._prompt_end)
        self._held = ""
        self.stopped = False
        """A stop string has been completed; nothing more is shown."""

    def append(self, token_id: int) -> str:
        """Add a token; returns the text that became certain with it."""
        if self.stopped:
            return ""
        self._window.append(token_id)
        text = self._decode(self._window)
        if not text.startswith(self._prompt_end):
            # The prompt broke off inside a character and the output has completed it: it belongs to the output.
            self._shown -= len(REPLACEMENT)
            self._prompt_end = ""
        certain = _certain(text)
        fresh = certain[self._shown :]
        self._shown = max(self._shown, len(certain))
        if certain == text:
            self._window = self._window[self._num_context :]
            self._num_context = len(self._window)
            self._shown = len(self._decode(self._window))
            self._prompt_end = ""
        return self._release(fresh)

    def flush(self) -> str:
        """The output has ended: the text that was held back for a stop string that did not come.

        Bytes of a character that was never completed are dropped.
        """
        held, self._held = self._held, ""
        return "" if self.stopped else held

    def _release(self, fresh: str) -> str:
        text = self._held + fresh
        if not self._stop:
            return text
        ends = [at for at in (text.find(stop) for stop in self._stop) if at >= 0]
        if ends:
            self.stopped = True
            self._held = ""
            return text[: min(ends)]
        keep = max(_overlap(text, stop) for stop in self._stop)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _certain(text: str) -> str:
    """A character still incomplete decodes to one U+FFFD at the very end; any before it are final."""
    return text.removesuffix(REPLACEMENT)


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a proper beginning of `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
