"""Remarks of a node's store appear in `rocketbed cluster status`."""

import json
from pathlib import Path

import pytest

from rocketbed.chaos.backends.sim.disk import SimDisk
from rocketbed.cli.main import main
from rocketbed.client.group_status import GroupStatus
from rocketbed.cluster.plan import ClusterError, ClusterMember, make_plan
from rocketbed.cluster.status import MemberStatus
from rocketbed.node.store.store import MessageStore
from rocketbed.node.store.unit_queue import UNIT
from tests.support.sim.damage import CONFIG, FIELDS, fill_and_close, records
from tests.support.sim.store_session import ROOT, edited, flip_bit, session, settings

ENTRY = {
    "epoch": 3,
    "leader": 1,
    "in_sync": [1],
    "eligible": [],
    "replicas": {"1": {"address": "127.0.0.1:10911"}},
    "min_in_sync": 1,
    "policy": "fsync",
    "unclean": [],
}
"""The shown part of a group in its controller's answer."""
UNITS = f"{ROOT}/consumequeue/T/0/{0:020d}"


async def info(store: MessageStore) -> dict[str, str]:
    await store.scrubber.finished.wait()
    return store.runtime_info()


def member(info: dict[str, str] | None, name: str = "master") -> MemberStatus:
    node = ClusterMember(name=name, port=10911, broker_id=0)
    return MemberStatus(member=node, pid=1, info=info, is_routed=True, broker_id=node.broker_id)


@pytest.fixture(scope="module")
def damaged() -> dict[str, str]:
    """A record with a bad body, another with a wrong queue offset, and a wrong unit."""
    image = session(fill_and_close, config=CONFIG).image
    rows = records(image)

    def hurt(disk: SimDisk) -> None:
        for number, field in ((2, "body"), (14, "queue offset")):
            path, at, _ = rows[number]
            flip_bit(disk, path, (at + FIELDS[field]) * 8)
        flip_bit(disk, UNITS, (5 * UNIT.size + 7) * 8)

    info_read: dict[str, str] = session(info, config=CONFIG, image=edited(image, hurt)).value
    return info_read


def test_a_store_with_nothing_to_tell_tells_nothing() -> None:
    image = session(fill_and_close, config=CONFIG).image
    info_read = session(info, config=CONFIG, image=image).value
    assert member(info_read).remarks == []
    assert member(None).remarks == []


def test_scrub_findings_and_repairs_are_shown(damaged: dict[str, str]) -> None:
    remarks = member(damaged).remarks
    assert len(remarks) == 2
    assert remarks[0].startswith("damage in the log, bytes ")
    assert remarks[0].count("-") == 2
    assert remarks[1] == "1 queue units were not what the log says; they are healed"


def test_a_cut_that_an_operator_ordered() -> None:
    image = session(fill_and_close, config=CONFIG).image
    path, at, size = records(image)[-1]
    hurt = edited(image, lambda disk: flip_bit(disk, path, (at + FIELDS["body"]) * 8))
    offset = int(path.rpartition("/")[2]) + at
    ordered = settings(sync_flush=True, scrub_rate=1 << 30, accept_cut_at=offset)
    cut = session(info, config=ordered, image=hurt)
    for info_read in (cut.value, session(info, config=CONFIG, image=cut.image).value):
        assert member(info_read).remarks == [
            f"truncated at {offset} by an operator's order: it was on disk up to {offset + size},"
            " at most 1 acknowledged messages were given up",
            f"{size} bytes that were truncated, or replaced, are kept in rocketbed.cut in its"
            " store: look whether they hold messages that are missed, then move them away",
        ]


def test_trouble_comes_first() -> None:
    remarks = member({"trouble": "the disk is full", "unqueuedRecords": "2"}).remarks
    assert remarks == ["trouble: the disk is full", "2 good records stand in no queue"]


def test_reason_for_not_ready_is_shown_once() -> None:
    assert member({"rbNotReady": "it follows nobody", "trouble": ""}).remarks == [
        "not ready: it follows nobody"
    ]
    full = {"rbNotReady": "the disk is full", "trouble": "the disk is full"}
    assert member(full).remarks == ["trouble: the disk is full"]
    assert member({"rbNotReady": "", "trouble": ""}).remarks == []


def test_unknown_group_state_has_a_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    class Found:
        plan = make_plan(slaves=2, failover=True)

        async def status(self) -> list[MemberStatus]:
            return [member({})]

        async def group(self, broker: str) -> None:
            raise ClusterError("127.0.0.1:9876 did not answer: refused")

    monkeypatch.setattr("rocketbed.cluster.lifecycle.load", lambda _: Found())
    arguments = ["cluster", "status", "--dir", str(tmp_path)]
    assert main(arguments) == 1
    assert capsys.readouterr().out.splitlines()[2:] == [
        "the group's state is unknown: 127.0.0.1:9876 did not answer: refused"
    ]
    assert main([*arguments, "--json"]) == 1
    output = json.loads(capsys.readouterr().out)
    error = "127.0.0.1:9876 did not answer: refused"
    assert output["groups"] == [{"brokerName": "broker-a", "error": error}]
    assert [row["state"] for row in output["members"]] == ["serving"]


def test_each_of_several_groups_has_its_own_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    class Found:
        plan = make_plan(slaves=0, groups=2, failover=True)

        async def status(self) -> list[MemberStatus]:
            return [
                MemberStatus(member=one, pid=1, info={}, is_routed=True, broker_id=0)
                for one in self.plan.members
            ]

        async def group(self, broker: str) -> GroupStatus:
            if broker == "broker-b":
                raise ClusterError("it is damaged")
            names = {one.broker_id: one.name for one in self.plan.nodes(broker)}
            return GroupStatus.read({"entry": ENTRY}, names)

    monkeypatch.setattr("rocketbed.cluster.lifecycle.load", lambda _: Found())
    arguments = ["cluster", "status", "--dir", str(tmp_path)]
    assert main(arguments) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines[:4]] == [
        ["member", "broker", "role"],
        ["nameserver", "-", "nameserver"],
        ["a-node-1", "broker-a", "master"],
        ["b-node-1", "broker-b", "master"],
    ]
    assert lines[4:] == [
        "broker-a: epoch 3: a-node-1 leads; in sync: a-node-1, at least 1 needed; policy fsync",
        "broker-b: the group's state is unknown: it is damaged",
    ]
    assert main([*arguments, "--json"]) == 1
    output = json.loads(capsys.readouterr().out)
    assert [row["brokerName"] for row in output["members"]] == [None, "broker-a", "broker-b"]
    first, second = output["groups"]
    assert (first["brokerName"], first["error"], first["epoch"]) == ("broker-a", None, 3)
    assert second == {"brokerName": "broker-b", "error": "it is damaged"}


def test_the_command_shows_it(
    damaged: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    class Found:
        plan = make_plan(slaves=1)

        async def status(self) -> list[MemberStatus]:
            return [member(damaged), member({}, "slave-1")]

        async def group(self, broker: str) -> None:
            """It has no failover."""

    monkeypatch.setattr("rocketbed.cluster.lifecycle.load", lambda _: Found())
    arguments = ["cluster", "status", "--dir", str(tmp_path)]
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines[3:]] == ["master", "master"]
    assert "damage in the log" in lines[3]
    assert main([*arguments, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["members"]
    assert rows[0]["remarks"] == member(damaged).remarks
    assert rows[0]["scrubbedTo"] == rows[0]["maxOffset"]
    assert rows[1]["remarks"] == []
