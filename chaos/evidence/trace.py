"""Written and durable end of each node's log over time, as the disk layer saw them.

A power cut may take what no flush had covered, and a node's own claim about that is on trial. So
the layer below it keeps the record: the simulated disk at every change, a preloaded library at
every sync of a real disk. Source: chaos.md 2.2 no. 3, 2.3.

A trace file is one msgpack map: node -> [complete, times, written, durable], the three of equal
length, times never falling, in nanoseconds of the run's clock; then four bytes of CRC-32, big
endian.
"""

import os
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import msgpack

CRC_SIZE = 4


class Ends(NamedTuple):
    """Ends of a node's log at a time, in bytes from log offset 0."""

    written: int
    """End of what was handed to the operating system (W)."""
    durable: int
    """End of what a completed sync covers (F), at most `written` except after a lost tail."""


@dataclass(slots=True)
class NodeTrace:
    """Ends of one node over time; a step function."""

    complete: bool = True
    """True if every change was observed. Otherwise the ends between two entries are unknown."""
    times: "array[int]" = field(default_factory=lambda: array("q"))
    written: "array[int]" = field(default_factory=lambda: array("q"))
    durable: "array[int]" = field(default_factory=lambda: array("q"))

    def add(self, time_ns: int, written: int, durable: int) -> None:
        """Append an entry; one that changes nothing is left out."""
        if self.times and (self.written[-1], self.durable[-1]) == (written, durable):
            return
        # A fall is kept along with the value before: a node may have reported that in the same
        # moment.
        if self.times and self.times[-1] == time_ns and written >= self.written[-1]:
            self.written[-1], self.durable[-1] = written, durable
            return
        self.times.append(time_ns)
        self.written.append(written)
        self.durable.append(durable)

    def at(self, time_ns: int) -> Ends:
        """Return the ends at a time, including changes at that very time."""
        position = bisect_right(self.times, time_ns) - 1
        if position < 0:
            return Ends(0, 0)
        return Ends(self.written[position], self.durable[position])

    def entries(self) -> Iterator[tuple[int, Ends]]:
        for time_ns, written, durable in zip(self.times, self.written, self.durable, strict=True):
            yield time_ns, Ends(written, durable)


@dataclass(slots=True)
class Trace:
    """Ends of all nodes. A node without entry was not observed."""

    nodes: dict[str, NodeTrace] = field(default_factory=dict)

    def node(self, name: str) -> NodeTrace:
        return self.nodes.setdefault(name, NodeTrace())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file. Raises `OSError`."""
        rows = {
            name: [node.complete, list(node.times), list(node.written), list(node.durable)]
            for name, node in self.nodes.items()
        }
        data: bytes = msgpack.packb(rows)
        with open(path, "wb") as file:
            file.write(data + zlib.crc32(data).to_bytes(CRC_SIZE))


def read_trace(path: str | os.PathLike[str]) -> Trace:
    """Read a trace file. Raises `OSError`, `ValueError` for another kind of file."""
    with open(path, "rb") as file:
        text = file.read()
        data, crc = text[:-CRC_SIZE], text[-CRC_SIZE:]
        try:
            if zlib.crc32(data).to_bytes(CRC_SIZE) != crc:
                raise ValueError("its checksum is another")
            rows = msgpack.unpackb(data)
            nodes = {
                name: NodeTrace(
                    complete, array("q", times), array("q", written), array("q", durable)
                )
                for name, (complete, times, written, durable) in rows.items()
            }
        except (ValueError, TypeError, AttributeError, msgpack.UnpackException) as error:
            raise ValueError(f"{path} is not a trace of log ends: {error}") from error
    return Trace(nodes)
