"""Compresses bodies as RocketMQ's producers do (wire.md 4.5); `inspect/bodies.py` unpacks them."""

import zlib
from typing import Final, Literal

from rocketbed.client.errors import MissingLibrary
from rocketbed.host.extras import install_command
from rocketbed.wire.message import COMPRESSED

Codec = Literal["zlib", "lz4", "zstd"]

ABOVE: Final = 4096
"""Smallest body that is compressed, bytes (RocketMQ: `compressMsgBodyOverHowmuch`)."""
LEVEL: Final = 5
"""Compression level of RocketMQ."""
FLAGS: Final[dict[Codec, int]] = {
    "lz4": COMPRESSED | 1 << 8,
    "zstd": COMPRESSED | 2 << 8,
    "zlib": COMPRESSED | 3 << 8,
}
"""Bits of the system flag for each codec."""


def check_codec(codec: Codec) -> None:
    """Raise `ValueError` for an unknown codec, `MissingLibrary` for one that is not installed."""
    if codec not in tuple(FLAGS):
        raise ValueError(f"compress must be one of {', '.join(FLAGS)}: {codec}")
    _pack(b"", codec)


def pack_body(body: bytes, codec: Codec) -> tuple[bytes, int]:
    """Return the body and the system flag to send: unchanged, and 0, if compression does not make
    it smaller."""
    packed = _pack(body, codec)
    return (packed, FLAGS[codec]) if len(packed) < len(body) else (body, 0)


def _pack(body: bytes, codec: Codec) -> bytes:
    if codec == "zlib":
        return zlib.compress(body, LEVEL)
    try:
        if codec == "zstd":
            import zstandard

            return zstandard.ZstdCompressor(level=LEVEL).compress(body)
        import lz4.frame

        packed = lz4.frame.compress(body)
        assert isinstance(packed, bytes)
        return packed
    except ModuleNotFoundError as exc:
        raise MissingLibrary(
            f"sending with {codec} needs {exc.name}: {install_command(codec)}"
        ) from exc
