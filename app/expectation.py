"""Expectations: what a preset says must be true of its runs, checked against their metrics.

A check compares metrics and numbers, in a chain if need be; `@` names the scene that is meant, without it every scene
has to pass:

    preemptions >= 2
    itl.short.max@2048 > itl.short.max@256 > itl.short.max@64
    ttft.long.max@64 >= 1.5 * ttft.long.max@2048
    outputs equal               the same tokens in all scenes
    outputs equal alone         the same tokens that each request gets alone

Each request alone is a scene of its own, `alone`, which is played if a check speaks of it.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise

from app.metrics import Metric, MetricError, amount
from app.run import Run

Outputs = Mapping[str, Set[tuple[int, ...]]]
"""By what was asked, all different outputs, an empty one if it was not served: the same request has the same name in
every scene."""

ALONE = "alone"
"""The scene in which each request of the others is served alone."""
OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}
_OPERATOR = re.compile("({})".format("|".join(OPERATORS)))
_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")
_TERM = re.compile(r"(?:(?P<factor>[0-9.]+)\s*\*\s*)?(?P<metric>[a-z][A-Za-z0-9_.-]*)(?:@(?P<scene>\S+))?")
_OUTPUTS = {"outputs equal": False, "outputs equal alone": True}


class ExpectationError(ValueError):
    """A check that cannot be read; the text says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Term:
    """`factor` times a metric of a scene, or of the scene in turn; without a metric it is the number itself."""

    factor: float
    metric: Metric | None = None
    scene: str = ""

    def measured(self, runs: Mapping[str, Run], scene: str) -> float | None:
        """The metric alone."""
        return self.metric.of(runs[self.scene or scene]) if self.metric else 1.0

    def of(self, runs: Mapping[str, Run], scene: str) -> float | None:
        measured = self.measured(runs, scene)
        return None if measured is None else self.factor * measured


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of an expectation."""

    check: str
    text: str
    passed: bool | None
    """None if not all of its scenes were played."""
    found: str
    """The values that were compared."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """A check that has been read: terms with operators between them, or the equality of outputs."""

    check: str
    text: str
    terms: tuple[Term, ...] = ()
    operators: tuple[str, ...] = ()

    @classmethod
    def parse(cls, check: str, text: str, scenes: Sequence[str]) -> Expectation:
        """Read a check about these scenes. Raises ExpectationError."""
        check = " ".join(check.split())
        if check in _OUTPUTS:
            return cls(check, text)
        first, *rest = _OPERATOR.split(check)
        operators, terms = rest[::2], [first, *rest[1::2]]
        if not operators:
            raise ExpectationError(
                f"{check!r} compares nothing: write it like `preemptions >= 2`, or `outputs equal alone`"
            )
        if not all(term.strip() for term in terms):
            raise ExpectationError(
                f"{check!r} has nothing on one side of an operator; there are: {', '.join(OPERATORS)}"
            )
        read = tuple(_term(term.strip(), scenes) for term in terms)
        if not any(term.metric for term in read):
            raise ExpectationError(f"{check!r} asks for no metric: its numbers are always the same")
        return cls(check, text, read, tuple(operators))

    @property
    def needs_alone(self) -> bool:
        """Each request has to be served alone as well."""
        return _OUTPUTS.get(self.check, False) or any(term.scene == ALONE for term in self.terms)

    def verdict(self, runs: Mapping[str, Run], scenes: Sequence[str], outputs: Mapping[str, Outputs]) -> Verdict:
        """Check it. `runs` and `outputs` are by scene, ALONE one of them; those that were not played are missing."""
        if self.check in _OUTPUTS:
            return self._of_outputs(scenes, outputs)
        named = {term.scene for term in self.terms if term.scene}
        is_about_all = any(term.metric and not term.scene for term in self.terms)
        turns = list(scenes) if is_about_all else [""]
        if not named <= runs.keys() or (is_about_all and not set(scenes) <= runs.keys()):
            return Verdict(self.check, self.text, None, "its scenes were not all played")
        passed, found = True, []
        for scene in turns:
            values = [term.of(runs, scene) for term in self.terms]
            passed = passed and self._holds(values)
            told = self._told(runs, scene)
            found.append(f"{scene} {told}" if scene and len(turns) > 1 else told)
        return Verdict(self.check, self.text, passed, "; ".join(found))

    def _holds(self, values: Sequence[float | None]) -> bool:
        return all(
            left is not None and right is not None and OPERATORS[name](left, right)
            for name, (left, right) in zip(self.operators, pairwise(values), strict=True)
        )

    def _told(self, runs: Mapping[str, Run], scene: str) -> str:
        """What the metrics are, without the factors and numbers that they are compared with."""
        return ", ".join(amount(t.measured(runs, scene), t.metric.unit) for t in self.terms if t.metric)

    def _of_outputs(self, scenes: Sequence[str], outputs: Mapping[str, Outputs]) -> Verdict:
        wanted = [*scenes, ALONE] if _OUTPUTS[self.check] else list(scenes)
        if not set(wanted) <= outputs.keys():
            return Verdict(self.check, self.text, None, "its scenes were not all played")
        names = {name for scene in scenes for name in outputs[scene]}
        found = [{output for scene in wanted for output in outputs[scene].get(name, ())} for name in names]
        same = sum(len(different) == 1 and () not in different for different in found)
        return Verdict(self.check, self.text, same == len(names) > 0, f"{same} of {len(names)} requests")


def _term(text: str, scenes: Sequence[str]) -> Term:
    if _NUMBER.fullmatch(text):
        return Term(float(text))
    match = _TERM.fullmatch(text)
    if match is None:
        raise ExpectationError(f"{text!r} is neither a number nor a metric")
    try:
        metric = Metric.parse(match["metric"])
        factor = float(match["factor"] or 1)
    except MetricError as error:
        raise ExpectationError(str(error).rstrip(".")) from None
    except ValueError:
        raise ExpectationError(f"{match['factor']!r} is no number") from None
    scene = match["scene"] or ""
    if scene and scene not in (*scenes, ALONE):
        raise ExpectationError(f"there is no scene {scene!r}; there are: {', '.join(scenes)}")
    return Term(factor, metric, scene)
