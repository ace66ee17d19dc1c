"""Live parameters: the panel, the keys, what is asked of the engine and what comes of it."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from textual import events
from textual.widgets import Input

from app import protocol
from app.keys import rebound
from app.palette import CACHED_GLYPH
from app.panels.budget import BOTH_MARK, CHANGED_MARK, PREEMPTED_MARK, BudgetPanel
from app.panels.header import Header
from app.panels.requests import RequestsPanel
from app.panels.step import StepPanel
from app.parameters import FIXED, LARGEST, PARAMETERS, SPEED, SPEEDS, Parameters, next_speed, parse, turned
from app.protocol import Failed, PaceSet, Reconfigure, Reconfigured, ReconfigureRefused, SetSpeed, Stepped
from app.screens.parameters import ParameterList, ParametersScreen
from engine.config import ConfigError, EngineConfig
from engine.policy import POLICIES
from tests.app.support import READY, ScriptedEngine, Stand, dashboard, drawn, panel, sentence, stepped, view_of
from tests.engine.support import config

BUSY = stepped("busy")
KILLED = Failed("the engine's process was killed by signal 9 (SIGKILL).")
LIVE = [p.name for p in PARAMETERS if not p.is_fixed and p.name != SPEED]
SIZES = ((60, 16), (80, 24), (100, 34), (120, 40), (200, 50))
ROOMY = EngineConfig(max_num_batched_tokens=1024)
"""Under it every policy and every switch is possible."""


def is_open(stand: Stand) -> bool:
    return isinstance(stand.app.screen, ParametersScreen)


def toasts(stand: Stand) -> list[str]:
    return [notification.message for notification in stand.app._notifications]


def panel_lines(stand: Stand) -> list[str]:
    """What stands in the panel."""
    region = stand.app.screen.query_one("#parameters").region
    return [line[region.x : region.right] for line in stand.lines()[region.y : region.bottom]]


def panel_words(stand: Stand) -> str:
    """The panel's text without its line breaks."""
    return " ".join(" ".join(line.lstrip("▏ ") for line in panel_lines(stand)).split())


def row(stand: Stand, name: str) -> str:
    """The one row that begins with this name."""
    (line,) = [line for line in panel_lines(stand) if line.lstrip("▏▸ ").startswith(f"{name} ")]
    return " ".join(line.lstrip("▏ ").split())


async def choose(stand: Stand, name: str) -> None:
    """Go to a row, wherever one is."""
    names = [parameter.name for parameter in PARAMETERS]
    here = names.index(stand.app.screen.query_one(ParameterList).chosen.name)
    by = names.index(name) - here
    await stand.press(*["down" if by > 0 else "up"] * abs(by))


def changes(stand: Stand) -> list[dict[str, Any]]:
    """What was asked for since the last call; nothing else was sent."""
    sent = stand.source.take_sent()
    assert all(isinstance(command, Reconfigure) for command in sent), sent
    return [command.changes for command in sent if isinstance(command, Reconfigure)]


async def obey(stand: Stand, stage: ScriptedEngine) -> list[bool]:
    """Let a real engine answer what was asked for, and report it with a step; whether it agreed, for each."""
    answers = []
    for asked in changes(stand):
        try:
            stage.engine.reconfigure(**asked)
        except ConfigError as error:
            await stand.feed(ReconfigureRefused(str(error)))
            answers.append(False)
        else:
            await stand.feed(Reconfigured(stage.engine.config))
            answers.append(True)
    if stage.engine.has_news:
        await stand.feed(Stepped(stage.step()))
    return answers


def header_text(stand: Stand) -> str:
    return "".join(text for text, _ in stand.app.query_one(Header).draw(200, 1)[0])


# What can be changed, and how far one key goes.


def test_every_parameter_of_the_engine_has_one_row_with_its_help() -> None:
    assert sorted(p.name for p in PARAMETERS) == sorted([SPEED, *(f.name for f in fields(EngineConfig))])
    helps = {f.name: f.metadata["help"] for f in fields(EngineConfig)}
    assert all(p.help == helps[p.name] for p in PARAMETERS if p.name != SPEED)
    assert [p.name for p in PARAMETERS if p.is_fixed] == list(FIXED)


@pytest.mark.parametrize("name", FIXED)
def test_what_is_fixed_the_engine_refuses(name: str) -> None:
    stage = ScriptedEngine(EngineConfig())
    with pytest.raises(ConfigError, match="restart"):
        stage.engine.reconfigure(**{name: 2 * getattr(stage.engine.config, name)})
    with pytest.raises(ConfigError, match="restart"):
        turned(EngineConfig(), name, 1)


