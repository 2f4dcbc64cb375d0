"""Faults injected by hand into a cluster that no plan runs, recorded as a scenario.

The cluster of `rocketbed cluster` has names of its own; in the scenario its master is `b1`, its
slaves `b2` and so on, as in the testbed; those of a second group are `c1` and so on.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from rocketbed.chaos.plan.dump import plan_to_toml
from rocketbed.chaos.plan.plan import Plan, Shape
from rocketbed.chaos.plan.step import At, Step
from rocketbed.cluster.plan import ClusterPlan
from rocketbed.host.files import write_whole

FILE: Final = "watch.toml"
AFTER_S: Final = 10.0
"""Length of the fault phase after the last step."""
RECOVERY_S: Final = 20.0


class Notebook:
    """Steps with their times, in seconds since the watch began."""

    def __init__(self, cluster: ClusterPlan) -> None:
        nodes = [member.name for member in cluster.members if member.is_node]
        servers = [member.name for member in cluster.members if not member.is_node]
        groups = len(cluster.brokers)
        self._shape = Shape(
            brokers=len(nodes) // groups,
            groups=groups,
            nameservers=len(servers),
            flush=cluster.flush,
            repl="sync" if cluster.sync else "async",
            min_isr=cluster.in_sync_replicas,
            failover=cluster.failover and len(nodes) >= 3 * groups,
        )
        self.names = dict(zip(nodes, self._shape.nodes, strict=True))
        """Scenario names of the members."""
        self.names |= zip(servers, self._shape.nameserver_names, strict=True)
        self.steps: list[Step] = []

    def begin(self, verb: str, name: str, time_s: float, **words: bool) -> None:
        trigger, target = At(round(time_s, 3)), self.names[name]
        self.steps.append(Step(trigger=trigger, verb=verb, target=target, words=words))

    def end(self, verbs: Sequence[str], name: str, time_s: float) -> None:
        """End the last of these verbs on a member; without one, the call records a start."""
        for place in range(len(self.steps) - 1, -1, -1):
            step = self.steps[place]
            if step.verb in verbs and step.target == self.names[name] and step.for_s is None:
                lasted_s = max(round(time_s - step.at_s, 3), 0.001)
                self.steps[place] = replace(step, for_s=lasted_s)
                return
        if "kill" in verbs:
            self.begin("restart", name, time_s, down=True)

    def plan(self) -> Plan:
        ends = [step.at_s + (step.for_s or 0) for step in self.steps]
        return Plan(
            name="watch",
            seed=0,
            shape=self._shape,
            steps=tuple(self.steps),
            faults_s=round(max(ends, default=0.0) + AFTER_S, 3),
            recovery_s=RECOVERY_S,
        )

    def save(self, directory: Path) -> Path:
        """Write the scenario into the cluster's directory. Raises `OSError`."""
        path = directory / FILE
        description = "The faults that were injected by hand into a local cluster"
        write_whole(path, plan_to_toml(self.plan(), description=description))
        return path
