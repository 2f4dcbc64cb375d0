"""Records of a run: their properties, and the limits of each kind."""

from functools import partial
from itertools import product

import pytest

from rocketbed.node.store.config import StoreConfig
from rocketbed.node.store.errors import MessageRejected
from rocketbed.node.store.run import LogTail, Run, without_checksum
from rocketbed.wire.properties import PROPERTIES_MAX

BORN_HOST = bytes(8)
CHECKSUM = "__CRC32#\x010123456789\x02"


def test_removes_only_the_producers_checksum() -> None:
    pairs = (CHECKSUM, "K\x01v\x02", "x__CRC32#\x011\x02", "")
    for count in range(4):
        for row in product(pairs, repeat=count):
            expected = "".join(pair for pair in row if pair != CHECKSUM)
            assert without_checksum("".join(row).encode()) == expected.encode()
    assert without_checksum(f"K\x01v\x02{CHECKSUM[:-1]}".encode()) == b"K\x01v\x02"


def test_limit_for_producers_spares_what_the_broker_stores_itself() -> None:
    config = StoreConfig(root="/s", max_message_size=10, segment_size=128 * 1024)
    run = Run(LogTail(config), 0, 0)
    add = partial(run.add, "T", 0, flag=0, sys_flag=0, born_ms=0, born_host=BORN_HOST)
    with pytest.raises(MessageRejected, match="maxMessageSize is 10"):
        add(bytes(11), b"")
    add(bytes(11), b"", is_limited=False)
    with pytest.raises(MessageRejected, match="no segment holds"):
        add(bytes(128 * 1024), b"", is_limited=False)
    with pytest.raises(MessageRejected, match="properties take"):
        add(b"", bytes(PROPERTIES_MAX + 1), is_limited=False)
