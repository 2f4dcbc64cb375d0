"""Steps of a scenario as text, which logs, shrunk plans, files and the console share.

    [at T | after LABEL+T | every T~JITTER until T | when CONDITION]
        VERB TARGET [-> TARGET] [WORDS] [with p=SHARE] [for T] [as LABEL]

The text is the canonical form: `parse_step(str(step)) == step`. Source: chaos.md 4.3.
"""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from rocketbed.chaos.plan.errors import ScenarioError
from rocketbed.chaos.plan.units import parse_duration, parse_size, show_duration, show_size
from rocketbed.chaos.plan.verbs import VERBS, Verb

_LABEL: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
CONDITION: Final = re.compile(
    r"(isr|lag|acked|down|t)\s*(==|!=|<=|>=|<|>)\s*(\d+(?:\.\d+)?)([A-Za-z]*)"
)
"""Subject, a comparison, a number: `isr<3`, `lag>64KiB`, `acked>=1000`."""


@dataclass(frozen=True, slots=True)
class At:
    """Trigger at a time of the scenario, seconds since the load began."""

    seconds: float

    def __str__(self) -> str:
        return f"at {show_duration(self.seconds)}"


@dataclass(frozen=True, slots=True)
class After:
    """Trigger some time after the step with this label has been done."""

    label: str
    seconds: float

    def __str__(self) -> str:
        return f"after {self.label}+{show_duration(self.seconds)}"


@dataclass(frozen=True, slots=True)
class Every:
    """Repeated trigger, each time moved by up to the jitter either way."""

    seconds: float
    jitter: float = 0.0
    until: float | None = None

    def __str__(self) -> str:
        jitter = f"~{show_duration(self.jitter)}" if self.jitter else ""
        until = "" if self.until is None else f" until {show_duration(self.until)}"
        return f"every {show_duration(self.seconds)}{jitter}{until}"


@dataclass(frozen=True, slots=True)
class When:
    """Trigger once, as soon as a condition holds."""

    subject: str
    operator: str
    value: float
    unit: str = ""
    """Unit in which the value was written: none, one of size, or of time."""

    def __str__(self) -> str:
        if self.subject == "lag":
            return f"when lag{self.operator}{show_size(int(self.value))}"
        if self.subject == "t":
            return f"when t{self.operator}{show_duration(self.value)}"
        return f"when {self.subject}{self.operator}{self.value:.15g}"


