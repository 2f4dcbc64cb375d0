"""Settings that an operator changes under load: nodes report the value that they were
given."""

from dataclasses import dataclass, field

from rocketbed.chaos.checks.check import Case, Findings, NotApplicable, check
from rocketbed.chaos.checks.groups.reported_positions import UNDER_WAY_NS
from rocketbed.chaos.evidence.history import Event, Function

EVENTS = ("start", "setting_asked", "setting_changed", "setting_shown")


@dataclass(slots=True)
class _Setting:
    """Possible values of one setting of a node."""

    possible: set[str] = field(default_factory=set)
    at_start: str | None = None
    """Value after the next start; None if unknown."""
    is_as_at_start: bool = True
    """True if no other value was requested since the node's start."""
    pending: list[tuple[int, str]] = field(default_factory=list)
    """Requests without an answer so far, with their begin."""

    def begin(self, event: Event) -> None:
        self.possible = set() if self.at_start is None else {self.at_start}
        if self.possible:
            self.possible |= self._under_way(event.time_ns)
        self.is_as_at_start = not self._under_way(event.time_ns)

    def request(self, event: Event) -> None:
        value = str(event.fields["value"])
        self.pending.append((int(event.fields["began_ns"]), value))
        self.is_as_at_start = False
        if self.possible:
            self.possible.add(value)

    def change(self, event: Event, life_ns: int) -> None:
        value = str(event.fields["value"])
        began_ns, _ = self.pending.pop()
        if began_ns >= life_ns:
            self.possible = {value} | self._under_way(event.time_ns)
        # Else the process that answered has ended since.

    def report(self, event: Event) -> None:
        value = str(event.fields["value"])
        if self.is_as_at_start:
            self.at_start = value
        self.possible = {value} | self._under_way(event.time_ns)

    def _under_way(self, time_ns: int) -> set[str]:
        return {value for began_ns, value in self.pending if began_ns >= time_ns - UNDER_WAY_NS}


@check("settings-kept", "answers about settings")
def settings_kept(case: Case, findings: Findings) -> int:
    """A running node reports the last value that a setting was given, and after a start the
    configured one, which it reports itself before the first change."""
    evidence = case.evidence
    settings: dict[tuple[str, str], _Setting] = {}
    start_times: dict[str, int] = {}
    examined = 0
    for event in evidence.events(Function.NODE, *EVENTS):
        node = event.node
        if event.kind == "start":
            start_times[node] = event.time_ns
            for (setting_node, _), setting in settings.items():
                if setting_node == node:
                    setting.begin(event)
            continue
        key = str(event.fields["key"])
        setting = settings.setdefault((node, key), _Setting())
        if event.kind == "setting_asked":
            setting.request(event)
        elif event.kind == "setting_changed":
            setting.change(event, start_times.get(node, -1))
        elif int(event.fields["began_ns"]) >= start_times.get(
            node, -1
        ):  # else from an earlier process
            examined += 1
            if setting.possible and event.fields["value"] not in setting.possible:
                possible = " or ".join(sorted(setting.possible))
                findings.add(
                    f"{node} said at {event.time_ns / 1e9:.3f} s that {key} is"
                    f" {event.fields['value']}, and it is {possible} by what it was told",
                    node=node,
                )
            setting.report(event)
    if not settings:
        raise NotApplicable("no setting was changed")
    return examined
