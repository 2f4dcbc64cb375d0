"""The evidence of a run in simulation, recorded while it happens.

It relies on the simulation itself: events of disks, lines of logs, ends of processes. No node is
asked, since a node's own view is on trial.
"""

from pathlib import Path
from typing import Any, Final

from rocketbed.chaos.backends.sim.coverage import Coverage
from rocketbed.chaos.backends.sim.disk_image import DiskImage
from rocketbed.chaos.backends.sim.logwatch import COMMIT_LOG, STORE, LogWatch
from rocketbed.chaos.backends.sim.process import SimProcess
from rocketbed.chaos.backends.sim.simulation import LogLine, Simulation
from rocketbed.chaos.evidence.history import Function, HistoryWriter
from rocketbed.chaos.evidence.node_events import (
    FOLLOWING,
    REFUSALS,
    REPAIRED,
    REPORTS,
    reason_to_empty,
)
from rocketbed.chaos.evidence.record import IMAGES, STORES, Image
from rocketbed.chaos.evidence.trace import Trace
from rocketbed.chaos.run.api import Collected
from rocketbed.inspect.marks import CKPT_NAME, read_marks
from rocketbed.node.config.node_config import NodeConfig
from rocketbed.wire.ha import NATIVE_MAGIC, REPORT_SIZE
from rocketbed.wire.ha_native import Ack, NativeReader

TABLES: Final = f"{STORE}/config/"
MARK: Final = f"{STORE}/{CKPT_NAME}"
QUEUES: Final = f"{STORE}/consumequeue/", f"{STORE}/batchconsumequeue/"
DATA: Final = (COMMIT_LOG, *QUEUES, f"{STORE}/index/")
"""After a failed sync of one of these files nothing more may be acknowledged; a table, or a file
that is only prepared, is tried again."""
IMAGES_MAX: Final = 6
"""Number of disks of one node, as its ends left them, that are kept for the checks of recovery: the
last ones."""
CUTS: Final = {
    "replication.cut": "cut",
    "follower.cut": "cut",
    "store.cut_resumed": "cut_resumed",
}


