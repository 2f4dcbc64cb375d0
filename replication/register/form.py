"""A register entry as JSON. Pure; a stored form is checked before it is used."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, TypeVar

import orjson

from rocketbed.replication.entry import EPOCH_MAX, GroupEntry, Members, Policy, Replica
from rocketbed.replication.errors import EntryDamaged

T = TypeVar("T")

FORMAT = 1


def dumped(entry: GroupEntry) -> bytes:
    """Return the stored form of an entry."""
    return orjson.dumps(
        {
            "format": FORMAT,
            "name": entry.name,
            "policy": str(entry.policy),
            "min_in_sync": entry.min_in_sync,
            "replicas": _by_text(entry.replicas, asdict),
            "epoch": entry.epoch,
            "version": entry.version,
            "leader": entry.leader,
            "in_sync": _by_text(entry.in_sync, int),
            "eligible": _by_text(entry.eligible, int),
            "last_known": sorted(entry.last_known),
            "unclean": list(entry.unclean),
            "uid": entry.uid,
            "op": entry.op,
        }
    )


def loaded(data: bytes, *, name: str, version: int) -> GroupEntry:
    """Return the entry of a stored form, which was stored under this name and version.

    Raises `EntryDamaged` with what is wrong; an entry that breaks its invariants is damaged too.
    """
    try:
        content = orjson.loads(data)
        if content["format"] != FORMAT:
            raise ValueError(f"its format is {content['format']!r}, this program knows {FORMAT}")
        entry = GroupEntry(
            name=str(content["name"]),
            policy=Policy(content["policy"]),
            min_in_sync=_count(content["min_in_sync"], 1),
            replicas=_by_number(content["replicas"], _replica),
            epoch=_count(content["epoch"], most=EPOCH_MAX),
            version=_count(content["version"]),
            leader=None if content["leader"] is None else _count(content["leader"]),
            in_sync=_members(content["in_sync"]),
            eligible=_members(content["eligible"]),
            last_known=frozenset(map(_count, content["last_known"])),
            unclean=tuple(map(_count, content["unclean"])),
            uid=str(content.get("uid", "")),
            op=str(content["op"]),
        )
        if (entry.name, entry.version) != (name, version):
            raise ValueError(f"it is version {entry.version} of {entry.name!r}")
        strangers = (entry.in_sync.keys() | entry.eligible.keys()) - entry.replicas.keys()
        if strangers:
            raise ValueError(f"replicas {sorted(strangers)} are in a set, and never registered")
    except (ValueError, TypeError, KeyError, AttributeError, AssertionError) as exc:
        reason = str(exc) if isinstance(exc, ValueError) else f"{type(exc).__name__} {exc}"[:200]
        raise EntryDamaged(
            f"version {version} of group {name!r} in the register cannot be read: {reason}. Bring"
            " back a copy of the register that is not older than the newest election, or move the"
            " register away, start the nameserver again and, once all replicas are here,"
            " force-leader the one with the longest log"
        ) from exc
    return entry


def _by_text(values: Mapping[int, T], form: Callable[[T], Any]) -> dict[str, Any]:
    return {str(number): form(value) for number, value in sorted(values.items())}


def _by_number(values: Any, form: Callable[[Any], T]) -> dict[int, T]:
    return {_count(int(number)): form(value) for number, value in values.items()}


def _members(members: Any) -> Members:
    return _by_number(members, _count)


def _replica(content: Any) -> Replica:
    return Replica(
        uuid=str(content["uuid"]),
        incarnation=_count(content["incarnation"]),
        address=str(content["address"]),
        ha_address=str(content["ha_address"]),
    )


def _count(value: Any, least: int = 0, most: int | None = None) -> int:
    if type(value) is not int or value < least or (most is not None and value > most):
        upto = "on" if most is None else f"to {most}"
        raise ValueError(f"{value!r} is not a number from {least} {upto}")
    return value
