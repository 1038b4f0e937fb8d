"""Append data files: Parquet, Arrow IPC, CSV and JSON lines.

Files are streamed, so none has to fit into memory. DuckDB reads CSV and JSON in the
types of the table, and a value of another type is an error.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from delkalakedb.catalog import open_catalog
from delkalakedb.deltalake import DeltaTable, write_deltalake
from delkalakedb.errors import QueryError, SchemaMismatchError, TableNotFoundError
from delkalakedb.query.formats import InputFile, find_files, inspect_file, open_file
from delkalakedb.settings import parse_uri, require_table

Advance = Callable[[int, int | None], None]


@dataclass(frozen=True)
class Appended:
    """The result of appending files, or of a dry run."""

    table: str
    created: bool
    version: int | None
    files: int
    rows: int | None
    new_columns: tuple[str, ...] = ()
    # of the files, not of what the table got
    size_bytes: int = 0


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
        kind: the format of the files; by default their names say it.
        create: create the table if there is none, with the first file's columns.
        partition_by: the columns that a new table is partitioned by.
        schema_mode: "merge" adds columns that the table lacks; columns that a file
            lacks are null.
        each: make one commit for each file.
        dry_run: only check that the files fit the table.
        advance: called with the number of rows written so far.
    """
    name, known = require_table(parse_uri(uri)), None
    try:
        known = pa.schema(DeltaTable(uri).schema().to_arrow())
    except TableNotFoundError as error:
        if not create:
            raise TableNotFoundError(f"{error} (--create makes it)") from error
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
    size = sum(Path(file.path).stat().st_size for file in files)
    created, version = known is None, _version(uri)
    return Appended(name, created, version, len(files), rows, new, size)


def _version(uri: str) -> int | None:
    parsed = parse_uri(uri)
    try:
        return open_catalog(parsed).table(require_table(parsed)).version
    except TableNotFoundError:
        return None


def _target(files: Sequence[InputFile], schema: pa.Schema, *, merge: bool) -> pa.Schema:
    """Return the columns to write; raise `SchemaMismatchError` on a misfit."""
    for file in files:
        extra = [f for f in file.schema if f.name not in schema.names]
        if merge:
            schema = pa.schema([*schema, *extra])
            continue
        missing = [n for n in schema.names if n not in file.schema.names]
        # JSON leaves out null values.
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
    """Write in another thread, because delta-rs blocks Ctrl-C in this one."""
    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(write_deltalake, uri, rows.reader(), **options)
        try:
            # Polls, because a signal wakes only the thread that it is sent to.
            while not wait([written], timeout=0.1).done:
                continue
            written.result()
        except KeyboardInterrupt:
            rows.stop()
            raise
        except Exception:
            if rows.failure is not None:
                raise rows.failure from None
            raise
    return rows.done


class _Rows:
    """The rows of files in one schema, and the error that reading them raised."""

    def __init__(
        self,
        files: Sequence[InputFile],
        schema: pa.Schema,
        advance: Advance,
        before: int,
    ) -> None:
        self._files = files
        self._schema = schema
        self._advance = advance
        self._before = before
        self.done = 0
        self._stopped = False
        self.failure: Exception | None = None

    def reader(self) -> pa.RecordBatchReader:
        """Return the rows as an Arrow stream."""
        return pa.RecordBatchReader.from_batches(self._schema, self._watched())

    def stop(self) -> None:
        """End the stream with an error before its next batch."""
        self._stopped = True

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

    def _of(self, file: InputFile) -> Iterator[pa.RecordBatch]:
        with open_file(file, self._schema) as batches:
            for batch in batches:
                if self._stopped:
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
