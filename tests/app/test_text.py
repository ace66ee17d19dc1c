"""Text from models and users can style nothing, move nothing, and takes the cells that it says it takes."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from app.text import HIDDEN, fit, printable, wrap
from tests.app.support import HOSTILE, HOSTILE_SHOWN, repeatable

UNSAFE = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
EXAMPLES = {
    "markup": "[bold red]x[/]",
    "escape": "\x1b[31mred",
    "8-bit escape": "\x9b31mred",
    "osc": "\x1b]52;c;AAAA\x07",
    "bidi override": "abc\u202edef",
    "replacement": "a\ufffdb",
    "tab": "a\tb",
    "carriage return": "one\rtwo",
    "newlines": "one\ntwo\r\n\nthree\n",
    "line separators": "a\u2028b\u2029c\x85d",
    "vs16": "❤\ufe0f sun ☀\ufe0f",
    "zwj": "👩\u200d💻 👨\u200d👩\u200d👧\u200d👦",
    "flags": "🇩🇪🇫🇷 🇩",
    "skin tones": "👍🏽👋🏿",
    "keycap": "1\ufe0f\u20e3",
    "tag flag": "🏴\U000e0067\U000e0062\U000e007f",
    "wide": "漢字かな交じり文 한국어",
    "half width": "ｱｲｳ",
    "lone combining": "\u0301",
    "combining": "e\u0301 a\u0308\u0308 \u0300x",
    "combining behind a joiner": "e\u200d\u0301",
    "combining behind a region": "🇪\u0301",
    "hangul jamo": "\u1112\u1161\u11ab",
    "arabic": "مرحبا",
    "devanagari": "नमस्ते",
    "thai": "สวัสดี",
    "zero width": "a\u200bb\u2060c\ufeffd",
    "private": "\ue000\U000f0000",
    "surrogate": "a\ud800b",
    "unassigned": "\u0378\U000e0fff",
    "nul": "a\x00b",
}
examples = pytest.mark.parametrize("text", EXAMPLES.values(), ids=EXAMPLES.keys())

# Any character at all, and, more often than chance would bring them, those that need care, close to each other.
awkward = st.sampled_from(sorted(set("".join(EXAMPLES.values())) | set(BIDI)))
touchy = st.sampled_from("e\u0301\u200d\ufe0f🇪👍🏽漢 ")
texts = st.one_of(
    st.lists(st.one_of(awkward, st.characters(codec=None), st.sampled_from("ab  ")), max_size=40).map("".join),
    st.lists(touchy, max_size=12).map("".join),
)


def assert_safe(shown: str, allowed: str = "") -> None:
    for character in shown:
        assert character in allowed or unicodedata.category(character) not in UNSAFE, f"{character!r} in {shown!r}"
    assert "\x1b" not in shown
    assert not set(BIDI) & set(shown)


def visible(text: str) -> str:
    """What must not get lost: all but spaces and line ends."""
    return "".join(printable(text, newlines=True).split())


@given(texts)
@repeatable
def test_printable_lets_nothing_through_that_could_act(text: str) -> None:
    assert_safe(printable(text))
    assert_safe(printable(text, newlines=True), "\n")


@given(texts)
@repeatable
def test_printable_is_idempotent(text: str) -> None:
    once = printable(text)
    assert printable(once) == once


@given(st.text(st.characters(codec="ascii", exclude_categories=["Cc"])))
@repeatable
def test_printable_leaves_plain_text_alone(text: str) -> None:
    assert printable(text) == text


@given(texts, st.integers(0, 60))
@repeatable
def test_fit_gives_exactly_the_width(text: str, width: int) -> None:
    line = fit(text, width)
    assert cell_len(line) == width
    assert_safe(line)


@given(texts, st.integers(2, 60))
@repeatable
def test_wrap_keeps_to_the_width_and_loses_nothing(text: str, width: int) -> None:
    lines = wrap(text, width)
    for line in lines:
        assert cell_len(line) <= width
        assert_safe(line)
    assert "".join("".join(lines).split()) == visible(text)


@examples
def test_examples_are_safe_and_measured(text: str) -> None:
    assert_safe(printable(text))
    assert printable(printable(text)) == printable(text)
    for width in range(12):
        assert cell_len(fit(text, width)) == width
    for width in range(2, 12):
        assert max(cell_len(line) for line in wrap(text, width)) <= width
        assert "".join("".join(wrap(text, width)).split()) == visible(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("plain text", "plain text"),
        ("[bold red]x[/]", "[bold red]x[/]"),
        ("\x1b[31m", "␛[31m"),
        ("\x7f\x00", "␡␀"),
        ("\x9b31m", f"{HIDDEN}31m"),
        ("\u202e", HIDDEN),
        ("\ufffd", "\ufffd"),
        ("a\tb", "a    b"),
        ("a\nb", "a␊b"),
        ("❤\ufe0f", "❤"),
        ("👍🏽", "👍"),
        ("👩\u200d💻", "👩💻"),
        ("🇩🇪", "DE"),
        ("e\u0301", "é"),
        ("漢字", "漢字"),
        (HOSTILE, HOSTILE_SHOWN),
    ],
)
def test_printable_shows(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_newlines_stay_if_asked_for() -> None:
    assert printable("a\nb\rc", newlines=True) == "a\nb␍c"


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        ("", 10, [""]),
        ("one two three", 7, ["one two", "three"]),
        ("one two", 3, ["one", "two"]),
        ("abcdefgh", 3, ["abc", "def", "gh"]),
        ("a\n\nb", 5, ["a", "", "b"]),
        ("漢字漢字", 5, ["漢字", "漢字"]),
        ("漢字", 3, ["漢", "字"]),
    ],
)
def test_wrap_breaks(text: str, width: int, lines: list[str]) -> None:
    assert wrap(text, width) == lines


def test_wrap_keeps_the_indentation_of_code() -> None:
    assert wrap("def f():\n    return 1", 20) == ["def f():", "    return 1"]


def test_fit_cuts_a_wide_character_in_two_cleanly() -> None:
    assert fit("漢字", 3) == "漢 "


@pytest.mark.parametrize("text", ["\u3164", "\u1160", "\uffa0", "\ud7b0", "a\u3164b"])
def test_letters_without_a_width_are_shown_as_signs(text: str) -> None:
    """Terminals do not agree on how wide they are: one of them would move the rest of its row."""
    assert "·" in printable(text) and all(cell_len(character) for character in printable(text))


def test_marks_do_not_pile_up() -> None:
    assert len(printable("b" + "\u0300" * 40)) <= 5
