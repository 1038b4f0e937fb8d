"""SQLite: one file, many processes, one writer at a time."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from delkalakedb.catalog.backend import (
    UNFIT,
    Backend,
    Capabilities,
    Insert,
    Params,
    Row,
    Session,
    StoredRows,
    Write,
    find_inode,
    is_empty,
    lacks_file,
    no_catalog,
    unfit,
)
from delkalakedb.catalog.pool import Pool
from delkalakedb.catalog.statements import load_statements
from delkalakedb.errors import (
    CatalogBusyError,
    CatalogError,
    CatalogUnavailableError,
    UnknownOutcomeError,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from delkalakedb.config import Settings
    from delkalakedb.uri import Uri

__all__ = ["SqliteBackend"]

_BATCH_ROWS = 20_000
# So few that the rows are gone before the garbage collector looks at them again.
_FETCH_ROWS = 250
_BACKUP_PAGES = 4096
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
# A file, or one beside it, that may not be written to or created.
_FORBIDDEN = {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY}
_UNAVAILABLE = {
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
}


class _Connection(sqlite3.Connection):
    inode: int | None
    durable: bool | None = None
    # Of a database that can't be written to: what its files were when it was opened.
    stamp: tuple[object, ...] | None = None


class SqliteBackend(Backend):
    """A catalog in a SQLite file, in WAL mode with every commit forced to disk."""

    engine = "sqlite"
    capabilities = Capabilities(table_locks=False, interval_index=True)
    placeholder = ":{}"
    statements = load_statements(engine, placeholder)

    @classmethod
    def identity(cls, uri: Uri) -> tuple[object, ...]:
        return (os.path.realpath(uri.database),)

    def __init__(self, uri: Uri, settings: Settings) -> None:
        if uri.database == ":memory:":
            raise CatalogError(
                "sqlite has no shared :memory: database; use duckdb/:memory: or a file"
            )
        self.name = str(uri)
        self._path = Path(uri.database).absolute()
        self._inode: int | None = None
        self.default_data_path = f"{self._path.with_suffix('')}_tables"
        self._lock_timeout_s = settings.pool.lock_timeout
        self._pool: Pool[_Connection] = Pool(
            self._connect,
            close=_Connection.close,
            healthy=self._healthy,
            size=settings.pool.size,
            timeout_s=settings.pool.connect_timeout,
            name=self.name,
            # A child shares SQLite's own account of the locks that its parent holds.
            forkable=False,
        )

    @contextmanager
    def reading(self) -> Iterator[Session]:
        with self._mapped(), self._pool.connection() as connection:
            yield _SqliteSession(connection)

    @contextmanager
    def writing(
        self, *, durable: bool = True, any_version: bool = False
    ) -> Iterator[Session]:
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
            # It may be on the disk whole: only a sync may have failed.
            raise UnknownOutcomeError(
                f"{self.name}: the disk failed during COMMIT: {error}"
            ) from error

    def batches(
        self, sql: str, params: Params, schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        with self._mapped(), self._pool.connection() as connection:
            yield from _by_row(connection, sql, params, schema)

    def files(self, params: Params, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """As for the other engines, but several times as quick as rows would be."""
        from delkalakedb.catalog.packing import Packing

        with self._mapped(), self._pool.connection() as connection:
            # All pages of one state: a file that is removed changes its place.
            connection.execute("BEGIN")
            try:
                packing = Packing(schema)
                page = packing.naming(self.statements["files_page"])
                pages = _by_page(connection, page, params, packing.schema)
                yield from map(packing.unpack, pages)
                died = self.naming("files_died", schema)
                yield from _by_row(connection, died, params, schema)
            finally:
                connection.execute("ROLLBACK")

    def find_catalog(self, session: Session) -> bool:
        return bool(session.query("find_catalog", {}))

    def prepare(self, session: Session) -> None:
        """Nothing to do: BEGIN IMMEDIATE keeps rivals out."""

    def db_user(self) -> str | None:
        return None

    def back_up(self, file: Path, tables: Sequence[str]) -> None:
        """SQLite's online backup, of one state."""
        with (
            self._mapped(),
            self._pool.connection() as source,
            closing(sqlite3.connect(file)) as target,
        ):
            # Within a transaction, or a commit meanwhile would have it begin again.
            source.execute("BEGIN")
            try:
                source.execute("SELECT 1 FROM sqlite_master").fetchall()
                source.backup(target, pages=_BACKUP_PAGES)
            finally:
                source.execute("ROLLBACK")
            # One file, with no log beside it.
            target.execute("PRAGMA journal_mode = DELETE")

    @contextmanager
    def open_backup(self, file: Path) -> Iterator[StoredRows]:
        uri = f"{file.absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True)) as source:
            yield _SqliteRows(file, _checked_version(file, source), source)

    def is_gone(self) -> bool:
        return self._inode is not None and find_inode(self._path) != self._inode

    def start_anew(self) -> None:
        self._inode = None

    def close(self) -> None:
        self._pool.close()

    def is_absent(self) -> bool:
        return lacks_file(self.name, self._path)

    def make_database(self) -> None:
        with self._mapped():
            self._open("mode=rwc", self._enter_wal).close()

    def _connect(self) -> _Connection:
        # One that was removed is another handle's to make again.
        if self._inode is None and (self.is_absent() or is_empty(self._path)):
            raise no_catalog(self, self.name)
        try:
            connection = self._open("mode=rw", self._enter_wal)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF not in _FORBIDDEN or self._is_writable():
                raise
            connection = self._open_read_only()
        connection.inode = self._inode = find_inode(self._path)
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
        """A connection to files that can't be changed, nor others made beside them.

        SQLite wants to share an index of the log with writers. Where there is no such
        file there are no writers: the index is made in memory, without locks.
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
        # The busy handler isn't called while rivals turn the same new file to WAL.
        deadline = time.monotonic() + self._lock_timeout_s
        while True:
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                busy = error.sqlite_errorcode & 0xFF in _BUSY
                if not busy or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def _healthy(self, connection: _Connection) -> bool:
        """Whether the connection is idle and its file is still the one at the path."""
        there = find_inode(self._path) == connection.inode
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


def _by_row(
    connection: _Connection, sql: str, params: Params, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    from delkalakedb.catalog.rows import columns_to_batch

    cursor = connection.execute(sql, params)
    columns: list[list[Any]] = [[] for _ in schema]
    while rows := cursor.fetchmany(_FETCH_ROWS):
        for column, values in zip(columns, zip(*rows, strict=True), strict=True):
            column.extend(values)
        if len(columns[0]) >= _BATCH_ROWS:
            yield columns_to_batch(columns, schema)
            columns = [[] for _ in schema]
    if columns[0]:
        yield columns_to_batch(columns, schema)


def _by_page(
    connection: _Connection, page: str, params: Params, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    from concurrent.futures import ThreadPoolExecutor

    from delkalakedb.catalog.rows import to_batch
    from delkalakedb.catalog.sqlite_pages import joined, taken_apart

    def rows_after(sql: str, after: int) -> list[Row]:
        bounds = {**params, "after": after, "page_rows": _BATCH_ROWS}
        return connection.execute(sql, bounds).fetchall()

    def joined_after(after: int) -> Row | None:
        # A text may become longer than SQLite bears.
        with suppress(sqlite3.DataError):
            return rows_after(joined(page, schema.names), after)[0]
        return None

    after, size = -1, _BATCH_ROWS
    # SQLite joins one page while Arrow takes apart the one before.
    with ThreadPoolExecutor(1, "files") as ahead:
        coming = ahead.submit(joined_after, after)
        while size == _BATCH_ROWS:
            row, before, batch = coming.result(), after, None
            if row is not None:
                after, size = row[:2]
                if size == _BATCH_ROWS:
                    coming = ahead.submit(joined_after, after)
                batch = taken_apart(row, schema)
            if batch is None:
                rows = rows_after(page, before)
                after, size = rows[-1][-1], len(rows)
                batch = to_batch([values[:-1] for values in rows], schema)
                if row is None:
                    coming = ahead.submit(joined_after, after)
            if size:
                yield batch


def _checked_version(file: Path, source: sqlite3.Connection) -> int:
    try:
        ((problem,), *_) = source.execute("PRAGMA quick_check").fetchall()
        sql = SqliteBackend.statements["load_schema_version"]
        ((version,),) = source.execute(sql).fetchall()
    except sqlite3.Error as error:
        raise CatalogError(f"{file} can't be restored: {error}") from error
    if problem != "ok":
        raise CatalogError(f"{file} can't be restored: it is damaged: {problem}")
    return int(version)


class _SqliteRows(StoredRows):
    def __init__(self, file: Path, version: int, source: sqlite3.Connection) -> None:
        super().__init__(file, version)
        self._source = source

    def copy(self, session: Session, table: str) -> None:
        assert isinstance(session, _SqliteSession)
        rows = self._source.execute(f"SELECT * FROM {table}")
        columns: dict[str, Row] = {column[0]: () for column in rows.description}
        session.insert(Insert(table, columns).sql("?"), rows)


class _SqliteSession(Session):
    def __init__(self, connection: _Connection) -> None:
        self._connection = connection

    def query(self, name: str, params: Params) -> list[Row]:
        return self.query_sql(SqliteBackend.statements[name], params)

    def query_sql(self, sql: str, params: Params) -> list[Row]:
        return self._connection.execute(sql, params).fetchall()

    def apply(self, writes: Sequence[Write]) -> None:
        for write in writes:
            if isinstance(write, Insert):
                self.insert(write.sql("?"), write.rows())
            else:
                self._connection.execute(
                    SqliteBackend.statements[write.name], write.params
                )

    def insert(self, sql: str, rows: Iterable[Row]) -> None:
        """Write rows as they come."""
        self._connection.executemany(sql, rows)

    def script(self, statements: Iterable[str]) -> None:
        for statement in statements:
            self._connection.execute(statement)