Trigger = At | After | Every | When


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Fault or operation, and when it is due."""

    trigger: Trigger
    verb: str
    target: str = ""
    second: str = ""
    """The target after the arrow."""
    words: Mapping[str, Any] = field(default_factory=dict)
    """Arguments; True for a word without value."""
    share: float = 1.0
    """Probability that it is done at all."""
    for_s: float | None = None
    label: str = ""

    @property
    def form(self) -> Verb:
        return VERBS[self.verb]

    @property
    def needs(self) -> tuple[str, ...]:
        """Capabilities of the backend that it needs."""
        if self.verb == "crash":
            point = "proc.crash.mark" if "mark" in self.words else "proc.crash.event"
            return (point, "proc.crash.power") if "powercut" in self.words else (point,)
        own = (self.form.needs,) if self.form.needs else ()
        return (*own, *(self.form.word_needs[w] for w in self.words if w in self.form.word_needs))

    @property
    def at_s(self) -> float:
        """Time at which it is due, or was done; only for steps with a time of their own."""
        assert isinstance(self.trigger, At)
        return self.trigger.seconds

    def to_the_millisecond(self) -> "Step":
        """Return the step with times rounded for a reader: a step by hand is not more exact."""
        for_s = None if self.for_s is None else max(round(self.for_s, 3), 0.001)
        return replace(self, trigger=At(round(self.at_s, 3)), for_s=for_s)

    def action(self) -> str:
        parts = [self.verb, self.target]
        if self.second:
            parts += ["->", self.second]
        parts += [_show_word(self.form, word, value) for word, value in self.words.items()]
        if self.share != 1.0:
            parts.append(f"with p={self.share:g}")
        if self.for_s is not None:
            parts.append(f"for {show_duration(self.for_s)}")
        if self.label:
            parts.append(f"as {self.label}")
        return " ".join(filter(None, parts))

    def __str__(self) -> str:
        return f"{self.trigger} {self.action()}"


def parse_step(text: str) -> Step:
    """Read one step. Raises a `ScenarioError` that quotes it and says what is wrong."""
    try:
        return _Parser(text).step()
    except ValueError as error:
        raise ScenarioError(f"step {text!r}: {error}") from None


def unknown(kind: str, name: str, names: "Mapping[str, object] | list[str]") -> str:
    """Return a sentence about a name that does not exist, with the nearest one that does."""
    near = difflib.get_close_matches(name, list(names), n=1)
    listed = f"one of {', '.join(names)}" if names else "none is possible here"
    hint = f"; did you mean {near[0]!r}?" if near else f": {listed}"
    return f"unknown {kind} {name!r}{hint}"


class _Parser:
    """Reads a step's words one by one. Raises `ValueError`."""

    def __init__(self, text: str) -> None:
        self._words = text.replace("->", " -> ").split()

    def step(self) -> Step:
        trigger = self._trigger()
        name = self._next("a verb such as kill")
        if name not in VERBS:
            raise ValueError(unknown("fault", name, VERBS))
        verb = VERBS[name]
        target = "" if name == "heal" else self._next(f"a target to {name}")
        second = ""
        if self._take("->"):
            if not verb.has_second:
                raise ValueError(f"{name} takes only one target, no '->'")
            second = self._next("a target after '->'")
        elif verb.has_second:
            raise ValueError(f"{name} needs a second target: {name} {target} -> TARGET")
        fields: dict[str, Any] = {"share": 1.0, "for_s": None, "label": ""}
        words: dict[str, Any] = {}
        while self._words:
            self._argument(name, verb, words, fields)
        if verb.one_of and sum(word in words for word in verb.one_of) != 1:
            raise ValueError(f"{name} needs one of {', '.join(verb.one_of)}")
        return Step(trigger=trigger, verb=name, target=target, second=second, words=words, **fields)

    def _argument(
        self, name: str, verb: Verb, words: dict[str, Any], fields: dict[str, Any]
    ) -> None:
        word = self._next("a word")
        if word == "for":
            if not verb.lasts:
                raise ValueError(f"{name} is instantaneous and takes no 'for'")
            fields["for_s"] = parse_duration(self._next("a duration after 'for'"))
        elif word == "as":
            fields["label"] = self._next("a label after 'as'")
            if not _LABEL.fullmatch(fields["label"]):
                raise ValueError(f"{fields['label']!r} is not a valid label")
        elif word == "with" and self._words and self._words[0].startswith("p="):
            fields["share"] = float(self._next("p=SHARE").removeprefix("p="))
        elif word in ("with", "at") and self._words and self._words[0] in verb.takes:
            return  # `with stale-table`, `at mark NAME`: the next word counts
        elif word not in verb.takes:
            raise ValueError(unknown(f"option of {name}", word, list(verb.takes)))
        else:
            parse = verb.takes[word]
            words[word] = True if parse is None else parse(self._next(f"a value after {word!r}"))

    def _trigger(self) -> Trigger:
        if self._take("at"):
            return At(parse_duration(self._next("a time after 'at'")))
        if self._take("after"):
            label, plus, delay = self._next("LABEL+T after 'after'").partition("+")
            return After(label, parse_duration(delay) if plus else 0.0)
        if self._take("every"):
            period, _, jitter = self._next("a time after 'every'").partition("~")
            until = parse_duration(self._next("a time")) if self._take("until") else None
            seconds = parse_duration(period)
            if seconds <= 0:
                raise ValueError("'every' needs a positive time")
            return Every(seconds, parse_duration(jitter) if jitter else 0.0, until)
        if self._take("when"):
            return self._condition(self._next("a condition after 'when'"))
        raise ValueError("it must start with at, after, every or when")

    def _condition(self, text: str) -> When:
        match = CONDITION.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not a condition such as isr<3, lag>64KiB or acked>1000")
        subject, operator, number, unit = match.groups()
        if subject == "lag":
            return When(subject, operator, parse_size(number + unit))
        if subject == "t":
            return When(subject, operator, parse_duration(number + unit))
        if unit:
            raise ValueError(f"{subject} takes a plain number")
        return When(subject, operator, float(number))

    def _take(self, word: str) -> bool:
        if self._words and self._words[0] == word:
            del self._words[0]
            return True
        return False

    def _next(self, expected: str) -> str:
        if not self._words:
            raise ValueError(f"it ends where {expected} was expected")
        return self._words.pop(0)


def _show_word(form: Verb, word: str, value: Any) -> str:
    if value is True:
        return word
    parse = form.takes[word]
    if parse is parse_duration:
        return f"{word} {show_duration(value)}"
    if parse is parse_size:
        return f"{word} {show_size(value)}"
    return f"{word} {value:g}" if isinstance(value, float) else f"{word} {value}"
