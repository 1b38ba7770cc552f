"""What is read of an archive that is not there. No Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from pyspark.errors import AnalysisException

from harvest.errors import ConfigurationError
from harvest.spark.reconcile import Outbox, _topics
from harvest.spark.sources import ids_of_parquet


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
        lambda: ids_of_parquet(spark, "/typo", [(1, 2)]),
    ):
        with pytest.raises(ConfigurationError, match="/typo: there are no Parquet files"):
            read()


def test_what_else_spark_refuses_is_told_as_it_is() -> None:
    with pytest.raises(Refused):
        Outbox(parquet="/a", shards=1).frame(spark_that_says("INTERNAL_ERROR"))
