"""DuckDB in memory: runs queries and stores nothing.

Opening a database takes 13 ms, as long as many a query. So sealed databases are kept,
each with the folders that its queries may read, and a query gets a cursor of one.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import re
import shutil
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, count
from queue import Empty, SimpleQueue
from tempfile import mkdtemp
from threading import Lock, Semaphore, Thread
from typing import Any, Protocol, Self
from weakref import finalize

import duckdb
import pyarrow as pa

from delkalakedb.errors import QueryError, StorageError, did_you_mean
from delkalakedb.forks import Forkable

# Rows in a batch.
BATCH_ROWS = 10_000
# Batches computed ahead of the reader.
_AHEAD = 4
# databases that are kept; each has threads
_KEPT = 3
# columns that an error lists
_LISTED = 10
# what DuckDB's messages begin with, for its own errors
_KIND = re.compile(r"^[A-Z]\w*(?: [A-Z]\w*)* Error: ")
_NO_COLUMN = re.compile(
    r'Referenced column "(?P<name>.+?)" not found'
    r'|(?:Table|Values list) (?P<table>".+?") does not have a column named '
    r'"(?P<of>.+?)"'
)
_NO_TABLE = re.compile(
    r'Referenced table "(.+?)" not found!? Candidate tables: "(.+?)"'
)


class Scanned(Protocol):
    """Rows that DuckDB reads by calling this package."""

    failure: Exception | None
    """The error that a scan raised."""

    @property
    def schema(self) -> pa.Schema:
        """The columns."""


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
def open_duckdb() -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a database that may read files."""
    with _Database() as database:
        yield database.connection


@contextmanager
def sealed_duckdb(
    folders: frozenset[str] = frozenset(),
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Return a connection that has no access to the network.

    Args:
        folders: the only folders whose files it may read.
    """
    # Held here, because the folder for spilled rows goes with the database.
    database = _databases.find(folders)
    with database.connection.cursor() as connection:
        yield connection


class _Database:
    """A database in memory that spills to a temporary folder.

    Args:
        folders: the only folders whose files it may read; None for access to all files
            and to the network.
    """

    def __init__(self, folders: Collection[str] | None = None) -> None:
        spilled = mkdtemp(prefix="delkalakedb-")
        self._removed = finalize(self, _remove, spilled, os.getpid())
        self.connection = connection = duckdb.connect(
            config={"temp_directory": spilled}
        )
        # GLOBAL, because a cursor doesn't have what is set in a session.
        connection.execute("SET GLOBAL TimeZone = 'UTC'")
        connection.execute("SET GLOBAL python_enable_replacements = false")
        connection.execute("SET GLOBAL autoinstall_known_extensions = false")
        if folders is not None:
            listed = ", ".join(literal(f"{folder}/") for folder in sorted(folders))
            connection.execute(f"SET allowed_directories = [{listed}]")
            connection.execute("SET enable_external_access = false")
            connection.execute("SET lock_configuration = true")

    def close(self) -> None:
        """Close the database, and delete what it spilled."""
        self.connection.close()
        self._removed()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _remove(folder: str, pid: int) -> None:
    # A forked child doesn't own the folder.
    if pid == os.getpid():
        shutil.rmtree(folder, ignore_errors=True)


class _Databases(Forkable):
    """The sealed databases used last, by the folders that they may read."""

    _found: OrderedDict[frozenset[str], _Database] | None = None

    def _reset(self) -> None:
        # Never freed in a forked child, which doesn't have the databases' threads.
        for database in (self._found or {}).values():
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(database.connection))
        self._found = OrderedDict()
        self._lock = Lock()

    def find(self, folders: frozenset[str]) -> _Database:
        """Return a database that may read some folders only."""
        with self._lock:
            assert self._found is not None
            if (database := self._found.get(folders)) is None:
                database = self._found[folders] = _Database(folders)
            self._found.move_to_end(folders)
            while len(self._found) > _KEPT:
                # Closed when no query uses it.
                self._found.popitem(last=False)
        return database

    def clear(self) -> None:
        """Keep no database."""
        with self._lock:
            self._found = OrderedDict()


_databases = _Databases()
atexit.register(_databases.clear)


@contextmanager
def run_query(
    connection: duckdb.DuckDBPyConnection,
    query: Query,
    sources: Collection[Scanned] = (),
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


@lru_cache(maxsize=256)
def types_of(schema: pa.Schema) -> Sequence[str]:
    """Return DuckDB's names for the types of columns."""
    with sealed_duckdb() as connection:
        connection.register("types_of", schema.empty_table())
        return [row[1] for row in connection.sql("DESCRIBE types_of").fetchall()]


def literal(value: str) -> str:
    """Return a value as an SQL text."""
    return "'" + value.replace("'", "''") + "'"


def _unlike(names: list[str]) -> list[str]:
    """Return the names, each repeated one with a number added."""
    found: list[str] = []
    for name in names:
        others = (f"{name}_{i}" for i in count(1))
        found.append(next(n for n in chain([name], others) if n not in found))
    return found


def _batches(
    pump: _Pump, names: list[str], sources: Collection[Scanned]
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
def explained(sources: Collection[Scanned] = ()) -> Iterator[None]:
    """Raise DuckDB's errors as `QueryError`, and an error of a source as it was."""
    try:
        yield
    except (duckdb.Error, pa.ArrowException) as error:
        for source in sources:
            if source.failure is not None:
                raise source.failure from None
        problem = _KIND.sub("", _first_words(str(error)))
        if isinstance(error, duckdb.IOException):
            raise StorageError(problem) from error
        raise QueryError(_with_near_names(problem, sources)) from error


def _first_words(text: str) -> str:
    """Return the message without advice, and without the rewritten query."""
    return text.split("\n\n")[0].replace("\n", " ").strip()


def _with_near_names(problem: str, sources: Collection[Scanned]) -> str:
    """Return a message about an unknown name with those that are near it."""
    if found := _NO_TABLE.match(problem):
        return f'table "{found[1]}" not found{did_you_mean(found[1], [found[2]])}'
    if not (found := _NO_COLUMN.match(problem)):
        return problem
    known = list(dict.fromkeys(name for s in sources for name in s.schema.names))
    name = found["name"] or found["of"]
    near = did_you_mean(name, known)
    if not near and known:
        near = f"; there are {', '.join(known[:_LISTED])}"
    where = f"{found['table']}: " if found["table"] else ""
    return f'{where}column "{name}" not found{near}'
