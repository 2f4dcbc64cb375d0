"""Runs so small that many of them take seconds, and how a generated mutant is named to them."""

from rocketbed.chaos.plan.plan import Consumers, Plan, Producers, Shape
from rocketbed.chaos.plan.step import parse_step
from tests.mutation.generated.draw import Generated, Source, candidates

SCENARIO = """
name = "tiny"
[cluster]
brokers = 1
nameservers = 1
repl = "async"
[load.producer]
count = 1
rate = 20
[recovery]
at = "FAULTS"
drain = "2s"
"""
"""FAULTS is for the test to set."""
LONE = Plan(
    name="lone",
    seed=1,
    shape=Shape(brokers=1, nameservers=1, flush="sync", repl="async"),
    producers=Producers(count=1, rate=8.0),
    consumers=Consumers(count=1),
    steps=(parse_step("at 1s powercut b1 for 300ms"),),
    faults_s=3.0,
    recovery_s=3.0,
)
"""A node that loses power once."""


def mutant(function: str, fragment: str, sources: list[Source]) -> Generated:
    """The one of a function that makes a text, with its surroundings."""
    return next(
        one
        for source in sources
        for one in candidates(source)
        if one.site.function == function and fragment in one.diff
    )
