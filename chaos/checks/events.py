"""What single events of a run say: of which step, whom they concern, in which role."""

from rocketbed.chaos.evidence.history import Event


def step_of(event: Event) -> str:
    """The step that an event tells of; empty for none."""
    return str(event.fields.get("step", ""))


def heals(event: Event, step: str) -> bool:
    """Whether an event ends what a step began."""
    return event.what == "heal" and step_of(event) in (step, "everything")


def targets_of(event: Event) -> list[str]:
    """Whom an event concerns."""
    targets = event.fields.get("targets", ())
    return [event.node] if event.node else [str(target) for target in targets]


def as_master(event: Event) -> bool:
    return event.fields.get("id") == 0 or event.fields.get("role") == "master"
