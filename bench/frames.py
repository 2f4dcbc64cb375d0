"""Ready-made request frames, so that the load generator costs as little as possible."""

from collections.abc import Sequence

import orjson

BODY_SIZE = 1024
TOPIC = "BenchmarkTest"
QUEUES = 8


def send_frames(
    count: int, body_size: int = BODY_SIZE, topics: Sequence[str] = (TOPIC,)
) -> list[bytes]:
    """Return `count` SEND_MESSAGE_V2 frames with JSON headers, as a Java producer sends them, to
    all queues of all topics in turn."""
    body = b"x" * body_size
    frames = []
    for number in range(count):
        properties = (
            f"UNIQ_KEY\x017F000001000A18B4AAC2{number:012X}\x02WAIT\x01true\x02TAGS\x01TagA"
        )
        fields = {
            "a": "bench", "b": topics[number // QUEUES % len(topics)], "c": "TBW102", "d": "4",
            "e": str(number % QUEUES), "f": "0",
            "g": "1700000000000", "h": "0", "i": properties, "j": "0", "k": "false", "m": "false",
        }  # fmt: skip
        frames.append(frame(310, fields, number, body))
    return frames


def pull_frame(queue_id: int, offset: int, opaque: int) -> bytes:
    """Return a PULL_MESSAGE frame without long polling."""
    fields = {
        "consumerGroup": "bench", "topic": TOPIC, "queueId": str(queue_id),
        "queueOffset": str(offset), "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0",
        "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
        "expressionType": "TAG",
    }  # fmt: skip
    return frame(11, fields, opaque)


def frame(code: int, fields: dict[str, str], opaque: int, body: bytes = b"") -> bytes:
    """Return a request as a Java client writes it."""
    header = orjson.dumps(
        {
            "code": code,
            "extFields": fields,
            "flag": 0,
            "language": "JAVA",
            "opaque": opaque,
            "serializeTypeCurrentRPC": "JSON",
            "version": 479,
        }
    )
    length = 4 + len(header) + len(body)
    return length.to_bytes(4, "big") + len(header).to_bytes(4, "big") + header + body
