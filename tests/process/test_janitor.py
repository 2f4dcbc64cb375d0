"""Nothing stays behind: records, sweeps, the reaper, a harness that gets SIGKILL."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rocketbed.host import loop_device as volume_loop
from rocketbed.host.janitor import processes as janitor_processes
from rocketbed.host.janitor.processes import (
    MARK,
    began,
    is_alive,
    kill_marked,
    marked,
    wait_gone,
)
from rocketbed.host.janitor.record import OWNER, RECORDS, Ledger, owner_is_dead, sweep

SLEEPER = "import time\nwhile True: time.sleep(60)"

HARNESS = """
import os, subprocess, sys, time
from pathlib import Path
from rocketbed.host.janitor.record import Ledger

run = Ledger.begin(Path(sys.argv[1]))
kept = run.directory / "kept"
run.note("directory", kept)
kept.mkdir()
environment = {**os.environ, **run.environment()}
child = subprocess.Popen([sys.executable, "-c", "import time\\nwhile True: time.sleep(60)"],
                         env=environment, start_new_session=True, stdout=subprocess.DEVNULL)
more = []
if sys.argv[2] == "root":
    from bench.limits import DiskLimit, MemoryLimit
    from rocketbed.chaos.backends.process.machine.limits import CpuLimit
    from rocketbed.chaos.backends.process.disk.volume import Volume
    for name in ("b1", "b2", "b3"):
        volume = Volume.create(run.directory / name, run=run, size=16 << 20)
        DiskLimit(volume, run=run, write_bytes_per_s=1 << 20)
    writer = subprocess.Popen(
        [sys.executable, "-c", "import time; f = open('x', 'wb'); f.write(b'x')\\n"
         "f.flush(); print(1, flush=True)\\nwhile True: time.sleep(60)"],
        env=environment, cwd=volume.path, stdout=subprocess.PIPE)
    writer.stdout.readline()
    memory = MemoryLimit("b1", run=run, limit=256 << 20)
    memory.add(writer.pid)
    cpu = CpuLimit("b1", run=run, share=0.5)
    cpu.add(child.pid)
    more = [str(memory.path), str(cpu.path)]
print(run.directory, child.pid, *more, flush=True)
sys.stdin.read()
"""


def start_harness(root: Path, how: str) -> tuple[subprocess.Popen[str], list[str]]:
    harness = subprocess.Popen(
        [sys.executable, "-P", "-c", HARNESS, str(root), how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert harness.stdout is not None
    return harness, harness.stdout.readline().split()


def end_harness(harness: subprocess.Popen[str]) -> None:
    harness.kill()
    harness.communicate()


def dead_run(root: Path) -> Path:
    """The directory of a run whose owner is gone, without a reaper."""
    run = Ledger.begin(root, guard=False)
    owner = json.loads((run.directory / OWNER).read_text())
    owner["began"] -= 1
    (run.directory / OWNER).write_text(json.dumps(owner))
    return run.directory


def gone_within(path: Path, seconds: float) -> bool:
    """True if a run directory, the last thing to be removed, is removed in time."""
    until = time.monotonic() + seconds
    while path.exists() and time.monotonic() < until:
        time.sleep(0.005)
    return not path.exists()


def test_a_run_takes_its_directory_along(tmp_path: Path) -> None:
    with Ledger.begin(tmp_path, guard=False) as run:
        (run.directory / "file").write_text("x")
        outside = tmp_path / "outside"
        run.note("directory", outside)
        outside.mkdir()
        (outside / "deep").mkdir()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="is over"):
        run.note("file", "x")


def test_forgotten_objects_stay(tmp_path: Path) -> None:
    with Ledger.begin(tmp_path / "runs", guard=False) as run:
        mine = tmp_path / "mine"
        mine.mkdir()
        run.forget(run.note("directory", mine))
        with pytest.raises(ValueError, match="unknown kind of record mounts"):
            run.note("mounts", "x")
    assert mine.exists()


def test_a_sweep_touches_dead_owners_only(tmp_path: Path) -> None:
    with Ledger.begin(tmp_path, guard=False) as alive:
        dead = dead_run(tmp_path)
        (tmp_path / "stranger").mkdir()
        assert owner_is_dead(dead)
        assert not owner_is_dead(alive.directory)
        swept = sweep(tmp_path)
        assert [one.run_id for one in swept] == [dead.name]
        assert alive.directory.exists()
        assert not dead.exists()
        assert (tmp_path / "stranger").exists()


def test_reused_pid_is_left_alone(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", SLEEPER]) as stranger:
        dead = dead_run(tmp_path)
        with (dead / RECORDS).open("a") as file:
            row = {
                "number": 1,
                "kind": "process",
                "value": f"{stranger.pid} {began(stranger.pid) - 1}",
            }
            file.write(json.dumps(row) + "\n" + '{"number": 2, "ki')
        assert sweep(tmp_path)[0].removed == []
        assert stranger.poll() is None
        stranger.kill()


def test_a_recorded_process_without_a_mark_is_ended(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", SLEEPER]) as child:
        with Ledger.begin(tmp_path, guard=False) as run:
            run.note("process", f"{child.pid} {began(child.pid)}")
        assert child.wait(10) == -signal.SIGKILL
        assert not is_alive(child.pid, 0)


def test_grandchildren_have_the_mark_too(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, os\n"
        f"p = subprocess.Popen([sys.executable, '-c', {SLEEPER!r}], "
        "start_new_session=True, stdout=subprocess.DEVNULL)\n"
        "print(p.pid, flush=True)\n"
    )
    with Ledger.begin(tmp_path, guard=False) as run:
        environment = {**os.environ, **run.environment()}
        output = subprocess.run(
            [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, check=True
        ).stdout
        assert list(marked(run.id)) == [int(output)]
        swept = run.close()
    assert swept.removed == [f"process {int(output)}"]
    assert wait_gone([int(output)], 10.0) == []


def test_unmarked_child_of_a_marked_process_is_ended(tmp_path: Path) -> None:
    """A daemon starts a container's program in this way; children of others are left alone."""
    script = "env -u ROCKETBED_RUN sleep 1000 & echo $!; exec sleep 1000"
    with Ledger.begin(tmp_path / "runs", guard=False) as run:
        marked = {**os.environ, **run.environment()}
        ours = subprocess.Popen(["sh", "-c", script], env=marked, stdout=subprocess.PIPE, text=True)
        stranger = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, text=True)
        assert ours.stdout is not None
        assert stranger.stdout is not None
        child, strangers = int(ours.stdout.readline()), int(stranger.stdout.readline())
        run.close()
        assert ours.wait() == -signal.SIGKILL
        assert wait_gone([child], 10.0) == []
        assert is_alive(strangers, began(strangers))
        os.kill(strangers, signal.SIGKILL)
        stranger.kill()
        stranger.wait()
        ours.stdout.close()
        stranger.stdout.close()


