"""What pyspark's versions from 3.5 on do differently.

The Python data source came with pyspark 4.0, and parts of it came later. Modules that
need a part import it from here, where an older pyspark gets a stand-in.
"""

from importlib import import_module
from itertools import count
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyspark.sql.types
from pyspark.sql import Column, DataFrame, SparkSession, functions as sf
from pyspark.sql.pandas.types import (
    from_arrow_schema,
    to_arrow_schema as _to_arrow_schema,
)
from pyspark.sql.types import DataType, StructType

from delkalakedb.errors import DeltaError

if TYPE_CHECKING:
    from pyspark.errors import PySparkException
    from pyspark.sql.datasource import (
        DataSourceStreamArrowWriter as DataSourceStreamArrowWriter,
    )
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable as ReadAllAvailable,
        ReadLimit as ReadLimit,
        ReadMaxBytes as ReadMaxBytes,
        ReadMaxFiles as ReadMaxFiles,
        SupportsTriggerAvailableNow as SupportsTriggerAvailableNow,
    )

_STREAM_SOURCE = "pyspark.sql.streaming.datasource"
# names by the module and the version of pyspark that brought them
_LATER = {
    "DataSourceStreamArrowWriter": ("pyspark.sql.datasource", "4.1"),
    "ReadAllAvailable": (_STREAM_SOURCE, "4.2"),
    "ReadLimit": (_STREAM_SOURCE, "4.2"),
    "ReadMaxBytes": (_STREAM_SOURCE, "4.2"),
    "ReadMaxFiles": (_STREAM_SOURCE, "4.2"),
    "SupportsTriggerAvailableNow": (_STREAM_SOURCE, "4.2"),
}


class Missing:
    """The stand-in of a class that the installed pyspark lacks."""

    since: str


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, since = _LATER[name]
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError):
        return type(name, (Missing,), {"since": since})


def need(kind: type, what: str, instead: str) -> None:
    """Raise `DeltaError` if `kind` is a stand-in; `what` is what the user wants."""
    if issubclass(kind, Missing):
        raise DeltaError(f"{what} needs pyspark {kind.since} or newer; {instead}")


def to_arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark uses for `schema`."""
    try:
        return _to_arrow_schema(schema, timezone="UTC")
    except TypeError:  # before 4.2, UTC is the only zone
        return _to_arrow_schema(schema)


def to_arrow(rows: DataFrame) -> pa.Table:
    """Return `rows` as a table in this process."""
    if hasattr(rows, "toArrow"):
        return rows.toArrow()
    found: Any = rows
    batches = found._collect_as_arrow()
    return pa.Table.from_batches(
        batches, None if batches else to_arrow_schema(rows.schema)
    )


def from_arrow(
    spark: SparkSession, table: pa.Table, schema: StructType | None = None
) -> DataFrame:
    """Return a table as a DataFrame."""
    if _takes_arrow():
        return spark.createDataFrame(table, schema)
    values = (c.to_pylist(maps_as_pydicts="strict") for c in table.columns)
    rows = list(zip(*values, strict=True))
    schema = schema or from_arrow_schema(table.schema)
    return spark.createDataFrame(rows, schema, verifySchema=False)


def has_scalars() -> bool:
    """Return whether `scalar` works."""
    return hasattr(DataFrame, "scalar")


def scalar(rows: DataFrame) -> Column:
    """Return the only value of a DataFrame as a column of other DataFrames."""
    return rows.scalar()


def about_file(rows: DataFrame, name: str) -> Column:
    """Return a column of Spark's own about the file of each row, such as `file_path`.

    `file_path` is the URI of the file.
    """
    if hasattr(rows, "metadataColumn"):
        return rows.metadataColumn("_metadata")[name]
    java: Any = rows
    return _column(java._jdf.metadataColumn("_metadata"))[name]


def repartition_by_id(rows: DataFrame, number: int, place: Column) -> DataFrame:
    """Return `rows` in `number` partitions, each row in the one numbered `place`."""
    if hasattr(rows, "repartitionById"):
        return rows.repartitionById(number, place)
    keys = sf.array(*map(sf.lit, _keys(rows.sparkSession, number)))
    key = sf.element_at(keys.cast("array<bigint>"), place.cast("int") + 1)
    return rows.repartition(number, key)


def parse_type(text: str) -> DataType:
    """Parse a type, such as `BIGINT`, as Spark's SQL does."""
    if hasattr(DataType, "fromDDL"):
        return DataType.fromDDL(text)
    found: DataType = pyspark.sql.types._parse_datatype_string(text)
    return found


def condition_of(error: "PySparkException") -> str | None:
    """Return the name of the error's condition in Spark's documentation."""
    if hasattr(error, "getCondition"):
        return error.getCondition()
    return error.getErrorClass()


def _takes_arrow() -> bool:
    return hasattr(DataFrame, "toArrow")


def _column(java: Any) -> Column:
    kind: Any = Column
    found: Column = kind(java)
    return found


def _keys(spark: SparkSession, number: int) -> list[int]:
    """Return a number for each partition, which Spark's hash puts into it."""
    found: dict[int, int] = {}
    for start in count(step=8 * number):
        ids = spark.range(start, start + 8 * number)
        place = sf.pmod(sf.hash("id"), sf.lit(number)).cast("int")
        rows = ids.groupBy(place.alias("place")).agg(sf.min("id")).collect()
        found = {**dict(map(tuple, rows)), **found}
        if len(found) == number:
            break
    return [found[i] for i in range(number)]
