"""Apache RocketMQ as the software of a cluster's machines: commands, log lines, answers.

Classic mode: an operator (`chaos.run.members`) starts masters and slaves by their broker ids.
Controller mode: a controller beside the nameservers elects, and all brokers are started alike.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

from rocketbed.chaos.backends.foreign.installation import Installation
from rocketbed.chaos.backends.foreign.settings import (
    CONTROLLER_PORT,
    DISK_PROPERTIES,
    LOGBACK,
    PLAIN_TEXT,
    broker_lines,
    controller_lines,
    elected_lines,
    topics_file,
)
from rocketbed.chaos.backends.process.network.base import Network
from rocketbed.chaos.backends.process.samples import Asker, sample_of
from rocketbed.chaos.backends.process.software import Software
from rocketbed.chaos.plan.plan import Plan
from rocketbed.chaos.run.api import Sample
from rocketbed.chaos.run.load import topic_names
from rocketbed.host.ports import free_port
from rocketbed.host.program import tied_program
from rocketbed.wire.properties_text import render_properties
from rocketbed.world.api import Address

Mode = Literal["classic", "controller"]
NAMESERVER_MAIN: Final = "org.apache.rocketmq.namesrv.NamesrvStartup"
BROKER_MAIN: Final = "org.apache.rocketmq.broker.BrokerStartup"
BROKER_MIB: Final = 256
NAMESERVER_MIB: Final = 96
STOP_S: Final = 60.0
"""A clean stop takes 8 to 19 s, and more with other stops at the same time."""
STOPPED: Final = 143
"""128 plus the number of SIGTERM."""
GET_REPLICA_INFO: Final = 1004
GET_BROKER_EPOCH_CACHE: Final = 1007
CONTROLLERS_MIN: Final = 3
"""Least number of nameservers for which each has a controller; fewer would need all of them to
elect."""
OWN_ADDRESSES: Final = ("switch", "bridge")
"""Networks on which each machine has an address, and so all ports, of its own."""
MISSING: Final = {
    "failover": "RocketMQ's controller has other commands, and a journal rather than a register",
    "disk.faults": "RocketMQ writes through mappings, which the library below a process cannot see",
    "proc.crash.event": "RocketMQ writes through mappings, so its disk events cannot be counted",
    "proc.crash.mark": "RocketMQ has no marks",
    "proc.crash.power": "RocketMQ has no marks and its disk events cannot be counted",
}
"""Capability -> why a Java broker lacks it."""
_RECOVERED: Final = re.compile(rb"message store recover end, and the max phy offset = (\d+)")
_CUT: Final = re.compile(rb"Truncate slave log to (\d+) success")
_BEGUN: Final = re.compile(rb"/abort (?:create OK|already exists)")
_STOP: Final = re.compile(rb"last shutdown (\w+), store path")
_ERROR: Final = re.compile(r"^(?:Caused by: )?(?:[a-z]+\.)+[A-Z]\w*(?:Exception|Error)\b.*$", re.M)


class RocketMQSoftware(Software):
    """Brokers and nameservers of one installation, for one run."""

    def __init__(
        self, installation: Installation, mode: Mode, network: Network, plan: Plan
    ) -> None:
        """`network` knows the addresses of the plan's nameservers.

        A slave asks for its master's table of topics only after a minute, and promoted before that
        it would have none of the load's queues; so it starts with the table that it would have in a
        cluster that has been up for a minute.
        """
        self.name = f"rocketmq-{installation.version}"
        self.elects = mode == "controller"
        self.stop_s = STOP_S
        self._installation = installation
        self._network = network
        names = plan.shape.nameserver_names
        self._hosts = names if len(names) >= CONTROLLERS_MIN else names[:1]
        """Nameservers with a controller."""
        self._ports: dict[str, int] = {}
        self._topics = topics_file(topic_names(plan), plan.producers.queues)

    def lacks(self, capability: str) -> str | None:
        return MISSING.get(capability)

    def nameserver_command(
        self, name: str, directory: Path, lines: Mapping[str, str]
    ) -> Sequence[str]:
        settings = dict(lines)
        if self.elects and name in self._hosts:
            number = self._hosts.index(name)
            settings = controller_lines(lines, self._controllers(), number, directory)
        return self._java(NAMESERVER_MAIN, directory, "namesrv.conf", settings, NAMESERVER_MIB)

    def node_command(self, name: str, directory: Path, lines: Mapping[str, str]) -> Sequence[str]:
        controllers = self._controllers() if self.elects else []
        settings = elected_lines(lines, controllers) if self.elects else broker_lines(lines)
        config = Path(lines["storePathRootDir"]) / "config"
        if settings["brokerRole"] == "SLAVE" and not config.exists():
            config.mkdir(parents=True)
            (config / "topics.json").write_text(self._topics, encoding="utf-8")
        return self._java(BROKER_MAIN, directory, "broker.conf", settings, BROKER_MIB)

    def recovered(self, log: bytes) -> Mapping[str, Any] | None:
        """Return the end of the log, and whether the broker took the last stop for a clean one.

        None until the abort file exists too: up to then a start changes nothing that it could not
        do again.
        """
        match = _RECOVERED.search(log)
        if match is None or _BEGUN.search(log) is None:
            return None
        stop = _STOP.search(log)
        fields: dict[str, Any] = {"end": int(match[1])}
        if stop is not None:
            fields["clean"] = stop[1] == b"normally"
        return fields

    def cuts(self, log: bytes) -> Sequence[Mapping[str, Any]]:
        """Return the truncations of a slave in controller mode; a classic one never truncates."""
        return [{"to": int(found[1])} for found in _CUT.finditer(log)]

    def reason(self, log: str, code: int | None) -> str:
        """Return the last exception, else the last line."""
        errors = _ERROR.findall(log)
        lines = log.splitlines()
        last = errors[-1] if errors else lines[-1] if lines else ""
        return f"{last} (exit code {code})"

    def is_clean(self, code: int | None) -> bool:
        """Return whether the code is Java's after its shutdown hooks have run on SIGTERM."""
        return code in (0, STOPPED)

    async def observe(self, asker: Asker, address: Address) -> Sample | None:
        """Return a sample from its runtime information and its replication status.

        A slave reports the time of its master's last message, and 0 once that connection is closed.
        """
        tables = await asker.look(address)
        sample = None if tables is None else sample_of(*tables)
        if tables is None or sample is None:
            return None
        read_ms = tables[1].ha_client_runtime_info.last_read_timestamp
        return replace(sample, is_following=not sample.is_master and read_ms > 0)

    async def elected(self, asker: Asker, group: str) -> tuple[Address, int, int | None] | None:
        """Return the master according to the first controller that leads; its start comes from the
        master's own list of epochs."""
        for controller in self._controllers() if self.elects else ():
            answer = await asker.ask(controller, GET_REPLICA_INFO, {"brokerName": group})
            fields = {} if answer is None else answer.fields
            host, _, port = fields.get("masterAddress", "").rpartition(":")
            epoch = fields.get("masterEpoch", "")
            if host and port.isdigit() and epoch.isdigit():
                address = host, int(port)
                return address, int(epoch), await self._begin(asker, address, int(epoch))
        return None

    # --- inside

    async def _begin(self, asker: Asker, address: Address, epoch: int) -> int | None:
        """Return the start of an epoch in a broker's list."""
        answer = await asker.ask(address, GET_BROKER_EPOCH_CACHE)
        if answer is None:
            return None
        try:
            entries = json.loads(answer.body)["epochList"]
            return next(
                (int(entry["startOffset"]) for entry in entries if entry["epoch"] == epoch), None
            )
        except (ValueError, KeyError, TypeError):
            return None

    def _java(
        self, main: str, directory: Path, file: str, settings: Mapping[str, str], memory_mib: int
    ) -> list[str]:
        (directory / file).write_text(render_properties(dict(settings)), encoding="utf-8")
        logback = directory / "logback.xml"
        logback.write_text(LOGBACK, encoding="utf-8")
        options = [
            PLAIN_TEXT,
            f"-Drmq.logback.configurationFile={logback.absolute()}",
            f"-XX:ErrorFile={directory.absolute()}/java_error.log",
            *DISK_PROPERTIES,
        ]
        command = self._installation.command(
            main, "-c", file, home=directory.absolute(), memory_mib=memory_mib, options=options
        )
        return self._launched(command)

    def _launched(self, command: Sequence[str]) -> list[str]:
        """Return the command that starts it on a machine: as a process that dies with the
        harness."""
        return tied_program(command)

    def _controllers(self) -> list[Address]:
        return [(self._network.address(name)[0], self._port(name)) for name in self._hosts]

    def _port(self, name: str) -> int:
        """Return RocketMQ's port on machines with an address of their own, else a free one."""
        if self._network.name in OWN_ADDRESSES:
            return CONTROLLER_PORT
        if name not in self._ports:
            used = [
                *self._ports.values(),
                *(self._network.address(host)[1] for host in self._hosts),
            ]
            self._ports[name] = free_port(used)
        return self._ports[name]
