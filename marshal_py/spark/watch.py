"""Ends the jobs of a driver whose cluster is gone, which Spark lets wait for ever.

::

    with cluster_watched(spark):
        frame.write.parquet(…)  # or query.awaitTermination()

A job that no executor is there for waits until there is one: rightly so for a moment, while the
cluster makes room; for ever when its master and its workers are gone. A driver that holds claims
meanwhile keeps them from everybody else.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from marshal_py.errors import ClusterLost, ConfigurationError

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

__all__ = ["TIMEOUT_SETTING", "cluster_watched"]

TIMEOUT_SETTING: Final = "spark.marshal.noExecutorsTimeoutSeconds"
"""A Spark setting, as in ``spark-submit --conf``; 300 by default."""

_DEFAULT_S: Final = 300.0
_LOOK_S: Final = 1.0


@contextlib.contextmanager
def cluster_watched(spark: SparkSession) -> Iterator[None]:
    """Within the block, end a job for which there has been no executor for too long.

    How long says the setting ``spark.marshal.noExecutorsTimeoutSeconds``. All jobs of the session
    are cancelled then, the micro-batches of its streaming queries included, and the block raises
    `ClusterLost`. Sessions on this machine, and those of Spark Connect (which do not tell), are not
    watched.

    Raises `ConfigurationError` for a time that is none, `ClusterLost`.
    """
    timeout_s = _timeout_s(spark)
    watch = _Watch.of(spark, timeout_s)
    if watch is None:
        yield
        return
    with watch:
        try:
            yield
        except Exception as error:
            if watch.lost:
                raise ClusterLost(
                    f"no executor for {timeout_s:g} s: the cluster is gone, or gives this "
                    "application nothing; its jobs were cancelled. Look at the cluster, then start "
                    f"this again; if it had to wait for longer, set {TIMEOUT_SETTING}"
                ) from error
            raise


def _timeout_s(spark: SparkSession) -> float:
    given = spark.conf.get(TIMEOUT_SETTING, f"{_DEFAULT_S:g}") or ""
    try:
        found = float(given)
    except ValueError:
        found = 0.0
    if not found > 0:
        raise ConfigurationError(
            f"{TIMEOUT_SETTING} = {given!r} must be a number of seconds above 0"
        )
    return found


class _Watch:
    """A thread that looks at the executors of a session once in a while."""

    def __init__(self, context: SparkContext, timeout_s: float) -> None:
        self.lost = False
        self._context, self._timeout_s = context, timeout_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="marshal-cluster", daemon=True)

    @classmethod
    def of(cls, spark: SparkSession, timeout_s: float) -> _Watch | None:
        """One for a session whose executors are elsewhere, None for others."""
        try:
            context = spark.sparkContext
        except Exception:  # Spark Connect has none, and an error of its own for that
            return None
        return None if (context.master or "").startswith("local") else cls(context, timeout_s)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        tracker = self._context.statusTracker()
        since = time.monotonic()
        while not self._ended.wait(min(_LOOK_S, self._timeout_s / 4)):
            try:
                waits = bool(tracker.getActiveJobsIds())
                executors = len(tracker.getExecutorInfos()) - 1  # the driver is among them
            except Exception:  # the session was stopped, and its jobs with it
                return
            if executors or not waits:
                since = time.monotonic()
            elif time.monotonic() - since > self._timeout_s:
                self.lost = True
                with contextlib.suppress(Exception):
                    self._context.cancelAllJobs()
