"""DuckDB: one file, one process."""

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
from delkalakedb.catalog.cache import Cache
from delkalakedb.catalog.forks import at_fork
from delkalakedb.catalog.head import Head
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

try:
    import fcntl
except ImportError:  # Windows has no such locks.
    fcntl = None  # type: ignore[assignment]

__all__ = ["DuckDBBackend"]

# The oldest format that serves us: a file stays readable by DuckDB 1.2 and newer.
_STORAGE_VERSION = "v1.2.0"
# Below this, one statement with values beats the detour over Arrow.
_ARROW_ROWS = 16
_BATCH_ROWS = 100_000
_CHECKPOINT_THRESHOLD = "64MB"
# What a plan asks for lies together: it reads few of a table's blocks.
_BY_BOUND = "ORDER BY column_id, lo"
_CLUSTERED = {
    "dl_files": "ORDER BY partition_values, file_id",
    "dl_number_stats": _BY_BOUND,
    "dl_text_stats": _BY_BOUND,
}
# Zone maps are of row groups: a plan skips all but a few of these, at a cost of its own
# for each. The file doesn't keep their size.
_ROW_GROUP_SIZE = 16_384
# To parse a statement takes up to a third of the time of a small one. Some have values
# in their text, and don't come back.
_MOST_PARSED = 500
# The name by which a backup is attached.
_BACKUP = "dl_backup"
_PARAMETERS = re.compile(r"\$(\w+)")


class DuckDBBackend(Backend):
    """A catalog in a DuckDB file, or in memory for the life of the process."""

    engine = "duckdb"
    capabilities = Capabilities(table_locks=False, interval_index=False)
    placeholder = "${}"
    statements = load_statements(engine, placeholder)

    @classmethod
    def identity(cls, uri: Uri) -> tuple[object, ...]:
        memory = uri.database == ":memory:"
        return (uri.database if memory else os.path.realpath(uri.database),)

    def __init__(self, uri: Uri, settings: Settings) -> None:
        self.name = str(uri)
        self._path = uri.database
        self.ephemeral = self._path == ":memory:"
        if not self.ephemeral:
            path = Path(self._path).absolute()
            self._path = str(path)
            self.default_data_path = f"{path.with_suffix('')}_tables"
        self._heads = self.heads = Cache[Head](settings.cache.snapshots)
        self._parsed: dict[str, duckdb.Statement] = {}
        self._lock_timeout_s = settings.pool.lock_timeout
        self._pid = os.getpid()
        self._inode: int | None = None
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
        made: dict[Hashable, Head] = {}
        with self._locked():
            try:
                with self._transaction() as connection:
                    session = _DuckDBSession(connection, self._parsed, self._heads)
                    if not any_version:
                        self.check_version(session)
                    yield session
                made = session.made
            finally:
                self._heads.forget(made)

    def at_once(self, queries: Sequence[tuple[str, Params]]) -> list[list[Row]]:
        with self._locked(), self._transaction() as connection:
            session = _DuckDBSession(connection, self._parsed)
            self.check_version(session)
            return session.query_many(queries)

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
            # It may be in the database's log whole: only a sync may have failed.
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
        # A list of all tables takes many times as long. The error that says no would
        # end the session's transaction.
        assert isinstance(session, _DuckDBSession)
        with session.aside() as beside:
            try:
                return bool(beside.query("find_catalog", {}))
            except duckdb.CatalogException:
                return False

    def prepare(self, session: Session) -> None:
        """Nothing to do: the process holds the only write lock there is."""

    def db_user(self) -> str | None:
        return None

    def back_up(self, file: Path, tables: Sequence[str]) -> None:
        with (
            self._mapped(),
            self._connections() as connection,
            _attached(connection, file, f"(STORAGE_VERSION '{_STORAGE_VERSION}')"),
        ):
            connection.execute(f"COPY FROM DATABASE catalog TO {_BACKUP}")
            connection.execute(f"CHECKPOINT {_BACKUP}")

    @contextmanager
    def open_backup(self, file: Path) -> Iterator[StoredRows]:
        version = f"SELECT max(version) FROM {_BACKUP}.main.dl_schema_versions"
        with ExitStack() as held:
            with _restoring(file):
                connection = held.enter_context(self._connections())
                held.enter_context(_attached(connection, file, "(READ_ONLY)"))
                ((found,),) = connection.execute(version).fetchall()
            yield _DuckDBRows(file, int(found))

    def is_gone(self) -> bool:
        return self._inode is not None and find_inode(self._path) != self._inode

    def start_anew(self) -> None:
        with self._opening:
            self._reopen()

    def close(self) -> None:
        if self._pid != os.getpid():
            return
        self._pool.close()
        with self._opening:
            self._leave()

    def leave_to_parent(self) -> None:
        """In a forked child: never free what can't be closed without its threads."""
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
        """One to the file that is at the path now."""
        self._check_process()
        with self._opening:
            if self.is_gone():
                if not os.path.exists(self._path):
                    raise CatalogUnavailableError(f"{self.name}: the file was removed")
                self._reopen()
        return self._pool.connection()

    def _reopen(self) -> None:
        self._pool.close()
        self._leave()
        self._pool = self._new_pool()

    def _leave(self) -> None:
        root, gone = self._root, self.is_gone()
        self._root = self._inode = None
        if root is not None:
            if gone:
                # It would remove the log at its path, which is another database's now.
                root.execute("PRAGMA disable_checkpoint_on_shutdown")
            root.close()
        self._heads.forget()

    def is_absent(self) -> bool:
        return not self.ephemeral and lacks_file(self.name, self._path)

    def make_database(self) -> None:
        self._check_process()
        with self._mapped(), self._opening:
            if self._root is None:
                self._attach()

    def _connect(self) -> duckdb.DuckDBPyConnection:
        with self._opening:
            if self._root is None:
                if self.is_absent() or (not self.ephemeral and is_empty(self._path)):
                    raise no_catalog(self, self.name)
                self._attach()
            assert self._root is not None
            connection = self._root.cursor()
        connection.execute("USE catalog")
        return connection

    def _attach(self) -> None:
        self._root = self._open()
        self._inode = find_inode(self._path)

    def _open(self) -> duckdb.DuckDBPyConnection:
        root = duckdb.connect(":memory:")
        # Statements touch few rows: to share them out takes longer than to do them.
        root.execute("SET threads = 1")
        # A checkpoint merges row groups, which takes many times as long as to write
        # them: it has to come when they are nearly full.
        root.execute(f"SET checkpoint_threshold = '{_CHECKPOINT_THRESHOLD}'")
        try:
            if self._path == ":memory:":
                root.execute("ATTACH ':memory:' AS catalog")
            else:
                path = self._path.replace("'", "''")
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
        # A file that is there keeps its own: DuckDB refuses to go below it.
        file = Path(self._path)
        there = file.exists() and file.stat().st_size > 0
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
            if self._lacks_catalog():
                raise no_catalog(self, self.name) from error
            raise CatalogError(f"{self.name}: {error}") from error
        except duckdb.Error as error:
            raise CatalogError(f"{self.name}: {error}") from error

    def _lacks_catalog(self) -> bool:
        with self._pool.connection() as connection:
            return not self.find_catalog(_DuckDBSession(connection, self._parsed))


