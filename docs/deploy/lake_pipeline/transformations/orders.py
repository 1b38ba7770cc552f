"""What was published, decoded; the rows that took long; what is wrong with each day.

Bronze only grows, so that what is made of it is a stream; deliveries and gold are written anew, day
by day, so that what is made of them is a view.
"""

from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()
LAKE = spark.conf.get("marshal.lake")


def of_lake(table: str) -> DataFrame:
    """A table of the lake."""
    return spark.read.format("delta").load(f"{LAKE}/{table}")


@dp.table(partition_cols=["day"])
def published_orders() -> DataFrame:
    """Each record of the topic, once."""
    records = spark.readStream.format("delta").load(f"{LAKE}/bronze/published")
    return records.selectExpr("id", "at", "cast(value AS string) AS content", "day")


@dp.materialized_view
def slow_orders() -> DataFrame:
    """The hundred rows that took longest from their insertion to Kafka."""
    slow = of_lake("silver/deliveries").filter("latency_ms IS NOT NULL")
    return slow.orderBy("latency_ms", ascending=False).limit(100).drop("handled")


@dp.materialized_view
def health() -> DataFrame:
    """How many findings of each kind each day has."""
    return of_lake("gold/findings").groupBy("day", "kind").count()
