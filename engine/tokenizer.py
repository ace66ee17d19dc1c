"""Tokenizer: the model's own, from transformers, behind the few calls that the engine makes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from engine.progress import one_line
from engine.request import RequestError


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation. `role` is system, user or assistant."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Conversation:
    """What was said so far, to be answered."""

    messages: tuple[Message, ...]

    @property
    def last_of_user(self) -> str:
        """What the user said last; nothing if it was not heard yet."""
        return next((message.content for message in reversed(self.messages) if message.role == "user"), "")


class Tokenizer:
    """Text to token ids and back.

    `eos_token_ids`: every token that ends an output; a model's generation config may name more of them than its
    tokenizer does.
    """

    def __init__(self, tokenizer: Any, eos_token_ids: Collection[int] = ()) -> None:
        self._tokenizer = tokenizer
        own = () if tokenizer.eos_token_id is None else (tokenizer.eos_token_id,)
        self.eos_token_ids = frozenset(eos_token_ids) | frozenset(own)
        bos = tokenizer.bos_token_id
        self._bos = bos if bos is not None and tokenizer("a").input_ids[:1] == [bos] else None
        """The BOS token if the model wants one at the start of every text."""

    @property
    def has_chat_template(self) -> bool:
        return bool(self._tokenizer.chat_template)

    def encode(self, text: str) -> list[int]:
        """Raw text behind one BOS where the model has one. Special tokens spelled out in it become those tokens."""
        return self._one_bos(list(self._tokenizer(text).input_ids) if text else [])

    def encode_chat(self, asked: str | Conversation) -> list[int]:
        """A user's message, or a whole conversation, in the model's chat template, up to where the answer begins.

        A model without a template gets the raw text, as `encode` gives it, each message on a line of its own. An empty
        message is an empty prompt. Raises RequestError if the template refuses the messages.
        """
        messages = (Message("user", asked),) if isinstance(asked, str) else asked.messages
        if not any(message.content for message in messages) or not self.has_chat_template:
            return self.encode("\n".join(message.content for message in messages))
        try:
            rendered = self._tokenizer.apply_chat_template(
                [{"role": message.role, "content": message.content} for message in messages],
                tokenize=False,
                add_generation_prompt=True,
                enable_thinking=False,
            )
        except Exception as error:  # a template is a program of its own and may throw anything
            raise RequestError(
                f"the model's chat template refuses the messages: {one_line(error)}", "messages"
            ) from error
        return self._one_bos(list(self._tokenizer(rendered, add_special_tokens=False).input_ids))

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of the tokens; special tokens give none, bytes that are no UTF-8 give U+FFFD."""
        text: str = self._tokenizer.decode(
            list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text

    def _one_bos(self, token_ids: list[int]) -> list[int]:
        """A text or a template may bring the BOS that the tokenizer adds as well: keep one."""
        if self._bos is None or not token_ids:
            return token_ids
        first = next((i for i, token_id in enumerate(token_ids) if token_id != self._bos), len(token_ids))
        return [self._bos, *token_ids[first:]]
