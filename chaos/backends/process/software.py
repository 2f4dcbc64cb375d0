"""The software on the machines of a cluster: its commands, log lines and answers.

A backend knows processes, disks and links, and nothing of brokers. `OwnSoftware` is rocketbed; a
cluster of something else is the same backend with another `Software`.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import orjson

from rocketbed.chaos.backends.process.samples import Asker
from rocketbed.chaos.evidence.node_events import FOLLOWING, REPORTS, reason_to_empty
from rocketbed.chaos.run.api import Sample
from rocketbed.chaos.run.operator import NO_FAILOVER
from rocketbed.host.parent_death import tied_command
from rocketbed.remoting.client import parse_address
from rocketbed.wire.command import RequestCode
from rocketbed.wire.properties_text import render_properties
from rocketbed.world.api import Address

SMALL_FILES: Final = {
    "mappedFileSizeConsumeQueue": "60000",
    "maxHashSlotNum": "20000",
    "maxIndexNum": "60000",
    "registerNameServerPeriod": "10000",
    "cleanFileForciblyEnable": "false",
    "fileReservedTime": "876000",
}
"""Small files, so that there are several of each kind; nothing is deleted for a full disk."""
SETTINGS: Final = {
    **SMALL_FILES,
    "rbMetadataSync": "1000",
    "slaveTimeout": "1000",
    "diskSpaceWarningLevelRatio": "95",
}
CONFIG: Final = "broker.conf"
REGISTER: Final = "register.db"
"""The controller's, in its own directory, which outlives it."""
_RECOVERED: Final = re.compile(rb" store\.recovered (.*)$", re.MULTILINE)
_FAILED: Final = re.compile(r" node\.failed error=(\w+)$", re.MULTILINE)
_CUT: Final = re.compile(rb" replication\.cut (.*)$", re.MULTILINE)
_REPORT: Final = re.compile(
    rb" (%s) (.*)$" % "|".join(map(re.escape, REPORTS)).encode(), re.MULTILINE
)
_FOLLOWING: Final = re.compile(
    rb" (%s) (.*)$" % "|".join(map(re.escape, FOLLOWING)).encode(), re.MULTILINE
)
_EXPIRED: Final = re.compile(rb" store\.segment_deleted path=\S*/(\d+)$", re.MULTILINE)
_FIELD: Final = re.compile(r'(\w+)=("[^"]*"|\S+)')


class Software(ABC):
    """The programs of nodes and nameservers. Log texts are of one start, from its first byte."""

    name: str
    """`rocketbed`, `rocketmq-5.3.3`, ..."""
    stop_s: float
    """Longest duration of a clean stop."""
    elects: bool = False
    """True if its controllers choose the masters."""

    def lacks(self, capability: str) -> str | None:
        """Return why a fault is impossible with it; None if it is possible, or does not depend on
        the software."""
        return None

    @abstractmethod
    def nameserver_command(
        self, name: str, directory: Path, lines: Mapping[str, str]
    ) -> Sequence[str]:
        """Write the nameserver's files below `directory`, its working directory. Return its
        command.

        `lines` are the network's settings: `listenPort`, `bindAddress`.
        """

    @abstractmethod
    def node_command(self, name: str, directory: Path, lines: Mapping[str, str]) -> Sequence[str]:
        """Do the same for a node; `lines` are those of its `broker.conf`."""

    @abstractmethod
    def recovered(self, log: bytes) -> Mapping[str, Any] | None:
        """Return the node's report of its recovery; None before that."""

    @abstractmethod
    def cuts(self, log: bytes) -> Sequence[Mapping[str, Any]]:
        """Return each truncation of the node's log to its master's."""

    def reports(self, log: bytes) -> Sequence[tuple[str, str]]:
        """Return the node's reports of damage to its store: log events and texts."""
        return ()

    def refuses(self, log: bytes) -> str:
        """Return why, in its own words, it follows no master until its directory is emptied; empty
        if it does not report that."""
        return ""

    def expired(self, log: bytes) -> Sequence[int]:
        """Return log segments that the node deleted because of their age, each by its first
        offset."""
        return ()

    @abstractmethod
    def reason(self, log: str, code: int | None) -> str:
        """Return why it ended on its own, in one line."""

    @abstractmethod
    def is_clean(self, code: int | None) -> bool:
        """Return whether a node that got SIGTERM ended with the exit code of a clean stop."""

    async def observe(self, asker: Asker, address: Address) -> Sample | None:
        """Return a node's sample; None if it does not answer."""
        return await asker.sample(address)

    async def elected(self, asker: Asker, group: str) -> tuple[Address, int, int | None] | None:
        """Return address, epoch and start (offset) of the master that a controller names."""
        return None


