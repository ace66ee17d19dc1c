"""What a person does with requests: an own prompt, the detail of one, only its blocks, and long queues."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from textual._compositor import LayoutUpdate
from textual.events import MouseScrollDown, MouseScrollUp, Paste
from textual.widgets import Input

from app import protocol
from app.inject import Draft
from app.keys import rebound
from app.palette import BACKGROUND, DECODE, KIND_COLORS, KIND_GLYPHS, PREEMPTED_GLYPH, owner_cell, owner_color, style
from app.panels.blocks import BlocksPanel
from app.panels.life import STRETCH, Life
from app.panels.output import OutputPanel
from app.panels.panel import Part, to_strip
from app.panels.request import RequestPanel
from app.panels.requests import RequestsPanel
from app.panels.transcript import Transcript
from app.protocol import AddRequest, Failed, Refused, Stepped
from app.screens.prompt import Form, FormError, PromptBox, PromptScreen, draft_of
from app.screens.request import RequestScreen
from app.session import Pending
from app.view import MAX_FINISHED, EngineView, RequestView
from engine.config import EngineConfig
from engine.core import LLMEngine
from engine.request import RequestError, SamplingParams
from engine.trace import MAX_WAITING_IDS
from tests.app.support import (
    HOSTILE,
    HOSTILE_SHOWN,
    READY,
    SCENARIOS,
    ScriptedEngine,
    Stand,
    dashboard,
    drawn,
    panel,
    repeatable,
    saying,
    scenario,
    scenario_view,
    sentence,
    stepped,
    text_of,
    view_of,
)
from tests.app.test_terminal import Terminal
from tests.app.test_worker import wait_for
from tests.engine.support import FakeClock, ScriptedRunner, byte_tokenizer, config

SIZES = [(60, 16), (80, 24), (120, 40), (200, 50)]
KILLED = Failed("the engine's process was killed by signal 9 (SIGKILL).")
CONTROL = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


def no_control(text: str) -> bool:
    return not any(unicodedata.category(character) in CONTROL for character in text.replace("\n", ""))


def screen(stand: Stand) -> list[str]:
    """All that can be seen, of the screens behind the present one too."""
    stand.app.screen.refresh()
    update = stand.app.screen._compositor.render_update(full=True, screen_stack=stand.app._background_screens)
    assert isinstance(update, LayoutUpdate)
    return ["".join(strip.text for strip in line) for line in update.strips]


def sent_prompts(stand: Stand) -> list[AddRequest]:
    return [command for command in stand.source.take_sent() if isinstance(command, AddRequest)]


# An own prompt.


def prompt_is_open(stand: Stand) -> bool:
    return isinstance(stand.app.screen, PromptScreen)


def box(stand: Stand) -> PromptBox:
    return stand.app.screen.query_one(PromptBox)


async def paste(stand: Stand, text: str) -> None:
    stand.app.post_message(Paste(text))
    await stand.settle()


async def fill(stand: Stand, name: str, value: str) -> None:
    """Type into a field what is to stand in it."""
    field = stand.app.screen.query_one(f"#{name}", Input)
    field.focus()
    field.value = ""
    await stand.settle()
    await paste(stand, value)


async def test_an_own_prompt_is_sent_as_it_stands() -> None:
    async with dashboard((120, 40), READY) as stand:
        await stand.press("i")
        await stand.press(*"Why", "enter", *"sxlq", "ctrl+s")
        assert not prompt_is_open(stand)
        (command,) = stand.source.take_sent()
        assert command == AddRequest("1", "Why\nsxlq", "own", SamplingParams(max_tokens=64), None, 0)
        assert any("own" in line and "…" in line for line in stand.lines())


async def test_what_is_typed_before_the_box_is_there_is_not_lost() -> None:
    async with dashboard((120, 40), READY) as stand:
        await stand.press("i", *"slx", "enter", "q")
        assert box(stand).text == "slx\nq" and stand.source.take_sent() == []


async def test_its_fields_are_sent() -> None:
    async with dashboard((120, 40), READY) as stand:
        await stand.press("i", *"Why")
        await fill(stand, "max_tokens", "1,200")
        await fill(stand, "temperature", "0,7")
        await fill(stand, "priority", "−3")
        await stand.press("ctrl+s")
        (command,) = sent_prompts(stand)
        assert command.params == SamplingParams(max_tokens=1200, temperature=0.7)
        assert command.priority == -3


@pytest.mark.parametrize(
    ("field", "written", "value"),
    [
        ("max_tokens", " 64 ", 64),
        ("max_tokens", "1_000", 1000),
        ("max_tokens", "12 000", 12_000),
        ("max_tokens", "1,234,567", 1_234_567),
        ("max_tokens", "+5", 5),
        ("max_tokens", "", 64),
        ("priority", "-10", -10),
        ("priority", "", 0),
        ("temperature", ".5", 0.5),
        ("temperature", "1,5", 1.5),
        ("temperature", "2", 2.0),
        ("temperature", " ", 0.0),
    ],
)
def test_numbers_are_read_kindly(field: str, written: str, value: float) -> None:
    draft = draft_of(Form("Why?", **{field: written}))
    read = {"max_tokens": draft.params.max_tokens, "temperature": draft.params.temperature, "priority": draft.priority}
    assert read[field] == value
    assert draft.label == "own" and draft.whole


MISTAKES = [
    ("text", "", "empty"),
    ("text", " \n ", "empty"),
    ("text", "a \ud800 b", "UTF-8"),
    ("max_tokens", "0", "at least 1"),
    ("max_tokens", "-4", "at least 1"),
    ("max_tokens", "many", "whole number"),
    ("max_tokens", "1.5", "whole number"),
    ("max_tokens", "1,5", "whole number"),
    ("max_tokens", "9" * 20, "too large"),
    ("temperature", "-1", "0 (greedy) or more"),
    ("temperature", "nan", "0 (greedy) or more"),
    ("temperature", "inf", "0 (greedy) or more"),
    ("temperature", "warm", "must be a number"),
    ("priority", "high", "whole number"),
    ("priority", "-" + "9" * 5000, "too large"),
]


@pytest.mark.parametrize(("field", "written", "reason"), MISTAKES)
def test_a_wrong_field_is_told_in_a_sentence(field: str, written: str, reason: str) -> None:
    with pytest.raises(FormError, match=r"^[\w ]+ is .*\.$|^The prompt is .*\.?$") as caught:
        draft_of(Form(**{"text": "Why?", field: written}))
    assert caught.value.field == field and reason in str(caught.value)


@pytest.mark.parametrize(
    ("field", "written", "reason"), [("max_tokens", "0", "at least 1"), ("temperature", "warm", "must be a number")]
)
async def test_a_mistake_is_shown_at_its_field(field: str, written: str, reason: str) -> None:
    async with dashboard((120, 40), READY) as stand:
        await stand.press("i", *"Why")
        await fill(stand, field, written)
        await stand.press("ctrl+s")
        assert prompt_is_open(stand) and stand.source.take_sent() == []
        assert stand.app.focused is not None and stand.app.focused.id == field
        for size in SIZES:
            await stand.resize(*size)
            assert f"✗ {field} is" in stand.text() and reason in stand.text(), size
        await stand.press("1")
        assert "✗" not in stand.text(), "it is being mended"
        await fill(stand, field, "1")
        await stand.press("ctrl+s")
        assert not prompt_is_open(stand) and len(sent_prompts(stand)) == 1


async def test_an_empty_prompt_is_not_sent() -> None:
    async with dashboard((80, 24), READY) as stand:
        await stand.press("i", "ctrl+s")
        assert prompt_is_open(stand) and "✗ The prompt is empty" in stand.text()
        assert stand.app.focused is box(stand)


async def test_escape_keeps_all_that_was_written() -> None:
    async with dashboard((80, 24), READY) as stand:
        await stand.press("i", *"Half a")
        await fill(stand, "max_tokens", "7x")
        await stand.press("escape")
        assert not prompt_is_open(stand) and stand.source.take_sent() == []
        await stand.press("i", *" thought")
        assert box(stand).text == "Half a thought"
        await fill(stand, "max_tokens", "7")
        await stand.press("ctrl+s")
        (command,) = sent_prompts(stand)
        assert command.prompt == "Half a thought" and command.params.max_tokens == 7


async def test_what_was_sent_comes_back_to_be_changed_or_written_over() -> None:
    async with dashboard((80, 24), READY) as stand:
        await stand.press("i", *"First")
        await fill(stand, "max_tokens", "9")
        await stand.press("ctrl+s")
        await stand.press("i")
        assert box(stand).text == "First" == box(stand).selected_text
        await stand.press(*"Next", "ctrl+s")
        assert [(c.prompt, c.params.max_tokens) for c in sent_prompts(stand)] == [("First", 9), ("Next", 9)]


async def test_again_sends_the_own_prompt_again() -> None:
    async with dashboard((80, 24), READY) as stand:
        await stand.press("s", "i", *"Why", "ctrl+s")
        await stand.press("a")
        _, first, second = sent_prompts(stand)
        assert (first.prompt, first.label, first.max_prompt_tokens) == ("Why", "own", None)
        assert (second.prompt, second.label, second.max_prompt_tokens) == ("Why", "own", None)


async def test_the_button_and_enter_in_a_field_send_too() -> None:
    async with dashboard((80, 24), READY) as stand:
        await stand.press("i", *"One")
        for key in ("tab", "tab", "tab", "tab", "enter"):
            await stand.press(key)
        await stand.press("i", *"Two")
        for key in ("tab", "enter"):
            await stand.press(key)
        await stand.press("i", *"Three")
        await stand.pilot.click("#send")
        await stand.settle()
        assert [command.prompt for command in sent_prompts(stand)] == ["One", "Two", "Three"]


async def test_a_huge_prompt_is_sent_uncut() -> None:
    text = "\n".join(sentence(300 + number % 7) for number in range(1000))
    async with dashboard((80, 24), READY) as stand:
        await stand.press("i")
        await paste(stand, text.replace("\n", "\r\n"))
        assert f"{len(text):,} characters" in stand.text()
        await stand.press("ctrl+s")
        (command,) = sent_prompts(stand)
        assert command.prompt == text and command.max_prompt_tokens is None


async def test_the_engines_refusal_of_a_huge_prompt_is_shown() -> None:
    engine = LLMEngine(EngineConfig(), ScriptedRunner(16), byte_tokenizer(), clock=FakeClock())
    with pytest.raises(RequestError) as refusal:
        engine.add_request(sentence(5000), truncate_prompt_tokens=None)
    async with dashboard((120, 40), READY, toasts=True) as stand:
        await stand.press("i", *"Why", "ctrl+s")
        await stand.feed(Refused("1", str(refusal.value)))
        await stand.until(lambda: "5000 tokens" in stand.text())
        assert not any(" … " in line for line in stand.lines())


async def test_what_stands_in_the_box_is_what_is_sent() -> None:
    """Nothing in a pasted text can hide, style the screen or move the cursor."""
    async with dashboard((80, 24), READY) as stand:
        await stand.press("i")
        await paste(stand, f"one {HOSTILE}\r\ntwo\rthree\tfour")
        shown = f"one {HOSTILE_SHOWN}\ntwo\nthree\tfour"
        assert box(stand).text == shown
        assert HOSTILE_SHOWN in stand.text()
        assert no_control(stand.text())
        await stand.press("ctrl+s")
        (command,) = sent_prompts(stand)
        assert command.prompt == shown


async def test_a_dead_engine_loses_no_prompt() -> None:
    async with dashboard((80, 24), READY, KILLED) as stand:
        await stand.press("i", *"Why", "ctrl+s")
        assert sent_prompts(stand) == []
        await stand.press("r")
        await stand.press("i")
        assert box(stand).text == "Why" and box(stand).selected_text == ""
        await stand.press("ctrl+s")
        assert [command.prompt for command in sent_prompts(stand)] == ["Why"]


async def test_all_of_the_box_is_on_the_screen() -> None:
    words = ("Your own prompt", "Why", "max_tokens", "temperature", "priority", "Send", "ctrl+s", "esc keeps")
    async with dashboard((120, 40), *stepped("busy")) as stand:
        await stand.press("i", *"Why")
        for size in SIZES:
            await stand.resize(*size)
            for word in words:
                assert word in stand.text(), (size, word)
            for line in stand.lines():
                assert cell_len(line) == size[0], (size, line)


# The detail of a request.


def detail_is_open(stand: Stand) -> bool:
    return isinstance(stand.app.screen, RequestScreen)


def detail(stand: Stand) -> str:
    """What stands in the detail."""
    region = stand.app.screen.query_one(RequestPanel).region
    return "\n".join(line[region.x : region.right] for line in stand.lines()[region.y : region.bottom])


def made(view: EngineView, request_id: str | None) -> RequestPanel:
    """The detail's panel outside of any app."""
    it: RequestPanel = panel(RequestPanel, view)
    it.newest = view
    it.look_at(request_id)
    return it


