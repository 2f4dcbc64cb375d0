"""Programs of npm's, each installed once into the folder of the tests' peers."""

import shutil
import tempfile
from pathlib import Path
from typing import Final

from rocketbed.chaos.backends.foreign.installation import InstallationError, run_tool
from tests.support.peer.installation import DIRECTORY

INSTALL_S: Final = 300


def npm_modules(name: str, version: str) -> Path:
    """The folder of a package and what it needs, made if it has to be.

    Raises `InstallationError`.
    """
    for tool in ("node", "npm"):
        if shutil.which(tool) is None:
            raise InstallationError(f"{tool} is missing (on Debian: apt install nodejs npm)")
    place = DIRECTORY / f"{name}-{version}"
    if not place.is_dir():
        DIRECTORY.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="npm-", dir=DIRECTORY) as temporary:
            installed = Path(temporary) / "made"
            command = ["npm", "install", "--prefix", str(installed), "--no-audit", "--no-fund"]
            command += ["--ignore-scripts", "--no-package-lock", f"{name}@{version}"]
            run_tool(command, INSTALL_S, f"npm could not install {name} {version}")
            installed.rename(place)
    return place / "node_modules"
