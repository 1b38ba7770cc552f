"""`harvest reconcile` reads what `harvest partitions` archives, as it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from harvest.maintenance.archive import ParquetArchive
from harvest.maintenance.partitions import Extent, Partition, PartitionStore
from harvest.spark.reconcile import Outbox, reconcile
from tests.spark.test_reconcile import LONG_AGO, Row, World, kinds, world

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["world"]

pytestmark = pytest.mark.kafka


class Partitions:
    """Partitions of `rows`, as an archive sees them before they are dropped."""

    def __init__(self, rows: list[Row]) -> None:
        self._rows = rows

    def _of(self, partition: Partition) -> list[Row]:
        return [row for row in self._rows if partition.low <= row[0] < partition.high]

    def extent(self, partition: Partition) -> Extent:
        ids = [row[0] for row in self._of(partition)]
        return Extent(len(ids), min(ids), max(ids))

    def rows(self, partition: Partition, limit: int) -> Iterator[list[tuple[Any, ...]]]:
        yield [
            (id, LONG_AGO, topic, _bytes(key), _bytes(value), names, values)
            for id, topic, key, value, names, values in self._of(partition)
        ]


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def test_the_files_of_a_partition_archive(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    rows = world.rows(200)
    store = cast(PartitionStore, Partitions(rows))
    for part in (Partition("a", 0, 100), Partition("b", 100, 300)):
        ParquetArchive(tmp_path, "outbox").keep(part, store)
    # Of an outbox that shares the folder: its rows would be missing.
    ParquetArchive(tmp_path, "audit").keep(Partition("a", 0, 100), store)
    (tmp_path / ".outbox-0-99.parquet.dead.tmp").write_bytes(b"PAR1")  # a manager was killed
    world.publish(rows[:-1])
    outbox = Outbox(parquet=str(tmp_path))
    assert kinds(reconcile(spark, outbox, world.servers, grace_s=0)) == [("missing", 200)]
    world.publish(rows[-1:])
    assert reconcile(spark, outbox, world.servers, grace_s=0).clean
