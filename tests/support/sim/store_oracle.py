"""Required state of a recovered store, given the ledger (chaos.md 2.3, S11-S14).

Neighbouring crash points often leave the same files, and nearly all have one of few logs: a
recovery of files that a process has recovered already is not run again.
"""

from dataclasses import dataclass, field
from functools import lru_cache

from rocketbed.chaos.backends.sim.disk import SimDisk
from rocketbed.chaos.backends.sim.disk_image import DiskImage
from rocketbed.chaos.backends.sim.solo import SoloRun, run_solo
from rocketbed.node.store.batch_queue import BATCH_UNIT
from rocketbed.node.store.config import StoreConfig
from rocketbed.node.store.indexfile import ENTRY, HEADER
from rocketbed.node.store.unit_queue import BLANK_UNIT_SIZE, UNIT
from rocketbed.wire.message import HEAD, MAGIC_BLANK
from tests.support.sim.store_script import ROOT, Ledger, derived, recover


def crash_kind(kind: str) -> tuple[str, str]:
    """`kill`, or `power-MODE`: kind and mode for `run_solo`."""
    return ("kill", "random") if kind == "kill" else ("power", kind.partition("-")[2])


@dataclass(frozen=True)
class OnDisk:
    """Files that a recovery finds on a disk; the same bytes under the same names are the same to
    it.

    Not part of it is what only a power cut would ask for, and times of files, which no recovery
    reads.
    """

    files: tuple[tuple[str, bytes], ...]
    directories: tuple[str, ...]
    image: DiskImage = field(compare=False, repr=False)

    @classmethod
    def on(cls, image: DiskImage) -> "OnDisk":
        files = tuple((path, image.contents(path)) for path in image.paths())
        return cls(files, tuple(sorted(image._namespace.visible.children)), image)


def reboot(image: DiskImage, kind: str, settings: StoreConfig, *, boots: int = 1) -> SoloRun:
    """Recover on a crashed disk: on the same boot after a kill, on the next after a power cut."""
    return _recovery(OnDisk.on(image), settings, boots + (kind != "kill"))


@lru_cache(maxsize=1024)
def _recovery(on_disk: OnDisk, settings: StoreConfig, boots: int) -> SoloRun:
    return run_solo(recover, settings, image=on_disk.image, boots=boots)


def records_of(log: bytes, low: int, end: int, segment_size: int) -> dict[int, bytes]:
    """Records that tile [low, end) of a log; asserts that they do (S1)."""
    records: dict[int, bytes] = {}
    position = low
    while position < end:
        at = position - low
        size, magic = HEAD.unpack_from(log.ljust(at + 64, b"\0"), at)[:2]
        if magic == MAGIC_BLANK:
            position += size
            assert position % segment_size == 0
            continue
        assert size > 0, f"no record at {position}"
        records[position] = log[at : at + size]
        position += size
    assert position == end
    assert not log[end - low :].strip(b"\0"), "bytes behind the end of the log (T4)"
    return records


def check_log(recovered: SoloRun, ledger: Ledger, kind: str, settings: StoreConfig) -> None:
    """Prefix of what was written; nothing that must survive is missing; nothing else is there."""
    value = recovered.value
    records = records_of(value["log"], value["min"], value["end"], settings.segment_size)
    floor = ledger.written if kind == "kill" else ledger.flushed
    if ledger.cutting is not None:
        floor = min(floor, ledger.cutting)
    assert value["end"] >= floor, f"lost: the log ends at {value['end']}, {floor} was promised"
    for offset, record in ledger.log.items():
        if offset >= value["min"] and offset + len(record) <= min(floor, value["end"]):
            assert records[offset] == record
    possible = ledger.possible()
    for offset, record in records.items():
        assert record == possible.get(offset), (
            f"a record that was never written, or a changed one, at {offset}"
        )