class OwnSoftware(Software):
    """rocketbed's node and nameserver."""

    name = "rocketbed"
    stop_s = 20.0

    def __init__(
        self,
        command: Callable[..., list[str]] = tied_command,
        controller: tuple[str, Callable[[], Address]] | None = None,
    ) -> None:
        """`command` makes the command line of a program of ours; by default tied to us.

        `controller` names the nameserver that elects, and returns its address once there is one;
        None: an operator chooses masters.
        """
        self._command = command
        self._controller = controller
        self.elects = controller is not None

    def lacks(self, capability: str) -> str | None:
        return NO_FAILOVER if capability == "failover" and not self.elects else None

    def nameserver_command(
        self, name: str, directory: Path, lines: Mapping[str, str]
    ) -> Sequence[str]:
        if self._controller is not None and self._controller[0] == name:
            lines = {**lines, "rbRegister": REGISTER}
        options = [part for key, value in lines.items() for part in ("--set", f"{key}={value}")]
        return self._command("nameserver", *options)

    def node_command(self, name: str, directory: Path, lines: Mapping[str, str]) -> Sequence[str]:
        text = render_properties({**SETTINGS, **lines})
        (directory / CONFIG).write_text(text, encoding="utf-8")
        return self._command("node", "-c", CONFIG)

    def recovered(self, log: bytes) -> Mapping[str, Any] | None:
        match = _RECOVERED.search(log)
        return None if match is None else _fields(match[1])

    def cuts(self, log: bytes) -> Sequence[Mapping[str, Any]]:
        return [_fields(found[1]) for found in _CUT.finditer(log)]

    def reports(self, log: bytes) -> Sequence[tuple[str, str]]:
        events = ((found[1].decode(), _fields(found[2])) for found in _REPORT.finditer(log))
        return [(event, str(fields.get(REPORTS[event]))) for event, fields in events]

    def refuses(self, log: bytes) -> str:
        events = _FOLLOWING.findall(log)[-1:]
        return "".join(
            reason_to_empty(event.decode(), _fields(rest).get("reason")) for event, rest in events
        )

    def expired(self, log: bytes) -> Sequence[int]:
        return [int(found[1]) for found in _EXPIRED.finditer(log)]

    def reason(self, log: str, code: int | None) -> str:
        """Return the last line of the log, after the kind of error if the node named it."""
        lines = log.splitlines()
        last = lines[-1].removeprefix("rocketbed: ") if lines else ""
        named = _FAILED.findall("\n".join(lines[-2:]))
        kind = f"{named[-1]}: " if named else ""
        return f"{kind}{last} (exit code {code})"

    def is_clean(self, code: int | None) -> bool:
        return code == 0

    async def elected(self, asker: Asker, group: str) -> tuple[Address, int, int | None] | None:
        """Return the master in the register, and the leader's own start of its epoch."""
        if self._controller is None:
            return None
        answer = await asker.ask(self._controller[1](), RequestCode.RB_GROUPS)
        group_row = {} if answer is None else orjson.loads(answer.body).get(group, {})
        entry = group_row.get("entry")
        if entry is None or entry["leader"] is None:
            return None
        address = parse_address(entry["replicas"][str(entry["leader"])]["address"])
        look = await asker.look(address)
        table = {} if look is None else look[0]
        is_there = table.get("rbEpoch") == str(entry["epoch"])
        return address, entry["epoch"], int(table["rbEpochStart"]) if is_there else None


def _fields(text: bytes) -> dict[str, Any]:
    """Return the fields of a log line, integers as such."""
    fields: dict[str, Any] = {}
    for key, value in _FIELD.findall(text.decode("utf-8", "replace")):
        bare = value.strip('"')
        fields[key] = int(bare) if bare.lstrip("-").isdigit() else bare
    return fields
