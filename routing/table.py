"""The nameserver's tables and the rules that change them (wire.md 3.1 to 3.8). Pure: no I/O.

Soft state: brokers repeat everything every 30 seconds, and nameservers never talk to each other.
Times are seconds on the caller's monotonic clock.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field, replace

from rocketbed.routing.errors import RegistrationRefused
from rocketbed.wire.bodies import (
    PERM_READ,
    PERM_WRITE,
    BrokerData,
    DataVersion,
    QueueData,
    TopicConfig,
    TopicConfigTable,
)

MASTER_ID = 0
DEFAULT_TIMEOUT_S = 120.0
"""Silence after which a broker is taken off the routes (wire.md 3.4)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registrant:
    cluster: str
    broker_name: str
    broker_id: int
    address: str
    """`ip:port` for clients."""
    ha_address: str
    """`ip:port` for slaves."""
    timeout_s: float = DEFAULT_TIMEOUT_S
    acting_master: bool | None = None
    """None: the broker is too old to know it (wire.md 3.2)."""
    zone: str | None = None


@dataclass(slots=True, kw_only=True)
class Live:
    """A broker that is believed to be alive."""

    last_update_s: float
    timeout_s: float
    data_version: DataVersion
    link: Hashable
    """Connection of its last registration."""
    ha_address: str
    broker_name: str
    broker_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """Answer to a slave's registration."""

    master_address: str | None = None
    ha_address: str | None = None


Key = tuple[str, str]
"""Cluster and address."""


