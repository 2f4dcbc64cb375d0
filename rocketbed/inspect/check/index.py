"""Check that the index agrees with the log, in one pass over both in log order.

Index entries are in the order of their records, so a record's entries are the next ones when the
pass reaches it. Meanwhile each file is rebuilt in memory: chains, slot table and header must be
equal to the stored ones. Rules S3, S8 and S10 of chaos.md 2.7.

After an unclean stop RocketMQ deletes the unfinished file, keeps the full ones, and indexes again
whatever it dispatches again. So a new file may repeat records that older files hold; its entries
are skipped until they reach a new record.
"""

import sys
from array import array
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from rocketbed.inspect.check.queues import LogFacts
from rocketbed.inspect.dispatch import tag_key
from rocketbed.inspect.findings import REBUILD, Findings, Severity
from rocketbed.inspect.index import IndexFile, IndexHeader
from rocketbed.inspect.properties import TopicHash

_SECONDS_MAX = (1 << 31) - 1


class _Entry(NamedTuple):
    key_hash: int
    offset: int
    seconds: int
    previous: int
    number: int


class IndexChecker:
    """Compares the log's records, one by one, with the entries of the index."""

    def __init__(
        self,
        files: list[IndexFile],
        names: list[str],
        findings: Findings,
        facts: LogFacts,
        *,
        was_off: bool,
    ) -> None:
        self._findings = findings
        self._facts = facts
        self._was_off = was_off
        """True if a node may have written without an index."""
        self._files = list(zip(files, names, strict=True))
        self._name = names[0] if names else "index"
        self._header = IndexHeader(0, 0, 0, 0, 0, 1)
        self._is_repairable = False
        """True if recovery repairs the present file: after a power loss it lacks what was not
        synced."""
        self._stream = self._entries()
        self._next = next(self._stream, None)
        self._torn = 0
        """Entries that a power loss took."""
        self._missing = 0
        self._missing_from = 0
        self._leading = True
        self.records = 0

    def expect(
        self,
        offset: int,
        store_ms: int,
        hashes: list[int],
        topic_hash: TopicHash,
        tags: bytes,
        *,
        deleted: bool = False,
    ) -> None:
        """Compare the next indexed record with the index; `hashes` are those of its keys, in order.

        A 5.5.0 broker also indexes the tag, after the keys; that is considered only if the entries
        differ from `hashes`. The first keys of the first indexed record may have been in an older
        file. The keys of a record of a `deleted` topic need not be indexed.
        """
        entry = self._next
        self.records += 1
        while entry is not None and entry[1] < offset:
            self._report_unmatched(entry, offset)
            entry = self._next = next(self._stream, None)
        if entry is None or entry[1] != offset:
            if hashes and not deleted:
                self._missing_from = self._missing_from if self._missing else offset
                self._missing += len(hashes)
            return
        if self._missing:
            self._report_missing(tail=False)
        leading, self._leading = self._leading, False
        indexed: list[int] = []
        while entry is not None and entry[1] == offset:
            indexed.append(entry[0])
            self._judge_time(entry, store_ms)
            entry = self._next = next(self._stream, None)
        if indexed == hashes:
            return
        full = [*hashes, topic_hash.key_hash(tag_key(tags))] if tags else hashes
        if indexed == full or (
            leading and indexed in (hashes[-len(indexed) :], full[-len(indexed) :])
        ):
            return
        self._judge_keys(offset, indexed, full if full[-1] in indexed else hashes)

    def finish(self, facts: LogFacts) -> bool:
        """Report entries that are missing at the end of the log, and those beyond it.

        Returns True when the index lacks the end of the log.
        """
        lacks_end = self._missing > 0 and not self._was_off
        if self._missing:
            self._report_missing(tail=True)
        while self._next is not None:
            entry = self._next
            if entry[1] >= facts.end:
                severity = Severity.TAIL if facts.unclean else Severity.DAMAGE
                text = f"entry {entry[4]} points to {entry[1]}, the log ends at {facts.end}"
                self._findings.add(
                    "nothing-beyond-log",
                    severity,
                    self._name,
                    text,
                    offset=entry[1],
                    advice=REBUILD,
                    cause=self._findings.cause_at(entry[1]),
                )
            elif entry[1] >= facts.minimum:
                self._report_unmatched(entry, facts.end)
            self._next = next(self._stream, None)
        return lacks_end

    def _entries(self) -> Iterator[_Entry]:
        """Yield the entries of all files in order, except those that repeat records of older files.
        Each file is checked after its last entry."""
        indexed_below = 0
        """Log offset of the last record that older files hold."""
        for position, (index, name) in enumerate(self._files):
            self._name = name
            self._header = header = index.header()
            is_last = position + 1 == len(self._files)
            self._is_repairable = is_last and (self._facts.unclean or self._was_off)
            replay = _Replay(index, header, name, self._findings, mendable=self._is_repairable)
            slots = index.layout.slots
            table = replay.table
            entry = None
            repeated, previous, repeats = 0, 0, True
            for number, fields in enumerate(index.entries(header.next_entry), start=1):
                slot = fields[0] % slots
                if table[slot] != fields[3] or fields[0] < 0:
                    replay.broken_chain(number, fields[3], table[slot])
                table[slot] = number
                entry = _Entry(*fields, number)
                replay.first = replay.first or entry
                repeats = repeats and previous <= fields[1] < indexed_below
                if repeats:
                    repeated, previous = repeated + 1, fields[1]
                else:
                    yield entry
            replay.finish(entry)
            if repeated:
                text = (
                    f"{repeated} entries index records below {indexed_below}"
                    " that older files hold already"
                )
                self._findings.add("index-complete", Severity.NOTE, name, text)
            indexed_below = max(indexed_below, header.end_offset)

    def _report_unmatched(self, entry: _Entry, expected_offset: int) -> None:
        """Report an entry that points to no indexed record, met when the record at
        `expected_offset` or a later one was next."""
        if self.records <= 1:
            return  # It may point below the log's start, as the last entries of old files do.
        text = f"entry {entry.number} points to {entry.offset}, where no indexed record is"
        severity = Severity.DAMAGE
        if self._may_lack(expected_offset) and entry.offset == 0 and entry.number > 1:
            text = f"entry {entry.number} is not on disk"
            severity = Severity.TAIL
            self._torn += 1
        self._findings.add(
            "index-matches-log",
            severity,
            self._name,
            text,
            offset=entry.offset,
            advice=REBUILD,
            cause=self._findings.cause_at(entry.offset),
        )

    def _may_lack(self, offset: int) -> bool:
        """True if a record's entry need not be on disk because the next start indexes it again."""
        return self._is_repairable and (self._was_off or self._facts.may_lack_entries(offset))

    def _judge_time(self, entry: _Entry, store_ms: int) -> None:
        begin_ms = self._header.begin_ms
        if entry.number == 1:
            if 0 < begin_ms != store_ms:
                text = f"it begins with a record of {begin_ms} ms, and that one is of {store_ms} ms"
                self._findings.add(
                    "index-matches-log", Severity.DAMAGE, self._name, text, offset=entry.offset
                )
            return
        seconds = int((store_ms - begin_ms) / 1000) if begin_ms > 0 else 0
        if entry.seconds != min(max(seconds, 0), _SECONDS_MAX):
            text = f"entry {entry.number} says {entry.seconds} s after the begin, not {seconds} s"
            self._findings.add(
                "index-matches-log",
                Severity.DAMAGE,
                self._name,
                text,
                offset=entry.offset,
                advice=REBUILD,
            )

    def _judge_keys(self, offset: int, indexed: list[int], hashes: list[int]) -> None:
        extra = Counter(indexed) - Counter(hashes)
        lacking = Counter(hashes) - Counter(indexed)
        if not lacking and set(extra) <= set(hashes):
            text = f"the record at {offset} is indexed {len(indexed) / len(hashes):.3g} times"
            self._findings.add("index-complete", Severity.NOTE, self._name, text, offset=offset)
            return
        if extra:
            text = f"entries for {offset} have key hashes {sorted(extra)} that its keys do not give"
            self._findings.add(
                "index-matches-log",
                Severity.DAMAGE,
                self._name,
                text,
                offset=offset,
                advice=REBUILD,
            )
        if lacking:
            text = f"{lacking.total()} keys of the record at {offset} are not indexed"
            severity = Severity.DAMAGE
            is_torn = self._torn or (self._next is not None and not self._next.offset)
            is_end = self._next is None and (self._facts.unclean or self._was_off)
            if (is_torn and self._may_lack(offset)) or is_end:
                severity = Severity.TAIL
            self._findings.add(
                "index-complete", severity, self._name, text, offset=offset, advice=REBUILD
            )
        if not extra and not lacking:
            text = f"the keys of the record at {offset} are indexed in another order"
            self._findings.add("index-complete", Severity.NOTE, self._name, text, offset=offset)

    def _report_missing(self, *, tail: bool) -> None:
        severity = Severity.DAMAGE
        text = f"{self._missing} keys from log {self._missing_from} on are not indexed"
        if self._leading and not tail:
            severity = Severity.NOTE
            text += ": older index files were deleted"
        elif self._was_off and tail:
            severity = Severity.TAIL
            text += ", as messageIndexEnable was false: a start with true builds the index again"
        elif self._facts.may_lack_entries(self._missing_from) and (
            tail or self._torn >= self._missing
        ):
            severity = Severity.TAIL
            text += " yet"
            self._torn = max(self._torn - self._missing, 0)
        self._findings.add(
            "index-complete",
            severity,
            self._name,
            text,
            offset=self._missing_from,
            advice=REBUILD,
            count=self._missing,
        )
        self._missing = 0


