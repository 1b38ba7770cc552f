"""Commands that start Spark by themselves, as processes of their own, for a few rows."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

__all__ = ["EXECUTOR", "QUICK", "QUICK_JAVA", "environment_for_spark"]

EXECUTOR: Final = b"CoarseGrainedExecutorBackend"
"""In the command line of an executor that is a process of its own."""

QUICK: Final = {
    # To compile a query takes longer than these few rows.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
QUICK_JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
"""Without the second compiler the cache has a fifth of that: a run of the lake can fill it, and a
JVM whose cache is full fails in strange ways."""


def environment_for_spark(settings: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Their environment: Spark's settings stand in FOLDER/spark-defaults.conf.

    A run takes two thirds of the processor time that it would take otherwise.
    """
    lines = [f"{name} {value}\n" for name, value in (QUICK | dict(settings)).items()]
    (folder / "spark-defaults.conf").write_text("".join(lines))
    return {**os.environ, "SPARK_CONF_DIR": str(folder), "_JAVA_OPTIONS": QUICK_JAVA}
