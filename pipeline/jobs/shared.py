"""Whether executors write where the driver looks.

On a cluster a directory of each machine's own takes its part of the rows, in silence: the driver
would commit what it finds in its own directory, which is nothing.
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
"""Nobody can tell Spark which executor a task is for; so some more than there are."""


def check_shared(job: Job, directory: str | Path) -> None:
    """Look for a new file of a directory from executors, if they are elsewhere.

    Raises `WrongUsage`, `OSError` when it cannot be written here.
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
