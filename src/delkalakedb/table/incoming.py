"""Appending data files: Parquet, Arrow IPC, CSV and JSON lines.

They are streamed: none has to fit into memory. CSV and JSON are read by DuckDB, in
the types that the table has; a value that isn't of its type is an error.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from delkalakedb.catalog.names import no_such_table
from delkalakedb.errors import (
    QueryError,
    SchemaMismatchError,
    TableNotFoundError,
)
from delkalakedb.table.datafiles import (
    DataFile,
    find_files,
    inspect_file,
    open_file,
)
from delkalakedb.table.opened import open_catalog
from delkalakedb.table.table import DeltaTable
from delkalakedb.table.write import write_deltalake
from delkalakedb.uri import parse_uri, require_table

__all__ = ["Appended", "append_files"]

Advance = Callable[[int, int | None], None]


@dataclass(frozen=True)
class Appended:
    """What was appended, or would be."""

    table: str
    created: bool
    version: int | None
    files: int
    rows: int | None
    new_columns: tuple[str, ...] = ()


def append_files(
    uri: str,
    patterns: Sequence[str],
    *,
    kind: str | None = None,
    create: bool = False,
    partition_by: Sequence[str] = (),
    schema_mode: Literal["merge"] | None = None,
    each: bool = False,
    dry_run: bool = False,
    advance: Advance = lambda done, total: None,
) -> Appended:
    """Append files to a table, in one commit.

    Args:
        uri: the table's `deltasql://` URI.
        patterns: paths of files, or patterns such as `day=*/*.parquet`.
        kind: their format; by default what their names say.
        create: make the table if there is none, with the first file's columns.
        partition_by: the columns that a new table is partitioned by.
        schema_mode: with "merge" columns that the table hasn't are added to it, and
            those that a file hasn't are null.
        each: one commit for each file.
        dry_run: only check that the files fit.
        advance: told how many rows are written.
    """
    name, known = require_table(parse_uri(uri)), _schema(uri)
    if known is None and not create:
        raise TableNotFoundError(f"{no_such_table(name)}; --create makes it")
    files = [inspect_file(path, kind) for path in find_files(patterns)]
    before = files[0].schema if known is None else known
    schema = _target(files, before, merge=schema_mode == "merge")
    rows: int | None = None
    if not dry_run:
        options: dict[str, Any] = {"mode": "append", "schema_mode": schema_mode}
        options |= {"partition_by": list(partition_by)} if partition_by else {}
        rows = 0
        for some in [[file] for file in files] if each else [files]:
            rows += _write(uri, _Rows(some, schema, advance, rows), options)
    new = () if known is None else tuple(schema.names[len(known.names) :])
    return Appended(name, known is None, _version(uri), len(files), rows, new)


def _schema(uri: str) -> pa.Schema | None:
    try:
        return pa.schema(DeltaTable(uri).schema().to_arrow())
    except TableNotFoundError:
        return None


def _version(uri: str) -> int | None:
    parsed = parse_uri(uri)
    try:
        return open_catalog(parsed).table(require_table(parsed)).version
    except TableNotFoundError:
        return None


def _target(files: Sequence[DataFile], schema: pa.Schema, *, merge: bool) -> pa.Schema:
    """The columns that are written, all of which the files fit."""
    for file in files:
        extra = [f for f in file.schema if f.name not in schema.names]
        if merge:
            schema = pa.schema([*schema, *extra])
            continue
        missing = [n for n in schema.names if n not in file.schema.names]
        # In JSON a value that isn't there is a null.
        if extra or (missing and file.kind != "jsonl"):
            raise SchemaMismatchError(f"{file.path}: {_misfit(extra, missing)}")
    return schema


def _misfit(extra: Sequence[pa.Field], missing: Sequence[str]) -> str:
    parts = []
    if extra:
        parts.append(f"the table has no column {', '.join(f.name for f in extra)}")
    if missing:
        parts.append(f"the file has no column {', '.join(missing)}")
    return f"{' and '.join(parts)}; --schema-mode merge allows for that"


def _write(uri: str, rows: "_Rows", options: dict[str, Any]) -> int:
    """Write in another thread: delta-rs doesn't heed Ctrl-C in ours."""
    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(write_deltalake, uri, rows.reader(), **options)
        try:
            # The signal may come to another thread, and wakes only that.
            while not wait([written], timeout=0.1).done:
                continue
            written.result()
        except KeyboardInterrupt:
            rows.stopped = True
            raise
        except Exception:
            if rows.failure is not None:
                raise rows.failure from None
            raise
    return rows.done


class _Rows:
    """The rows of files in one schema; an error in reading them is remembered."""

    def __init__(
        self,
        files: Sequence[DataFile],
        schema: pa.Schema,
        advance: Advance,
        before: int,
    ) -> None:
        self._files = files
        self._schema = schema
        self._advance = advance
        self._before = before
        self.done = 0
        self.stopped = False
        self.failure: Exception | None = None

    def reader(self) -> pa.RecordBatchReader:
        """The rows as Arrow."""
        return pa.RecordBatchReader.from_batches(self._schema, self._watched())

    def _watched(self) -> Iterator[pa.RecordBatch]:
        try:
            for file in self._files:
                yield from self._of(file)
        except QueryError as error:
            self.failure = SchemaMismatchError(f"{file.path}: {error}")
            raise
        except Exception as error:
            self.failure = error
            raise

    def _of(self, file: DataFile) -> Iterator[pa.RecordBatch]:
        with open_file(file, self._schema) as batches:
            for batch in batches:
                if self.stopped:
                    raise InterruptedError
                self.done += batch.num_rows
                self._advance(self._before + self.done, None)
                yield _fitted(batch, self._schema, file.path)


def _fitted(batch: pa.RecordBatch, schema: pa.Schema, path: str) -> pa.RecordBatch:
    arrays = [
        _cast(batch[field.name], field, path)
        if field.name in batch.schema.names
        else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.record_batch(arrays, schema=schema)


def _cast(values: pa.Array, field: pa.Field, path: str) -> pa.Array:
    try:
        return values.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SchemaMismatchError(
            f"{path}: column {field.name} is a {values.type}, and not every value "
            f"can be a {field.type}: {error}"
        ) from error
