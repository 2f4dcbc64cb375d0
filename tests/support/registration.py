"""Header of a replica's registration at its controller, as tests need it."""

from typing import Any

from rocketbed.wire.headers_failover import RegisterReplicaRequest


def registration(**changes: Any) -> RegisterReplicaRequest:
    """Return a valid registration of replica 1 of group `g` with these changes."""
    values: dict[str, Any] = {
        "group": "g", "replica": 1, "uuid": "u", "incarnation": 4, "address": "a",
        "haAddress": "h", "lossless": True, "replicas": 3, "policy": "memory", "founds": True,
        "groupUid": "", "promised": 0, "epoch": 0, "end": 0, "op": "o",
    }  # fmt: skip
    return RegisterReplicaRequest(**(values | changes))
