"""A database that is not the one it was, and a second configuration: real servers and processes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
import yaml

from harvest.databases.postgres.mark import PostgresMarkStore
from harvest.databases.postgres.range import PostgresRangeStore
from marshal_py.embedded import EmbeddedKafka
from tests.support.harvest_world import Harvester, forget, wait_until
from tests.support.kafka_reader import read_topic

INSERT = (
    "INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, "
    "kafka_header_values) SELECT now(), %s, 'k', v, '{}', '{}' FROM unnest(%s::text[]) v"
)


class Outbox:
    """A table that both modes can harvest, and processes of any configuration."""

    def __init__(self, folder: Path, url: str, servers: str, topic: str) -> None:
        self.folder, self.url, self.servers, self.topic = folder, url, servers, topic
        self.harvesters: list[Harvester] = []
        for kind in (PostgresMarkStore, PostgresRangeStore):
            with closing(kind(url, "outbox")) as store:
                store.init()

    def config(self, mode: str, group: str = "g", **more: object) -> Path:
        path = self.folder / f"{mode}-{group}-{len(more)}.yaml"
        values = {
            "kafka": {"bootstrap.servers": self.servers},
            "database": self.url,
            "group": f"{self.topic}.{group}",
            "mode": mode,
            "coordination": {
                "topic": f"{self.topic}.marshal",
                "interval_ms": 500,
                "create_topics": True,
            },
            **more,
        }
        path.write_text(yaml.safe_dump(values))
        return path

    def start(self, config: Path) -> Harvester:
        log = self.folder / f"{len(self.harvesters)}.log"
        self.harvesters.append(Harvester(config, log))
        return self.harvesters[-1]

    def insert(self, *values: str) -> None:
        with psycopg.connect(self.url) as connection:
            connection.execute(INSERT, (self.topic, list(values)))

    def sql(self, statement: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(statement)

    def values(self) -> list[str]:
        return [(value or b"").decode() for _, value, _ in read_topic(self.servers, self.topic)]

    def wait(self, *values: str) -> None:
        log = self.harvesters[-1].log
        wait_until(lambda: set(values) <= set(self.values()), f"{values} published", log)

    def harvest(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "harvest.cli", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.fixture
def outbox(
    tmp_path: Path,
    postgres_database: str,
    kafka: EmbeddedKafka,
    kafka_topic: Callable[[], str],
) -> Iterator[Outbox]:
    topic = kafka_topic()
    made = Outbox(tmp_path, postgres_database, kafka.bootstrap_servers, topic)
    yield made
    for harvester in made.harvesters:
        harvester.kill()
    forget(kafka, topic)


def test_another_configuration_is_refused_and_a_switch_repeats_nothing(outbox: Outbox) -> None:
    mark, ranges = outbox.config("mark"), outbox.config("range")
    first = outbox.start(mark)
    outbox.insert("a1", "a2")
    outbox.wait("a1", "a2")
    for other in (ranges, outbox.config("mark", "h")):
        refused = outbox.harvest("reap", "--config", str(other))
        assert refused.returncode == 2
        assert "two configurations would publish rows twice" in refused.stderr
    running = outbox.harvest("switch", "--config", str(ranges))
    assert running.returncode == 2
    assert "a harvester of outbox is running" in running.stderr
    assert first.stop() == 0

    outbox.insert("b1")
    dry = json.loads(
        outbox.harvest("switch", "--config", str(ranges), "--dry-run", "--json").stdout
    )
    assert (dry["dry_run"], dry["deleted"], dry["waiting"]) == (True, 0, 1)
    assert outbox.harvest("switch", "--config", str(ranges)).returncode == 0
    second = outbox.start(ranges)
    outbox.wait("b1")
    outbox.insert("b2", "b3")
    outbox.wait("b2", "b3")
    assert second.stop() == 0

    outbox.insert("c1")
    done = json.loads(outbox.harvest("switch", "--config", str(mark), "--json").stdout)
    assert (done["deleted"], done["waiting"]) == (3, 1)
    again = outbox.harvest("switch", "--config", str(mark))
    assert "nothing to do" in again.stdout
    third = outbox.start(mark)
    outbox.wait("c1")
    assert third.stop() == 0
    assert outbox.values() == ["a1", "a2", "b1", "b2", "b3", "c1"]


def test_an_emptied_table_stops_range_mode_until_its_position_is_reset(outbox: Outbox) -> None:
    config = outbox.config("range")
    harvester = outbox.start(config)
    outbox.insert(*[f"old{n}" for n in range(50)])
    outbox.wait("old49")
    outbox.sql("TRUNCATE outbox RESTART IDENTITY")
    outbox.insert(*[f"new{n}" for n in range(80)])  # more than before: the ids pass the position
    harvester.wait_said("NOTHING IS PUBLISHED: its ids were begun anew")
    dry = outbox.harvest("checkpoint", "accept", "--config", str(config), "--dry-run")
    assert dry.returncode == 1
    assert "its ids were begun anew" in dry.stdout
    checked = outbox.harvest("check", "--config", str(config))
    assert checked.returncode == 1
    assert "its ids were begun anew" in checked.stdout
    reset = outbox.harvest("checkpoint", "reset", "--config", str(config))
    assert reset.returncode == 0, reset.stderr
    outbox.wait(*[f"new{n}" for n in range(80)])


def test_ids_that_passed_the_position_again_meanwhile_are_noticed(outbox: Outbox) -> None:
    config = outbox.config("range")
    assert _run(outbox, config, "old") == 0
    outbox.sql("DELETE FROM outbox")
    outbox.sql("SELECT setval('outbox_id_seq', 1, false)")
    outbox.insert("new1", "new2", "new3")
    harvester = outbox.start(config)
    harvester.wait_said("NOTHING IS PUBLISHED: the row with id 1 is another one")
    reset = outbox.harvest("checkpoint", "reset", "--config", str(config))
    assert reset.returncode == 0, reset.stderr
    outbox.wait("new1", "new2", "new3")
    assert outbox.values() == ["old", "new1", "new2", "new3"]


def test_a_sequence_that_was_set_back_below_rows_that_are_kept_is_noticed(outbox: Outbox) -> None:
    """Their ids are in nobody's way where the partitions below were dropped."""
    config = outbox.config("range")
    outbox.sql("SELECT setval('outbox_id_seq', 1000)")
    assert _run(outbox, config, "old") == 0
    outbox.sql("SELECT setval('outbox_id_seq', 5)")
    outbox.insert("new1", "new2")
    harvester = outbox.start(config)
    harvester.wait_said("NOTHING IS PUBLISHED: the checkpoint is at id 1001, and the table has")
    checked = outbox.harvest("check", "--config", str(config))
    assert checked.returncode == 1
    assert "has drawn ids up to 7 only" in checked.stdout
    reset = outbox.harvest("checkpoint", "reset", "--config", str(config))
    assert reset.returncode == 0, reset.stderr
    outbox.wait("new1", "new2")
    assert sorted(outbox.values()) == ["new1", "new2", "old", "old"]


