"""DuckDB in memory: runs a query and keeps nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, count
from queue import Empty, SimpleQueue
from tempfile import TemporaryDirectory
from threading import Semaphore, Thread
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa

from delkalakedb.errors import QueryError

if TYPE_CHECKING:
    from delkalakedb.query.sources import Source

# Rows in a batch.
BATCH_ROWS = 10_000
# Batches computed ahead of the reader.
_AHEAD = 4


@dataclass(frozen=True)
class Selected:
    """The rows of a query, computed while they are read."""

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]


@dataclass(frozen=True)
class Query:
    """A query for DuckDB, with its parameters and limits."""

    sql: str
    params: Sequence[Any] | Mapping[str, Any] | None = None
    limit: int | None = None
    batch_rows: int = BATCH_ROWS


@contextmanager
def open_duckdb(*, sealed: bool) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a database in memory that spills to a temporary folder.

    Args:
        sealed: shut off files and the network.
    """
    with (
        TemporaryDirectory(prefix="delkalakedb-", ignore_cleanup_errors=True) as folder,
        duckdb.connect(config={"temp_directory": folder}) as connection,
    ):
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute("SET python_enable_replacements = false")
        connection.execute("SET autoinstall_known_extensions = false")
        if sealed:
            connection.execute("SET enable_external_access = false")
            connection.execute("SET lock_configuration = true")
        yield connection


@contextmanager
def run_query(
    connection: duckdb.DuckDBPyConnection,
    query: Query,
    sources: Collection[Source] = (),
) -> Iterator[Selected]:
    """Run a query and yield its rows; leaving the block early, or Ctrl-C, stops it."""
    pump = _Pump(connection, query)
    try:
        with explained(sources):
            schema = pump.next()
        names = _unlike(schema.names)
        fields = [f.with_name(name) for f, name in zip(schema, names, strict=True)]
        yield Selected(pa.schema(fields), _batches(pump, names, sources))
    finally:
        pump.stop()


def quoted(name: str) -> str:
    """Return a name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def _unlike(names: list[str]) -> list[str]:
    """Return the names, each repeated one with a number added."""
    found: list[str] = []
    for name in names:
        others = (f"{name}_{i}" for i in count(1))
        found.append(next(n for n in chain([name], others) if n not in found))
    return found


def _batches(
    pump: _Pump, names: list[str], sources: Collection[Source]
) -> Iterator[pa.RecordBatch]:
    with explained(sources):
        while (batch := pump.next()) is not None:
            yield batch.rename_columns(names)


class _Pump:
    """Runs a query in its own thread, because DuckDB blocks Ctrl-C in the caller's."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, query: Query) -> None:
        self._connection = connection
        self._query = query
        self._found: SimpleQueue[Any] = SimpleQueue()
        self._room = Semaphore(_AHEAD)
        self._stopped = False
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def next(self) -> Any:
        """Return the schema, then batch after batch, then None."""
        item = self._wait()
        self._room.release()
        if isinstance(item, BaseException):
            raise item
        return item

    def _wait(self) -> Any:
        # Polls, because a signal wakes only the thread that it is sent to.
        while True:
            with suppress(Empty):
                return self._found.get(timeout=0.1)

    def stop(self) -> None:
        """End the query at any point, and wait for the thread."""
        self._stopped = True
        self._room.release()
        while self._thread.is_alive():
            self._connection.interrupt()
            self._thread.join(0.05)

    def _run(self) -> None:
        try:
            for item in self._rows():
                self._found.put(item)
                self._room.acquire()
                if self._stopped:
                    return
        except BaseException as error:
            self._found.put(error)
        else:
            self._found.put(None)

    def _rows(self) -> Iterator[pa.Schema | pa.RecordBatch]:
        query = self._query
        relation = self._connection.sql(query.sql, params=query.params)
        if query.limit is not None:
            relation = relation.limit(query.limit)
        with relation.to_arrow_reader(query.batch_rows) as reader:
            yield reader.schema
            yield from reader


@contextmanager
def explained(sources: Collection[Source] = ()) -> Iterator[None]:
    """Raise DuckDB's errors as `QueryError`, and an error of a source as it was."""
    try:
        yield
    except (duckdb.Error, pa.ArrowException) as error:
        for source in sources:
            if source.failure is not None:
                raise source.failure from None
        raise QueryError(_first_words(str(error))) from error


def _first_words(text: str) -> str:
    """Return the message without advice, and without the rewritten query."""
    return text.split("\n\n")[0].replace("\n", " ").strip()