class Recorder:
    """Watches every node of a simulation, from its first start on."""

    def __init__(self, simulation: Simulation, history: HistoryWriter) -> None:
        self._simulation = simulation
        self._timeline = simulation.timeline
        self._history = history
        self._trace = Trace()
        self._acks = Trace()
        """Acknowledgements of each slave to its masters, as they left it."""
        self._images: dict[Image, DiskImage] = {}
        """Disks as kills and power cuts left them, oldest first."""
        self._watches: dict[str, LogWatch] = {}
        self._segment_size: dict[str, int] = {}
        self._flushes: dict[str, bool] = {}
        """True for a node whose acknowledgements mean that the data is on disk."""
        self._after_power_cut: dict[str, bool] = {}
        self._reasons: dict[str, str] = {}
        self._end_counts: dict[str, int] = {}
        self._reports: dict[str, str] = {}
        """Reports of damage by nodes since their last start, or when they refused to start."""
        self._refusals: dict[str, str] = {}
        """Why slaves follow no master until they are emptied, as reported since then."""
        self._roles: dict[str, str] = {}
        self._coverage = Coverage(simulation, self._roles)
        simulation.on_disk.append(self._saw_disk)
        simulation.on_end.append(self._process_ended)
        simulation.on_log.append(self._logged)

    def starts(self, name: str, config: NodeConfig) -> None:
        self._segment_size[name] = config.store.segment_size
        self._flushes[name] = config.store.sync_flush
        self._roles[name] = config.broker_role
        self._reports.pop(name, None)
        self._refusals.pop(name, None)
        self._simulation.network.taps[config.ha_port] = self._slave_reported
        self._watch(name)

    def ends(self, name: str) -> int:
        return self._end_counts.get(name, 0)

    def end_reason(self, name: str) -> str:
        return self._reasons.get(name, "")

    def reported(self, name: str) -> str:
        """Return a node's report of damage since its last start."""
        return self._reports.get(name, "")

    def refuses(self, name: str) -> str:
        return self._refusals.get(name, "")

    def lost_power(self, name: str) -> None:
        """Record a power cut of a node's host; other hosts have no record."""
        if name in self._watches:
            self._keep_image(name, "powercut")
            self._watches[name].lost_power(self._timeline.now)
            self._after_power_cut[name] = True

    def wiped(self, name: str) -> None:
        """Note that a node that is down has an empty disk now."""
        self._watch(name).wiped(self._timeline.now)

    def collect(self, directory: Path) -> Collected:
        """Write stores and images below a run's directory."""
        stores: dict[str, str] = {}
        for name in self._watches:
            image = self._simulation.host(name).image
            image.export(str(directory / STORES / name))
            stores[name] = f"{STORES}/{name}{STORE}"
        for record, disk in self._images.items():
            disk.export(str(directory / IMAGES / f"{record.node}-{record.number}"))
        marks = {f"{node}:{mark}": count for (node, mark), count in self._simulation.marks.items()}
        digest, facts = self._simulation.digest(), self._coverage.facts()
        images = list(self._images)
        return Collected(stores, images, self._trace, self._acks, digest, marks, facts)

    def _watch(self, name: str) -> LogWatch:
        watch = self._watches.get(name)
        if watch is None:
            watch = self._watches[name] = LogWatch(self._trace.node(name))
        return watch

    def _slave_reported(self, host: str, data: bytes) -> None:
        if host in self._watches and len(data) == REPORT_SIZE:
            reported = int.from_bytes(data, "big", signed=True)
            self._acks.node(host).add(self._timeline.now, reported, 0)
        if host in self._watches and data[:4] == NATIVE_MAGIC:
            for frame in NativeReader().feed(data):
                if isinstance(ack := frame.content, Ack):
                    end = ack.durable if self._flushes[host] else ack.received
                    self._acks.node(host).add(self._timeline.now, end, 0)

    def _saw_disk(self, host: str, kind: str, path: str, offset: int, size: int) -> None:
        watch = self._watches.get(host)
        if watch is not None:
            watch.saw(self._timeline.now, kind, path, offset, size)
            if kind == "sync_failed" and path.startswith(DATA):
                self._history.event(Function.NODE, host, "eio", {"path": path})
            self._check_small_files(host, watch, kind, path)

    def _check_small_files(self, host: str, watch: LogWatch, kind: str, path: str) -> None:
        """Check laws at every event of a disk, so that no power cut has to come at the right
        moment.

        A table is only ever replaced as a whole, never written under its own name. The
        durable mark, which counts once its directory is synced, never names an offset that is not
        on disk.
        """
        if kind in ("write", "truncate") and path.startswith(TABLES) and path.endswith(".json"):
            self._history.event(Function.NODE, host, "table_in_place", {"path": path})
        if kind != "sync_dir" or path != STORE:
            return
        disk = self._simulation.process(host).disk
        if disk.exists(MARK):
            marks = read_marks(disk.contents(MARK), b"", abort_lines=None, checkpoint=b"")
            durable = watch.covered(self._segment_size[host])
            if marks is not None and marks.durable_offset > durable:
                fields = {"offset": marks.durable_offset, "durable": durable}
                self._history.event(Function.NODE, host, "mark_ahead", fields)

    def _process_ended(self, process: SimProcess) -> None:
        name = process.host.name
        if name not in self._watches:
            return
        cause = {"end": "crash" if process.crashed else "stop", "power": "powercut"}.get(
            process.life.cause, process.life.cause
        )
        reason = self._reasons[name] = process.end_reason
        if reason.startswith(REFUSALS):
            self._report(name, "node.failed", reason)
        if process.life.cause == "closed":
            return
        ends = self._watches[name].ends()
        self._end_counts[name] = self._end_counts.get(name, 0) + 1
        self._history.event(
            Function.NODE,
            name,
            "exit",
            {"cause": cause, "reason": reason, "written": ends.written, "durable": ends.durable},
        )
        if cause == "powercut":
            self.lost_power(name)
        else:
            self._watches[name].died()
            if cause != "stop":
                self._keep_image(name, cause)

    def _keep_image(self, name: str, cause: str) -> None:
        ends = self._watches[name].ends()
        own = [image for image in self._images if image.node == name]
        number = own[-1].number + 1 if own else 1
        record = Image(
            node=name,
            number=number,
            time_ns=self._timeline.now,
            cause=cause,
            directory=f"{IMAGES}/{name}-{number}{STORE}",
            written=ends.written,
            durable=ends.durable,
        )
        self._images[record] = self._simulation.host(name).image
        if len(own) == IMAGES_MAX:
            del self._images[own[0]]

    def _logged(self, line: LogLine) -> None:
        if line.event == "store.recovered" and line.node in self._watches:
            fields: dict[str, Any] = dict(line.fields)
            self._watches[line.node].recovered(
                line.moment,
                int(fields["end"]),
                self._segment_size[line.node],
                is_durable=self._after_power_cut.pop(line.node, False),
            )
            self._history.event(Function.NODE, line.node, "recovered", fields)
        elif line.event in CUTS:
            self._history.event(Function.NODE, line.node, CUTS[line.event], dict(line.fields))
        elif line.event == "follower.following":
            self._history.event(Function.NODE, line.node, "followed", {})
        elif line.event == "store.segment_deleted" and line.node in self._watches:
            start = int(str(line.fields["path"]).rpartition("/")[2])
            fields = {"start": start, "size": self._segment_size[line.node]}
            self._history.event(Function.NODE, line.node, "expired", fields)
        elif line.event in FOLLOWING:
            self._refusals[line.node] = reason_to_empty(line.event, line.fields.get("reason"))
        elif line.event in REPORTS:
            self._report(line.node, line.event, str(line.fields[REPORTS[line.event]]))

    def _report(self, name: str, event: str, text: str) -> None:
        if event != REPAIRED:
            self._reports[name] = text
        self._history.event(Function.NODE, name, "reported", {"event": event, "text": text})
