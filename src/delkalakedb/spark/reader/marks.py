"""Rows that deletion vectors mark, as words of bits that Spark looks up for each row.

Rows of all files of a list are numbered one after the other. A row's number is that of
its file's first row, which the list has in place of the file's modification time, and
the row's index in the file. Spark returns both without a cost.

The words of a few files are one array, which the driver decodes. The words of more
files are rows that Spark joins, and executors decode the vectors.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession, functions as sf
from pyspark.sql.types import LongType, StructField, StructType

from delkalakedb.catalog import Snapshot
from delkalakedb.spark.pyspark_api import (
    about_file,
    from_arrow,
    has_scalars,
    scalar,
)
from delkalakedb.spark.schemas import arrow_schema
from delkalakedb.storage import canonical_location
from delkalakedb.write.engines import ArrowReader, DataFile

if TYPE_CHECKING:
    from pyroaring import BitMap64

# rows; those of a file without statistics
_MOST_ROWS = 1 << 36
# rows whose bits are one value of Spark's
_WORD_ROWS = 64
# rows that are listed at a time
_BLOCK_ROWS = 1 << 20
# files and rows whose words are one array: 64 reads by the driver, and 8 MB
_ARRAY_FILES, _ARRAY_ROWS = 64, 1 << 26
_WORD, _BITS, _NUMBER = "__dk_word", "__dk_bits", "__dk_number"
_SCHEMA = StructType([StructField(_WORD, LongType()), StructField(_BITS, LongType())])
_ARROW = arrow_schema(_SCHEMA)


def first_numbers(files: pa.Table) -> pa.Array:
    """Return the number of the first row of each file, a multiple of a word's rows."""
    found, first = [], 0
    for count in files["num_records"].to_pylist():
        found.append(first)
        first += -(-(count or _MOST_ROWS) // _WORD_ROWS) * _WORD_ROWS
    return pa.array(found, pa.int64())


def first_number(rows: DataFrame) -> Column:
    """Return the number of the first row of each row's file."""
    return sf.unix_millis(about_file(rows, "file_modification_time"))


def row_index(rows: DataFrame) -> Column:
    """Return the index of each row in its file."""
    return about_file(rows, "row_index")


@dataclass(frozen=True)
class _MarkedRows:
    """The function that decodes the vectors of a list of files as words of bits.

    Args:
        reader: opens files with vectors.
    """

    reader: ArrowReader

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the words of the files in `batches` in which a row is marked."""
        for batch in batches:
            for row in batch.to_pylist():
                file = DataFile(row["path"], "{}", 0, row["vector"])
                rows = self.reader.deleted(file)
                assert rows is not None
                if rows and (row["num_records"] or _MOST_ROWS) <= rows.max():
                    # Later numbers are those of another file's rows.
                    rows.remove_range(row["num_records"] or _MOST_ROWS, rows.max() + 1)
                yield from _words(rows, row["first"])


def _words(rows: "BitMap64", first: int) -> Iterator[pa.RecordBatch]:
    from pyroaring import BitMap64

    end = 0
    while rows and rows.max() >= end:
        start = rows.next_set_bit(end) // _BLOCK_ROWS * _BLOCK_ROWS
        end = start + _BLOCK_ROWS
        block = (rows & BitMap64(range(start, end))).to_array()
        buffers = [None, pa.py_buffer(block)]
        indexes = pa.Array.from_buffers(pa.uint64(), len(block), buffers)
        numbers = pc.add(indexes, _unsigned(first))
        # The sum of different bits sets all of them.
        place = pc.bit_wise_and(numbers, _unsigned(_WORD_ROWS - 1))
        columns = [pc.shift_right(numbers, 6), pc.shift_left(_unsigned(1), place)]
        table = pa.table(columns, _ARROW.names)
        words = table.group_by(_WORD).aggregate([(_BITS, "sum")]).to_batches()
        for word, summed in (batch.columns for batch in words):
            columns = [word.cast(pa.int64()), summed.view(pa.int64())]
            yield pa.RecordBatch.from_arrays(columns, schema=_ARROW)


def _unsigned(number: int) -> pa.Scalar:
    return pa.scalar(number, pa.uint64())


def vector_reader(
    snapshot: Snapshot, storage_options: Mapping[str, str] | None
) -> ArrowReader:
    """Return a reader of the deletion vectors of a table's files."""
    location = canonical_location(snapshot.table.location)
    options = storage_options or {}
    return ArrowReader(location, "", (), pa.schema([]), storage_options=options)


def filtered(
    spark: SparkSession,
    rows: DataFrame,
    number: Column,
    reader: ArrowReader,
    files: pa.Table,
    column: str,
    *,
    keep: bool,
) -> DataFrame:
    """Return only the rows that vectors mark, or with `keep=False` only the others.

    Args:
        spark: the Spark session.
        rows: the rows of `files`.
        number: the number of each row.
        reader: opens files with vectors.
        files: the list of files.
        column: the column of `files` that has the vectors.
        keep: whether to return the marked rows.
    """
    firsts = first_numbers(files)
    listed = pa.table(
        {
            "first": firsts,
            "num_records": files["num_records"],
            "path": files["path"],
            "vector": files[column],
        }
    )
    listed = listed.filter(pc.is_valid(listed["vector"]))
    decode = _MarkedRows(reader)
    numbered = rows.withColumn(_NUMBER, number)
    word = sf.shiftright(sf.col(_NUMBER), 6)
    place = sf.col(_NUMBER).bitwiseAND(_WORD_ROWS - 1).cast("int")
    end = firsts[-1].as_py() + (files["num_records"][-1].as_py() or _MOST_ROWS)
    if len(files) <= _ARRAY_FILES and end <= _ARRAY_ROWS and has_scalars():
        words = scalar(from_arrow(spark, _array(decode(listed.to_batches()), end)))
        bit = sf.getbit(sf.get(words, word.cast("int")), place)
        found = numbered.filter(sf.coalesce(bit, sf.lit(0)) == int(keep))
    else:
        marked = from_arrow(spark, listed).mapInArrow(decode, _SCHEMA)
        there = (word == sf.col(_WORD)) & (sf.getbit(sf.col(_BITS), place) == 1)
        how = "left_semi" if keep else "left_anti"
        found = numbered.join(sf.broadcast(marked), there, how)
    return found.drop(_NUMBER)


def _array(batches: Iterable[pa.RecordBatch], end: int) -> pa.Table:
    """Return the words of the rows before `end` as one array."""
    words = pa.Table.from_batches(batches, _ARROW)
    numbers = pa.array(range(-(-end // _WORD_ROWS)), pa.int64())
    known = pc.index_in(numbers, words[_WORD])
    bits = pc.fill_null(words[_BITS].combine_chunks().take(known), 0)
    offsets = pa.array([0, len(bits)], pa.int32())
    return pa.table({_BITS: pa.ListArray.from_arrays(offsets, bits)})