def figures_of(view: EngineView, request_id: str, width: int = 90, height: int = 60) -> str:
    return "\n".join(drawn(made(view, request_id).draw(width, height), height))


async def test_enter_shows_the_selected_request() -> None:
    async with dashboard((120, 40), *stepped("busy")) as stand:
        await stand.press("j", "enter")
        assert detail_is_open(stand)
        request = stand.app.session.view.requests["2"]
        for size in SIZES:
            await stand.resize(*size)
            text = detail(stand)
            assert text.startswith(f" {request.letter} ") and "decode" in text.splitlines()[0], size
            for fact in ("queued", "TTFT", "ITL", "tokens", "KV blocks", request.text[-8:]):
                assert fact in text, (size, fact)
            assert "nanoviz" in screen(stand)[0] and "esc close" in screen(stand)[-1], size
        await stand.press("escape")
        assert not detail_is_open(stand) and "Requests" in stand.text()
        await stand.press("enter", "enter")
        assert not detail_is_open(stand), "the same key closes it"


async def test_it_leaves_the_header_and_the_timeline_in_sight() -> None:
    async with dashboard((120, 40), *stepped("busy")) as stand:
        before = screen(stand)
        await stand.press("enter")
        region = stand.app.screen.query_one(RequestPanel).region
        timeline = stand.app.query_one("#timeline").region
        assert screen(stand)[0] == before[0]
        assert screen(stand)[timeline.y : timeline.bottom] == before[timeline.y : timeline.bottom]
        assert (region.y, region.bottom) == (1, timeline.y)
        await stand.feed(KILLED)
        assert "SIGKILL" in "\n".join(screen(stand)) and "r starts it again" in "\n".join(screen(stand))


