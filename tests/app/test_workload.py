"""Workload: which requests a preset brings, and when; and the same requests alone."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.player import Player, parts
from app.preset import Event, Inject, Preset, Scene
from app.prompts import prompt
from app.protocol import AddRequest, Cue, EngineOptions, Note, Reconfigure, SetPaused
from app.run import Run
from app.session import Session
from app.workload import alone_cues, arrivals, cues, filler, labels, outputs
from engine.config import ConfigError, EngineConfig
from tests.app.preset_support import events_of, preset_of, run_of, traces_of
from tests.app.support import ScriptedSource, repeatable


def preset(*script: Event, scenes: int = 1, seed: int = 0, **others: Any) -> Preset:
    made = {
        "title": "x",
        "moral": "x.",
        "script": list(script),
        "scene": [Scene(name=f"scene-{number}") for number in range(scenes)],
        "expect": [{"check": "served > 0"}],
        "seed": seed,
        **others,
    }
    return Preset.model_validate(made)


def event(step: int | None = 0, *, second: float | None = None, **inject: Any) -> Event:
    return Event.model_validate({"step": step, "second": second, "inject": inject})


INJECTS = st.fixed_dictionaries(
    {"tokens": st.tuples(st.integers(1, 40), st.integers(0, 40)).map(lambda pair: [pair[0], sum(pair)])},
    optional={
        "count": st.integers(1, 6),
        "every": st.sampled_from([0, 1, 2.5]),
        "max_tokens": st.sampled_from([1, 7, [3, 9]]),
        "priority": st.integers(-3, 3),
    },
)
EVENTS = st.builds(lambda step, inject: event(step, **inject), st.integers(0, 30), INJECTS)


@repeatable
@given(st.lists(EVENTS, min_size=1, max_size=5), st.integers(0, 1000))
def test_what_arrives_is_what_was_asked_for(script: list[Event], seed: int) -> None:
    made = preset(*script, seed=seed)
    found = arrivals(made, made.scene[0])
    assert [arrival.request.request_id for arrival in found] == [str(n + 1) for n in range(len(found))]
    rest = iter(found)
    for asked in script:
        for inject in asked.inject:
            group = [next(rest) for _ in range(inject.count)]
            assert [g.time for g in group] == [(asked.step or 0) + inject.every * n for n in range(inject.count)]
            for arrival in group:
                request, (least, most) = arrival.request, inject.tokens or (0, 0)
                assert least <= sum(piece.num_tokens for piece in request.pieces) <= most
                least, most = inject.max_tokens or (32, 32)
                assert least <= request.params.max_tokens <= most
                assert request.priority == inject.priority and request.params.ignore_eos
                assert arrival.unit == "step"
    assert next(rest, None) is None
    assert arrivals(made, made.scene[0]) == found, "the same seed gives the same"


def test_another_seed_gives_other_requests() -> None:
    script = event(tokens=[5, 50], max_tokens=[5, 50], count=20, rate=0.5)
    one, same, other = (preset(script, seed=seed) for seed in (1, 1, 2))
    assert arrivals(one, one.scene[0]) == arrivals(same, same.scene[0])
    assert arrivals(one, one.scene[0]) != arrivals(other, other.scene[0])


def test_one_more_group_changes_nothing_in_those_before_it() -> None:
    script = [event(tokens=[5, 50], count=5, rate=0.5), event(3, tokens=[5, 50], count=5)]
    short, long = preset(*script), preset(*script, event(4, tokens=[5, 50]))
    assert arrivals(long, long.scene[0])[:10] == arrivals(short, short.scene[0])


def test_every_scene_gets_the_same_requests_whatever_its_parameters_and_its_own() -> None:
    script = event(tokens=[5, 50], max_tokens=[5, 50], count=20, rate=0.5)
    made = preset(script)
    other = Scene.model_validate(
        {"name": "other", "parameters": {"max_num_seqs": 2}, "script": [event(1, tokens=[1, 9], count=3)]}
    )
    assert arrivals(made, other)[:20] == arrivals(made, made.scene[0])
    assert len(arrivals(made, other)) == 23


def test_lengths_use_all_of_their_range() -> None:
    made = preset(event(tokens=[3, 5], count=200))
    lengths = {sum(piece.num_tokens for piece in a.request.pieces) for a in arrivals(made, made.scene[0])}
    assert lengths == {3, 4, 5}


@pytest.mark.parametrize("unit", ["step", "second"])
def test_random_arrivals_come_at_their_rate(unit: str) -> None:
    start: dict[str, Any] = {"step": 10} if unit == "step" else {"step": None, "second": 10.0}
    made = preset(event(**start, tokens=5, count=4000, rate=0.25))
    found = arrivals(made, made.scene[0])
    times = [arrival.time for arrival in found]
    assert {arrival.unit for arrival in found} == {unit} and times == sorted(times) and times[0] >= 10
    assert fmean(b - a for a, b in pairwise(times)) == pytest.approx(4, rel=0.1)
    assert len({b - a for a, b in pairwise(times)}) > 1000, "and not evenly"
    obeyed = [cue for cue in cues(made, made.scene[0]) if isinstance(cue.command, AddRequest)]
    if unit == "step":
        assert [cue.step for cue in obeyed] == [int(time) for time in times]
    else:
        assert [cue.second for cue in obeyed] == times and {cue.step for cue in obeyed} == {None}


def test_a_second_is_counted_on_in_seconds() -> None:
    made = preset(event(None, second=1.5, tokens=5, count=3, every=0.5))
    assert [cue.second for cue in cues(made, made.scene[0])] == [1.5, 2.0, 2.5]


def test_kinds_are_the_prompts_behind_the_keys_one_after_another() -> None:
    made = preset(event(kind="short", count=2), event(kind="long"), event(kind="short", max_tokens=3, label="mine"))
    found = [arrival.request for arrival in arrivals(made, made.scene[0])]
    short = [prompt("short", number) for number in range(3)]
    assert [request.prompt for request in found] == [
        short[0].text,
        short[1].text,
        prompt("long", 0).text,
        short[2].text,
    ]
    assert [request.params.max_tokens for request in found[:2]] == [p.max_tokens for p in short[:2]]
    assert found[3].params.max_tokens == 3
    assert [request.label for request in found] == ["short", "short", "long", "mine"]
    assert labels(made) == {"short", "long", "mine"}


def test_text_is_taken_as_it_is_behind_what_is_shared() -> None:
    made = preset(event(text="Who?"), event(text="Where?", shared="You are a guide.\n", count=2))
    assert [a.request.prompt for a in arrivals(made, made.scene[0])] == [
        "Who?",
        *2 * ["You are a guide.\n\nWhere?"],
    ]
    assert all(not arrival.request.pieces for arrival in arrivals(made, made.scene[0]))


def test_a_prompt_by_its_length_is_long_from_where_the_screen_calls_it_so() -> None:
    made = preset(event(tokens=5), event(tokens=786), event(tokens=786, label="big"))
    assert [arrival.request.label for arrival in arrivals(made, made.scene[0])] == ["short", "long", "big"]


def test_fillers_are_text_and_differ_from_their_first_word_on() -> None:
    texts = [filler(number) for number in range(30)]
    assert len({text[:30] for text in texts}) == 30
    assert all(len(text) > 100 and text.endswith(" ") for text in texts)


@settings(repeatable, max_examples=25)
@given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 30)), min_size=1, max_size=5), st.integers(1, 3))
def test_prompts_have_exactly_so_many_tokens_and_what_is_shared_is_shared(
    lengths: list[tuple[int, int]], count: int
) -> None:
    """As the engine gets them, from a tokenizer that makes a token of a byte."""
    script = [
        event(2 * step, tokens=shared + own, shared_tokens=shared, max_tokens=1, count=count)
        for step, (own, shared) in enumerate(lengths)
    ]
    (part,) = parts(preset(*script, parameters={"max_model_len": 64}), {})
    arrived = [arrival for trace in traces_of(part) for arrival in trace.arrivals]
    each = [(own, shared) for own, shared in lengths for _ in range(count)]
    assert [arrival.num_prompt_tokens for arrival in arrived] == [own + shared for own, shared in each]
    prompts = [arrival.prompt.encode() for arrival in arrived]
    common = filler(0).encode()
    for text, (own, shared) in zip(prompts, each, strict=True):
        assert len(text) == own + shared and text[:shared] == common[:shared]
    own_parts = [text[shared:] for text, (own, shared) in zip(prompts, each, strict=True) if own >= 20]
    assert len(own_parts) == len(set(own_parts)), "what is not shared differs"


def test_shared_tokens_are_hits() -> None:
    made = preset(
        event(0, tokens=40, shared_tokens=32, max_tokens=1), event(2, tokens=[33, 60], shared_tokens=32, count=5)
    )
    (part,) = parts(made, {})
    assert [row.num_cached_tokens for row in run_of(part).requests] == [0, 32, 32, 32, 32, 32]


def test_at_one_step_notes_and_changes_come_before_requests_and_a_pause_after_its_step() -> None:
    made = preset(
        Event.model_validate({"step": 4, "inject": {"tokens": 5}}),
        Event.model_validate({"step": 4, "say": "Look.", "set": {"max_num_seqs": 2}, "pause": True}),
    )
    found = cues(made, made.scene[0])
    assert [(type(cue.command), cue.step) for cue in found] == [
        (SetPaused, 5),
        (Note, 4),
        (Reconfigure, 4),
        (AddRequest, 4),
    ]


def test_what_somebody_holds_is_not_changed_by_the_script() -> None:
    change = Event.model_validate({"step": 1, "set": {"max_num_seqs": 2, "watermark": 0.5}})
    made = preset(event(tokens=5), change)
    ((*_, scripted),) = [
        [c.command for c in part.cues if isinstance(c.command, Reconfigure)] for part in parts(made, {})
    ]
    assert scripted == Reconfigure({"max_num_seqs": 2, "watermark": 0.5})
    (part,) = parts(made, {"max_num_seqs": 5})
    assert part.config.max_num_seqs == 5
    assert [c.command for c in part.cues if isinstance(c.command, Reconfigure)] == [Reconfigure({"watermark": 0.5})]
    (part,) = parts(made, {"max_num_seqs": 5, "watermark": 0.0})
    assert not [c for c in part.cues if isinstance(c.command, Reconfigure)]


def test_parameters_with_which_the_engine_would_refuse_a_change_are_refused() -> None:
    made = preset(event(tokens=5), Event.model_validate({"step": 1, "set": {"num_blocks": 70}}))
    parts(made, {})
    with pytest.raises(ConfigError, match="step 1"):
        parts(made, {"max_model_len": 1500})


# Alone.


def alone_preset(*script: Event, **others: Any) -> Preset:
    return preset(*script, expect=[{"check": "outputs equal alone"}], **others)


def test_alone_serves_each_different_request_once_and_by_itself() -> None:
    made = alone_preset(event(0, tokens=5, count=3, label="a"), event(0, text="Who?", count=2), event(9, text="Who?"))
    *scenes, alone = parts(made, {})
    assert alone.name == "alone" and [scene.name for scene in scenes] == ["scene-0"]
    traces = traces_of(alone)
    assert sum(len(trace.arrivals) for trace in traces) == 4, "three by their length, and one text"
    assert max(len(trace.scheduled) for trace in traces) == 1
    alive: set[str] = set()
    for trace in traces:
        alive |= {arrival.request_id for arrival in trace.arrivals}
        assert len(alive) <= 1
        alive -= {finished.request_id for finished in trace.finished}


def test_alone_has_room_for_the_longest_request_of_any_scene() -> None:
    scenes = [
        {"name": "small", "parameters": {"max_model_len": 64}, "script": [event(tokens=20)]},
        {"name": "large", "parameters": {"max_model_len": 512}, "script": [event(tokens=400)]},
    ]
    made = alone_preset(scene=scenes)
    played = {part.name: run_of(part) for part in parts(made, {})}
    assert [len(row.token_ids) for row in played["alone"].requests] == [32, 32] and not played["alone"].refused


def test_nothing_of_the_scenes_parameters_is_left_in_alone_but_sizes() -> None:
    made = alone_preset(event(tokens=5), parameters={"policy": "sglang", "block_size": 32, "watermark": 0.1})
    alone = parts(made, {})[-1].config
    assert alone == replace(
        EngineConfig(), block_size=32, max_num_batched_tokens=1024, num_blocks=33, max_num_seqs=1,
        enable_prefix_caching=False,
    )  # fmt: skip


def test_without_a_check_for_it_nobody_is_served_alone() -> None:
    assert [part.name for part in parts(preset(event(tokens=5), scenes=2), {})] == ["scene-0", "scene-1"]


def test_the_same_request_has_one_name_in_all_scenes_and_alone() -> None:
    made = alone_preset(event(tokens=[5, 20], count=6, max_tokens=6), event(text="Who?", priority=3), scenes=2)
    said = [outputs(run_of(part), part.cues) for part in parts(made, {})]
    assert said[0].keys() == said[1].keys() == said[2].keys() and len(said[0]) == 7
    assert said[0] == said[1] == said[2], "the scripted model is a function of the text"


def test_duplicates_that_differ_and_repetitions_that_differ_are_seen() -> None:
    made = preset(event(text="Who?", count=2, max_tokens=4))
    (part,) = parts(made, {})
    same, other = run_of(part), run_of(part)
    ((said,),) = outputs(same, part.cues).values()
    other.requests[1].token_ids[-1] += 1
    assert len(next(iter(outputs(other, part.cues).values()))) == 2
    same.repeats.append(other)
    assert next(iter(outputs(same, part.cues).values())) == {said, (*said[:-1], said[-1] + 1)}


def test_who_was_not_served_has_an_empty_output() -> None:
    made = preset(event(text="Who?"), event(text="x" * 100), parameters={"max_model_len": 64})
    (part,) = parts(made, {})
    assert () in {output for said in outputs(run_of(part), part.cues).values() for output in said}
    empty = outputs(Run("nothing"), part.cues)
    assert set(map(frozenset, empty.values())) == {frozenset({()})}


def test_what_a_person_sends_is_no_part_of_the_outputs() -> None:
    made = preset(event(text="Who?"))
    (part,) = parts(made, {})
    more = [*part.cues, Cue(AddRequest("99", "Why?", "short", part.cues[0].command.params), step=1)]  # type: ignore[union-attr]
    both = Run("x", traces_of(replace(part, cues=tuple(more))))
    assert len(both.requests) == 2 and outputs(both, part.cues) == outputs(run_of(part), part.cues)


# Player.


def test_a_player_begins_each_part_and_keeps_its_run_once(tmp_path: Path) -> None:
    made = preset_of(tmp_path, middle='[[scene]]\nname = "a"\n[[scene]]\nname = "b"\n')
    session = Session(EngineOptions("tiny", "auto", "cpu", 1, EngineConfig()), ScriptedSource, 100)
    player = Player(session, made, {"max_num_seqs": 3})

    def play(index: int, number: int) -> None:
        player.play(index)
        assert not player.is_over and not player.look()
        for said in events_of(player.part.config, player.part.cues, number):
            session.take(said)

    assert [verdict.passed for verdict in player.verdicts()] == [None]
    for index, name in enumerate(("a", "b")):
        play(index, index + 1)
        assert player.part.name == name and player.part.config.max_num_seqs == 3
        assert player.look() and not player.look() and player.is_over
        assert player.is_last == (index == 1)
    assert list(player.runs) == ["a", "b"] and not any(run.was_touched for run in player.runs.values())
    assert [verdict.passed for verdict in player.verdicts()] == [True]
    first = player.runs["a"]
    player.play(0)
    session.abort("1")
    for said in events_of(player.part.config, player.part.cues, 3):
        session.take(said)
    assert player.look() and player.runs["a"].was_touched and player.runs["a"] is not first
    play(0, 4)
    assert player.look() and not player.runs["a"].was_touched, "played again, nobody has joined in"


def test_the_alone_script_has_one_note_and_a_request_for_each_gap() -> None:
    made = alone_preset(event(tokens=5, count=2))
    first, *requests = alone_cues(made)
    assert isinstance(first.command, Note) and first.step == 0
    assert [cue.command.request_id for cue in requests if isinstance(cue.command, AddRequest)] == ["1", "2"]


def test_inject_says_exactly_one_thing() -> None:
    for wrong in ({}, {"kind": "short", "tokens": 3}, {"text": "x", "tokens": 3}, {"kind": "short", "text": "x"}):
        with pytest.raises(ValueError, match="one of kind, text and tokens"):
            Inject.model_validate(wrong)
