"""`marshal doctor` on a real broker: its findings are real, and its fixes mend them."""

from __future__ import annotations

import itertools
import json
import shlex
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from marshal_py import Marshal
from marshal_py.embedded import EmbeddedKafka
from tests.support.marshal_command import Cli

pytestmark = pytest.mark.kafka


def checks(run: Cli, *arguments: str) -> dict[tuple[str, str], dict[str, Any]]:
    document = json.loads(run("doctor", "--json", *arguments).stdout)
    return {(c["subject"], c["name"]): c for c in document["checks"]}


def test_a_sound_cluster_is_well_and_its_clock_is_measured(
    run: Cli, made: str, client: Callable[..., Marshal]
) -> None:
    client("a", interval_ms=50).claim("t", 0, timeout_s=60)
    done = run("doctor", "--json", "--watch", "5")
    assert done.returncode == 0, done.stdout
    found = {(c["subject"], c["name"]): c for c in json.loads(done.stdout)["checks"]}
    assert found[made, "acl"]["level"] == "ok"
    assert found[made, "retention.ms"]["level"] == "ok"
    assert found["this machine", "clock rate"]["level"] == "ok"
    assert [c["name"] for c in found.values() if c["level"] == "skipped"] == []
    text = run("doctor", "--watch", "0")
    assert "nothing endangers the guarantees" in text.stdout


def test_the_probe_measures_a_silent_cluster_and_leaves_nothing(
    run: Cli, made: str, kafka: EmbeddedKafka
) -> None:
    assert checks(run, "--watch", "0")["this machine", "clock rate"]["level"] == "skipped"
    assert checks(run, "--watch", "0", "--probe")["this machine", "clock rate"]["level"] == "ok"
    assert [t for t in kafka.admin().list_topics().topics if "doctor" in t and made in t] == []


def test_what_is_wrong_is_found_and_mended_by_the_printed_command(
    run: Cli, topic: str, kafka: EmbeddedKafka
) -> None:
    missing = run("doctor")
    assert missing.returncode == 1
    assert f"topic create --topic {topic}" in missing.stdout

    admin = kafka.admin()
    config = {
        "unclean.leader.election.enable": "true",
        "retention.ms": "1000000",
        "cleanup.policy": "compact",
    }
    admin.create_topics([NewTopic(topic, 2, 1, config=config)])[topic].result()
    assert run("topic", "create").returncode == 1  # makes the snapshot topic
    found = checks(run, "--watch", "0")
    bad = {name: c for (_, name), c in found.items() if c["level"] in ("warning", "error")}
    assert bad.keys() == {*config, "message.timestamp.type"}
    for check in bad.values():
        apply(kafka, shlex.split(check["fix"]))
    assert run("doctor", "--watch", "0").returncode == 0


def apply(kafka: EmbeddedKafka, command: list[str]) -> None:
    """Do what `kafka-configs.sh --alter` does."""
    assert command[0] == "kafka-configs.sh"
    value = dict(itertools.pairwise(command))
    name, setting = value["--add-config"].split("=", 1)
    entry = ConfigEntry(name, setting, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(
        ResourceType.TOPIC, value["--entity-name"], incremental_configs=[entry]
    )
    admin = kafka.admin()  # the answer comes only while there is somebody to hear it
    admin.incremental_alter_configs([resource])[resource].result()
