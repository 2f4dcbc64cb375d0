"""Settings of a node, read from RocketMQ's `broker.conf` (design.md 15).

`NodeConfig` is the form that the code uses; `node/config/keys.py` maps the file's keys to its
fields. All settings of the store's files are in its `store`.
"""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field

from rocketbed.node.config.keys import KEYS, Key
from rocketbed.node.config.unused import REFUSED, UNUSED_KEYS
from rocketbed.node.store.config import StoreConfig
from rocketbed.node.store.errors import BadStoreDirectory
from rocketbed.wire.errors import RocketbedError
from rocketbed.wire.properties_text import parse_properties
from rocketbed.world.api import Address

OPTION = "--set"
"""Source of a setting that the command line gives."""
ROLES = ("ASYNC_MASTER", "SYNC_MASTER", "SLAVE")
_DECIDED = ("brokerRole", "brokerId", "haMasterAddress", "inSyncReplicas", "rbDiverged")
"""Keys of groups without failover."""


class ConfigError(RocketbedError):
    """A setting that cannot be used; the message names file, line and key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """Configuration of a node. Times in milliseconds unless the name says so."""

    store: StoreConfig
    """The files: where, how large, how flushed, how long kept."""
    broker_name: str = "DEFAULT_BROKER"
    """Name that the members of a group share (`brokerName`)."""
    cluster_name: str = "DefaultCluster"
    """Name of the cluster that the group belongs to (`brokerClusterName`)."""
    broker_id: int = 0
    """0 is the master, anything else a slave (`brokerId`)."""
    broker_role: str = "ASYNC_MASTER"
    """ASYNC_MASTER, SYNC_MASTER or SLAVE (`brokerRole`)."""
    replica: int = 0
    """Number, from 1 on, of this node in a group with failover; 0: in none (`rbReplica`). The
    controllers that run beside the nameservers then decide which replica leads."""
    replicas: int = 3
    """Number of replicas of such a group (`rbReplicas`)."""
    catch_up_rate: int = 64 * 1024 * 1024
    """Bytes a second that a leader sends to all lagging replicas together; 0: no limit
    (`rbCatchUpRate`)."""
    nameservers: tuple[Address, ...] = ()
    """Nameservers to register at, all of them (`namesrvAddr`, separated by `;` or `,`)."""
    ip1: str = "127.0.0.1"
    """Address announced to clients (`brokerIP1`). RocketMQ guesses an interface; we do not."""
    ip2: str = ""
    """Address announced to slaves (`brokerIP2`); empty: `ip1`."""
    bind_address: str = "0.0.0.0"
    """Address the ports listen on (`bindAddress`); `rocketbed node` also dials from it, if it is
    one specific address."""
    listen_port: int = 10911
    """Main port (`listenPort`); the port two below serves all but pulls."""
    ha_listen_port: int = 0
    """Replication port (`haListenPort`); 0: `listen_port` + 1."""
    ha_master_address: str = ""
    """A slave's master, `host:port` of its replication port (`haMasterAddress`); empty: as the
    nameserver says."""
    in_sync_replicas: int = 1
    """Copies, the master's among them, before a SYNC_MASTER answers (`inSyncReplicas`)."""
    slave_timeout_ms: int = 3000
    """A send waits this long for slaves (`slaveTimeout`)."""
    ha_heartbeat_ms: int = 5000
    """Pause between heartbeats on the replication port (`haSendHeartbeatInterval`)."""
    ha_housekeeping_ms: int = 20_000
    """A silent peer on the replication port is given up after this (`haHousekeepingInterval`)."""
    ha_batch_bytes: int = 32_768
    """Most data in one replication frame (`haTransferBatchSize`)."""
    ha_gap_max: int = 256 * 1024 * 1024
    """Lag from which a slave is not in sync, bytes (`haMaxGapNotInSync`)."""
    classic_fresh: str = "first"
    """Start of an empty slave: `first` segment, or `last_file` as RocketMQ (`rbClassicFresh`)."""
    diverged: str = "refuse"
    """Action of a slave whose log has diverged from its master's: `refuse` to follow, or `cut` it
    to the common part, with a copy of what is cut in `rocketbed.cut` (`rbDiverged`). If it diverged
    from the master that it followed last, it is cut only after a promotion, the Nth with `cut:N`;
    or, if this is an offset, there and only there."""
    connections_max: int = 0
    """Most connections of the main port; 0: as many as the process has descriptors for, less those
    of the store (`rbMaxConnections`)."""
    ha_connections_max: int = 0
    """Most connections of the replication port; 0: at most 256 (`rbMaxHaConnections`)."""
    metadata_sync_ms: int = 3000
    """Pause between a slave's copies of topics, groups and offsets (`rbMetadataSync`)."""
    register_period_ms: int = 30_000
    """Pause between registrations, 10 to 60 s (`registerNameServerPeriod`)."""
    register_timeout_ms: int = 24_000
    """Limit of one registration (`registerBrokerTimeoutMills`)."""
    broker_permission: int = 6
    """Read 4, write 2 (`brokerPermission`)."""
    auto_create_topic: bool = True
    """True if a send to an unknown topic creates it (`autoCreateTopicEnable`)."""
    auto_create_group: bool = True
    """True if an unknown consumer group is created (`autoCreateSubscriptionGroup`)."""
    default_topic_queues: int = 8
    """Queues of TBW102 (`defaultTopicQueueNums`)."""
    trace_topic: bool = False
    """True if RMQ_SYS_TRACE_TOPIC is created (`traceTopicEnable`)."""
    reject_transactions: bool = False
    """Refuse transactional messages with code 16 (`rejectTransactionMessage`)."""
    start_accept_sends_ms: int = 0
    """Wall clock before which sends are refused (`startAcceptSendRequestTimeStamp`)."""
    long_polling: bool = True
    """Let pulls that find nothing wait for a message (`longPollingEnable`)."""
    short_polling_ms: int = 1000
    """Wait of such a pull when long polling is off (`shortPollingTimeMills`)."""
    long_polls_max: int = 20_000
    """Most long polls at the same time; further ones are answered at once (`rbHeldPullsMax`)."""
    lite_pull: bool = True
    """True if 361 is served (`litePullMessageEnable`)."""
    slave_reads: bool = False
    """Send readers that lag far behind to a slave (`slaveReadEnable`)."""
    flush_offsets_ms: int = 5000
    """Pause between saves of consumer offsets (`flushConsumerOffsetInterval`)."""
    values: dict[str, str] = field(default_factory=dict)
    """All settings that are set, by RocketMQ's keys, as text: the answer to 26."""
    pinned: frozenset[str] = frozenset()
    """Keys that `--set` gave, which override the file at every start."""
    path: str = ""
    """File that was read, and where changes are stored (25); empty: none."""

    @property
    def is_slave(self) -> bool:
        """True if this node only copies."""
        return self.broker_role == "SLAVE"

    @property
    def ha_address(self) -> str:
        """`host:port` announced to slaves."""
        return f"{self.ip2 or self.ip1}:{self.ha_port}"

    @property
    def ha_port(self) -> int:
        return self.ha_listen_port or self.listen_port + 1

    @property
    def address(self) -> str:
        """`host:port` announced to clients."""
        return f"{self.ip1}:{self.listen_port}"

    @property
    def config_dir(self) -> str:
        return f"{self.store.root}/config"