async def test_it_follows_the_engine() -> None:
    traces = scenario("busy")
    async with dashboard((120, 40), READY, *map(Stepped, traces[:5])) as stand:
        await stand.press("enter")
        before = detail(stand)
        await stand.play(traces[5:12])
        request = stand.app.session.view.requests["1"]
        assert detail(stand) != before
        assert f"+ {request.num_output_tokens} of" in detail(stand) and request.text.strip() in detail(stand)


async def test_a_request_stays_on_the_screen_when_it_ends() -> None:
    """And is said to be forgotten when so many have ended after it that it is."""
    stage = ScriptedEngine(config(blocks=300, bs=4, budget=400, seqs=8, length=40))
    stage.add(max_tokens=3)
    stage.add(max_tokens=20)
    async with dashboard((120, 40), READY, Stepped(stage.step())) as stand:
        await stand.press("enter")
        stage.step(6)
        await stand.play(stage.traces[1:])
        assert stand.app.session.view.requests["1"].finished is not None
        assert detail(stand).startswith(" a ") and "ended: length" in detail(stand)
        assert "done: 3 tokens" in detail(stand)
        shown = len(stage.traces)
        for _ in range(MAX_FINISHED + 5):
            stage.add([1, 2], 2)
        stage.run_to_end()
        await stand.play(stage.traces[shown:])
        assert "it has been forgotten" in detail(stand)
        await stand.press("x")
        assert stand.source.take_sent() == [], "there is nothing to abort"
        await stand.press("escape")
        assert stand.app.selection.request_id in stand.app.session.view.requests


async def test_time_travel_shows_it_as_it_was() -> None:
    traces = scenario("preempting")
    async with dashboard((120, 40), *stepped("preempting")) as stand:
        victim = next(trace.preemptions[0].request_id for trace in traces if trace.preemptions)
        while stand.app.selection.request_id != victim:
            await stand.press("j")
        await stand.press("enter")
        newest = detail(stand)
        for key, step in (("left", traces[-1].step - 1), ("left_square_bracket", None), ("home", 0)):
            await stand.press(key)
            view = stand.app.cursor.view
            assert view.trace is not None and step in (None, view.trace.step)
            panel_then = stand.app.screen.query_one(RequestPanel)
            then = made(view_of(traces[: view.trace.step + 1]), victim)
            then.notes = panel_then.notes
            size = panel_then.size
            assert [line.rstrip() for line in detail(stand).splitlines()] == [
                line.rstrip() for line in drawn(_padded(then.draw(*size), size.height), size.height)
            ]
        await stand.press("end")
        assert detail(stand) == newest


