"""The script of a store, whole, and dead at one of its disk events."""

from rocketbed.chaos.backends.sim.solo import SoloRun, run_solo
from tests.support.sim.store_oracle import crash_kind
from tests.support.sim.store_script import Ledger, config, script

MODES: dict[str, dict[str, object]] = {"async": {}, "sync": {"sync_flush": True}}


def whole_run(mode: str) -> int:
    """Events of the script when nothing crashes."""
    ledger = Ledger()
    run = run_solo(script, ledger, config(**MODES[mode]))
    assert run.outcome == "ended"
    assert ledger.closed
    return run.events


def crashed_run(mode: str, event: int, kind: str, seed: int = 0) -> tuple[SoloRun, Ledger]:
    """The script, dead at an event."""
    ledger = Ledger()
    cause, power_mode = crash_kind(kind)
    run = run_solo(
        script,
        ledger,
        config(**MODES[mode]),
        crash_at=event,
        kind=cause,
        mode=power_mode,
        seed=seed,
    )
    return run, ledger
