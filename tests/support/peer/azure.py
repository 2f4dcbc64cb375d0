"""Azure's blob store as its emulator provides it: Azurite, a process on loopback."""

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.support.peer.npm import npm_modules
from tests.support.s3 import copy_tree

VERSION: Final = "3.37.0"
ACCOUNT: Final = "devstoreaccount1"
KEY: Final = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
"""Azurite's own, which is no secret."""
CONTAINER: Final = "box"
ADDRESS: Final = f"abfss://{CONTAINER}@{ACCOUNT}.dfs.core.windows.net"


@dataclass(frozen=True)
class AzureServer:
    """A server with one container."""

    port: int

    @property
    def options(self) -> dict[str, str]:
        """Options for the data source."""
        return {
            "fs.azure.endpoint": f"http://127.0.0.1:{self.port}",
            f"fs.azure.account.key.{ACCOUNT}.dfs.core.windows.net": KEY,
        }

    def put(self, root: Path, name: str) -> str:
        """Copy a directory there; its address."""
        copy_tree(root, self.file_system(), f"{CONTAINER}/{name}")
        return f"{ADDRESS}/{name}"

    def file_system(self) -> Any:
        from pyarrow.fs import AzureFileSystem

        place, scheme = f"127.0.0.1:{self.port}", "http"
        return AzureFileSystem(
            ACCOUNT,
            account_key=KEY,
            blob_storage_authority=place,
            dfs_storage_authority=place,
            blob_storage_scheme=scheme,
            dfs_storage_scheme=scheme,
        )


@contextmanager
def azure_server() -> Iterator[AzureServer]:
    """Run the server until the end of the block, without its telemetry."""
    program = npm_modules("azurite", VERSION) / "azurite" / "dist" / "src" / "blob" / "main.js"
    command = ["node", str(program), "--blobHost", "127.0.0.1", "--blobPort", "0", "--silent"]
    command += ["--inMemoryPersistence", "--disableTelemetry", "--skipApiVersionCheck"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as child:
        try:
            assert child.stdout is not None
            output = ""
            while (matched := re.search(r"listens on http://127\.0\.0\.1:(\d+)", output)) is None:
                line = child.stdout.readline()
                assert line, f"Azurite ended: {output}"
                output += line
            server = AzureServer(int(matched[1]))
            server.file_system().create_dir(CONTAINER)
            yield server
        finally:
            child.kill()
