"""Cutting hosts of a simulation from each other, and mending all links."""

from itertools import permutations

from rocketbed.chaos.backends.sim.network import Network


def cut(network: Network, host: str, peer: str, *, both_ways: bool = True) -> None:
    """Cut hosts (by name) from each other."""
    network.between(host, peer).cut = True
    if both_ways:
        network.between(peer, host).cut = True


def heal(network: Network) -> None:
    """Mend all links; what was held back arrives now."""
    pairs = list(permutations(network.addresses, 2))
    for host, peer in pairs:
        network.between(host, peer).cut = False
    network.changed(*pairs[0])
