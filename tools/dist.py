"""Build the packages, and run a client of each in an empty environment (`make dist`).

The native wheel is built from the source distribution, the pure wheel from the checkout. If both
hold the same files, the source distribution is complete. Each of the three is then installed where
nothing else is, and the first client of README.md talks to a nameserver and a node that the
installed `rocketbed` runs. Packages that fail a check never reach the output directory.

Nothing outlives this program: the servers are tied to it, and the janitor of the testbed removes
the temporary directory even after SIGKILL.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

from rocketbed.host.ports import HOST, free_ports
from rocketbed.host.program import tied_program
from rocketbed.host.scratch import Scratch

ROOT: Final = Path(__file__).resolve().parents[1]
CONSTRAINT: Final = ("--constraint", ROOT / "requirements.lock")
LICENSES: Final = ("LICENSE", "NOTICE")
NATIVE: Final = (
    "rocketbed/node/broker/plain_native.abi3.so",
    "rocketbed/node/store/log_native.abi3.so",
    "rocketbed/world/sync_native.abi3.so",
)
"""Compiled files, by their names in the native wheel."""
NATIVE_BYTES_MIN: Final = 10_000
"""Less is an empty library; the smallest has 16,000."""
SEND_BODY: Final = """
from rocketbed.node.broker.plain_body import choose
print(choose(native=True)[1])
"""
"""A program that prints which body of the send path is installed."""
EXAMPLE_ADDRESS: Final = "127.0.0.1:9876"
EXAMPLE_PRINTS: Final = "b'hello'"
STEP_S: Final = 1800.0
"""A command that takes longer hangs; pip may have to download Spark."""
READY_S: Final = 60.0
STOP_S: Final = 20.0
LOOK_S: Final = 0.2


class CheckFailed(Exception):
    """A package is not as it should be, or a command failed; the text names it."""


@dataclass(frozen=True)
class Packages:
    """Files of one build."""

    sdist: Path
    native: Path
    pure: Path


def run(
    *command: str | Path,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    succeeds: bool = True,
) -> str:
    """Run a program outside of this checkout's import path and return its output.

    Raises `CheckFailed` if it fails, or with `succeeds=False` if it does not.
    """
    completed = subprocess.run(
        tied_program([str(word) for word in command]),
        cwd=cwd,
        env=environment(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=STEP_S,
        check=False,
    )
    if (completed.returncode == 0) is not succeeds:
        text = " ".join(str(word) for word in command)
        raise CheckFailed(f"{text}: exit code {completed.returncode}\n{completed.stdout}")
    return completed.stdout


def environment(changes: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a program that must not import from this checkout."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {**inherited, **(changes or {})}


def wheel_files(wheel: Path) -> dict[str, int]:
    """Names and sizes of what a wheel installs, without its metadata."""
    files = zipfile.ZipFile(wheel).infolist()
    return {file.filename: file.file_size for file in files if ".dist-info/" not in file.filename}


def build(place: Path) -> Packages:
    """Build the three packages into a directory. Raises `CheckFailed`."""
    builder = (sys.executable, "-m", "build", "--outdir", place)
    scratch = {"TMPDIR": str(place.parent)}
    run(*builder, ROOT, cwd=place, env=scratch)
    run(*builder, "--wheel", ROOT, cwd=place, env={**scratch, "ROCKETBED_PURE": "1"})
    wheels = sorted(place.glob("*.whl"))
    if [wheel.name.endswith("-none-any.whl") for wheel in wheels] != [False, True]:
        names = ", ".join(wheel.name for wheel in wheels)
        raise CheckFailed(f"not a native and a pure wheel: {names}; is there a C compiler?")
    (sdist,) = place.glob("*.tar.gz")
    return Packages(sdist, *wheels)


def check_files(packages: Packages) -> None:
    """Compare the packages' contents. Raises `CheckFailed`."""
    native, pure = wheel_files(packages.native), wheel_files(packages.pure)
    for name in NATIVE:
        if native.pop(name, 0) < NATIVE_BYTES_MIN:
            raise CheckFailed(f"{packages.native.name} has no {name}")
    if native != pure:
        names = sorted(name for name, _ in native.items() ^ pure.items())
        raise CheckFailed(
            f"{packages.native.name}, built from the source distribution, and"
            f" {packages.pure.name}, built from the checkout, differ: {', '.join(names)}"
        )
    for wheel in (packages.native, packages.pure):
        names = zipfile.ZipFile(wheel).namelist()
        for license_name in LICENSES:
            if not any(name.endswith(f".dist-info/licenses/{license_name}") for name in names):
                raise CheckFailed(f"{wheel.name} has no {license_name}")
    top = packages.sdist.name.removesuffix(".tar.gz")
    with tarfile.open(packages.sdist) as archive:
        missing = {f"{top}/{name}" for name in LICENSES} - set(archive.getnames())
    if missing:
        raise CheckFailed(f"{packages.sdist.name} has no {', '.join(sorted(missing))}")


