"""Does the index agree with the log? One pass over both, in the order of the log.

Entries stand in the order of their records, so the entries of a record are the next ones when its
turn comes. On the way each file is put together again: chains, slot table and header must come out
as they are stored. Rules S3, S8 and S10 of chaos.md 2.7.

After an unclean stop RocketMQ deletes the unfinished file, keeps the full ones, and indexes again
what it dispatches again. So a new file may go back to records that older files hold already; from
there on entries are passed over until they come to something new.
"""

import sys
from array import array
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from rocketbed.inspect.check.queues import REBUILD, LogFacts
from rocketbed.inspect.dispatch import tag_key
from rocketbed.inspect.findings import Findings, Severity
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
    """Takes the records of the log one by one, and says what the index makes of them."""

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
        """Whether nodes are known to have written without an index."""
        self._files = list(zip(files, names, strict=True))
        self._name = names[0] if names else "index"
        self._header = IndexHeader(0, 0, 0, 0, 0, 1)
        self._mendable = False
        """Whether recovery mends the present file: of a lost power it lacks what was not synced."""
        self._stream = self._entries()
        self._next = next(self._stream, None)
        self._torn = 0
        """Entries that a lost power took."""
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
        gone: bool = False,
    ) -> None:
        """A record that is indexed, and the hashes of its keys in their order.

        A 5.5.0 broker indexes the tag too, behind the keys; that is asked only if they differ. The
        first keys of the first indexed record may have been in an older file. The keys of a `gone`
        record need not be there.
        """
        entry = self._next
        self.records += 1
        while entry is not None and entry[1] < offset:
            self._judge_stranger(entry, offset)
            entry = self._next = next(self._stream, None)
        if entry is None or entry[1] != offset:
            if hashes and not gone:
                self._missing_from = self._missing_from if self._missing else offset
                self._missing += len(hashes)
            return
        if self._missing:
            self._report_missing(tail=False)
        leading, self._leading = self._leading, False
        found: list[int] = []
        while entry is not None and entry[1] == offset:
            found.append(entry[0])
            self._judge_time(entry, store_ms)
            entry = self._next = next(self._stream, None)
        if found == hashes:
            return
        full = [*hashes, topic_hash.key_hash(tag_key(tags))] if tags else hashes
        if found == full or (leading and found in (hashes[-len(found) :], full[-len(found) :])):
            return
        self._judge_keys(offset, found, full if full[-1] in found else hashes)

    def finish(self, facts: LogFacts) -> bool:
        """The log has been read: judge what is missing, and what the index holds beyond it.

        True when the index lacks the end of the log.
        """
        behind = self._missing > 0 and not self._was_off
        if self._missing:
            self._report_missing(tail=True)
        while self._next is not None:
            entry = self._next
            if entry[1] >= facts.end:
                severity = Severity.TAIL if facts.unclean else Severity.DAMAGE
                what = f"entry {entry[4]} points to {entry[1]}, the log ends at {facts.end}"
                self._findings.add(
                    "S3", severity, self._name, what, offset=entry[1], advice=REBUILD
                )
            elif entry[1] >= facts.minimum:
                self._judge_stranger(entry, facts.end)
            self._next = next(self._stream, None)
        return behind

    def _entries(self) -> Iterator[_Entry]:
        """Entries of all files in order, without those that repeat what older files hold; each file
        is checked when its last one was taken."""
        known = 0
        """Where the last record begins that older files hold."""
        for position, (index, name) in enumerate(self._files):
            self._name = name
            self._header = header = index.header()
            is_last = position + 1 == len(self._files)
            self._mendable = is_last and (self._facts.unclean or self._was_off)
            replay = _Replay(index, header, name, self._findings, mendable=self._mendable)
            slots = index.layout.slots
            table = replay.table
            entry = None
            again, previous, repeats = 0, 0, True
            for number, fields in enumerate(index.entries(header.next_entry), start=1):
                slot = fields[0] % slots
                if table[slot] != fields[3] or fields[0] < 0:
                    replay.broken_chain(number, fields[3], table[slot])
                table[slot] = number
                entry = _Entry(*fields, number)
                replay.first = replay.first or entry
                repeats = repeats and previous <= fields[1] < known
                if repeats:
                    again, previous = again + 1, fields[1]
                else:
                    yield entry
            replay.finish(entry)
            if again:
                what = f"{again} entries index records below {known} that older files hold already"
                self._findings.add("S10", Severity.NOTE, name, what)
            known = max(known, header.end_offset)

    def _judge_stranger(self, entry: _Entry, due: int) -> None:
        """An entry of no record, where that of the record at `due` or behind has its turn."""
        if self.records <= 1:
            return  # It may point below the log's start; that is how old files end.
        what = f"entry {entry.number} points to {entry.offset}, where no indexed record is"
        severity = Severity.DAMAGE
        if self._may_lack(due) and entry.offset == 0 and entry.number > 1:
            what = f"entry {entry.number} is not on disk"
            severity = Severity.TAIL
            self._torn += 1
        self._findings.add("S8", severity, self._name, what, offset=entry.offset, advice=REBUILD)

    def _may_lack(self, offset: int) -> bool:
        """Whether the entry of a record need not be on disk: a start indexes it again."""
        return self._mendable and (self._was_off or self._facts.may_lack_entries(offset))

    def _judge_time(self, entry: _Entry, store_ms: int) -> None:
        begin_ms = self._header.begin_ms
        if entry.number == 1:
            if 0 < begin_ms != store_ms:
                what = f"it begins with a record of {begin_ms} ms, and that one is of {store_ms} ms"
                self._findings.add("S8", Severity.DAMAGE, self._name, what, offset=entry.offset)
            return
        seconds = int((store_ms - begin_ms) / 1000) if begin_ms > 0 else 0
        if entry.seconds != min(max(seconds, 0), _SECONDS_MAX):
            what = f"entry {entry.number} says {entry.seconds} s after the begin, not {seconds} s"
            self._findings.add(
                "S8", Severity.DAMAGE, self._name, what, offset=entry.offset, advice=REBUILD
            )

    def _judge_keys(self, offset: int, found: list[int], hashes: list[int]) -> None:
        extra = Counter(found) - Counter(hashes)
        lacking = Counter(hashes) - Counter(found)
        if not lacking and set(extra) <= set(hashes):
            what = f"the record at {offset} is indexed {len(found) / len(hashes):.3g} times"
            self._findings.add("S10", Severity.NOTE, self._name, what, offset=offset)
            return
        if extra:
            what = f"entries for {offset} have key hashes {sorted(extra)} that its keys do not give"
            self._findings.add(
                "S8", Severity.DAMAGE, self._name, what, offset=offset, advice=REBUILD
            )
        if lacking:
            what = f"{lacking.total()} keys of the record at {offset} are not indexed"
            severity = Severity.DAMAGE
            is_torn = self._torn or (self._next is not None and not self._next.offset)
            is_end = self._next is None and (self._facts.unclean or self._was_off)
            if (is_torn and self._may_lack(offset)) or is_end:
                severity = Severity.TAIL
            self._findings.add("S10", severity, self._name, what, offset=offset, advice=REBUILD)
        if not extra and not lacking:
            what = f"the keys of the record at {offset} are indexed in another order"
            self._findings.add("S10", Severity.NOTE, self._name, what, offset=offset)

    def _report_missing(self, *, tail: bool) -> None:
        severity = Severity.DAMAGE
        what = f"{self._missing} keys from log {self._missing_from} on are not indexed"
        if self._leading and not tail:
            severity = Severity.NOTE
            what += ": older index files were deleted"
        elif self._was_off and tail:
            severity = Severity.TAIL
            what += ", as messageIndexEnable was false: a start with true builds the index again"
        elif self._facts.may_lack_entries(self._missing_from) and (
            tail or self._torn >= self._missing
        ):
            severity = Severity.TAIL
            what += " yet"
            self._torn = max(self._torn - self._missing, 0)
        self._findings.add(
            "S10",
            severity,
            self._name,
            what,
            offset=self._missing_from,
            advice=REBUILD,
            count=self._missing,
        )
        self._missing = 0


class _Replay:
    """One file put together again from its entries."""

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
        """The unfinished file of an unclean stop is mended or deleted by recovery (T9)."""

    def broken_chain(self, number: int, stored: int, expected: int) -> None:
        """An entry whose link back is not the entry before it in its slot."""
        what = f"entry {number} is linked to entry {stored}, {expected} comes before it"
        if stored >= number:
            what = f"entry {number} is linked to {stored}: the chain does not end"
        self._add(what, number)

    def finish(self, last: _Entry | None) -> None:
        """Compare header and slot table."""
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
        slot, (found, expected) = next(pair for pair in pairs if pair[1][0] != pair[1][1])
        self._add(f"slot {slot} names entry {found}, the newest one of it is {expected}", None)

    def _add(self, what: str, offset: int | None) -> None:
        self.findings.add("S8", self.severity, self.name, what, offset=offset, advice=REBUILD)


def index_hashes(topic_hash: TopicHash, keys: list[bytes]) -> list[int]:
    """Hashes of a record's keys, in the order they are indexed."""
    return [topic_hash.key_hash(key) for key in keys]