@dataclass(frozen=True, slots=True)
class Setting:
    """A `key=value` and its source."""

    key: str
    value: str
    source: str
    """`file:line`, or `--set`."""


def settings_from_text(text: str, source: str) -> list[Setting]:
    """Return the settings of a properties file. Raises `ConfigError`."""
    try:
        rows = parse_properties(text)
    except ValueError as exc:
        raise ConfigError(f"{source}: {exc}") from exc
    return [Setting(key, value.strip(), f"{source}:{line}") for line, key, value in rows]


def settings_from_options(options: Sequence[str]) -> list[Setting]:
    """Return the settings of `--set key=value`. Raises `ConfigError`."""
    settings = []
    for option in options:
        key, equals, value = option.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set {option}: expected KEY=VALUE")
        settings.append(Setting(key.strip(), value.strip(), OPTION))
    return settings


def make_config(
    settings: Sequence[Setting], *, memory_bytes: int = 0, path: str = ""
) -> tuple[NodeConfig, list[str]]:
    """Return the config that the settings make, later ones over earlier ones, and warnings for
    people.

    `memory_bytes` is the machine's memory, of which `accessMessageInMemoryMaxRatio` percent of the
    log count as cached; 0 counts everything. `path` is the file of the settings, if there is one.
    Raises `ConfigError`.
    """
    warnings: list[str] = []
    last: dict[str, Setting] = {}
    for setting in settings:
        if setting.key in KEYS:
            last[setting.key] = setting
        elif setting.key in REFUSED:
            allowed, meaning = REFUSED[setting.key]
            if setting.value.strip() not in allowed:
                raise ConfigError(
                    f"{setting.source}: {setting.key}={setting.value}: {meaning}; start this"
                    " directory with the broker that wrote it"
                )
        elif setting.key in UNUSED_KEYS:
            warnings.append(f"{setting.source}: {setting.key} is accepted but has no effect")
        else:
            raise ConfigError(f"{setting.source}: {_unknown(setting.key)}")
    node: dict[str, object] = {}
    store: dict[str, object] = {"root": "store"}
    for setting in last.values():
        key = KEYS[setting.key]
        target = store if key.is_store else node
        target[key.field] = _parsed(key, setting)
    _derive(node, store, last, memory_bytes)
    node["values"] = {setting.key: setting.value for setting in last.values()}
    node["pinned"] = frozenset(key for key, setting_ in last.items() if setting_.source == OPTION)
    node["path"] = path
    try:
        config = NodeConfig(store=StoreConfig(**store), **node)  # type: ignore[arg-type]
    except BadStoreDirectory as exc:
        raise ConfigError(str(exc)) from exc
    _check(config, last)
    return config, warnings