@pytest.mark.parametrize("start", [EngineConfig(), ROOMY, replace(ROOMY, policy="orca", enable_chunked_prefill=False)])
@pytest.mark.parametrize("name", LIVE)
@pytest.mark.parametrize("by", [1, -1])
def test_wherever_a_key_goes_the_engine_agrees(start: EngineConfig, name: str, by: int) -> None:
    stage = ScriptedEngine(start)
    for _ in range(30):
        before: Any = getattr(stage.engine.config, name)
        try:
            value, _ = turned(stage.engine.config, name, by)
        except ConfigError as error:
            assert str(error)
            return
        stage.engine.reconfigure(**{name: value})
        assert type(value) is type(before) and value != before
        if type(before) in (int, float):
            assert (float(value) - float(before)) * by > 0
    assert isinstance(before, bool | str), "a ladder has an end"


@pytest.mark.parametrize("name", [n for n in LIVE if type(getattr(ROOMY, n)) in (int, float)])
def test_numbers_go_up_and_down_again_by_the_same_stops(name: str) -> None:
    def stops(by: int, now: EngineConfig) -> list[Any]:
        found = [getattr(now, name)]
        while True:
            try:
                found.append(turned(replace(now, **{name: found[-1]}), name, by)[0])
            except ConfigError:
                return found

    lowest = stops(-1, ROOMY)[-1]
    up = stops(1, replace(ROOMY, **{name: lowest}))
    assert stops(-1, replace(ROOMY, **{name: up[-1]})) == up[::-1]
    assert len(up) >= 6


def test_the_least_pool_can_be_reached_and_less_is_explained() -> None:
    now = EngineConfig()
    value, _ = turned(replace(now, num_blocks=96), "num_blocks", -1)
    assert value == 65
    with pytest.raises(ConfigError, match="a single request could outgrow it"):
        turned(replace(now, num_blocks=65), "num_blocks", -1)


def test_a_value_between_two_stops_goes_to_the_nearest_of_them() -> None:
    between = replace(EngineConfig(), max_num_batched_tokens=100)
    assert turned(between, "max_num_batched_tokens", 1)[0] == 128
    assert turned(between, "max_num_batched_tokens", -1)[0] == 64


def test_at_the_end_of_a_ladder_it_says_so() -> None:
    with pytest.raises(ConfigError, match="max_num_batched_tokens is 1: no key goes further down"):
        turned(EngineConfig(max_num_batched_tokens=1, max_num_seqs=1), "max_num_batched_tokens", -1)


@pytest.mark.parametrize("by", [1, -1])
def test_policies_go_round_and_none_is_left_out_without_a_word(by: int) -> None:
    now, seen = ROOMY, []
    for _ in POLICIES:
        value, passed = turned(now, "policy", by)
        assert not passed
        seen.append(value)
        now = replace(now, policy=str(value))
    assert sorted(map(str, seen)) == sorted(POLICIES)
    assert now.policy == ROOMY.policy


