"""The pytest plugin on containers: the same test, faults, judgement; and a plain function."""

from pathlib import Path

import pytest

from tests.support.suites import EXAMPLE, run_suite

PLAIN = """
def test_plain(cluster, chaos):
    producer = cluster.producer("orders")
    with chaos.during(chaos.kill("leader")):
        producer.send_all(range(20), retry=True)
    cluster.settled()
    assert cluster.consumer("orders").read_all() == set(range(20))
"""


@pytest.mark.ci
@pytest.mark.slow
def test_tests_of_a_user_run_on_containers(tmp_path: Path, image: str) -> None:
    ran = run_suite(
        tmp_path, "--rb-backend", "docker", "--rb-budget", "3m", test_a=EXAMPLE, test_b=PLAIN
    )
    assert ran.counts() == {"passed": 2}, ran.text
