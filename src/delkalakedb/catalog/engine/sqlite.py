"""The SQLite backend: one file, many processes, one writer at a time."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from delkalakedb.catalog.engine.backend import (
    UNFIT,
    Capabilities,
    FileBackend,
    Insert,
    Params,
    Restore,
    Row,
    Session,
    Write,
    columns_to_batch,
    no_catalog,
    unfit,
)
from delkalakedb.catalog.engine.pool import Pool
from delkalakedb.catalog.engine.statements import load_statements
from delkalakedb.clock import pauses
from delkalakedb.errors import (
    CatalogBusyError,
    CatalogError,
    CatalogPermissionError,
    CatalogUnavailableError,
    UnknownOutcomeError,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from delkalakedb.settings import Settings, Uri

# rows of one Arrow batch
_BATCH_ROWS = 20_000
# rows; so few that they are freed before the garbage collector scans them again
_FETCH_ROWS = 250
# pages that a backup copies at a time
_BACKUP_PAGES = 4096
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
# the database file, or its log beside it, may not be written to or created
_FORBIDDEN = {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY}
_UNAVAILABLE = {
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_PERM,
}


class _Connection(sqlite3.Connection):
    inode: int | None
    durable: bool | None = None
    # of a read-only database: the state of its files when the connection was opened
    stamp: tuple[object, ...] | None = None


class SqliteBackend(FileBackend):
    """A catalog in a SQLite file, in WAL mode with every commit forced to disk."""

    engine = "sqlite"
    capabilities = Capabilities(table_locks=False, interval_index=True)
    placeholder = ":{}"
    statements = load_statements(engine, placeholder)

    def __init__(self, uri: Uri, settings: Settings) -> None:
        if uri.database == ":memory:":
            raise CatalogError(
                "sqlite has no shared :memory: database; use duckdb/:memory: or a file"
            )
        super().__init__(uri, settings)
        self._pool: Pool[_Connection] = Pool(
            self._connect,
            close=_Connection.close,
            healthy=self._healthy,
            size=settings.pool.size,
            timeout_s=settings.pool.connect_timeout,
            name=self.name,
            # A child inherits SQLite's record of the locks that its parent holds.
            forkable=False,
        )

    @contextmanager
    def reading(self) -> Iterator[Session]:
        with self._mapped(), self._pool.connection() as connection:
            yield _SqliteSession(connection)

    @contextmanager
    def writing(
        self, *, durable: bool = True, any_version: bool = False
    ) -> Iterator[_SqliteSession]:
        with self._mapped(), self._pool.connection() as connection:
            self._set_synchronous(connection, durable)
            connection.execute("BEGIN IMMEDIATE")
            try:
                session = _SqliteSession(connection)
                if not any_version:
                    self.check_version(session)
                yield session
                self._commit(connection)
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    def _commit(self, connection: _Connection) -> None:
        try:
            connection.execute("COMMIT")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_IOERR:
                raise
            # The transaction may be on disk, because perhaps only the sync failed.
            raise UnknownOutcomeError(
                f"{self.name}: the disk failed during COMMIT: {error}"
            ) from error

    def batches(
        self, sql: str, params: Params, schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        with (
            self._mapped(),
            self._pool.connection() as connection,
            # Closed, because an open statement keeps SQLite's log from being reset.
            closing(connection.execute(sql, params)) as cursor,
        ):
            columns: list[list[Any]] = [[] for _ in schema]
            while rows := cursor.fetchmany(_FETCH_ROWS):
                for column, values in zip(
                    columns, zip(*rows, strict=True), strict=True
                ):
                    column.extend(values)
                if len(columns[0]) >= _BATCH_ROWS:
                    yield columns_to_batch(columns, schema)
                    columns = [[] for _ in schema]
            if columns[0]:
                yield columns_to_batch(columns, schema)

    def find_catalog(self, session: Session) -> bool:
        return bool(session.query("find_catalog", {}))

    def back_up(self, file: Path, tables: Sequence[str]) -> None:
        with (
            self._mapped(),
            self._pool.connection() as source,
            closing(sqlite3.connect(file)) as target,
        ):
            # In a transaction, because a concurrent commit would restart the backup.
            source.execute("BEGIN")
            try:
                source.execute("SELECT 1 FROM sqlite_master").fetchall()
                source.backup(target, pages=_BACKUP_PAGES)
            finally:
                source.execute("ROLLBACK")
            # so that the backup is one file, without a log
            target.execute("PRAGMA journal_mode = DELETE")

    @contextmanager
    def restoring(self, file: Path) -> Iterator[Restore]:
        uri = f"{file.absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True)) as source:
            version = _checked_version(file, source)
            with self.writing(any_version=True) as session:

                def copy(table: str) -> None:
                    with _reading(file):
                        rows = source.execute(f"SELECT * FROM {table}")
                    names: dict[str, Row] = {name: () for name, *_ in rows.description}
                    session.insert(Insert(table, names).sql("?"), _read(file, rows))

                yield Restore(session, version, copy)

    def start_anew(self) -> None:
        self._inode = None

    def close(self) -> None:
        self._pool.close()

    def make_database(self) -> None:
        with self._mapped():
            self._open("mode=rwc", self._enter_wal).close()

    def _connect(self) -> _Connection:
        # A database that was removed while it was open isn't created again here.
        if self._inode is None and self._lacks_database():
            raise no_catalog(self, self.name)
        try:
            connection = self._open("mode=rw", self._enter_wal)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF not in _FORBIDDEN or self._is_writable():
                raise
            connection = self._open_read_only()
        connection.inode = self._inode = self._find_inode()
        return connection

    def _open(
        self, options: str, prepare: Callable[[_Connection], object]
    ) -> _Connection:
        connection = sqlite3.connect(
            f"{self._path.as_uri()}?{options}",
            uri=True,
            timeout=self._lock_timeout_s,
            isolation_level=None,
            check_same_thread=False,
            factory=_Connection,
        )
        try:
            prepare(connection)
            connection.execute("PRAGMA foreign_keys = ON")
        except BaseException:
            connection.close()
            raise
        return connection

    def _open_read_only(self) -> _Connection:
        """Return a connection to files that this process may only read.

        SQLite shares an index of the log with writers by a file. If the index file
        can't be created there are no writers, so the connection has an index in memory
        and no locks.
        """
        stamp = self._stamp()
        try:
            connection = self._open("mode=ro", _try_read)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF not in _FORBIDDEN:
                raise
            how = "vfs=unix-none" if self._has_log() else "immutable=1"
            connection = self._open(f"mode=ro&{how}", _try_read_alone)
        connection.stamp = stamp
        return connection

    def _has_log(self) -> bool:
        log = Path(f"{self._path}-wal")
        return log.exists() and log.stat().st_size > 0

    def _is_writable(self) -> bool:
        return all(os.access(path, os.W_OK) for path in (self._path, self._path.parent))

    def _stamp(self) -> tuple[object, ...]:
        """Return a value that changes when another process writes to the files."""
        found = [_stamp_of(f"{self._path}{end}") for end in ("", "-wal")]
        return (self._is_writable(), *found)

    def _set_synchronous(self, connection: _Connection, durable: bool) -> None:
        if connection.durable is not durable:
            level = "FULL" if durable else "NORMAL"
            connection.execute(f"PRAGMA synchronous = {level}")
            connection.durable = durable

    def _enter_wal(self, connection: _Connection) -> None:
        # SQLite doesn't call its busy handler while others turn the same file to WAL.
        deadline = time.monotonic() + self._lock_timeout_s
        waits = pauses(0.005, 0.05, jitter=0.5)
        while True:
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                busy = error.sqlite_errorcode & 0xFF in _BUSY
                if not busy or time.monotonic() > deadline:
                    raise
                time.sleep(next(waits))

    def _healthy(self, connection: _Connection) -> bool:
        """Return whether the connection is idle and its file is still at the path."""
        there = self._find_inode() == connection.inode
        same = connection.stamp is None or connection.stamp == self._stamp()
        return there and same and not connection.in_transaction

    @contextmanager
    def _mapped(self) -> Iterator[None]:
        try:
            yield
        except UNFIT as error:
            raise unfit(self.name, error) from error
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code in _BUSY:
                raise CatalogBusyError(
                    f"{self.name}: another writer held the database for more than "
                    f"{self._lock_timeout_s:g} s; retry, or raise pool.lock_timeout"
                ) from error
            if code == sqlite3.SQLITE_READONLY:
                raise CatalogPermissionError(
                    f"{self.name}: {error}; this user may only read the file, its "
                    "folder or its file system"
                ) from error
            if code in _UNAVAILABLE:
                raise CatalogUnavailableError(f"{self.name}: {error}") from error
            if code == sqlite3.SQLITE_ERROR and self._lacks_catalog():
                raise no_catalog(self, self.name) from error
            raise CatalogError(f"{self.name}: {error}") from error

    def _lacks_catalog(self) -> bool:
        with suppress(sqlite3.Error), self._pool.connection() as connection:
            return not connection.execute(self.statements["find_catalog"]).fetchall()
        return False


def _stamp_of(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _try_read(connection: _Connection) -> None:
    connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()


def _try_read_alone(connection: _Connection) -> None:
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    _try_read(connection)


@contextmanager
def _reading(file: Path) -> Iterator[None]:
    """Turn errors of reading a damaged backup into a `CatalogError`."""
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise CatalogError(f"{file} can't be restored: {error}") from error


def _read(file: Path, rows: Iterable[Row]) -> Iterator[Row]:
    with _reading(file):
        yield from rows


def _checked_version(file: Path, source: sqlite3.Connection) -> int:
    with _reading(file):
        ((problem,), *_) = source.execute("PRAGMA quick_check").fetchall()
        sql = SqliteBackend.statements["load_schema_version"]
        ((version,),) = source.execute(sql).fetchall()
    if problem != "ok":
        raise CatalogError(f"{file} can't be restored: it is damaged: {problem}")
    return int(version)


class _SqliteSession(Session):
    engine = SqliteBackend.engine
    statements = SqliteBackend.statements

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection

    def query_sql(self, sql: str, params: Params) -> list[Row]:
        return self._connection.execute(sql, params).fetchall()

    def apply(self, writes: Sequence[Write]) -> None:
        for write in writes:
            if isinstance(write, Insert):
                self.insert(write.sql("?"), write.rows())
            else:
                self._connection.execute(self.statements[write.name], write.params)

    def insert(self, sql: str, rows: Iterable[Row]) -> None:
        """Insert `rows` while they are read."""
        self._connection.executemany(sql, rows)

    def script(self, statements: Iterable[str]) -> None:
        for statement in statements:
            self._connection.execute(statement)
