"""Two drivers that create the same objects, both looking before either puts: run by test_lake_s3.

    python -m tests.spark.s3_race s3a://BUCKET/FOLDER

Prints, of a checkpoint's file and of a table's log, what the second one met and what is there.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from py4j.protocol import Py4JJavaError

from marshal_py.spark.session import spark_session


def main(folder: str) -> None:
    """Create, and print."""
    spark = spark_session("race", master="local[1]", kafka=False, delta=True, s3=True)
    jvm: Any = spark._jvm
    settings = spark._jsc.hadoopConfiguration()

    def text(path: Any) -> str:
        with_lines = spark.read.text(path.toString()).collect()
        return "".join(row[0] for row in with_lines)

    def outcome(path: Any, second: Any) -> dict[str, str]:
        try:
            second()
            met = "nothing"
        except Py4JJavaError as error:
            met = error.java_exception.getClass().getSimpleName()
        return {"met": met, "there": text(path)}

    offsets = jvm.org.apache.hadoop.fs.Path(f"{folder}/offsets/0")
    one, other = (
        jvm.marshal.spark.ConditionalPutCheckpoints(offsets, settings).createAtomic(offsets, False)
        for _ in range(2)
    )
    one.write(b"one")
    other.write(b"other")
    one.close()
    found = {"checkpoint": outcome(offsets, other.close)}

    commit = jvm.org.apache.hadoop.fs.Path(f"{folder}/_delta_log/0.json")
    log = jvm.marshal.spark.ConditionalPutLogStore(settings)

    def write(content: str) -> None:
        lines = jvm.java.util.ArrayList()
        lines.add(content)
        log.write(commit, lines.iterator(), False, settings)

    write("one")
    write("one")  # a request that is repeated, since its answer was lost
    found["log"] = outcome(commit, lambda: write("other"))
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
