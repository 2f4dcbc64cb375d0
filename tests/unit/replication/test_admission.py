"""Rules that admit a replica's registration, on both sides of each limit."""

from itertools import product
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from rocketbed.replication.admission import (
    REPLICAS_MAX,
    TEXT_MAX,
    check_words,
    refuse_copy,
    refuse_other_promise,
    refuse_second,
    refuse_stranger,
)
from rocketbed.replication.controller import Controller
from rocketbed.replication.election import Candidate
from rocketbed.replication.entry import EPOCH_MAX, GroupEntry, Policy, Replica
from rocketbed.replication.errors import ChangeRefused, GroupUnknown, NumberTaken
from rocketbed.replication.lease import LEASE_S, Roll
from tests.support.registration import registration

NOW = 16.0
LONG = "x" * TEXT_MAX
GROUP = GroupEntry("g", Policy.MEMORY, 2, {1: Replica("u", 3, "a")}, uid="own")


def refusal(rule: Any, *arguments: Any, **named: Any) -> type[Exception] | None:
    """Type of the error that the rule raises, if any."""
    try:
        rule(*arguments, **named)
    except (ChangeRefused, GroupUnknown, NumberTaken) as exc:
        return type(exc)
    return None


@pytest.mark.parametrize(
    "changes",
    [
        *({name: LONG} for name in ("group", "uuid", "address", "haAddress", "op")),
        {"groupUid": ""},
        *({name: EPOCH_MAX} for name in ("epoch", "promised")),
        {"end": EPOCH_MAX + 1},
        {"replica": 0},
        {"replica": REPLICAS_MAX - 1},
        {"replicas": 1},
        {"replicas": REPLICAS_MAX},
        {"incarnation": 1},
        {"policy": "fsync"},
    ],
)
def test_accepts_values_at_the_limits(changes: dict[str, Any]) -> None:
    check_words(registration(**changes))


@pytest.mark.parametrize(
    "changes",
    [
        *({name: f"{LONG}x"} for name in ("group", "uuid", "address", "groupUid", "op")),
        *({name: ""} for name in ("group", "uuid", "haAddress")),
        *({name: -1} for name in ("end", "epoch", "promised", "replica", "incarnation")),
        *({name: EPOCH_MAX + 1} for name in ("epoch", "promised")),
        {"op": "a\n"},
        {"replica": REPLICAS_MAX},
        {"replicas": 0},
        {"replicas": REPLICAS_MAX + 1},
        {"incarnation": 0},
        {"policy": "none"},
    ],
)
def test_refuses_values_beyond_the_limits(changes: dict[str, Any]) -> None:
    with pytest.raises(ChangeRefused):
        check_words(registration(**changes))


@pytest.mark.parametrize(
    ("entry", "uid", "founds", "refused"),
    [
        *((GROUP, uid, founds, uid == "x") for uid in ("", "own", "x") for founds in (True, False)),
        *((None, uid, founds, not founds) for uid in ("", "x") for founds in (True, False)),
    ],
)
def test_refuses_a_replica_of_another_group(
    entry: GroupEntry | None, uid: str, founds: bool, refused: bool
) -> None:
    request = registration(groupUid=uid, founds=founds)
    assert refusal(refuse_stranger, request, entry) == (GroupUnknown if refused else None)


def test_refuses_a_replica_that_acknowledges_differently() -> None:
    for number, replicas, policy in product((1, 2), (1, 2, 3), ("memory", "fsync")):
        request = registration(replica=number, replicas=replicas, policy=policy)
        refused = policy == "fsync" or (number == 2 and replicas < 3)
        assert refusal(refuse_other_promise, request, GROUP) == (ChangeRefused if refused else None)


@pytest.mark.parametrize("silent_s", [0, LEASE_S - 0.01, LEASE_S + 0.01, None])
def test_refuses_a_copied_directory_while_the_original_runs(silent_s: float | None) -> None:
    roll = Roll(0.0)
    if silent_s is not None:
        roll.record_beat(1, Candidate(3), NOW - silent_s)
    runs = silent_s is not None and NOW - (NOW - silent_s) < LEASE_S
    for address, uuid, life, linked in product("ab", "uv", (2, 3, 4), ((), (1,))):
        request = registration(address=address, uuid=uuid, incarnation=life)
        refused = runs and bool(linked) and (address, uuid, life) == ("b", "u", 4)
        actual = refusal(refuse_copy, request, GROUP, roll, linked, NOW)
        assert actual == (ChangeRefused if refused else None)
    unregistered = registration(replica=2, address="b")
    assert refusal(refuse_copy, unregistered, GROUP, roll, (2,), NOW) is None


def expected_for_second(
    claims: bool, counts: bool, begun: float | None, heard: float | None, since: float
) -> type[Exception] | None:
    """Refusal of an empty directory that claims the number of a registered one."""
    if claims:
        return ChangeRefused
    if begun is None or begun + LEASE_S > NOW:
        return NumberTaken
    if heard is not None and NOW - heard < LEASE_S:
        return ChangeRefused if heard > since else NumberTaken
    return NumberTaken if counts else None


@pytest.mark.parametrize("seed", range(8))
def test_an_empty_directory_replaces_only_a_lost_one(seed: int) -> None:
    random = Random(seed)
    for _ in range(100):
        begun = random.choice((None, *(NOW - s for s in (0, LEASE_S - 0.125, LEASE_S, 9))))
        heard = random.choice((None, NOW, NOW - LEASE_S + 0.125, NOW - LEASE_S, NOW - 9))
        since = random.choice((NOW - 0.25, NOW, NOW - 9, heard or 0.0))
        roll = None if begun is None else Roll(begun)
        if roll is not None and heard is not None:
            roll.record_beat(1, Candidate(3), heard)
        claims = {name: random.random() < 0.1 for name in ("epoch", "end", "promised")}
        sets: dict[str, Any] = random.choice(
            ({}, {"in_sync": {1: 3}}, {"eligible": {1: 3}}, {"last_known": frozenset({1})})
        )
        former = Replica("v", 3)
        entry = GroupEntry("g", Policy.MEMORY, 2, {1: former}, **sets)
        actual = refusal(
            refuse_second, registration(**claims), entry, former, roll, since=since, now=NOW
        )
        expected = expected_for_second(any(claims.values()), bool(sets), begun, heard, since)
        assert actual == expected, (claims, sets, begun, heard, since)


def test_notices_a_log_in_memory_that_got_shorter() -> None:
    roll = Roll(0.0)
    roll.record_beat(1, Candidate(3, epoch=2, end=50), 1.0)
    log = SimpleNamespace(error=lambda *_, **__: None, warning=lambda *_, **__: None)
    controller: Any = SimpleNamespace(
        _groups={"g": SimpleNamespace(roll=roll)}, _world=SimpleNamespace(log=log)
    )
    places = ((1, 99), (2, 49), (2, 50), (2, 51), (3, 0))
    for group, number, policy, place in product("gh", (1, 2), Policy, places):
        request = registration(
            group=group, replica=number, policy=policy, epoch=place[0], end=place[1]
        )
        expected = (group, number, policy) == ("g", 1, Policy.MEMORY) and place < (2, 50)
        assert Controller._fell_back(controller, request) == expected
