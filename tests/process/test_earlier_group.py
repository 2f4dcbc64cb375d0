"""A group written before 0.1.0 opens: nothing that a node stores or reads has changed its name."""

import re
import tarfile
from contextlib import closing
from pathlib import Path
from typing import TypeGuard

import pytest
import trio

from rocketbed.client.consumer import Consumer
from rocketbed.client.messages import Message
from rocketbed.client.outcome import Sent
from rocketbed.client.producer import Producer
from rocketbed.cluster.lifecycle import load
from rocketbed.host.ports import free_ports
from rocketbed.inspect import Record, Scanned, open_directory
from tests.support.paths import FIXTURES

pytestmark = pytest.mark.process

ARCHIVE = FIXTURES / "rocketbed-group-before-0.1.0.tar.gz"
WRITTEN_IN = "/tmp/old-group"
NODES = ("node-1", "node-2", "node-3")
DEADLINE_S = 300


def unpacked(place: Path) -> Path:
    """Extract the cluster, and give it free ports and its new path in every settings file."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(place, filter="data")
    directory = place / Path(WRITTEN_IN).name
    texts = [directory / "cluster.json", *directory.glob("*/broker.conf")]
    old_ports = ("21134", "21905", "21723", "21261")
    ports = dict(zip(old_ports, free_ports(1, len(NODES)), strict=True))
    for path in texts:
        text = path.read_text().replace(WRITTEN_IN, str(directory))
        for old, new in ports.items():
            text = re.sub(rf"\b{old}\b", str(new), text)
            text = re.sub(rf"\b{int(old) + 1}\b", str(new + 1), text)
        path.write_text(text)
    return directory


async def test_group_of_an_earlier_version_opens_completely(tmp_path: Path) -> None:
    cluster = load(unpacked(tmp_path))
    bodies: list[bytes] = []
    with trio.fail_after(DEADLINE_S):
        async with cluster:
            await cluster.start()
            names = cluster.nameserver_address
            async with Producer(nameservers=names, group="shop") as producer:
                outcome = await producer.send(Message("Orders", b"order 50", keys=["k50"]))
                assert isinstance(outcome, Sent), outcome
            async with Consumer(nameservers=names, group="kitchen") as consumer:
                await consumer.subscribe("Orders", start="first")
                while len(bodies) < 11:
                    bodies += [message.body for message in await consumer.poll(timeout_s=1)]
            group = await cluster.group()
            assert group is not None
            assert group.epoch > 2, "the group that held two elections has held a third"
    assert sorted(bodies) == sorted(b"order %d" % number for number in range(40, 51))
    for name in NODES:
        with closing(open_directory(cluster.directory / name / "store")) as store:
            records = [
                store.log.record_at(item.offset) for item in store.log.scan() if is_record(item)
            ]
        bodies_stored = {record.body for record in records if isinstance(record, Record)}
        assert bodies_stored >= {b"order %d" % number for number in range(50)}


def is_record(item: object) -> TypeGuard[Scanned]:
    return isinstance(item, Scanned)
