"""Every scenario that ships holds in its short form, in simulation."""

from contextlib import closing

from chaos.runner import run_many
from chaos.scenario.library import all_scenarios


def test_every_shipped_scenario_passes_in_short() -> None:
    families = [family for family in all_scenarios() if "sim" in family.backends]
    plans = [family.plan(1, quick=True) for family in families]
    with closing(run_many(plans, jobs=2)) as outcomes:
        verdicts = {
            outcome.plan.name: (outcome.verdict, outcome.finding_ids, outcome.error)
            for outcome in outcomes
        }
    assert verdicts == {family.name: ("pass", [], "") for family in families}