def try_out(package: Path, place: Path, *, native: bool) -> None:
    """Install a package where nothing else is, and use it. Raises `CheckFailed`."""
    place.mkdir()
    run(sys.executable, "-m", "venv", place / "venv", cwd=place)
    commands = place / "venv" / "bin"
    pip = (commands / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check")
    run(*pip, *CONSTRAINT, package, cwd=place, env={"TMPDIR": str(place)})
    body = run(commands / "python", "-c", SEND_BODY, cwd=place).strip()
    if (body == "native") is not native:
        raise CheckFailed(f"{package.name}: the body of the send path is {body}")
    with servers(commands / "rocketbed", place) as nameserver:
        (place / "example.py").write_text(example(nameserver))
        printed = run(commands / "python", "example.py", cwd=place)
    if EXAMPLE_PRINTS not in printed:
        raise CheckFailed(f"{package.name}: the client of README.md printed {printed!r}")


def example(nameserver: str) -> str:
    """Return the first client of README.md, with this nameserver. Raises `CheckFailed`."""
    page = (ROOT / "README.md").read_text()
    program = re.search(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    if program is None or EXAMPLE_ADDRESS not in program[1]:
        raise CheckFailed(f"the first program of README.md is no client of {EXAMPLE_ADDRESS}")
    return program[1].replace(EXAMPLE_ADDRESS, nameserver)


@contextmanager
def servers(rocketbed: Path, place: Path) -> Iterator[str]:
    """Run a nameserver and a node on free ports of loopback; gives the nameserver's address."""
    nameserver_port, node_port = free_ports(1, 1)
    nameserver = f"{HOST}:{nameserver_port}"
    node_settings = {
        "brokerName": "dist",
        "namesrvAddr": nameserver,
        "brokerIP1": HOST,
        "bindAddress": HOST,
        "listenPort": str(node_port),
        "storePathRootDir": str(place / "store"),
    }
    with ExitStack() as running:
        settings = {"bindAddress": HOST, "listenPort": str(nameserver_port)}
        running.enter_context(server(rocketbed, "nameserver", settings, place))
        running.enter_context(server(rocketbed, "node", node_settings, place))
        yield nameserver


@contextmanager
def server(
    rocketbed: Path, command: str, settings: Mapping[str, str], place: Path
) -> Iterator[None]:
    """Run a server until the block ends; it is ready before, and stops cleanly after.

    Raises `CheckFailed`.
    """
    log = place / f"{command}.log"
    words = [str(rocketbed), command]
    for key, value in settings.items():
        words += ["--set", f"{key}={value}"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            tied_program(words),
            cwd=place,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        await_ready(rocketbed, f"{HOST}:{settings['listenPort']}", process, log)
        yield
        process.terminate()
        code = process.wait(STOP_S)
    finally:
        process.kill()
        process.wait()
    if code:
        raise CheckFailed(f"{command}: exit code {code} after SIGTERM\n{log.read_text()}")


def await_ready(rocketbed: Path, address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until clients can use a server. Raises `CheckFailed` if it ends or takes too long."""
    deadline = time.monotonic() + READY_S
    health = [str(rocketbed), "health", address]
    while subprocess.run(health, cwd=log.parent, env=environment(), capture_output=True).returncode:
        if process.poll() is not None or time.monotonic() > deadline:
            raise CheckFailed(f"{address} is not ready:\n{log.read_text()}")
        time.sleep(LOOK_S)


def publish(packages: Packages, output: Path) -> None:
    """Put the packages into the output directory, in place of those of earlier builds."""
    output.mkdir(parents=True, exist_ok=True)
    for stale in output.glob("rocketbed-*"):
        stale.unlink()
    for package in (packages.sdist, packages.native, packages.pure):
        shutil.copy2(package, output)
        print(output / package.name)


def make(output: Path) -> None:
    """Build, check, try out and publish the packages. Raises `CheckFailed`."""
    with Scratch(in_memory=False) as scratch:
        place = scratch.path / "packages"
        place.mkdir()
        report("build the source distribution and both wheels")
        packages = build(place)
        report("check their metadata and compare their files")
        files = (packages.sdist, packages.native, packages.pure)
        run(sys.executable, "-m", "twine", "check", "--strict", *files, cwd=place)
        check_files(packages)
        for kind in ("sdist", "native", "pure"):
            package: Path = getattr(packages, kind)
            report(f"install {package.name} and run a client")
            try_out(package, scratch.path / kind, native=kind != "pure")
        publish(packages, output)


def report(step: str) -> None:
    """Print the step that begins now."""
    print(f"dist: {step}", flush=True)


def stop(number: int, _frame: FrameType | None) -> NoReturn:
    """End by an exception, so that everything is cleaned up."""
    sys.exit(128 + number)


def main() -> int:
    """Run the program; returns its exit code."""
    parser = argparse.ArgumentParser(description="Build, check and try out the packages.")
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="default: dist/")
    output = parser.parse_args().output.absolute()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    try:
        make(output)
    except (CheckFailed, subprocess.TimeoutExpired) as exc:
        print(f"dist: failed: {exc}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
