"""`rocketbed store heal` as a shell command: the command that a node prints, and its output."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner

from rocketbed.cli.store import store
from rocketbed.node.store.config import StoreConfig
from rocketbed.node.store.errors import StoreError
from rocketbed.node.store.store import MessageStore
from rocketbed.world.real import real_world
from tests.support import own_store

NOBODY = "127.0.0.1:1"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    trio.run(own_store.write, tmp_path / "store")
    return tmp_path / "store"


def log_of(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def refusal(config: StoreConfig) -> str:
    """Return the error of a start on a damaged directory."""
    with pytest.raises(StoreError) as caught:
        trio.run(MessageStore.check, real_world("test"), config)
    return str(caught.value)


def test_undamaged_log_asks_no_replica(root: Path) -> None:
    result = CliRunner().invoke(store, ["heal", str(root), "--from", NOBODY])
    assert result.exit_code == 0
    assert result.output == f"the log is whole: nothing was asked of {NOBODY}\n"


@pytest.mark.parametrize("elsewhere", [False, True])
def test_the_command_that_a_node_prints_is_enough(root: Path, elsewhere: bool) -> None:
    """It knows the sizes and the place of the log, and comes as far as asking the replica."""
    config, log = own_store.config(root), root / "commitlog"
    if elsewhere:
        log = log.rename(root.parent / "log")
        config = replace(config, commitlog_dir=str(log))
    sorted(log.iterdir())[1].unlink()
    command = re.findall("`rocketbed store (heal .*?)`", refusal(config))[0]
    mark = root / "rocketbed.ckpt"
    mark.write_bytes(mark.read_bytes().replace(b'"w"', b'"v"'))
    before = log_of(log)
    result = CliRunner().invoke(store, command.replace("HOST:PORT", NOBODY).split())
    assert result.exit_code == 1
    assert f"{NOBODY} cannot be reached" in result.output
    assert result.output.endswith("Nothing was changed\n")
    assert log_of(log) == before
