"""The layers: bronze holds events, silver holds orders, gold holds totals."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession, functions as sf
from pyspark.sql.streaming.query import StreamingQuery

import delkalakedb as dk
from delkalakedb import spark as dks

from .feed import Feed

__all__ = [
    "TABLES",
    "Advance",
    "Lake",
    "build_gold",
    "fill_bronze",
    "publish",
    "stream_late",
    "stream_silver",
]

TABLES = ("bronze", "silver", "gold")
Advance = Callable[[int], None]


@dataclass(frozen=True)
class Lake:
    """The catalog of the tables, a URI with at least one parameter, and a folder."""

    catalog: str
    folder: Path

    def uri(self, table: str) -> str:
        """Return the URI of `table`."""
        return f"{self.catalog}&table={table}"


def fill_bronze(spark: SparkSession, lake: Lake, feed: Feed, advance: Advance) -> None:
    """Append the events of each day to bronze, and add new columns to the table."""
    for day in range(feed.days):
        dks.write(
            feed.day(spark, day),
            lake.uri("bronze"),
            partition_by="arrived",
            merge_schema=True,
            txn=("history", day),
        )
        advance(len(feed.day_rows(day)))


def stream_silver(
    spark: SparkSession, lake: Lake, feed: Feed, advance: Advance
) -> None:
    """Stream bronze into silver, two days' files at a time."""
    _create_silver(spark, lake)

    def upsert(rows: DataFrame, batch_id: int) -> None:
        silver = dks.DeltaTable.forUri(rows.sparkSession, lake.uri("silver"))
        merge_orders(silver, newest_orders(rows))

    events = spark.readStream.format("deltasql")
    events = events.option("maxFilesPerTrigger", 2 * feed.files)
    writer = events.load(lake.uri("bronze")).writeStream.foreachBatch(upsert)
    writer = writer.option("checkpointLocation", f"{lake.folder}/checkpoints/silver")
    _finish(writer.trigger(availableNow=True).start(), advance)


def build_gold(spark: SparkSession, lake: Lake) -> None:
    """Compute gold from silver for the first time."""
    first = totals(dks.read(spark, lake.uri("silver")))
    dks.write(first, lake.uri("gold"), mode="ignore")


def stream_late(spark: SparkSession, lake: Lake, feed: Feed, advance: Advance) -> None:
    """Write files with late events, and stream them into bronze exactly once."""
    landing = f"{lake.folder}/landing"
    late = feed.late(spark)
    if not Path(landing, "_SUCCESS").exists():
        late.write.mode("overwrite").parquet(landing)
    writer = spark.readStream.schema(late.schema).parquet(landing).writeStream
    writer = writer.foreachBatch(dks.foreach_batch(lake.uri("bronze")))
    writer = writer.option("checkpointLocation", f"{lake.folder}/checkpoints/bronze")
    _finish(writer.trigger(availableNow=True).start(), advance)


def publish(spark: SparkSession, lake: Lake, feed: Feed) -> None:
    """Merge the late events into silver and recompute gold, in one transaction."""
    late = f"arrived = DATE'{feed.late_day}'"
    events = dks.read(spark, lake.uri("bronze"), where=late)
    with dk.transaction(lake.catalog) as tx:
        silver = dks.DeltaTable.inTransaction(spark, tx, "silver")
        merge_orders(silver, newest_orders(events))
        tx.write("gold", totals(silver.toDF()), mode="overwrite")


def newest_orders(events: DataFrame) -> DataFrame:
    """Return the newest readable event of each order, with silver's columns."""
    orders = events.select(
        "order_id",
        "customer_id",
        sf.trim(sf.lower("shop")).alias("shop"),
        sf.col("amount").try_cast("decimal(12,2)").alias("amount"),
        sf.coalesce("channel", sf.lit("unknown")).alias("channel"),
        "ordered_at",
        "changed_at",
        sf.to_date("ordered_at").alias("day"),
    ).where("order_id IS NOT NULL AND amount IS NOT NULL")
    newest = sf.max_by(sf.struct(*orders.columns), "changed_at").alias("newest")
    return orders.groupBy("order_id").agg(newest).select("newest.*")


def merge_orders(silver: dks.DeltaTable, orders: DataFrame) -> None:
    """Insert new orders into silver, and update orders that are older there."""
    same = "t.day = s.day AND t.order_id = s.order_id"
    merge = silver.alias("t").merge(orders.alias("s"), same)
    merge = merge.whenMatchedUpdateAll("s.changed_at > t.changed_at")
    merge.whenNotMatchedInsertAll().execute()


def totals(orders: DataFrame) -> DataFrame:
    """Return the totals of `orders` for each day and shop."""
    return orders.groupBy("day", "shop").agg(
        sf.count("*").alias("orders"),
        sf.count_if(sf.col("channel") == "web").alias("web_orders"),
        sf.count_distinct("customer_id").alias("customers"),
        sf.sum("amount").alias("revenue"),
    )


def _create_silver(spark: SparkSession, lake: Lake) -> None:
    table = dks.DeltaTable.createIfNotExists(spark, lake.uri("silver"))
    table.addColumn("order_id", "BIGINT", nullable=False)
    table.addColumn("customer_id", "BIGINT")
    table.addColumn("shop", "STRING")
    table.addColumn("amount", "DECIMAL(12,2)", nullable=False)
    table.addColumn("channel", "STRING")
    table.addColumn("ordered_at", "TIMESTAMP")
    table.addColumn("changed_at", "TIMESTAMP", nullable=False)
    table.addColumn("day", "DATE").partitionedBy("day").execute()


def _finish(query: StreamingQuery, advance: Advance) -> None:
    """Wait until `query` ends, and report each finished batch to `advance`."""
    told = -1
    ended = False
    while not ended:
        ended = bool(query.awaitTermination(1))
        for batch in query.recentProgress:
            if batch.batchId > told:
                told = batch.batchId
                advance(batch.numInputRows)