def _padded(lines: Sequence[Sequence[Part]], height: int) -> list[Sequence[Part]]:
    return [*lines, *[[]] * (height - len(lines))]


async def test_before_its_arrival_it_says_that_it_does_not_exist() -> None:
    async with dashboard((80, 24), *stepped("busy")) as stand:
        arrived = next(trace.step for trace in scenario("busy") if any(a.request_id == "8" for a in trace.arrivals))
        assert arrived > 0
        while stand.app.selection.request_id != "8":
            await stand.press("j")
        await stand.press("enter", "home")
        assert f"In step 0 there is no h yet: it arrives in step {arrived}." in " ".join(detail(stand).split())
        await stand.press("end")
        assert detail(stand).startswith(" h ")


async def test_a_request_that_no_step_has_seen_yet() -> None:
    async with dashboard((80, 24), READY) as stand:
        await stand.press("enter")
        assert "There is no request yet" in detail(stand)
        await stand.press("s")
        assert "short: sent" in detail(stand)
        stage = ScriptedEngine(EngineConfig())
        stage.add()
        await stand.play([stage.step()])
        assert detail(stand).startswith(" a ")


async def test_arrows_go_to_other_requests() -> None:
    async with dashboard((80, 24), *stepped("busy")) as stand:
        await stand.press("enter")
        seen = detail(stand)[1]
        for key in ("down", "j", "down", "up"):
            await stand.press(key)
            seen += detail(stand)[1]
        assert seen == "abcdc"
        await stand.press("escape")
        selection = stand.app.selection
        assert selection.request_id == "3" and not selection.following, "the one that was looked at last"


@pytest.mark.parametrize("keep", [False, True])
async def test_follow_keeps_the_selection_on_it(keep: bool) -> None:
    stage = ScriptedEngine(config(blocks=40, bs=8, budget=64, seqs=4, length=128))
    stage.add(max_tokens=3)
    stage.add(max_tokens=30)
    async with dashboard((120, 40), READY, Stepped(stage.step())) as stand:
        await stand.press("enter")
        assert "followed" not in detail(stand)
        if keep:
            await stand.press("f")
            assert "followed" in detail(stand)
        await stand.press("escape")
        stage.step(6)
        await stand.play(stage.traces[1:])
        assert stand.app.session.view.requests["1"].finished is not None
        assert stand.app.selection.request_id == ("1" if keep else "2")


async def test_abort_and_only_work_inside() -> None:
    async with dashboard((120, 40), *stepped("busy")) as stand:
        await stand.press("j", "enter", "x", "o")
        assert stand.source.take_sent() == [protocol.Abort("2")]
        assert "aborting" in detail(stand) and "only its blocks" in detail(stand).splitlines()[0]
        await stand.press("escape")
        assert stand.app.query_one(BlocksPanel).only == "2"


async def test_other_screens_open_over_it_and_leave_it_there() -> None:
    async with dashboard((120, 40), *stepped("busy")) as stand:
        await stand.press("enter")
        for key in ("question_mark", "i", "ctrl+p"):
            await stand.press(key)
            assert not detail_is_open(stand), key
            await stand.press("escape")
            assert detail_is_open(stand), key


async def test_a_restart_forgets_it() -> None:
    async with dashboard((120, 40), *stepped("busy"), KILLED) as stand:
        await stand.press("enter", "r")
        assert "There is no request yet" in detail(stand)


async def test_it_hides_where_there_is_no_room() -> None:
    async with dashboard((120, 40), *stepped("busy")) as stand:
        await stand.press("enter")
        before = screen(stand)
        await stand.resize(50, 12)
        lines = [line.strip() for line in screen(stand) if line.strip()]
        assert len(lines) == 1 and "nanoviz needs" in lines[0]
        await stand.resize(120, 40)
        assert screen(stand) == before


async def test_clicks_select_and_then_show() -> None:
    async with dashboard((120, 40), *stepped("busy")) as stand:
        await stand.pilot.click("#requests", offset=(10, 3))
        await stand.settle()
        assert stand.app.selection.request_id == "3" and not detail_is_open(stand)
        await stand.pilot.click("#requests", offset=(40, 3))
        await stand.settle()
        assert detail_is_open(stand) and detail(stand).startswith(" c ")
        await stand.press("escape")
        for y in (0, 20):
            await stand.pilot.click("#requests", offset=(10, y))
            await stand.settle()
            assert stand.app.selection.request_id == "3" and not detail_is_open(stand), "no request is there"


async def test_a_click_on_its_life_goes_to_that_step() -> None:
    async with dashboard((120, 40), *stepped("busy")) as stand:
        await stand.press("enter")
        request, step = stand.app.session.view.requests["1"], scenario("busy")[-1].step
        bar = Life(request, step, stand.app.screen.query_one(RequestPanel).size.width)
        assert bar.step_at(40) == 40 * (step + 1) // sum(len(text) for text, _ in bar.lines()[0])
        await stand.pilot.click("#request", offset=(40, 1))
        await stand.settle()
        assert stand.app.cursor.step == bar.step_at(40)
        assert bar.step_at(10_000) is None


async def test_its_text_scrolls() -> None:
    stage = ScriptedEngine(config(blocks=200, bs=16, budget=512, seqs=4, length=1000), saying("word after word "))
    stage.add("\n".join(f"line {number}" for number in range(30)), 300)
    stage.step(250)
    async with dashboard((80, 24), READY, *map(Stepped, stage.traces)) as stand:
        await stand.press("enter")
        newest = detail(stand)
        assert "above" in newest and "line 0" not in newest
        for _ in range(9):
            await stand.press("pageup")
        assert "line 0" in detail(stand) and "below" in detail(stand)
        top = detail(stand)
        stage.step()
        await stand.play(stage.traces[-1:])
        assert [line for line in top.splitlines() if "line " in line] == [
            line for line in detail(stand).splitlines() if "line " in line
        ], "it stays where it was scrolled to"
        for _ in range(9):
            await stand.press("pagedown")
        assert "below" not in detail(stand)
        stage.step(40)
        await stand.play(stage.traces[-40:])
        assert "below" not in detail(stand), "at the end it goes along again"
        text = stand.app.screen.query_one(RequestPanel)
        text.post_message(wheel(MouseScrollUp))
        await stand.settle()
        assert "3 below" in detail(stand)
        text.post_message(wheel(MouseScrollDown))
        await stand.settle()
        assert "below" not in detail(stand)


