"""A driver with Delta Spark: it answers each line of SQL with a line of JSON rows."""

import json
import os
import sys

from pyspark.sql import SparkSession

from tests.support.delta_spark import CONFIG
from tests.support.sessions import CONFIG as SMALL


def main(jars: str) -> None:
    """Run the statements on standard input."""
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = SparkSession.builder.master("local[2]").config(map={**SMALL, **CONFIG})
    builder = builder.config("spark.jars", jars)
    builder = builder.config("spark.databricks.delta.snapshotPartitions", "1")
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    for line in sys.stdin:
        rows = session.sql(json.loads(line)).collect()
        print(json.dumps([list(row) for row in rows]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
