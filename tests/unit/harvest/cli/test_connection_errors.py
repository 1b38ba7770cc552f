"""What is said when Kafka cannot be used: at once, with host, port and cause."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from harvest.cli.app import app
from tests.support.hanging_up import hanging_up


@pytest.fixture(scope="module")
def hangs_up() -> Iterator[str]:
    with hanging_up() as where:
        yield where


FAULTS: dict[str, tuple[str, dict[str, str], str]] = {
    "TLS to a broker without": ("", {"security.protocol": "SSL"}, "PLAINTEXT broker listener"),
    "no TLS to a broker with it": ("", {}, "TLS listener"),
    "wrong port": ("127.0.0.1:1", {}, "Connection refused"),
    "wrong host": ("no-such-host.invalid:9092", {}, "Failed to resolve"),
}
"""What is wrong: the brokers (the one that hangs up, if none are named), settings, the cause."""


@pytest.fixture(params=FAULTS)
def fault(request: pytest.FixtureRequest, hangs_up: str, tmp_path: Path) -> tuple[Path, str, str]:
    """A configuration, host and port, and the cause that has to be named."""
    where, settings, cause = FAULTS[request.param]
    where = where or hangs_up
    config: dict[str, Any] = {
        "kafka": {"bootstrap.servers": where, **settings},
        "database": f"sqlite:///{tmp_path}/outbox.sqlite",
        "group": "g",
    }
    path = tmp_path / "reaper.yaml"
    path.write_text(yaml.safe_dump(config))
    assert CliRunner().invoke(app, ["init", "--config", str(path)]).exit_code == 0
    return path, where, cause


def test_a_harvester_says_why_it_cannot_begin_while_it_tries_on(
    fault: tuple[Path, str, str],
) -> None:
    config, where, cause = fault
    command = [sys.executable, "-m", "harvest.cli", "reap", "--config", str(config)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as harvester:
        assert harvester.stderr is not None
        first = harvester.stderr.readline()
        assert harvester.poll() is None
        harvester.kill()
    assert where in first
    assert cause in first


def test_a_check_says_why_kafka_cannot_be_reached(fault: tuple[Path, str, str]) -> None:
    config, where, cause = fault
    command = [sys.executable, "-m", "harvest.cli", "check", "--config", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    (line,) = [line for line in done.stdout.splitlines() if " kafka " in line]
    assert line.startswith("error")
    assert where in line
    assert cause in line
    assert "%3|" not in done.stderr, "librdkafka's own lines, one for each attempt"
