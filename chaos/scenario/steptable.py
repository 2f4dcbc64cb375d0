"""A step as a table of TOML or YAML: the same words as in its text, one key each.

[[step]]                    after = ["k", "5s"]         every = "7s"
label = "k"                 restart = "@k"              jitter = "2s"
at = "8s"                                               partition = ["rand:1", "others"]
kill = "leader"                                         for = "3s"
"""

from collections.abc import Callable
from typing import Any

from rocketbed.chaos.scenario.errors import ScenarioError
from rocketbed.chaos.scenario.step import After, At, Every, Step, Trigger, parse_step, unknown
from rocketbed.chaos.scenario.table import (
    Table,
    any_duration,
    duration,
    flag,
    list_of,
    number,
    size,
    text,
)
from rocketbed.chaos.scenario.units import parse_duration, parse_size
from rocketbed.chaos.scenario.verbs import VERBS, Parse, Verb

_TRIGGERS = ("at", "after", "every", "when")
_COMMON = (*_TRIGGERS, "jitter", "until", "label", "for", "p")


def read_step(value: object, place: str) -> Step:
    """A step of a text or a table. Raises `ScenarioError` with the place."""
    try:
        if isinstance(value, str):
            return parse_step(value)
        return _read_table(Table(value, ""))
    except ScenarioError as error:
        raise ScenarioError(f"{place}: {error}") from None


def _read_table(table: Table) -> Step:
    name, verb = _verb(table)
    trigger = _trigger(table)
    target, second = _targets(table, name, verb)
    label = table.take("label", text, "")
    for_s = table.take("for", duration, None) if verb.lasts else None
    share = table.take("p", number, 1.0)
    words = _words(table, name, verb)
    step = Step(
        trigger=trigger,
        verb=name,
        target=target,
        second=second,
        words=words,
        share=share,
        for_s=for_s,
        label=label,
    )
    return parse_step(str(step))


def _verb(table: Table) -> tuple[str, Verb]:
    names = [key for key in table.values if key in VERBS]
    names = [name for name in names if not any(name in VERBS[other].takes for other in names)]
    if len(names) > 1:
        raise ScenarioError(f"two faults in one step: {names[0]} and {names[1]}")
    if names:
        return names[0], VERBS[names[0]]
    other = next((key for key in table.values if key not in _COMMON), None)
    if other is None:
        raise ScenarioError(f"no fault: a key such as kill is missing; one of {', '.join(VERBS)}")
    raise ScenarioError(unknown("fault", other, [*VERBS, *_COMMON]))


def _trigger(table: Table) -> Trigger:
    given = [key for key in _TRIGGERS if key in table]
    if len(given) != 1:
        raise ScenarioError(
            f"a step has one of {', '.join(_TRIGGERS)}, this one {' and '.join(given) or 'none'}"
        )
    if given == ["at"]:
        return At(table.take("at", any_duration, 0.0))
    if given == ["after"]:
        label, delay = table.take("after", _after, ("", 0.0))
        return After(label, delay)
    if given == ["when"]:
        return parse_step(f"when {table.take('when', _condition, '')} heal").trigger
    period = table.take("every", duration, 0.0)
    if period <= 0:
        raise table.error("every", "it needs a time above 0")
    until = table.take("until", duration, None)
    return Every(period, table.take("jitter", duration, 0.0), until)


def _after(value: object) -> tuple[str, float]:
    if isinstance(value, str):
        return value, 0.0
    label, delay = list_of(text, 2)(value)
    return label, any_duration(delay)


def _condition(value: object) -> str:
    return text(value).replace(" ", "")


def _targets(table: Table, name: str, verb: Verb) -> tuple[str, str]:
    value: Any = table.take(name, lambda found: found, "")
    if name == "heal":
        if value is not True:
            raise table.error("heal", "it has no target: write heal = true")
        return "", ""
    if verb.has_second:
        one, other = table.take(name, list_of(text, 2), ["", ""])
        return one, other
    return table.take(name, text, ""), ""


def _words(table: Table, name: str, verb: Verb) -> dict[str, Any]:
    words: dict[str, Any] = {}
    for word, parse in verb.takes.items():
        if word in _COMMON:
            continue
        if parse is None:
            if table.take(word, flag, False):
                words[word] = True
        elif parse is parse_duration:
            words[word] = table.take(word, any_duration, None)
        elif parse is parse_size:
            words[word] = table.take(word, size, None)
        else:
            words[word] = table.take(word, _reader(parse), None)
    table.done()
    return {word: value for word, value in words.items() if value is not None}


def _reader(parse: Parse) -> Callable[[Any], object]:
    return lambda value: parse(str(value))
