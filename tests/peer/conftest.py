"""Fixtures of the peer tests. All of them have the mark `peer`."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from tests.support.peer.brokers import Site
from tests.support.peer.installation import VERSION, Installation, install


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.peer)


@pytest.fixture(scope="session")
def installation(request: pytest.FixtureRequest) -> Installation:
    """Installation of the version that a test names as this fixture's parameter, or else of
    `VERSION`.
    """
    return install(getattr(request, "param", VERSION))


@pytest.fixture
async def site(installation: Installation, tmp_path: Path) -> AsyncIterator[Site]:
    opened = Site(tmp_path, installation)
    try:
        yield opened
    finally:
        with trio.CancelScope(shield=True):
            await opened.close()
