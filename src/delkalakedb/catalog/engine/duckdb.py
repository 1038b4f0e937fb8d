"""The DuckDB backend: one file, one process."""

from __future__ import annotations

import ctypes
import os
import re
import threading
import weakref
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb

from delkalakedb.catalog.engine.backend import (
    UNFIT,
    Capabilities,
    FileBackend,
    Insert,
    Params,
    Query,
    Restore,
    Row,
    Session,
    Write,
    no_catalog,
    unfit,
)
from delkalakedb.catalog.engine.cache import Cache
from delkalakedb.catalog.engine.pool import Pool
from delkalakedb.catalog.engine.statements import load_statements
from delkalakedb.errors import (
    CatalogBusyError,
    CatalogError,
    CatalogUnavailableError,
    UnknownOutcomeError,
)
from delkalakedb.forks import at_fork

if TYPE_CHECKING:
    import pyarrow as pa

    from delkalakedb.settings import Settings, Uri

try:
    import fcntl
except ImportError:  # Windows has no such locks.
    fcntl = None  # type: ignore[assignment]

# The oldest format with the features of a catalog, so that DuckDB 1.2 can read a file.
_STORAGE_VERSION = "v1.2.0"
# rows; up to this many, one statement with values is faster than Arrow
_ARROW_ROWS = 16
# rows of one Arrow batch
_BATCH_ROWS = 100_000
_CHECKPOINT_THRESHOLD = "64MB"
# Rows that a plan reads together are stored together, so that it reads few blocks.
_BY_BOUND = "ORDER BY column_id, lo"
_CLUSTERED = {
    "dl_files": "ORDER BY partition_values, file_id",
    "dl_number_stats": _BY_BOUND,
    "dl_text_stats": _BY_BOUND,
}
# Rows. A row group has a zone map, by which a plan skips the group at a small cost. The
# size is set at each ATTACH, because the file doesn't store it.
_ROW_GROUP_SIZE = 16_384
# Parsed statements that are kept, because parsing takes up to a third of the time of a
# small statement. Texts that contain values aren't used again.
_MOST_PARSED = 500
# The name by which a backup is attached.
_BACKUP = "dl_backup"
_PARAMETERS = re.compile(r"\$(\w+)")


