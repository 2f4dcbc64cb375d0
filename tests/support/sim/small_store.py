"""A store with files of a few messages, and a table in which every topic exists."""

from collections.abc import Iterable
from typing import Any

from rocketbed.node.store.config import StoreConfig
from rocketbed.node.store.store import MessageStore
from rocketbed.wire.message import MAGIC_BLANK

ROOT = "/store"
BATCH_TOPIC = "C"


class Topics:
    """A topic table in which every topic exists."""

    def exists(self, topic: str) -> bool | None:
        return True

    def is_batch_queue(self, topic: str) -> bool:
        return topic == BATCH_TOPIC

    def remarks(self, queues: Iterable[tuple[str, int, bool]]) -> list[str]:
        return []


def small_config(**changes: Any) -> StoreConfig:
    """Return settings with files that hold a few messages."""
    values: dict[str, Any] = {
        "root": ROOT, "segment_size": 2048, "queue_segment_size": 160,
        "batch_queue_segment_size": 92, "index_slots": 7, "index_entries": 24,
        "flush_interval_ms": 50, "flush_thorough_interval_ms": 1000, "mark_interval_ms": 300,
        "clean_interval_ms": 500, "delete_when": (), "scrub_rate": 1 << 30,
    }  # fmt: skip
    return StoreConfig(**(values | changes))


BLANK_MAGIC = MAGIC_BLANK & 0xFFFFFFFF
HOST = b"\x7f\0\0\1\0\0\x2a\x9f"


def put(store: MessageStore, topic: str, queue: int, body: bytes) -> int:
    """Append a message; return its offset in the log."""
    run = store.begin()
    run.add(topic, queue, body, b"", flag=0, sys_flag=0, born_ms=1, born_host=HOST)
    start, pieces = run.chunks[-1]
    data = b"".join(pieces)
    if int.from_bytes(data[4:8], "big") == BLANK_MAGIC:
        start += int.from_bytes(data[:4], "big")
    store.commit(run)
    return start
