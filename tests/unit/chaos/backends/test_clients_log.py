"""Log of the clients of a run on real processes."""

import logging
from pathlib import Path

import pytest

from rocketbed.chaos.backends.process.run import clients_log


def test_remarks_of_clients_go_into_a_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logger = logging.getLogger("rocketbed.client")
    with clients_log(tmp_path / "clients.log"):
        logger.warning("client.route_kept topic=T")
    assert "WARNING client.route_kept topic=T" in (tmp_path / "clients.log").read_text()
    assert not caplog.records
    logger.warning("after the run")
    assert [record.message for record in caplog.records] == ["after the run"]
