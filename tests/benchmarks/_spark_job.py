"""One job of `spark_scale` or `spark_state`, in a driver of its own. Prints one line of JSON."""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from harvest.spark.reconcile import Outbox, reconcile
from marshal_py.spark.audit import audit
from marshal_py.spark.session import spark_session

_LOOK_S = 0.2
_SETTINGS = {
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC",
    "spark.executor.extraJavaOptions": "-XX:+UseSerialGC",
}


class Memory:
    """The most that the driver, and the largest worker, had: its JVM and its Python, in MB.

    `idle_mb`: what the driver had before the job.
    """

    def __init__(self, jvm: int) -> None:
        self._jvm = jvm
        self.idle_mb = self.driver_mb = self._of_driver()
        self.worker_mb = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look_again, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Look no more."""
        self._over.set()
        self._thread.join()

    def _of_driver(self) -> float:
        return _mb(self._jvm) + _mb("self")

    def _look_again(self) -> None:
        while not self._over.wait(_LOOK_S):
            executors = [pid for pid in _family(self._jvm) if _runs(pid, "CoarseGrainedExecutor")]
            of_workers = [sum(map(_mb, _family(pid))) for pid in executors]
            self.driver_mb = max(self.driver_mb, self._of_driver())
            self.worker_mb = max(self.worker_mb, *of_workers, 0.0)


def _family(pid: int) -> list[int]:
    found = [pid]
    for path in Path("/proc", str(pid), "task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [each for child in path.read_text().split() for each in _family(int(child))]
    return found


def _runs(pid: int, program: str) -> bool:
    try:
        return program in Path("/proc", str(pid), "cmdline").read_text()
    except OSError:
        return False


def _mb(pid: int | str) -> float:
    """What is a process's own, and its share of what it shares."""
    try:
        lines = Path("/proc", str(pid), "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def main() -> None:
    asked = json.loads(sys.argv[1])
    master = f"local-cluster[{asked['executors']},1,{asked['executor_mb']}]"
    settings = _SETTINGS | {"spark.executor.memory": f"{asked['executor_mb']}m"}
    spark = spark_session("spark_scale", master=master, settings=settings, delta=True)
    for _ in range(2):  # executors are there, and have their Python
        spark.range(100_000).mapInArrow(lambda batches: batches, "id long").count()
    jvm: Any = spark.sparkContext._jvm
    memory = Memory(jvm.java.lang.ProcessHandle.current().pid())
    started = time.perf_counter()
    if asked["job"] == "audit":
        done = audit(spark, asked["servers"], tempfile.mkdtemp(), topic=asked["topic"])
        found, seconds = done.records, done.seconds
    else:
        outbox = Outbox(dsn=asked["dsn"], table=asked["table"])
        state = tempfile.mkdtemp() if asked["job"] == "carry" else None
        compared = reconcile(spark, outbox, asked["servers"], state=state)
        found = sum(compared.findings.values())
        if state is not None:  # no record is new: what was carried over comes back
            found = reconcile(spark, outbox, asked["servers"], state=state).outstanding
        seconds = time.perf_counter() - started
    memory.close()
    figures = {"seconds": seconds, "found": found}
    figures |= {"idle_mb": memory.idle_mb, "driver_mb": memory.driver_mb}
    print(json.dumps(figures | {"worker_mb": memory.worker_mb}))
    spark.stop()


if __name__ == "__main__":
    main()
