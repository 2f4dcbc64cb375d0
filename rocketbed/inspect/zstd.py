"""ZSTD frames unpacked in plain Python, so that a dump can show bodies that Java clients packed.

Python 3.11 has no ZSTD of its own and this reader takes nothing beyond the standard library. Slow
(some 6 MiB/s) and enough for looking at messages. No dictionaries. Checksums are passed over,
since BODYCRC covers the packed body. Source: RFC 8878; its chapters are named at the functions.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

_MAGIC = b"\x28\xb5\x2f\xfd"
_LITERAL_LENGTHS_DEFAULT = [4, 3, *[2] * 11, 1, 1, 1, *[2] * 9, 3, 2, *[1] * 5, *[-1] * 4]
_MATCH_LENGTHS_DEFAULT = [1, 4, 3, *[2] * 6, *[1] * 37, *[-1] * 7]
_OFFSETS_DEFAULT = [*[1] * 6, 2, 2, 2, *[1] * 15, *[-1] * 5]
_LITERAL_LENGTH_BITS = [*[0] * 16, 1, 1, 1, 1, 2, 2, 3, 3, 4, *range(6, 17)]
_MATCH_LENGTH_BITS = [*[0] * 32, 1, 1, 1, 1, 2, 2, 3, 3, 4, 4, 5, *range(7, 17)]


class ZstdError(Exception):
    """The bytes are no ZSTD frame that can be unpacked."""


class _State(NamedTuple):
    symbol: int
    bits: int
    base: int


class _Table(NamedTuple):
    """A table of finite state entropy; `accuracy` is the logarithm of its length."""

    states: Sequence[_State]
    accuracy: int


class _Huffman(NamedTuple):
    """Symbol and code length for every value of `bits` bits."""

    symbols: Sequence[tuple[int, int]]
    bits: int


def decompress(data: bytes, size_max: int) -> bytes:
    """The content of one frame. Raises `ZstdError`, also above `size_max` bytes (3.1.1)."""
    try:
        return _Frame(data, size_max).run()
    except (IndexError, struct.error, ValueError) as error:
        raise ZstdError(f"broken frame: {error}") from None


def copy_match(output: bytearray, distance: int, length: int) -> None:
    """Repeat what stands `distance` bytes back; it may overlap what is being written.

    Raises `ValueError` when that is before the start.
    """
    start = len(output) - distance
    if distance <= 0 or start < 0:
        raise ValueError("a match points before the start of the data")
    piece = bytes(output[start : start + length])
    while len(piece) < length:
        piece += piece[: length - len(piece)]
    output += piece


class _BackwardBits:
    """Bits read from the end of a stream; beyond its start they are zeros (4.1)."""

    def __init__(self, data: bytes) -> None:
        if not data or not data[-1]:
            raise ZstdError("a bit stream without its end mark")
        self._data = data
        self.left = len(data) * 8 - (9 - data[-1].bit_length())

    def read(self, count: int) -> int:
        self.left -= count
        return self.at(self.left, count)

    def at(self, position: int, count: int) -> int:
        """`count` bits (at most 32) above a position, which may be below the start."""
        if position < 0:
            known = max(0, count + position)
            return self.at(0, known) << (count - known)
        window = self._data[position >> 3 : (position >> 3) + 6]
        return int.from_bytes(window, "little") >> (position & 7) & (1 << count) - 1


class _Frame:
    def __init__(self, data: bytes, size_max: int) -> None:
        self._data = data
        self._size_max = size_max
        self._output = bytearray()
        self._offsets = [1, 4, 8]
        self._huffman: _Huffman | None = None
        self._tables: list[_Table | None] = [None, None, None]

    def run(self) -> bytes:
        data = self._data
        if data[:4] != _MAGIC:
            raise ZstdError("not a ZSTD frame")
        descriptor = data[4]
        single = descriptor >> 5 & 1
        size_bytes = (single, 2, 4, 8)[descriptor >> 6]
        position = 5 + (1 - single) + (0, 1, 2, 4)[descriptor & 3] + size_bytes
        last = False
        while not last:
            header = int.from_bytes(data[position : position + 3], "little")
            position += 3
            last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
            if kind == 1:
                self._output += data[position : position + 1] * min(size, self._size_max)
                position += 1
                continue
            block = data[position : position + size]
            position += size
            if kind == 3 or len(block) < size or (size == 0 and not last):
                raise ZstdError("broken block")
            if kind == 0:
                self._output += block
            else:
                self._block(block)
            if len(self._output) > self._size_max:
                raise ZstdError(f"more than {self._size_max} bytes")
        return bytes(self._output)

    def _block(self, block: bytes) -> None:
        literals, position = self._literals(block)
        self._sequences(block, position, literals)

    def _literals(self, block: bytes) -> tuple[bytes, int]:
        """The literals section (3.1.1.3.1), and where it ends."""
        kind, form = block[0] & 3, block[0] >> 2 & 3
        if kind < 2:
            header = (1, 2, 1, 3)[form]
            value = int.from_bytes(block[:header], "little")
            size = value >> (3 if header == 1 else 4)
            if kind == 1:
                return block[header : header + 1] * size, header + 1
            return block[header : header + size], header + size
        header = (3, 3, 4, 5)[form]
        width = (10, 10, 14, 18)[form]
        value = int.from_bytes(block[:header], "little") >> 4
        size = value & (1 << width) - 1
        packed = value >> width & (1 << width) - 1
        data = block[header : header + packed]
        if kind == 2:
            self._huffman, used = _read_huffman(data)
            data = data[used:]
        if self._huffman is None:
            raise ZstdError("literals without a Huffman table")
        return _decode_literals(self._huffman, data, size, streams=1 if form == 0 else 4), (
            header + packed
        )

    def _sequences(self, block: bytes, position: int, literals: bytes) -> None:
        """The sequences section (3.1.1.3.2), executed as it is read."""
        count, position = _sequence_count(block, position)
        if count == 0:
            self._output += literals
            return
        modes = block[position]
        position += 1
        for number, (default, accuracy) in enumerate(
            ((_LITERAL_LENGTHS_DEFAULT, 6), (_OFFSETS_DEFAULT, 5), (_MATCH_LENGTHS_DEFAULT, 6))
        ):
            mode = modes >> (6 - 2 * number) & 3
            if mode == 0:
                self._tables[number] = _build_table(default, accuracy)
            elif mode == 1:
                self._tables[number] = _Table([_State(block[position], 0, 0)], 0)
                position += 1
            elif mode == 2:
                frequencies, table_accuracy, used = _read_frequencies(block[position:])
                self._tables[number] = _build_table(frequencies, table_accuracy)
                position += used
        lengths, offsets, matches = self._tables
        if lengths is None or offsets is None or matches is None:
            raise ZstdError("a table is repeated before there is one")
        self._execute(_BackwardBits(block[position:]), (lengths, offsets, matches), count, literals)

    def _execute(
        self,
        bits: _BackwardBits,
        tables: tuple[_Table, _Table, _Table],
        count: int,
        literals: bytes,
    ) -> None:
        """Decode and carry out `count` sequences (3.1.1.4, 3.1.1.5)."""
        lengths, offsets, matches = (table.states for table in tables)
        length_at, offset_at, match_at = (bits.read(table.accuracy) for table in tables)
        used = 0
        for number in range(count):
            length, offset, match = lengths[length_at], offsets[offset_at], matches[match_at]
            value = (1 << offset.symbol) + bits.read(offset.symbol)
            match_size = _MATCH_BASES[match.symbol] + bits.read(_MATCH_LENGTH_BITS[match.symbol])
            literal_size = _LENGTH_BASES[length.symbol] + bits.read(
                _LITERAL_LENGTH_BITS[length.symbol]
            )
            if number + 1 < count:
                length_at = length.base + bits.read(length.bits)
                match_at = match.base + bits.read(match.bits)
                offset_at = offset.base + bits.read(offset.bits)
            self._output += literals[used : used + literal_size]
            used += literal_size
            copy_match(self._output, self._distance(value, literal_size), match_size)
            if len(self._output) > self._size_max:
                raise ZstdError(f"more than {self._size_max} bytes")
        self._output += literals[used:]

    def _distance(self, value: int, literal_size: int) -> int:
        """The offset of a match, with the three last ones remembered (3.1.1.5)."""
        recent = self._offsets
        if value > 3:
            distance = value - 3
            self._offsets = [distance, recent[0], recent[1]]
            return distance
        place = value - 1 if literal_size else value
        distance = recent[place] if place < 3 else recent[0] - 1
        if place == 1:
            self._offsets = [distance, recent[0], recent[2]]
        elif place > 1:
            self._offsets = [distance, recent[0], recent[1]]
        return distance


def _sequence_count(block: bytes, position: int) -> tuple[int, int]:
    first = block[position]
    if first < 128:
        return first, position + 1
    if first < 255:
        return (first - 128 << 8) + block[position + 1], position + 2
    return block[position + 1] + (block[position + 2] << 8) + 0x7F00, position + 3


def _read_frequencies(data: bytes) -> tuple[list[int], int, int]:
    """A table description: frequencies, accuracy, and bytes used (4.1.1)."""
    value = int.from_bytes(data[:512], "little")
    accuracy = (value & 15) + 5
    position = 4
    left = 1 << accuracy
    frequencies: list[int] = []
    while left > 0:
        bits = (left + 1).bit_length()
        read = value >> position & (1 << bits) - 1
        low = read & (1 << bits - 1) - 1
        threshold = (1 << bits) - 1 - (left + 1)
        position += bits
        if low < threshold:
            position -= 1
            read = low
        elif read >= 1 << bits - 1:
            read -= threshold
        frequencies.append(read - 1)
        left -= abs(read - 1)
        while read == 1:
            zeros = value >> position & 3
            position += 2
            frequencies += [0] * zeros
            if zeros < 3:
                break
        if position > len(data) * 8 or len(frequencies) > 256:
            raise ZstdError("broken table description")
    return frequencies, accuracy, (position + 7) // 8


def _build_table(frequencies: Sequence[int], accuracy: int) -> _Table:
    """States from frequencies (4.1.1)."""
    size = 1 << accuracy
    symbols = [0] * size
    high = size
    following: dict[int, int] = {}
    for symbol, frequency in enumerate(frequencies):
        if frequency == -1:
            high -= 1
            symbols[high] = symbol
            following[symbol] = 1
    position = 0
    step = (size >> 1) + (size >> 3) + 3
    for symbol, frequency in enumerate(frequencies):
        if frequency > 0:
            following[symbol] = frequency
        for _ in range(frequency):
            symbols[position] = symbol
            position = (position + step) % size
            while position >= high:
                position = (position + step) % size
    states = []
    for symbol in symbols:
        number = following[symbol]
        following[symbol] = number + 1
        bits = accuracy - (number.bit_length() - 1)
        states.append(_State(symbol, bits, (number << bits) - size))
    return _Table(states, accuracy)


def _read_huffman(data: bytes) -> tuple[_Huffman, int]:
    """A Huffman table description, and bytes used (4.2.1)."""
    header = data[0]
    if header >= 128:
        count = header - 127
        used = 1 + (count + 1) // 2
        weights = [byte >> shift & 15 for byte in data[1:used] for shift in (4, 0)][:count]
    else:
        used = 1 + header
        weights = _read_weights(data[1:used])
    total = sum(1 << weight - 1 for weight in weights if weight)
    bits = total.bit_length()
    left = (1 << bits) - total
    if not total or left & (left - 1) or bits > 11:
        raise ZstdError("broken Huffman weights")
    weights.append(left.bit_length())
    table: list[tuple[int, int]] = []
    for weight in range(1, bits + 1):
        for symbol, found in enumerate(weights):
            if found == weight:
                table += [(symbol, bits + 1 - weight)] * (1 << weight - 1)
    return _Huffman(table, bits), used


def _read_weights(data: bytes) -> list[int]:
    """Weights packed with two interleaved states (4.2.1.2)."""
    frequencies, accuracy, used = _read_frequencies(data)
    states = _build_table(frequencies, accuracy).states
    bits = _BackwardBits(data[used:])
    one, other = bits.read(accuracy), bits.read(accuracy)
    weights: list[int] = []
    while len(weights) < 256:
        state = states[one]
        weights.append(state.symbol)
        if bits.left < state.bits:
            weights.append(states[other].symbol)
            return weights
        one, other = other, state.base + bits.read(state.bits)
    raise ZstdError("too many Huffman weights")


def _decode_literals(huffman: _Huffman, data: bytes, size: int, *, streams: int) -> bytes:
    """One Huffman stream, or four with a table of their lengths before them (4.2.2)."""
    if streams == 1:
        return _decode_stream(huffman, data, size)
    lengths = struct.unpack_from("<3H", data)
    part = (size + 3) // 4
    output = b""
    position = 6
    for length in lengths:
        output += _decode_stream(huffman, data[position : position + length], part)
        position += length
    return output + _decode_stream(huffman, data[position:], size - 3 * part)


def _decode_stream(huffman: _Huffman, data: bytes, size: int) -> bytes:
    bits = _BackwardBits(data)
    symbols, width = huffman
    output = bytearray()
    for _ in range(size):
        symbol, used = symbols[bits.at(bits.left - width, width)]
        bits.left -= used
        output.append(symbol)
    if bits.left != 0:
        raise ZstdError("a Huffman stream of another length than its symbols")
    return bytes(output)


def _bases(bits: Sequence[int], first: int) -> list[int]:
    bases = []
    for width in bits:
        bases.append(first)
        first += 1 << width
    return bases


_LENGTH_BASES = _bases(_LITERAL_LENGTH_BITS, 0)
_MATCH_BASES = _bases(_MATCH_LENGTH_BITS, 3)
