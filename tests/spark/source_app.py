"""A Spark application of its own that reads through the claim-gated source until it is killed.

python -m tests.spark.source_app BROKERS TOPIC CLIENT DELIVERY FOLDER
"""

from __future__ import annotations

import sys

from marshal_py.spark.session import spark_session
from marshal_py.spark.source import MarshalSource


def main(brokers: str, topic: str, client: str, delivery: str, folder: str) -> None:
    spark = spark_session(
        client, master="local[1]", settings={"spark.driver.memory": "512m"}, kafka=False
    )
    spark.dataSource.register(MarshalSource)
    frame = (
        spark.readStream.format("marshal")
        .option("kafka.bootstrap.servers", brokers)
        .option("groupId", "group")
        .option("clientId", client)
        .option("topics", topic)
        .option("delivery", delivery)
        .option("intervalMs", "1000")
        .option("coordinationTopic", f"{topic}.marshal")
        .load()
    )
    query = (
        frame.selectExpr("cast(value AS string) AS value", "partition")
        .writeStream.format("json")
        .option("path", f"{folder}/out")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(processingTime="500 milliseconds")
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
