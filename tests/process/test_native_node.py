"""A real node with either body: it says which, and what it stores is the same."""

from pathlib import Path

import pytest

from tests.process.test_node_process import BODIES, node, pull, send, with_connection
from tests.support.native import native
from tests.support.ports import free_port

pytestmark = pytest.mark.process


@pytest.mark.parametrize("value", ["", "1", "0"])
async def test_a_node_says_with_which_body_it_takes_sends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    """The native one unless `RB_NATIVE=0`. Twenty sends of one read are plain ones."""
    native()
    monkeypatch.setenv("RB_NATIVE", value)
    port = free_port()
    with node(tmp_path, port) as process:
        assert await with_connection(port, send) == [str(number) for number in range(20)]
        assert await with_connection(port, pull) == BODIES
        process.terminate()
        assert process.stderr is not None
        said = process.stderr.read()
    (line,) = [line for line in said.splitlines() if "send.body" in line]
    assert line.partition("which=")[2].startswith("python" if value == "0" else "native")
