"""Parameters: what can be changed while the engine runs, how far one key turns it, and what was asked for."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from math import inf, isfinite

from engine.config import ConfigError, EngineConfig
from engine.policy import POLICIES

Value = bool | int | float | str
Changes = dict[str, Value]

SPEED = "speed"
"""No parameter of the scheduler, and yet one that people turn: steps a second."""
FIXED = ("block_size", "max_model_len")
"""The engine is built around these; another one takes a new engine."""

LARGEST = 1_000_000_000
"""More than any engine has of anything, and little enough for every line and message."""

POWERS = tuple(2**exponent for exponent in range(14))
HALVES = (1, 2, 3, *(value for power in POWERS[2:11] for value in (power, power + power // 2)))
"""Powers of two with a stop halfway to the next."""
LADDERS: dict[str, tuple[int | float, ...]] = {
    "max_num_seqs": HALVES[:-5],
    "num_blocks": HALVES,
    "long_prefill_token_threshold": (0, *POWERS[3:]),
    "watermark": (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
    "priority_aging": (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0),
    "schedule_conservativeness": (0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.3, 1.6, 2.0, 3.0, 5.0),
    "new_token_ratio_decay_steps": (1, 2, 5, 10, 20, 40, 60, 100, 200, 500, 1000),
}
"""Where the arrows stop; any other value can be typed. Numbers without a ladder go by powers of two."""
LEAST_SPEED = 0.01
SPEEDS = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 0.0)
"""Steps a second; the last, 0, is as fast as it goes."""
POLL_RATES = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Polls a second of a server elsewhere, to which each of them is work."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One row of the panel."""

    name: str
    help: str
    is_fixed: bool = False


PARAMETERS = (
    *(Parameter(f.name, f.metadata["help"]) for f in fields(EngineConfig) if f.name not in FIXED),
    Parameter(SPEED, "most steps a second; it is not reset with the others"),
    *(Parameter(f.name, f.metadata["help"], is_fixed=True) for f in fields(EngineConfig) if f.name in FIXED),
)


class Parameters:
    """The engine's parameters as it has confirmed them, and what has been asked of it since.

    The engine answers every change once, in the order in which they were asked for.
    """

    def __init__(self, start: EngineConfig, *, is_elsewhere: bool = False) -> None:
        self.start = start
        """What a reset goes back to."""
        self.config = start
        """What holds from the next step on, as far as the engine has said."""
        self.message = ""
        """Why the last change was not made, or not as it was asked for."""
        self.is_elsewhere = is_elsewhere
        """They are those of a server that was started elsewhere, where nobody can change them."""
        self.unknown = frozenset(f.name for f in fields(EngineConfig)) if is_elsewhere else frozenset[str]()
        """Those that such a server does not tell; what stands in `config` is not theirs."""
        self._asked: deque[Changes] = deque()

    def begin(self, start: EngineConfig) -> None:
        """Begin anew with these, as another run does."""
        self.start = self.config = start
        self.message = ""
        self.forget()

    def asked(self, name: str) -> Value | None:
        """The value that was asked for and is not confirmed yet."""
        return next((changes[name] for changes in reversed(self._asked) if name in changes), None)

    @property
    def has_asked(self) -> bool:
        return bool(self._asked)

    @property
    def expected(self) -> EngineConfig:
        """What will hold if the engine agrees to all that was asked for."""
        config = self.config
        for changes in self._asked:
            config = replace(config, **changes)  # type: ignore[arg-type]
        return config

    def is_ignored(self, name: str) -> bool:
        """It does nothing under the policy in force. Of one that somebody wrote elsewhere nothing is known."""
        policy = None if self.is_elsewhere else POLICIES.get(self.config.policy)
        return policy is not None and name in policy.ignored

    def to_reset(self) -> Changes:
        """What has to be asked for so that all is as it was at the start."""
        start = {f.name: getattr(self.start, f.name) for f in fields(EngineConfig)}
        others = (self.config, self.expected)
        return {name: value for name, value in start.items() if any(getattr(c, name) != value for c in others)}

    def ask(self, changes: Changes) -> None:
        """These changes have been sent."""
        self._asked.append(changes)
        self.message = ""

    def confirm(self, config: EngineConfig) -> None:
        """The engine has made the oldest of the changes asked for, and this is what it has now."""
        self._answered()
        self.config = config

    def refuse(self, reason: str) -> None:
        """The engine has not made the oldest of the changes asked for."""
        self._answered()
        self.message = reason

    def look_at(self, config: EngineConfig, unknown: Iterable[str]) -> None:
        """They are those of a server elsewhere, of which it does not tell some."""
        self.start = self.config = config
        self.unknown, self.is_elsewhere = frozenset(unknown), True

    def forget(self) -> None:
        """The engine has ended, and with it what was asked of it."""
        self._asked.clear()

    def _answered(self) -> None:
        if self._asked:
            self._asked.popleft()


