"""Rows that deletion vectors mark, as words of bits that Spark joins with rows.

Rows of all files of a list are numbered one after the other. A row's number is that of
its file's first row, which the list has in place of the file's modification time, and
the row's index in the file. Spark returns both without a cost. Executors decode the
vectors, because a vector in a file may be large.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession, functions as sf
from pyspark.sql.types import LongType, StructField, StructType

from delkalakedb.catalog import Snapshot
from delkalakedb.spark.pyspark_api import about_file, from_arrow
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


def marks(
    spark: SparkSession, reader: ArrowReader, files: pa.Table, column: str
) -> DataFrame:
    """Return the rows that the vectors in `column` of a list mark."""
    listed = pa.table(
        {
            "first": first_numbers(files),
            "num_records": files["num_records"],
            "path": files["path"],
            "vector": files[column],
        }
    )
    vectors = from_arrow(spark, listed.filter(pc.is_valid(listed["vector"])))
    return vectors.mapInArrow(_MarkedRows(reader), _SCHEMA)


def filtered(
    rows: DataFrame, number: Column, marked: DataFrame, *, keep: bool
) -> DataFrame:
    """Return only the rows that are marked, or with `keep=False` only the others."""
    bit = sf.col(_NUMBER).bitwiseAND(_WORD_ROWS - 1).cast("int")
    there = (sf.shiftright(sf.col(_NUMBER), 6) == sf.col(_WORD)) & (
        sf.getbit(sf.col(_BITS), bit) == 1
    )
    numbered = rows.withColumn(_NUMBER, number)
    how = "left_semi" if keep else "left_anti"
    return numbered.join(sf.broadcast(marked), there, how).drop(_NUMBER)
