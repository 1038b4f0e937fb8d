"""A client of a Connect server of its own: what it reads, as JSON."""

import json
import os
import sys

from pyspark.sql import SparkSession

from delkalakedb import spark as dks


def main(plain: str, odd: str, version: int) -> None:
    """Read a plain table and an odd one."""
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.config("spark.sql.session.timeZone", "UTC")
    spark = (
        builder.config("spark.driver.memory", "512m").remote("local[2]").getOrCreate()
    )
    try:
        rows = dks.read(spark, plain, where="n >= 150")
        dks.read(spark, odd).createOrReplaceTempView("odd")
        print(
            json.dumps(
                {
                    "classic": hasattr(spark, "_jvm"),
                    "where": [rows.count(), len(rows.inputFiles())],
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
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
