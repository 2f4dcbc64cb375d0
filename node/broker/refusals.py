"""Requests of RocketMQ that this broker does not serve yet: refused by name, never ignored.

The code is RocketMQ's for an unknown request, 3; clients then treat this broker as one older than
the feature.
"""

from typing import Final

from rocketbed.remoting.connection import Connection
from rocketbed.wire.command import Command, RequestCode, ResponseCode, answer

FEATURES: Final[dict[int, str]] = {
    RequestCode.END_TRANSACTION: "transactions",
    RequestCode.RESUME_CHECK_HALF_MESSAGE: "transactions",
    RequestCode.SEND_REPLY_MESSAGE: "request and reply",
    RequestCode.SEND_REPLY_MESSAGE_V2: "request and reply",
    RequestCode.RECALL_MESSAGE: "timer messages",
    RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: "static topics",
    RequestCode.POP_MESSAGE: "POP consumption",
    RequestCode.ACK_MESSAGE: "POP consumption",
    RequestCode.PEEK_MESSAGE: "POP consumption",
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: "POP consumption",
    RequestCode.NOTIFICATION: "POP consumption",
    RequestCode.POLLING_INFO: "POP consumption",
    RequestCode.POP_ROLLBACK: "POP consumption",
    RequestCode.BATCH_ACK_MESSAGE: "POP consumption",
}
"""Feature that each of them would need."""


def refuse(command: Command, connection: Connection) -> Command:
    """Answer code 3 with a remark that names the feature."""
    remark = f" request type {command.code} not supported: {FEATURES[command.code]}"
    return answer(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
