"""The parts of one store, created once and passed to each activity."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from rocketbed.node.store.checkpoint import Witnesses
from rocketbed.node.store.commitlog import CommitLog
from rocketbed.node.store.config import StoreConfig, parse_delay_levels
from rocketbed.node.store.damage import DamagedRanges
from rocketbed.node.store.failure import Failure
from rocketbed.node.store.files import FilePool
from rocketbed.node.store.index import Index
from rocketbed.node.store.log_bodies import log_bodies
from rocketbed.node.store.marks import Marks
from rocketbed.node.store.queues import Queues
from rocketbed.node.store.scan import RecordScanner
from rocketbed.replication.watermark import Watermark
from rocketbed.world.api import World

STAGING_DIR = "rocketbed.tmp"
"""Directory in which files are built before they get their name; RocketMQ ignores it."""


class TopicSource(Protocol):
    """The store's view of the topic table."""

    def exists(self, topic: str) -> bool | None:
        """Return True if the topic has a configuration; None if the table did not load cleanly."""
        ...

    def is_batch_queue(self, topic: str) -> bool:
        """Return True if its attribute `queue.type` is BatchCQ."""
        ...

    def remarks(self, queues: Iterable[tuple[str, int, bool]]) -> list[str]:
        """Return, as sentences, what is odd about the table given these queues (topic, id, True for
        a batch queue) that have messages."""
        ...


class AllTopics:
    """A topic source for a store without a broker: every topic exists."""

    def exists(self, topic: str) -> bool | None:
        """Return None: it is not known."""
        return None

    def is_batch_queue(self, topic: str) -> bool:
        return False

    def remarks(self, queues: Iterable[tuple[str, int, bool]]) -> list[str]:
        """Return nothing."""
        return []


@dataclass(slots=True)
class StoreParts:
    """The parts of a store; activities (flush, dispatch, recovery, retention) get this and their
    own arguments."""

    world: World
    config: StoreConfig
    topics: TopicSource
    failure: Failure
    pool: FilePool
    log: CommitLog
    queues: Queues
    index: Index
    marks: Marks
    witnesses: Witnesses
    scanner: RecordScanner
    """For live dispatch: no CRC."""
    dispatched: Watermark
    """Offset below which every record is in queues and index (in memory or in files)."""
    damaged: DamagedRanges
    confirmed: Watermark | None = None
    """End of what may be dispatched in a group with failover: later records may be cut. None: no
    bound."""

    def dispatchable(self, position: int) -> int:
        """Return how far records below `position`, read by a start, may be in queues."""
        if self.confirmed is None:
            return position
        return min(position, max(self.confirmed.value, self.marks.mark.offset))

    @property
    def staging(self) -> str:
        """Directory of files without a name yet."""
        return f"{self.config.root}/{STAGING_DIR}"


def make_parts(
    world: World,
    config: StoreConfig,
    topics: TopicSource | None,
    confirmed: Watermark | None = None,
) -> StoreParts:
    """Build the parts; nothing on disk is touched."""
    staging = f"{config.root}/{STAGING_DIR}"
    failure = Failure()
    pool = FilePool(world, failure)
    delays_ms = parse_delay_levels(config.delay_levels)
    topics = topics or AllTopics()
    return StoreParts(
        world=world,
        config=config,
        topics=topics,
        failure=failure,
        pool=pool,
        log=CommitLog(world, pool, config, staging),
        queues=Queues(
            world, pool, config, staging, is_batch=topics.is_batch_queue, exists=topics.exists
        ),
        index=Index(world, pool, config, staging),
        marks=Marks(world, config.root, staging, failure),
        witnesses=Witnesses(world, config.root, staging),
        scanner=RecordScanner(
            check_crc=False, delays_ms=delays_ms, bodies=log_bodies(enabled=config.native)
        ),
        dispatched=Watermark(),
        damaged=DamagedRanges(),
        confirmed=confirmed,
    )
