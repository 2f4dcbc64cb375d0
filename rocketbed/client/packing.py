"""Packs bodies as RocketMQ's producers do (wire.md 4.5); `inspect/bodies.py` unpacks them."""

import zlib
from typing import Final, Literal

from rocketbed.client.errors import MissingLibrary
from rocketbed.wire.message import COMPRESSED

Codec = Literal["zlib", "lz4", "zstd"]

ABOVE: Final = 4096
"""Bytes; smaller bodies are sent as they are (RocketMQ: `compressMsgBodyOverHowmuch`)."""
LEVEL: Final = 5
"""RocketMQ's."""
FLAGS: Final[dict[Codec, int]] = {
    "lz4": COMPRESSED | 1 << 8,
    "zstd": COMPRESSED | 2 << 8,
    "zlib": COMPRESSED | 3 << 8,
}
"""What the system flag says."""


def check_codec(codec: Codec) -> None:
    """Raises `ValueError` for an unknown one, `MissingLibrary` for one that is not installed."""
    if codec not in tuple(FLAGS):
        raise ValueError(f"compress must be one of {', '.join(FLAGS)}: {codec}")
    _pack(b"", codec)


def pack_body(body: bytes, codec: Codec) -> tuple[bytes, int]:
    """The body and the system flag to send: as it is, and 0, where packing makes it no smaller."""
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
        raise MissingLibrary(f"pip install 'rocketbed[{codec}]' to send with {codec}") from exc
