"""Own prompt: a box for any text, and how it is to be answered."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.events import DescendantFocus, Key
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Label, Static, TextArea
from textual.widgets.text_area import Edit, EditResult

from app.inject import Draft
from app.text import printable
from app.words import plural
from engine.request import RequestError, SamplingParams

LABEL = "own"
MAX_WHOLE = 999_999_999
"""The largest whole number that is taken, so that every part of the program can count with it."""

Field = Literal["text", "max_tokens", "temperature", "priority"]
HINTS: dict[str, str] = {
    "max_tokens": "most tokens of output",
    "temperature": "0 always takes the likeliest token",
    "priority": "smaller is more urgent, for policy priority",
}


@dataclass(frozen=True, slots=True)
class Form:
    """What stands in the fields, right or wrong."""

    text: str = ""
    max_tokens: str = "64"
    temperature: str = "0"
    priority: str = "0"


@dataclass(frozen=True, slots=True)
class Filled:
    """The form as it was left, and the request if it was sent."""

    form: Form
    draft: Draft | None = None


class FormError(ValueError):
    """A field that cannot be read; the text is a sentence for whoever filled it in."""

    def __init__(self, field: Field, text: str) -> None:
        super().__init__(text)
        self.field = field


def draft_of(form: Form) -> Draft:
    """The request that a form asks for. Raises FormError at the first field that is wrong."""
    if not form.text.strip():
        raise FormError("text", "The prompt is empty: write or paste something.")
    if any("\ud800" <= character <= "\udfff" for character in form.text):
        raise FormError("text", "The prompt is not valid text: it holds bytes that are no UTF-8.")
    max_tokens = _whole("max_tokens", form.max_tokens)
    temperature = _number("temperature", form.temperature)
    priority = _whole("priority", form.priority)
    _check("max_tokens", lambda: SamplingParams(max_tokens=max_tokens))
    _check("temperature", lambda: SamplingParams(temperature=temperature))
    return Draft(LABEL, form.text, SamplingParams(max_tokens=max_tokens, temperature=temperature), priority, whole=True)


def _check(field: Field, make: Callable[[], SamplingParams]) -> None:
    try:
        make()
    except RequestError as error:
        raise FormError(field, str(error)) from None


def _whole(field: Field, text: str) -> int:
    """A whole number, thousands set apart or not; the field's usual value if it is empty."""
    digits = _plain(text) or _plain(getattr(Form(), field))
    if not re.fullmatch(r"[+-]?\d+", digits):
        raise FormError(field, f"{field} is {text.strip()!r}; it must be a whole number.")
    if len(digits) > len(str(MAX_WHOLE)) + 1 or abs(int(digits)) > MAX_WHOLE:
        raise FormError(field, f"{field} is too large a number; use at most {len(str(MAX_WHOLE))} digits.")
    return int(digits)


def _number(field: Field, text: str) -> float:
    plain = _plain(text).replace(",", ".") or getattr(Form(), field)
    try:
        return float(plain)
    except ValueError:
        raise FormError(field, f"{field} is {text.strip()!r}; it must be a number, such as 0.7.") from None


def _plain(text: str) -> str:
    """Without what people write into numbers: spaces, low lines, commas between thousands, a typographic minus."""
    text = re.sub(r"[\s_]", "", text).replace("−", "-")
    return text.replace(",", "") if re.fullmatch(r"[+-]?\d{1,3}(,\d{3})+", text) else text


class PromptBox(TextArea):
    """Holds only what can be shown: what stands in it is what is sent, so nothing is hidden from its writer."""

    def edit(self, edit: Edit) -> EditResult:
        return super().edit(replace(edit, text=shown_text(edit.text)))


def shown_text(text: str) -> str:
    """Text with plain line ends, and a visible sign for each character that has no picture; tabs stay."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    return "\t".join(printable(piece, newlines=True) for piece in lines.split("\t"))


class PromptScreen(ModalScreen[Filled]):
    """Gives back what stands in it, to be sent or to be kept for the next time."""

    BINDINGS: ClassVar[list[BindingType]] = [
        # Every terminal sends ctrl+s (Textual switches off the flow control that it once meant); for ctrl+enter, most
        # send the same as for Enter. The button needs neither.
        Binding("ctrl+s,ctrl+enter", "send", "send"),
        Binding("escape", "close", "close"),
    ]
    AUTO_FOCUS = "PromptBox"

    def __init__(self, last: Filled) -> None:
        super().__init__()
        self._last = last

    def compose(self) -> ComposeResult:
        form = self._last.form
        with Vertical(id="prompt") as frame:
            frame.border_title = "Your own prompt"
            yield PromptBox(form.text, id="text", compact=True, highlight_cursor_line=False)
            with Horizontal(id="fields"):
                for name in HINTS:
                    yield Label(name)
                    yield Input(getattr(form, name), id=name, compact=True, max_length=30, restrict=r"[ -~−]*")
            yield Static(id="note", markup=False)
            with Horizontal(id="ways"):
                yield Button("Send", id="send", compact=True)
                yield Static("ctrl+s sends · tab next · esc keeps the text", markup=False)

    def take(self, key: Key) -> None:
        """Write what was typed when the box did not have the focus yet."""
        box = self.query_one(PromptBox)
        if self.focused in (None, box) and (key.is_printable or key.key == "enter"):
            written = "\n" if key.key == "enter" else key.character or ""
            box.replace(written, *box.selection, maintain_selection_offset=False)

    def on_mount(self) -> None:
        box = self.query_one(PromptBox)
        if self._last.draft:
            box.select_all()  # it has had its turn: whatever is typed takes its place
        else:
            box.move_cursor(box.document.end)
        self._tell()

    @property
    def form(self) -> Form:
        """What stands in the fields now."""
        return Form(self.query_one(PromptBox).text, **{name: self.query_one(f"#{name}", Input).value for name in HINTS})

    @on(Button.Pressed)
    @on(Input.Submitted)
    def action_send(self) -> None:
        form = self.form
        try:
            draft = draft_of(form)
        except FormError as error:
            self.query_one(f"#{error.field}").focus()
            self.call_after_refresh(self._tell, error)  # after the change of focus, which tells something else
        else:
            self.dismiss(Filled(form, draft))

    def action_close(self) -> None:
        self.dismiss(Filled(self.form))

    @on(TextArea.Changed)
    @on(Input.Changed)
    @on(DescendantFocus)
    def _go_on(self) -> None:
        self._tell()

    def _tell(self, error: FormError | None = None) -> None:
        """The line below the fields: what is wrong with one of them, or what the one in hand is for."""
        for widget in self.query(".-wrong"):
            widget.remove_class("-wrong")
        note = self.query_one("#note", Static)
        if error:
            note.add_class("-wrong")
            self.query_one(f"#{error.field}").add_class("-wrong")
            note.update(f"✗ {printable(str(error))}")
        elif self.focused and self.focused.id in HINTS:
            note.update(f"{self.focused.id}: {HINTS[self.focused.id]}")
        else:
            count = len(self.query_one(PromptBox).text)
            note.update(f"{plural(count, 'character')}; a prompt that is too long is refused, not cut")
