"""One seed of a campaign: its own process, with limits, and its result.

A simulation that crashes, hangs or eats the memory is an answer (`crash`, `timeout`, `oom`), not a
failed task that Spark would repeat. The process dies with the worker that started it. It runs in
a folder of its own, so what a failed run leaves comes back as an archive, to whatever machine.
"""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import rocketbed
from rocketbed.pipeline.processes import tree

PAGE: Final = os.sysconf("SC_PAGE_SIZE")
LOOK_S: Final = 0.1
TAIL: Final = 2000
"""Bytes of what a failed run said that are kept."""
GOOD: Final = ("pass", "skipped")
KEPT_MAX: Final = 64 << 20
"""Bytes of what a run left; of more only its replay file is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedOptions:
    scenario: str
    """A name from `rocketbed chaos list`, or a file."""
    text: str = ""
    """What is in that file, which may be on no other machine."""
    quick: bool = False
    timeout_s: float = 300.0
    """Wall time of one seed."""
    memory_mib: int = 1024
    """Resident memory of one seed's processes."""


def run_seed(
    seed: int, options: SeedOptions, *, repeat: bool = False
) -> tuple[dict[str, Any], bytes]:
    """Run one seed: its row, and what it left if it did not pass, as a tar archive.

    `again`: only to compare the digest, nothing is kept or shrunk.
    """
    with tempfile.TemporaryDirectory(prefix="rocketbed-seed-") as folder:
        return _run_in(Path(folder), seed, options, repeat)


def _run_in(
    folder: Path, seed: int, options: SeedOptions, repeat: bool
) -> tuple[dict[str, Any], bytes]:
    place, log, scenario = folder / "run", folder / "said", options.scenario
    if options.text:
        scenario = str(folder / Path(scenario).name)
        Path(scenario).write_text(options.text, encoding="utf-8")
    command = ["chaos", "run", scenario, "--seed", str(seed), "--json"]
    command += ["--report", str(place), *(["--quick"] if options.quick else [])]
    command += ["--no-shrink"] if repeat else []
    began = time.monotonic()
    with log.open("wb") as stderr:
        ended, output, code = _run(command, stderr, options)
    row = _row(output)
    verdict = ended or str(row.get("verdict", "crash"))
    text = log.read_bytes()[-TAIL:].decode(errors="replace")
    replay = Path(str(row.get("replay", "")))
    archive = b"" if verdict in GOOD or repeat else _packed(place, replay.name)
    result = {
        "seed": seed,
        "again": repeat,
        "verdict": verdict,
        "exit_code": code,
        "findings": ",".join(row.get("finding_ids", ())),
        "looked": row.get("looked", {}),
        "wall_s": round(time.monotonic() - began, 3),
        "digest": str(row.get("digest", "")),
        "replay": replay.name,
        "tail": "" if verdict in GOOD else str(row.get("error") or text),
    }
    return result, archive


def _packed(place: Path, replay: str) -> bytes:
    """A folder as an archive, empty if it is not there."""
    files = [path for path in sorted(place.rglob("*")) if path.is_file()]
    if sum(path.stat().st_size for path in files) > KEPT_MAX:
        files = [path for path in files if path.name == replay]
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as archive:
        for path in files:
            archive.add(path, path.relative_to(place))
    return packed.getvalue() if files else b""


def unpack(archive_bytes: bytes, place: Path) -> None:
    """Put what a run left to a place, instead of what is there. Raises `OSError`."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    with tarfile.open(fileobj=io.BytesIO(archive_bytes)) as archive:
        archive.extractall(place, filter="data")


def _run(command: list[str], stderr: Any, options: SeedOptions) -> tuple[str, bytes, int]:
    """Why it was ended, if it was; its standard output; its exit code."""
    start = [sys.executable, "-P", "-m", "rocketbed.host.parent_death", str(os.getpid()), *command]
    # Where this process has it from, which may be an archive that only Spark's workers know of.
    path = [str(Path(rocketbed.__file__).parents[1].absolute()), os.environ.get("PYTHONPATH", "")]
    ended = ""
    with subprocess.Popen(
        start,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, path))},
    ) as process:
        until = time.monotonic() + options.timeout_s
        while True:
            try:
                output, _ = process.communicate(timeout=LOOK_S)
                break
            except subprocess.TimeoutExpired:
                if time.monotonic() > until:
                    ended = "timeout"
                elif tree_memory(process.pid) > options.memory_mib << 20:
                    ended = "oom"
                if ended:
                    os.killpg(process.pid, signal.SIGKILL)
        code = process.returncode
    return ended, output, code


def tree_memory(root: int) -> int:
    """Resident bytes of a process and its descendants."""
    pages = 0
    for pid in tree(root):
        try:
            pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except OSError:
            continue
    return PAGE * pages


def _row(output: bytes) -> dict[str, Any]:
    try:
        row = json.loads(output)
    except ValueError:
        return {}
    return row if isinstance(row, dict) else {}
