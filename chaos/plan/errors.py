"""The error of scenarios."""


class ScenarioError(Exception):
    """A scenario, a step or a replay file that cannot be used; the message says where and why."""
