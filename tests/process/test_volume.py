"""Volumes of real ext4: what a cut takes and keeps, full, gone."""

import errno
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketbed.chaos.backends.process.disk.volume import FILLER, Volume, check_power_cut
from rocketbed.host import loop_device as volume_loop
from rocketbed.host.errors import HostError
from rocketbed.host.janitor.record import Ledger
from rocketbed.world.real import real_world

pytestmark = pytest.mark.slow


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.begin(tmp_path / "runs", guard=False) as run:
        yield run


@pytest.fixture
def volume(run: Ledger) -> Iterator[Volume]:
    volume = Volume.create(run.directory / "b1", run=run, size=32 << 20)
    yield volume
    volume.destroy()


def write(path: Path, data: bytes, *, sync: bool) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        if sync:
            os.fsync(file.fileno())


@pytest.mark.ci
def test_the_self_test_passes(volume: Volume) -> None:
    assert check_power_cut(volume) == ""


@pytest.mark.ci
def test_cut_keeps_synced_data_and_loses_the_rest(volume: Volume) -> None:
    write(volume.path / "log", b"s" * 8192, sync=True)
    with (volume.path / "log").open("r+b") as file:
        file.seek(4096)
        file.write(b"d" * 4096)
        file.flush()
        write(volume.path / "never", b"x", sync=False)
        volume.power_cut()
        with pytest.raises(OSError, match="Input/output error"):
            os.fsync(file.fileno())
    volume.remount()
    assert (volume.path / "log").read_bytes() == b"s" * 8192
    assert not (volume.path / "never").exists()


def test_process_killed_after_the_cut_saves_nothing(volume: Volume) -> None:
    code = (
        "import os, sys\n"
        "f = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)\n"
        "os.write(f, b'a' * 4096); os.fsync(f); os.write(f, b'b' * 4096)\n"
        "print('ready', flush=True)\n"
        "sys.stdin.read()\n"
    )
    target = volume.path / "file"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(target)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        began = time.perf_counter()
        volume.power_cut()
        child.kill()
        volume.remount()
        seconds = time.perf_counter() - began
    assert target.read_bytes().strip(b"\0") == b"a" * 4096
    print(f"kill, cut and remount: {1000 * seconds:.1f} ms")


def test_remount_names_the_process_that_blocks_it(volume: Volume) -> None:
    with (volume.path / "held").open("wb"):
        volume.power_cut()
        with pytest.raises(HostError, match="end the processes that use it"):
            volume.remount(timeout_s=0.01)
    volume.remount()


def test_full_and_free_again(volume: Volume) -> None:
    filled = volume.fill()
    assert filled > 16 << 20
    with pytest.raises(OSError, match="No space left") as caught:
        write(volume.path / "more", b"x" * (1 << 20), sync=True)
    assert caught.value.errno == errno.ENOSPC
    assert volume.fill() == filled
    volume.free()
    write(volume.path / "more", b"x" * (1 << 20), sync=True)


def test_fill_leaves_the_requested_space(volume: Volume) -> None:
    volume.fill(leave=4 << 20)
    assert 3 << 20 < volume.free_bytes() <= 5 << 20
    assert (volume.path / FILLER).exists()


def test_destroy_leaves_no_mount_no_device_no_image(run: Ledger) -> None:
    volume = Volume.create(run.directory / "b2", run=run, size=16 << 20)
    device = volume.device
    assert volume_loop.devices_of(volume.image) == [device]
    volume.destroy()
    assert volume_loop.devices_of(volume.image) == []
    assert not volume.path.is_mount()
    assert not volume.image.exists()
    volume.destroy()
    with pytest.raises(HostError, match="not mounted"):
        volume.power_cut()


def test_read_only_remount_is_reported(volume: Volume) -> None:
    """The kernel remounts it so after errors."""
    disk = real_world("look").disk
    assert not disk.usage(str(volume.path)).read_only
    subprocess.run(["mount", "-o", "remount,ro", volume.path], check=True)
    assert disk.usage(str(volume.path / "store")).read_only


def test_a_run_that_ends_takes_its_volumes_along(tmp_path: Path) -> None:
    with Ledger.begin(tmp_path / "runs", guard=False) as run:
        volume = Volume.create(run.directory / "b1", run=run, size=16 << 20)
        path, image = volume.path, volume.image
    assert not os.path.ismount(path)
    assert not run.directory.exists()
    os.close(volume._descriptor)
    assert volume_loop.devices_of(image) == []


def test_missing_tools_are_named(run: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocketbed.chaos.backends.process.disk.volume.MKFS", "mkfs.nothing")
    with pytest.raises(HostError, match=r"mkfs\.nothing: install e2fsprogs"):
        Volume.create(run.directory / "b4", run=run)

    def refuse(_image: Path) -> tuple[str, int]:
        raise PermissionError(errno.EPERM, "Operation not permitted", "/dev/loop-control")

    monkeypatch.undo()
    monkeypatch.setattr(volume_loop, "attach", refuse)
    with pytest.raises(HostError, match="needs root and a loop device"):
        Volume.create(run.directory / "b5", run=run)
    assert not (run.directory / "b5" / "volume.img").exists()
