"""docs/deploy/lake_pipeline on a lake, run by the lines of docs/how-to/lake.md."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from marshal_py.embedded.java import find_java
from marshal_py.spark.lake.tables import LAKE_TABLES, Lake
from tests.support.paths import DOCS
from tests.support.spark_cluster import SPARK_HOME

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.campaign

FOR_TESTS = """
spark.driver.memory 1g
spark.ui.enabled false
spark.ui.showConsoleProgress false
spark.sql.shuffle.partitions 2
spark.databricks.delta.snapshotPartitions 2
"""
_LAST_LINE = "\nEND\n"


class Pipeline:
    """The example, beside a lake of a test."""

    def __init__(self, spark: SparkSession, lake: Lake, folder: Path) -> None:
        self._spark, self._folder = spark, folder / "pipeline"
        shutil.copytree(DOCS / "deploy" / "lake_pipeline", self._folder)
        spec = self._folder / "spark-pipeline.yml"
        text = spec.read_text().replace("/data/pipeline", str(folder / "state"))
        spec.write_text(text.replace("/data/lake", lake.place))
        page = (DOCS / "how-to" / "lake.md").read_text()
        [lines] = [b for b in re.findall(r"```sh\n(.*?)```", page, re.DOTALL) if "pipelines" in b]
        assert _LAST_LINE in lines
        self._lines = lines.replace(_LAST_LINE, f"{FOR_TESTS.rstrip()}{_LAST_LINE}")

    def run(self) -> None:
        java = str(find_java().executable.resolve().parents[1])
        path = os.pathsep.join(map(str, (Path(sys.executable).parent, SPARK_HOME / "bin")))
        own = {"JAVA_HOME": java, "PATH": f"{path}{os.pathsep}{os.environ['PATH']}"}
        # What the session of the test has set is not for another one.
        others = {name: value for name, value in os.environ.items() if "SPARK" not in name}
        done = subprocess.run(
            ["sh", "-ec", self._lines],
            cwd=self._folder,
            env={**others, **own},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]

    def rows(self, table: str, *columns: str) -> list[tuple[Any, ...]]:
        place = str(self._folder / "spark-warehouse" / table)
        frame = self._spark.read.parquet(place).select(*columns)
        return sorted(tuple(row) for row in frame.collect())


def add_published(spark: SparkSession, lake: Lake, *ids: int) -> None:
    """Records, and their deliveries, as a run of the lake has them."""
    rows = spark.createDataFrame([(id,) for id in ids], "id long").selectExpr(
        "id", "timestamp_seconds(id) AS at", "cast('v' AS binary) AS value", "1L AS latency_ms"
    )
    for table in ("bronze.published", "silver.deliveries"):
        names = {column.name for column in LAKE_TABLES[table]} - {*rows.columns, "day"}
        missing = [f"NULL AS `{name}`" for name in names]
        lake.append(table, rows.selectExpr("*", *missing, "to_date(at) AS day"))


def test_a_pipeline_keeps_tables_of_its_own(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake.at(str(tmp_path / "lake"))
    add_published(spark, lake, 1, 2)
    names = [column.name for column in LAKE_TABLES["gold.findings"]]
    lost = [f"NULL AS `{name}`" for name in names if name not in ("kind", "day")]
    one = spark.range(2).selectExpr("'lost' AS kind", "DATE '2026-11-21' AS day", *lost)
    lake.append("gold.findings", one)

    pipeline = Pipeline(spark, lake, tmp_path)
    pipeline.run()
    assert pipeline.rows("published_orders", "id") == [(1,), (2,)]
    assert pipeline.rows("health", "kind", "count") == [("lost", 2)]

    add_published(spark, lake, 3)
    pipeline.run()
    assert pipeline.rows("published_orders", "id", "content") == [(n, "v") for n in (1, 2, 3)]
    assert pipeline.rows("slowest_orders", "id") == [(1,), (2,), (3,)]
