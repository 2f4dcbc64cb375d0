"""The verbs of scenarios as methods, for type checkers.

Scenarios and the plugin's `chaos` both have them, with different results: a step in a plan's list,
or a fault to be awaited.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from rocketbed.chaos.plan.errors import ScenarioError
from rocketbed.chaos.plan.step import Step, Trigger, unknown
from rocketbed.chaos.plan.units import parse_duration, parse_size
from rocketbed.chaos.plan.verbs import VERBS

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


@dataclass(slots=True)
class Handle:
    """Reference to a step, for steps that come after it."""

    label: str

    def __str__(self) -> str:
        return f"@{self.label}"


class VerbMethod(Protocol[R_co]):
    """A verb: the target, a second target if it has one, and the verb's words by name."""

    def __call__(
        self,
        target: Handle | str = "",
        second: Handle | str = "",
        *,
        label: str = "",
        for_: float | None = None,
        p: float = 1.0,
        **words: object,
    ) -> R_co:
        """Carry it out; `for_` in seconds, `p` the share of runs that take it; `slow_fsync=300 *
        ms`, ..."""
        ...


class VerbMethods(ABC, Generic[R]):
    """A method for each verb of `chaos.plan.verbs`; a test compares the two lists."""

    _trigger: Trigger
    clock: VerbMethod[R]
    cpu: VerbMethod[R]
    crash: VerbMethod[R]
    crowd: VerbMethod[R]
    damage: VerbMethod[R]
    disk: VerbMethod[R]
    double: VerbMethod[R]
    force: VerbMethod[R]
    handover: VerbMethod[R]
    heal: VerbMethod[R]
    hostile: VerbMethod[R]
    isolate: VerbMethod[R]
    kill: VerbMethod[R]
    link: VerbMethod[R]
    partition: VerbMethod[R]
    pause: VerbMethod[R]
    powercut: VerbMethod[R]
    promote: VerbMethod[R]
    register: VerbMethod[R]
    repair: VerbMethod[R]
    reset: VerbMethod[R]
    restart: VerbMethod[R]
    stop: VerbMethod[R]
    swizzle: VerbMethod[R]
    twin: VerbMethod[R]
    wipe: VerbMethod[R]

    @abstractmethod
    def _take(self, step: Step) -> R:
        """Return the result of a call of a verb."""

    def _unknown(self, name: str) -> Exception:
        return ScenarioError(unknown("fault", name, VERBS))

    if not TYPE_CHECKING:  # a checker has the names above, and reports others

        def __getattr__(self, name: str) -> VerbMethod[R]:
            if name not in VERBS:
                raise self._unknown(name)
            return partial(self._call, name)

    def _call(
        self,
        verb: str,
        target: Handle | str = "",
        second: Handle | str = "",
        *,
        label: str = "",
        for_: float | None = None,
        p: float = 1.0,
        **words: object,
    ) -> R:
        step = Step(
            trigger=self._trigger,
            verb=verb,
            target=str(target),
            second=str(second),
            words=_words(verb, words),
            share=p,
            for_s=None if for_ is None else seconds_of(for_),
            label=label,
        )
        return self._take(step)


def seconds_of(value: float) -> float:
    """Return a time in seconds, checked. Raises `ScenarioError`."""
    is_wrong = isinstance(value, bool) or not isinstance(value, int | float)
    if is_wrong or not 0 <= value < math.inf:
        raise ScenarioError(f"{value!r} is not a time; write 3 * s or 200 * ms")
    return round(float(value), 6)


def _words(verb: str, words: Mapping[str, object]) -> dict[str, Any]:
    """Return the arguments in the form of a step."""
    takes = VERBS[verb].takes
    arguments: dict[str, Any] = {}
    for name, value in words.items():
        word = name.replace("_", "-")
        if word not in takes:
            raise ScenarioError(unknown(f"argument of {verb}()", name, list(takes)))
        if value is None or value is False:
            continue
        parse = takes[word]
        if parse is None:
            if value is not True:
                raise ScenarioError(f"{verb}({name}={value!r}): must be True or False")
            arguments[word] = True
        elif parse is parse_duration and not isinstance(value, str):
            arguments[word] = seconds_of(value)  # type: ignore[arg-type]
        elif parse is parse_size and isinstance(value, int):
            arguments[word] = value
        else:
            try:
                arguments[word] = parse(str(value))
            except ValueError as error:
                raise ScenarioError(f"{verb}({name}={value!r}): {error}") from None
    return arguments
