"""Every meal that was ordered is cooked, also when the master dies in the middle."""

import time

import pytest
from fastapi.testclient import TestClient
from kitchen.app import TOPIC, app

pytestmark = pytest.mark.rocketbed(brokers=3, flush="sync", repl="sync")


def test_meals(cluster, chaos, monkeypatch):
    cluster.create_topic(TOPIC)
    monkeypatch.setenv("NAMESERVERS", cluster.nameserver_address)
    with TestClient(app) as service:
        ordered = [f"meal-{number}" for number in range(20)]
        for meal in ordered[:10]:
            assert service.post(f"/meals/{meal}").status_code == 201
        with chaos.during(chaos.kill("leader")):
            for meal in ordered[10:]:
                while service.post(f"/meals/{meal}").status_code != 201:
                    pass  # the same order again: cooking it twice does no harm
        while service.get("/meals").json() != sorted(ordered):
            time.sleep(0.1)