def fresh_build(image: DiskImage, settings: StoreConfig) -> DiskImage:
    """Only the log of `image`, opened as a foreign directory: everything derived is built anew."""
    disk = SimDisk()
    for path in image.paths():
        if path.startswith(f"{ROOT}/commitlog/"):
            disk.makedirs(path.rpartition("/")[0])
            disk.open(path, create=True).write_at(0, image.contents(path))
    return reboot(disk.image(), "kill", settings).image


def check_derived(image: DiskImage, low: int, ledger: Ledger, settings: StoreConfig) -> None:
    """Queues and index are those of a fresh build from the log."""
    mine, fresh = derived(image), derived(fresh_build(image, settings))
    if low == 0 and not ledger.deleted:
        assert mine == fresh
        return
    assert _units(mine, low, ledger) == _units(fresh, low, ledger)
    assert _entries(mine, low, settings) == _entries(fresh, low, settings)


def _units(files: dict[str, bytes], low: int, ledger: Ledger) -> dict[tuple[str, int], bytes]:
    """Units of records at or above `low`, by queue and slot; deleted topics are left out."""
    units: dict[tuple[str, int], bytes] = {}
    for path, data in files.items():
        if path.startswith("index"):
            continue
        directory, _, name = path.rpartition("/")
        if directory.split("/")[-2] in ledger.deleted:
            continue
        unit = BATCH_UNIT if "/batchconsumequeue/" in path else UNIT
        for at in range(0, len(data), unit.size):
            physical, size = unit.unpack_from(data, at)[:2]
            if size and physical >= low and not (physical == 0 and size == BLANK_UNIT_SIZE):
                slot = (int(name) + at) // unit.size if unit is UNIT else 0
                units[f"{directory} {slot}", physical] = data[at : at + unit.size]
    return units


def _entries(files: dict[str, bytes], low: int, settings: StoreConfig) -> list[tuple[int, int]]:
    """Key hash and offset of index entries of records at or above `low`, in order."""
    entries = []
    first = HEADER.size + 4 * settings.index_slots
    for path in sorted(path for path in files if path.startswith("index")):
        count = HEADER.unpack_from(files[path])[5]
        for number in range(1, count):
            key_hash, physical, _, _ = ENTRY.unpack_from(files[path], first + 20 * number)
            if physical >= low:
                entries.append((key_hash, physical))
    return entries


def check_abort(crashed: DiskImage, ledger: Ledger, recovered: SoloRun) -> None:
    """S12: present after any crash of a running store; absent means clean and complete."""
    present = f"{ROOT}/abort" in crashed.paths()
    if ledger.began and not present:
        assert recovered.value["report"].was_clean
        assert recovered.value["end"] == ledger.written


def check_checkpoint(crashed: DiskImage, durable_end: int) -> None:
    """S11: the checkpoint names no record that was not on disk."""
    if f"{ROOT}/checkpoint" in crashed.paths():
        data = crashed.contents(f"{ROOT}/checkpoint").ljust(40, b"\0")
        assert int.from_bytes(data[32:40], "big") <= durable_end


def check_idempotent(recovered: SoloRun, kind: str, settings: StoreConfig) -> None:
    """S14: recovering again changes nothing."""
    second = reboot(recovered.image, "kill", settings)
    assert second.value["log"] == recovered.value["log"]
    assert second.value["end"] == recovered.value["end"]
    assert derived(second.image) == derived(recovered.image)


def check_all(
    crashed: SoloRun, ledger: Ledger, kind: str, settings: StoreConfig, *, boots: int = 1
) -> SoloRun:
    """Recover and check everything; `boots` is the boot that crashed."""
    recovered = reboot(crashed.image, kind, settings, boots=boots)
    assert recovered.outcome == "ended"
    check_log(recovered, ledger, kind, settings)
    check_derived(recovered.image, recovered.value["min"], ledger, settings)
    check_abort(crashed.image, ledger, recovered)
    check_checkpoint(crashed.image, recovered.value["end"])
    check_idempotent(recovered, kind, settings)
    return recovered
