"""Reading the body of a broker's registration, plain or compressed (wire.md 3.2)."""

import struct
import zlib

from rocketbed.routing.errors import RegistrationRefused
from rocketbed.wire.bodies import DataVersion, RegisterBrokerBody, TopicConfig, TopicConfigTable
from rocketbed.wire.encoding.json_dialect import BodyError, loads
from rocketbed.wire.headers_admin import RegisterBrokerRequest
from rocketbed.wire.message import CRC_MASK

INFLATED_MAX = 64 << 20
"""Bytes that a compressed body may unpack to; 100,000 topics take about 10 MB."""
_I32 = struct.Struct(">i")
_ZLIB_FIRST_BYTE = 0x78


def read_registration(header: RegisterBrokerRequest, body: bytes) -> TopicConfigTable:
    """Return the topics that a broker announces.

    A 5.x broker compresses while it says it does not, so the zlib header decides. Raises
    `RegistrationRefused` on a wrong checksum, `BodyError` on an unreadable body.
    """
    if header.bodyCrc32 and zlib.crc32(body) & CRC_MASK != header.bodyCrc32:
        raise RegistrationRefused("crc32 not match")
    if body[:1] == bytes((_ZLIB_FIRST_BYTE,)):
        return _read_compressed(body)
    return RegisterBrokerBody.decode(body).topic_config_serialize_wrapper


def _read_compressed(body: bytes) -> TopicConfigTable:
    inflater = zlib.decompressobj()
    try:
        data = inflater.decompress(body, INFLATED_MAX)
    except zlib.error as exc:
        raise BodyError(f"registration cannot be inflated: {exc}") from exc
    if inflater.unconsumed_tail or not inflater.eof:
        raise BodyError(f"registration is cut off, or longer than {INFLATED_MAX} bytes inflated")
    try:
        version, position = _read_text(data, 0)
        (count,) = _I32.unpack_from(data, position)
        position += 4
        table: dict[str, TopicConfig] = {}
        for _ in range(count):
            line, position = _read_text(data, position)
            config = _read_topic(line)
            table[config.topic_name] = config
    except (struct.error, ValueError) as exc:
        raise BodyError(f"registration cannot be read: {exc}") from exc
    return TopicConfigTable(
        data_version=DataVersion.from_json(loads(version)), topic_config_table=table
    )


def _read_text(data: bytes, position: int) -> tuple[str, int]:
    (length,) = _I32.unpack_from(data, position)
    end = position + 4 + length
    if length < 0 or end > len(data):
        raise ValueError(f"text of {length} bytes at byte {position}")
    return data[position + 4 : end].decode(), end


def _read_topic(line: str) -> TopicConfig:
    """Parse `name readQueues writeQueues perm filterType [attributes]`, one blank between."""
    name, read, write, perm, kind, *tail = line.split(" ", 5)
    attributes = loads(tail[0]) if tail and tail[0] else {}
    return TopicConfig(
        topic_name=name,
        read_queue_nums=int(read),
        write_queue_nums=int(write),
        perm=int(perm),
        topic_filter_type=kind,
        attributes=attributes if isinstance(attributes, dict) else {},
    )
