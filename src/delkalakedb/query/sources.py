"""Sources: pyarrow datasets whose rows are read when an engine scans them.

DuckDB tells a dataset the columns and the filter that a query needs. Only then are the
files planned, in SQL, so no file is read that the query doesn't need.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pa_fs

from delkalakedb.catalog import Catalog, Files, Snapshot, load_files
from delkalakedb.deltalake import (
    make_dataset,
    odd_files,
    predicate_from,
    row_dataset,
    scan_rows,
)
from delkalakedb.deltalake.raw import SqlRawTable
from delkalakedb.model.predicate.predicate import Anything
from delkalakedb.model.stats.add_actions import ADD_ACTION_COLUMNS
from delkalakedb.query.parquet import ParquetFiles, are_plain, parquet_files
from delkalakedb.storage import local_folder
from delkalakedb.write.engines.deltars import open_filesystem

Scan = Callable[[list[str], ds.Expression | None], Iterator[pa.RecordBatch]]

# Files that are planned already need no statistics.
_COLUMNS = ("path", "partition_values", "size_bytes", "deletion_vector")
# Files in a dataset: few at first, for a LIMIT; doubled each time, for throughput.
_FEWEST_FILES, _MOST_FILES = 1, 512


class Source(ds.Dataset):  # type: ignore[misc]
    """A dataset that a function scans; `failure` is the error that the scan raised."""

    is_plain = False

    def __init__(self, schema: pa.Schema, scan: Scan) -> None:
        self._schema = schema
        self.scan = scan
        self.failure: Exception | None = None

    def parquet(self, filters: Sequence[ds.Expression | None]) -> ParquetFiles | None:
        """Return the files that hold the rows of scans, if DuckDB can read them."""
        return None

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        return self._schema

    def scanner(
        self,
        columns: list[str] | None = None,
        filter: ds.Expression | None = None,  # noqa: A002
        **_: Any,
    ) -> ds.Scanner:
        """Return a scanner of some columns, for the rows that match a filter."""
        names = self._schema.names if columns is None else columns
        schema = pa.schema([self._schema.field(name) for name in names])
        return ds.Scanner.from_batches(
            self._watched(names, filter), schema=schema, batch_readahead=1
        )

    def _watched(
        self, columns: list[str], where: ds.Expression | None
    ) -> Iterator[pa.RecordBatch]:
        # Kept, because DuckDB raises an error of a scan with its text only.
        try:
            yield from self.scan(columns, where)
        except Exception as error:
            self.failure = error
            raise


def version_source(
    catalog: Catalog,
    snapshot: Snapshot,
    storage_options: Mapping[str, str] | None = None,
    keep: Callable[[Files], Files] = lambda files: files,
) -> Source:
    """Return a source of a table at a version, with the files that `keep` returns."""
    return _VersionSource(catalog, snapshot, storage_options, keep)


class _VersionSource(Source):
    def __init__(
        self,
        catalog: Catalog,
        snapshot: Snapshot,
        storage_options: Mapping[str, str] | None,
        keep: Callable[[Files], Files],
    ) -> None:
        name, version = snapshot.table.name, snapshot.version
        self._raw: Any = SqlRawTable(catalog, name, version, storage_options)
        super().__init__(pa.schema(self._raw.schema.to_arrow()), self._rows)
        self._snapshot = snapshot
        self._storage_options = storage_options
        self._keep = keep
        self.is_plain = are_plain(snapshot)

    def parquet(self, filters: Sequence[ds.Expression | None]) -> ParquetFiles | None:
        """Return the files that hold the rows of scans, if DuckDB can read them."""
        if not self.is_plain:
            return None
        # Null, or unknown, is a filter that all rows match.
        where = None
        if not any(one is None for one in filters):
            where = reduce(or_, filters)
        return parquet_files(_choose(self._snapshot, self._schema, where))

    def _rows(
        self, columns: list[str], where: ds.Expression | None
    ) -> Iterator[pa.RecordBatch]:
        schema, options = self._schema, self._storage_options
        if self._raw.needs_delta_rs():
            yield from scan_rows(self._raw, schema, columns, where).to_batches()
            return
        files = self._keep(_choose(self._snapshot, schema, where))
        if files.outside or odd_files(self._snapshot):
            rows = row_dataset(self._snapshot, schema, options, files)
            yield from rows.to_batches(columns=columns, filter=where)
        else:
            yield from _scan_files(files, schema, columns, where, options)


def filtered(
    rows: pa.RecordBatchReader, columns: list[str], where: ds.Expression | None
) -> Iterator[pa.RecordBatch]:
    """Yield some columns of the rows that match a filter."""
    chosen = ds.Scanner.from_batches(rows, columns=columns, filter=where)
    yield from chosen.to_batches()


def _choose(
    snapshot: Snapshot, schema: pa.Schema, where: ds.Expression | None
) -> Files:
    """Return the files that may have a row that matches a filter."""
    if where is None:
        return load_files(snapshot, None, _COLUMNS)
    predicate = predicate_from(where, schema, snapshot.table.schema)
    if predicate != Anything():
        return load_files(snapshot, predicate, _COLUMNS)
    # pyarrow skips files by their statistics, more slowly than the catalog.
    return load_files(snapshot, None, [*ADD_ACTION_COLUMNS, "deletion_vector"])


def _scan_files(
    files: Files,
    schema: pa.Schema,
    columns: list[str],
    where: ds.Expression | None,
    storage_options: Mapping[str, str] | None,
) -> Iterator[pa.RecordBatch]:
    filesystem = _filesystem(files, storage_options)
    start, size = 0, _FEWEST_FILES
    while start < files.table.num_rows:
        some = Files(files.snapshot, files.table.slice(start, size))
        rows = make_dataset(some, schema, filesystem, None)
        yield from rows.to_batches(columns=columns, filter=where)
        start, size = start + size, min(2 * size, _MOST_FILES)


def _filesystem(
    files: Files, storage_options: Mapping[str, str] | None
) -> pa_fs.FileSystem:
    snapshot = files.snapshot
    location = snapshot.table.location
    folder = local_folder(location)
    if folder is not None:
        return pa_fs.SubTreeFileSystem(folder, pa_fs.LocalFileSystem())
    what = f"{snapshot.table.name}: read version {snapshot.version}"
    return open_filesystem(what, location, storage_options or {}, files.sizes())
