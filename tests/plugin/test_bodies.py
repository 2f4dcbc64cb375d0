"""A body on a simulated cluster: what runs, what a failure says, and that it can be had again."""

import json
from pathlib import Path

import pytest

from tests.support.suites import EXAMPLE, run_pytest, run_suite

pytestmark = pytest.mark.slow

FAILS = """
pytestmark = pytest.mark.rocketbed(seeds=2)

async def test_down(cluster, chaos, rb_seed):
    note = {"seed": rb_seed}
    print("said by the body")
    await chaos.pause("follower:any", for_=1.0)
    await chaos.kill("b3")
    await trio.sleep(60)
    assert cluster.state("b3") == "running", note
"""


@pytest.mark.ci
@pytest.mark.parametrize("options", [(), ("-p", "no:trio"), ("-o", "trio_mode=true")])
def test_example_works_with_and_without_pytest_trio(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    ran = run_suite(tmp_path, "--rb-seeds", "3", *options, test_orders=EXAMPLE)
    assert ran.counts() == {"passed": 3}, ran.text
    assert not (tmp_path / ".rocketbed").exists()


@pytest.mark.ci
def test_failure_is_reported_with_its_replay_command(tmp_path: Path) -> None:
    ran = run_suite(tmp_path, "-q", test_down=FAILS)
    assert ran.counts() == {"failed": 2}, ran.text
    assert 'assert cluster.state("b3") == "running", note' in ran.text
    assert "AssertionError: {'seed': 2}" in ran.text
    assert "assert 'down' == 'running'" in ran.text
    assert "said by the body" in ran.text
    assert "seed 1 on sim, 6" in ran.text
    assert "cluster: 3 nodes, async flush, 2 copies, no background faults" in ran.text
    assert "steps:   at 0s kill b3" in ran.text
    assert "shrunk from 2 to 1 steps" in ran.text
    line = next(line for line in ran.text.splitlines() if line.startswith("replay: pytest "))
    options = line.removeprefix("replay: pytest ").split()
    replayed = run_pytest(tmp_path, "-q", *options)
    assert replayed.counts() == {"failed": 1}, replayed.text
    assert "the replay is identical to the last event" in replayed.text
    assert "test_down[sim-1]" in replayed.text


def test_replay_leaves_out_shrunk_steps_and_reports_a_pass(
    tmp_path: Path,
) -> None:
    run_suite(tmp_path, "-q", test_down=FAILS)
    file = ".rocketbed/FAIL-test_down-test_down-sim-1.rbx"
    row = json.loads((tmp_path / file).read_text())
    assert row["test"]["left_out"] == [1]
    assert row["finding"].startswith("AssertionError:")
    mended = FAILS.replace('== "running"', '== "down"')
    ran = run_suite(tmp_path, "-q", "--rb-replay", file, test_down=mended)
    assert ran.counts()["passed"] == 1, ran.text
    assert "the replay passed; the file has AssertionError" in ran.text


def test_runs_are_kept_as_asked(tmp_path: Path) -> None:
    suite = "async def test_one(cluster, rb_report):\n    (rb_report / 'own.txt').write_text('x')\n"
    run_suite(tmp_path, "--rb-keep", "all", "--rb-report", "kept", test_one=suite)
    place = tmp_path / "kept" / "test_one-test_one-sim-1"
    assert (place / "own.txt").read_text() == "x"
    assert (place / "history.rbh").stat().st_size > 0
    run_suite(
        tmp_path,
        "--rb-keep",
        "none",
        "--rb-report",
        "none",
        test_down=FAILS.replace("sleep(60)", "sleep(1)"),
    )
    assert not (tmp_path / "none" / "test_down-test_down-sim-1").exists()


def test_outcomes_of_pytest_stay_what_they_are(tmp_path: Path) -> None:
    suite = """
async def test_skip(cluster):
    pytest.skip("not today")

async def test_xfail(cluster):
    pytest.xfail("known")

@pytest.mark.xfail(raises=ValueError, strict=True)
async def test_marked(cluster):
    raise ValueError

async def test_group(cluster):
    async with trio.open_nursery():
        raise KeyError("inner")
"""
    ran = run_suite(tmp_path, "-rs", test_outcomes=suite)
    assert ran.counts() == {"failed": 1, "skipped": 1, "xfailed": 2}, ran.text
    assert "test_outcomes.py:4: not today" in ran.text
    assert "KeyError: 'inner'" in ran.text


def test_user_fixtures_run_in_the_bodys_process(tmp_path: Path) -> None:
    suite = """
@pytest.fixture
def base():
    return 10

@pytest.fixture
async def producer(cluster, base):
    made = await cluster.producer("orders")
    await made.send_all(range(base))
    yield made
    assert cluster.state("b1") == "running"
    print("producer given back")

@pytest.fixture
def doubled(producer):
    yield [producer, producer]
    print("pair given back")

@pytest.fixture
def reader(cluster):
    class Reader:
        async def read(self):
            return await (await cluster.consumer("orders")).read_all()
    return Reader()

async def test_all(doubled, reader, base, rb_backend):
    assert doubled[0] is doubled[1] and rb_backend == "sim"
    assert await reader.read() == set(range(base))
    assert False
"""
    ran = run_suite(tmp_path, "-o", "trio_mode=true", test_fixtures=suite)
    assert ran.counts() == {"failed": 1}, ran.text
    assert ran.text.index("pair given back") < ran.text.index("producer given back")


def test_hang_ends_with_its_place(tmp_path: Path) -> None:
    suite = """
async def deep():
    await trio.sleep_forever()

async def test_waits(cluster):
    await deep()

async def test_spins(cluster):
    while True:
        pass

async def test_child_waits(cluster):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(deep)
"""
    ran = run_suite(tmp_path, "--rb-budget", "2s", test_hang=suite)
    assert ran.counts() == {"failed": 3}, ran.text
    place = "test_hang.py:5 in deep, waiting in sleep_forever"
    assert ran.text.count(f"it was at {place}") == 1, ran.text
    assert "test_hang.py:11 in test_spins, not awaiting" in ran.text
    assert f"; and {place}" in ran.text


def test_body_that_kills_its_process_is_a_failure(tmp_path: Path) -> None:
    suite = """
import os, signal

async def test_dies(cluster):
    os.kill(os.getpid(), signal.SIGKILL)

async def test_exits(cluster):
    os._exit(7)

async def test_lives(cluster):
    assert cluster.nodes == ["b1", "b2", "b3"]
"""
    ran = run_suite(tmp_path, test_dies=suite)
    assert ran.counts() == {"failed": 2, "passed": 1}, ran.text
    assert "the process of the test ended by SIGKILL" in ran.text
    assert "the process of the test ended with code 7" in ran.text


def test_x_k_and_lf_are_pytests_own(tmp_path: Path) -> None:
    suite = FAILS.replace("sleep(60)", "sleep(1)")
    run_suite(tmp_path, "--collect-only", test_down=suite)
    with_cache = ("-p", "cacheprovider", "-q", "--no-rb-shrink")
    ran = run_pytest(tmp_path, *with_cache, "-x")
    assert ran.counts() == {"failed": 1}, ran.text
    ran = run_pytest(tmp_path, *with_cache, "--lf")
    assert "test_down[sim-1]" in ran.text
    assert "test_down[sim-2]" not in ran.text
    ran = run_pytest(tmp_path, *with_cache, "-k", "sim-2")
    assert "1 deselected" in ran.text


def test_debugger_runs_in_pytests_own_process(tmp_path: Path) -> None:
    conftest = """
import pdb

class Recorder(pdb.Pdb):
    def interaction(self, frame, traceback):
        while traceback.tb_next:
            traceback = traceback.tb_next
        print("DEBUGGER IN", traceback.tb_frame.f_code.co_name, traceback.tb_frame.f_locals["note"])
"""
    ran = run_suite(
        tmp_path, "--pdb", "--pdbcls=conftest:Recorder", "-x", conftest=conftest, test_down=FAILS
    )
    assert "DEBUGGER IN test_down {'seed': 1}" in ran.text
    assert ran.counts() == {"failed": 1}, ran.text
