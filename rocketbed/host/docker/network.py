"""Docker bridge networks with fixed addresses.

Docker accepts requests for addresses only in a network that was created with a given range. So
Docker first chooses a free range, and then a network is created with that range.
"""

from ipaddress import IPv4Network
from typing import Final

from rocketbed.host.docker.client import LABEL, Daemon, DockerError, asking
from rocketbed.host.docker.container import remove

FIRST_HOST: Final = 10
"""First host number used: Docker reserves the addresses below it."""
TRIES: Final = 10
"""Attempts, since another program may take the range between the two steps."""
OVERLAPS: Final = ("overlap", "conflicts with network")
"""Error texts of the daemon in that case."""


def hosts(subnet: str) -> list[str]:
    """Return the addresses of a range that containers can have."""
    return [str(host) for host in list(IPv4Network(subnet).hosts())[FIRST_HOST:]]


def make_network(daemon: Daemon, name: str, run_id: str) -> str:
    """Create a bridge and return its range, which was free. An existing one of this name is
    removed. Blocks.

    Raises `DockerError`.
    """
    with asking("no network for the containers"):
        if has_network(daemon, name):
            for row in daemon.containers(run_id):
                remove(daemon, row["Id"])
            daemon.api.remove_network(name)
    for number in range(TRIES):
        with asking("no network for the containers"):
            network = daemon.api.create_network(
                name, driver="bridge", labels={LABEL: run_id}, check_duplicate=True
            )["Id"]
            subnet = str(daemon.api.inspect_network(network)["IPAM"]["Config"][0]["Subnet"])
            daemon.api.remove_network(network)
        try:
            take_network(daemon, name, run_id, subnet)
        except DockerError as error:
            if not is_overlap(error) or number == TRIES - 1:
                raise
        else:
            return subnet
    raise AssertionError("the last try returns or raises")


def is_overlap(error: DockerError) -> bool:
    """True if a network was refused because another one has its addresses."""
    return any(words in str(error) for words in OVERLAPS)


def has_network(daemon: Daemon, name: str) -> bool:
    """True if a network of exactly this name exists (the daemon also finds longer names)."""
    return any(row["Name"] == name for row in daemon.api.networks(names=[name]))


def take_network(daemon: Daemon, name: str, run_id: str, subnet: str) -> None:
    """Create a bridge of this name and range if it does not exist. Blocks.

    Raises `DockerError`.
    """
    import docker.types

    with asking(f"no network for the containers on {subnet}"):
        if not has_network(daemon, name):
            ipam = docker.types.IPAMConfig(pool_configs=[docker.types.IPAMPool(subnet=subnet)])
            daemon.api.create_network(
                name, driver="bridge", labels={LABEL: run_id}, ipam=ipam, check_duplicate=True
            )