class DuckDBBackend(FileBackend):
    """A catalog in a DuckDB file, or in memory for the life of the process."""

    engine = "duckdb"
    capabilities = Capabilities(
        table_locks=False,
        interval_index=False,
        single_path_lookup=True,
        keeps_heads=True,
    )
    placeholder = "${}"
    statements = load_statements(engine, placeholder)

    def __init__(self, uri: Uri, settings: Settings) -> None:
        super().__init__(uri, settings)
        self.heads = Cache(settings.cache.snapshots)
        self._parsed: dict[str, duckdb.Statement] = {}
        self._pid = os.getpid()
        self._root: duckdb.DuckDBPyConnection | None = None
        self._opening = threading.Lock()
        self._writer = threading.Lock()
        _backends.add(self)
        self._new_pool = partial(
            Pool[duckdb.DuckDBPyConnection],
            self._connect,
            close=duckdb.DuckDBPyConnection.close,
            healthy=lambda connection: True,
            size=settings.pool.size,
            timeout_s=settings.pool.connect_timeout,
            name=self.name,
        )
        self._pool = self._new_pool()

    @contextmanager
    def reading(self) -> Iterator[Session]:
        with self._mapped(), self._connections() as connection:
            yield _DuckDBSession(connection, self._parsed)

    @contextmanager
    def writing(
        self, *, durable: bool = True, any_version: bool = False
    ) -> Iterator[Session]:
        made: dict[Hashable, Any] = {}
        with self._locked():
            try:
                with self._transaction() as connection:
                    session = _DuckDBSession(connection, self._parsed)
                    if not any_version:
                        self.check_version(session)
                    yield session
                made = session.made
            finally:
                self.heads.forget(made)

    def at_once(self, queries: Sequence[Query]) -> list[list[Any]]:
        with self._locked(), self._transaction() as connection:
            session = _DuckDBSession(connection, self._parsed)
            self.check_version(session)
            return session.rows_many(queries)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self._check_process()
        if not self._writer.acquire(timeout=self._lock_timeout_s):
            raise CatalogBusyError(
                f"{self.name}: another thread wrote for more than "
                f"{self._lock_timeout_s:g} s; retry, or raise pool.lock_timeout"
            )
        try:
            yield
        finally:
            self._writer.release()

    @contextmanager
    def _transaction(self) -> Iterator[duckdb.DuckDBPyConnection]:
        with self._mapped(), self._connections() as connection:
            connection.execute("BEGIN TRANSACTION")
            try:
                yield connection
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            self._commit(connection)

    def _commit(self, connection: duckdb.DuckDBPyConnection) -> None:
        try:
            connection.execute("COMMIT")
        except (duckdb.IOException, duckdb.FatalException) as error:
            # The transaction may be in the log, because perhaps only the sync failed.
            raise UnknownOutcomeError(
                f"{self.name}: the disk failed during COMMIT: {error}"
            ) from error

    def batches(
        self, sql: str, params: Params, schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        with self._mapped(), self._connections() as connection:
            rows = connection.sql(sql, params=dict(params))
            reader: pa.RecordBatchReader = rows.to_arrow_reader(_BATCH_ROWS)
            for batch in reader:
                yield batch.cast(schema)

    def find_catalog(self, session: Session) -> bool:
        # Not by the session, because an error would abort the session's transaction.
        return self._has_catalog()

    def _has_catalog(self) -> bool:
        # A query takes 0.7 ms, the list of all tables 8 ms.
        with self._opening:
            connection = self._new_connection()
        with connection:
            try:
                connection.execute(self.statements["find_catalog"])
            except duckdb.CatalogException:
                return False
            return bool(connection.fetchall())

    def back_up(self, file: Path, tables: Sequence[str]) -> None:
        with (
            self._mapped(),
            self._connections() as connection,
            _attached(connection, file, f"(STORAGE_VERSION '{_STORAGE_VERSION}')"),
        ):
            connection.execute(f"COPY FROM DATABASE catalog TO {_BACKUP}")
            connection.execute(f"CHECKPOINT {_BACKUP}")

    @contextmanager
    def restoring(self, file: Path) -> Iterator[Restore]:
        version = f"SELECT max(version) FROM {_BACKUP}.main.dl_schema_versions"
        with ExitStack() as held:
            with _opening_backup(file):
                connection = held.enter_context(self._connections())
                held.enter_context(_attached(connection, file, "(READ_ONLY)"))
                ((found,),) = connection.execute(version).fetchall()
            session = held.enter_context(self.writing(any_version=True))

            def copy(table: str) -> None:
                rows = f"FROM {_BACKUP}.main.{table}"
                with _opening_backup(file):
                    session.script([f"INSERT INTO {table} BY NAME {rows}"])

            yield Restore(session, int(found), copy)

    def start_anew(self) -> None:
        with self._opening:
            self._reopen()

    def close(self) -> None:
        if self._pid != os.getpid():
            return
        # Without `_opening`, because the garbage collector may close a catalog while
        # this thread opens a connection.
        self._pool.close()
        self._leave()

    def leave_to_parent(self) -> None:
        """Keep the database object of the parent alive in a forked child.

        Freeing the object would wait for threads that the child doesn't have.
        """
        if self._root is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._root))

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise CatalogBusyError(
                f"{self.name}: this process was forked from another process that has "
                "the catalog open, and a DuckDB catalog serves one process at a time; "
                "use SQLite or Postgres for several"
            )

    def _connections(self) -> AbstractContextManager[duckdb.DuckDBPyConnection]:
        """Return a connection to the file that is at the path now."""
        self._check_process()
        with self._opening:
            if self.is_gone():
                if not self._path.exists():
                    raise CatalogUnavailableError(f"{self.name}: the file was removed")
                self._reopen()
        return self._pool.connection()

    def _reopen(self) -> None:
        self._pool.close()
        self._leave()
        self.heads.forget()
        self._pool = self._new_pool()

    def _leave(self) -> None:
        root, gone = self._root, self.is_gone()
        self._root = self._inode = None
        if root is not None:
            if gone:
                # The checkpoint would remove the log of the file that replaced it.
                root.execute("PRAGMA disable_checkpoint_on_shutdown")
            root.close()

    def make_database(self) -> None:
        self._check_process()
        with self._mapped(), self._opening:
            if self._root is None:
                self._attach()

    def _connect(self) -> duckdb.DuckDBPyConnection:
        with self._opening:
            if self._root is None:
                if self._lacks_database():
                    raise no_catalog(self, self.name)
                self._attach()
            connection = self._new_connection()
        connection.execute("USE catalog")
        return connection

    def _new_connection(self) -> duckdb.DuckDBPyConnection:
        root = self._root
        if root is None:
            raise CatalogUnavailableError(f"{self.name}: the catalog was closed")
        return root.cursor()

    def _attach(self) -> None:
        self._root = self._open()
        self._inode = self._find_inode()

    def _open(self) -> duckdb.DuckDBPyConnection:
        root = duckdb.connect(":memory:")
        # Statements read few rows, so dividing them among threads costs more.
        root.execute("SET threads = 1")
        # A checkpoint rewrites row groups that aren't full, which takes many times as
        # long as writing them. So it waits until they are nearly full.
        root.execute(f"SET checkpoint_threshold = '{_CHECKPOINT_THRESHOLD}'")
        try:
            if self.ephemeral:
                root.execute("ATTACH ':memory:' AS catalog")
            else:
                path = str(self._path).replace("'", "''")
                root.execute(f"ATTACH '{path}' AS catalog {self._format()}")
        except duckdb.IOException as error:
            root.close()
            if _held_elsewhere(self._path):
                raise CatalogBusyError(
                    f"{self.name}: another process has this DuckDB file open, and a "
                    "DuckDB catalog serves one process at a time; use SQLite or "
                    f"Postgres for several ({error})"
                ) from error
            raise CatalogUnavailableError(f"{self.name}: {error}") from error
        except BaseException:
            root.close()
            raise
        return root

    def _format(self) -> str:
        # An existing file keeps its format, because DuckDB refuses an older one.
        there = self._path.exists() and self._path.stat().st_size > 0
        version = "" if there else f", STORAGE_VERSION '{_STORAGE_VERSION}'"
        return f"(ROW_GROUP_SIZE {_ROW_GROUP_SIZE}{version})"

    @contextmanager
    def _mapped(self) -> Iterator[None]:
        try:
            yield
        except UNFIT as error:
            raise unfit(self.name, error) from error
        except (duckdb.IOException, duckdb.FatalException) as error:
            raise CatalogUnavailableError(f"{self.name}: {error}") from error
        except duckdb.CatalogException as error:
            if not self._has_catalog():
                raise no_catalog(self, self.name) from error
            raise CatalogError(f"{self.name}: {error}") from error
        except duckdb.Error as error:
            raise CatalogError(f"{self.name}: {error}") from error