# A database instance has threads, and a fork leaves them behind.
_backends: weakref.WeakSet[DuckDBBackend] = weakref.WeakSet()


def _leave_to_parent() -> None:
    for backend in _backends:
        backend.leave_to_parent()


at_fork(after_in_child=_leave_to_parent)


def _held_elsewhere(path: str) -> bool:
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
def _restoring(file: Path) -> Iterator[None]:
    try:
        yield
    except duckdb.Error as error:
        raise CatalogError(f"{file} can't be restored: {error}") from error


class _DuckDBRows(StoredRows):
    def copy(self, session: Session, table: str) -> None:
        with _restoring(self.file):
            session.script([f"INSERT INTO {table} BY NAME FROM {_BACKUP}.main.{table}"])


class _DuckDBSession(Session):
    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        parsed: dict[str, duckdb.Statement],
        heads: Cache[Head] | None = None,
    ) -> None:
        self._connection = connection
        self._parsed = parsed
        self._heads = heads
        self.made: dict[Hashable, Head] = {}

    def find_head(self, name: str) -> Head | None:
        return self._heads.find((name, None)) if self._heads else None

    def made_head(self, head: Head) -> None:
        self.made[head.name, None] = head

    @contextmanager
    def aside(self) -> Iterator[_DuckDBSession]:
        """A session with a transaction of its own."""
        with self._connection.cursor() as connection:
            yield _DuckDBSession(connection, self._parsed)

    def query(self, name: str, params: Params) -> list[Row]:
        return self.query_sql(DuckDBBackend.statements[name], params)

    def query_sql(self, sql: str, params: Params) -> list[Row]:
        # DuckDB refuses parameters that a statement doesn't use.
        used = {name: params[name] for name in _PARAMETERS.findall(sql)}
        return self._run(sql, used).fetchall()

    def apply(self, writes: Sequence[Write]) -> None:
        for write in writes:
            if isinstance(write, Insert):
                self._insert(write)
            else:
                self._run(DuckDBBackend.statements[write.name], write.params)

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
