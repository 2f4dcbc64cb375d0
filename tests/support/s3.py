"""An S3 server of a test's own: moto's, a process on loopback."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BUCKET = "rocketbed-test"
_SERVE = """
import logging
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = make_server(
    "127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), threaded=True
)
print(server.port, flush=True)
server.serve_forever()
"""


@dataclass(frozen=True)
class S3Server:
    """A server with one bucket; anybody may do everything."""

    port: int

    @property
    def options(self) -> dict[str, str]:
        """Options for the data source."""
        return {
            "fs.s3a.endpoint": f"http://127.0.0.1:{self.port}",
            "fs.s3a.endpoint.region": "us-east-1",
            "fs.s3a.access.key": "key",
            "fs.s3a.secret.key": "secret",
        }

    def put(self, root: Path, name: str) -> str:
        """Copy a directory there; its address."""
        copy_tree(root, self.file_system(), f"{BUCKET}/{name}")
        return f"s3a://{BUCKET}/{name}"

    def file_system(self) -> Any:
        from pyarrow.fs import S3FileSystem

        return S3FileSystem(
            access_key="key",
            secret_key="secret",
            endpoint_override=self.options["fs.s3a.endpoint"],
            region="us-east-1",
            allow_bucket_creation=True,
        )


def copy_tree(root: Path, place: Any, folder: str) -> None:
    """Copy a directory into a file system of pyarrow's."""
    from pyarrow.fs import FileSelector, FileType, LocalFileSystem, copy_files

    local = LocalFileSystem()
    for entry in local.get_file_info(FileSelector(str(root), recursive=True)):
        target = f"{folder}/{os.path.relpath(entry.path, root)}"
        if entry.type == FileType.File:
            copy_files(entry.path, target, local, place)
        else:
            place.create_dir(target)


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """Run the server until the end of the block."""
    environment = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    with subprocess.Popen(
        [sys.executable, "-c", _SERVE], stdout=subprocess.PIPE, text=True, env=environment
    ) as child:
        try:
            assert child.stdout is not None
            server = S3Server(int(child.stdout.readline()))
            server.file_system().create_dir(BUCKET)
            yield server
        finally:
            child.kill()
