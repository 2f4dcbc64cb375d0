"""CPU time and memory of a process and all its descendants, Java and Python apart."""

import os
import threading
from pathlib import Path
from typing import Final, NamedTuple

from rocketbed.pipeline.processes import tree

TICKS: Final = os.sysconf("SC_CLK_TCK")
PAGE: Final = os.sysconf("SC_PAGE_SIZE")
SAMPLE_S: Final = 0.2


class Cpu(NamedTuple):
    """CPU seconds since the processes began, those of ended children counted with their parent."""

    java_s: float
    python_s: float

    def __sub__(self, earlier: "Cpu") -> "Cpu":
        return Cpu(self.java_s - earlier.java_s, self.python_s - earlier.python_s)


def cpu_of_tree(root: int) -> Cpu:
    """Return the CPU time of a process and its descendants."""
    seconds = {True: 0.0, False: 0.0}
    for pid in tree(root):
        try:
            text = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            continue
        name, _, tail = text.partition("(")[2].rpartition(")")
        fields = tail.split()
        seconds[name == "java"] += sum(map(int, fields[11:15])) / TICKS
    return Cpu(seconds[True], seconds[False])


class MemoryWatch(threading.Thread):
    """Highest resident memory of the driver's Java and of any one Python process, in bytes."""

    def __init__(self, root: int) -> None:
        super().__init__(daemon=True)
        self.java = 0
        self.python = 0
        self._root = root
        self._over = threading.Event()

    def run(self) -> None:
        """Sample until `close`."""
        while not self._over.wait(SAMPLE_S):
            for pid in tree(self._root):
                try:
                    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
                    is_java = Path(f"/proc/{pid}/comm").read_text().strip() == "java"
                except OSError:
                    continue
                if is_java:
                    self.java = max(self.java, pages * PAGE)
                elif pid != self._root:
                    self.python = max(self.python, pages * PAGE)

    def close(self) -> None:
        """End sampling."""
        self._over.set()
        self.join()
