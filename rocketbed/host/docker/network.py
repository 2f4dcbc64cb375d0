"""Bridges of Docker's with addresses that we give.

Docker takes wishes for addresses only on a network whose range was given to it. So it chooses a
free range first, and then gets that one.
"""

from ipaddress import IPv4Network
from typing import Final

from rocketbed.host.docker.client import LABEL, Daemon, DockerError, asking
from rocketbed.host.docker.container import remove

FIRST_HOST: Final = 10
"""First host number used: Docker reserves the addresses below it."""
TRIES: Final = 10
"""Somebody else may take the range between our two steps."""
OVERLAPS: Final = ("overlap", "conflicts with network")
"""What the daemon says then."""


def hosts(subnet: str) -> list[str]:
    """Addresses of a range that containers can have."""
    return [str(host) for host in list(IPv4Network(subnet).hosts())[FIRST_HOST:]]


def make_network(daemon: Daemon, name: str, run_id: str) -> str:
    """A new bridge; its range, which was free. One of this name from before goes. Blocks.

    Raises `DockerError`.
    """
    with asking("no network for the containers"):
        if has_network(daemon, name):
            for row in daemon.containers(run_id):
                remove(daemon, row["Id"])
            daemon.api.remove_network(name)
    for number in range(TRIES):
        with asking("no network for the containers"):
            made = daemon.api.create_network(
                name, driver="bridge", labels={LABEL: run_id}, check_duplicate=True
            )["Id"]
            subnet = str(daemon.api.inspect_network(made)["IPAM"]["Config"][0]["Subnet"])
            daemon.api.remove_network(made)
        try:
            take_network(daemon, name, run_id, subnet)
        except DockerError as error:
            if not is_overlap(error) or number == TRIES - 1:
                raise
        else:
            return subnet
    raise AssertionError("the last try returns or raises")


def is_overlap(error: DockerError) -> bool:
    """Whether a network was refused because somebody else has its addresses."""
    return any(words in str(error) for words in OVERLAPS)


def has_network(daemon: Daemon, name: str) -> bool:
    """Whether there is one of this very name (the daemon also finds those it is a part of)."""
    return any(row["Name"] == name for row in daemon.api.networks(names=[name]))


def take_network(daemon: Daemon, name: str, run_id: str, subnet: str) -> None:
    """Let there be a bridge of this name, made on this range if it is not there. Blocks.

    Raises `DockerError`.
    """
    import docker.types

    with asking(f"no network for the containers on {subnet}"):
        if not has_network(daemon, name):
            ipam = docker.types.IPAMConfig(pool_configs=[docker.types.IPAMPool(subnet=subnet)])
            daemon.api.create_network(
                name, driver="bridge", labels={LABEL: run_id}, ipam=ipam, check_duplicate=True
            )
