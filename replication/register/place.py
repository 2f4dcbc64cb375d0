"""Location of a controller's register in settings: a file, or etcd."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from rocketbed.remoting.client import parse_address
from rocketbed.replication.register.cas import CasStore
from rocketbed.replication.register.sqlite import open_sqlite
from rocketbed.world.api import World

ETCD: Final = "etcd://"


def check_place(text: str) -> None:
    """Raise `ValueError` for a text that is neither a path nor `etcd://host:port,.../cluster`."""
    if text.startswith(ETCD):
        _etcd(text)
    elif "://" in text:
        raise ValueError(f"{text}: a file, or {ETCD}HOST:PORT[,HOST:PORT...]/CLUSTER")


@asynccontextmanager
async def open_register(world: World, text: str) -> AsyncIterator[CasStore]:
    """Open the store at such a location. Raises `CasError`."""
    if not text.startswith(ETCD):
        file = await open_sqlite(world, text)
        try:
            yield file
        finally:
            await file.aclose()
        return
    from rocketbed.replication.register.etcd import EtcdCas  # needs the extra `etcd`

    endpoints, cluster = _etcd(text)
    async with EtcdCas(world, endpoints, cluster) as store:
        yield store


def _etcd(text: str) -> tuple[list[tuple[str, int]], str]:
    hosts, _, cluster = text.removeprefix(ETCD).partition("/")
    if not cluster:
        raise ValueError(f"{text}: the cluster's name is missing: {ETCD}HOST:PORT/CLUSTER")
    return [parse_address(host) for host in hosts.split(",")], cluster
