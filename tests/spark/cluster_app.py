"""An application as a user may write it, for a cluster: it does what a test tells it to.

spark-submit … tests/spark/cluster_app.py SOCKET

Executors have nothing of `tests`: what they run is defined here, and goes to them by value.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark import TaskContext
from typer.testing import CliRunner

from harvest.cli.app import app as harvest
from marshal_py.cli.app import app as marshal
from marshal_py.spark.session import spark_session
from marshal_py.spark.source import MarshalSource
from marshal_py.spark.watch import cluster_watched
from tests.spark.source_app import begun

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

Step = Callable[[Iterator["pa.RecordBatch"]], Iterator["pa.RecordBatch"]]


def step(folder: Path, standing: list[int]) -> Step:
    """Notes in FOLDER/seen what it is given. The first attempts of the tasks in `standing` stand
    still in the middle, with a file FOLDER/working/TASK-PID, until there is FOLDER/go. Those of the
    others wait for that: else a copy might be made of one that has seen nothing."""

    def do_stand() -> bool:
        tasks = {int(path.name.partition("-")[0]) for path in (folder / "working").iterdir()}
        return tasks.issuperset(standing)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        task = context.partitionId()
        is_first = context.attemptNumber() == 0
        stands = is_first and task in standing
        with (folder / "seen" / uuid.uuid4().hex).open("ab", buffering=0) as seen:
            for batch in batches:
                seen.write(b"".join(v + b"\n" for v in batch.column("value").to_pylist()))
                if stands:
                    (folder / "working" / f"{task}-{os.getpid()}").touch()
                    while not (folder / "go").exists():
                        time.sleep(0.02)
                while is_first and not do_stand():
                    time.sleep(0.02)
                yield batch

    return run


def run_command(program: str, *arguments: str) -> list[int | str]:
    """Run `marshal` or `harvest` in this process: the exit code, what it printed, and its error."""
    result = CliRunner().invoke({"marshal": marshal, "harvest": harvest}[program], arguments)
    error = f"{result.stderr}{result.exception!r}" if result.exception else result.stderr
    return [result.exit_code, result.stdout, error]


def run_query(
    spark: SparkSession,
    folder: str,
    options: dict[str, str],
    standing: list[int],
    settings: dict[str, str],
) -> list[int]:
    """Run a query with the trigger availableNow into FOLDER/out, and return what is there then."""
    for name, value in settings.items():
        spark.conf.set(name, value)
    here = Path(folder)
    for name in ("seen", "working"):
        (here / name).mkdir(parents=True, exist_ok=True)
    writer = (
        spark.readStream.format("marshal")
        .options(**options)
        .load()
        .select("value")
        .mapInArrow(step(here, standing), "value binary")
        .selectExpr("cast(value AS string) AS value")
        .writeStream.format("json")
        .option("path", str(here / "out"))
        .option("checkpointLocation", str(here / "checkpoint"))
        .trigger(availableNow=True)
    )
    with cluster_watched(spark):
        begun(writer.start).awaitTermination()
    return sorted(int(row[0]) for row in spark.read.json(str(here / "out")).collect())


def main(address: str) -> None:
    spark = spark_session("application")
    spark.dataSource.register(MarshalSource)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        with connection.makefile("rw") as line:
            for order in line:
                answer: object
                try:
                    given = json.loads(order)
                    if isinstance(given, list):
                        answer = run_command(*given)
                    else:
                        answer = run_query(spark, **given)
                except Exception as error:
                    answer = f"{type(error).__name__}: {error}"
                line.write(json.dumps(answer) + "\n")
                line.flush()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
