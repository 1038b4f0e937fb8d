"""The databases of the benchmarks, with plain operations to compare the catalog with.

A `Database` is one new database. In addition to its catalog, it has two plain
operations: a durable commit of one row, and a bulk load of given rows.
"""

import sqlite3
import sys
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import duckdb
import pyarrow as pa
from measure import Case, timed

import delkalakedb as dk

if TYPE_CHECKING:
    import psycopg

sys.path.append(str(Path(__file__).parents[1]))

# Rows by table, in the form that the engine's bulk load takes.
Rows = dict[str, Any]
_BARE_TABLE = "CREATE TABLE bare (id BIGINT PRIMARY KEY, note TEXT NOT NULL)"
_NOTE = "x" * 100


class Database(ABC):
    """A database of one engine."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = name

    @property
    @abstractmethod
    def uri(self) -> str:
        """The URI of the catalog in this database."""

    @property
    @abstractmethod
    def ducklake(self) -> str:
        """The string by which DuckLake attaches this database."""

    @abstractmethod
    def size_bytes(self) -> int:
        """Return the size of the database on disk."""

    @abstractmethod
    def bare_commit(self) -> Case:
        """Return a case that commits one small row durably."""

    @abstractmethod
    def dump(self, least: int) -> Rows:
        """Return the rows of every table that has at least `least` rows."""

    @abstractmethod
    def load(self, rows: Rows) -> float:
        """Load dumped rows in one durable transaction, and return the seconds."""

    def settle(self) -> None:
        """Do the maintenance that the engine does some time after a bulk load."""
        return

    def connect(self) -> dk.Catalog:
        """Open the catalog in this database."""
        return dk.connect(self.uri)


class SqliteDatabase(Database):
    """A SQLite file in WAL mode that syncs every commit to disk."""

    @property
    def path(self) -> Path:
        return self.folder / f"{self.name}.sqlite"

    @property
    def uri(self) -> str:
        return f"deltasql://sqlite/{self.path}"

    @property
    def ducklake(self) -> str:
        return f"sqlite:{self.path}"

    def size_bytes(self) -> int:
        with self._opened() as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return self.path.stat().st_size

    def bare_commit(self) -> Case:
        connection = self._connect()
        connection.execute(_BARE_TABLE)
        numbers = iter(range(1 << 40))

        def insert() -> None:
            connection.execute("INSERT INTO bare VALUES (?, ?)", (next(numbers), _NOTE))

        return timed(insert)

    def dump(self, least: int) -> Rows:
        with self._opened() as connection:
            names = connection.execute(
                "SELECT name FROM sqlite_master "
                "WHERE type = 'table' AND name GLOB 'dl_*'"
            )
            found = {n: connection.execute(f"SELECT * FROM {n}") for (n,) in names}
            rows = {name: cursor.fetchall() for name, cursor in found.items()}
        return {name: these for name, these in rows.items() if len(these) >= least}

    def load(self, rows: Rows) -> float:
        with self._opened() as connection:
            started = time.perf_counter()
            connection.execute("BEGIN IMMEDIATE")
            for table, these in rows.items():
                marks = ", ".join("?" * len(these[0]))
                connection.executemany(f"INSERT INTO {table} VALUES ({marks})", these)
            connection.execute("COMMIT")
            return time.perf_counter() - started

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, isolation_level=None)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        return connection

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        connection = self._connect()
        try:
            yield connection
        finally:
            connection.close()


class DuckDBDatabase(Database):
    """A DuckDB file, which one process at a time can open."""

    @property
    def path(self) -> Path:
        return self.folder / f"{self.name}.duckdb"

    @property
    def uri(self) -> str:
        return f"deltasql://duckdb/{self.path}"

    @property
    def ducklake(self) -> str:
        return str(self.path)

    def size_bytes(self) -> int:
        with duckdb.connect(str(self.path)) as connection:
            connection.execute("CHECKPOINT")
        return self.path.stat().st_size

    def bare_commit(self) -> Case:
        connection = duckdb.connect(str(self.path))
        connection.execute(_BARE_TABLE)
        numbers = iter(range(1 << 40))

        def insert() -> None:
            connection.execute("INSERT INTO bare VALUES (?, ?)", (next(numbers), _NOTE))

        return timed(insert)

    def dump(self, least: int) -> Rows:
        with duckdb.connect(str(self.path)) as connection:
            names = connection.execute(
                "SELECT table_name FROM duckdb_tables() WHERE table_name GLOB 'dl_*'"
            ).fetchall()
            rows = {n: connection.table(n).fetchall() for (n,) in names}
        return {name: these for name, these in rows.items() if len(these) >= least}

    def load(self, rows: Rows) -> float:
        with duckdb.connect(str(self.path)) as connection:
            started = time.perf_counter()
            connection.execute("BEGIN")
            for table, these in rows.items():
                # Timed as well, because the other engines also start from Python rows.
                columns = [pa.array(column) for column in zip(*these, strict=True)]
                names = [str(i) for i in range(len(columns))]
                incoming = pa.Table.from_arrays(columns, names)
                connection.register("incoming", incoming)
                connection.execute(f"INSERT INTO {table} FROM incoming")
            connection.execute("COMMIT")
            return time.perf_counter() - started


class PostgresDatabase(Database):
    """A database of a Postgres server that syncs every commit to disk."""

    server: ClassVar[Any] = None

    def __init__(self, folder: Path, name: str) -> None:
        super().__init__(folder, f"{name}_{uuid.uuid4().hex[:8]}".replace("-", "_"))
        with self._connect("postgres") as connection:
            connection.execute(f"CREATE DATABASE {self.name}".encode())

    @property
    def uri(self) -> str:
        return f"deltasql://postgres/{self.server.authority}/{self.name}/public"

    @property
    def ducklake(self) -> str:
        user, _, password = self.server.authority.split("@")[0].partition(":")
        where = f"host=127.0.0.1 port={self.server.port} dbname={self.name}"
        return f"postgres:{where} user={user} password={password}"

    def size_bytes(self) -> int:
        with self._connect() as connection:
            row = connection.execute(
                "SELECT pg_database_size(current_database())"
            ).fetchone()
        assert row is not None
        return int(row[0])

    def settle(self) -> None:
        with self._connect() as connection:
            connection.execute("VACUUM ANALYZE")

    def bare_commit(self) -> Case:
        connection = self._connect()
        connection.execute(_BARE_TABLE)
        numbers = iter(range(1 << 40))

        def insert() -> None:
            values = (next(numbers), _NOTE)
            connection.execute("INSERT INTO bare VALUES (%s, %s)", values)

        return timed(insert)

    def dump(self, least: int) -> Rows:
        with self._connect() as connection:
            names = connection.execute(
                "SELECT tablename FROM pg_tables WHERE tablename LIKE 'dl\\_%'"
            ).fetchall()
            rows = {
                name: connection.execute(f"SELECT * FROM {name}".encode()).fetchall()
                for (name,) in names
            }
        return {name: these for name, these in rows.items() if len(these) >= least}

    def load(self, rows: Rows) -> float:
        with self._connect() as connection:
            types = {table: self._types(connection, table) for table in rows}
            started = time.perf_counter()
            with connection.transaction():
                for table, these in rows.items():
                    self._copy(connection, table, these, types[table])
            return time.perf_counter() - started

    def _copy(
        self,
        connection: "psycopg.Connection[Any]",
        table: str,
        rows: Any,
        types: list[str],
    ) -> None:
        statement = f"COPY {table} FROM STDIN (FORMAT BINARY)".encode()
        with connection.cursor().copy(statement) as copy:
            copy.set_types(types)
            for row in rows:
                copy.write_row(row)

    def _types(self, connection: "psycopg.Connection[Any]", table: str) -> list[str]:
        rows = connection.execute(
            "SELECT data_type FROM information_schema.columns "
            "WHERE table_name = %s ORDER BY ordinal_position",
            (table,),
        ).fetchall()
        return [kind for (kind,) in rows]

    def _connect(self, database: str | None = None) -> "psycopg.Connection[Any]":
        import psycopg

        return psycopg.connect(self.server.dsn(database or self.name), autocommit=True)


ENGINES: dict[str, type[Database]] = {
    "sqlite": SqliteDatabase,
    "duckdb": DuckDBDatabase,
    "postgres": PostgresDatabase,
}


@contextmanager
def postgres_server(wanted: bool) -> Iterator[None]:
    """Run a durable Postgres server during the block, if an engine needs it."""
    if not wanted:
        yield
        return
    from tests.support.servers.postgres import Server

    server = Server("shared_buffers=256MB", "max_wal_size=4GB")
    server.start()
    PostgresDatabase.server = server
    try:
        yield
    finally:
        server.stop()
