"""Errors on a machine without the tools."""

from pathlib import Path

import pytest

from tests.support.peer.installation import PeerMissing, install


@pytest.mark.ci
@pytest.mark.parametrize("missing", ["java", "mvn", "javac"])
def test_missing_tool_is_named_with_the_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, missing: str
) -> None:
    monkeypatch.setattr("tests.support.peer.installation.DIRECTORY", tmp_path)
    tools = {"java", "javac", "mvn"} - {missing}
    for tool in tools:
        (tmp_path / tool).write_text("#!/bin/sh\n")
        (tmp_path / tool).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PeerMissing, match=rf"^{missing} is missing.*apt install openjdk-17"):
        install()


def test_failed_download_is_reported_and_retried(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tests.support.peer.installation.DIRECTORY", tmp_path)
    for tool in ("java", "javac"):
        (tmp_path / tool).write_text("#!/bin/sh\n")
    (tmp_path / "mvn").write_text("#!/bin/sh\necho no network\nexit 1\n")
    for tool in ("java", "javac", "mvn"):
        (tmp_path / tool).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    for _ in range(2):
        with pytest.raises(PeerMissing, match=r"(?s)Maven Central.*no network"):
            install()
