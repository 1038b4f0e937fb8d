"""Datasets of the live rows of a version whose Parquet files alone don't give its rows.

The files have deletion vectors, or columns of other names than the table. pyarrow knows
of neither, so the rows are read here, when the dataset is scanned. Only the files are
read that may hold a row which matches the scan's filter.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import reduce
from itertools import islice
from operator import and_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as pa_fs

from delkalakedb.catalog import Files, Snapshot, load_files
from delkalakedb.deltalake.expressions import predicate_from
from delkalakedb.model.predicate.predicate import And, Anything
from delkalakedb.write.engines import (
    FILE_COLUMNS,
    ArrowReader,
    DataFile,
    arrow_reader,
    data_files,
)

Load = Callable[[pc.Expression | None], Files]
# batches of a file that a thread reads before they are needed
_AHEAD = 8
_Columns = Sequence[str] | dict[str, pc.Expression] | None


class LiveRows(ds.UnionDataset):  # type: ignore[misc]
    """A dataset that scans rows by an `ArrowReader`.

    Functions of pyarrow that read a dataset in C++, past `scanner`, raise an error.

    Args:
        reader: reads the rows, in the columns of the dataset.
        load: returns the files that may hold a row which matches a filter.
        where: the filter of `filter()`.
    """

    def __init__(
        self, reader: ArrowReader, load: Load, where: pc.Expression | None = None
    ) -> None:
        super().__init__(reader.target, [_guard(reader.target)])
        self._reader = reader
        self._load = load
        self._where = where

    def scanner(
        self,
        columns: _Columns = None,
        filter: pc.Expression | None = None,  # noqa: A002
        **_: Any,
    ) -> ds.Scanner:
        """Return a scanner of some columns, for the rows that match a filter."""
        where = _both(self._where, filter)
        return _scanned(self._reader, self._files(where), columns, where)

    def filter(self, expression: pc.Expression) -> "LiveRows":
        """Return the dataset of the rows that match `expression`, too."""
        return LiveRows(self._reader, self._load, _both(self._where, expression))

    def count_rows(
        self,
        filter: pc.Expression | None = None,  # noqa: A002
        **_: Any,
    ) -> int:
        """Return the number of rows that match a filter."""
        return int(self.scanner([], filter).count_rows())

    def get_fragments(
        self,
        filter: pc.Expression | None = None,  # noqa: A002
    ) -> Iterator["Fragment"]:
        """Yield the files that may hold a row which matches a filter."""
        where = _both(self._where, filter)
        for file in self._files(where):
            yield Fragment(self._reader, file, self._where)

    def _files(self, where: pc.Expression | None) -> list[DataFile]:
        return data_files(self._load(where).table.select(FILE_COLUMNS))


@dataclass(frozen=True)
class Fragment:
    """A file of a `LiveRows`, with those methods of a pyarrow fragment that read."""

    reader: ArrowReader
    file: DataFile
    where: pc.Expression | None = None

    @property
    def physical_schema(self) -> pa.Schema:
        """The columns."""
        return self.reader.target

    @property
    def partition_expression(self) -> pc.Expression:
        """An expression that is true for all rows."""
        return pc.scalar(True)

    def scanner(
        self,
        schema: pa.Schema | None = None,
        columns: _Columns = None,
        filter: pc.Expression | None = None,  # noqa: A002
        **_: Any,
    ) -> ds.Scanner:
        """Return a scanner of the file's live rows."""
        return _scanned(self.reader, [self.file], columns, _both(self.where, filter))

    def to_batches(
        self, schema: pa.Schema | None = None, **options: Any
    ) -> Iterator[pa.RecordBatch]:
        """Yield the file's live rows."""
        yield from self.scanner(schema, **options).to_batches()

    def to_table(self, schema: pa.Schema | None = None, **options: Any) -> pa.Table:
        """Return the file's live rows."""
        return self.scanner(schema, **options).to_table()

    def count_rows(self, **options: Any) -> int:
        """Return the number of the file's live rows."""
        return int(self.scanner(columns=[], **options).count_rows())


