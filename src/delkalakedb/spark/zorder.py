"""Rows in the order of a Z curve: near in several columns, near in the files."""

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as sf
from pyspark.sql.types import ArrayType, MapType, StructType

from delkalakedb.errors import SchemaMismatchError
from delkalakedb.model.actions import Metadata
from delkalakedb.spark.schemas import quoted, spark_schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["check_z_order", "z_order"]

# Each column's values are told apart by so many bits of their rank.
_BITS = 7
_SAMPLED_ROWS = 20_000


def check_z_order(metadata: Metadata, names: Sequence[str]) -> None:
    """Refuse columns that no order of rows within files can be by."""
    if not names:
        raise SchemaMismatchError("executeZOrderBy needs at least one column")
    for field in spark_schema(metadata, list(names)):
        if field.name in metadata.partition_columns:
            raise SchemaMismatchError(
                f"{field.name} is a partition column: files hold one value of it"
            )
        if isinstance(field.dataType, ArrayType | MapType | StructType):
            raise SchemaMismatchError(
                f"{field.name} is of type {field.dataType.simpleString()}, which has "
                "no order for files"
            )


def z_order(
    rows: "DataFrame", names: Sequence[str], partitions: Sequence[str], num_rows: int
) -> "list[Column]":
    """What to sort rows by, so that those of each partition follow a Z curve.

    Args:
        rows: the rows, of which a sample is looked at.
        names: the columns that the curve goes through.
        partitions: the columns that partition the table.
        num_rows: how many rows there are.
    """
    columns = [sf.col(quoted(name)) for name in names]
    curve = columns[0] if len(names) == 1 else _curve(rows, columns, num_rows)
    return [*(sf.col(quoted(name)) for name in partitions), curve]


def _curve(rows: "DataFrame", columns: "list[Column]", num_rows: int) -> "Column":
    """The bits of each column's rank, one of each in turn."""
    fraction = min(1.0, _SAMPLED_ROWS / max(num_rows, 1))
    sample = rows.select(*columns).sample(fraction, seed=0).collect()
    bits = min(_BITS, 63 // len(columns))
    count = 1 << bits
    ranks = [
        _rank(column, _cuts([row[i] for row in sample], count), count)
        for i, column in enumerate(columns)
    ]
    parts = [
        sf.shiftleft(sf.shiftright(rank, bit).bitwiseAND(1), bit * len(ranks) + i)
        for bit in range(bits)
        for i, rank in enumerate(reversed(ranks))
    ]
    return reduce(lambda one, other: one.bitwiseOR(other), parts)


def _cuts(values: list[Any], count: int) -> list[Any]:
    """Values that split others into parts of about the same size."""
    known = sorted(v for v in values if v is not None and v == v)
    found = {known[len(known) * i // count] for i in range(1, count) if known}
    return sorted(found - {known[0]}) if known else []


def _rank(column: "Column", cuts: list[Any], count: int) -> "Column":
    """Where a value is between the cuts, from 0 up to `count`; nulls come first."""

    def searched(low: int, high: int) -> "Column":
        if low == high:
            # Few values, too, are to take up all bits.
            return sf.lit(low * count // (len(cuts) + 1)).cast("bigint")
        middle = (low + high) // 2
        below = column < sf.lit(cuts[middle])
        return sf.when(below, searched(low, middle)).otherwise(
            searched(middle + 1, high)
        )

    return sf.when(column.isNull(), sf.lit(0).cast("bigint")).otherwise(
        searched(0, len(cuts))
    )
