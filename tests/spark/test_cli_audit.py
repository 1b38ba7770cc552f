"""`marshal audit`: exit codes, JSON, and a report that stands alone."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import typer
from typer.testing import CliRunner

from marshal_py.cli.audit import audit
from marshal_py.embedded import EmbeddedKafka
from tests.spark.logs import write
from tests.unit.marshal_py.protocol.history.test_partition_history import (
    Script,
    late_heartbeat,
    life,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.kafka


@pytest.fixture
def log(kafka: EmbeddedKafka, kafka_topic: Callable[..., str]) -> tuple[str, str]:
    """A log with one late heartbeat: (brokers, topic)."""
    topic = kafka_topic(config={"retention.ms": "-1"})
    script = Script()
    life(script)
    script.wait(60_000)
    late_heartbeat(script)
    write(kafka.bootstrap_servers, topic, [(0, value, at) for _, value, at in script.records])
    return kafka.bootstrap_servers, topic


def app() -> typer.Typer:
    app = typer.Typer()
    app.command()(audit)
    app.command("other")(lambda: None)  # with one command alone, typer hides its name
    return app


class Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.ids.add(value)
            if name == "href" and value:
                self.links.append(value)
            if name == "src" or tag in ("script", "link"):
                self.loaded.append(value or tag)


def test_the_gate_and_the_report(spark: SparkSession, log: tuple[str, str], tmp_path: Path) -> None:
    servers, topic = log
    command = ["audit", "-b", servers, "--topic", topic, "--out", str(tmp_path), "--json"]
    first = CliRunner().invoke(app(), command)
    document = json.loads(first.stdout)
    assert first.exit_code == 1
    assert document["all"]["anomalies"] == {"late_heartbeat": 1, "create_time": 1}
    assert document["new"]["anomalies"] == document["all"]["anomalies"]

    again = CliRunner().invoke(app(), command)
    assert again.exit_code == 1
    assert json.loads(again.stdout)["new"]["anomalies"] == {}
    assert CliRunner().invoke(app(), [*command, "--new"]).exit_code == 0
    allowed = ["--allow", "late_heartbeat", "--allow", "create_time"]
    assert CliRunner().invoke(app(), [*command, *allowed]).exit_code == 0

    html = (tmp_path / "report.html").read_text()
    found = Links()
    found.feed(html)
    assert found.loaded == []
    assert found.links
    assert {link.removeprefix("#") for link in found.links} <= found.ids
    assert "late_heartbeat" in html
    assert re.search(r"<rect [^>]*><title>b, epoch \d+", html)


def test_wrong_usage(spark: SparkSession, tmp_path: Path) -> None:
    result = CliRunner().invoke(app(), ["audit", "-b", "localhost:1", "--allow", "nonsense"])
    assert result.exit_code == 2
    assert "kinds are" in result.stderr


def test_no_such_topic(spark: SparkSession, kafka: EmbeddedKafka, tmp_path: Path) -> None:
    command = ["audit", "-b", kafka.bootstrap_servers, "--topic", "none", "--out", str(tmp_path)]
    assert CliRunner().invoke(app(), command).exit_code == 3
