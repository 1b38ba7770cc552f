"""What is read of an archive, and of one that is not there. No Spark."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from pyspark.errors import AnalysisException

from harvest.errors import ConfigurationError
from harvest.spark.reconcile import Outbox, _topics
from harvest.spark.sources import ids_of_parquet, read_archive


class Refused(AnalysisException):
    """As Spark refuses to read."""

    def __init__(self, condition: str) -> None:
        super().__init__(condition)
        self._condition = condition

    def getCondition(self) -> str:
        return self._condition


def spark_that_says(condition: str) -> Any:
    def parquet(_: str) -> None:
        raise Refused(condition)

    return SimpleNamespace(read=SimpleNamespace(parquet=parquet))


@pytest.mark.parametrize("condition", ["PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA"])
def test_an_archive_that_is_not_there_is_a_mistake_of_whoever_named_it(condition: str) -> None:
    spark = spark_that_says(condition)
    outbox = Outbox(parquet="/typo", shards=1)
    for read in (
        lambda: _topics(spark, outbox),
        lambda: outbox.frame(spark),
        lambda: ids_of_parquet(spark, "/typo", "outbox", [(1, 2)]),
    ):
        with pytest.raises(ConfigurationError, match="/typo: there are no Parquet files"):
            read()


def test_what_else_spark_refuses_is_told_as_it_is() -> None:
    with pytest.raises(Refused):
        Outbox(parquet="/a", shards=1).frame(spark_that_says("INTERNAL_ERROR"))


class Files:
    """What Spark makes of files of these names; `rule` is what it was told to take of them."""

    def __init__(self, *names: str) -> None:
        self._names = names
        self.rule: str | None = None
        self.schema = None

    def inputFiles(self) -> list[str]:
        return [f"file:///archive/{name}" for name in self._names]

    def __getitem__(self, column: str) -> Any:
        assert column == "_metadata.file_name"
        return SimpleNamespace(rlike=lambda rule: rule)

    def filter(self, rule: str) -> Files:
        self.rule = rule
        return self


def taken(table: str, *names: str) -> list[str]:
    """The files that are read of an archive for an outbox."""
    files = Files(*names)
    spark: Any = SimpleNamespace(read=SimpleNamespace(parquet=lambda _: files))
    read_archive(spark, "/archive", table)
    return [name for name in names if files.rule is None or re.search(files.rule, name)]


def test_of_a_folder_that_outboxes_share_each_has_its_own_files() -> None:
    """Another one's rows would be missing from the topics, or their records never committed."""
    shared = ("outbox-0-9.parquet", "outbox-2-0-9.parquet", "sales.orders-0-9.parquet")
    assert taken("outbox", *shared) == ["outbox-0-9.parquet"]
    assert taken("sales.orders", *shared) == ["sales.orders-0-9.parquet"]
    with pytest.raises(
        ConfigurationError, match=r"of the outbox audit, but outbox-0-9\.parquet, say"
    ):
        taken("audit", *shared)


def test_files_of_another_origin_are_all_of_an_outbox() -> None:
    written = ("part-00000-8c1a-c000.snappy.parquet", "rows.parquet")
    assert taken("audit", *written) == list(written)


def test_a_state_knows_of_which_outbox_an_archive_was_read() -> None:
    """Two outboxes of one folder must not go on from one state."""
    assert Outbox(parquet="/a").name == "/a"
    assert Outbox(parquet="/a", table="audit").name == "/a, audit"
