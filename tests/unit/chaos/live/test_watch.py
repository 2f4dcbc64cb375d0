"""A watched cluster that others take away or make anew; none of its members runs."""

from pathlib import Path

import pytest
import trio

from rocketbed.chaos.live.feed import Feed
from rocketbed.chaos.live.server import Refused
from rocketbed.chaos.live.watch import Watch
from rocketbed.cluster.cluster import LocalCluster
from rocketbed.cluster.plan import FILE
from rocketbed.world.real import real_world


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocketbed.chaos.live.watch.LOOK_S", 0.005)


def new_cluster(directory: Path, slaves: int = 2) -> LocalCluster:
    return LocalCluster.create(directory, slaves=slaves)


async def test_cluster_is_watched_on_after_a_role_change(tmp_path: Path) -> None:
    cluster = new_cluster(tmp_path)
    watch = Watch(cluster, Feed(), real_world("test"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch.run, None)
        with trio.fail_after(20):
            while watch.feed.get("machine:master") is None:
                await trio.lowlevel.checkpoint()
            assert watch.feed.get("machine:slave-1")["role"] == "slave"
            cluster.plan.promoted("slave-1").save(tmp_path)
            while watch.feed.get("machine:slave-1")["role"] == "slave":
                await trio.lowlevel.checkpoint()
            with pytest.raises(Refused, match="it is down"):
                await watch.press("kill", "slave-1")
        nursery.cancel_scope.cancel()


async def test_each_of_several_groups_has_a_master(tmp_path: Path) -> None:
    watch = Watch(LocalCluster.create(tmp_path, groups=2), Feed(), real_world("test"))
    groups = watch.feed.get("run")["groups"]
    assert groups == {
        f"broker-{letter}": [f"{letter}-{word}" for word in ("master", "slave-1", "slave-2")]
        for letter in "ab"
    }
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch.run, None)
        with trio.fail_after(20):
            while watch.feed.get("machine:b-slave-2") is None:
                await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    for broker, names in groups.items():
        machines = [watch.feed.get(f"machine:{name}") for name in names]
        assert [one["role"] for one in machines] == ["master", "slave", "slave"]
        assert {one["group"] for one in machines} == {broker}


async def test_another_cluster_in_its_place_ends_the_watch(tmp_path: Path) -> None:
    cluster = new_cluster(tmp_path)
    watch = Watch(cluster, Feed(), real_world("test"))
    async with trio.open_nursery() as nursery:

        async def replace() -> None:
            while watch.feed.get("machine:slave-2") is None:
                await trio.lowlevel.checkpoint()
            (tmp_path / FILE).unlink()
            before = watch.feed.get("clock")
            while watch.feed.get("clock") == before:  # it looks on at nothing
                await trio.lowlevel.checkpoint()
            new_cluster(tmp_path, slaves=1)

        nursery.start_soon(replace)
        with trio.fail_after(20):
            await watch.run(None)
