"""Plan of a local cluster: members, ports, settings. Stored as `cluster.json`.

A group is one broker name with a master (id 0) and its slaves, behind one nameserver. Ports stay
the same over restarts, so that a client finds a member where it was. Roles change when a slave is
promoted; names do not, so `slave-1` may be the master. With failover the members are `node-1`,
`node-2`, ..., and the controller in the nameserver elects the leader. With several groups, each of
them a broker name, the members are called `a-node-1`, ..., `b-node-1`, ...
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from string import ascii_lowercase
from typing import Final, Literal

from rocketbed.host.files import write_whole
from rocketbed.host.ports import HOST, free_ports, is_free, node_ports
from rocketbed.wire.errors import RocketbedError
from rocketbed.wire.properties_text import decode_file, parse_properties, render_properties

NAMESERVER = "nameserver"
MASTER = "master"
BROKER_NAME = "broker-a"
"""Broker name of the only group, or of the first one."""
CLUSTER_NAME = "local"
FILE = "cluster.json"
CONFIG = "broker.conf"
REGISTER = "register.db"
"""File of the controller's register, in the nameserver's directory."""
MIB = 1024 * 1024

SMALL_FILES = {
    "mappedFileSizeCommitLog": str(128 * MIB),
    "maxHashSlotNum": "200000",
    "maxIndexNum": "800000",
}
"""Settings that reduce the space reserved per node: RocketMQ's defaults take 1.4 GB before the
first message."""

FIRST_NODE_STEP = 1035
"""Difference of the nameserver's and the master's default ports: 9876 and 10911."""
NODE_STEP = 10
GROUPS_MAX: Final = 7
"""Most groups: as many as a scenario has names for (`watch.toml`)."""


class ClusterError(RocketbedError):
    """A local cluster cannot be set up or does not start; the message gives the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterMember:
    name: str
    """`nameserver`, `master`, `slave-1`, ..."""
    port: int
    """`listenPort`."""
    broker_id: int = -1
    """0 for the master, which changes with a promotion; with failover the replica's number; -1 for
    a nameserver."""
    broker: str = BROKER_NAME
    """Group of a node, `brokerName`."""
    host: str = HOST
    """Host at which it listens: loopback, or a container's own address."""

    @property
    def is_node(self) -> bool:
        return self.broker_id >= 0

    @property
    def address(self) -> str:
        """Address at which it listens, `host:port`."""
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan:
    """Members and options of a cluster."""

    members: tuple[ClusterMember, ...]
    sync: bool = True
    """True if the master waits for a slave before it acknowledges (SYNC_MASTER)."""
    in_sync_replicas: int = 2
    """With `sync`: copies that hold a message before it is acknowledged, the master's included."""
    flush: Literal["sync", "async"] = "async"
    """"sync" if a message is acknowledged only once it is on disk."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Further settings of every node, by RocketMQ's names."""
    subnet: str = ""
    """Subnet of a cluster in containers; empty for a cluster of processes."""
    daemon: str = ""
    """Docker daemon of a cluster in containers, `unix:///path`."""
    published: int = 0
    """Host port forwarded to the nameserver of a cluster in containers; 0: none."""
    failover: bool = False
    """True if its nodes fail over automatically."""
    promotions: Mapping[str, int] = field(default_factory=dict)
    """Number of promotions by group. After each, slaves truncate what the new master does not have
    (`rbDiverged=cut:N`)."""

    @property
    def brokers(self) -> list[str]:
        """Broker names of the groups."""
        return list(dict.fromkeys(member.broker for member in self.members if member.is_node))

    def nodes(self, broker: str) -> list[ClusterMember]:
        """Return the nodes of a group."""
        return [node for node in self.members if node.is_node and node.broker == broker]

    def master(self, broker: str = BROKER_NAME) -> ClusterMember:
        """Return the master of a group. Raises `ClusterError` in a cluster with failover."""
        if self.failover:
            raise ClusterError("its controller says who leads: use `cluster handover`")
        return next(member for member in self.nodes(broker) if member.broker_id == 0)

    def promoted(self, name: str) -> "ClusterPlan":
        """Return the plan with this slave as its group's master, and the former master as a slave.

        Raises `ClusterError` if it is no slave.
        """
        member = self.member(name)
        former = self.master(member.broker)
        if not member.is_node:
            raise ClusterError(f"{name} is a nameserver: only a slave can be promoted")
        if member == former:
            raise ClusterError(f"{name} is already the master")
        ids = {name: 0, former.name: member.broker_id}
        members = tuple(
            replace(member, broker_id=ids.get(member.name, member.broker_id))
            for member in self.members
        )
        count = self.promotions.get(member.broker, 0) + 1
        return replace(self, members=members, promotions={**self.promotions, member.broker: count})

    def member(self, name: str) -> ClusterMember:
        """Return a member by name. Raises `ClusterError`."""
        for member in self.members:
            if member.name == name:
                return member
        names = ", ".join(member.name for member in self.members)
        raise ClusterError(f"unknown member {name}; known: {names}")

    def node_settings(self, member: ClusterMember, directory: Path) -> dict[str, str]:
        return {
            "brokerClusterName": CLUSTER_NAME,
            "brokerName": member.broker,
            **self.role_settings(member),
            "brokerIP1": member.host,
            "bindAddress": member.host,
            "listenPort": str(member.port),
            "haListenPort": str(member.port + 1),
            "namesrvAddr": self.member(NAMESERVER).address,
            "storePathRootDir": str(directory / "store"),
            **self._promise(member.broker),
            **SMALL_FILES,
            **self.settings,
        }

    def nameserver_settings(self) -> dict[str, str]:
        member = self.member(NAMESERVER)
        settings = {"listenPort": str(member.port), "bindAddress": member.host}
        return {**settings, "rbRegister": REGISTER} if self.failover else settings

    def _promise(self, broker: str) -> dict[str, str]:
        """Return the settings that say when a message is acknowledged."""
        flush = {"flushDiskType": "SYNC_FLUSH" if self.flush == "sync" else "ASYNC_FLUSH"}
        if not self.failover:
            return {**flush, "inSyncReplicas": str(self.in_sync_replicas if self.sync else 1)}
        # With fewer than three nodes only disks protect acknowledged messages, and the node knows
        # that.
        return flush if self.flush == "sync" or len(self.nodes(broker)) >= 3 else {}

    def role_settings(self, member: ClusterMember) -> dict[str, str]:
        """Return the settings that a promotion changes."""
        if self.failover:
            nodes = self.nodes(member.broker)
            return {"rbReplica": str(member.broker_id), "rbReplicas": str(len(nodes))}
        promotions = self.promotions.get(member.broker)
        master = "SYNC_MASTER" if self.sync else "ASYNC_MASTER"
        return {
            "brokerId": str(member.broker_id),
            "brokerRole": "SLAVE" if member.broker_id else master,
            "rbDiverged": f"cut:{promotions}" if promotions else "refuse",
        }

    def save(self, directory: Path) -> None:
        """Write the plan to its directory. Raises `ClusterError`."""
        _write(directory / FILE, json.dumps(asdict(self), indent=2) + "\n")


