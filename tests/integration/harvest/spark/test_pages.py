"""Rows that are read once for all shards are those that each shard would read itself."""

from __future__ import annotations

import psycopg
import pytest

from harvest.databases.postgres.range import PostgresRangeStore
from harvest.spark.pages import PagedStore, Pages

SHARDS = 3
FILL = """
INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_value,
                    kafka_header_keys, kafka_header_values)
SELECT now(), 't', {key}, n::text, '{{}}', '{{}}' FROM generate_series(1, 400) AS n
"""


@pytest.mark.parametrize(
    ("key_type", "key"),
    [
        ("text", "'key-' || n || ' ü '"),
        ("character(12)", "'k' || n"),
        ("bytea", "int4send(n)"),
        ("text", "CASE WHEN n %% 7 > 0 THEN n::text END"),
        ("integer", "n"),
    ],
)
def test_the_rows_of_each_shard(postgres_database: str, key_type: str, key: str) -> None:
    with psycopg.connect(postgres_database) as connection:
        PostgresRangeStore(postgres_database, "outbox").init()
        connection.execute("ALTER TABLE outbox ALTER kafka_key DROP NOT NULL")
        connection.execute("ALTER TABLE outbox ALTER kafka_key TYPE " + key_type + " USING NULL")
        connection.execute(FILL.format(key=key).replace("%%", "%"))
        connection.execute("DELETE FROM outbox WHERE id % 50 = 0")
    whole = PostgresRangeStore(postgres_database, "outbox", shards=SHARDS)
    pages = Pages(whole, SHARDS)
    for shard in range(SHARDS):
        alone = PostgresRangeStore(postgres_database, "outbox", shard=shard, shards=SHARDS)
        paged = PagedStore(postgres_database, "outbox", shard=shard, shards=SHARDS, pages=pages)
        expected, found = alone.read(0, 1_000), paged.read(0, 1_000)
        assert 0 < len(expected.rows) < 400
        assert [row[:6] for row in found.rows] == [tuple(row[:6]) for row in expected.rows]
        assert found[1:] == (expected.last_id, list(expected.missing), False)
        assert [row[0] for row in paged.fetch([(1, 400)])] == [row[0] for row in found.rows]
        alone.close()
        paged.close()
    pages.close()
