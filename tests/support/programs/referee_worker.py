"""A driver with Delta Spark: what it makes of tables, told in files."""

import json
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from tests.support import delta_spark
from tests.support.sessions import CONFIG

# Tables here are small.
_SMALL = {
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.shuffle.partitions": "1",
}


def main(jars: str, tables: str, out: str) -> None:
    """Read each table, its history, its details and its changes, if it tells them."""
    builder = SparkSession.builder.master("local[2]").config("spark.jars", jars)
    builder = builder.config(map={**CONFIG, **delta_spark.CONFIG, **_SMALL})
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    for name, table in json.loads(tables).items():
        tell(session, table["location"], table["fed"], Path(out) / name)


def tell(session: SparkSession, location: str, fed: bool, out: Path) -> None:
    """Write down what Delta Spark says of a table."""
    reader = session.read.format("delta")
    rows = reader.load(location)
    keep(rows, out / "rows")
    (out / "schema.json").write_text(rows.schema.json())
    for what in ("history", "detail"):
        found = session.sql(f"DESCRIBE {what} delta.`{location}`").toJSON().collect()
        (out / f"{what}.json").write_text(json.dumps(list(map(json.loads, found))))
    if fed:
        feed = reader.option("readChangeFeed", "true").option("startingVersion", 0)
        keep(feed.load(location), out / "changes")


def keep(rows: DataFrame, out: Path) -> None:
    """Write rows as one plain Parquet file."""
    rows.coalesce(1).write.parquet(str(out))


if __name__ == "__main__":
    main(*sys.argv[1:])
