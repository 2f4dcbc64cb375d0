"""Properties of a message as a record keeps them."""

from itertools import product

from rocketbed.node.store.run import without_checksum

CHECKSUM = "__CRC32#\x010123456789\x02"


def test_removes_only_the_producers_checksum() -> None:
    pairs = (CHECKSUM, "K\x01v\x02", "x__CRC32#\x011\x02", "")
    for count in range(4):
        for row in product(pairs, repeat=count):
            expected = "".join(pair for pair in row if pair != CHECKSUM)
            assert without_checksum("".join(row).encode()) == expected.encode()
    assert without_checksum(f"K\x01v\x02{CHECKSUM[:-1]}".encode()) == b"K\x01v\x02"
