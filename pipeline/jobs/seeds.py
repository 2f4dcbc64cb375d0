"""Run of a campaign's seed in a process of its own, with limits, and its result.

A simulation that crashes, hangs or exhausts its memory is a result (`crash`, `timeout`, `oom`), not
a failed task that Spark would repeat. The process dies with the worker that started it. It runs in
its own folder; the files of a failed run are returned as an archive, so any machine will do.
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
"""Bytes of a failed run's standard error that are kept."""
GOOD: Final = ("pass", "skipped")
KEPT_MAX: Final = 64 << 20
"""Maximum bytes of a run's files; of a larger run only the replay file is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedOptions:
    scenario: str
    """A name from `rocketbed chaos list`, or a file."""
    text: str = ""
    """Content of that file, which other machines may not have."""
    quick: bool = False
    timeout_s: float = 300.0
    """Wall time of one seed."""
    memory_mib: int = 1024
    """Resident memory of one seed's processes."""


def run_seed(
    seed: int, options: SeedOptions, *, repeat: bool = False
) -> tuple[dict[str, Any], bytes]:
    """Run a seed, and return its row, and its files as a tar archive if it did not pass.

    `repeat`: the run only serves to compare the digest; nothing is archived or shrunk.
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
    """Return a folder as an archive; empty if the folder is missing."""
    files = [path for path in sorted(place.rglob("*")) if path.is_file()]
    if sum(path.stat().st_size for path in files) > KEPT_MAX:
        files = [path for path in files if path.name == replay]
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as archive:
        for path in files:
            archive.add(path, path.relative_to(place))
    return packed.getvalue() if files else b""


def unpack(archive_bytes: bytes, place: Path) -> None:
    """Unpack a run's archive to a place, and replace its earlier content. Raises `OSError`."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    with tarfile.open(fileobj=io.BytesIO(archive_bytes)) as archive:
        archive.extractall(place, filter="data")


def _run(command: list[str], stderr: Any, options: SeedOptions) -> tuple[str, bytes, int]:
    """Run a command within the limits.

    Returns `timeout` or `oom` if it was killed, else ""; its standard output; its exit code.
    """
    start = [sys.executable, "-P", "-m", "rocketbed.host.parent_death", str(os.getpid()), *command]
    # Path of the rocketbed of this process, which may be an archive that only Spark's workers have.
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
    """Return the resident bytes of a process and its descendants."""
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
