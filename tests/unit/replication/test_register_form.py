"""Stored form of a group's register entry: read back unchanged, and refused if it was altered."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketbed.replication.entry import EPOCH_MAX, GroupEntry, Policy, Replica
from rocketbed.replication.errors import EntryDamaged
from rocketbed.replication.register.form import dumped, loaded

ENTRY = GroupEntry(
    "g",
    Policy.FSYNC,
    1,
    replicas={0: Replica("u0", 3, "h:1", "h:2"), 1: Replica("u1", 1)},
    epoch=4,
    version=9,
    leader=0,
    in_sync={0: 3},
    last_known=frozenset((1,)),
    unclean=(2, 4),
    op="x",
)
numbers = st.integers(0, 1 << 40)


@st.composite
def entries(draw: st.DrawFn) -> GroupEntry:
    lives = draw(st.dictionaries(st.integers(0, 9), numbers, min_size=1))
    members = draw(st.lists(st.sampled_from(sorted(lives)), unique=True))
    minimum = draw(st.integers(1, 5))
    spare = [] if len(members) >= minimum else sorted(lives.keys() - set(members))
    return GroupEntry(
        draw(st.text()),
        draw(st.sampled_from(Policy)),
        minimum,
        replicas={one: Replica(draw(st.text()), life) for one, life in lives.items()},
        epoch=draw(st.integers(0, EPOCH_MAX)),
        version=draw(numbers),
        leader=draw(st.sampled_from([None, *members])),
        in_sync={one: lives[one] for one in members},
        eligible={one: lives[one] for one in spare},
        last_known=frozenset(draw(st.lists(st.integers(0, 9)))),
        unclean=tuple(draw(st.lists(numbers))),
        op=draw(st.text()),
    )


@given(entries())
def test_every_entry_is_read_back_as_it_was(entry: GroupEntry) -> None:
    assert loaded(dumped(entry), name=entry.name, version=entry.version) == entry


def _instead(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    return lambda text: text.replace(old, new)


@pytest.mark.parametrize(
    ("damage", "expected_text"),
    [
        (lambda text: text[:-1], "cannot be read"),
        (lambda text: b"7", "TypeError"),
        (_instead(b'"format":1', b'"format":2'), "its format is 2"),
        (_instead(b'"policy":"fsync"', b'"policy":"none"'), "none"),
        (_instead(b'"min_in_sync":1', b'"min_in_sync":0'), "0 is not a number from 1 on"),
        (_instead(b'"epoch":4', b'"epoch":-1'), "-1 is not a number from 0 to 1073741824"),
        (_instead(b'"epoch":4', b'"epoch":1073741825'), "1073741825 is not a number from 0 to"),
        (_instead(b'"epoch":4', b'"epoch":4.0'), "4.0 is not a number"),
        (_instead(b'"epoch":4', b'"epoch":true'), "True is not a number"),
        (_instead(b'"epoch":4,', b""), "KeyError 'epoch'"),
        (_instead(b'"last_known":[1]', b'"last_known":[-1]'), "-1 is not a number"),
        (_instead(b'"version":9', b'"version":8'), "version 8 of 'g'"),
        (_instead(b'"name":"g"', b'"name":"h"'), "version 9 of 'h'"),
        (_instead(b'"leader":0', b'"leader":1'), "AssertionError"),
        (_instead(b'"leader":0', b'"leader":true'), "True is not a number"),
        (_instead(b'"in_sync":{"0":3}', b'"in_sync":[0]'), "AttributeError"),
        (_instead(b'"in_sync":{', b'"in_sync":{"7":1,'), "replicas [7] are in a set"),
    ],
)
def test_altered_entry_is_refused_with_reason_and_advice(
    damage: Callable[[bytes], bytes], expected_text: str
) -> None:
    text = dumped(ENTRY)
    assert damage(text) != text
    with pytest.raises(EntryDamaged, match="Bring back a copy") as caught:
        loaded(damage(text), name="g", version=9)
    assert expected_text in str(caught.value)
