"""A node's `broker.conf`: written at first, changed line by line later; what was edited stays."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rocketbed.chaos.cluster.plan import ClusterError
from rocketbed.wire.properties_text import parse_properties, render_properties

CONFIG: Final = "broker.conf"


class NodeSettings:
    """Settings of the node in this directory."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / CONFIG

    def read(self) -> dict[str, str]:
        """All of them. Raises `ClusterError`."""
        try:
            rows = parse_properties(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as exc:
            raise ClusterError(f"{self.path} cannot be read: {exc}") from exc
        return {key: value for _, key, value in rows}

    def change(self, wanted: Mapping[str, str]) -> None:
        """Let some have these values. Raises `ClusterError`."""
        found = self.read()
        if not wanted.items() <= found.items():
            self.write({**found, **wanted})

    def write(self, settings: Mapping[str, str]) -> None:
        """Let there be these, all at once. Raises `ClusterError`."""
        temporary = self.path.with_suffix(".new")
        try:
            temporary.write_text(render_properties(settings), encoding="utf-8")
            temporary.replace(self.path)
        except OSError as exc:
            raise ClusterError(f"{self.path} cannot be written: {exc}") from exc
