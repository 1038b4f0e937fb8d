"""What the log alone says of a file, for each row that Spark reads from it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pyarrow as pa
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DataType, StringType, StructField, StructType

from delkalakedb.model.partition import format_partition_value, parse_partition_value
from delkalakedb.model.schema import Field

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["Attached", "Partition", "attach", "literals"]

_URI, _PATH = "__dk_uri", "__dk_path"


class Partition(NamedTuple):
    """A column that partitions the table, with its type in Spark."""

    field: Field
    type: DataType

    def value(self, text: str) -> Any:
        """The value in a file's partition values, which are JSON."""
        found = msgspec.json.decode(text).get(self.field.physical_name)
        return parse_partition_value(found, self.field.type)

    def values(self, texts: pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
        """The values of files; few of them stand for many."""
        encoded = texts.combine_chunks().dictionary_encode()
        values = map(self.value, encoded.dictionary.to_pylist())
        return pa.array(list(values), kind).take(encoded.indices)


class Attached(NamedTuple):
    """Rows, with the columns of them that say what the log does."""

    rows: "DataFrame"
    partitions: dict[str, "Column"]
    path: "Column"


def literals(partitions: Sequence[Partition], text: str) -> dict[str, "Column"]:
    """The partition values of files that have them all alike, by name."""
    found = {}
    for partition in partitions:
        value = format_partition_value(partition.value(text), partition.field.type)
        found[partition.field.name] = sf.lit(value).cast(partition.type)
    return found


def attach(
    spark: "SparkSession",
    rows: "DataFrame",
    uris: pa.ChunkedArray,
    files: pa.Table,
    partitions: Sequence[Partition],
) -> Attached:
    """Look the rows' files up, by where they are."""
    said = {p.field.name: f"__dk_{i}" for i, p in enumerate(partitions)}
    named = rows.select("*", rows.metadataColumn("_metadata")["file_path"].alias(_URI))
    lookup = _lookup(spark, list(said.values()), partitions, uris, files)
    joined = named.join(sf.broadcast(lookup), _URI, "left")
    unknown = sf.concat(sf.lit("not a file of the list: "), sf.col(_URI))
    found = sf.col(_PATH).isNotNull()

    def checked(name: str) -> "Column":
        # Without a match the values would be null, and nobody would know.
        return sf.when(found, sf.col(name)).otherwise(sf.raise_error(unknown))

    values = {name: checked(column) for name, column in said.items()}
    return Attached(joined, values, checked(_PATH))


def _lookup(
    spark: "SparkSession",
    names: Sequence[str],
    partitions: Sequence[Partition],
    uris: pa.ChunkedArray,
    files: pa.Table,
) -> "DataFrame":
    kinds = [StringType(), StringType(), *(p.type for p in partitions)]
    schema = StructType(list(map(StructField, (_URI, _PATH, *names), kinds)))
    arrow = to_arrow_schema(schema, timezone="UTC")
    texts = files["partition_values"]
    values = [
        partition.values(texts, arrow.field(name).type)
        for name, partition in zip(names, partitions, strict=True)
    ]
    columns = [uris.combine_chunks(), files["path"].combine_chunks(), *values]
    table = pa.table(
        [c.cast(f.type) for c, f in zip(columns, arrow, strict=True)], schema=arrow
    )
    return spark.createDataFrame(table, schema)
