"""`/healthz` and `/metrics` of a harvesting process, over HTTP."""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from harvest.errors import ConfigurationError
from harvest.runtime import metrics
from harvest.runtime.monitor import Health
from harvest.runtime.status_server import parse_address, status_server


def get(health: Health, path: str) -> tuple[int, bytes]:
    monitor: Any = SimpleNamespace(health=lambda: health)
    with closing(status_server(monitor, ("127.0.0.1", 0))) as server:
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{server.port}{path}", timeout=10
            ) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()


@pytest.mark.parametrize(
    ("health", "status"),
    [
        (Health(True, "standing by"), 200),
        (Health(False, "leading", ("table: no permission", "kafka: gone")), 503),
        (Health(False, "stopped"), 503),
    ],
)
def test_health_has_a_status_and_says_why(health: Health, status: int) -> None:
    code, said = get(health, "/healthz")
    assert (code, json.loads(said)) == (
        status,
        {"ok": health.ok, "state": health.state, "problems": list(health.problems)},
    )


def test_metrics_are_those_of_the_monitor_where_the_extra_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    healthy = Health(True, "leading")
    with monkeypatch.context() as patch:
        patch.setattr(metrics, "scrape", lambda monitor: monitor.health().state.encode())
        assert get(healthy, "/metrics") == (200, b"leading")
    monkeypatch.setitem(sys.modules, "harvest.runtime.metrics", None)
    assert get(healthy, "/metrics")[0] == 501


def test_an_address_that_is_none_is_named_as_the_option_it_is() -> None:
    assert parse_address(":9101") == ("", 9101)
    with pytest.raises(ConfigurationError, match=r"^--listen '9101"):
        parse_address("9101")


def test_an_address_that_is_taken_is_named_as_the_option_it_is() -> None:
    monitor: Any = SimpleNamespace()
    with closing(status_server(monitor, ("127.0.0.1", 0))) as server:
        address = ("127.0.0.1", server.port)
        with pytest.raises(ConfigurationError, match=f"^--listen '127.0.0.1:{server.port}'"):
            status_server(monitor, address)
