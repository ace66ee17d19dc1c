"""Expectations: how a check is read, and what becomes of it."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.expectation import ALONE, OPERATORS, Expectation, ExpectationError, Outputs, Verdict
from app.metrics import STATISTICS, TOTALS, Metric
from app.run import Run
from tests.app.support import compared_runs, repeatable, scenario

SCENES = ("few", "many")


@cache
def runs() -> dict[str, Run]:
    """`few` has 3 requests and no preemption; `many` has 4 and some."""
    return {"few": Run("few", scenario("sharing")), "many": Run("many", scenario("preempting"))}


def figure(name: str, scene: str) -> float:
    value = Metric.parse(name).of(runs()[scene])
    assert value is not None
    return value


def verdict(check: str, scenes: tuple[str, ...] = SCENES) -> Verdict:
    return Expectation.parse(check, "", scenes).verdict({name: runs()[name] for name in scenes}, scenes, {})


def test_the_runs_of_these_tests_are_what_their_names_say() -> None:
    assert figure("requests", "few") == 4 == figure("requests", "many")
    assert figure("preemptions", "few") == 0 < figure("preemptions", "many")


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("number", [3, 4, 5])
def test_every_operator_compares(operator: str, number: int) -> None:
    wanted = {
        ">": number < 4,
        "<": number > 4,
        ">=": number <= 4,
        "<=": number >= 4,
        "==": number == 4,
        "!=": number != 4,
    }
    assert verdict(f"requests {operator} {number}").passed is wanted[operator]
    mirrored = {">": "<", "<": ">", ">=": "<=", "<=": ">="}.get(operator, operator)
    assert verdict(f"{number} {mirrored} requests").passed is wanted[operator]


@pytest.mark.parametrize(
    ("check", "passed", "found"),
    [
        ("requests == 4", True, "few 4; many 4"),
        ("requests==4", True, "few 4; many 4"),
        ("  requests \n ==\t4 ", True, "few 4; many 4"),
        ("requests@few == 4.0", True, "4"),
        ("preemptions@many>preemptions@few", True, None),
        ("preemptions >= 1", False, None),
        ("preemptions@many >= 1", True, None),
        ("3 < requests@few < 5", True, "4"),
        ("3 < requests@few < 4", False, "4"),
        ("1.5 * requests@few == 6", True, "4"),
        ("1.5*requests@few == 6", True, "4"),
        ("7 > 1.5 * requests@few >= 0.5 * requests@many > 1", True, "4, 4"),
        ("preemptions > -1", True, None),
        ("ttft.nobody.max@few < 1", False, "-"),
        ("ttft.nobody.max@few >= 0", False, "-"),
        ("0 != ttft.nobody.max@few", False, "-"),
    ],
)
def test_a_check_passes_or_fails_with_what_was_found(check: str, passed: bool, found: str | None) -> None:
    told = verdict(check)
    assert told.passed is passed and told.check == " ".join(check.split())
    assert found is None or told.found == found


def test_without_a_scene_every_scene_has_to_pass_beside_those_that_are_named() -> None:
    most = figure("preemptions", "many")
    assert verdict(f"preemptions <= {most:g} * requests@few").passed
    assert verdict("preemptions < preemptions@many").passed is False, "many is not below itself"
    assert verdict("preemptions < preemptions@many", ("many",)).passed is False


def test_a_check_whose_scenes_were_not_all_played_is_open() -> None:
    for check, open_without in {
        "preemptions >= 0": ("few", "many"),
        "preemptions@few >= 0": ("few",),
        "preemptions@few < preemptions@many": ("few", "many"),
        "preemptions@few <= preemptions": ("few", "many"),
    }.items():
        expectation = Expectation.parse(check, "", SCENES)
        for missing in SCENES:
            played = {name: run for name, run in runs().items() if name != missing}
            told = expectation.verdict(played, SCENES, {})
            assert (told.passed is None) == (missing in open_without), (check, missing)


@pytest.mark.parametrize(
    ("check", "word"),
    [
        ("", "compares nothing"),
        ("preemptions", "compares nothing"),
        ("preemptions = 2", "compares nothing"),
        ("outputs same", "compares nothing"),
        ("preemptions >=", "one side"),
        (">= 2", "one side"),
        ("preemptions >= >= 2", "one side"),
        ("preemptions@few <> 2", "one side"),
        ("preemptions => 2", "'preemptions ='"),
        ("preemptions > two three", "'two three'"),
        ("preemptions > nan", "'nan'"),
        ("preemptions > 1_000", "'1_000'"),
        ("2 * 3 * preemptions > 1", "'2 * 3 * preemptions'"),
        ("preemptions * 2 > 1", "'preemptions * 2'"),
        ("1.2.3 * preemptions > 1", "1.2.3"),
        ("preemptions @few > 1", "'preemptions @few'"),
        ("preemptions@fe > 1", "'fe'; there are: few, many"),
        ("ttft > 1", "ttft.max"),
        ("ttft.p42 > 1", "p95"),
        ("preemptions.max > 1", "one number"),
        ("hunger.max > 1", "'hunger'"),
        ("1 < 2", "no metric"),
    ],
)
def test_a_check_that_cannot_be_read_is_told_why(check: str, word: str) -> None:
    with pytest.raises(ExpectationError) as caught:
        Expectation.parse(check, "", SCENES)
    assert word in str(caught.value)


METRICS = st.sampled_from([*TOTALS, *(f"itl_steps.{name}" for name in STATISTICS), "ttft_steps.short.max"])
SCENE = st.sampled_from(["", "@few", "@many"])
SPACE = st.sampled_from(["", " ", "  "])
FACTOR = st.sampled_from(["", "2", "0.5", "10.25"])


@repeatable
@given(st.lists(st.tuples(FACTOR, METRICS, SCENE, SPACE), min_size=2, max_size=4), st.data())
def test_a_check_means_what_it_says(terms: list[tuple[str, str, str, str]], data: st.DataObject) -> None:
    signs = [data.draw(st.sampled_from(list(OPERATORS))) for _ in terms[1:]]
    parts = [f"{f}{s}*{s}{metric}{at}" if f else f"{metric}{at}" for f, metric, at, s in terms]
    check = parts[0]
    for sign, part, (*_, space) in zip(signs, parts[1:], terms, strict=False):
        check += f"{space}{sign}{space}{part}"

    def holds(scene: str) -> bool:
        values = []
        for factor, metric, at, _ in terms:
            value = Metric.parse(metric).of(runs()[at[1:] or scene])
            values.append(None if value is None else float(factor or 1) * value)
        return all(
            left is not None and right is not None and OPERATORS[sign](left, right)
            for sign, left, right in zip(signs, values, values[1:], strict=False)
        )

    scenes = SCENES if any(not at for *_, at, _ in terms) else ("few",)
    assert verdict(check).passed is all(map(holds, scenes))


def test_of_a_run_that_was_repeated_the_median_counts() -> None:
    repeated = Run("few", scenario("sharing"))
    repeated.repeats = [Run("few", scenario("busy")), Run("few", scenario("preempting"))]
    found = sorted(Metric.parse("requests").of(one) or 0 for one in (Run("x", scenario("sharing")), *repeated.repeats))
    told = Expectation.parse(f"requests == {found[1]:g}", "", ("few",)).verdict({"few": repeated}, ("few",), {})
    assert told.passed


# Outputs.

SAME: Outputs = {"hello": {(1, 2)}, "bye": {(3,)}}


@pytest.mark.parametrize(
    ("few", "many", "alone", "equal", "equal_alone"),
    [
        (SAME, SAME, SAME, True, True),
        (SAME, {**SAME, "bye": {(4,)}}, SAME, False, False),
        (SAME, SAME, {**SAME, "bye": {(4,)}}, True, False),
        (SAME, {"hello": {(1, 2)}}, SAME, True, True),
        ({**SAME, "bye": {(3,), (4,)}}, SAME, SAME, False, False),
        ({**SAME, "bye": {(3,), (4,)}}, {"hello": {(1, 2)}}, SAME, False, False),
        (SAME, {**SAME, "bye": {()}}, SAME, False, False),
        ({**SAME, "bye": {()}}, {**SAME, "bye": {()}}, {**SAME, "bye": {()}}, False, False),
        ({}, {}, {}, False, False),
    ],
)
def test_outputs_are_equal_if_every_request_says_one_thing(
    few: dict[str, set[tuple[int, ...]]],
    many: dict[str, set[tuple[int, ...]]],
    alone: dict[str, set[tuple[int, ...]]],
    equal: bool,
    equal_alone: bool,
) -> None:
    """A request that was not served has said nothing, which is no output like any other."""
    outputs = {"few": few, "many": many, ALONE: alone}
    for check, wanted in {"outputs equal": equal, " outputs  equal alone": equal_alone}.items():
        expectation = Expectation.parse(check, "text", SCENES)
        told = expectation.verdict({}, SCENES, outputs)
        assert told.passed is wanted and told.text == "text"
        assert expectation.needs_alone == ("alone" in check)


def test_each_request_alone_is_a_scene_that_a_check_can_speak_of() -> None:
    expectation = Expectation.parse("requests@few < 2 * requests@alone", "", SCENES)
    assert expectation.needs_alone and not Expectation.parse("requests@few < 2", "", SCENES).needs_alone
    runs = {name: Run(name, scenario("seats")) for name in ("few", ALONE)}
    assert expectation.verdict(runs, SCENES, {}).passed is True
    assert expectation.verdict({"few": runs["few"]}, SCENES, {}).passed is None


def test_outputs_of_scenes_that_were_not_all_played_are_open() -> None:
    played = {"few": SAME, "many": SAME}
    assert Expectation.parse("outputs equal", "", SCENES).verdict({}, SCENES, {"few": SAME}).passed is None
    assert Expectation.parse("outputs equal", "", SCENES).verdict({}, SCENES, played).passed is True
    assert Expectation.parse("outputs equal alone", "", SCENES).verdict({}, SCENES, played).passed is None


def test_how_many_requests_say_the_same_is_told() -> None:
    outputs = {"few": SAME, "many": {**SAME, "bye": {(4,)}}}
    told = Expectation.parse("outputs equal", "", SCENES).verdict({}, SCENES, outputs)
    assert told.found == "1 of 2 requests"


def test_latencies_are_told_as_people_write_them() -> None:
    static, orca, _ = compared_runs()
    told = Expectation.parse("itl.short.max@static >= itl.short.max@orca", "", ("static", "orca")).verdict(
        {"static": static, "orca": orca}, ("static", "orca"), {}
    )
    assert told.found.count(" ms") == 2
