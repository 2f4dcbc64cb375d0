"""Reading somebody's store before a trial: settings from its files, every message, no writes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rocketbed.chaos.demo.old_store import DemoError, copy_store, read_old_store
from tests.support.stores import files_below, manifest, unpack


def everything(root: Path) -> dict[str, bytes]:
    return dict(files_below(root, "."))


HOLD = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("name", ["clean", "killed"])
def test_settings_and_messages_of_a_real_broker(name: str, tmp_path: Path) -> None:
    root = unpack(name, tmp_path)
    before = everything(root)
    old = read_old_store(root)
    config = manifest(name)["brokerConfig"]
    for key, value in old.settings.items():
        assert value == config[key]
    assert set(old.settings) == {
        "mappedFileSizeCommitLog",
        "mappedFileSizeConsumeQueue",
        "mapperFileSizeBatchConsumeQueue",
        "maxHashSlotNum",
        "maxIndexNum",
    }
    for row in manifest(name)["stored"]:
        queue = old.queues[row["topic"], row["queueId"]]
        if row["storeSize"]:
            entry = queue[row["queueOffset"]]
            assert (entry.physical, entry.size) == (row["commitLogOffset"], row["storeSize"])
        else:
            assert any(one.physical == row["commitLogOffset"] for one in queue.values())
    assert not old.left_out
    assert old.messages == sum(map(len, old.queues.values()))
    assert everything(root) == before


def test_messages_of_a_deleted_topic_are_left_out(tmp_path: Path) -> None:
    root = unpack("killed", tmp_path)
    whole = read_old_store(root)
    path = root / "config" / "topics.json"
    table = json.loads(path.read_text())
    del table["topicConfigTable"]["FxTags"]
    path.write_text(json.dumps(table))
    old = read_old_store(root)
    left_out = sum(len(queue) for name, queue in whole.queues.items() if name[0] == "FxTags")
    assert left_out
    assert old.left_out == {"FxTags": left_out}
    assert old.messages == whole.messages - left_out
    assert "FxTags" in old.topics


def test_copy_has_the_same_files_but_no_lock(tmp_path: Path) -> None:
    root = unpack("killed", tmp_path / "a")
    (root / "lock").write_bytes(b"lock")
    expected = everything(root)
    copy_store(root, tmp_path / "b")
    assert not (tmp_path / "b" / "lock").exists()
    (root / "lock").unlink()
    assert everything(tmp_path / "b") == {
        name: value for name, value in expected.items() if name != "lock"
    }
    with pytest.raises(DemoError, match="cannot be copied"):
        copy_store(root, tmp_path / "b")


def test_directory_without_a_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DemoError, match="--store"):
        read_old_store(tmp_path)


def test_a_store_without_messages_is_refused(tmp_path: Path) -> None:
    log = tmp_path / "commitlog"
    log.mkdir()
    (log / "0".zfill(20)).write_bytes(bytes(4096))
    with pytest.raises(DemoError, match="no message"):
        read_old_store(tmp_path)


def test_a_store_that_a_broker_holds_is_refused(tmp_path: Path) -> None:
    root = unpack("killed", tmp_path)
    (root / "lock").write_bytes(b"lock")
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, os.fspath(root / "lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(DemoError, match=f"process {holder.pid} has it open"):
            read_old_store(root)
