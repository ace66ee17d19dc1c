"""The dashboard on a server elsewhere: what panels say, what they do not make up, and what keys do."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from app import protocol
from app.panels.banner import Banner
from app.panels.blocks import BlocksPanel
from app.panels.budget import LIMIT, BudgetPanel
from app.panels.events import EventsPanel
from app.panels.header import Header
from app.panels.latency import LatencyPanel
from app.panels.output import OutputPanel
from app.panels.panel import Panel
from app.panels.request import RequestPanel
from app.panels.requests import RequestsPanel
from app.panels.step import StepPanel
from app.panels.waste import WastePanel
from app.protocol import AddRequest, SetSpeed
from app.recording import Recorder, Recording
from app.replay import Replay
from app.screens.why import WhyPanel
from app.server_words import NOT_TOLD
from app.session import NOT_OURS, READ_ONLY
from app.view import EngineView
from engine.poll import Poll, PrefixOp
from engine.trace import Finished
from tests.app.server_support import (
    NO_BUDGET,
    PROBLEM,
    SERIES,
    SERVER,
    SERVER_READY,
    first_look,
    histogram,
    looked,
    polled,
    polls,
    rank,
    series,
    server_events,
)
from tests.app.support import HOSTILE, dashboard, panel, repeatable, run_cli, text_of, view_of
from tests.app.test_panels import check_lines

PANELS = (
    *(Header, Banner, BudgetPanel, RequestsPanel, StepPanel, BlocksPanel, EventsPanel, OutputPanel, LatencyPanel),
    *(WastePanel, RequestPanel, WhyPanel),
)
PER_POLL = (BudgetPanel, StepPanel, BlocksPanel, LatencyPanel, WastePanel)
WIDE = (76, 20)


def made(kind: type[Panel], view: EngineView) -> Panel:
    one: Panel = panel(kind, view)
    match one:
        case Header():
            one.ready, one.state = SERVER_READY, "running"
        case Banner():
            one.problem = view.poll.problem if view.poll else ""
        case RequestsPanel():
            one.selected, one.server = "1", SERVER
        case OutputPanel():
            one.selected = "1"
        case RequestPanel():
            one.look_at("1")
    return one


def said(kind: type[Panel], view: EngineView, size: tuple[int, int] = WIDE) -> str:
    return "\n".join(text_of(line) for line in made(kind, view).draw(*size))


# Any server, any size.


@pytest.mark.parametrize("kind", PANELS)
@given(st.lists(polls, min_size=1, max_size=4), st.integers(10, 220), st.integers(1, 60))
@settings(repeatable, max_examples=60)
def test_whatever_a_server_tells_is_drawn(kind: type[Panel], told: list[Poll], width: int, height: int) -> None:
    view = view_of(polled(step, poll) for step, poll in enumerate(told))
    check_lines(made(kind, view).draw(width, height), width)


@pytest.mark.parametrize("kind", PANELS)
@pytest.mark.parametrize("name", SERIES)
def test_every_poll_on_the_way(kind: type[Panel], name: str) -> None:
    view = EngineView()
    for trace in SERIES[name]():
        view.apply(trace)
        for width, height in ((31, 5), (42, 12), (120, 36)):
            lines = made(kind, view).draw(width, height)
            check_lines(lines, width)
            assert len(lines) <= height or kind in (RequestPanel, WhyPanel, Banner)


# What is said, and what is not made up.


@pytest.mark.parametrize("kind", PER_POLL)
@pytest.mark.parametrize("width", [31, 42, 76])
def test_each_panel_says_that_it_knows_per_poll(kind: type[Panel], width: int) -> None:
    assert "per poll" in said(kind, view_of(series()), (width, 12)).splitlines()[0]


def test_a_poll_in_words() -> None:
    text = said(StepPanel, view_of([polled(0, looked(rank(num_preemptions=2)))]))
    for words in (
        "Poll 0",
        "10 run of 12 seats, 4 wait (4 capacity)",
        "20 iterations in 0.50 s, 11.5 tokens each: 10.0 of outputs, 1.5 of prompts",
        "prefix cache: 60 of 90 tokens found, 67%",
        "2 preemptions; counted when the one that was thrown out runs again",
        "1 ended: 1 length",
        "answered in 4.0 ms",
    ):
        assert words in " ".join(text.split()), words


def test_ranks_are_told_apart() -> None:
    text = " ".join(said(StepPanel, view_of(SERIES["two ranks"]())).split())
    told = "20 iterations, 200 tokens of outputs, 30 of prompts, 60 cached, 0 preempted, 1 ended"
    assert f"rank 0: 10 run, 4 wait, KV 50%, {told}" in text
    assert f"rank 1: 2 run, 4 wait, KV 10%, {told}" in text
    assert said(BlocksPanel, view_of(SERIES["two ranks"]())).count("rank ") == 2


def test_what_a_server_does_not_tell_is_said_to_be_missing() -> None:
    view = view_of(SERIES["silent"]())
    step = " ".join(said(StepPanel, view).split())
    for words in ("how many wait", "KV use", "iterations", "prefix hits", "preemptions", "finish reasons"):
        assert words in step.partition(NOT_TOLD)[2], words
    assert NOT_TOLD in said(BlocksPanel, view)
    assert "Tokens per second" in said(BudgetPanel, view)
    assert "recomputed tokens, the budget" in said(WastePanel, view)
    header = said(Header, view, (200, 1))
    assert "run 3" in header and "wait" not in header and "KV" not in header and "preempted" not in header


@pytest.mark.parametrize(("unknown", "is_drawn"), [(NO_BUDGET, False), ((), True)])
def test_a_line_stands_where_the_budget_is_and_nowhere_else(unknown: tuple[str, ...], is_drawn: bool) -> None:
    view = view_of([polled(step, looked(unknown=unknown)) for step in range(5)])
    assert (LIMIT in said(BudgetPanel, view)) == is_drawn


def test_blocks_are_counted_only_if_it_is_known_how_many_there_are() -> None:
    assert "24 of 48 held" in said(BlocksPanel, view_of([polled(0, looked())]))
    assert "KV cache 50% held" in said(BlocksPanel, view_of([polled(0, looked(unknown=("num_blocks",)))]))


def test_the_map_is_said_to_be_the_prefix_cache() -> None:
    text = said(BlocksPanel, view_of(series()))
    assert "prefix cache 10 · exact, by KV events" in text
    assert "▪▪▪3" in text and "└▪▪ ▪▪ ▪▪ ▪" in text
    partly = [replace(trace, poll=replace(looked(), prefix_known="partial")) for trace in series()]
    assert "since we listen" in said(BlocksPanel, view_of(partly))


def test_latencies_of_all_and_of_mine_are_told_apart() -> None:
    lines = said(LatencyPanel, view_of(series())).splitlines()
    assert "all" in lines[1] and "mine" in lines[1]
    itl = next(line for line in lines if line.startswith("ITL"))
    assert itl.split()[1:6] == ["25", "48", "50", "50", "46"]
    assert itl.split()[-1] == "38", "of two requests of ours"


def test_a_request_shows_only_what_is_known_of_it() -> None:
    text = " ".join(said(RequestPanel, view_of(series()), (80, 30)).split())
    assert f"queue time, KV blocks and preemptions of a request are {NOT_TOLD}" in text
    assert "holds none" not in text and "needs" not in text and "never" not in text


def test_only_requests_of_our_own_have_rows() -> None:
    lines = said(RequestsPanel, view_of(series()), (120, 20)).splitlines()
    assert "running 10 · waiting 4, per poll · mine 2, exact" in lines[0]
    assert [line[2] for line in lines[1:] if line[2].isalpha()] == ["b", "c", "a"]


# The whole dashboard.


async def test_a_server_that_is_away_is_said_to_be_and_comes_back() -> None:
    async with dashboard((120, 40), *server_events(SERIES["away"]())) as stand:
        assert "✗ away poll 24" in stand.lines()[0]
        assert PROBLEM in stand.lines()[1]
        await stand.play([polled(25, looked())])
        assert "▶ poll 25" in stand.lines()[0]
        assert PROBLEM not in stand.lines()[1]
        assert "answers again" in stand.text()


async def test_before_the_first_answer_its_problem_is_told() -> None:
    async with dashboard((120, 40), server=SERVER) as stand:
        await stand.feed(protocol.Loading(f"{PROBLEM}; trying again", hint="q leaves"))
        assert PROBLEM in stand.text() and "q leaves" in stand.text()
        assert "a preset" not in stand.text() and "change the rules" not in stand.text()


@pytest.mark.parametrize("key", ["D", "N", "P", "left_curly_bracket", "s", "b", "greater_than_sign"])
async def test_before_the_first_answer_nothing_is_sent_or_begun(key: str) -> None:
    async with dashboard((120, 40), server=SERVER) as stand:
        await stand.press(key)
        assert stand.source.take_sent() == []
        assert len(stand.app.screen_stack) == 1
        await stand.feed(*server_events(series()))
        assert "poll 23" in stand.lines()[0], "what comes after that counts"


async def test_before_the_first_answer_no_parameter_is_known() -> None:
    async with dashboard((120, 40), server=SERVER) as stand:
        await stand.press("p")
        rows = [line for line in stand.lines() if "max_num_seqs" in line or "num_blocks" in line]
        assert rows and all("not told" in row for row in rows)


async def test_a_server_goes_on_while_one_looks_back() -> None:
    async with dashboard((120, 40), *server_events(series())) as stand:
        await stand.press("left", "w")
        assert stand.source.take_sent() == []
        await stand.play([polled(24, looked())])
        assert "Why: poll 22" in stand.text()
        await stand.press("escape", "end")
        assert "poll 24" in stand.lines()[0]


async def test_it_is_asked_faster_and_slower_from_where_it_is() -> None:
    async with dashboard((120, 40), *server_events(series())) as stand:
        await stand.press("minus")
        assert stand.source.take_sent() == [protocol.SetSpeed(1.0)]
        await stand.feed(protocol.PaceSet(False, 1.0))
        await stand.press(*["plus"] * 6)
        rates = [command.steps_per_second for command in stand.source.take_sent() if isinstance(command, SetSpeed)]
        assert rates == [2.0, 5.0, 10.0, 10.0, 10.0, 10.0]


def test_the_budget_counts_only_from_when_it_is_known() -> None:
    traces = [polled(step, looked(unknown=NO_BUDGET)) for step in range(40)] + [polled(40, looked())]
    assert "96% of the budget of all iterations unused" in said(WastePanel, view_of(traces))


def test_what_a_server_does_not_count_is_no_zero() -> None:
    poll = looked(rank(num_generation_tokens=None, num_prompt_tokens=None))
    text = said(BudgetPanel, view_of([polled(0, poll)]))
    assert "? outputs" in text and "0.0" not in text
    assert "tokens computed" not in said(WastePanel, view_of([polled(0, poll)]))


def test_before_there_is_anything_to_compare_with_nothing_is_counted() -> None:
    view = view_of([polled(0, first_look())])
    assert "0.0" not in said(BudgetPanel, view) and "Tokens per iteration" in said(BudgetPanel, view)
    assert "what it counts is known from the next poll on" in said(StepPanel, view)


def test_above_the_last_bound_all_that_is_known_is_that_bound() -> None:
    slow = looked(latencies={"ttft": histogram(3.0, 4.0)})
    ttft = next(line for line in said(LatencyPanel, view_of([polled(0, slow)])).splitlines() if "TTFT" in line)
    assert ttft.split()[1:5] == [">1s"] * 4


def test_an_outage_has_a_mark_of_its_own() -> None:
    assert said(BudgetPanel, view_of(SERIES["away"]())).splitlines()[-1].endswith("✗")


def test_a_large_prefix_cache_is_drawn_as_far_as_there_is_room() -> None:
    stores = tuple(PrefixOp("store", tuple(f"{text}-{block}" for block in range(50))) for text in range(300))
    view = view_of([polled(0, looked(prefix=stores, prefix_known="whole"))])
    lines = said(BlocksPanel, view, (42, 10)).splitlines()
    assert len(lines) == 10
    assert "prefix cache 15,000" in lines[2]
    shown = sum(int(part.lstrip("▪▣")) for line in lines[3:-2] for part in line.split())
    assert lines[-2].strip() == f"… and {15_000 - shown:,} blocks more"


async def test_keys_send_requests() -> None:
    async with dashboard((120, 40), *server_events(series())) as stand:
        await stand.press("s", "u")
        sent = [command for command in stand.source.take_sent() if isinstance(command, AddRequest)]
        assert [command.priority for command in sent] == [0, -10]
        assert "ignores it" not in stand.text(), "what the server does with a priority is not known here"


@pytest.mark.parametrize("key", ["D", "N", "1", "c", "P", "left_curly_bracket", "R", "v"])
async def test_what_takes_an_engine_of_our_own_is_refused(key: str) -> None:
    async with dashboard((120, 40), *server_events(series())) as stand:
        await stand.press(key)
        assert stand.source.take_sent() == []
        (notice,) = stand.app._notifications
        assert "elsewhere" in notice.message


async def test_parameters_are_shown_as_far_as_they_are_told() -> None:
    async with dashboard((120, 40), *server_events(series())) as stand:
        await stand.press("p")
        row = next(line for line in stand.lines() if "mixed_chunk" in line)
        assert "not told" in row
        row = next(line for line in stand.lines() if "max_num_batched_tokens" in line)
        assert row.split()[-1] == "256"
        await stand.press("right")
        assert stand.source.take_sent() == []
        assert NOT_OURS.split(":")[0] in " ".join(stand.text().split())


async def test_help_tells_of_a_server_and_not_of_an_engine() -> None:
    async with dashboard((120, 40), *server_events(series())) as stand:
        await stand.press("question_mark")
        text = stand.text()
        assert "A server elsewhere is looked at" in text and "Walk through the polls" in text
        assert "A real language model runs here" not in text and "Play a preset" not in text


@pytest.mark.parametrize("key", ["s", "l", "b", "d", "u", "i", "greater_than_sign", "x", "a"])
async def test_read_only_sends_nothing_whatever_is_pressed(key: str) -> None:
    ready = replace(SERVER_READY, server=replace(SERVER, read_only=True))
    async with dashboard((120, 40), *server_events(series(), ready)) as stand:
        await stand.press("j", key)
        assert stand.source.take_sent() == []
        assert READ_ONLY in [notice.message for notice in stand.app._notifications] or key == "a"
        assert "read-only" in "".join(stand.lines())


async def test_one_walks_through_polls_as_through_steps() -> None:
    async with dashboard((120, 40), *server_events(series())) as stand:
        await stand.press("left_square_bracket")
        assert "poll 15 ◂ 8 back" in stand.lines()[0]
        await stand.press("w")
        assert "Why: poll 15" in stand.text()
        await stand.press("escape", "home")
        assert "prefix cache 3 " in stand.text()


# Recordings, and what is made of them.


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    path = tmp_path / "server.jsonl"
    recorder = Recorder(path)
    recorder.begin(SERVER_READY)
    for trace in SERIES["away"]():
        recorder.write(trace)
    recorder.end()
    return path


async def test_a_recording_is_the_same_server(recorded: Path) -> None:
    recording = Recording(recorded)
    assert recording.traces == SERIES["away"]()
    async with dashboard((120, 40), start=lambda _: Replay(recording, 15)) as stand:
        stand.app.tick()
        await stand.settle()
        assert "recording" in stand.lines()[0] and "vLLM 0.32.0" in stand.lines()[0] and "poll 15" in stand.lines()[0]


def test_polls_as_tables(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for format in ("csv", "json"):
        target = recorded.with_name(f"out.{format}")
        assert run_cli(capsys, "export", str(recorded), "--as", format, "--to", str(target)).code == 0
    rows = list(csv.DictReader(recorded.with_name("out-polls.csv").open()))
    assert len(rows) == 25
    assert (rows[9]["preemptions"], rows[9]["iterations"], rows[9]["itl_mean_s"]) == ("1", "20", "0.025")
    assert (rows[0]["preemptions"], rows[24]["running"], rows[24]["problem"]) == ("", "", PROBLEM)
    requests = list(csv.DictReader(recorded.with_name("out-requests.csv").open()))
    assert [(row["outputs"], row["end"]) for row in requests] == [("20", "length"), ("20", ""), ("0", "")]
    table = json.loads(recorded.with_name("out.json").read_bytes())
    assert table["server"]["url"] == SERVER.url
    assert "policy" not in table["config"] and table["config"]["max_num_seqs"] == 12
    assert table["polls"][1]["told"]["ranks"][0]["num_iterations"] == 20
    assert len(table["requests"][0]["token_times_s"]) == 20


@pytest.mark.parametrize("arguments", [("export", "--as", "perfetto"), ("compare",)])
def test_what_takes_steps_is_refused(
    recorded: Path, arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    command, *others = arguments
    result = run_cli(capsys, command, str(recorded), *others)
    assert result.code == 2
    assert "server elsewhere" in result.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("ftp://host",), "http or https"),
        (("http://me:secret@host",), "NANOVIZ_API_KEY"),
        (("http://",), "address"),
    ],
)
def test_addresses_that_cannot_be_meant(
    arguments: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run_cli(capsys, "attach", *arguments)
    assert result.code == 2
    assert told in result.err and "secret" not in result.err and "Traceback" not in result.err


def test_why_a_request_of_ours_failed_is_told_as_text() -> None:
    failed = Finished("2", "error", 20, told="the server has gone away" + HOSTILE)
    traces = [*series(), polled(24, looked(), finished=(failed,), waiting=("3",), num_waiting=1)]
    view = view_of(traces)
    assert "the server has gone away" in said(EventsPanel, view, (120, 20))
    assert "failed 20" in said(RequestsPanel, view, (120, 20))
    assert len(view.samples["e2e"]) == 1, "how long a failure took is no latency"
    check_lines(made(EventsPanel, view).draw(120, 20), 120)