# The threads of a database don't exist in a forked child.
_backends: weakref.WeakSet[DuckDBBackend] = weakref.WeakSet()


def _leave_to_parent() -> None:
    for backend in _backends:
        backend.leave_to_parent()


at_fork(after_in_child=_leave_to_parent)


def _held_elsewhere(path: Path) -> bool:
    if fcntl is None:
        return False
    try:
        with open(path, "r+b") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


@contextmanager
def _attached(
    connection: duckdb.DuckDBPyConnection, file: Path, options: str
) -> Iterator[None]:
    path = str(file.absolute()).replace("'", "''")
    connection.execute(f"ATTACH '{path}' AS {_BACKUP} {options}")
    try:
        yield
    finally:
        connection.execute(f"DETACH {_BACKUP}")


@contextmanager
def _opening_backup(file: Path) -> Iterator[None]:
    try:
        yield
    except duckdb.Error as error:
        raise CatalogError(f"{file} can't be restored: {error}") from error


class _DuckDBSession(Session):
    engine = DuckDBBackend.engine
    statements = DuckDBBackend.statements

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        parsed: dict[str, duckdb.Statement],
    ) -> None:
        self._connection = connection
        self._parsed = parsed
        self.made = {}

    def query_sql(self, sql: str, params: Params) -> list[Row]:
        # DuckDB refuses parameters that a statement doesn't use.
        used = {name: params[name] for name in _PARAMETERS.findall(sql)}
        return self._run(sql, used).fetchall()

    def apply(self, writes: Sequence[Write]) -> None:
        for write in writes:
            if isinstance(write, Insert):
                self._insert(write)
            else:
                self._run(self.statements[write.name], write.params)

    def script(self, statements: Iterable[str]) -> None:
        for statement in statements:
            self._connection.execute(statement)

    def _insert(self, insert: Insert) -> None:
        if len(insert) <= _ARROW_ROWS:
            self._run(*insert.flat("?"))
            return
        import pyarrow as pa

        incoming = pa.table(
            {
                name: given if isinstance(given, pa.Array) else pa.array(given)
                for name, given in insert.columns.items()
            }
        )
        self._connection.register("dl_incoming", incoming)
        order = _CLUSTERED.get(insert.table, "")
        self._connection.execute(
            f"INSERT INTO {insert.table} BY NAME FROM dl_incoming {order}"
        )
        self._connection.unregister("dl_incoming")

    def _run(
        self, sql: str, params: Params | Sequence[Any]
    ) -> duckdb.DuckDBPyConnection:
        statement = self._parsed.get(sql)
        if statement is None:
            (statement,) = self._connection.extract_statements(sql)
            if len(self._parsed) >= _MOST_PARSED:
                self._parsed.clear()
            self._parsed[sql] = statement
        return self._connection.execute(statement, params)
