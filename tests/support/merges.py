"""A table to merge into, as both kinds of tests of merges need it."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa

import delkalakedb as dk
from delkalakedb.spark.face.table import DeltaTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Row = tuple[Any, ...]
SCHEMA = pa.schema([("id", pa.int64()), ("p", pa.string()), ("v", pa.int64())])
FEED = {"delta.enableChangeDataFeed": "true"}
SOURCE = "id long, p string, v long"


class Merged:
    """A table, and sources to merge into it."""

    def __init__(self, spark: "SparkSession", folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.uri = f"deltasql://sqlite/{folder}/meta.db?table=t"

    def write(self, rows: list[Row], **options: Any) -> None:
        """Write rows by deltalake's face: one file, or one in each partition."""
        columns = list(zip(*rows, strict=True)) if rows else [[], [], []]
        arrays = [pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)]
        table = pa.table(arrays, schema=SCHEMA)
        dk.write_deltalake(self.uri, table, mode="append", **options)

    @property
    def table(self) -> DeltaTable:
        """The table under the name of `t`."""
        return DeltaTable.forUri(self.spark, self.uri).alias("t")

    def source(self, *rows: Row, schema: str = SOURCE) -> "DataFrame":
        """Rows under the name of `s`."""
        return self.spark.createDataFrame(list(rows), schema).alias("s")

    @property
    def mirror(self) -> deltalake.DeltaTable:
        """The table as plain deltalake sees it."""
        return deltalake.DeltaTable(dk.DeltaTable(self.uri).table_uri)

    def rows(self) -> list[Row]:
        """The rows as plain deltalake reads them."""
        found = self.mirror.to_pyarrow_table().to_pylist()
        return sorted((tuple(row.values()) for row in found), key=repr)

    def metrics(self) -> dict[str, str]:
        """What the history says of the last commit."""
        (commit,) = dk.connect(self.uri).snapshot("t").history(1)
        return commit.operation_metrics

    def changes(self, version: int) -> Counter[Row]:
        """The change data of a version, as plain deltalake reads it."""
        return changes_of(self.mirror, version, version)


def changes_of(
    table: deltalake.DeltaTable, first: int, last: int | None = None
) -> Counter[Row]:
    """Changed rows, each behind the kind of its change."""
    feed = table.load_cdf(starting_version=first, ending_version=last)
    found = pa.table(feed).to_pylist()
    return Counter((r["_change_type"], r["id"], r["p"], r["v"]) for r in found)
