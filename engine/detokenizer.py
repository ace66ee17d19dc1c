"""Detokenizer: turns one request's tokens into text as they come, and watches for its stop strings.

Two things are held back until they are certain: tokens that may be the beginning of a character, and text that may be
the beginning of a stop string. So no delta ever has to be taken back, and all deltas joined are the final text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

REPLACEMENT = "\ufffd"
"""What bytes that are no UTF-8, or not yet, decode to."""
MAX_CHARACTER_BYTES = 4


class Detokenizer:
    """Incremental decoding of one output. `decode` maps token ids to text and leaves special tokens out.

    A token is decoded behind one that was shown already, since some tokenizers drop the space at the start of a text
    (vLLM and text-generation-inference do so too). That one is never part of a character: byte tokens after byte
    tokens are read as one run, and some decoders give up the whole run if its end is incomplete.
    """

    def __init__(
        self, decode: Callable[[Sequence[int]], str], prompt_token_ids: Sequence[int] = (), stop: Sequence[str] = ()
    ) -> None:
        self._decode = decode
        self._stop = tuple(stop)
        self._context: list[int] = []
        self._set_context(prompt_token_ids[-MAX_CHARACTER_BYTES:])
        self._pending: list[int] = []
        """Tokens whose end may still become a character."""
        self._shown = 0
        """How much of their text has been shown."""
        self._held = ""
        """Text that may still become a stop string."""
        self.stopped = False
        """A stop string has been completed; nothing more is shown."""

    def append(self, token_id: int) -> str:
        """Add a token; returns the text that became certain with it."""
        if self.stopped:
            return ""
        self._pending.append(token_id)
        fresh = ""
        while self._pending:
            text = self._text_of(self._pending)
            certain = text.rstrip(REPLACEMENT)
            if certain == text:
                fresh += text[self._shown :]
                self._set_context(self._pending)
                self._pending.clear()
                self._shown = 0
            elif not text.startswith(REPLACEMENT):  # a token that ends one character and begins the next
                fresh += certain[self._shown :]
                self._shown = len(certain)
                break
            elif len(self._pending) < MAX_CHARACTER_BYTES:
                break
            else:  # no character is that long: what the first of them holds is none, and never will be
                fresh += self._text_of([self._pending.pop(0)])
        return self._release(fresh)

    def flush(self) -> str:
        """The output has ended: what was held back and is text after all.

        What at the very end is no character, because it was never completed, is dropped.
        """
        if self.stopped:
            return ""
        rest = self._release(self._text_of(self._pending).rstrip(REPLACEMENT)[self._shown :])
        self._pending.clear()
        held, self._held = self._held, ""
        return rest + held

    def _text_of(self, token_ids: Sequence[int]) -> str:
        before = self._decode(self._context)
        text = self._decode([*self._context, *token_ids])
        return text[len(before) :] if text.startswith(before) else self._decode(token_ids)

    def _set_context(self, token_ids: Sequence[int]) -> None:
        """Remember the last of these that is text by itself."""
        for token_id in reversed(token_ids):
            text = self._decode([token_id])
            if text and REPLACEMENT not in text:
                self._context = [token_id]
                return

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


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a proper beginning of `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
