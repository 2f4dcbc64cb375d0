"""Each rule of failover, taken away, loses something that the simulator sees (replication.md 7.18).

Each is pinned to a seed from which on it is shown soon: what anything takes longer moves it to
another one near. `SECOND_LINES` are those that no seed shows, each with the reason.
"""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from tests.support.sim.failover_rules import RULES, SECOND_LINES, find, run

CAUGHT = {
    "a lossy restart is told": (2, "I9"),
    "a loss is told until it is heard": (5, "I9"),
    "a restart ends membership": (0, "I9"),
    "the minimum is strict": (0, "acked-before-durable"),
    "under fsync the synced end counts": (7, "I5"),
    "all of both sets acknowledge": (0, "I8"),
    "only registered lives join": (2, "I10"),
    "a cut goes by epochs": (0, "I16"),
    "no epoch is empty": (14, "I21"),
    "the minimum is of the known set": (0, "acked-before-durable"),
    "a request ends by its answer only": (0, "I5"),
    "who joins has the marker": (53, "I5"),
    "an epoch is on disk before its bytes are acknowledged": (0, "7.10"),
    "a promise is on disk before anything is acknowledged": (0, "I17"),
}
"""Seed, and the invariant that it showed first."""
NEAR = 12
"""Seeds that are tried from that one on."""
ONCE = {
    (CAUGHT[name][0], rule.replicas, rule.course): name for name, rule in RULES.items()
}.values()
"""One rule of those that are caught by the same run, which is the same run with each of them."""
MENDED = (212,)
"""Seeds that have failed with all rules in place."""
FRESH = 10_000
SEEDS = 150


@pytest.mark.parametrize("name", RULES)
def test_a_rule_that_is_removed_is_missed(name: str) -> None:
    _, violation = find(RULES[name], CAUGHT[name][0], NEAR)
    assert violation


@pytest.mark.parametrize("name", ONCE)
def test_with_the_rule_nothing_is_lost(name: str) -> None:
    rule = RULES[name]
    assert not run(CAUGHT[name][0], replicas=rule.replicas, course=rule.course)


@pytest.mark.parametrize("seed", MENDED)
def test_former_failing_seeds_stay_fixed(seed: int) -> None:
    assert not run(seed)


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
def test_fresh_seeds_miss_it_too(name: str) -> None:
    _, violation = find(RULES[name], FRESH, SEEDS)
    assert violation, f"{SEEDS} seeds without a violation"


@pytest.mark.slow
@pytest.mark.parametrize("name", SECOND_LINES)
def test_a_second_line_is_not_missed(name: str) -> None:
    rule, _ = SECOND_LINES[name]
    seed, violation = find(rule, FRESH, SEEDS // 5)
    assert not violation, f"seed {seed}: {violation}; it belongs to RULES"


def test_with_all_rules_no_seed_loses_anything() -> None:
    seeds = range(FRESH, FRESH + 10)
    with ProcessPoolExecutor(mp_context=get_context("fork")) as pool:
        violations = pool.map(fresh, seeds, chunksize=4)
        lost = {seed: text for seed, text in zip(seeds, violations, strict=True) if text}
    assert not lost


def fresh(seed: int) -> str:
    """Return the violations of a group of two, or of three for an odd seed; empty for none."""
    return run(seed, replicas=2 + seed % 2)
