"""What an engine that scans pyarrow datasets may read: rows that come when asked for.

DuckDB tells a dataset which columns a query needs and what its filter on them is.
Only then are the files chosen, in SQL, and no row is read that nobody asks for.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pa_fs

from delkalakedb.catalog import Catalog, Snapshot
from delkalakedb.table.dataset import make_dataset, odd_files
from delkalakedb.table.expressions import predicate_from
from delkalakedb.table.files import Files, load_files, local_folder
from delkalakedb.table.inputs import open_filesystem
from delkalakedb.table.reads import SqlRawReads

__all__ = ["Scan", "Source", "filtered", "version_source"]

Scan = Callable[[list[str], ds.Expression | None], Iterator[pa.RecordBatch]]

# The files are chosen already: of their statistics nothing is needed.
_COLUMNS = ("path", "partition_values", "size_bytes")
# Whoever wants a few rows waits for a few files; who wants all, for many at once.
_FEWEST_FILES, _MOST_FILES = 1, 512


class Source(ds.Dataset):  # type: ignore[misc]
    """A dataset that is scanned by a function."""

    def __init__(self, schema: pa.Schema, scan: Scan) -> None:
        self._schema = schema
        self._scan = scan
        self.failure: Exception | None = None

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
        """The rows of some columns for which a filter holds."""
        names = self._schema.names if columns is None else columns
        schema = pa.schema([self._schema.field(name) for name in names])
        return ds.Scanner.from_batches(
            self._watched(names, filter), schema=schema, batch_readahead=1
        )

    def _watched(
        self, columns: list[str], where: ds.Expression | None
    ) -> Iterator[pa.RecordBatch]:
        # An error that crosses the engine comes back as a text.
        try:
            yield from self._scan(columns, where)
        except Exception as error:
            self.failure = error
            raise


def version_source(
    catalog: Catalog,
    snapshot: Snapshot,
    storage_options: Mapping[str, str] | None = None,
    keep: Callable[[Files], Files] = lambda files: files,
) -> Source:
    """A table at a version; of its files those that `keep` leaves."""
    name, version = snapshot.table.name, snapshot.version
    raw: Any = SqlRawReads(catalog, name, version, storage_options)
    schema = pa.schema(raw.schema.to_arrow())

    def scan(
        columns: list[str], where: ds.Expression | None
    ) -> Iterator[pa.RecordBatch]:
        if odd_files(snapshot):
            return _scan_by_delta(raw, schema, columns, where)
        predicate = None
        if where is not None:
            predicate = predicate_from(where, snapshot.table.schema)
        files = keep(load_files(snapshot, predicate, _COLUMNS))
        if files.outside:
            return _scan_by_delta(raw, schema, columns, where)
        return _scan_files(files, schema, columns, where, storage_options)

    return Source(schema, scan)


def filtered(
    rows: pa.RecordBatchReader, columns: list[str], where: ds.Expression | None
) -> Iterator[pa.RecordBatch]:
    """Some columns of the rows for which a filter holds."""
    chosen = ds.Scanner.from_batches(rows, columns=columns, filter=where)
    yield from chosen.to_batches()


def _scan_by_delta(
    raw: Any, schema: pa.Schema, columns: list[str], where: Any
) -> Iterator[pa.RecordBatch]:
    # A filter may ask for columns that aren't wanted.
    reader = pa.RecordBatchReader.from_stream(
        raw.scan(columns if where is None else None)
    )
    typed = pa.schema([schema.field(name) for name in reader.schema.names])
    yield from filtered(reader.cast(typed), columns, where)


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
