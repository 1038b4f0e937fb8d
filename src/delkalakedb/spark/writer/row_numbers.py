"""Give rows values in identity columns.

Rows are numbered in the order of Spark's partitions, without gaps. A first pass counts
the rows of each partition, so the rows are cached until they are written. Should Spark
lose a part of the cache and compute other rows instead, the write fails rather than
give one value twice.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import accumulate

from pyspark.sql import Column, DataFrame, functions as sf

from delkalakedb.model.actions import Metadata
from delkalakedb.model.schema.identity import identity_columns, with_marks
from delkalakedb.spark.reader import kept
from delkalakedb.spark.schemas import quoted

_PARTITION, _INDEX, _POSITION = "__dk_partition", "__dk_index", "__dk_position"
# monotonically_increasing_id has a row's index in its partition in the lower bits
_INDEX_BITS = (1 << 33) - 1


@contextmanager
def numbered(
    rows: DataFrame, metadata: Metadata, wanted: Mapping[str, Column]
) -> Iterator[tuple[DataFrame, Metadata]]:
    """Yield rows with new values in identity columns, and the metadata that says so.

    Args:
        rows: the rows, which stay cached while the context lasts.
        metadata: the metadata of the version that the rows are for.
        wanted: for each column to fill, which rows get a new value.
    """
    columns = [c for c in identity_columns(metadata) if c.name in wanted]
    if not columns:
        yield rows, metadata
        return
    with kept(rows):
        counts = _counts(rows)
        if not (total := sum(counts)):
            yield rows, metadata
            return
        marks = {column.name: column.last(total) for column in columns}
        placed = _with_positions(rows, counts)
        values = {}
        for column in columns:
            value = sf.lit(column.first) + sf.col(_POSITION) * sf.lit(column.step)
            given = sf.col(quoted(column.name))
            values[column.name] = sf.when(wanted[column.name], value).otherwise(given)
        filled = placed.withColumns(values).drop(_PARTITION, _INDEX, _POSITION)
        yield filled, with_marks(metadata, marks)


def _counts(rows: DataFrame) -> list[int]:
    """Return the number of rows in each of Spark's partitions."""
    parts = rows.select(sf.spark_partition_id().alias(_PARTITION))
    found = dict(map(tuple, parts.groupBy(_PARTITION).count().collect()))
    return [found.get(part, 0) for part in range(max(found, default=-1) + 1)]


def _with_positions(rows: DataFrame, counts: list[int]) -> DataFrame:
    """Return the rows with their position among all rows, from 0 on."""
    before = [0, *accumulate(counts)][:-1]
    index, part = sf.col(_INDEX), sf.col(_PARTITION)
    there = sf.coalesce(index < sf.get(_numbers(counts), part), sf.lit(False))
    failure = sf.raise_error(
        sf.lit("the rows changed while identity values were given to them; write again")
    )
    position = sf.get(_numbers(before), part) + index
    return (
        rows.withColumn(_PARTITION, sf.spark_partition_id())
        .withColumn(_INDEX, sf.monotonically_increasing_id().bitwiseAND(_INDEX_BITS))
        .withColumn(
            _POSITION, sf.when(there, position).otherwise(failure.cast("bigint"))
        )
    )


def _numbers(values: list[int]) -> Column:
    # one text, because a literal for each of thousands of partitions is slow to plan
    text = ",".join(map(str, values))
    return sf.split(sf.lit(text), ",").cast("array<bigint>")
