"""A client of a Connect server of its own: what it reads and writes, as JSON."""

import json
import os
import sys

from pyspark.sql import SparkSession

import delkalakedb as dk
from delkalakedb import spark as dks
from tests.support.sessions import CONFIG


def written(spark: SparkSession, uri: str) -> list[str]:
    """Change a table in every way; its history."""
    rows = spark.range(0, 20, 1, 2).selectExpr("id", "id % 2 AS p")
    dks.write(rows, uri, partition_by="p")
    table = dks.DeltaTable.forUri(spark, uri).alias("t")
    source = rows.selectExpr("id + 10 AS id", "p").alias("s")
    merge = table.merge(source, "t.id = s.id").whenMatchedUpdate(set={"p": "7"})
    merge.whenNotMatchedInsertAll().execute()
    table.update("id = 1", {"p": "p + 8"})
    name = f"deltasql.`{uri}`"
    dks.sql(spark, f"DELETE FROM {name} AS d WHERE d.id = :id", {"id": 2})
    left = dks.sql(spark, f"SELECT id FROM {name} t WHERE t.id < ?", [4])
    assert sorted(row.id for row in left.collect()) == [0, 1, 3]
    with dk.transaction(uri.partition("?")[0]) as tx:
        tx.write("written", rows.selectExpr("id + 30 AS id", "p"), mode="append")
    more = rows.selectExpr("id + 50 AS id", "p")
    more.write.format("deltasql").mode("append").save(uri)
    return [row.operation for row in table.history().orderBy("version").collect()]


def by_name(spark: SparkSession, uri: str) -> list[object]:
    """Name a table, clone it, and read its changes; what each gives."""
    catalog, _, name = uri.partition("?table=")
    dks.use(spark, catalog)
    table = dks.DeltaTable.forName(spark, name)
    fed = {"delta.enableChangeDataFeed": "true"}
    clone = table.clone("cloned", properties=fed)
    clone.delete("id < 5")
    changes = dks.read(spark, "cloned", changes_from=1)
    return [
        dks.read(spark, "cloned").count() - dks.read(spark, name).count(),
        sorted([row.id, row._change_type] for row in changes.collect()),
        [
            row.operation
            for row in dks.DeltaTable.forName(spark, "cloned").history().collect()
        ],
    ]


def main(plain: str, odd: str, version: int, uri: str) -> None:
    """Read a plain table and an odd one, and write a third."""
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = SparkSession.builder.config(map=CONFIG).remote("local[2]").getOrCreate()
    try:
        rows = dks.read(spark, plain, where="n >= 150")
        dks.read(spark, odd).createOrReplaceTempView("odd")
        print(
            json.dumps(
                {
                    "classic": hasattr(spark, "_jvm"),
                    "where": [rows.count(), len(rows.inputFiles())],
                    "written": written(spark, uri),
                    "rows": sorted(list(row) for row in dks.read(spark, uri).collect()),
                    "named": by_name(spark, uri),
                    "before": dks.read(spark, plain, version=version).count(),
                    "view": [
                        list(row)
                        for row in spark.sql(
                            "SELECT p, id FROM odd ORDER BY id"
                        ).collect()
                    ],
                }
            )
        )
    finally:
        spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