def read_settings(directory: Path) -> dict[str, str]:
    """Read a node's `broker.conf`. Raises `ClusterError`."""
    path = directory / CONFIG
    try:
        rows = parse_properties(decode_file(path.read_bytes()))
    except (OSError, ValueError) as exc:
        raise ClusterError(f"{path} cannot be read: {exc}") from exc
    return {key: value for _, key, value in rows}


def change_settings(directory: Path, changes: Mapping[str, str]) -> None:
    """Set some settings; others that were edited stay. Raises `ClusterError`."""
    current = read_settings(directory)
    if not changes.items() <= current.items():
        write_settings(directory, {**current, **changes})


def write_settings(directory: Path, settings: Mapping[str, str]) -> None:
    """Replace all settings atomically. Raises `ClusterError`."""
    _write(directory / CONFIG, render_properties(settings))


def read_plan(directory: Path) -> ClusterPlan:
    """Read the plan of a directory. Raises `ClusterError` when there is none, or it is damaged."""
    path = directory / FILE
    try:
        value = json.loads(path.read_text(encoding="utf-8-sig"))
        members = tuple(ClusterMember(**row) for row in value.pop("members"))
        if isinstance(count := value["promotions"], int):  # written by an earlier version
            value["promotions"] = {BROKER_NAME: count} if count else {}
        plan = ClusterPlan(members=members, **value)
    except FileNotFoundError:
        raise ClusterError(f"{directory} has no cluster: {FILE} is missing") from None
    except OSError as exc:
        raise ClusterError(f"{path} cannot be read: {exc.strerror or exc}") from exc
    except (ValueError, TypeError, AttributeError, KeyError) as exc:
        raise ClusterError(
            f"{path} is damaged ({type(exc).__name__}: {exc}): it says which nodes there are, and"
            " on which ports. The nodes' directories beside it are as they were"
        ) from exc
    plan.member(NAMESERVER)
    return replace(plan, settings=dict(plan.settings), promotions=dict(plan.promotions))


