"""The command that installs an extra: it names a place, as no package index has rocketbed."""

import importlib.metadata
import re
from importlib.metadata import Distribution
from typing import Any

import pytest

from rocketbed.host.extras import CHECKOUT, install_command
from tests.support.paths import ROOT


def test_command_names_where_this_installation_came_from() -> None:
    command = install_command("chaos")
    assert re.fullmatch(r"pip install 'rocketbed\[chaos\] @ file:///.*'", command)


@pytest.mark.parametrize("text", [None, "", "{}", "[]", "no JSON"])
def test_command_names_a_checkout_where_that_is_unknown(
    text: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Installed(Distribution):
        def read_text(self, filename: str) -> str | None:
            return text

        def locate_file(self, path: Any) -> Any:
            raise NotImplementedError

    monkeypatch.setattr(importlib.metadata, "distribution", lambda _: Installed())
    assert install_command("lz4") == f"pip install 'rocketbed[lz4] @ {CHECKOUT}'"


def test_no_advice_names_a_package_index() -> None:
    folders = ("rocketbed", "chaos", "node", "pipeline", "replication", "routing")
    wrong = re.compile(r"pip install '?rocketbed\[\w+\](?! @)|rocketbed with its extra")
    files = [file for folder in folders for file in (ROOT / folder).rglob("*.py")]
    assert len(files) > 300
    assert [file for file in files if wrong.search(file.read_text())] == []
