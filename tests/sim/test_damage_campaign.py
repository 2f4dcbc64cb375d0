"""Every damage to every class of bytes of a small store, after every kind of stop."""

import pytest

from tests.support.sim.damage import SAMPLE, Case, cases, explained, outcome, stores, table


def run(step: int) -> dict[Case, str]:
    images = stores()
    return {case: outcome(case, images) for case in list(cases(images))[::step]}


def assert_sound(outcomes: dict[Case, str]) -> None:
    silent = [
        f"{case.stop}: {case.alteration}: {text}"
        for case, text in outcomes.items()
        if text.startswith("SILENT") and not explained(case)
    ]
    assert silent == []
    dumb = [
        f"{case.stop}: {case.alteration}: {text}"
        for case, text in outcomes.items()
        if text.startswith("refused") and "/store" not in text
    ]
    assert dumb == [], "a refusal names what it is about"


def test_a_sample_of_all_damages() -> None:
    assert_sound(run(SAMPLE))


@pytest.mark.slow
def test_every_kind_of_damage() -> None:
    outcomes = run(1)
    for stop, counts in table(outcomes).items():
        print(stop, dict(counts))
    assert_sound(outcomes)
