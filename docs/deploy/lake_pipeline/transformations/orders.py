"""What was published, decoded; the rows that took longest; what is wrong with each day.

Bronze only grows, so that what is made of it is a stream. Deliveries and gold of a day are written
anew, so that what is made of them is a view. The tables are Parquet: of Delta's, a second run is
refused (Delta 4.4 with Spark 4.2: DELTA_CANNOT_CHANGE_PROVIDER).
"""

from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()
LAKE = spark.conf.get("marshal.lake")


@dp.table(partition_cols=["day"])
def published_orders() -> DataFrame:
    """Each record of the topic, once."""
    bronze = spark.readStream.format("delta").option("skipChangeCommits", "true")  # by retention
    records = bronze.load(f"{LAKE}/bronze/published")
    return records.selectExpr("id", "at", "cast(value AS string) AS content", "day")


@dp.materialized_view
def slowest_orders() -> DataFrame:
    """The hundred rows that took longest from their insertion to Kafka."""
    deliveries = spark.read.format("delta").load(f"{LAKE}/silver/deliveries")
    published = deliveries.filter("latency_ms IS NOT NULL").drop("handled")
    return published.orderBy("latency_ms", ascending=False).limit(100)


@dp.materialized_view
def health() -> DataFrame:
    """How many findings of each kind each day has."""
    return spark.read.format("delta").load(f"{LAKE}/gold/findings").groupBy("day", "kind").count()