class _Replay:
    """Chains and slot table of one file, rebuilt from its entries."""

    def __init__(
        self,
        index: IndexFile,
        header: IndexHeader,
        name: str,
        findings: Findings,
        *,
        mendable: bool,
    ) -> None:
        self.index = index
        self.header = header
        self.name = name
        self.findings = findings
        self.table = array("i", bytes(4 * index.layout.slots))
        self.first: _Entry | None = None
        self.severity = Severity.TAIL if mendable else Severity.DAMAGE
        """A start repairs or deletes the unfinished file of an unclean stop (T9)."""

    def broken_chain(self, number: int, stored: int, expected: int) -> None:
        """Report an entry whose back link is not the previous entry of its slot."""
        text = f"entry {number} is linked to entry {stored}, {expected} comes before it"
        if stored >= number:
            text = f"entry {number} is linked to {stored}: the chain does not end"
        self._add(text, number)

    def finish(self, last: _Entry | None) -> None:
        """Compare header and slot table with the rebuilt ones."""
        header = self.header
        if header.next_entry > self.index.layout.entries:
            self._add(f"the header counts {header.next_entry - 1} entries, room is for fewer", None)
        elif last is not None and last.number + 1 != header.next_entry:
            self._add(f"the file ends behind entry {last.number} of {header.next_entry - 1}", None)
        if self.first is not None and last is not None:
            if header.begin_offset != self.first.offset:
                self._add(f"begin offset {header.begin_offset}, entry 1 has {self.first.offset}", 1)
            if header.end_offset != last.offset:
                self._add(f"end offset {header.end_offset}, the last has {last.offset}", None)
            if header.end_ms < header.begin_ms:
                self._add(f"the file ends at {header.end_ms}, before it begins", None)
        used = len(self.table) - self.table.count(0)
        if used != header.used_slots:
            self._add(f"the header counts {header.used_slots} used slots, entries use {used}", None)
        stored = array("i", self.index.slot_table().ljust(4 * len(self.table), b"\0"))
        if sys.byteorder == "little":
            stored.byteswap()
        if stored != self.table:
            self._compare_slots(stored)

    def _compare_slots(self, stored: "array[int]") -> None:
        pairs = enumerate(zip(stored, self.table, strict=True))
        slot, (newest, expected) = next(pair for pair in pairs if pair[1][0] != pair[1][1])
        self._add(f"slot {slot} names entry {newest}, the newest one of it is {expected}", None)

    def _add(self, text: str, offset: int | None) -> None:
        self.findings.add(
            "index-matches-log", self.severity, self.name, text, offset=offset, advice=REBUILD
        )
