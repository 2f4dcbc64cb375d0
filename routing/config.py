"""Settings of a nameserver, read from a properties file and `--set` (RocketMQ's key names)."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from rocketbed.remoting.client import check_host
from rocketbed.routing.errors import RoutingError

KEYS = {
    "listenPort": "port",
    "bindAddress": "host",
    "scanNotActiveBrokerInterval": "scan_interval_ms",
    "kvConfigPath": "kv_path",
    "orderMessageEnable": "order_messages",
    "returnOrderTopicConfigToBroker": "return_order_config",
    "enableAllTopicList": "all_topic_list",
    "supportActingMaster": "acting_master",
    "rbRegister": "register",
}
UNUSED = ("rocketmqHome", "configStorePath", "productEnvName", "clusterTest", "needWaitForService",
          "serverWorkerThreads", "serverCallbackExecutorThreads", "serverSelectorThreads",
          "defaultThreadPoolNums", "clientRequestThreadPoolNums", "notifyMinBrokerIdChanged",
          "deleteTopicWithBrokerRegistration", "unRegisterBrokerQueueCapacity")  # fmt: skip
"""Keys of RocketMQ 5.3 that are accepted with a warning and have no effect."""
PORT_MAX = 65_535


class BadSetting(RoutingError):
    """A setting that cannot be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NameserverConfig:
    """Configuration of a nameserver."""

    host: str = "0.0.0.0"
    """Address to listen on (`bindAddress`)."""
    port: int = 9876
    """`listenPort`; 0 lets the system choose."""
    scan_interval_ms: int = 5000
    """Pause between checks for silent brokers (`scanNotActiveBrokerInterval`)."""
    kv_path: str = ""
    """File of the key-value table (`kvConfigPath`); empty: it is in memory only."""
    order_messages: bool = False
    """Put order configuration into routes (`orderMessageEnable`)."""
    return_order_config: bool = True
    """Send it to brokers that register (`returnOrderTopicConfigToBroker`)."""
    all_topic_list: bool = True
    """Answer requests for the list of all topics (`enableAllTopicList`)."""
    acting_master: bool = False
    """Show a slave as master if there is no master (`supportActingMaster`)."""
    register: str = ""
    """Run the controller of groups with failover, with its register in this file, or in etcd by
    `etcd://HOST:PORT,.../CLUSTER`; empty: run none (`rbRegister`)."""


def read_settings(settings: Mapping[str, str]) -> tuple[NameserverConfig, list[str]]:
    """Return the configuration of these settings, and warnings. Raises `BadSetting`."""
    values: dict[str, object] = {}
    warnings = []
    for key, text in settings.items():
        if key in UNUSED:
            warnings.append(f"{key} is a setting of RocketMQ that has no effect in rocketbed")
            continue
        attribute = KEYS.get(key)
        if attribute is None:
            near = difflib.get_close_matches(key, [*KEYS, *UNUSED], 1)
            hint = f"; did you mean {near[0]}?" if near else f"; known: {', '.join(sorted(KEYS))}"
            raise BadSetting(f"unknown setting {key}{hint}")
        values[attribute] = _parse(key, text, NameserverConfig.__annotations__[attribute])
    return NameserverConfig(**values), warnings  # type: ignore[arg-type]


def _parse(key: str, text: str, kind: object) -> object:
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise BadSetting(f"{key}={text}: must be true or false")
        return text.lower() == "true"
    if kind is int:
        if not text.isdigit():
            raise BadSetting(f"{key}={text}: must be a number")
        if key == "listenPort" and int(text) > PORT_MAX:
            raise BadSetting(f"{key}={text}: ports end at {PORT_MAX}")
        return int(text)
    if key == "bindAddress" and text:
        try:
            check_host(text)
        except ValueError as exc:
            raise BadSetting(f"{key}={text}: {exc}") from exc
    return text
