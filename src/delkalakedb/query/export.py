"""Export: rows of a table as a Parquet, CSV or JSON lines file."""

import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from delkalakedb.catalog import Catalog, Snapshot
from delkalakedb.errors import QueryError, StorageError, did_you_mean
from delkalakedb.query.duck import Selected, quoted
from delkalakedb.query.selection import select

# Rows in a batch, which becomes a row group.
_BATCH_ROWS = 100_000

Advance = Callable[[int, int | None], None]
Write = Callable[[Selected, IO[bytes], Advance], int]


@dataclass(frozen=True)
class Exported:
    """The file that an export wrote."""

    table: str
    version: int
    path: str
    rows: int
    size_bytes: int


def rows_of(
    snapshot: Snapshot, columns: Sequence[str] = (), where: str | None = None
) -> str:
    """Return the query for rows of a version.

    Args:
        snapshot: the version.
        columns: names of columns; all by default.
        where: an SQL condition on the rows.
    """
    names = [field.name for field in snapshot.table.schema.fields]
    if unknown := [name for name in columns if name not in names]:
        raise QueryError(
            f"{snapshot.table.name}: no column {', '.join(unknown)}"
            f"{did_you_mean(unknown[0], names)}; it has {', '.join(names)}"
        )
    wanted = ", ".join(map(quoted, columns or names))
    # On its own line, because the condition may end in a comment.
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
    """Write rows of a version to a file, which gets its name when it is complete.

    Args:
        catalog: the table's catalog.
        snapshot: the version.
        out: the path of the file.
        kind: `parquet`, `csv` or `jsonl`.
        columns: names of columns; all by default.
        where: an SQL condition on the rows.
        force: replace an existing file.
        advance: called with the number of rows written so far.
    """
    path = Path(out)
    if path.exists() and not force:
        raise StorageError(f"{path}: the file exists already; --force replaces it")
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
    """Open a file that gets its name at the end, and is deleted on an error."""
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with partial.open("xb") as stream:
            yield stream
        partial.replace(path)
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror or error}") from error
    finally:
        partial.unlink(missing_ok=True)


def _as_json(query: str, snapshot: Snapshot, columns: Sequence[str]) -> str:
    # Decimals as strings, because JSON readers take numbers for doubles.
    rows = _converted(query, snapshot, columns, {"decimal": "{}::VARCHAR"})
    return f"SELECT to_json(r)::VARCHAR AS line FROM ({rows}) r"


def _as_text(query: str, snapshot: Snapshot, columns: Sequence[str]) -> str:
    """Return the query with bytes and nested values as text, for CSV."""
    nested = dict.fromkeys(("struct", "array", "map"), "to_json({})::VARCHAR")
    return _converted(query, snapshot, columns, {**nested, "binary": "{}::VARCHAR"})


def _converted(
    query: str, snapshot: Snapshot, columns: Sequence[str], forms: Mapping[str, str]
) -> str:
    """Return the query with the columns of some types in another form."""
    types = {f.name: f.type.partition("(")[0] for f in snapshot.table.schema.fields}
    parts = [
        f"{forms.get(types[name], '{}').format(quoted(name))} AS {quoted(name)}"
        for name in columns or types
    ]
    return f"SELECT {', '.join(parts)} FROM ({query}) r"


def _write_arrow(
    writer: Callable[..., Any], rows: Selected, stream: IO[bytes], advance: Advance
) -> int:
    with writer(stream, rows.schema) as opened:
        return _each(rows, opened.write_batch, advance)


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
    "parquet": (lambda query, *_: query, partial(_write_arrow, pq.ParquetWriter)),
    "csv": (_as_text, partial(_write_arrow, pa_csv.CSVWriter)),
    "jsonl": (_as_json, _write_json),
}
