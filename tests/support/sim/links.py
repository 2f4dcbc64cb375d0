"""Cutting hosts of a simulation from each other, and mending all links."""

from itertools import permutations

from rocketbed.chaos.backends.sim.network import Network


def cut(network: Network, one: str, other: str, *, both_ways: bool = True) -> None:
    """Cut hosts (by name) from each other."""
    network.between(one, other).cut = True
    if both_ways:
        network.between(other, one).cut = True


def heal(network: Network) -> None:
    """Mend all links; what was held back arrives now."""
    pairs = list(permutations(network.addresses, 2))
    for one, other in pairs:
        network.between(one, other).cut = False
    network.changed(*pairs[0])