def test_process_that_execs_during_the_sweep_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It had the mark when it was found; its new program was given an environment without."""
    with subprocess.Popen([sys.executable, "-c", SLEEPER]) as marked_process:
        monkeypatch.setattr(janitor_processes, "marked", lambda run_id: iter([marked_process.pid]))
        assert kill_marked("a-run") == [marked_process.pid]
        assert marked_process.wait(10) == -signal.SIGKILL


def test_run_of_another_boot_is_dead(
    tmp_path: Path,
) -> None:
    with Ledger.begin(tmp_path, guard=False) as run:
        path = run.directory / OWNER
        owner = json.loads(path.read_text())
        path.write_text(json.dumps({**owner, "pid_namespace": 1, "began": 1}))
        assert not owner_is_dead(run.directory)
        path.write_text(json.dumps({**owner, "boot": "another"}))
        assert owner_is_dead(run.directory)
        path.write_text("{")
        assert not owner_is_dead(run.directory)


def test_unborn_directory_of_a_dead_maker_is_swept(tmp_path: Path) -> None:
    unborn = tmp_path / f".{os.getpid()}-1-abcd"
    unborn.mkdir()
    being_born = tmp_path / f".{os.getpid()}-{began(os.getpid())}-abcd"
    being_born.mkdir()
    sweep(tmp_path)
    assert not unborn.exists()
    assert being_born.exists()


def test_reaper_knows_a_directory_under_construction(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from rocketbed.host.janitor.record import Ledger\n"
        "def rename(self, other):\n"
        "    print(self, flush=True)\n"
        "    sys.stdin.read()\n"
        "Path.rename = rename\n"
        "Ledger.begin(Path(sys.argv[1]))\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as harness:
        assert harness.stdout is not None
        unborn = Path(harness.stdout.readline().decode().strip())
        assert unborn.parent == tmp_path
        assert unborn.exists()
        harness.kill()
    assert gone_within(unborn, 10.0)


def test_reaper_cleans_up_after_a_killed_harness(tmp_path: Path) -> None:
    harness, (directory, pid) = start_harness(tmp_path, "plain")
    child = int(pid)
    ticks = began(child)
    end_harness(harness)
    assert gone_within(Path(directory), 10.0)
    assert not is_alive(child, ticks)
    assert list(marked(Path(directory).name)) == []


def test_the_reaper_goes_when_the_run_is_over(tmp_path: Path) -> None:
    with Ledger.begin(tmp_path) as run:
        reapers = reapers_of(run.directory)
        assert len(reapers) == 1
        environment = Path(f"/proc/{reapers[0]}/environ").read_bytes()
        assert f"{MARK}=".encode() not in environment
    assert wait_gone(reapers, 10.0) == []


def reapers_of(directory: Path) -> list[int]:
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"rocketbed.host.janitor.reaper" in command and os.fsencode(directory) in command:
                pids.append(int(entry.name))
    return pids


@pytest.mark.slow
def test_harness_leaves_no_mounts_groups_or_processes(tmp_path: Path) -> None:
    harness, (directory, pid, *groups) = start_harness(tmp_path, "root")
    run_directory, child = Path(directory), int(pid)
    ticks = began(child)
    images = [run_directory / name / "volume.img" for name in ("b1", "b2", "b3")]
    assert all(volume_loop.devices_of(image) for image in images)
    numbers = [os.stat(volume_loop.devices_of(image)[0]).st_rdev for image in images]
    at = time.monotonic()
    end_harness(harness)
    assert gone_within(run_directory, 10.0)
    print(f"clean {time.monotonic() - at:.2f} s after SIGKILL")
    assert not is_alive(child, ticks)
    assert list(volume_loop.mounts_at_or_below(run_directory)) == []
    assert not any(volume_loop.devices_of(image) for image in images)
    assert not any(Path(group).exists() for group in groups)
    rules = Path("/sys/fs/cgroup/blkio/blkio.throttle.write_bps_device").read_text().split()
    assert not any(f"{os.major(one)}:{os.minor(one)}" in rules for one in numbers)