def test_a_policy_that_cannot_be_is_passed_over_with_the_reason() -> None:
    names = list(POLICIES)
    before = names[names.index("orca") - 1]
    value, passed = turned(EngineConfig(policy=before), "policy", 1)
    assert value == names[names.index("orca") + 1]
    assert "policy orca computes prompts whole" in passed


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("max_num_batched_tokens", "100", 100),
        ("max_num_seqs", "-3", -3),
        ("watermark", "0.25", 0.25),
        ("watermark", "1", 1.0),
        ("enable_chunked_prefill", "off", False),
        ("mixed_chunk", "TRUE", True),
        ("policy", "sarathi", "sarathi"),
        (SPEED, "3", 3.0),
    ],
)
def test_what_is_typed_becomes_a_value_of_the_right_type(name: str, text: str, value: object) -> None:
    parsed = parse(name, text)
    assert parsed == value and type(parsed) is type(value)


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("max_num_seqs", "many", "max_num_seqs is 'many'; it must be a whole number."),
        ("max_num_seqs", "1.5", "max_num_seqs is '1.5'; it must be a whole number."),
        ("watermark", "0.1.2", "watermark is '0.1.2'; it must be a number."),
        ("watermark", "nan", "a number up to"),
        ("priority_aging", "inf", "a number up to"),
        ("num_blocks", str(LARGEST + 1), f"a whole number up to {LARGEST:,}"),
        ("num_blocks", "9" * 24, f"a whole number up to {LARGEST:,}"),
        ("mixed_chunk", "1", "mixed_chunk is '1'; it can be on or off."),
        (SPEED, "-1", "use 0 for no limit"),
    ],
)
def test_what_is_typed_wrongly_is_refused_with_what_would_be_right(name: str, text: str, reason: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(name, text)
    assert reason in str(error.value)


def test_speeds_go_up_and_down_and_stay_at_the_ends() -> None:
    assert [next_speed(speed, 1) for speed in SPEEDS] == [*SPEEDS[1:], 0.0]
    assert [next_speed(speed, -1) for speed in SPEEDS] == [SPEEDS[0], *SPEEDS[:-1]]
    assert (next_speed(3.0, 1), next_speed(3.0, -1)) == (5.0, 2.0)
    assert (next_speed(500.0, 1), next_speed(0.1, -1)) == (0.0, 0.1)


def test_answers_belong_to_the_oldest_change() -> None:
    parameters = Parameters(EngineConfig())
    parameters.ask({"max_num_seqs": 8})
    parameters.ask({"max_num_seqs": 4, "watermark": 0.1})
    assert (parameters.asked("max_num_seqs"), parameters.config.max_num_seqs) == (4, 16)
    parameters.confirm(EngineConfig(max_num_seqs=8))
    assert (parameters.asked("max_num_seqs"), parameters.config.max_num_seqs) == (4, 8)
    assert parameters.expected == EngineConfig(max_num_seqs=4, watermark=0.1)
    parameters.refuse("no.")
    assert (parameters.asked("max_num_seqs"), parameters.config.max_num_seqs, parameters.message) == (None, 8, "no.")


# The panel.


async def test_it_opens_and_closes() -> None:
    async with dashboard((120, 40), *BUSY) as stand:
        for key in ("escape", "p", "q"):
            await stand.press("p")
            assert is_open(stand)
            await stand.press(key)
            assert not is_open(stand) and stand.app.is_running


async def test_it_leaves_budget_requests_and_step_to_be_seen_and_they_go_on() -> None:
    stage = ScriptedEngine(EngineConfig())
    stage.add(sentence(400), 20)
    async with dashboard((120, 40), READY) as stand:
        await stand.press("p")
        region = stand.app.screen.query_one("#parameters").region
        for kind in (BudgetPanel, RequestsPanel, StepPanel, Header):
            assert not region.overlaps(stand.app.query_one(kind).region), kind
        for _ in range(3):
            await stand.feed(Stepped(stage.step()))
            assert f"Step {stage.traces[-1].step} ─" in stand.text()
        assert "a prefills" in stand.text().replace("is admitted: ", "")


async def test_rows_say_what_each_parameter_is() -> None:
    start = EngineConfig(policy="sglang", watermark=0.05, max_num_seqs=7)
    async with dashboard((120, 40), READY) as stand:
        stand.app.session.parameters.start = start
        await stand.feed(Reconfigured(start))
        await stand.press("p")
        assert row(stand, "policy").endswith("sglang")
        assert row(stand, "watermark").endswith("0.05")
        assert row(stand, "max_num_seqs").endswith("max_num_seqs 7")
        assert row(stand, "enable_prefix_caching").endswith("on")
        assert row(stand, "mixed_chunk").endswith("off")
        assert row(stand, SPEED).endswith("no limit")
        for name in FIXED:
            assert row(stand, name).endswith(f"{getattr(start, name)}, needs a restart")


async def test_every_row_can_be_chosen_and_is_explained_in_full() -> None:
    async with dashboard((120, 40), *BUSY) as stand:
        await stand.press("p")
        for size in SIZES:
            await stand.resize(*size)
            for parameter in PARAMETERS:
                assert f"{parameter.name}: {parameter.help}" in panel_words(stand), size
                (chosen,) = [line for line in panel_lines(stand) if "▸ " in line[:3]]
                suffix = parameter.name.removeprefix("long_prefill_token_threshold_")
                assert suffix in chosen, size
                await stand.press("down")
            await stand.press(*["k"] * len(PARAMETERS))
            assert f"{PARAMETERS[0].name}: " in panel_words(stand), size


async def test_it_fits_and_its_lines_are_not_cut() -> None:
    asked = EngineConfig(
        long_prefill_token_threshold=1024, long_prefill_token_threshold_adaptive=True, policy="prefill_first"
    )
    async with dashboard((120, 40), *BUSY, Reconfigured(asked)) as stand:
        await stand.press("p")
        await choose(stand, "long_prefill_token_threshold")
        await stand.press("right")
        for size in SIZES:
            await stand.resize(*size)
            region = stand.app.screen.query_one("#parameters").region
            assert stand.app.screen.region.contains_region(region), size
            assert all(len(line) == size[0] for line in stand.lines()), size
            text = "\n".join(panel_lines(stand))
            assert "asked" in text and "2048" in text and "esc close" in text, size


async def test_at_sizes_that_are_too_small_the_dashboard_says_so_with_it_open() -> None:
    async with dashboard((120, 40), *BUSY) as stand:
        await stand.press("p")
        for size in ((40, 10), (59, 16), (60, 15), (1, 1), (120, 40)):
            await stand.resize(*size)
        assert is_open(stand) and "Parameters" in stand.text()


# Changes.


@pytest.mark.parametrize(("key", "value"), [("right", 256), ("left", 64)])
async def test_a_change_goes_out_at_once_and_stands_there_until_it_is_confirmed(key: str, value: int) -> None:
    async with dashboard((120, 40), *BUSY) as stand:
        await stand.press("p", key)
        assert changes(stand) == [{"max_num_batched_tokens": value}]
        assert f"asked {value}" in row(stand, "max_num_batched_tokens").replace("asked for", "asked")
        await stand.feed(Reconfigured(EngineConfig(max_num_batched_tokens=value)))
        assert f"128 → {value}" in row(stand, "max_num_batched_tokens")
        assert "it was 128 at the start" in panel_words(stand)


async def test_where_there_is_room_the_row_says_both() -> None:
    async with dashboard((200, 50), *BUSY) as stand:
        await stand.press("p", "right")
        assert "128, asked for 256" in row(stand, "max_num_batched_tokens")


async def test_a_key_that_is_held_goes_on_from_what_was_asked_for() -> None:
    async with dashboard((120, 40), *BUSY) as stand:
        await stand.press("p", *["right"] * 4)
        assert changes(stand) == [{"max_num_batched_tokens": 128 * 2**power} for power in range(1, 5)]
        await stand.feed(Reconfigured(EngineConfig(max_num_batched_tokens=256)))
        assert "asked 2048" in row(stand, "max_num_batched_tokens")
        await stand.feed(*(Reconfigured(EngineConfig(max_num_batched_tokens=value)) for value in (512, 1024, 2048)))
        assert "128 → 2048" in row(stand, "max_num_batched_tokens")


async def test_a_switch_is_thrown_and_back() -> None:
    async with dashboard((120, 40), *BUSY) as stand:
        await stand.press("p")
        await choose(stand, "reserve_full_sequence")
        await stand.press("right", "right", "left")
        assert changes(stand) == [{"reserve_full_sequence": value} for value in (False, True, False)]


async def test_a_refusal_by_the_engine_stands_in_the_panel_in_full() -> None:
    reason = "there is no memory for num_blocks = 1024: 755.0 GB of KV cache, " + "and so on " * 9 + "to the end."
    async with dashboard((120, 40), *BUSY) as stand:
        await stand.press("p")
        await choose(stand, "num_blocks")
        await stand.press("right")
        await stand.feed(ReconfigureRefused(reason))
        for size in SIZES:
            await stand.resize(*size)
            assert f"✗ {reason}" in panel_words(stand), size
        assert not toasts(stand)
        assert "asked" not in stand.text()
        await stand.press("right")
        assert "no memory" not in stand.text()


async def test_a_refusal_goes_when_one_looks_at_another_parameter_or_away() -> None:
    async with dashboard((120, 40), *BUSY) as stand:
        for keys in (["up"], ["escape", "p"]):
            await stand.press("p")
            await choose(stand, "block_size")
            await stand.press("right")
            assert "✗ block_size is 16" in panel_words(stand)
            await stand.press(*keys)
            assert "✗" not in panel_words(stand), keys
            await stand.press("escape")


async def test_what_the_policy_ignores_is_dim_and_says_so() -> None:
    async with dashboard((120, 40), *BUSY) as stand:
        await stand.press("p")
        await choose(stand, "mixed_chunk")
        assert "policy fcfs ignores it" in panel_words(stand)
        await stand.feed(Reconfigured(replace(EngineConfig(), policy="sglang")))
        assert "ignores it" not in panel_words(stand)


async def test_a_refusal_while_the_panel_is_closed_is_a_notice() -> None:
    async with dashboard((120, 40), *BUSY) as stand:
        await stand.press("V")
        await stand.feed(ReconfigureRefused("there is no memory."))
        assert "there is no memory." in toasts(stand)


async def test_what_cannot_be_is_explained_without_asking() -> None:
    async with dashboard((80, 24), *BUSY) as stand:
        await stand.press("p")
        await choose(stand, "enable_chunked_prefill")
        await stand.press("right")
        assert changes(stand) == []
        assert "without chunked prefill max_num_batched_tokens (128) must be at least" in panel_words(stand)
        await choose(stand, "block_size")
        await stand.press("right", "4")
        assert changes(stand) == []
        assert "block_size is 16 and stays so; another one takes a restart." in panel_words(stand)
        assert not stand.app.screen.query_one(Input).display


async def test_warnings_of_what_holds_stand_in_the_panel() -> None:
    odd = EngineConfig(max_num_seqs=200)
    async with dashboard((120, 40), *BUSY) as stand:
        await stand.press("p")
        await stand.feed(Reconfigured(odd))
        assert f"! {odd.warnings()[0]}" in panel_words(stand)
        assert not toasts(stand)


# Typing.


async def test_digits_begin_a_value_and_enter_sends_it() -> None:
    async with dashboard((120, 40), *BUSY) as stand:
        await stand.press("p", "1", "0", "0")
        assert stand.app.screen.query_one(Input).value == "100"
        assert "enter send" in panel_words(stand)
        assert changes(stand) == []
        await stand.press("enter")
        assert changes(stand) == [{"max_num_batched_tokens": 100}]
        assert "esc close" in panel_words(stand)
        await stand.press("right")
        assert changes(stand) == [{"max_num_batched_tokens": 128}]


async def test_escape_leaves_the_typing_and_then_the_panel() -> None:
    async with dashboard((120, 40), *BUSY) as stand:
        await stand.press("p", "7", "escape")
        assert is_open(stand) and not stand.app.screen.query_one(Input).display
        await stand.press("escape")
        assert not is_open(stand)
        assert changes(stand) == []


async def test_keys_that_edit_edit_and_keys_that_choose_leave() -> None:
    async with dashboard((120, 40), *BUSY) as stand:
        await stand.press("p", "9", "9", "left", "backspace", "home", "1", "p", "q", "space", "enter")
        assert is_open(stand)
        assert "max_num_batched_tokens is '1pq9'; it must be a whole number." in panel_words(stand)
        await stand.press("5", "down")
        assert not stand.app.screen.query_one(Input).display
        assert f"{PARAMETERS[1].name}: " in panel_words(stand)
        assert changes(stand) == []


async def test_enter_begins_an_empty_value_for_words() -> None:
    async with dashboard((120, 40), *BUSY) as stand:
        await stand.press("p")
        await choose(stand, "policy")
        await stand.press("enter", *"sarathi", "enter")
        assert changes(stand) == [{"policy": "sarathi"}]
        await choose(stand, "mixed_chunk")
        await stand.press("enter", *"on", "enter", "enter", "enter")
        assert changes(stand) == [{"mixed_chunk": True}]


async def test_what_is_pasted_can_style_nothing() -> None:
    async with dashboard((120, 40), *BUSY) as stand:
        await stand.press("p", "enter")
        stand.app.screen.query_one(Input).post_message(events.Paste("[bold]\x1b[31m7\u202e"))
        await stand.settle()
        await stand.press("8", "enter")
        assert "\x1b" not in stand.text() and "\u202e" not in stand.text()
        assert changes(stand) in ([{"max_num_batched_tokens": 8}], [{"max_num_batched_tokens": 78}])


# The speed.


async def test_the_speed_is_a_row_too() -> None:
    async with dashboard((120, 40), *BUSY) as stand:
        await stand.press("p")
        await choose(stand, SPEED)
        await stand.press("left")
        assert row(stand, SPEED).endswith("◂ 50 steps/s ▸")
        await stand.press("3", "enter")
        await stand.press("right", "0", "enter")
        assert stand.source.take_sent() == [SetSpeed(50.0), SetSpeed(3.0), SetSpeed(5.0), SetSpeed(0.0)]
        await stand.feed(*[PaceSet(False, 0.0)] * 4)
        await stand.press("enter", "minus", "2", "enter")
        assert "use 0 for no limit" in panel_words(stand)
        assert stand.source.take_sent() == []


# Reset.


@pytest.mark.parametrize("opened", [True, False])
async def test_one_key_makes_all_as_it_was_in_one_change(opened: bool) -> None:
    async with dashboard((120, 40), *BUSY) as stand:
        await stand.feed(Reconfigured(EngineConfig(max_num_seqs=4, policy="sarathi", watermark=0.1)))
        await stand.press(*["p"] * opened, "V")
        assert changes(stand) == [{"num_blocks": 192}]
        await stand.press("R")
        assert changes(stand) == [{"max_num_seqs": 16, "num_blocks": 128, "watermark": 0.0, "policy": "fcfs"}]
        await stand.feed(Reconfigured(EngineConfig()))
        await stand.feed(Reconfigured(EngineConfig()))
        await stand.press("R")
        assert changes(stand) == []
        said = panel_words(stand) if opened else " ".join(toasts(stand))
        assert "All parameters are what they were at the start." in said


# Keys that go through, and keys without the panel.


async def test_keys_that_the_panel_has_no_use_for_go_through() -> None:
    async with dashboard((120, 40), *BUSY) as stand:
        await stand.press("p", "s", "space", "full_stop", "minus")
        kinds = [type(command) for command in stand.source.take_sent()]
        assert kinds == [protocol.AddRequest, protocol.SetPaused, protocol.StepOnce, SetSpeed]
        assert is_open(stand)
        await stand.press("question_mark")
        assert not is_open(stand)
        await stand.press("escape")
        assert is_open(stand)


async def test_what_is_turned_most_has_keys_of_its_own() -> None:
    keys: dict[str, dict[str, int | str]] = {
        "left_curly_bracket": {"max_num_batched_tokens": 64},
        "right_curly_bracket": {"max_num_batched_tokens": 256},
        "left_parenthesis": {"max_num_seqs": 12},
        "right_parenthesis": {"max_num_seqs": 24},
        "v": {"num_blocks": 96},
        "V": {"num_blocks": 192},
        "P": {"policy": "priority"},
    }
    async with dashboard((120, 40), *BUSY) as stand:
        for opened in (False, True):
            await stand.press(*["p"] * opened)
            for key, change in keys.items():
                await stand.press(key)
                assert changes(stand) == [change], (opened, key)
                await stand.feed(ReconfigureRefused("not now"))  # so that the next key starts from the same values


async def test_a_key_without_the_panel_is_confirmed_by_a_notice() -> None:
    async with dashboard((120, 40), *BUSY) as stand:
        await stand.press("right_curly_bracket")
        assert toasts(stand) == []
        await stand.feed(Reconfigured(EngineConfig(max_num_batched_tokens=256)))
        assert toasts(stand) == ["max_num_batched_tokens 256"]


# When the engine does not run.


async def test_the_header_follows_a_change_while_paused_but_not_in_the_past() -> None:
    stage = ScriptedEngine(EngineConfig())
    stage.add(sentence(40), 30)
    stage.step(6)
    async with dashboard((200, 50), READY, *map(Stepped, stage.traces)) as stand:
        await stand.press("space")
        await stand.feed(PaceSet(True, 0.0))
        stand.source.take_sent()
        await stand.press("left_curly_bracket", "P")
        assert "policy fcfs · budget 128" in header_text(stand)
        await stand.feed(
            *(Reconfigured(EngineConfig(max_num_batched_tokens=64, policy=p)) for p in ("fcfs", "priority"))
        )
        assert "policy priority · budget 64" in header_text(stand)
        await stand.press("left")
        assert "policy fcfs · budget 128" in header_text(stand)
        await stand.press("end")
        assert "budget 64" in header_text(stand)


async def test_a_trace_says_what_holds_where_nobody_asked() -> None:
    stage = ScriptedEngine(EngineConfig(max_num_seqs=3))
    stage.add()
    async with dashboard((120, 40), READY, Stepped(stage.step())) as stand:
        assert stand.app.session.config.max_num_seqs == 3


async def test_while_the_model_loads_changes_wait_and_the_panel_says_so() -> None:
    async with dashboard((120, 40)) as stand:
        await stand.press("p", "right", "right")
        assert changes(stand) == [{"max_num_batched_tokens": 256}, {"max_num_batched_tokens": 512}]
        assert "asked 512" in row(stand, "max_num_batched_tokens")
        assert "the engine answers when the model is loaded" in panel_words(stand)
        await stand.feed(READY)
        assert "when the model is loaded" not in panel_words(stand)
        await stand.feed(*(Reconfigured(EngineConfig(max_num_batched_tokens=value)) for value in (256, 512)))
        assert "128 → 512" in row(stand, "max_num_batched_tokens")


async def test_while_the_model_loads_a_key_without_the_panel_says_that_it_waits() -> None:
    async with dashboard((120, 40)) as stand:
        await stand.press("V")
        assert toasts(stand) == ["num_blocks 192: asked for; the engine answers when the model is loaded"]


async def test_a_dead_engine_is_asked_nothing_and_the_panel_says_why() -> None:
    async with dashboard((120, 40), *BUSY) as stand:
        await stand.press("p", "right")
        changes(stand)
        await stand.feed(KILLED)
        assert "the engine has ended; r starts it again, with these values." in panel_words(stand)
        await stand.press("right", "3", "enter", "R")
        assert changes(stand) == []
        await stand.press("escape", "V")
        assert changes(stand) == []
        assert toasts(stand) == ["The engine has ended; r starts it again."]


async def test_a_new_engine_starts_with_what_held_and_a_reset_goes_back_to_the_start() -> None:
    held = EngineConfig(max_num_seqs=4, policy="sarathi")
    async with dashboard((120, 40), *BUSY) as stand:
        await stand.feed(Reconfigured(held))
        await stand.press("p", "right")  # and this one dies with the engine
        await stand.feed(KILLED)
        await stand.press("r")
        assert len(stand.sources) == 2
        assert stand.source.options.config == held
        assert "asked" not in stand.text() and "has ended" not in panel_words(stand)
        assert row(stand, "max_num_seqs").endswith("16 → 4")
        await stand.feed(READY)
        await stand.press("R")
        assert changes(stand) == [{"max_num_seqs": 16, "policy": "fcfs"}]
        await stand.feed(Reconfigured(EngineConfig()))
        assert row(stand, "max_num_seqs").endswith("max_num_seqs 16")


# With the mouse.


async def test_the_mouse_chooses_turns_and_closes() -> None:
    async with dashboard((120, 40), *BUSY) as stand:
        await stand.press("p")
        rows = stand.app.screen.query_one(ParameterList)
        await stand.pilot.click(rows, offset=(5, 2))
        assert rows.chosen.name == PARAMETERS[1].name and changes(stand) == []
        width = rows.size.width
        await stand.pilot.click(rows, offset=(width - 1, 2))
        await stand.pilot.click(rows, offset=(5, 2))
        await stand.settle()
        line = panel_lines(stand)[2]
        await stand.pilot.click(rows, offset=(line.rindex("◂") - 1, 2))
        assert changes(stand) == [{PARAMETERS[1].name: 24}, {PARAMETERS[1].name: 16}]
        rows.post_message(scroll_down(rows))
        await stand.settle()
        assert rows.chosen.name == PARAMETERS[2].name
        await stand.pilot.click(offset=(5, 5))
        await stand.settle()
        assert not is_open(stand)


def scroll_down(widget: ParameterList) -> events.MouseScrollDown:
    return events.MouseScrollDown(widget, 5, 5, 0, 0, 0, False, False, False)


# What a change leaves behind.


def marks(view: Any) -> str:
    """The row below the bars, as far as there are steps."""
    return drawn(panel(BudgetPanel, view).draw(100, 12), 12)[-1].strip()


def test_a_change_is_marked_under_its_step() -> None:
    stage = ScriptedEngine(EngineConfig())
    stage.add(sentence(40), 30)
    stage.step(3)
    stage.engine.reconfigure(max_num_batched_tokens=64, watermark=0.1)
    stage.step(2)
    assert marks(view_of(stage.traces)) == f"───{CHANGED_MARK}─"


def test_a_change_that_preempts_has_a_mark_of_its_own() -> None:
    stage = ScriptedEngine(EngineConfig())
    for _ in range(3):
        stage.add(sentence(40), 30)
    stage.step(3)
    stage.engine.reconfigure(max_num_seqs=1)
    stage.step(2)
    assert marks(view_of(stage.traces)) == f"{CACHED_GLYPH}──{BOTH_MARK}─"
    assert len({BOTH_MARK, CHANGED_MARK, PREEMPTED_MARK}) == 3


def test_a_huge_budget_breaks_no_line() -> None:
    stage = ScriptedEngine(EngineConfig(max_num_batched_tokens=LARGEST))
    stage.add(sentence(40), 30)
    stage.step(3)
    for width in (32, 41, 66, 118):
        lines = drawn(panel(BudgetPanel, view_of(stage.traces)).draw(width, 12), 12)
        axis = {line.rindex(mark) for line in lines[1:-1] for mark in "┤│" if mark in line}
        assert len(axis) == 1, lines


# With a real engine behind it.


async def test_every_parameter_is_turned_while_a_real_engine_runs() -> None:
    stage = ScriptedEngine(replace(ROOMY, max_num_batched_tokens=2048))
    for number in range(12):
        stage.add(sentence(60 + 40 * number), 40)
    async with dashboard((120, 40), READY, Stepped(stage.step())) as stand:
        stand.app.session.parameters.start = stage.engine.config
        await stand.press("p")
        for name in LIVE:
            await choose(stand, name)
            before = getattr(stage.engine.config, name)
            await stand.press("right")
            assert await obey(stand, stage) == [True], name
            now = getattr(stage.engine.config, name)
            assert now != before
            assert getattr(stand.app.session.config, name) == now
            (bar,) = [bar for bar in stand.app.session.view.bars if bar.step == stage.traces[-1].step]
            assert bar.num_changes == 1
            assert stand.app.session.view.events and any(
                event.change and event.change.name == name and event.change.new == now
                for event in stand.app.session.view.events
            )
        await stand.press("R")
        assert await obey(stand, stage) == [True]
        assert stage.engine.config == stand.app.session.config == replace(ROOMY, max_num_batched_tokens=2048)
        assert stand.app.session.view.bars[-1].num_changes == len(LIVE)
        assert "→" not in "\n".join(panel_lines(stand)[:-4])


async def test_why_a_typed_value_cannot_be_is_said_without_asking_for_it() -> None:
    mistakes = [
        ("max_num_batched_tokens", "0", "max_num_batched_tokens is 0; it must be at least 1."),
        ("num_blocks", "10", "a single request could outgrow it. Use at least 65 blocks"),
        ("watermark", "1.5", "watermark is 1.5; it is a share of the pool, from 0 up to below 1."),
        ("policy", "fifo", "there is no policy 'fifo'; there are: fcfs, priority"),
    ]
    stage = ScriptedEngine(EngineConfig())
    stage.add(sentence(40), 30)
    async with dashboard((80, 24), READY, Stepped(stage.step())) as stand:
        await stand.press("p")
        for name, typed, reason in mistakes:
            await choose(stand, name)
            keys = ["full_stop" if character == "." else character for character in typed]
            await stand.press("enter", *keys, "enter")
            assert changes(stand) == [], name
            assert reason in panel_words(stand), name
            assert stand.app.session.config == EngineConfig(), name


async def test_fewer_seats_preempt_and_it_is_seen_in_the_step_that_did_it() -> None:
    stage = ScriptedEngine(config(blocks=40, bs=8, budget=64, seqs=3, length=128))
    for _ in range(3):
        stage.add(sentence(20), 30)
    stage.step(4)
    async with dashboard((120, 40), READY, *map(Stepped, stage.traces)) as stand:
        await stand.press("left_parenthesis")
        assert await obey(stand, stage) == [True]
        assert BOTH_MARK in stand.text()
        assert "fewer seats" in stand.text()
        assert "± max_num_seqs 3 → 2" in stand.text()


async def test_a_value_that_cannot_be_is_refused_also_while_the_model_loads() -> None:
    async with dashboard((120, 40)) as stand:
        await stand.press("p")
        await choose(stand, "policy")
        await stand.press("enter", *"foo", "enter")
        assert "there is no policy 'foo'" in panel_words(stand)
        await stand.press("right")
        assert changes(stand) == [{"policy": "priority"}]


@pytest.mark.parametrize("text", ["1e-12", "0.001", "-1"])
def test_a_speed_that_is_next_to_standing_still_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="0 for no limit"):
        parse(SPEED, text)


