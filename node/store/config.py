"""Settings of one store; names and defaults are RocketMQ's where it has them (store.md 13)."""

from dataclasses import dataclass

from rocketbed.node.store.errors import BadStoreDirectory

MIB = 1 << 20
SEGMENT_SIZE = 1 << 30
"""Default of RocketMQ's `mappedFileSizeCommitLog`."""
SIZE_KEYS = (
    "mappedFileSizeCommitLog",
    "mappedFileSizeConsumeQueue",
    "mapperFileSizeBatchConsumeQueue",
    "maxHashSlotNum",
    "maxIndexNum",
)
QUEUE_UNIT = 20
BATCH_UNIT = 46


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """Configuration of a store. Sizes in bytes, times in milliseconds unless the name says so."""

    root: str
    """Directory of the store (`storePathRootDir`)."""
    commitlog_dir: str = ""
    """Directory of the log's segments (`storePathCommitLog`); empty: `commitlog` under root."""
    segment_size: int = SEGMENT_SIZE
    """Length of a commit log segment (`mappedFileSizeCommitLog`); must equal the slaves'."""
    queue_segment_size: int = 6_000_000
    """Length of a consume queue segment (`mappedFileSizeConsumeQueue`); rounded up to 20."""
    batch_queue_segment_size: int = 13_800_000
    """Length of a batch consume queue segment (`mapperFileSizeBatchConsumeQueue`)."""
    index_slots: int = 5_000_000
    """Hash slots of an index file (`maxHashSlotNum`); another value makes old files unreadable."""
    index_entries: int = 20_000_000
    """Entries of an index file (`maxIndexNum`)."""
    native: bool = False
    """Use the native functions for plain sends, scans of plain records and index keys, if they were
    built (`rbNative`; `rocketbed node` sets it unless `RB_NATIVE=0`). Off elsewhere: a simulation
    runs the same on every machine."""
    index_enabled: bool = True
    """True if keys are indexed (`messageIndexEnable`)."""
    sync_flush: bool = False
    """Answer a send only when it is fsynced (`flushDiskType=SYNC_FLUSH`)."""
    flush_interval_ms: int = 500
    """Pause between flushes in async mode (`flushIntervalCommitLog`)."""
    flush_least_pages: int = 4
    """Dirty 4 KiB pages below which a timed flush is skipped (`flushCommitLogLeastPages`)."""
    flush_thorough_interval_ms: int = 10_000
    """After this long anything dirty is flushed (`flushCommitLogThoroughInterval`)."""
    mark_interval_ms: int = 1000
    """Least pause between two rises of the durable mark W (`flushIntervalConsumeQueue`)."""
    sync_flush_timeout_ms: int = 5000
    """A synchronous send waits this long for its fsync (`syncFlushTimeout`)."""
    max_message_size: int = 4 * MIB
    """Largest body (`maxMessageSize`); a whole record may be 64 KiB larger."""
    append_property_crc: bool = False
    """Write the whole-record checksum property (`enabledAppendPropCRC`)."""
    busy_timeout_ms: int = 1000
    """A write into the page cache above this: node busy (`osPageCacheBusyTimeOutMills`)."""
    clean_interval_ms: int = 10_000
    """Pause between retention rounds (`cleanResourceInterval`)."""
    reserved_ms: int = 72 * 3600 * 1000
    """Age at which a segment may be deleted (`fileReservedTime`, hours)."""
    delete_when: tuple[int, ...] = (4,)
    """Local hours in which expired segments are deleted (`deleteWhen`)."""
    delete_batch_max: int = 10
    """Segments deleted in one round (`deleteFileBatchMax`)."""
    hanged_file_ms: int = 120_000
    """A deleted segment that is still being read is removed by force after this long
    (`destroyMapedFileIntervalForcibly`)."""
    disk_max_used_percent: int = 75
    """Disk usage above which expired segments are deleted at any hour (`diskMaxUsedSpaceRatio`, 10
    to 95)."""
    disk_clean_forcibly_percent: int = 85
    """Usage above which segments are deleted whatever their age (`diskSpaceCleanForciblyRatio`, 30
    to 85)."""
    disk_warning_percent: int = 90
    """Usage above which sends are refused too (`diskSpaceWarningLevelRatio`, 35 to 90)."""
    clean_forcibly_enabled: bool = True
    """True if segments may be deleted whatever their age (`cleanFileForciblyEnable`)."""
    transfer_bytes_memory: int = 262_144
    """Bytes of one pull from memory (`maxTransferBytesOnMessageInMemory`)."""
    transfer_count_memory: int = 32
    """Messages of one pull from memory (`maxTransferCountOnMessageInMemory`)."""
    transfer_bytes_disk: int = 65_536
    """Bytes of one pull from disk (`maxTransferBytesOnMessageInDisk`)."""
    transfer_count_disk: int = 8
    """Messages of one pull from disk (`maxTransferCountOnMessageInDisk`)."""
    memory_bytes: int = 0
    """Distance from the log's end that counts as "in memory" (`accessMessageInMemoryMaxRatio`
    percent of RAM); 0: everything."""
    max_filter_bytes: int = 16_000
    """Bytes of queue units that one pull reads at most (`maxFilterMessageSize`)."""
    max_query_messages: int = 64
    """Messages of one query by key (`maxMsgsNumBatch`)."""
    delay_levels: str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    """Delays of levels 1, 2, ... (`messageDelayLevel`); needed to read RocketMQ's directories."""
    dirty_max: int = 64 * MIB
    """Bytes written and not flushed: at half, flush early; at full, refuse sends (`rbDirtyMax`)."""
    dispatch_ring: int = 65_536
    """Messages that wait for dispatch in memory (`rbDispatchRing`); beyond, the log is re-read."""
    trust_page_cache: bool = True
    """After a kill on the same boot of the kernel, count everything written as stored
    (`rbTrustPageCache`)."""
    scrub_rate: int = 16 * MIB
    """Bytes a second of old log that are read again after a start; 0: none (`rbScrubRate`)."""
    is_slave: bool = False
    """True if this node only receives the log (`brokerRole=SLAVE`)."""
    offset_check_in_slave: bool = False
    """Correct a puller's offset on a slave too (`offsetCheckInSlave`)."""
    store_host: str = "127.0.0.1"
    """Address written into records (`brokerIP1`)."""
    store_port: int = 10911
    """Port written into records (`listenPort`)."""
    accept_cut_at: int = -1
    """Operator's order: end a damaged log at this offset (`rbAcceptCut`)."""
    accept_start_at: int = -1
    """Operator's order: accept a log that lost its beginning up to here (`rbAcceptStart`)."""
    fill_hole_at: int = -1
    """Operator's order: close the damage at this offset with a filler record (`rbFillHole`)."""
    topics_deleted: tuple[tuple[str, int], ...] = ()
    """Operator's statement: topics that were deleted when the log ended at these offsets, and
    recreated, which the directory does not show (`rbTopicDeleted`)."""

    def __post_init__(self) -> None:
        """Refuse sizes that no record or unit fits into."""
        if self.segment_size < 256:
            raise BadStoreDirectory(
                f"mappedFileSizeCommitLog={self.segment_size}: at least 256 bytes are needed"
            )
        if self.index_entries < 2 or self.index_slots < 1:
            raise BadStoreDirectory(
                f"maxIndexNum={self.index_entries}, maxHashSlotNum={self.index_slots}:"
                " an index needs 2 entries and 1 slot at least"
            )
        if self.index_entries >= 1 << 31:
            raise BadStoreDirectory(
                f"maxIndexNum={self.index_entries}: entries have numbers of 32 bits"
            )
        up = -(-self.queue_segment_size // QUEUE_UNIT) * QUEUE_UNIT
        object.__setattr__(self, "queue_segment_size", max(up, QUEUE_UNIT))
        down = self.batch_queue_segment_size // BATCH_UNIT * BATCH_UNIT
        object.__setattr__(self, "batch_queue_segment_size", max(down, BATCH_UNIT))

    @property
    def log_dir(self) -> str:
        """Directory of the commit log's segments."""
        return self.commitlog_dir or f"{self.root}/commitlog"

    @property
    def heal_command(self) -> str:
        """Command line by which an operator, without further files, can have this log healed."""
        command = f"rocketbed store heal {self.root} --from HOST:PORT"
        if self.log_dir != f"{self.root}/commitlog":
            command += f" --set storePathCommitLog={self.log_dir}"
        if self.segment_size != SEGMENT_SIZE:
            command += f" --set mappedFileSizeCommitLog={self.segment_size}"
        return command

    @property
    def sizes(self) -> tuple[int, ...]:
        """Lengths that all files of a directory depend on, in the order of `SIZE_KEYS`."""
        return (
            self.segment_size,
            self.queue_segment_size,
            self.batch_queue_segment_size,
            self.index_slots,
            self.index_entries,
        )

    @property
    def record_max(self) -> int:
        """Largest record, bytes: limited by the settings and by an empty segment."""
        return min(self.max_message_size + 65_536, self.segment_size - 8)


def parse_delay_levels(text: str) -> list[int]:
    """Return the milliseconds of each level of `messageDelayLevel` ("1s 5s ..."). Raises
    `ValueError`."""
    unit_ms = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
    words = text.split()
    for word in words:
        if word[-1] not in unit_ms or not (word[:-1].isascii() and word[:-1].isdecimal()):
            raise ValueError(f"{word!r} is no delay: levels are like 1s 5m 2h 1d, with blanks")
    return [int(word[:-1]) * unit_ms[word[-1]] for word in words]
