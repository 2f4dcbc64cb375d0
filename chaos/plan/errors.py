"""What is wrong with a scenario."""


class ScenarioError(Exception):
    """A scenario, a step or a replay file that cannot be used; the message says where and why."""