@pytest.mark.parametrize("behind", ["down", "escape", "right", "p", "enter"])
async def test_a_typed_value_is_sent_whatever_key_comes_right_behind(behind: str) -> None:
    async with dashboard((120, 40), *BUSY) as stand:
        await stand.press("p")
        await stand.press("6", "4", "enter", behind)
        assert changes(stand)[0] == {"max_num_batched_tokens": 64}


async def test_the_panels_own_keys_stay_its_own_whatever_the_settings_say() -> None:
    commands = rebound(
        {"short": "j", "next": "down", "step_back": "f2", "parameters": "p,6", "scene_6": "f6"}, Path("settings.toml")
    )
    async with dashboard((120, 40), *BUSY, commands=commands) as stand:
        await stand.press("p", "j", "k", "left")
        assert changes(stand) == [{"max_num_batched_tokens": 64}]
        await stand.press("6", "4", "enter")
        assert changes(stand) == [{"max_num_batched_tokens": 64}]


async def test_typing_goes_on_after_a_time_in_which_there_was_no_room() -> None:
    async with dashboard((120, 40), *BUSY) as stand:
        await stand.press("p", "6")
        await stand.resize(50, 12)
        await stand.resize(120, 40)
        await stand.press("4")
        await stand.press("enter")
        assert changes(stand) == [{"max_num_batched_tokens": 64}]


async def test_the_palette_opens_no_screen_twice() -> None:
    async with dashboard((120, 40), *BUSY) as stand:
        for command in ("parameters", "why", "prompt", "help", "events"):
            await stand.app.run_action(command)
            await stand.app.run_action(command)
        assert len(stand.app.screen_stack) == 6
