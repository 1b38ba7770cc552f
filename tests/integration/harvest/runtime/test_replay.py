"""Published rows are published again: from archived partitions, and from those that are left."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from typer.testing import CliRunner, Result

from harvest.cli.app import app
from harvest.databases.postgres.partitions import PostgresPartitions
from harvest.databases.postgres.range import PostgresRangeStore
from marshal_py.cli.exit_codes import USAGE
from marshal_py.embedded import EmbeddedKafka
from tests.support.harvest_world import World
from tests.support.kafka_reader import read_topic

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(400)]

ROWS, KEYS = 250, 7
FILL = (
    "INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, "
    "kafka_header_values) SELECT now() - interval '1 hour', %s, 'k' || n %% 7, "
    "CASE WHEN n %% 10 > 0 THEN n::text END, ARRAY['n'], ARRAY[n::text] "
    "FROM generate_series(1, %s) n"
)


@pytest.fixture
def world(
    tmp_path: Path,
    kafka: EmbeddedKafka,
    kafka_topic: Callable[..., str],
    postgres_database: str,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[World]:
    """An outbox of 250 published rows, of which 1 to 199 are archived and dropped.

    They are read, and published again, 60 at a time.
    """
    monkeypatch.setattr("harvest.runtime.replay._BATCH", 60)
    topic = kafka_topic(partitions=3)
    made = World(tmp_path, kafka.bootstrap_servers, postgres_database, topic, mode="range")
    with made.config.open("a") as file:
        file.write(
            "partitions: {automatic: false, rows: 100, retain_hours: 0, "
            f"archive: '{tmp_path / 'archive'}'}}\n"
        )
    with made.opened(kafka, PostgresRangeStore(postgres_database, "outbox")):
        with closing(PostgresPartitions(postgres_database, "outbox")) as parts:
            for partition in parts.inventory().partitions:  # of a million ids each
                assert parts.drop(partition)
        assert run("partitions", made).exit_code == 0
        with psycopg.connect(postgres_database) as connection:
            connection.execute(FILL, (topic, ROWS))
        harvester = made.harvester()
        made.wait_published(ROWS - 1)
        assert harvester.stop() == 0
        yield made


def run(command: str, world: World, *options: str) -> Result:
    return CliRunner().invoke(app, [command, "--config", str(world.config), *options])


def replay(world: World, low: int, high: int, *options: str) -> dict[str, Any]:
    ends = ("--from", str(low), "--to", str(high), "--topic", world.topic)
    result = run("replay", world, *ends, "--json", *options)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    report: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    assert result.exit_code == (0 if report["rows"] else 1)
    return report


def by_key(records: list[Any]) -> dict[bytes, list[int]]:
    found = defaultdict(list)
    for key, value, headers in records:
        ids = dict(headers)
        assert value == (ids["n"] if int(ids["n"]) % 10 else None)
        assert ids.get("harvest.replay", ids["n"]) == ids["n"]
        found[key].append(int(ids["n"]))
    return found


def test_what_was_published_is_published_again(
    world: World, kafka: EmbeddedKafka, kafka_topic: Callable[..., str], tmp_path: Path
) -> None:
    would = json.loads(run("partitions", world, "--dry-run", "--json").stdout)
    files = [tmp_path / "archive" / f"outbox-{low}-{low + 99}.parquet" for low in (0, 100)]
    assert [one["archive"] for one in would["dropped"]] == [str(file) for file in files]
    assert not files[0].exists()
    whole = replay(world, 1, ROWS, "--dry-run")
    (tmp_path / "archive").mkdir()
    (tmp_path / "archive" / files[1].name).write_bytes(b"of something else")
    result = run("partitions", world)
    assert result.exit_code == 1
    assert "NOT" in result.stdout
    files[1].unlink()
    assert run("partitions", world).exit_code == 0
    with psycopg.connect(world.database) as connection:
        assert connection.execute("SELECT min(id) FROM outbox").fetchall() == [(200,)]

    assert replay(world, 1, ROWS, "--dry-run") == whole
    assert (whole["rows"], whole["first_id"], whole["last_id"]) == (ROWS, 1, ROWS)
    again = kafka_topic(partitions=3)
    report = replay(world, 50, 230, "--into", again)
    assert (report["rows"], report["into"]) == (181, again)
    found = by_key(read_topic(world.servers, again))
    assert found == {b"k%d" % k: [n for n in range(50, 231) if n % KEYS == k] for k in range(KEYS)}
    # Into its own topic, behind what was there.
    replay(world, 190, 210)
    records = read_topic(world.servers, world.topic)
    assert sum("harvest.replay" in dict(headers) for *_, headers in records) == 21
    for key, ids in by_key(records).items():
        k = int(key[1:])
        expected = [n for n in range(1, ROWS + 1) if n % KEYS == k]
        assert ids == expected + [n for n in range(190, 211) if n % KEYS == k]


def test_what_never_was_published_is_left_out(
    world: World, kafka: EmbeddedKafka, kafka_topic: Callable[..., str]
) -> None:
    """Rows that are set aside stay in the table, below the checkpoint (specs/HARVEST.md §11)."""
    bad = (
        "INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, "
        "kafka_header_values) VALUES (now(), %s, 'k1', 'x', '{a,b}', '{1}')"
    )
    with psycopg.connect(world.database) as connection:
        connection.execute(bad, (world.topic,))
        connection.execute(FILL, (world.topic, 2 * KEYS))
    harvester = world.harvester()
    world.wait_published(ROWS + 2 * KEYS - 3)  # two wait behind the bad row
    assert harvester.stop() == 0
    low, high = ROWS + 1, ROWS + 1 + 2 * KEYS
    assert replay(world, low, high, "--dry-run")["rows"] == 2 * KEYS - 2
    again = kafka_topic(partitions=3)
    assert replay(world, low, high, "--into", again)["rows"] == 2 * KEYS - 2
    keys = {key for key, *_ in read_topic(world.servers, again)}
    assert keys == {b"k%d" % k for k in range(KEYS) if k != 1}


def test_what_is_refused_and_what_is_not_there(world: World) -> None:
    one = f"--topic={world.topic}"
    for low, high, options, said in (
        (9, 8, [one], "--from 9 --to 8"),
        (-1, 5, [one], "--from -1"),
        (1, ROWS + 1, [one], "not published yet"),
        (1, 9, [one, f"--into={world.topic}.none"], "no topic"),
    ):
        result = run("replay", world, f"--from={low}", f"--to={high}", *options)
        assert (result.exit_code, said in result.stderr) == (2, True)
    result = run("replay", world, "--from=1", "--to=9", "--topic=other", "--dry-run")
    assert (result.exit_code, "no rows of other" in result.stdout) == (1, True)


def test_no_partition_of_a_table_that_was_made_anew_is_dropped_by_hand(world: World) -> None:
    """What was published are the rows of the old one, under the same ids."""
    with psycopg.connect(world.database) as connection:
        connection.execute("DROP TABLE outbox CASCADE")
    with closing(PostgresRangeStore(world.database, "outbox")) as store:
        store.init()
    with closing(PostgresPartitions(world.database, "outbox")) as parts:
        for partition in parts.inventory().partitions:
            assert parts.drop(partition)
        for low in (0, 100, 200):
            parts.create(low, low + 100)
    with psycopg.connect(world.database) as connection:
        connection.execute(FILL, (world.topic, ROWS))
    for options in ((), ("--dry-run",), ("--json",)):
        result = run("partitions", world, *options)
        assert result.exit_code == USAGE
        assert "the table was made anew" in result.output
    with psycopg.connect(world.database) as connection:
        assert connection.execute("SELECT count(*) FROM outbox").fetchone() == (ROWS,)