def make_plan(
    *,
    slaves: int = 2,
    sync: bool = True,
    in_sync_replicas: int | None = None,
    flush: Literal["sync", "async"] = "async",
    port: int = 0,
    settings: Mapping[str, str] | None = None,
    places: Sequence[tuple[str, int]] = (),
    failover: bool = False,
    groups: int = 1,
) -> ClusterPlan:
    """Plan a master and its slaves, or `groups` of them; `port` is the nameserver's, 0 picks free
    ports.

    `places` are the host and port of each member, the nameserver's first, instead of loopback.
    `settings` are for the `broker.conf` of every node. Raises `ClusterError` when a port is in use.
    """
    names = node_names(slaves, failover=failover, groups=groups)
    if not places:
        ports = _fixed_ports(port, len(names)) if port else free_ports(1, len(names))
        places = [(HOST, number) for number in ports]
    (host, own), *node_places = places
    members = [ClusterMember(name=NAMESERVER, host=host, port=own)]
    ids = [
        (f"broker-{letter}", number + failover)
        for letter in ascii_lowercase[:groups]
        for number in range(slaves + 1)
    ]
    members += [
        ClusterMember(name=name, host=host, port=port, broker_id=number, broker=broker)
        for name, (broker, number), (host, port) in zip(names, ids, node_places, strict=True)
    ]
    return ClusterPlan(
        members=tuple(members),
        sync=sync and slaves > 0,
        in_sync_replicas=min(2, slaves + 1) if in_sync_replicas is None else in_sync_replicas,
        flush=flush,
        settings=dict(settings or {}),
        failover=failover,
    )


def node_names(slaves: int, *, failover: bool = False, groups: int = 1) -> list[str]:
    """Return the names of the nodes: `master`, `slave-1`, ..., or with failover `node-1`, ...; with
    several groups `a-master`, ..., group by group. Raises `ClusterError`."""
    if slaves < 0 or slaves > 16:
        raise ClusterError(f"the number of slaves must be 0 to 16, not {slaves}")
    if groups < 1 or groups > GROUPS_MAX:
        raise ClusterError(f"the number of groups must be 1 to {GROUPS_MAX}, not {groups}")
    if failover:
        names = [f"node-{number}" for number in range(1, slaves + 2)]
    else:
        names = [MASTER, *(f"slave-{number}" for number in range(1, slaves + 1))]
    if groups == 1:
        return names
    return [f"{letter}-{name}" for letter in ascii_lowercase[:groups] for name in names]


def _write(path: Path, text: str) -> None:
    try:
        write_whole(path, text)
    except OSError as exc:
        raise ClusterError(f"{path} cannot be written: {exc.strerror or exc}") from exc


def _fixed_ports(port: int, nodes: int) -> list[int]:
    first = port + FIRST_NODE_STEP
    ports = [port, *(first + NODE_STEP * number for number in range(nodes))]
    if ports[-1] + 1 > 65_535:
        raise ClusterError(f"port {port} leaves no room for the nodes' ports: choose a lower one")
    needed = [port, *(number for node in ports[1:] for number in node_ports(node))]
    in_use = [number for number in needed if not is_free(number)]
    if in_use:
        listed = ", ".join(map(str, in_use))
        raise ClusterError(f"ports in use: {listed}; stop what listens there or choose --port")
    return ports
