"""A lost power leaves a torn end for `store check`, never damage: each of these starts."""

from contextlib import closing
from pathlib import Path

import pytest
import trio

from rocketbed.inspect import check_store, open_directory
from rocketbed.inspect.directory import NotAStore
from tests.support.broker import Session, node_run

CUTS = 36


async def scenario(session: Session) -> None:
    """Send with keys and delays, put a message back, delete a topic and recreate it with another
    type.
    """
    await session.heartbeat()
    for number in range(10):
        await session.send("T", b"%d" % number, properties={"KEYS": f"k{number}"})
        await session.send("T", b"late", properties={"DELAY": "1", "KEYS": "late"})
    await session.ask(36, {"offset": "0", "group": "g", "delayLevel": "1"})
    await trio.sleep(1.2)
    await session.ask(215, {"topic": "T"})
    fields = {
        "topic": "T", "defaultTopic": "TBW102", "readQueueNums": "2", "writeQueueNums": "2",
        "perm": "6", "topicFilterType": "SINGLE_TAG", "attributes": "+queue.type=BatchCQ",
    }  # fmt: skip
    await session.ask(17, fields)
    for number in range(10):
        await session.send("T", b"%d" % number, properties={"KEYS": f"again{number}"})
    await trio.sleep(1.2)


@pytest.mark.parametrize("seed", range(2))
def test_a_power_cut_is_no_damage(seed: int, tmp_path: Path) -> None:
    settings = "flushDiskType=SYNC_FLUSH"
    events = node_run(scenario, settings).events
    for cut in range(1, CUTS + 1):
        at = events * cut // (CUTS + 1) + seed
        run = node_run(scenario, settings, crash_at=at, kind="power", seed=seed)
        path = tmp_path / str(at)
        run.image.export(str(path))
        try:
            with closing(open_directory(str(path / "store"))) as directory:
                report = check_store(directory)
        except NotAStore:
            continue
        assert report.verdict != "damage", (at, report.findings[0])
