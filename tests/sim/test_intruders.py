"""Hostile peers reach what they are to trouble, and nothing comes of it."""

from rocketbed.chaos.backends.sim.clock import SECOND
from rocketbed.chaos.plan.toml import read_toml
from rocketbed.chaos.search.runner import run_plan

FORGED = """
name = "forged"
description = "Somebody comes in the names of all replicas"
steps = ["at 1s hostile leader for 8s"]

[cluster]
brokers = 3
repl = "sync"
min_isr = 2
failover = true

[load.producer]
count = 1
rate = 10

[recovery]
at = "10s"
drain = "3s"

[expect]
loss = "none"
"""


def test_impersonated_replica_is_believed_and_does_no_harm() -> None:
    outcome = run_plan(read_toml(FORGED, "forged.toml").plan(1))
    assert outcome.verdict == "pass", outcome.error or outcome.finding_ids
    assert outcome.record is not None
    reached = {point.partition(" ")[0] for point in outcome.facts["points"]}
    believed = {"leader.fenced", "leader.follower_lost", "member.link_lost"}
    assert believed | {"leader.follower_refused"} <= reached
    outages = outcome.record.facts["outages"]
    assert all(end - begin < 2 * SECOND for _, begin, end in outages), outages