def _parsed(key: Key, setting: Setting) -> object:
    try:
        return key.parse(setting.value)
    except ValueError as exc:
        raise ConfigError(f"{setting.source}: {setting.key}={setting.value}: {exc}") from exc


def _unknown(key: str) -> str:
    near = difflib.get_close_matches(key, [*KEYS, *UNUSED_KEYS], n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"unknown key {key!r}{hint}"


def _derive(
    node: dict[str, object],
    store: dict[str, object],
    last: dict[str, Setting],
    memory_bytes: int,
) -> None:
    """Add settings that follow from other settings."""
    if replica := node.get("replica"):
        node["broker_role"], node["broker_id"] = "SLAVE", replica
        # With one survivor of two, only disks protect what is acknowledged (replication.md 7.5).
        store.setdefault("sync_flush", node.get("replicas", 3) in (1, 2))
    elif "brokerId" not in last and node.get("broker_role") == "SLAVE":
        node["broker_id"] = 1
    store["is_slave"] = node.get("broker_role") == "SLAVE"
    store["store_host"] = node.get("ip1", "127.0.0.1")
    store["store_port"] = node.get("listen_port", 10911)
    percent = store.pop("memory_ratio_percent", 40)
    assert isinstance(percent, int)
    if memory_bytes:
        store["memory_bytes"] = memory_bytes * percent // 100


def _check(config: NodeConfig, last: dict[str, Setting]) -> None:
    def fail(key: str, why: str) -> None:
        setting = last.get(key)
        where = f"{setting.source}: {key}={setting.value}" if setting else key
        raise ConfigError(f"{where}: {why}")

    if config.replica:
        if decided := [key for key in _DECIDED if key in last]:
            further = f" ({', '.join(decided[1:])} too)" if decided[1:] else ""
            why = f"with rbReplica this is decided by the group's controller: leave it out{further}"
            fail(decided[0], why)
        if not config.nameservers:
            fail("rbReplica", "needs namesrvAddr, where the group's controller runs")
    if config.is_slave and config.broker_id == 0:
        fail("brokerId", "0 is reserved for the master; a SLAVE needs another id")
    if not config.is_slave and config.broker_id != 0:
        fail("brokerId", f"must be 0 for {config.broker_role}; for a slave set brokerRole=SLAVE")
    if config.in_sync_replicas < 1:
        fail("inSyncReplicas", "must be at least 1 (the master itself counts)")
    if config.listen_port and config.ha_port in (config.listen_port, config.listen_port - 2):
        fail("haListenPort", "conflicts with listenPort or with listenPort - 2")
