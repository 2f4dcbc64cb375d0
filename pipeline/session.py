"""The Spark session of the jobs: every setting that the pipeline needs, in one place."""

import os
import socket
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rocketbed.host.extras import install_command
from rocketbed.pipeline.errors import SparkMissing
from rocketbed.pipeline.java import prepare_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOPBACK: Final = "127.0.0.1"
DEFAULTS: Final[dict[str, str]] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    # Spark matches its own long error texts with a regular expression that recurses.
    "spark.driver.extraJavaOptions": "-Xss8m",
}
LOCAL: Final[dict[str, str]] = {
    "spark.driver.host": LOOPBACK,
    "spark.driver.bindAddress": LOOPBACK,
}
PORTS: Final = {"spark": 7077, "sc": 15002}
ANSWER_S: Final = 5.0
ARCHIVES: Final = "spark.archives"
PYTHONPATH: Final = "spark.executorEnv.PYTHONPATH"
UNPACKED: Final = "rocketbed_archive"
"""Folder below the working directory of an executor where it unpacks the archive."""


def build_session(
    name: str = "rocketbed",
    *,
    master: str = "local[*]",
    remote: str = "",
    conf: Mapping[str, str] | None = None,
    archive: str = "",
) -> "SparkSession":
    """A session that reads `rocketbed` stores; the running one if there is one.

    `master` is Spark's (`local[2]`, `spark://host:7077`); `remote` a Spark Connect address
    (`sc://host:15002`, `local[2]`), which then counts instead. `conf` goes over the defaults.
    `archive` has rocketbed for executors that do not (docs/guides/spark.md, "Deploying").
    Raises `SparkMissing`.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as exc:
        raise SparkMissing(f"Spark is not installed: {install_command('spark')}") from exc
    if remote and find_spec("grpc") is None:
        raise SparkMissing(f"Spark Connect needs grpcio: {install_command('connect')}")
    settings = DEFAULTS | dict(conf or {})
    is_local = master.startswith("local") and not remote
    if archive and not is_local:
        settings |= unpacked(archive, settings)
        name_python(os.environ)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if is_local:
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
        partitions = str(max(2, 2 * _cores(master)))
        settings = LOCAL | {"spark.sql.shuffle.partitions": partitions} | settings
    if not remote or remote.startswith("local"):
        prepare_java()
    refuse_silent(remote or master)
    builder = SparkSession.builder.appName(name)
    builder = builder.remote(remote) if remote else builder.master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        return builder.getOrCreate()
    except Exception as exc:
        raise SparkMissing(f"Spark does not start with {remote or master}: {exc}") from exc


def unpacked(archive: str, settings: Mapping[str, str]) -> dict[str, str]:
    """Settings that make every executor unpack the archive and import from it first."""
    separators = {ARCHIVES: ",", PYTHONPATH: ":"}
    ours = {ARCHIVES: f"{archive}#{UNPACKED}", PYTHONPATH: UNPACKED}
    return {
        name: separator.join(filter(None, (ours[name], settings.get(name))))
        for name, separator in separators.items()
    }


def name_python(environment: MutableMapping[str, str]) -> None:
    """Set the name of Python for all machines: Spark starts a data source by the same name on
    executors and here, where it must lead to this Python."""
    if not {"PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"} & environment.keys():
        environment["PYSPARK_PYTHON"] = "python{}.{}".format(*sys.version_info)
        here = [str(Path(sys.executable).parent), environment.get("PATH", os.defpath)]
        environment["PATH"] = os.pathsep.join(here)


def refuse_silent(address: str) -> None:
    """Raise `SparkMissing` if nothing listens at a `spark://` or `sc://` address.

    Spark itself would try again for minutes.
    """
    kind, _, location = address.partition("://")
    if kind not in PORTS:
        return
    servers = [one.partition("/")[0] for one in location.split(",")]
    for server in servers:
        host, _, port = server.partition(":")
        try:
            with socket.create_connection((host, int(port or PORTS[kind])), ANSWER_S):
                return
        except (OSError, ValueError):
            continue
    raise SparkMissing(f"nothing listens at {address}: is it started, and the address right?")


def _cores(master: str) -> int:
    """Slots of a `local[n]` master."""
    inside = master.partition("[")[2].rstrip("]").partition(",")[0]
    return int(inside) if inside.isdigit() else len(os.sched_getaffinity(0))


@contextmanager
def configured(spark: "SparkSession", settings: Mapping[str, str]) -> Iterator[None]:
    """A session with other settings, for the time inside."""
    before: dict[str, str | None] = {name: spark.conf.get(name, None) for name in settings}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)
