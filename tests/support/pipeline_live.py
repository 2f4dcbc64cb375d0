"""Live clusters for tests of the pipeline without Spark: what is sent to them and read again."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow
import trio

from rocketbed.cluster.cluster import LocalCluster
from rocketbed.cluster.plan import ClusterError
from rocketbed.pipeline.files.reading import Plan
from rocketbed.pipeline.options import Options
from rocketbed.pipeline.schema import arrow_schema
from rocketbed.pipeline.sink.keys import TaskKey
from rocketbed.pipeline.sink.options import SinkOptions
from rocketbed.pipeline.sink.writer import TaskCommit, send_partition
from rocketbed.pipeline.wire.clients import close_all
from rocketbed.pipeline.wire.plan import WirePlan

SETTINGS = {"mappedFileSizeCommitLog": str(1 << 20)}
Start = Callable[..., LocalCluster]


@contextmanager
def clusters_in(directory: Path) -> Iterator[Start]:
    """A function that starts clusters, gone at the end of the block."""
    running: list[LocalCluster] = []

    def begin(
        name: str = "c", *, slaves: int = 0, groups: int = 1, **settings: str
    ) -> LocalCluster:
        cluster = LocalCluster.create(
            directory / name,
            slaves=slaves,
            groups=groups,
            settings=SETTINGS | settings,
            tied=True,
        )
        # A second group is a cluster of its own.
        for conf in (directory / name).glob("b-*/broker.conf"):
            text = conf.read_text(encoding="utf-8")
            changed = re.sub(r"(?m)^brokerClusterName=.*$", "brokerClusterName=Other", text)
            conf.write_text(changed, encoding="utf-8")
        running.append(cluster)
        trio.run(cluster.start)
        return cluster

    try:
        yield begin
    finally:
        for cluster in running:
            for name in cluster.names:
                with suppress(ClusterError):  # it ended
                    cluster.resume(name)  # one that hangs would be waited for
        close_all()
        for cluster in running:
            trio.run(cluster.close)


def sink(cluster: LocalCluster, **more: str) -> SinkOptions:
    options = {"endpoints": cluster.nameserver_address, "topic": "T", **more}
    return SinkOptions.parse(options, streaming=False)


def send(
    options: SinkOptions, first: int, end: int, *, batch: int = 0, size: int = 8
) -> TaskCommit:
    bodies = [str(number).encode().ljust(size) for number in range(first, end)]
    rows = pyarrow.record_batch({"body": bodies})
    key = TaskKey(job=options.job or "query", batch=batch, partition=first)
    return send_partition(options, key, iter([rows]))


def reading(cluster: LocalCluster, **more: Any) -> Options:
    """Options of a read of topic T; None removes an option."""
    options = {"endpoints": cluster.nameserver_address, "topics": "T", **more}
    return Options.parse({name: str(text) for name, text in options.items() if text is not None})


def table(plan: Plan | WirePlan, columns: Sequence[str]) -> list[dict[str, Any]]:
    schema = arrow_schema("records", columns)
    batches = [batch for split in plan.splits() for batch in plan.read(split, schema)]
    rows: list[dict[str, Any]] = pyarrow.Table.from_batches(batches, schema).to_pylist()
    return sorted(rows, key=lambda row: row["physical_offset"])
