"""RocketMQ's response code and remark for each outcome of a put (wire.md 4.3)."""

from typing import Final

from rocketbed.node.store.status import PutStatus
from rocketbed.wire.command import ResponseCode

PUT_CODES: Final[dict[PutStatus, ResponseCode]] = {
    PutStatus.PUT_OK: ResponseCode.SUCCESS,
    PutStatus.FLUSH_DISK_TIMEOUT: ResponseCode.FLUSH_DISK_TIMEOUT,
    PutStatus.FLUSH_SLAVE_TIMEOUT: ResponseCode.FLUSH_SLAVE_TIMEOUT,
    PutStatus.SLAVE_NOT_AVAILABLE: ResponseCode.SLAVE_NOT_AVAILABLE,
    PutStatus.SERVICE_NOT_AVAILABLE: ResponseCode.SERVICE_NOT_AVAILABLE,
    PutStatus.CREATE_MAPPED_FILE_FAILED: ResponseCode.SYSTEM_ERROR,
    PutStatus.MESSAGE_ILLEGAL: ResponseCode.MESSAGE_ILLEGAL,
    PutStatus.PROPERTIES_SIZE_EXCEEDED: ResponseCode.MESSAGE_ILLEGAL,
    PutStatus.OS_PAGE_CACHE_BUSY: ResponseCode.SYSTEM_BUSY,
    PutStatus.UNKNOWN_ERROR: ResponseCode.SYSTEM_ERROR,
    PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH: ResponseCode.SYSTEM_ERROR,
    PutStatus.PUT_TO_REMOTE_BROKER_FAIL: ResponseCode.SYSTEM_ERROR,
    PutStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED: ResponseCode.SYSTEM_ERROR,
    PutStatus.WHEEL_TIMER_FLOW_CONTROL: ResponseCode.SYSTEM_ERROR,
    PutStatus.WHEEL_TIMER_MSG_ILLEGAL: ResponseCode.MESSAGE_ILLEGAL,
    PutStatus.WHEEL_TIMER_NOT_ENABLE: ResponseCode.SYSTEM_ERROR,
}
"""For the first four the message is in the log, and the answer carries its position."""

REJECTED: Final = "[REJECTREQUEST]system busy, start flow control for a while"
"""Remark of code 2 when sends are refused up front: page cache busy, or a slave."""

UNCONFIRMED: Final = "stored, and not confirmed by enough replicas: send it again"
"""Remark of code 14 for a message that is in the log here, and that a new leader may lack."""
