"""Rows of a table as a file: Parquet, CSV or JSON lines."""

import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from delkalakedb.catalog import Catalog, Snapshot
from delkalakedb.errors import QueryError, StorageError
from delkalakedb.table.duck import Selected, quoted
from delkalakedb.table.select import select

__all__ = ["Exported", "export_rows", "rows_of"]

_BATCH_ROWS = 100_000

Advance = Callable[[int, int | None], None]
Write = Callable[[Selected, IO[bytes], Advance], int]


@dataclass(frozen=True)
class Exported:
    """What was written."""

    table: str
    version: int
    path: str
    rows: int
    size_bytes: int


def rows_of(
    snapshot: Snapshot, columns: Sequence[str] = (), where: str | None = None
) -> str:
    """The query for rows of a version.

    Args:
        snapshot: the version.
        columns: only these columns.
        where: only rows for which this SQL holds.
    """
    names = [field.name for field in snapshot.table.schema.fields]
    if unknown := [name for name in columns if name not in names]:
        raise QueryError(
            f"{snapshot.table.name}: no column {', '.join(unknown)}; "
            f"it has {', '.join(names)}"
        )
    wanted = ", ".join(map(quoted, columns or names))
    # On a line of its own: the condition may end in a comment.
    condition = f" WHERE ({where}\n)" if where else ""
    table = f"{quoted(snapshot.table.name)} AT (VERSION => {snapshot.version})"
    return f"SELECT {wanted} FROM {table}{condition}"


def export_rows(
    catalog: Catalog,
    snapshot: Snapshot,
    out: str | os.PathLike[str],
    kind: str,
    *,
    columns: Sequence[str] = (),
    where: str | None = None,
    force: bool = False,
    advance: Advance = lambda done, total: None,
) -> Exported:
    """Write rows of a version to a file, which appears when it is whole.

    Args:
        catalog: the table's catalog.
        snapshot: the version.
        out: the file.
        kind: `parquet`, `csv` or `jsonl`.
        columns: only these columns.
        where: only rows for which this SQL holds.
        force: replace a file that is there.
        advance: told how many rows are written.
    """
    path = Path(out)
    if path.exists() and not force:
        raise StorageError(f"{path}: there is such a file already; --force replaces it")
    query = rows_of(snapshot, columns, where)
    text = _FORMS[kind][0](query, snapshot, columns)
    with (
        select(catalog, text, batch_rows=_BATCH_ROWS) as rows,
        _new_file(path) as stream,
    ):
        written = _FORMS[kind][1](rows, stream, advance)
    table = snapshot.table.name
    size = path.stat().st_size
    return Exported(table, snapshot.version, str(path), written, size)


@contextmanager
def _new_file(path: Path) -> Iterator[IO[bytes]]:
    """A file that gets its name at the end, and goes if there is an error."""
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with partial.open("xb") as stream:
            yield stream
        partial.replace(path)
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror or error}") from error
    finally:
        partial.unlink(missing_ok=True)


def _as_it_is(query: str, snapshot: Snapshot, columns: Sequence[str]) -> str:
    return query


def _as_json(query: str, snapshot: Snapshot, columns: Sequence[str]) -> str:
    # A number would go through a double at whoever reads it.
    types = {field.name: field.type for field in snapshot.table.schema.fields}
    parts = [_exact(name, types[name]) for name in columns or types]
    rows = f"SELECT {', '.join(parts)} FROM ({query})"
    return f"SELECT to_json(r)::VARCHAR AS line FROM ({rows}) r"


def _as_text(query: str, snapshot: Snapshot, columns: Sequence[str]) -> str:
    """What CSV has no form for becomes text: bytes escaped, the rest as JSON."""
    types = {field.name: field.type for field in snapshot.table.schema.fields}
    parts = [_text_of(name, types[name]) for name in columns or types]
    return f"SELECT {', '.join(parts)} FROM ({query}) r"


def _exact(name: str, kind: str) -> str:
    column = quoted(name)
    return f"{column}::VARCHAR AS {column}" if kind.startswith("decimal") else column


def _text_of(name: str, kind: str) -> str:
    column = quoted(name)
    if kind in ("struct", "array", "map"):
        return f"to_json({column})::VARCHAR AS {column}"
    return f"{column}::VARCHAR AS {column}" if kind == "binary" else column


def _write_parquet(rows: Selected, stream: IO[bytes], advance: Advance) -> int:
    with pq.ParquetWriter(stream, rows.schema) as writer:
        return _each(rows, writer.write_batch, advance)


def _write_csv(rows: Selected, stream: IO[bytes], advance: Advance) -> int:
    with pa_csv.CSVWriter(stream, rows.schema) as writer:
        return _each(rows, writer.write_batch, advance)


def _write_json(rows: Selected, stream: IO[bytes], advance: Advance) -> int:
    def write(batch: pa.RecordBatch) -> None:
        stream.writelines(f"{line}\n".encode() for line in batch["line"].to_pylist())

    return _each(rows, write, advance)


def _each(
    rows: Selected, write: Callable[[pa.RecordBatch], None], advance: Advance
) -> int:
    done = 0
    for batch in rows.batches:
        write(batch)
        done += batch.num_rows
        advance(done, None)
    return done


_Form = Callable[[str, Snapshot, Sequence[str]], str]
_FORMS: dict[str, tuple[_Form, Write]] = {
    "parquet": (_as_it_is, _write_parquet),
    "csv": (_as_text, _write_csv),
    "jsonl": (_as_json, _write_json),
}
