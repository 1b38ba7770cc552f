"""A backlog job on two executors, whose tasks die in their first attempt:
python -m tests.spark.backlog_app CONFIG FOLDER. Each death leaves a file in FOLDER/deaths."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harvest.config.load import load
from harvest.core.failure import Failure
from harvest.core.interfaces.sink import Sink
from harvest.core.row import Row
from harvest.spark.backlog import backlog
from marshal_py.spark.session import spark_session

TRANSACTIONS = 5


class Mortal:
    """Ends the process of the first attempt of a task, in the middle of a transaction."""

    atomic = True

    def __init__(self, sink: Any, deaths: Path) -> None:
        from pyspark import TaskContext

        self._sink = sink
        self._deaths = deaths
        context = TaskContext.get()
        assert context is not None
        self._task = context.partitionId()
        self._first = context.attemptNumber() == 0
        self._count = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)

    def deliver(self, rows: Sequence[Row], checkpoint: str) -> Failure | None:
        self._count += 1
        time.sleep(0.3)  # so that a kill from outside finds it at work
        if self._first and self._count > TRANSACTIONS:
            producer = self._sink._producer
            producer.begin_transaction()
            for row in rows:
                producer.produce(row[1], row[3], row[2])
            producer.flush(60)
            (self._deaths / str(self._task)).touch()
            os._exit(1)
        found: Failure | None = self._sink.deliver(rows, checkpoint)
        return found


def main(config: str, folder: str) -> None:
    deaths = Path(folder) / "deaths"
    deaths.mkdir(exist_ok=True)

    def wrap(sink: Sink) -> Any:
        return Mortal(sink, deaths)

    spark = spark_session(
        "backlog_app",
        master="local-cluster[2,1,512]",
        settings={"spark.executor.memory": "512m", "spark.driver.memory": "512m"},
        kafka=False,
    )
    result = backlog(spark, [load(config)], shards_per_task=1, wrap_sink=wrap)
    print(result, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
