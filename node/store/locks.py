"""Locks that keep a second process off a store: RocketMQ's on the root, ours on the log.

Two roots may name one log directory (storePathCommitLog), and `lock` may be deleted under a running
node; so the log's directory itself is locked. That creates no file in it, since RocketMQ reads a
stray file among the segments as a segment and does not start.
"""

from rocketbed.node.store.config import StoreConfig
from rocketbed.node.store.errors import StoreLocked
from rocketbed.world.api import Lock, World


def lock_store(world: World, config: StoreConfig) -> list[Lock]:
    """Take both locks, the log's if its directory exists. Raises `StoreLocked`, `OSError`."""
    root, log_dir = config.root, config.log_dir
    lock = world.disk.lock(f"{root}/lock")
    if lock is None:
        raise StoreLocked(
            f"{root} is held by another process (its file `lock`): stop that broker, or use"
            " another storePathRootDir"
        )
    if not world.disk.is_dir(log_dir):
        return [lock]
    try:
        log_lock = world.disk.lock_dir(log_dir)
    except OSError:
        lock.release()
        raise
    if log_lock is None:
        lock.release()
        raise StoreLocked(
            f"{log_dir} is held by another process, whose storePathRootDir is another one or whose"
            f" file {root}/lock was deleted: stop that process, or use another storePathCommitLog"
        )
    return [log_lock, lock]
