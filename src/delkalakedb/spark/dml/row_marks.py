"""Rows that an operation changes, found by Spark, to mark them in deletion vectors.

Spark finds the rows by the indexes that they have in their files. If the rows are few,
the operation then reads and writes only these rows, and marks the old ones as deleted.
Otherwise, it rewrites their files.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
from pyspark.sql import Column, DataFrame

from delkalakedb.model.actions import encode_struct
from delkalakedb.model.vectors import encode_vector, inlined_vector
from delkalakedb.spark.pyspark_api import to_arrow
from delkalakedb.spark.reader import (
    FILE_COLUMN,
    INDEX_COLUMN,
    Files,
    Target,
    vector_reader,
)
from delkalakedb.write.engines import (
    FoundRows,
    allows_vectors,
    data_file,
    worth_marking,
)

if TYPE_CHECKING:
    from pyroaring import BitMap64

_SUMMARY = "path string, kind int, rows bigint, most bigint, indexes binary"
_NAMES = ("path", "kind", "rows", "most", "indexes")


class Counted(NamedTuple):
    """The rows of one kind in one file.

    Args:
        path: the file.
        kind: the number of the kind.
        rows: how many rows there are.
        most: the largest number that a row has.
    """

    path: str
    kind: int
    rows: int
    most: int


def takes_marks(target: Target) -> bool:
    """Return whether an operation may mark rows of the table as deleted."""
    mode = target.vectors.mode if target.vectors else "never"
    return mode != "never" and allows_vectors(target.snapshot)


def summed_up(
    rows: DataFrame, kind: Column, most: Column
) -> tuple[list[Counted], "dict[tuple[str, int], BitMap64]"]:
    """Count tagged rows by file and kind; return their indexes by file and kind, too.

    Args:
        rows: the rows, which have `FILE_COLUMN` and `INDEX_COLUMN`.
        kind: the number of a row's kind.
        most: a number, of which the largest is returned.
    """
    from pyroaring import BitMap64

    wanted = rows.select(FILE_COLUMN, INDEX_COLUMN, kind.cast("int"), most.cast("long"))
    counted: defaultdict[tuple[str, int], list[int]] = defaultdict(lambda: [0, 0])
    found: defaultdict[tuple[str, int], BitMap64] = defaultdict(BitMap64)
    for batch in to_arrow(wanted.mapInArrow(_summary, _SUMMARY)).to_batches():
        for path, number, count, largest, data in _tuples(batch):
            key = path, number
            counted[key][0] += count
            counted[key][1] = max(counted[key][1], largest)
            found[key] |= BitMap64.deserialize(data)
    return [Counted(*key, *numbers) for key, numbers in counted.items()], found


def _summary(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Sum up the rows of one task."""
    from pyroaring import BitMap64

    numbers: defaultdict[tuple[str, int], list[int]] = defaultdict(lambda: [0, 0])
    indexes: defaultdict[tuple[str, int], BitMap64] = defaultdict(BitMap64)
    for batch in batches:
        named = batch.rename_columns(["path", "index", "kind", "most"])
        table = pa.Table.from_batches([named]).group_by(["path", "kind"])
        for row in table.aggregate([("index", "list"), ("most", "max")]).to_pylist():
            key = row["path"], row["kind"]
            numbers[key][0] += len(row["index_list"])
            numbers[key][1] = max(numbers[key][1], row["most_max"])
            indexes[key].update(row["index_list"])
    rows = [(*key, *numbers[key], indexes[key].serialize()) for key in numbers]
    columns = zip(*rows, strict=True) if rows else [[] for _ in _NAMES]
    kinds = (pa.string(), pa.int32(), pa.int64(), pa.int64(), pa.binary())
    arrays = [pa.array(c, kind) for c, kind in zip(columns, kinds, strict=True)]
    yield pa.RecordBatch.from_arrays(arrays, _NAMES)


def _tuples(batch: pa.RecordBatch) -> Iterator[tuple[str, int, int, int, bytes]]:
    return zip(*(column.to_pylist() for column in batch.columns), strict=True)


@dataclass(frozen=True)
class Rewritten:
    """The rows that an operation reads and writes again, all of some files or few.

    Args:
        files: the files.
        marks: the rows to mark as deleted; None if the files are to be rewritten.
    """

    files: Files
    marks: Sequence[FoundRows] | None = None

    @cached_property
    def read(self) -> Files:
        """The files, limited to the rows to mark."""
        if self.marks is None:
            return self.files
        rows = {one.add.path: one.rows for one in self.marks}
        texts = [_text(rows[path]) for path in self.files.table["path"].to_pylist()]
        table = self.files.table.append_column("only_rows", pa.array(texts))
        # The rows that were found are live.
        gone = table.schema.get_field_index("deletion_vector")
        live = pa.nulls(len(table), pa.string())
        return Files(table.set_column(gone, "deletion_vector", live))

    @property
    def removed(self) -> Files:
        """The files that lose their last row, or all files if they are rewritten."""
        if self.marks is None:
            return self.files
        return self.files.only(
            [o.add.path for o in self.marks if len(o.rows) == o.live]
        )

    def vector_metrics(self) -> dict[str, int]:
        """Return the numbers of vectors under Delta's names, without a prefix."""
        removed = self.removed.num_vectors
        kept = len(self.files) - len(self.removed)
        updated = self.files.num_vectors - removed
        return {
            "DeletionVectorsAdded": kept,
            "DeletionVectorsUpdated": updated,
            "DeletionVectorsRemoved": updated + removed,
        }


def _text(rows: "BitMap64") -> str:
    """Return a vector of `rows` as JSON."""
    vector = inlined_vector(encode_vector(rows), len(rows))
    return encode_struct(vector).decode()


def rewritten(
    target: Target, files: Files, found: "Mapping[str, BitMap64]"
) -> Rewritten:
    """Return what to write again of `files`, whose rows `found` change.

    Rows are marked if this is worth it, and else their files are rewritten.
    """
    settings = target.vectors
    counts = files.table["num_records"]
    if settings is None or not found or counts.null_count:
        return Rewritten(files)
    reader = vector_reader(target.snapshot, target.storage_options)
    marks = [
        FoundRows(add, count, found[add.path], reader.deleted(data_file(add)))
        for add, count in zip(files.adds, counts.to_pylist(), strict=True)
    ]
    return Rewritten(files, marks if worth_marking(marks, settings) else None)
