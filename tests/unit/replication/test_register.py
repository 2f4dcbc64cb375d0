"""New groups, and changes that the register must not store."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from rocketbed.replication.election import Candidate
from rocketbed.replication.entry import EPOCH_MAX, Policy, Replica
from rocketbed.replication.errors import ChangeRefused
from rocketbed.replication.register.cas import Versioned
from rocketbed.replication.register.form import dumped
from rocketbed.replication.register.register import Register, new_group


@pytest.mark.parametrize("replicas", range(1, 6))
def test_three_replicas_acknowledge_from_memory_with_two_copies(replicas: int) -> None:
    group = new_group("g", replicas=replicas)
    expected = (Policy.MEMORY, 2) if replicas > 2 else (Policy.FSYNC, 1)
    assert (group.policy, group.min_in_sync) == expected
    for policy in Policy:
        assert new_group("g", replicas=replicas, policy=policy).policy == policy


@pytest.mark.parametrize(("epoch", "is_stored"), [(EPOCH_MAX - 1, True), (EPOCH_MAX, False)])
async def test_does_not_store_an_unreadable_epoch(epoch: int, is_stored: bool) -> None:
    replicas = {1: Replica("u", 4, "a", "h")}
    entry = replace(new_group("g", replicas=1), epoch=epoch, replicas=replicas, version=1)
    stored = []

    async def read(_name: str) -> Versioned:
        return Versioned(1, dumped(entry))

    async def swap(_name: str, value: bytes, *, after: int) -> bool:
        stored.append(value)
        return after == 1

    cas: Any = SimpleNamespace(read=read, swap=swap)
    change = Register(cas).force("g", 1, {1: Candidate(incarnation=4)}, op="x")
    if is_stored:
        await change
    else:
        with pytest.raises(ChangeRefused, match="could read"):
            await change
    assert len(stored) == is_stored