def wheel(kind: type[Any]) -> Any:
    """A notch of the mouse wheel over a widget."""
    return kind(None, 5, 5, 0, 0, 0, False, False, False)


# What the detail says.


def test_numbers_of_a_preempted_request() -> None:
    view = scenario_view("preempting")
    preempted = [request for request in view.requests.values() if request.preempted_at]
    assert preempted
    for request in preempted:
        text = figures_of(view, request.request_id)
        for event in view.events:
            if event.kind == "preempted" and event.request_id == request.request_id:
                assert event.preemption is not None
                asker = view.letter(event.preemption.for_request_id)
                assert f"step {event.step} for {asker} up to {event.preemption.num_lost_tokens} to redo" in text
        assert f"computed {request.num_work_tokens}" in text
        if request.num_recomputed_tokens:
            assert f"{request.num_recomputed_tokens} of them again" in text and "▒" in text


def test_what_is_counted_for_each_request_adds_up() -> None:
    """The waste is what the whole engine recomputed; the queue time is the engine's."""
    for name in SCENARIOS:
        view = EngineView()
        recomputed: dict[str, int] = {}
        for trace in scenario(name):
            view.apply(trace)
            for item in trace.scheduled:
                recomputed[item.request_id] = recomputed.get(item.request_id, 0) + item.num_recomputed_tokens
            for request_id, count in recomputed.items():
                if request_id in view.requests:
                    assert view.requests[request_id].num_recomputed_tokens == count
            for finished in trace.finished:
                assert view.requests[finished.request_id].queue_time == finished.queue_time


def test_latencies() -> None:
    view = scenario_view("busy")
    request = view.requests["1"]
    text = figures_of(view, "1")
    assert request.ttft is not None and request.itl
    assert f"{request.ttft * 1000:.0f} ms" in text
    for name, value in (("last", request.itl[-1]), ("max", max(request.itl))):
        assert f"{name} {value * 1000:.0f} ms" in text
    waiting = figures_of(scenario_view("seats"), "4")
    assert "no token yet" in waiting and "no gap yet" in waiting


def test_the_sparkline_shows_the_gap_of_a_preemption() -> None:
    view = scenario_view("preempting")
    request = max(view.requests.values(), key=lambda request: max(request.itl, default=0))
    line = next(line for line in figures_of(view, request.request_id, width=120).splitlines() if "▁" in line)
    sparks = "".join(character for character in line if character in "▁▂▃▄▅▆▇█")
    assert len(sparks) == len(request.itl)
    assert sparks.index("█") == request.itl.index(max(request.itl))


@pytest.mark.parametrize("name", ["seats", "budget", "blocks", "chunking"])
def test_a_waiting_request_says_what_it_waits_for(name: str) -> None:
    view = scenario_view(name)
    trace = view.trace
    assert trace is not None and trace.blocked is not None
    head = figures_of(view, trace.blocked.request_id)
    row = next(line for line in head.splitlines() if line.startswith("waits"))
    assert str(trace.blocked.needed or trace.config.max_num_seqs) in row or "budget" in row
    if len(trace.waiting) > 1:
        assert f"number 2 of {trace.num_waiting}" in figures_of(view, trace.waiting[1])


def test_the_block_table_is_in_the_order_of_the_tokens() -> None:
    view = scenario_view("sharing")
    for request_id, table in view.tables.items():
        lines = figures_of(view, request_id).splitlines()
        start = next(index for index, line in enumerate(lines) if line.startswith("KV blocks"))
        assert f"KV blocks {len(table)} " in lines[start]
        words = lines[start + 1].split()
        assert [int(word) for word in words if word.isdigit()] == table
        shared = [block for block in table if len(view.holders[block]) > 1]
        assert f"{len(shared)} shared" in lines[start] and lines[start + 1].count("3") >= len(shared)


def test_of_a_long_table_both_ends_are_shown() -> None:
    stage = ScriptedEngine(EngineConfig(num_blocks=200, max_model_len=3000, max_num_batched_tokens=3000))
    stage.add(sentence(2500), 20)
    stage.step(3)
    view = view_of(stage.traces)
    text = figures_of(view, "1", width=60, height=26)
    table = view.tables["1"]
    numbers = [int(word) for word in text[text.index("KV blocks") :].split() if word.isdigit()]
    (left_out,) = [int(word[1:]) for word in text.split() if word.startswith("+") and word[1:].isdigit()]
    shown = [number for number in numbers[1:] if number in table]
    assert table[0] in shown and table[-1] in shown
    assert f"KV blocks {len(table)}" in text and left_out < len(table)


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_cell_of_a_short_life_is_what_the_request_did(name: str) -> None:
    view = EngineView()
    did: dict[str, dict[int, str]] = {}
    for trace in scenario(name)[:40]:
        view.apply(trace)
        for arrival in trace.arrivals:
            did[arrival.request_id] = {}
        for request_id in (*trace.waiting, *(preemption.request_id for preemption in trace.preemptions)):
            did[request_id][trace.step] = KIND_GLYPHS["waiting"]
        for item in trace.scheduled:
            did[item.request_id][trace.step] = KIND_GLYPHS[item.kind]
        for preemption in trace.preemptions:
            did[preemption.request_id][trace.step] = PREEMPTED_GLYPH
    if view.trace is None:
        return
    for request_id in list(did)[:20]:
        request = view.requests[request_id]
        life = Life(request, view.trace.step, 400)
        bar, steps = (text_of(line) for line in life.lines())
        for cell in range(0, len(bar)):
            step = life.step_at(cell)
            assert step is not None
            expected = did[request_id].get(step)
            if bar[cell].isdigit():
                assert expected in (KIND_GLYPHS["prefill"], KIND_GLYPHS["recompute"])
            elif bar[cell] == PREEMPTED_GLYPH or expected == PREEMPTED_GLYPH:
                assert step in request.preempted_at
            else:
                assert bar[cell] == (expected or " "), f"request {request_id}, step {step}"
        assert steps.split()[0] == f"{request.spans[0].first:,}"


