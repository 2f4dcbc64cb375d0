"""Plans of runs: cluster, load, faults in time; written as text, TOML or Python."""

from rocketbed.chaos.plan.errors import ScenarioError
from rocketbed.chaos.plan.family import Family
from rocketbed.chaos.plan.library import all_scenarios, load_scenario, scenario_names
from rocketbed.chaos.plan.plan import Plan
from rocketbed.chaos.plan.scenario import KiB, MiB, Scenario, family, ms, s
from rocketbed.chaos.plan.verb_methods import Handle

__all__ = [
    "Family",
    "Handle",
    "KiB",
    "MiB",
    "Plan",
    "Scenario",
    "ScenarioError",
    "all_scenarios",
    "family",
    "load_scenario",
    "ms",
    "s",
    "scenario_names",
]
