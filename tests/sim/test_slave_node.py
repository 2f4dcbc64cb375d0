"""A slave node with a scripted master: what it asks first, what it reports, and when it dials."""

from functools import cache
from itertools import pairwise
from random import Random
from typing import Any, Final

import pytest

from rocketbed.wire.bodies import DataVersion, TopicConfig, TopicConfigTable
from rocketbed.wire.command import RequestCode, ResponseCode
from tests.model.stage import AS_SLAVE, SEGMENT, Stage
from tests.support.peers.logs import record_ends
from tests.support.peers.master import ScriptedMaster

FIRST_PAUSE_S, LAST_PAUSE_S = 0.1, 0.5
REFUSED: Final = ResponseCode.SERVICE_NOT_AVAILABLE
TOPICS: Final = RequestCode.GET_ALL_TOPIC_CONFIG


@cache
def whole_log() -> bytes:
    """Return a log of more than two files."""
    random = Random("slave node")
    with Stage("source") as stage:
        stage.node("source", {})
        while len(stage.log("source")[1]) <= 2 * SEGMENT:
            stage.fill("source", 30, random)
        return stage.log("source")[1]


LOG_END: Final = 3 * SEGMENT // 2
MASTERS: Final[dict[str, tuple[dict[str, Any], slice, int]]] = {
    "no first message": ({"gives_first": False}, slice(0, LOG_END), 0),
    "first message": ({}, slice(0, LOG_END), 1),
    "no log": ({}, slice(0, 0), 0),
    "expired first file": ({"low": SEGMENT}, slice(SEGMENT, LOG_END), SEGMENT),
}
"""Options and log of a master, and the first report of an empty slave."""


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("name", MASTERS)
def test_an_empty_slave_copies_a_growing_log(name: str, flush: str) -> None:
    """A connection is lost inside a record, and later the slave is killed."""
    whole, (options, part, first) = whole_log(), MASTERS[name]
    master = ScriptedMaster(whole[part], **options)
    settings = {**AS_SLAVE, "flushDiskType": flush}
    with Stage(f"{name}/{flush}") as stage:
        master.start(stage)
        stage.simulation.host("slave").sync_seconds = (0.2, 0.4)
        node = master.node = stage.node("slave", settings)
        stage.until(lambda: bool(master.reports), "a first report")
        assert master.reports[0][0] == first
        master.wait_copied(stage)
        inside = next(end for end in record_ends(whole) if end > master.end + 500) - 3
        master.log += whole[master.end : inside]
        log = node.store.log
        stage.until(lambda: log.flushed.value == inside, "half a record is synced")
        stage.simulation.run(0.6)
        count = len(master.reports)
        master.drop()
        stage.until(lambda: len(master.reports) > count, "another first report")
        last_file = (inside - 1) - (inside - 1) % SEGMENT
        assert master.reports[-1][0] == max(last_file, node.store.min_offset, 1)
        master.log += whole[inside : inside + 2000]
        master.wait_copied(stage)
        stage.simulation.kill("slave")
        master.log += whole[master.end :]
        master.node, count = None, len(master.reports)
        master.node = stage.node("slave", settings)
        stage.until(lambda: len(master.reports) > count, "a first report after the kill")
        master.wait_copied(stage)
        stage.ready("slave", ResponseCode.SUCCESS, "")
        reasons = [str(line["reason"]) for line in stage.told("slave", "replication.start_unknown")]
        is_warned = any("does not give its first message" in reason for reason in reasons)
        assert is_warned == (not master.gives_first)
        assert stage.log("slave") == (master.low, master.log)


def test_a_slave_dials_later_and_later() -> None:
    """At once after a master that it followed, with growing pauses after one that is silent."""
    with Stage("pauses") as stage:
        master = ScriptedMaster(whole_log())
        master.start(stage)
        stage.node("slave", AS_SLAVE)
        master.wait_copied(stage)
        for _ in range(3):
            count = len(master.dialled)
            stage.simulation.run(0.7)
            master.drop()
            stage.until(lambda: len(master.dialled) > count, "dialling again")  # noqa: B023
            assert FIRST_PAUSE_S <= master.dialled[-1] - master.dropped_s < 0.19
        stage.simulation.run(0.7)
        master.serves = False
        master.drop()
        count = len(master.dialled)
        stage.until(lambda: len(master.dialled) >= count + 6, "dialling in vain")
        pauses = [later - before for before, later in pairwise(master.dialled[count : count + 6])]
        for pause, expected in zip(pauses, (0.2, 0.4, 0.5, 0.5, 0.5), strict=True):
            assert 0 <= pause - expected < 0.09, pauses
        stage.ready("slave", REFUSED, "it follows no master: connecting")
        master.serves = master.is_silent = True
        stage.simulation.run(LAST_PAUSE_S + 0.5)
        stage.ready("slave", REFUSED, "it follows no master: comparing")


def test_a_slave_copies_no_tables_of_a_refused_master() -> None:
    def topics(number: int) -> bytes:
        table = {f"T{number}": TopicConfig(topic_name=f"T{number}")}
        version = DataVersion(counter=number)
        return TopicConfigTable(data_version=version, topic_config_table=table).encode()

    log = whole_log()
    with Stage("tables") as stage:
        master = ScriptedMaster(log)
        master.bodies = {TOPICS: topics(1)}
        master.start(stage)
        node = stage.node("slave", AS_SLAVE)
        master.wait_copied(stage)
        stage.until(lambda: [*node.tables.topics.body().topic_config_table] == ["T1"], "a copy")
        master.log = b"\0" * 7 + log[7:-20] + bytes(20)
        master.drop()
        slave: Any = node.replication.slave
        stage.until(lambda: slave.state == "refused", "a master with other bytes")
        stage.simulation.run(1)
        count = master.requests.count(TOPICS)
        master.bodies = {TOPICS: topics(2)}
        stage.simulation.run(3)
        assert master.requests.count(TOPICS) == count
        assert [*node.tables.topics.body().topic_config_table] == ["T1"]
        stage.ready("slave", REFUSED, "refused")
        assert stage.log("slave")[1] == log
