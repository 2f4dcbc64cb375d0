"""Go's client `rocketmq-client-go`, in a program of ours that sends until it is told to end."""

import shutil
from pathlib import Path
from typing import Final

from rocketbed.chaos.backends.foreign.installation import InstallationError, run_tool
from tests.support.peer.installation import DIRECTORY
from tests.support.peer.line_process import LineProcess

SOURCE: Final = Path(__file__).parent / "go"
PROGRAM: Final = DIRECTORY / "go-sender"
BUILD_S: Final = 600


def go_sender(nameserver: str, topic: str, log: Path) -> LineProcess:
    """Return the program, built if its source is newer. Raises `InstallationError`."""
    sources = [SOURCE / name for name in ("main.go", "go.mod", "go.sum")]
    newest = max(path.stat().st_mtime for path in sources)
    if not PROGRAM.exists() or PROGRAM.stat().st_mtime < newest:
        go = shutil.which("go")
        if go is None:
            raise InstallationError("go is missing (on Debian: apt install golang-go)")
        DIRECTORY.mkdir(exist_ok=True)
        command = [go, "build", "-C", str(SOURCE), "-o", str(PROGRAM), "."]
        run_tool(command, BUILD_S, "the Go program of the peer tests does not build")
    return LineProcess([str(PROGRAM), nameserver, topic], log)