@dataclass(slots=True)
class RoutingTable:
    """Tables of one nameserver.

    Invariant: a broker name is in `brokers` exactly while it has an address, in its cluster's list
    and in topics only while it is in `brokers`; no topic without queues (asserted by `check`).
    """

    brokers: dict[str, BrokerData] = field(default_factory=dict)
    clusters: dict[str, dict[str, None]] = field(default_factory=dict)
    topics: dict[str, dict[str, QueueData]] = field(default_factory=dict)
    """Topic -> broker name -> its queues."""
    live: dict[Key, Live] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    """Broker name -> address of the broker whose table its topics' queues come from."""

    def register(
        self, registrant: Registrant, topics: TopicConfigTable, *, now_s: float, link: Hashable
    ) -> Registered:
        """Apply a broker's registration. Raises `RegistrationRefused`."""
        key = (registrant.cluster, registrant.address)
        version = topics.data_version
        broker = self.brokers.get(registrant.broker_name)
        if broker is not None and self._held_by_newer(broker, registrant, version):
            self.live.pop(key, None)
            return Registered()
        is_known = broker is not None and registrant.broker_id in broker.broker_addrs
        if not is_known and len(topics.topic_config_table) == 1:
            raise RegistrationRefused(
                f"register broker failed: {registrant.broker_name}:{registrant.broker_id} announces"
                " one topic only; its first registration has to carry its whole table"
            )
        first = not is_known
        broker = self._upsert(registrant)
        for number in [i for i, at in broker.broker_addrs.items() if at == registrant.address]:
            if number != registrant.broker_id:
                del broker.broker_addrs[number]
        broker.broker_addrs[registrant.broker_id] = registrant.address
        is_prime = (
            registrant.broker_id == min(broker.broker_addrs)
            and registrant.acting_master is not None
        )
        if registrant.broker_id == MASTER_ID or is_prime:
            # Restore its own table after another broker had this name, even if it is unchanged.
            is_other = (
                self.sources.get(registrant.broker_name, registrant.address) != registrant.address
            )
            changed = first or key not in self.live or self.live[key].data_version != version
            changed |= is_other
            for config in topics.topic_config_table.values():
                if changed or registrant.broker_name not in self.topics.get(config.topic_name, {}):
                    self._put_topic(registrant, config)
            if len(topics.topic_config_table) != 1:  # as RocketMQ 5 announces a change
                self.sources[registrant.broker_name] = registrant.address
        self.live[key] = Live(
            last_update_s=now_s,
            timeout_s=registrant.timeout_s,
            data_version=version,
            link=link,
            ha_address=registrant.ha_address,
            broker_name=registrant.broker_name,
            broker_id=registrant.broker_id,
        )
        return self._master_of(registrant)

    def _held_by_newer(
        self, broker: BrokerData, registrant: Registrant, version: DataVersion
    ) -> bool:
        """True if a live broker of a later epoch already has this id (wire.md 3.2, step 3)."""
        holder = broker.broker_addrs.get(registrant.broker_id)
        if holder is None or holder == registrant.address:
            return False
        live = self.live.get((registrant.cluster, holder))
        return live is not None and live.data_version.state_version > version.state_version

    def _upsert(self, registrant: Registrant) -> BrokerData:
        self.clusters.setdefault(registrant.cluster, {})[registrant.broker_name] = None
        broker = self.brokers.get(registrant.broker_name)
        if broker is None:
            broker = BrokerData(cluster=registrant.cluster, broker_name=registrant.broker_name)
            self.brokers[registrant.broker_name] = broker
        broker.enable_acting_master = bool(registrant.acting_master)
        broker.zone_name = registrant.zone
        return broker

    def _put_topic(self, registrant: Registrant, config: TopicConfig) -> None:
        perm = config.perm
        if registrant.broker_id != MASTER_ID and registrant.acting_master:
            perm &= ~PERM_WRITE
        self.topics.setdefault(config.topic_name, {})[registrant.broker_name] = QueueData(
            broker_name=registrant.broker_name,
            read_queue_nums=config.read_queue_nums,
            write_queue_nums=config.write_queue_nums,
            perm=perm,
            topic_sys_flag=config.topic_sys_flag,
        )

    def _master_of(self, registrant: Registrant) -> Registered:
        """Return the live master of a slave's broker name."""
        master = self.brokers[registrant.broker_name].broker_addrs.get(MASTER_ID)
        if registrant.broker_id == MASTER_ID or master is None:
            return Registered()
        live = self.live.get((registrant.cluster, master))
        if live is None:
            return Registered()
        return Registered(master_address=master, ha_address=live.ha_address)

    def data_version(self, cluster: str, address: str) -> DataVersion | None:
        """Return the version of the table that a live broker registered last; None for a master
        whose topics were replaced by another broker's."""
        live = self.live.get((cluster, address))
        if live is None:
            return None
        is_other = self.sources.get(live.broker_name, address) != address
        return None if live.broker_id == MASTER_ID and is_other else live.data_version

    def touch(self, cluster: str, address: str, *, now_s: float) -> None:
        """Record a sign of life, which counts only for a known broker."""
        live = self.live.get((cluster, address))
        if live is not None:
            live.last_update_s = now_s

    def expired(self, now_s: float) -> list[Key]:
        """Return the brokers that were silent for longer than their timeout."""
        return [k for k, at in self.live.items() if at.last_update_s + at.timeout_s < now_s]

    def on_link(self, link: Hashable) -> list[Key]:
        """Return the brokers whose last registration came in on a connection (11043: and not a
        later one)."""
        return [key for key, live in self.live.items() if live.link == link]

    def unregister(self, cluster: str, address: str) -> str | None:
        """Take a broker off the routes; return its name, None if it was unknown.

        Its address leaves every name under which no broker lives at it: the cluster of a name is
        its first broker's only, and a broker may have been started again under another name.
        """
        self.live.pop((cluster, address), None)
        names = list[str]()
        for broker in list(self.brokers.values()):
            lives = any(at == address and _is_of(broker, row) for (_, at), row in self.live.items())
            ids = [i for i, at in broker.broker_addrs.items() if at == address and not lives]
            for broker_id in ids:
                del broker.broker_addrs[broker_id]
                self._give_back(broker, broker_id)
            if not broker.broker_addrs:
                self._forget(broker)
            elif ids and broker.enable_acting_master and MASTER_ID not in broker.broker_addrs:
                self._set_write(broker.broker_name, writable=False)
            self._leave_clusters(broker)
            names += [broker.broker_name] if ids else []
        return names[-1] if names else None

    def _give_back(self, broker: BrokerData, broker_id: int) -> None:
        """Give an id back to the broker that had it before, and would announce it again within 30
        s.

        So a late registration of a master that died takes nothing from the one promoted after it.
        """
        heirs = [
            (live.last_update_s, address)
            for (_, address), live in self.live.items()
            if _is_of(broker, live) and live.broker_id == broker_id
        ]
        if heirs:
            broker.broker_addrs[broker_id] = max(heirs)[1]

    def _forget(self, broker: BrokerData) -> None:
        """Remove a broker name without addresses from every table."""
        name = broker.broker_name
        del self.brokers[name]
        self.sources.pop(name, None)
        for topic in list(self.topics):
            self.topics[topic].pop(name, None)
            if not self.topics[topic]:
                del self.topics[topic]

    def _leave_clusters(self, broker: BrokerData) -> None:
        """Take a broker name off the clusters in which no broker of this name lives any more; off
        all once it has no address, though a broker whose id another one took may live on."""
        name, clusters = broker.broker_name, list[str]()
        if name in self.brokers:
            clusters = [cluster for (cluster, _), row in self.live.items() if _is_of(broker, row)]
            if not clusters:
                return
        if clusters and broker.cluster not in clusters:
            broker.cluster = clusters[0]
        for cluster in list(self.clusters):
            if cluster not in clusters:
                self.clusters[cluster].pop(name, None)
            if not self.clusters[cluster]:
                del self.clusters[cluster]

    def _set_write(self, broker_name: str, *, writable: bool) -> int:
        changed = 0
        for queues in self.topics.values():
            data = queues.get(broker_name)
            if data is not None:
                perm = PERM_READ | PERM_WRITE if writable else data.perm & ~PERM_WRITE
                queues[broker_name] = replace(data, perm=perm)
                changed += 1
        return changed

    def wipe_write(self, broker_name: str) -> int:
        """Clear the write permission of all topics of a broker name; return their number."""
        return self._set_write(broker_name, writable=False)

    def add_write(self, broker_name: str) -> int:
        """Restore it; return the number of topics. The broker's next changed registration does so
        too."""
        return self._set_write(broker_name, writable=True)

    def delete_topic(self, topic: str, cluster: str | None) -> None:
        """Take a topic off the routes, or only the brokers of one cluster."""
        if cluster is None:
            self.topics.pop(topic, None)
            return
        queues = self.topics.get(topic, {})
        for name in [name for name in queues if name in self.clusters.get(cluster, {})]:
            del queues[name]
        if not queues:
            self.topics.pop(topic, None)

    def put_queues(self, topic: str, queues: list[QueueData]) -> None:
        """Merge queue data of one topic (217)."""
        for data in queues:
            if data.broker_name in self.brokers:
                self.topics.setdefault(topic, {})[data.broker_name] = data

    def route(self, topic: str, *, acting_master: bool) -> tuple[list[BrokerData], list[QueueData]]:
        """Return brokers and queues of a topic; both empty if it is not served (wire.md 3.6).

        `acting_master`: show the smallest slave as id 0 if there is no master (3.5).
        """
        queues = list(self.topics.get(topic, {}).values())
        brokers = []
        for data in queues:
            broker = self.brokers[data.broker_name]
            addresses = dict(broker.broker_addrs)
            stand_in = acting_master and broker.enable_acting_master
            exempt = topic.startswith("rmq_sys_SYNC_BROKER_MEMBER_")
            masterless = MASTER_ID not in addresses and not data.perm & PERM_WRITE
            if stand_in and masterless and not exempt:
                addresses[MASTER_ID] = addresses.pop(min(addresses))
            brokers.append(replace(broker, broker_addrs=dict(sorted(addresses.items()))))
        return brokers, queues

    def topics_of(self, cluster: str) -> list[str]:
        """Return the topics that a broker of a cluster serves."""
        names = self.clusters.get(cluster, {})
        return [topic for topic, queues in self.topics.items() if any(n in names for n in queues)]

    def check(self) -> None:
        for name, broker in self.brokers.items():
            assert broker.broker_addrs, f"{name} has no address"
            assert name in self.clusters[broker.cluster]
        for topic, queues in self.topics.items():
            assert queues, f"{topic} has no queue"
            assert all(name in self.brokers for name in queues)
        for names in self.clusters.values():
            assert names
            assert all(name in self.brokers for name in names)


def _is_of(broker: BrokerData, live: Live) -> bool:
    return live.broker_name == broker.broker_name
