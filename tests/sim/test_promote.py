"""Failover by hand in classic mode: a slave becomes the master, the former one comes back.

The former master under asynchronous replication has messages that nobody else has. It is cut to
what both have, keeps what it loses, and follows (design.md 13).
"""

from pathlib import Path

from tests.sim.promotion import Group


def test_a_former_master_is_cut_to_the_common_prefix_and_follows(tmp_path: Path) -> None:
    with Group(1) as group:
        group.start("b1", "b2", "b3")
        group.simulation.run(2)
        group.send(20)
        group.run_until_equal("b2", "b3")
        common = group.nodes["b1"].store.max_offset
        group.isolate("b1")
        group.send(10, prefix="lost")
        lost = group.log_of("b1")[common:]
        assert lost
        group.end("b1")
        group.simulation.network.heal()
        group.promote("b2")
        group.restart("b2")
        group.send(5, prefix="new")
        assert group.nodes["b2"].store.max_offset > common
        group.start("b1")
        group.run_until_equal("b1", "b3")
        (cut,) = group.events("replication.cut", "b1")
        assert (cut["start"], cut["end"], cut["bytes"]) == (common, common + len(lost), len(lost))
        assert list(group.kept_of("b1").values()) == [lost]
        group.send(5, prefix="more")
        group.run_until_equal("b1", "b3")
        for name in group.roles:
            group.restart(name)
        group.simulation.run(1)
        for name in group.roles:
            group.check_directory(name, tmp_path / name)
