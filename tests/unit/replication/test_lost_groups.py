"""Replicas that know more than the register, and what an operator may found anew from them."""

from typing import Any

import pytest

from rocketbed.replication.entry import Policy
from rocketbed.replication.errors import ChangeRefused, GroupUnknown
from rocketbed.replication.lost_groups import WAITING_S, LostGroups
from tests.support.registration import registration

AHEAD: dict[str, Any] = {"epoch": 2, "end": 20}
SHORTER: dict[str, Any] = {"epoch": 2, "end": 10}


def test_replicas_wait_for_a_while_after_each_request() -> None:
    now = 100.0
    groups = LostGroups(lambda: now)
    requests: tuple[dict[str, Any], ...] = (
        {}, {"epoch": 1}, {"promised": 1}, {"group": "h", "epoch": 3},
    )  # fmt: skip
    for number, changes in enumerate(requests):
        groups.refusal(registration(replica=number, **changes))
    assert sorted(groups.of("g")) == [1, 2]
    assert sorted(groups.of("g", but=1)) == [2]
    assert sorted(groups.of("h")) == [3]
    assert sorted(groups.reasons()) == ["g", "h"]
    now += WAITING_S - 0.5
    groups.refusal(registration(replica=1, epoch=1))
    now += 1
    assert sorted(groups.of("g")) == [1]
    assert groups.refounding("g", 1).epoch == 1001
    groups.clear()
    assert not groups.of("g")


def waiting(*replicas: dict[str, Any]) -> LostGroups:
    groups = LostGroups(lambda: 100.0)
    for number, changes in enumerate(replicas):
        identity = {"replica": number, "uuid": f"u{number}", "incarnation": 1, "policy": "fsync"}
        uid = {"groupUid": "own"} if number else {}
        groups.refusal(registration(**{**identity, **uid, **changes}))
    return groups


@pytest.mark.parametrize(
    ("replicas", "chosen", "epoch"),
    [
        ((SHORTER, AHEAD), 1, 1002),
        ((AHEAD, {**AHEAD, "promised": 7}), 0, 1007),
        (({**SHORTER, "leads": True}, AHEAD), 0, 1002),
        (({"epoch": 1, "end": 30, "leads": True}, AHEAD), 1, 1002),
    ],
)
def test_the_longest_log_founds_the_group_anew(
    replicas: tuple[dict[str, Any], ...], chosen: int, epoch: int
) -> None:
    founded = waiting(*replicas).refounding("g", chosen)
    assert (founded.epoch, founded.new.policy, founded.new.min_in_sync) == (epoch, Policy.FSYNC, 2)
    assert founded.new.uid == ("own" if chosen else "u0.1")
    assert founded.replica.uuid == f"u{chosen}"


@pytest.mark.parametrize(
    ("replicas", "chosen", "error"),
    [
        ((SHORTER, AHEAD), 0, ChangeRefused),
        ((SHORTER, {"epoch": 1, "end": 20}), 1, ChangeRefused),
        (({**SHORTER, "leads": True}, AHEAD), 1, ChangeRefused),
        (({"epoch": 1, "end": 30, "leads": True}, AHEAD), 0, ChangeRefused),
        (({"epoch": 1}, {"epoch": 2}), 2, GroupUnknown),
    ],
)
def test_refuses_a_founder_that_would_lose_messages(
    replicas: tuple[dict[str, Any], ...], chosen: int, error: type[Exception]
) -> None:
    with pytest.raises(error):
        waiting(*replicas).refounding("g", chosen)
