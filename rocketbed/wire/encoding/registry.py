"""Header classes by request code.

Only `encoding.positional` needs the table: it sends values by position. It sends other codes as a
map of names, so nothing depends on this table being complete.
"""

from rocketbed.wire import headers as data
from rocketbed.wire import headers_admin as admin
from rocketbed.wire.codes import RequestCode as Code
from rocketbed.wire.encoding.fields import Header

REQUESTS: dict[int, type[Header]] = {
    Code.SEND_MESSAGE: data.SendMessageRequest,
    Code.SEND_MESSAGE_V2: data.SendMessageV2Request,
    Code.SEND_BATCH_MESSAGE: data.SendMessageV2Request,
    Code.PULL_MESSAGE: data.PullMessageRequest,
    Code.LITE_PULL_MESSAGE: data.PullMessageRequest,
    Code.QUERY_MESSAGE: data.QueryMessageRequest,
    Code.QUERY_CONSUMER_OFFSET: data.QueryConsumerOffsetRequest,
    Code.UPDATE_CONSUMER_OFFSET: data.UpdateConsumerOffsetRequest,
    Code.SEARCH_OFFSET_BY_TIMESTAMP: data.SearchOffsetRequest,
    Code.GET_MAX_OFFSET: data.MaxOffsetRequest,
    Code.GET_MIN_OFFSET: data.QueueRequest,
    Code.GET_EARLIEST_MSG_STORETIME: data.QueueRequest,
    Code.VIEW_MESSAGE_BY_ID: data.ViewMessageRequest,
    Code.UNREGISTER_CLIENT: data.UnregisterClientRequest,
    Code.GET_CONSUMER_LIST_BY_GROUP: data.ConsumerGroupRequest,
    Code.NOTIFY_CONSUMER_IDS_CHANGED: data.ConsumerGroupRequest,
    Code.GET_ROUTEINFO_BY_TOPIC: admin.GetRouteRequest,
    Code.REGISTER_BROKER: admin.RegisterBrokerRequest,
    Code.UNREGISTER_BROKER: admin.BrokerIdentityRequest,
    Code.QUERY_DATA_VERSION: admin.BrokerIdentityRequest,
    Code.BROKER_HEARTBEAT: admin.BrokerHeartbeatRequest,
}
"""Request code -> class of the request's header."""

RESPONSES: dict[int, type[Header]] = {
    Code.SEND_MESSAGE: data.SendMessageResponse,
    Code.SEND_MESSAGE_V2: data.SendMessageResponse,
    Code.SEND_BATCH_MESSAGE: data.SendMessageResponse,
    Code.PULL_MESSAGE: data.PullMessageResponse,
    Code.LITE_PULL_MESSAGE: data.PullMessageResponse,
    Code.QUERY_MESSAGE: data.QueryMessageResponse,
    Code.QUERY_CONSUMER_OFFSET: data.OffsetResponse,
    Code.SEARCH_OFFSET_BY_TIMESTAMP: data.OffsetResponse,
    Code.GET_MAX_OFFSET: data.OffsetResponse,
    Code.GET_MIN_OFFSET: data.OffsetResponse,
    Code.GET_EARLIEST_MSG_STORETIME: data.EarliestStoreTimeResponse,
    Code.HEART_BEAT: data.HeartbeatResponse,
}
"""Request code -> class of its response's header."""