def row_dataset(
    snapshot: Snapshot,
    schema: pa.Schema,
    storage_options: Mapping[str, str] | None,
    files: Files | None = None,
    *,
    pruned: Any = None,
    filesystem: Any = None,
) -> LiveRows:
    """Return the dataset of a version's live rows.

    Args:
        snapshot: the version.
        schema: the columns of the dataset.
        storage_options: the options of the table's object store.
        files: the files to read; by default, each scan plans them.
        pruned: a filter; only files that may hold a matching row are read.
        filesystem: opens the files, by their paths below the table's location.
    """
    reader = arrow_reader(snapshot, schema, storage_options)
    predicate = Anything() if pruned is None else snapshot._predicate(pruned)

    def load(where: pc.Expression | None) -> Files:
        if files is not None:
            return files
        wanted = predicate
        if where is not None:
            found = predicate_from(where, schema, snapshot.table.schema)
            wanted = And((wanted, found))
        return load_files(snapshot, wanted, FILE_COLUMNS)

    return LiveRows(replace(reader, filesystem=filesystem), load)


def _scanned(
    reader: ArrowReader,
    files: Sequence[DataFile],
    columns: _Columns,
    where: pc.Expression | None,
) -> ds.Scanner:
    names = _needed(reader.target, columns, where)
    target = pa.schema([field for field in reader.target if field.name in names])
    batches = _read(replace(reader, target=target), files)
    return ds.Scanner.from_batches(
        batches,
        schema=target,
        columns=reader.target.names if columns is None else columns,
        filter=where,
    )


def _needed(
    schema: pa.Schema, columns: _Columns, where: pc.Expression | None
) -> set[str]:
    """Return the columns to read: those selected, and those that expressions name."""
    expressions = [] if where is None else [where]
    if columns is None:
        return {*schema.names}
    if isinstance(columns, dict):
        expressions += columns.values()
        columns = []
    texts = " ".join(map(str, expressions))
    found = {name for name in schema.names if name in columns or name in texts}
    try:
        empty = schema.empty_table().select([n for n in schema.names if n in found])
        for expression in expressions:
            ds.dataset(empty).to_table(columns={"": expression})
    except pa.ArrowInvalid:
        # An expression shows a name in another way.
        return {*schema.names}
    # The number of rows is known from some column only.
    return found or {*schema.names[:1]}


def _read(reader: ArrowReader, files: Sequence[DataFile]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of files, in order, while threads read a few batches ahead."""
    coming: deque[tuple[Iterator[pa.RecordBatch], Future[list[pa.RecordBatch]]]]
    coming, rest = deque(), iter(files)
    with ThreadPoolExecutor(pa.cpu_count(), "live-rows") as pool:

        def start(count: int) -> None:
            for file in islice(rest, count):
                batches = reader.read([file])
                coming.append((batches, pool.submit(_some, batches)))

        start(pa.cpu_count())
        while coming:
            batches, future = coming.popleft()
            start(1)
            while some := future.result():
                future = pool.submit(_some, batches)
                yield from some


def _some(batches: Iterator[pa.RecordBatch]) -> list[pa.RecordBatch]:
    return list(islice(batches, _AHEAD))


def _both(
    one: pc.Expression | None, other: pc.Expression | None
) -> pc.Expression | None:
    parts = [part for part in (one, other) if part is not None]
    return reduce(and_, parts) if parts else None


def _guard(schema: pa.Schema) -> ds.Dataset:
    """Return the dataset that C++ reads: its one file is missing, and says why."""
    layout = ds.ParquetFileFormat()
    files = pa_fs.LocalFileSystem()
    missing = layout.make_fragment(
        "this function of pyarrow can't apply deletion vectors or names of columns; "
        "pass it dataset.to_table(), or dataset.scanner()",
        files,
    )
    return ds.FileSystemDataset([missing], schema, layout, files)
