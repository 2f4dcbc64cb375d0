"""Check that executors write to the directory of the driver.

On a cluster, rows could silently go to a local directory of each machine; the driver would commit
the files in its own directory, which has none of them.
"""

import secrets
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rocketbed.pipeline.jobs.common import Job, WrongUsage

if TYPE_CHECKING:
    import pyarrow

LOOKS_PER_CORE: Final = 2
"""Tasks for each core; more than one, since Spark chooses the executor of a task."""


def check_shared(job: Job, directory: str | Path) -> None:
    """Check that executors on other machines see a new file of a directory.

    Raises `WrongUsage` if they do not, `OSError` if the file cannot be written here.
    """
    settings = job.settings
    if (settings.remote or settings.master).startswith("local"):
        return
    spark, count = job.spark, LOOKS_PER_CORE * job.cores
    token = Path(directory).absolute() / f"_rocketbed_{secrets.token_hex(6)}"
    token.touch()

    def look(batches: "Iterator[pyarrow.RecordBatch]") -> "Iterator[pyarrow.RecordBatch]":
        import pyarrow

        for _ in batches:
            hosts = [] if token.exists() else [socket.gethostname()]
            yield pyarrow.RecordBatch.from_pydict({"host": pyarrow.array(hosts, "string")})

    try:
        rows = spark.range(0, count, 1, count).mapInArrow(look, "host string").collect()
    finally:
        token.unlink()
    if rows:
        raise WrongUsage(
            f"{directory} on {', '.join(sorted({row.host for row in rows}))} is not the directory"
            " of this machine: give one that all machines share, or with `export` SCHEME://..."
        )