def test_chunks_are_numbered() -> None:
    view = scenario_view("busy")
    long = view.requests["8"]
    bar = text_of(Life(long, scenario("busy")[-1].step, 80).lines()[0])
    assert [character for character in bar if character.isdigit()] == ["1", "2", "3", "4"]
    whole = view.requests["1"]
    assert not any(character.isdigit() for character in text_of(Life(whole, 19, 80).lines()[0]))


@given(st.sampled_from([name for name in SCENARIOS if name != "empty"]), st.integers(1, 130), st.integers(0, 11))
@repeatable
def test_a_life_fits(name: str, width: int, index: int) -> None:
    view = scenario_view(name)
    request = list(view.requests.values())[index % len(view.requests)]
    assert view.trace is not None
    life = Life(request, view.trace.step, width)
    bar = text_of(life.lines()[0])
    assert 1 <= len(bar) <= width
    last = request.spans[-1].last if request.finished else view.trace.step
    num_steps = max(1, (last or 0) - request.spans[0].first + 1)
    assert len(bar) == (num_steps * min(STRETCH, width // num_steps) or width)
    for step in request.preempted_at:
        assert PREEMPTED_GLYPH in {bar[cell] for cell in range(len(bar)) if life.step_at(cell) in (step, step - 1)}
    assert life.step_at(0) == request.spans[0].first


# Its text.


def lines_of(transcript: Transcript) -> list[list[Part]]:
    return [transcript.line(number) for number in range(transcript.num_lines)]


def marked(transcript: Transcript, color: str) -> str:
    """What is marked in this colour, in one piece."""
    look = style(BACKGROUND, color, bold=True)
    return "".join(text for line in lines_of(transcript) for text, found in line if found == look)


def squeezed(text: str) -> str:
    return "".join(text.split())


def test_the_token_of_this_step_is_marked_and_no_other() -> None:
    stage = ScriptedEngine(EngineConfig(), saying("so\nit went on, day by day.\n\n"))
    stage.add(sentence(20), 60)
    view = EngineView()
    for _ in range(60):
        trace = stage.step()
        view.apply(trace)
        for width in (9, 40):
            marks = marked(Transcript(view.requests["1"], trace.step, width), DECODE)
            assert squeezed(marks) == squeezed(trace.outputs[0].text)
            assert marked(Transcript(view.requests["1"], trace.step + 1, width), DECODE) == ""


def test_a_prefill_is_marked_in_the_prompt_as_far_as_it_goes() -> None:
    stage = ScriptedEngine(config(blocks=40, bs=8, budget=16, seqs=8, length=128))
    prompt = "".join(chr(ord("a") + number % 26) for number in range(70))
    stage.add(prompt, 12)
    view = EngineView()
    seen = ""
    while len(seen) < len(prompt):
        trace = stage.step()
        view.apply(trace)
        transcript = Transcript(view.requests["1"], trace.step, 30)
        now = marked(transcript, KIND_COLORS["prefill"])
        (item,) = trace.scheduled
        assert now == prompt[item.start : item.end], "a byte is a token here, so it is exact"
        seen += now
    assert seen == prompt


def test_a_recompute_is_marked_through_prompt_and_output() -> None:
    traces = scenario("preempting")
    view = EngineView()
    marks = 0
    for trace in traces:
        view.apply(trace)
        for item in trace.scheduled:
            if item.kind == "recompute":
                request = view.requests[item.request_id]
                transcript = Transcript(request, trace.step, 50)
                written = marked(transcript, KIND_COLORS["recompute"])
                assert squeezed(written) == squeezed((request.prompt + request.text)[item.start : item.end])
                marks += 1
    assert marks


@given(st.text("ab \n漢\t\x1b", max_size=120), st.text("ab \n漢", max_size=120), st.integers(3, 40))
@settings(repeatable, max_examples=200)
def test_a_transcript_is_the_whole_text_in_lines_that_fit(prompt: str, said: str, width: int) -> None:
    request = RequestView("1", 0, "", prompt, 9, 9, text=said)
    transcript = Transcript(request, 0, width)
    for line in lines_of(transcript):
        assert cell_len(text_of(line)) <= max(width, 4)
        assert no_control(text_of(line))
    whole = "".join(text_of(line) for line in lines_of(transcript))
    assert squeezed(whole) == "›" + squeezed((prompt + said).replace("\x1b", "␛"))
    assert 0 <= transcript.focus < transcript.num_lines


def test_while_a_prompt_is_computed_the_place_of_work_is_in_sight() -> None:
    stage = ScriptedEngine(EngineConfig(max_num_batched_tokens=64, max_model_len=2000, num_blocks=200))
    stage.add("\n".join(f"line {number}" for number in range(150)), 5)
    view = EngineView()
    while not view.requests or view.requests["1"].is_prefilling:
        view.apply(stage.step())
        lines = made(view, "1").draw(80, 24)
        look = style(BACKGROUND, KIND_COLORS["prefill"], bold=True)
        texts = [text for line in lines[3:] for text, found in line if found == look]
        assert texts, "what is computed now can be seen"


def test_the_output_panel_does_not_break_its_lines_anew_with_each_token() -> None:
    stage = ScriptedEngine(
        config(blocks=200, bs=16, budget=512, seqs=4, length=1000), saying("so it went, day by day. ")
    )
    stage.add(max_tokens=600)
    view, before = EngineView(), [""]
    for _ in range(600):
        view.apply(stage.step())
        it = panel(OutputPanel, view)
        it.selected = "1"
        lines = drawn(it.draw(31, 6), 6)[2:]
        kept = [line.rstrip() for line in lines[:-2]]
        assert "\n".join(kept) in "\n".join(line.rstrip() for line in before) or len(before) < 4
        before = lines


# Any size, any state, any text.


@given(st.sampled_from(SCENARIOS), st.integers(10, 220), st.integers(1, 60), st.integers(0, 12))
@settings(repeatable, max_examples=150)
def test_the_detail_fits_anywhere(name: str, width: int, height: int, selected: int) -> None:
    it = made(scenario_view(name), str(selected) if selected else None)
    it.notes = ("aborting", "followed")
    lines = it.draw(width, height)
    assert lines
    for line in lines:
        assert to_strip(line, width).cell_length == width
        assert no_control(text_of(line))


@pytest.mark.parametrize("size", [(59, 14), (79, 20), (119, 34), (199, 44)])
def test_the_detail_keeps_to_its_size(size: tuple[int, int]) -> None:
    """At sizes that the screen gives: nothing is cut off, and the text has its place."""
    width, height = size
    for view in map(scenario_view, SCENARIOS):
        for request_id in list(view.requests)[:20]:
            lines = made(view, request_id).draw(width, height)
            assert len(lines) <= height
            assert any("Text" in text_of(line) for line in lines)
            for line in lines:
                assert cell_len(text_of(line).rstrip()) <= width, text_of(line)


async def test_hostile_text_in_the_detail() -> None:
    async with dashboard((120, 40), *stepped("hostile")) as stand:
        await stand.press("enter")
        for size in SIZES:
            await stand.resize(*size)
            assert HOSTILE_SHOWN in " ".join(detail(stand).split()), size
            assert no_control(stand.text()), size


# Only its blocks.


def test_only_its_blocks_stand_out() -> None:
    view = scenario_view("preempting")
    everything, only = panel(BlocksPanel, view), panel(BlocksPanel, view)
    for request_id, table in view.tables.items():
        only.only = request_id
        request = view.requests[request_id]
        own = {owner_cell(request.number), style(owner_color(request.number))}
        others = {owner_cell(other.number) for other in view.requests.values()} - own
        shared = sum(len(view.holders[block]) > 1 for block in table)
        assert not shared, "this scenario shares nothing"
        for all_of_them, its in zip(everything.draw(14, 4)[1:-1], only.draw(14, 4)[1:-1], strict=True):
            letters = [text_of(line)[::2] for line in (all_of_them, its)]
            assert letters[0] == letters[1], "every block keeps its letter"
            assert [p for p in all_of_them if p[1] in own] == [p for p in its if p[1] in own], "its own look as ever"
            assert not {look for _, look in its} & others
        assert text_of(only.draw(14, 4)[-1]).startswith(f"only {request.letter} {len(table)} block")


def test_a_shared_block_stands_out_under_its_letter() -> None:
    view = scenario_view("sharing")
    it = panel(BlocksPanel, view)
    last = list(view.tables)[-1]
    it.only = last
    letter = view.letter(last)
    cells = "".join(text_of(line) for line in it.draw(40, 11)[1:-1])
    shared = [block for block in view.tables[last] if len(view.holders[block]) > 1]
    assert shared and cells.count(f"{letter}3") == len(shared)
    assert f"{len(view.tables[last])} blocks, {len(shared)} shared" in text_of(it.draw(40, 11)[-1])


def test_where_a_cell_is_several_blocks_its_own_come_first() -> None:
    stage = ScriptedEngine(EngineConfig(num_blocks=2001, max_num_batched_tokens=2048))
    for _ in range(40):
        stage.add(sentence(30), 8)
    stage.step()
    view = view_of(stage.traces)
    it = panel(BlocksPanel, view)
    for request_id, table in view.tables.items():
        it.only = request_id
        cells = [part for line in it.draw(30, 9)[1:-1] for part in line]
        own = [part for part in cells if part[1] == owner_cell(view.requests[request_id].number) or part[1].bold]
        assert own and {text for text, _ in own} == {view.letter(request_id)}
        assert len(own) <= len(table)


def test_of_a_request_without_blocks_that_is_said() -> None:
    it = panel(BlocksPanel, scenario_view("ended"))
    it.only = "2"
    assert "only b 0 blocks" in text_of(it.draw(40, 11)[-1])
    it.only = "99"
    assert "none" in text_of(it.draw(40, 11)[-1])


async def test_a_key_shows_only_its_blocks_and_then_all() -> None:
    async with dashboard((120, 40), *stepped("busy")) as stand:
        before = stand.lines()
        await stand.press("j", "o")
        assert "only b" in stand.text()
        await stand.press("j")
        assert "only c" in stand.text(), "it goes along with the selection"
        await stand.press("o", "escape")
        assert stand.lines() == before


@pytest.mark.parametrize("size", SIZES)
async def test_only_its_blocks_at_every_size(size: tuple[int, int]) -> None:
    async with dashboard(size, *stepped("busy"), toasts=True) as stand:
        await stand.press("o")
        await stand.until(lambda: "only a" in stand.text() or "not on the screen" in " ".join(stand.text().split()))


async def test_the_request_of_the_map_stays_when_it_ends() -> None:
    stage = ScriptedEngine(config(blocks=40, bs=8, budget=64, seqs=4, length=128))
    stage.add(max_tokens=3)
    stage.add(max_tokens=30)
    async with dashboard((120, 40), READY, Stepped(stage.step())) as stand:
        await stand.press("o")
        stage.step(6)
        await stand.play(stage.traces[1:])
        assert "only a 0 blocks" in stand.text()


# Long queues.


def rows(stand: Stand) -> list[str]:
    region = stand.app.query_one(RequestsPanel).region
    return [line[region.x : region.right].rstrip() for line in stand.lines()[region.y + 1 : region.bottom]]


async def test_the_wheel_scrolls_and_the_selection_stays() -> None:
    async with dashboard((120, 40), *stepped("queue")) as stand:
        requests = stand.app.query_one(RequestsPanel)
        top = rows(stand)
        requests.post_message(wheel(MouseScrollDown))
        await stand.settle()
        assert rows(stand)[1:-1] == [*top[4:-1], *rows(stand)[-4:-1]]
        assert "above" in rows(stand)[0] and stand.app.selection.request_id == "1"
        for _ in range(20):
            requests.post_message(wheel(MouseScrollDown))
        await stand.settle()
        assert "9,936 more, as they arrived" in "\n".join(rows(stand)) and "below" in rows(stand)[-1]
        for _ in range(60):
            requests.post_message(wheel(MouseScrollUp))
        await stand.settle()
        assert rows(stand) == top


async def test_scrolling_survives_steps_and_ends_with_the_next_choice() -> None:
    stage = ScriptedEngine(EngineConfig(max_num_seqs=4))
    for number in range(200):
        stage.add([number], 50)
    stage.step(2)
    async with dashboard((120, 40), READY, *map(Stepped, stage.traces)) as stand:
        requests = stand.app.query_one(RequestsPanel)
        for _ in range(5):
            requests.post_message(wheel(MouseScrollDown))
        await stand.settle()
        before = [row[:18] for row in rows(stand)]
        stage.step(5)
        await stand.play(stage.traces[2:])
        assert [row[:18] for row in rows(stand)] == before
        await stand.press("j")
        assert stand.app.selection.request_id == "2" and any(row.startswith("▸ b") for row in rows(stand))


async def test_a_click_finds_the_row_that_is_there() -> None:
    async with dashboard((120, 40), *stepped("queue")) as stand:
        requests = stand.app.query_one(RequestsPanel)
        for _ in range(4):
            requests.post_message(wheel(MouseScrollDown))
        await stand.settle()
        y = next(y for y, row in enumerate(rows(stand)) if row.startswith("  v"))
        await stand.pilot.click("#requests", offset=(4, y + 1))
        await stand.settle()
        assert rows(stand)[y].startswith("▸ v"), "and nothing moves"
        await stand.pilot.click("#requests", offset=(8, 1))
        await stand.settle()
        assert rows(stand)[y].startswith("▸ v"), "a note is no request"


async def test_who_is_pushed_out_of_the_list_stays_selected() -> None:
    stage = ScriptedEngine(EngineConfig(max_num_seqs=2, policy="priority"))
    for number in range(MAX_WAITING_IDS + 2):
        stage.add([number], 50)
    stage.step()
    last = stage.traces[-1].waiting[-1]
    async with dashboard((120, 40), READY, *map(Stepped, stage.traces)) as stand:
        while stand.app.selection.request_id != last:
            await stand.press("j")
        for number in range(3):
            stage.engine.add_request([number], SamplingParams(max_tokens=9), request_id=f"u{number}", priority=-5)
        stage.step()
        assert last not in stage.traces[-1].waiting
        await stand.play(stage.traces[-1:])
        assert stand.app.selection.request_id == last and any(row.startswith("▸") for row in rows(stand))
        assert "3 more, as they arrived" in "\n".join(rows(stand))
        await stand.press("k", "j")
        assert stand.app.selection.request_id == last


def test_rows_and_order_agree() -> None:
    """Whatever can be selected has a row, and only that."""
    for name in SCENARIOS:
        it = panel(RequestsPanel, scenario_view(name))
        it.pending = (Pending("901", "short", "sent"),)
        order = it.order()
        for request_id in order[:: 1 + len(order) // 200]:
            it.selected = request_id
            assert any(text_of(line).startswith("▸") for line in it.draw(90, 12)[1:])


def test_drafts_are_whole_only_if_they_are_ones_own() -> None:
    assert draft_of(Form("Why?")).whole
    assert not Draft("short", "Why?", SamplingParams()).whole


async def test_other_keys_for_the_same_commands_work_in_the_detail() -> None:
    commands = rebound({"only": "z", "keep": "Y", "detail": "G"}, Path("settings.toml"))
    async with dashboard((120, 40), *stepped("busy"), commands=commands) as stand:
        await stand.press("G")
        assert detail_is_open(stand)
        await stand.press("o", "f")
        assert "only" not in detail(stand).splitlines()[0] and "followed" not in detail(stand).splitlines()[0]
        await stand.press("z", "Y")
        assert "followed" not in detail(stand) and "only its blocks" in detail(stand), "only had it followed"
        assert "z only its blocks" in screen(stand)[-1] and "Y follow" in screen(stand)[-1]


@pytest.mark.parametrize("send", ["\x13", "\x1b[13;5u"], ids=["ctrl+s", "ctrl+enter"])
def test_a_real_terminal_pastes_and_sends(send: str) -> None:
    """Bracketed paste, as terminals send it: with carriage returns."""
    with closing(Terminal("--model", "tiny")) as terminal:
        terminal.wait_for("nanoviz", "prompt")
        terminal.press("i")
        terminal.wait_for("Your own prompt", "0 characters")
        terminal.press("\x1b[200~What is rain,\rand why?\x1b[201~")
        terminal.wait_for("What is rain,", "and why?", "22 characters")
        terminal.press(send)
        wait_for(lambda: "Your own prompt" not in terminal.text)
        terminal.wait_for(" own ")
