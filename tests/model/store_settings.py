"""Settings of a store beside a model: files that hold a few messages, and times that are short."""

from collections.abc import Iterable
from random import Random
from typing import Any, Final

from rocketbed.node.store.config import StoreConfig

ROOT: Final = "/store"
HOST: Final = b"\x7f\0\0\1\0\0\x2a\x9f"
BATCHES: Final = ("C",)
"""Topics with batch queues."""
RESERVED_MS: Final = 20_000
FEW_DESCRIPTORS: Final = 20
"""With these the store keeps eight files open."""
FLUSHED_S: Final = 1.2
"""A change, however small, is synced within this: a bit more than two thorough intervals."""
MARKED_S: Final = 0.8


class Topics:
    """A topic table in which every topic exists."""

    def exists(self, topic: str) -> bool | None:
        return True

    def is_batch_queue(self, topic: str) -> bool:
        return topic in BATCHES

    def remarks(self, queues: Iterable[tuple[str, int, bool]]) -> list[str]:
        return []


def settings(random: Random, **changes: Any) -> StoreConfig:
    """Return settings with files that hold a few messages."""
    values: dict[str, Any] = {
        "root": ROOT,
        "segment_size": random.choice((2048, 4096)),
        "queue_segment_size": 160,
        "batch_queue_segment_size": 92,
        "index_slots": 7,
        "index_entries": random.choice((24, 60)),
        "sync_flush": random.random() < 0.5,
        "flush_interval_ms": 50,
        "flush_thorough_interval_ms": 1000,
        "mark_interval_ms": 300,
        "clean_interval_ms": 500,
        "reserved_ms": RESERVED_MS,
        "delete_when": (),
        "delete_batch_max": 2,
        "dispatch_ring": random.choice((4, 65_536)),
        "scrub_rate": 1 << 30,
        "append_property_crc": random.random() < 0.3,
        "store_host": random.choice(("127.0.0.1", "::1")),
    }
    return StoreConfig(**(values | changes))
