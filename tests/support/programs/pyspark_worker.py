"""What works with the pyspark of this Python, as JSON."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import SparkSession, functions as sf

from delkalakedb import spark as dks
from tests.support.sessions import CONFIG


def main(folder: Path) -> None:
    """Read, write, change and stream tables in a folder."""
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config(map=CONFIG)
    spark = builder.config("spark.sql.warehouse.dir", str(folder)).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    try:
        uri = f"deltasql://sqlite/{folder}/meta.db"
        dks.use(spark, uri)
        found = {
            "pyspark": pyspark.__version__,
            "written": written(spark),
            "changed": changed(spark),
            "queried": queried(spark),
            "streamed": streamed(spark, folder),
            "format": by_format(spark, f"{uri}?table=stock"),
            "rows": sorted(map(list, dks.read(spark, "stock").collect())),
            "operations": [
                row.operation
                for row in dks.DeltaTable.forName(spark, "stock").history().collect()
            ],
        }
        print(json.dumps(found))
    finally:
        spark.stop()


def written(spark: SparkSession) -> list[int]:
    """Write a table in several ways; how many rows some reads find."""
    rows = spark.range(0, 40, 1, 2).withColumn("p", sf.col("id") % 40)
    dks.write(rows, "wide", partition_by="p")
    # Without folders that say the values, they are joined from the log.
    (
        dks.DeltaTable.createIfNotExists(spark)
        .tableName("moments")
        .addColumn("id", "BIGINT", nullable=False)
        .addColumn("at", "TIMESTAMP")
        .partitionedBy("at")
        .execute()
    )
    moments = rows.selectExpr("id", "timestamp_seconds(id * 3600) AS at")
    dks.write(moments, "moments")
    return [
        dks.read(spark, "wide", where="p >= 30").count(),
        dks.read(spark, "moments").filter("hour(at) = 5").count(),
        dks.read(spark, "wide", version=0, columns=["p"]).distinct().count(),
    ]


def changed(spark: SparkSession) -> dict[str, int]:
    """Change a table in every way; the numbers of a merge."""
    rows = spark.range(0, 20, 1, 2).selectExpr("id", "id % 2 AS p")
    dks.write(rows, "stock", partition_by="p")
    table = dks.DeltaTable.forName(spark, "stock").alias("t")
    source = rows.selectExpr("id + 18 AS id", "p").alias("s")
    merge = table.merge(source, "t.id = s.id").whenMatchedUpdate(set={"p": "7"})
    metrics = merge.whenNotMatchedInsertAll().execute().first()
    assert metrics is not None
    table.update("id = 1", {"p": "p + 8"})
    table.delete(sf.col("id") < 15)
    table.optimize().executeZOrderBy("id")
    return metrics.asDict()


def queried(spark: SparkSession) -> list[list[Any]]:
    """Create, change and query a table by SQL; its rows and its operations."""
    statements = (
        "CREATE TABLE visits (id BIGINT, page STRING DEFAULT 'home') CLUSTER BY (id)",
        "INSERT INTO visits (id) VALUES (1), (2)",
        "UPDATE visits SET page = concat(page, '!') WHERE id = 1",
        "MERGE INTO visits AS v USING (SELECT id + 2 AS id, page FROM visits) AS s "
        "ON v.id = s.id WHEN NOT MATCHED THEN INSERT *",
        "DELETE FROM visits WHERE id = 3",
        "CREATE TABLE copied CLONE visits",
    )
    for statement in statements:
        dks.sql(spark, statement)
    found = dks.sql(spark, "SELECT * FROM copied c WHERE id > :x", {"x": 0})
    history = dks.sql(spark, "DESCRIBE HISTORY visits")
    return [
        *sorted(map(list, found.collect())),
        [row.operation for row in history.collect()],
    ]


def streamed(spark: SparkSession, folder: Path) -> list[int]:
    """Write a stream of files, each once; the ids in the table."""
    source = folder / "arriving"
    spark.range(0, 6).coalesce(1).write.parquet(str(source))
    for _ in range(2):
        rows = spark.readStream.schema("id BIGINT").parquet(str(source))
        writer = rows.writeStream.foreachBatch(dks.foreach_batch("arrived"))
        writer = writer.option("checkpointLocation", f"{folder}/checkpoint")
        writer.trigger(availableNow=True).start().awaitTermination()
    return sorted(row.id for row in dks.read(spark, "arrived").collect())


def by_format(spark: SparkSession, uri: str) -> Any:
    """Read, write and stream by the data source; an error's text if that fails."""
    try:
        import pyspark_deltasql  # noqa: F401
    except ImportError as error:
        return str(error)
    before = spark.read.format("deltasql").load(uri)
    rows = spark.range(90, 92).selectExpr("id", "id % 2 AS p")
    count = before.count()
    rows.write.format("deltasql").mode("append").save(uri)
    stream = spark.readStream.format("deltasql").load(uri)
    seen: list[int] = []
    folder = uri.partition("//sqlite/")[2].partition("/meta.db")[0]
    writer = stream.writeStream.foreachBatch(lambda df, _: seen.append(df.count()))
    writer = writer.option("checkpointLocation", f"{folder}/by_format")
    writer.trigger(availableNow=True).start().awaitTermination()
    return [count, spark.read.format("deltasql").load(uri).count(), sum(seen)]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
