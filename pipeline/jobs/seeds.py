"""One seed of a campaign: its own process, with limits, and its result.

A simulation that crashes, hangs or eats the memory is an answer (`crash`, `timeout`, `oom`), not a
failed task that Spark would repeat. The process dies with the worker that started it.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rocketbed.pipeline.processes import tree

PAGE: Final = os.sysconf("SC_PAGE_SIZE")
LOOK_S: Final = 0.1
TAIL: Final = 2000
"""Bytes of what a failed run said that are kept."""
GOOD: Final = ("pass", "skipped")


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedOptions:
    scenario: str
    """A name from `rocketbed chaos list`, or a file."""
    out: str
    """Where runs that did not pass are kept; the same place for every worker."""
    quick: bool = False
    timeout_s: float = 300.0
    """Wall time of one seed."""
    memory_mib: int = 1024
    """Resident memory of one seed's processes."""


def run_seed(seed: int, options: SeedOptions, *, again: bool = False) -> dict[str, Any]:
    """Run one seed. `again`: only to compare the digest, nothing is kept or shrunk."""
    place = Path(options.out) / ("again" if again else "runs") / f"seed-{seed}"
    place.parent.mkdir(parents=True, exist_ok=True)
    command = ["chaos", "run", options.scenario, "--seed", str(seed), "--json"]
    command += ["--report", str(place), *(["--quick"] if options.quick else [])]
    command += ["--no-shrink"] if again else []
    began = time.monotonic()
    log = place.parent / f"seed-{seed}.log"
    with log.open("wb") as said:
        ended, output, code = _run(command, said, options)
    row = _row(output)
    verdict = ended or str(row.get("verdict", "crash"))
    text = log.read_bytes()[-TAIL:].decode(errors="replace")
    log.unlink()
    if verdict in GOOD or again:
        shutil.rmtree(place, ignore_errors=True)
    return {
        "seed": seed,
        "again": again,
        "verdict": verdict,
        "exit_code": code,
        "findings": ",".join(row.get("finding_ids", ())),
        "looked": row.get("looked", {}),
        "wall_s": round(time.monotonic() - began, 3),
        "digest": str(row.get("digest", "")),
        "replay": str(row.get("replay", "")),
        "tail": "" if verdict in GOOD else str(row.get("error") or text),
    }


def _run(command: list[str], said: Any, options: SeedOptions) -> tuple[str, bytes, int]:
    """Why it was ended, if it was; its standard output; its exit code."""
    start = [sys.executable, "-P", "-m", "rocketbed.chaos.host.tied", str(os.getpid()), *command]
    ended = ""
    with subprocess.Popen(
        start,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=said,
        start_new_session=True,
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