def test_rows_below_an_id_that_an_application_chose_itself_are_published(outbox: Outbox) -> None:
    config = outbox.config("range")
    outbox.sql("ALTER SEQUENCE outbox_id_seq RESTART 1000")
    outbox.insert("chosen")
    outbox.sql("UPDATE outbox SET id = 9223372036854775807")
    harvester = outbox.start(config)
    outbox.wait("chosen")
    outbox.insert("drawn")
    outbox.wait("drawn")
    assert harvester.stop() == 0
    assert _run(outbox, config, "later") == 0
    assert outbox.values() == ["chosen", "drawn", "later"]


def test_an_emptied_table_is_no_matter_to_mark_mode(outbox: Outbox) -> None:
    outbox.start(outbox.config("mark"))
    outbox.insert(*[f"old{n}" for n in range(20)])
    outbox.wait("old19")
    outbox.sql("TRUNCATE outbox RESTART IDENTITY")
    outbox.insert(*[f"new{n}" for n in range(30)])
    outbox.wait("new29")
    assert [v for v in outbox.values() if v.startswith("new")] == [f"new{n}" for n in range(30)]


@pytest.mark.parametrize("mode", ["mark", "range"])
def test_a_database_that_went_back_is_noticed_before_anything_is_published(
    outbox: Outbox, mode: str
) -> None:
    config = outbox.config(mode)
    assert _run(outbox, config, "a1") == 0
    outbox.sql("CREATE TABLE backup AS SELECT * FROM outbox_registration")
    assert _run(outbox, config, "a2") == 0
    outbox.sql("UPDATE outbox_registration r SET visit = b.visit, token = b.token FROM backup b")
    outbox.insert("a3")
    harvester = outbox.start(config)
    harvester.wait_said("NOTHING IS PUBLISHED: it has gone back in time")
    assert "a3" not in outbox.values()
    accepted = outbox.harvest("checkpoint", "accept", "--config", str(config))
    assert accepted.returncode == 0, accepted.stderr
    outbox.wait("a3")
    assert outbox.values() == ["a1", "a2", "a3"]


def _run(outbox: Outbox, config: Path, value: str) -> int:
    harvester = outbox.start(config)
    outbox.insert(value)
    outbox.wait(value)
    return harvester.stop()
