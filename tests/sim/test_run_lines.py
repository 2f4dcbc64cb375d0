"""Lines of a run as it happens: their units and their order."""

from pathlib import Path

from rocketbed.chaos.backends.sim.run import run_in_simulation
from rocketbed.chaos.plan.plan import Consumers, Plan, Producers, Shape
from rocketbed.chaos.run.conductor import Conductor

PLAN = Plan(
    name="lines",
    seed=7,
    shape=Shape(brokers=1, nameservers=1, repl="async"),
    producers=Producers(count=1, rate=5),
    consumers=Consumers(count=1),
    faults_s=2.0,
    recovery_s=1.0,
)


class SlowStep(Conductor):
    """Reports a step that began before the last line."""

    async def _recovery_phase(self) -> None:
        self._tell("recovering")
        self._tell("kill b1", 1.5)
        await super()._recovery_phase()


def test_lines_have_units_and_are_in_order(tmp_path: Path) -> None:
    lines: list[str] = []
    run_in_simulation(PLAN, tmp_path, say=lines.append, conductor=SlowStep)
    assert lines[0] == "lines, seed 7: about 3 simulated seconds; the times below are simulated"
    times = [float(line.split()[0]) for line in lines[1:]]
    assert times == sorted(times)
    assert "   2.00 s  kill b1 (begun at 1.50 s)" in lines
