"""Bugs in what an acknowledgement promises: flushed, and held by enough replicas."""

import contextlib
from typing import Any

import trio

from rocketbed.wire.ha import encode_report
from tests.mutation.planted.mutant import mutant

BATCH_S = 0.002
REPORT_S = 0.5
"""chaos.md 6.2 says 5 s; a send waits 1 s for slaves in simulation, and slower is not failing."""


@mutant(
    "M1",
    "ack before flush",
    "rocketbed.node.release:ReleaseQueue._is_safe",
    bug="a send is answered before its bytes are on the master's disk (apache/rocketmq 8239)",
    edit="the wait for the flush counts as over at once",
    caught_by=("acked-before-durable", "lost-write", "recovered-end"),
    family="power-lone",
)
def _ack_before_flush(_original: Any, self: Any, end: int) -> bool:
    return self._confirmed is None or self._confirmed.value >= end


@mutant(
    "M2",
    "ack before replica",
    "rocketbed.node.release:ReleaseQueue._is_safe",
    bug="a send is answered before enough replicas hold it",
    edit="the wait for slaves counts as over at once: the master alone is enough",
    caught_by=("acked-before-durable", "lost-write"),
    family="sync-failover",
)
def _ack_before_replica(_original: Any, self: Any, end: int) -> bool:
    return self._flushed is None or self._flushed.value >= end


@mutant(
    "M3",
    "replica acks before its own flush",
    "rocketbed.replication.slave:Slave.__init__",
    bug="a slave under SYNC_FLUSH reports what it has written, not what it has on disk",
    edit="the slave reports the end of its log",
    caught_by=("acked-before-durable", "dishonest-ack", "lost-write"),
    family="disk-sick",
)
def _replica_acks_early(original: Any, self: Any, *args: Any, **options: Any) -> None:
    original(self, *args, **{**options, "report_flushed": False})


@mutant(
    "M16",
    "fsync error swallowed",
    "rocketbed.node.store.segments:SegmentRow.sync",
    bug="a failed fsync is taken for a good one, and its bytes for durable (2706, 9713)",
    edit="the error of a log segment's fsync is dropped",
    caught_by=("acked-before-durable", "write-after-disk-failure", "recovered-end", "lost-write"),
    family="disk-sick",
)
async def _fsync_error_swallowed(_original: Any, self: Any, start: int) -> None:
    self.dirty.pop(start, None)
    file = self._pool.pin(self.path(start))  # the pool itself would have the store fail
    try:
        with contextlib.suppress(OSError):
            await file.sync()
    finally:
        self._pool.unpin(self.path(start))


@mutant(
    "E2",
    "flush in batches of 2 ms",
    "rocketbed.node.store.flush:Flusher._pause",
    bug="none: answers come a little later, for more messages at once",
    edit="each fsync under SYNC_FLUSH waits 2 ms for company",
)
async def _flush_in_batches(original: Any, self: Any) -> None:
    await original(self)
    await trio.sleep(BATCH_S)


@mutant(
    "E3",
    "slave reports by the clock",
    "rocketbed.replication.follow:MasterConnection._report",
    bug="none: acknowledgements of slaves come later",
    edit="a slave reports every 500 ms, not whenever its log has grown",
)
async def _reports_by_the_clock(_original: Any, self: Any) -> None:
    offset = self._first
    await self._stream.send_all(encode_report(offset))
    while True:
        await trio.sleep(REPORT_S)
        if self._is_recorded.is_set() and (self._compared.is_set() or self._next > self._first):
            offset = max(offset, self._acknowledged())
            await self._stream.send_all(encode_report(offset))