def turned(config: EngineConfig, name: str, by: int) -> tuple[Value, str]:
    """The next value up (`by` = 1) or down (-1) that the engine could take, and why nearer ones were passed over.

    Raises ConfigError if there is none.
    """
    if name in FIXED:
        raise ConfigError(f"{name} is {getattr(config, name)} and stays so; another one takes a restart.")
    passed = ""
    for value in _further(config, name, by):
        try:
            check(config, name, value)
        except ConfigError as error:
            passed = passed or str(error)
        else:
            return value, passed
    end = "up" if by > 0 else "down"
    raise ConfigError(passed or f"{name} is {getattr(config, name)}: no key goes further {end}, but it can be typed.")


def check(config: EngineConfig, name: str, value: Value) -> None:
    """Raises ConfigError if the engine could not take this value beside its other parameters."""
    replace(config, **{name: value}).validate()  # type: ignore[arg-type]


def next_speed(speed: float, by: int) -> float:
    """The next of SPEEDS up or down; at the end the one that there is."""
    now = speed or inf
    speeds = [other or inf for other in SPEEDS]
    found = min(_above(now, speeds), default=now) if by > 0 else max(_below(now, speeds), default=now)
    return 0.0 if found == inf else found


def next_poll_rate(rate: float, by: int) -> float:
    """The next of POLL_RATES up or down; at the end the one that there is."""
    return (
        min(_above(rate, POLL_RATES), default=POLL_RATES[-1])
        if by > 0
        else max(_below(rate, POLL_RATES), default=POLL_RATES[0])
    )


def parse(name: str, text: str) -> Value:
    """What a person typed, as a value of the parameter's type; whether it can be in force the engine knows.

    Raises ConfigError, with what would be right.
    """
    kind = float if name == SPEED else type(getattr(EngineConfig(), name))
    if kind is str:
        return text
    if kind is bool:
        if text.lower() not in ("on", "off", "true", "false"):
            raise ConfigError(f"{name} is {text!r}; it can be on or off.")
        return text.lower() in ("on", "true")
    what = "a whole number" if kind is int else "a number"
    try:
        value = int(text) if kind is int else float(text)
    except ValueError:
        raise ConfigError(f"{name} is {text!r}; it must be {what}.") from None
    if not isfinite(value) or abs(value) > LARGEST:
        raise ConfigError(f"{name} is {text}; it must be {what} up to {LARGEST:,}.")
    if name == SPEED and value != 0 and value < LEAST_SPEED:
        raise ConfigError(f"{name} is {text}; use 0 for no limit, or steps a second from {LEAST_SPEED} on.")
    return value


def _further(config: EngineConfig, name: str, by: int) -> Iterable[Value]:
    """All values in this direction that the arrows stop at, the nearest first."""
    now = getattr(config, name)
    if isinstance(now, bool):
        return [not now]
    if isinstance(now, str):
        names = list(POLICIES)
        start = names.index(now) if now in names else -by
        return [names[(start + by * offset) % len(names)] for offset in range(1, len(names))]
    ladder = set(LADDERS.get(name, POWERS))
    if name == "num_blocks":  # the least that can be is no round number
        ladder.add(-(-config.max_model_len // config.block_size) + 1)
    return sorted(_above(now, ladder)) if by > 0 else sorted(_below(now, ladder), reverse=True)


def _above(now: float, ladder: Iterable[int | float]) -> Iterable[int | float]:
    return (value for value in ladder if value > now)


def _below(now: float, ladder: Iterable[int | float]) -> Iterable[int | float]:
    return (value for value in ladder if value < now)
