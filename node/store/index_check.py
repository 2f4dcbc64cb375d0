"""Comparison of the index with the log (store.md 4), for the scrub.

Index files have no checksum, and a wrong byte in one hides messages from queries, or slows them.
The scrub reads the log from its beginning, in the order in which the index was filled; so both are
compared side by side, and each file's slots are computed again from its entries.
"""

from array import array

import trio

from rocketbed.node.store.entry import Entry
from rocketbed.node.store.index import Index
from rocketbed.node.store.indexfile import PAGE_SLOTS, IndexFile
from rocketbed.wire.javahash import index_hash, key_state


class IndexCheck:
    """Follows the log with a position in the index. Memory: the slots of two files."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._file: IndexFile | None = None
        self._number = 0
        """The entry expected next, in that file."""
        self._slots: array[int] = array("i")
        """Newest entry of each slot, from the entries before."""
        self._finished: list[tuple[IndexFile, int, array[int]]] = []
        """Finished files, up to which entry, and the slots that they must have."""

    def compare(self, entry: Entry) -> str:
        """Return what is wrong in the index about a record; empty if nothing is.

        Records have to come in the order of the log; some may be left out. Raises `OSError`.
        """
        if self._file not in self._index.files:
            self._file = None  # retention deleted it
        keys = {index_hash(key_state(entry.topic, key)): key for key in entry.keys}
        for key_hash, key in keys.items():
            if self._file is None and not self._find(entry.physical_offset):
                return f"no file has the key {key!r} of the record at {entry.physical_offset}"
            if problem := self._compare_key(entry, key_hash, keys):
                return problem
        return self._skip_further_entries(entry, keys)

    def _find(self, offset: int) -> bool:
        """Open the file where the entries of a record should begin; True if there is one."""
        for file in self._index.files:
            if file.next_entry > 1 and file.end_offset >= offset:
                if min(file.begin_offset, file.entry(1)[1]) > offset:
                    return False
                self._begin(file)
                return True
        return False

    def _begin(self, file: IndexFile) -> None:
        self._file, self._number = file, 1
        self._slots = array("i", bytes(4 * file.slots))

    def _skip_further_entries(self, entry: Entry, keys: dict[int, str]) -> str:
        """Skip further entries that the file has of a record: repetitions of the same keys, and
        nothing else."""
        file = self._file
        while file is not None and self._number < file.next_entry:
            row = file.entry(self._number)
            if row[1] > entry.physical_offset:
                break
            if problem := self._follow(file, row) or self._strange(file, entry, row, keys):
                return problem
        return ""

    def _strange(
        self, file: IndexFile, entry: Entry, row: tuple[int, int, int, int], keys: dict[int, str]
    ) -> str:
        """Return what is wrong with the previous entry, if it is of no key of its record."""
        if row[1] != entry.physical_offset or row[0] in keys:
            return ""
        number = self._number - 1
        return f"entry {number} of {file.path} is of no key that the record at {row[1]} has"

    def _compare_key(self, entry: Entry, key_hash: int, keys: dict[int, str]) -> str:
        """Compare the expected entry. Entries of records that were left out are skipped."""
        key = keys[key_hash]
        while True:
            file = self._file
            assert file is not None
            if self._number >= file.next_entry:
                self._end(file)
                if self._file is None:
                    return f"key {key!r} of the record at {entry.physical_offset} is not in it"
                continue
            row = file.entry(self._number)
            if row[1] > entry.physical_offset:
                return f"key {key!r} of the record at {entry.physical_offset} is not in it"
            if problem := self._follow(file, row) or self._strange(file, entry, row, keys):
                return problem
            if row[1] == entry.physical_offset and row[0] == key_hash:
                return self._differs(file, entry, row)

    def _follow(self, file: IndexFile, row: tuple[int, int, int, int]) -> str:
        """Move to the next entry; return what is wrong in the chain of this one's slot."""
        number, slot = self._number, row[0] % file.slots
        self._number += 1
        before, self._slots[slot] = self._slots[slot], number
        if before != row[3]:
            return f"entry {number} of {file.path} names {row[3]} as the one before, not {before}"
        return ""

    def _differs(self, file: IndexFile, entry: Entry, row: tuple[int, int, int, int]) -> str:
        """Return what the file says wrongly about the time of a record."""
        number, ms = self._number - 1, entry.store_ms
        if number == 1 and (file.begin_offset, file.begin_ms) != (entry.physical_offset, ms):
            return f"the header of {file.path} does not begin as its first entry"
        if number == file.next_entry - 1 and (file.end_offset, file.end_ms) != (
            entry.physical_offset,
            ms,
        ):
            return f"the header of {file.path} does not end as its last entry"
        if row[2] != self._seconds(file, number, entry, row[2]):
            return f"entry {number} of {file.path} has another time than its record"
        return ""

    def _seconds(self, file: IndexFile, number: int, entry: Entry, stored: int) -> int:
        """Return the correct seconds of an entry. The first counts from the end of the file before
        (4.2)."""
        if number > 1:
            return file.seconds(entry.store_ms)
        if (before := self._before(file)) is not None:
            return before.seconds(entry.store_ms, after=True)
        return 0 if entry.physical_offset == 0 else stored  # the file before has expired

    def _before(self, file: IndexFile) -> IndexFile | None:
        """Return the file before another one."""
        number = self._index.files.index(file)
        return self._index.files[number - 1] if number else None

    def _end(self, file: IndexFile) -> None:
        """Move to the next file; the slots of this one are compared by `check_slots`."""
        files = self._index.files
        following = files.index(file) + 1 if file in files else len(files)
        self._leave(file)
        if following < len(files) and files[following].next_entry > 1:
            self._begin(files[following])

    def _leave(self, file: IndexFile) -> None:
        self._finished.append((file, self._number, self._slots))
        self._file = None

    async def check_slots(self, *, to_the_end: bool = False) -> str:
        """Compare the slots of finished files, `to_the_end` of the current file too.

        Returns what is wrong. Raises `OSError`.
        """
        if to_the_end and self._file is not None:
            self._leave(self._file)
        while self._finished:
            file, number, slots = self._finished.pop()
            for first in range(0, file.slots, PAGE_SLOTS):
                if file not in self._index.files:
                    break
                if file.slots_differ(slots[first : first + PAGE_SLOTS], first, number):
                    return f"slots of {file.path} do not name their newest entries"
                if first % (64 * PAGE_SLOTS) == 0:
                    await trio.lowlevel.checkpoint()
        return ""
