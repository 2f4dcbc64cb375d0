"""What a run is to do: cluster, load, faults in time; written as text, TOML or Python."""

from rocketbed.chaos.scenario.errors import ScenarioError
from rocketbed.chaos.scenario.family import Family
from rocketbed.chaos.scenario.library import all_scenarios, load_scenario, scenario_names
from rocketbed.chaos.scenario.plan import Plan
from rocketbed.chaos.scenario.scenario import KiB, MiB, Scenario, family, ms, s
from rocketbed.chaos.scenario.verb_methods import Handle

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
