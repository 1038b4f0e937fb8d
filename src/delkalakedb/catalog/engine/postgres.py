"""The Postgres backend: many processes and machines, with or without a pooler.

A pooler such as PgBouncer in transaction mode gives each transaction another session of
the server, which other clients use before and after. So every statement names the
catalog's schema. Settings and prepared statements of a session are used only if the
session belongs to this connection alone. It does if the process id that the connection
was told is the server's own, because a pooler invents one. Should a pooler forward it,
then the random names of prepared statements keep clients apart. Otherwise settings are
made for one transaction, with its BEGIN, and no statement is prepared by name.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import select
import selectors
import threading
import time
from collections.abc import (
    Callable,
    Collection,
    Generator,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from functools import lru_cache, partial
from itertools import groupby
from pathlib import Path
from socket import MSG_DONTWAIT, socket, socketpair
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from weakref import WeakValueDictionary

import psycopg
from psycopg import conninfo, sql
from psycopg.generators import execute
from psycopg.pq import Conninfo, ConnStatus, TransactionStatus
from psycopg.waiting import wait_async

from delkalakedb.catalog.engine.backend import (
    UNFIT,
    Backend,
    Capabilities,
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
from delkalakedb.catalog.engine.pool import NoFreeSlotError, Pool
from delkalakedb.catalog.engine.postgres_dump import dump_tables, dumped_rows
from delkalakedb.catalog.engine.preparations import Prepared, preparation
from delkalakedb.catalog.engine.statements import load_statements, qualify
from delkalakedb.clock import pauses
from delkalakedb.errors import (
    CatalogBusyError,
    CatalogError,
    CatalogPermissionError,
    CatalogUnavailableError,
    UnknownOutcomeError,
)
from delkalakedb.forks import Forkable
from delkalakedb.telemetry import log_event
from delkalakedb.waits import Bell, apart, calls, compute, running, seal

if TYPE_CHECKING:
    import pyarrow as pa

    from delkalakedb.catalog.engine.postgres_bulk import Connection as BulkConnection
    from delkalakedb.settings import Settings, Uri

T = TypeVar("T")
_log = logging.getLogger("delkalakedb.follow")
# the statements of every small commit
_HOT = (
    "wait_for_migration",
    "check_schema_version",
    "lock_table",
    "load_latest",
    "load_files_at_paths",
    "take_lease",
    "move_head",
    "mark_published",
    "mark_published_hash",
)
_Values = Params | Sequence[Any]
# times that psycopg sends a statement before it prepares the statement: its default
_PREPARE_AFTER = 5
# statements that a backend keeps with the schema before each table's name
_MOST_QUALIFIED = 1024
# rows; from this many on, COPY is faster than values in the text of a statement
_COPY_ROWS = 100
# bits of the number in the name of the first statement that psycopg prepares
_NAME_BITS = 63
# bytes of an identifier in Postgres
_MAX_NAME_BYTES = 63
# seconds for the server to end a statement whose caller was cancelled
_CANCEL_S = 5.0
# seconds between two looks for a signal such as that of Ctrl-C, as in psycopg
_INTERVAL_S = 0.1
# prefix of the channels that tell of commits
_CHANNEL = "dl_"
# seconds before the lost connection that hears of commits is opened again
_LISTEN_PAUSES_S = 0.05, 2.0
# bytes of the socket by which bells tell of themselves that are read at once
_MOST_BELLS = 4096
_Query = tuple[str, Params]
# Read committed, because a writer that waited for a table's lock must see what was
# committed meanwhile. It is the default of a session that isn't shared.
_ISOLATION = "read committed"
_BEGIN: _Query = ("BEGIN", {})
_BEGIN_SHARED: _Query = (f"BEGIN ISOLATION LEVEL {_ISOLATION}", {})
_NOT_DURABLE: _Query = ("SET LOCAL synchronous_commit TO off", {})
_COMMIT: _Query = ("COMMIT", {})
# A commit that was published must never be lost by the database.
_DURABLE = """
    CASE WHEN current_setting('synchronous_commit') IN ('off', 'local') THEN 'on'
    ELSE current_setting('synchronous_commit') END
"""
# Ends the transaction of a client that is stopped or cut off while it holds locks.
_IDLE_TIMEOUT = "idle_in_transaction_session_timeout"
# seconds at least; a load may compute for some seconds between two messages
_IDLE_S = 30.0
# lock_not_available, query_canceled, serialization_failure, deadlock_detected
_BUSY = {"55P03", "57014", "40001", "40P01"}
# insufficient_privilege
_FORBIDDEN = "42501"
# read_only_sql_transaction
_READ_ONLY = "25006"
# undefined_table, invalid_schema_name: the catalog was dropped while it was open
_NO_CATALOG = {"42P01", "3F000"}
# The messages of a server or PgBouncer without a free slot (53300). They are matched by
# text, because libpq has no SQLSTATE for a refused connection.
_FULL = re.compile(
    "too many (clients|connections)|connection slots are reserved|"
    "no more connections allowed"
)
# connection, authentication, resources, operator intervention, no such database
_UNAVAILABLE = ("08", "28", "53", "57P", "3D000")


class _Connection(psycopg.Connection[Row]):
    # None in a session that a pooler shares with other clients
    prepared: Prepared | None = None

    def wait(
        self,
        gen: Generator[Any, Any, T],
        interval: float = _INTERVAL_S,
        *timeout: Any,
        **options: Any,
    ) -> T:
        """Wait for the server, in a call of an event loop without blocking it."""
        if not calls or (call := running()) is None:
            return super().wait(gen, interval, *timeout, **options)
        socket = self.pgconn.socket
        try:
            return call.wait(wait_async(gen, socket, interval, *timeout, **options))
        except asyncio.CancelledError:
            if self.pgconn.transaction_status == TransactionStatus.ACTIVE:
                # Otherwise the server would go on, perhaps to wait for a lock. The pool
                # closes a connection that doesn't become idle.
                with suppress(psycopg.Error, TimeoutError):
                    apart(partial(self.cancel_safe, timeout=_CANCEL_S))
                    ended = wait_async(gen, socket, interval)
                    call.wait(asyncio.wait_for(ended, _CANCEL_S))
            raise


class _Database:
    """A process's connections to one database with one role and password.

    The catalogs in all schemas of the database share them, because every statement
    names its schema.
    """

    def __init__(
        self, uri: Uri, settings: Settings, options: Mapping[str, Any]
    ) -> None:
        self.name = str(replace(uri, schema=None, table=None, options=()))
        self.settings = settings.pool
        timeout_s = self.settings.connect_timeout
        # libpq's timeout; it takes whole seconds, and at least 2
        seconds = max(2, round(timeout_s))
        self.conninfo = conninfo.make_conninfo(**options, connect_timeout=seconds)
        # the open catalogs
        self.users: set[object] = set()
        new_pool: partial[Pool[Any]] = partial(
            Pool,
            close=lambda connection: connection.close(),
            size=self.settings.size,
            timeout_s=timeout_s,
            name=self.name,
        )
        self.pool: Pool[_Connection] = new_pool(
            self._connect, healthy=_healthy, users=self.users
        )
        self.bulk_pool: Pool[BulkConnection] = new_pool(
            self._connect_bulk, healthy=_is_bulk_healthy, beside=self.pool
        )
        self.listener = _Listener(self.name, self.pool, self.settings.size)

    def leave(self, user: object) -> None:
        """End the use by one catalog; the last one closes the connections."""
        self.users.discard(user)
        if not self.users:
            self.pool.close_idle()
            self.bulk_pool.close_idle()
            # Followers see that their catalog is closed, and end.
            self.listener.ring_all()

    @property
    def timeout_ms(self) -> int | None:
        """The timeout of a statement."""
        timeout = self.settings.statement_timeout
        return None if timeout is None else timeout_ms(timeout)

    def _connect(self) -> _Connection:
        with _waiting_for_slot(psycopg.OperationalError):
            connection = _Connection.connect(
                self.conninfo, autocommit=True, prepare_threshold=None
            )
        try:
            # one message; the answer to its last statement is read
            cursor = psycopg.ClientCursor(connection)
            cursor.execute(
                f"{self.setting(local=False)} WHERE pg_backend_pid() = %(pid)s; "
                "SELECT pg_backend_pid() = %(pid)s, current_setting('server_encoding')",
                {"pid": connection.pgconn.backend_pid},
            )
            cursor.nextset()
            ((ours, encoding),) = cursor.fetchall()
            if encoding != "UTF8":
                raise CatalogError(
                    f"{self.name}: the database's encoding is {encoding}; a catalog "
                    "needs UTF8: CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0"
                )
        except BaseException:
            connection.close()
            raise
        if ours:
            connection.prepare_threshold = _PREPARE_AFTER
            # psycopg's names are of this number; random for the reason of `Prepared`'s
            connection._prepared._prepared_idx = secrets.randbits(_NAME_BITS)
            connection.prepared = Prepared()
        return connection

    def setting(self, *, local: bool) -> str:
        """Return the SELECT that makes the settings of a session or a transaction."""
        patience_s = self.settings.lock_timeout
        values = {
            "synchronous_commit": _DURABLE,
            "lock_timeout": f"'{timeout_ms(patience_s)}'",
            _IDLE_TIMEOUT: f"'{timeout_ms(max(patience_s, _IDLE_S))}'",
        }
        if self.timeout_ms is not None:
            values["statement_timeout"] = f"'{self.timeout_ms}'"
        if not local:
            values["default_transaction_isolation"] = f"'{_ISOLATION}'"
        made = (f"set_config('{n}', {v}, {local})" for n, v in values.items())
        return f"SELECT {', '.join(made)}"

    def _connect_bulk(self) -> BulkConnection:
        from delkalakedb.catalog.engine import postgres_bulk as bulk

        with _waiting_for_slot(bulk.OperationalError):
            return bulk.Connection(self.conninfo)


class _Followed(NamedTuple):
    """A table that a process follows.

    Args:
        begin: the statement after which commits to the table notify the session.
        end: the statement that undoes `begin`.
        table_id: the table.
    """

    begin: str
    end: str
    table_id: int


class _Listener(Forkable):
    """A thread with one connection of the pool that hears of commits.

    The thread lives as long as there are bells. A bell also rings when the connection
    begins to hear of its table, because commits may have been missed before. Behind a
    pooler, on a replica, and with a pool of one connection no bell ever rings.
    """

    def __init__(self, name: str, pool: Pool[_Connection], size: int) -> None:
        self._name = name
        self._pool = pool
        self._deaf = size < 2
        super().__init__()

    def _reset(self) -> None:
        self._bells: dict[Bell, _Followed] = {}
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        # What is sent to the second one makes the thread look at the bells.
        self._ends: tuple[socket, socket] | None = None

    def add(self, bell: Bell, followed: _Followed) -> None:
        """Ring a bell after commits to a table, until it is removed."""
        if self._deaf or bell in self._bells:
            return
        self._bells[bell] = followed
        with self._lock:
            if self._thread is None:
                self._ends = socketpair()
                self._thread = threading.Thread(
                    target=self._run, name="delkalakedb-listener", daemon=True
                )
                self._thread.start()
        self._tell()

    def remove(self, bell: Bell) -> None:
        """Ring a bell no more. The garbage collector may call this at any moment."""
        if self._bells.pop(bell, None) is not None:
            self._tell()

    def _tell(self) -> None:
        if (ends := self._ends) is not None:
            # An error: the thread has ended, or has enough to read.
            with suppress(OSError):
                ends[1].send(b".", MSG_DONTWAIT)

    def _run(self) -> None:
        waits = pauses(*_LISTEN_PAUSES_S, jitter=0.5)
        while not self._has_ended():
            try:
                with self._pool.connection() as connection:
                    try:
                        self._hear(connection)
                    finally:
                        # It listens, and holds locks.
                        connection.close()
            except psycopg.errors.ReadOnlySqlTransaction:
                self._deaf = True
            except (psycopg.Error, CatalogError) as error:
                text = f"{self._name}: can't hear of commits, will try again: {error}"
                log_event(_log, logging.WARNING, text)
            if self._deaf:
                self._bells.clear()
            if self._bells:
                time.sleep(next(waits))

    def _has_ended(self) -> bool:
        with self._lock:
            if self._bells:
                return False
            for end in self._ends or ():
                end.close()
            self._thread = self._ends = None
            return True

    def _hear(self, connection: _Connection) -> None:
        if connection.prepared is None:
            self._deaf = True
            return
        channels: dict[_Followed, str] = {}

        def ring(note: psycopg.Notify) -> None:
            self._ring({one for one, name in channels.items() if name == note.channel})

        assert self._ends is not None
        told, _ = self._ends
        connection.add_notify_handler(ring)
        with selectors.DefaultSelector() as ready:
            ready.register(connection, selectors.EVENT_READ)
            ready.register(told, selectors.EVENT_READ)
            while self._bells:
                wanted = set(self._bells.values())
                for gone in channels.keys() - wanted:
                    _end_following(connection, gone, channels.pop(gone))
                for new in wanted - channels.keys():
                    channels[new] = _begin_following(connection, new)
                    self._ring({new})
                for key, _ in ready.select():
                    if key.fileobj is connection:
                        _take_notifications(connection)
                    else:
                        told.recv(_MOST_BELLS)

    def ring_all(self) -> None:
        """Ring every bell."""
        for bell in list(self._bells):
            bell.ring()

    def _ring(self, tables: Collection[_Followed]) -> None:
        for bell, followed in list(self._bells.items()):
            if followed in tables:
                bell.ring()


def _begin_following(connection: _Connection, followed: _Followed) -> str:
    """Have commits to a table notify the session; return the channel's name."""
    asked = {"table_id": str(followed.table_id)}
    ((key, _),) = connection.execute(followed.begin.encode(), asked).fetchall()
    channel = f"{_CHANNEL}{key}"
    connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
    return channel


def _end_following(connection: _Connection, followed: _Followed, channel: str) -> None:
    """Undo `_begin_following`."""
    key = {"key": int(channel.removeprefix(_CHANNEL))}
    connection.execute(followed.end.encode(), key)
    connection.execute(sql.SQL("UNLISTEN {}").format(sql.Identifier(channel)))


def _take_notifications(connection: _Connection) -> None:
    """Call the handlers of the notifications that the server has sent."""
    pgconn = connection.pgconn
    pgconn.consume_input()
    while (told := pgconn.notifies()) is not None:
        assert pgconn.notify_handler is not None
        pgconn.notify_handler(told)


_databases: WeakValueDictionary[Hashable, _Database] = WeakValueDictionary()


def _join(user: object, uri: Uri, settings: Settings) -> _Database:
    """Return the process's connections to the database of `uri`, for one more user.

    Only one thread calls this function at a time.
    """
    options = _options(uri, settings)
    key = frozenset(options.items())
    found = _databases.get(key)
    # One without users is closed: the next catalog decides its settings anew.
    if found is None or not found.users:
        found = _databases[key] = _Database(uri, settings, options)
    found.users.add(user)
    return found


class PostgresBackend(Backend):
    """A catalog in one schema of a Postgres database."""

    engine = "postgres"
    capabilities = Capabilities(table_locks=True, interval_index=True, event_loops=True)
    placeholder = "%({})s"

    @classmethod
    def identity(cls, uri: Uri) -> tuple[object, ...]:
        tls = tuple(sorted(uri.tls.items()))
        where = (uri.host, uri.port, uri.database, uri.schema)
        return (*where, uri.user, uri.password, tls)

    def __init__(self, uri: Uri, settings: Settings) -> None:
        self.name = str(uri)
        self._schema = uri.schema or "public"
        if len(self._schema.encode()) > _MAX_NAME_BYTES:
            # Postgres would truncate it, so that two schemas could have one name.
            raise CatalogError(
                f"{self.name}: a schema's name can't be longer than "
                f"{_MAX_NAME_BYTES} bytes"
            )
        self._quoted = sql.Identifier(self._schema).as_string()
        # doubled, because a percent sign begins a parameter of psycopg
        quoted = self._quoted.replace("%", "%%")
        self.qualified = lru_cache(_MOST_QUALIFIED)(
            lambda text: qualify(text, lambda table: f"{quoted}.{table}")
        )
        self.statements = _schema_statements(self._schema, self.qualified)
        self.hot = frozenset(self.statements[name] for name in _HOT)
        self._user: str | None = None
        self._gone = False
        self._database = _join(self, uri, settings)
        self.pool_settings = self._database.settings

    @contextmanager
    def _session(
        self, begin: Callable[[_Connection], Sequence[_Query]]
    ) -> Iterator[_PostgresSession]:
        with self._mapped(), self._database.pool.connection() as connection:
            try:
                yield _PostgresSession(self, connection, begin(connection))
            finally:
                _rollback(connection)

    def reading(self) -> AbstractContextManager[Session]:
        return self._session(lambda connection: ())

    @contextmanager
    def writing(
        self, *, durable: bool = True, any_version: bool = False
    ) -> Iterator[_PostgresSession]:
        begin = partial(self._begin, durable=durable, any_version=any_version)
        with self._session(begin) as session:
            yield session
            self._commit(session)

    def at_once(self, queries: Sequence[Query]) -> list[list[Any]]:
        with self._session(partial(self._begin, durable=False)) as session:
            return session.typed(session.finish, queries)

    def _begin(
        self, connection: _Connection, durable: bool, any_version: bool = False
    ) -> list[_Query]:
        """Return the statements that begin a transaction."""
        begin = [_BEGIN]
        if connection.prepared is None:
            begin = [_BEGIN_SHARED, (self._database.setting(local=True), {})]
        if not durable:
            begin.append(_NOT_DURABLE)
        if not any_version:
            # First and apart, so that the check sees what an upgrade has committed.
            begin.append((self.statements["wait_for_migration"], {}))
            version = {"schema_version": self.schema_version}
            begin.append((self.statements["check_schema_version"], version))
        return begin

    def begin_read(self, connection: _Connection) -> list[_Query]:
        """Return the statements that give the reads after them a timeout."""
        timeout_ms = self._database.timeout_ms
        if connection.prepared is not None or timeout_ms is None:
            return []
        return [_BEGIN, (f"SET LOCAL statement_timeout TO {timeout_ms}", {})]

    def named(self, table: str) -> str:
        """Return `table` with its schema, for SQL without parameters."""
        return f"{self._quoted}.{table}"

    def batches(
        self, sql: str, params: Params, schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        from delkalakedb.catalog.engine import postgres_bulk as bulk

        # Bound here, because ADBC has only positional parameters. All are integers.
        values = {n: "NULL" if v is None else int(v) for n, v in params.items()}
        try:
            with self._mapped(), self._database.bulk_pool.connection() as connection:
                text = self.qualified(sql) % values
                batches = bulk.read(connection, text, self._database.timeout_ms, schema)
                # ADBC blocks its thread.
                try:
                    while (batch := apart(partial(next, batches, None))) is not None:
                        yield batch
                finally:
                    apart(batches.close)
        except bulk.Error as error:
            lost = isinstance(error, bulk.OperationalError)
            raise _map_error(self.name, error, error.sqlstate, lost) from error
        except OSError as error:
            # Arrow's error for a stream that broke off, which has no SQLSTATE
            raise _map_error(self.name, error, None, True) from error

    def listen(self, table_id: int, bell: Bell) -> None:
        begin = self.statements["begin_following"]
        followed = _Followed(begin, self.statements["end_following"], table_id)
        self._database.listener.add(bell, followed)

    def unlisten(self, bell: Bell) -> None:
        self._database.listener.remove(bell)

    def find_catalog(self, session: Session) -> bool:
        found = bool(session.query("find_catalog", {"schema": self._schema}))
        # Another process may have created the catalog again.
        self._gone = self._gone and not found
        return found

    def prepare(self, session: Session) -> None:
        # First, because concurrent CREATE SCHEMA IF NOT EXISTS statements can collide.
        self._gone = False
        session.query("lock_migrations", {"schema": self._schema})
        # Not IF NOT EXISTS, which needs the right to create even if the schema exists.
        if not session.query("find_schema", {"schema": self._schema}):
            session.script([f"CREATE SCHEMA {self._quoted}"])

    def db_user(self) -> str | None:
        if self._user is None:
            with self.reading() as session:
                (self._user,) = session.values("load_user", {})
        return self._user

    def back_up(self, file: Path, tables: Sequence[str]) -> None:
        dump_tables(
            file, [*map(self.named, tables)], _environment(self._database.conninfo)
        )

    @contextmanager
    def restoring(self, file: Path) -> Iterator[Restore]:
        with dumped_rows(file, "dl_schema_versions") as dumped:
            place = dumped.columns.split(", ").index("version")
            version = max(int(line.split(b"\t")[place]) for line in dumped.lines)
        with self.writing(any_version=True) as session:

            def copy(table: str) -> None:
                with dumped_rows(file, table) as dumped:
                    session.copy_text(table, dumped.columns, dumped.lines)

            yield Restore(session, version, copy)

    def lock_tables(self, session: Session, tables: Sequence[str]) -> None:
        # This mode doesn't block readers, who see the rows as they were.
        names = ", ".join(map(self.named, tables))
        session.script([f"LOCK TABLE {names} IN EXCLUSIVE MODE"])

    def warm_up(self) -> None:
        from delkalakedb.catalog.engine import postgres_bulk  # noqa: F401

    def is_gone(self) -> bool:
        return self._gone

    def is_replica(self) -> bool:
        with self.reading() as session:
            (replica,) = session.values("load_recovery", {})
        return bool(replica)

    def close(self) -> None:
        self._database.leave(self)

    def _commit(self, session: _PostgresSession) -> None:
        try:
            session.commit()
        except psycopg.OperationalError as error:
            # An ERROR rolled the transaction back. A FATAL may come after the COMMIT.
            if error.diag.severity_nonlocalized == "ERROR":
                raise
            raise UnknownOutcomeError(
                f"{self.name}: the connection was lost during COMMIT: {error}"
            ) from error

    @contextmanager
    def _mapped(self) -> Iterator[None]:
        try:
            yield
        except UNFIT as error:
            raise unfit(self.name, error) from error
        except psycopg.errors.InvalidArgumentForPowerFunction as error:
            # raised by the statement `check_schema_version`
            with self.reading() as session:
                self.check_version(session)
            raise CatalogError(f"{self.name}: {error}") from error
        except psycopg.Error as error:
            if error.sqlstate in _NO_CATALOG:
                self._gone = True
                reason = str(error).partition("\n")[0]
                raise no_catalog(self, self.name, reason) from error
            lost = isinstance(error, psycopg.OperationalError)
            raise _map_error(self.name, error, error.sqlstate, lost) from error


def _schema_statements(schema: str, qualified: Callable[[str], str]) -> dict[str, str]:
    """Return the statements with the schema before each table's name."""
    literal = sql.Literal(schema).as_string().replace("%", "%%")
    found = load_statements(PostgresBackend.engine, PostgresBackend.placeholder)
    return {
        name: qualified(text.replace("{schema}", literal))
        for name, text in found.items()
    }


@contextmanager
def _waiting_for_slot(kind: type[Exception]) -> Iterator[None]:
    try:
        yield
    except kind as error:
        if _FULL.search(str(error)):
            raise NoFreeSlotError from error
        raise


def _map_error(
    name: str, error: Exception, code: str | None, lost: bool
) -> CatalogError:
    """Return the `CatalogError` for a driver's error, by its SQLSTATE `code`.

    `lost` says whether an error without a code means that the connection was lost.
    """
    diagnosis = error.diag if isinstance(error, psycopg.Error) else None
    # without the line of SQL that libpq adds to an error
    said = (diagnosis and diagnosis.message_primary) or str(error).strip()
    if diagnosis and diagnosis.message_detail:
        said = f"{said} ({diagnosis.message_detail})"
    text = f"{name}: {said}"
    if code in _BUSY:
        return CatalogBusyError(text)
    if code == _FORBIDDEN:
        return CatalogPermissionError(
            f"{text}; the role needs USAGE on the schema and the grants that "
            "docs/postgres.md lists for readers, writers, reconcilers and upgraders"
        )
    if code == _READ_ONLY:
        return CatalogPermissionError(
            f"{text}; the server is a replica, or this role only reads: write to the "
            "primary server"
        )
    if (code is None and lost) or (code or "").startswith(_UNAVAILABLE):
        return CatalogUnavailableError(text)
    return CatalogError(text)


def timeout_ms(seconds: float) -> int:
    """Return a timeout in ms, at least 1 because 0 means no timeout to Postgres."""
    return max(1, int(seconds * 1000))


def _options(uri: Uri, settings: Settings) -> dict[str, Any]:
    """Return libpq's options for connections to the database of `uri`."""
    password = uri.password
    if password is None and settings.sql.password is not None:
        password = settings.sql.password.get_secret_value()
    options: dict[str, Any] = {
        "host": uri.host or "localhost",
        "port": uri.port or 5432,
        "dbname": uri.database,
        "user": uri.user,
        "password": password,
        "application_name": "delkalakedb",
        "client_encoding": "UTF8",
        "keepalives_idle": 30,
        "keepalives_interval": 10,
        "keepalives_count": 3,
        **uri.tls,
    }
    return {key: value for key, value in options.items() if value is not None}


def _healthy(connection: _Connection) -> bool:
    """Return whether the connection is open, idle, and the server still there.

    A server that closes a connection sends a message. So the server is only asked if
    the socket has data.
    """
    pgconn = connection.pgconn
    if pgconn.status != ConnStatus.OK:
        return False
    if pgconn.transaction_status != TransactionStatus.IDLE:
        return False
    if _has_data(pgconn.socket):
        try:
            connection.execute("SELECT 1")
        except psycopg.Error:
            return False
    return True


def _is_bulk_healthy(connection: BulkConnection) -> bool:
    from delkalakedb.catalog.engine import postgres_bulk as bulk

    return bulk.is_healthy(connection)


def _has_data(socket: int) -> bool:
    if not hasattr(select, "poll"):  # Windows, where select takes any socket
        return bool(select.select([socket], [], [], 0)[0])
    waiting = select.poll()
    waiting.register(socket, select.POLLIN)
    return bool(waiting.poll(0))


def _rollback(connection: _Connection) -> None:
    if connection.pgconn.transaction_status in (
        TransactionStatus.INTRANS,
        TransactionStatus.INERROR,
    ):
        # Not by psycopg, which would drop all prepared statements. A failure isn't
        # raised, because the pool drops a connection that is still in a transaction.
        with suppress(psycopg.Error):
            connection.pgconn.send_query(b"ROLLBACK")
            connection.wait(execute(connection.pgconn))


def _bulk(write: Write) -> bool:
    return isinstance(write, Insert) and len(write) >= _COPY_ROWS


def _environment(conninfo_text: str) -> dict[str, str]:
    """Return libpq's variables, so that no password is on a command line."""
    given = conninfo.conninfo_to_dict(conninfo_text)
    names = {
        option.keyword.decode(): option.envvar.decode()
        for option in Conninfo.get_defaults()
        if option.envvar
    }
    return {names[key]: str(value) for key, value in given.items() if key in names}


class _Column(NamedTuple):
    name: str
    type: str


class _PostgresSession(Session):
    """A session that delays writes, so that small ones are sent with their COMMIT."""

    engine = PostgresBackend.engine

    def __init__(
        self,
        backend: PostgresBackend,
        connection: _Connection,
        begin: Sequence[_Query],
    ) -> None:
        self.statements = backend.statements
        self._backend = backend
        self._connection = connection
        # The statements that begin the transaction; none for a session that reads.
        self._begin = begin
        self._begun = not begin
        self._pending: list[Write] = []

    def query_sql(self, sql: str, params: Params) -> list[Row]:
        return self.query_many([(sql, params)])[0]

    def query_many(self, queries: Sequence[tuple[str, Params]]) -> list[list[Row]]:
        self._flush()
        queries = [(self._backend.qualified(text), params) for text, params in queries]
        timeout = [] if self._begin else self._backend.begin_read(self._connection)
        if timeout:
            return self._together([*timeout, *queries, _COMMIT])[len(timeout) : -1]
        if self._begun and len(queries) == 1:
            ((sql, params),) = queries
            cursor = self._connection.execute(sql.encode(), params)
            if calls:
                return [compute(cursor.rowcount, cursor.fetchall)]
            return [cursor.fetchall()]
        return self._send(queries)

    def finish(self, queries: Sequence[tuple[str, Params]]) -> list[list[Row]]:
        """Run the last statements of the transaction and commit; return their rows."""
        return self._send([*queries, _COMMIT])[:-1]

    def apply(self, writes: Sequence[Write]) -> None:
        self._pending.extend(writes)

    def script(self, statements: Iterable[str]) -> None:
        self._flush()
        for statement in statements:
            named = qualify(statement, self._backend.named)
            self._send([(named.replace("%", "%%"), {})])
        # psycopg deallocates all prepared statements when a table changes.
        if self._connection.prepared is not None:
            self._connection.prepared.clear()

    def commit(self) -> None:
        """Send the delayed writes and commit, in one round trip if the rows are few."""
        if any(map(_bulk, self._pending)):
            self._flush()
        if self._begun or self._pending:
            pending, self._pending = self._pending, []
            # From here on the outcome is known only after the answer.
            if calls:
                seal()
            self._send([*map(self._statement, pending), _COMMIT])

    def _flush(self) -> None:
        pending, self._pending = self._pending, []
        for bulk, group in groupby(pending, _bulk):
            writes = list(group)
            if not bulk:
                self._send([*map(self._statement, writes)])
                continue
            self._send([])
            for write in writes:
                if isinstance(write, Insert):
                    self._copy(write)

    def _send(self, queries: Sequence[tuple[str, _Values]]) -> list[list[Row]]:
        """Begin the transaction if need be, and return the rows of `queries`."""
        opening = [] if self._begun else [*self._begin]
        self._begun = True
        texts = [*opening, *queries]
        if not texts:
            return []
        # The answers of PREPARE statements come first.
        return self._together(texts)[-len(texts) :][len(opening) :]

    def _together(self, queries: Sequence[tuple[str, _Values]]) -> list[list[Row]]:
        """Send statements as one message in one round trip; return their rows."""
        cursor = psycopg.ClientCursor(self._connection)
        prepared = self._connection.prepared
        literal = psycopg.adapt.Transformer(self._connection).as_literal
        texts = [text for text, _ in queries]
        made = prepared.due(texts, self._backend.hot) if prepared else {}
        texts = [preparation(text, name) for text, name in made.items()]
        for query, values in queries:
            call = prepared.call(query, values, made, literal) if prepared else None
            texts.append(call or cursor.mogrify(query.encode(), values))
        cursor.execute(";\n".join(texts).encode())
        if prepared:
            prepared.add(made)
        answers = []
        more: bool | None = True
        while more:
            # Not `description`, which would look up the type of every column.
            found = cursor.pgresult is not None and cursor.pgresult.ntuples > 0
            answers.append(cursor.fetchall() if found else [])
            more = cursor.nextset()
        return answers

    def copy_text(self, table: str, columns: str, lines: Iterable[bytes]) -> None:
        """Write rows that are in COPY's text format."""
        self._flush()
        # Begin the transaction here, because COPY isn't sent by `_send`.
        self._send([])
        statement = f"COPY {self._backend.named(table)} ({columns}) FROM STDIN"
        with self._connection.cursor().copy(statement.encode()) as copy:
            for line in lines:
                copy.write(line)

    def _copy(self, insert: Insert) -> None:
        found = self.rows(_Column, "load_column_types", {"table": insert.table})
        types = {column.name: column.type for column in found}
        columns = ", ".join(insert.columns)
        table = self._backend.named(insert.table)
        statement = f"COPY {table} ({columns}) FROM STDIN (FORMAT BINARY)"
        with self._connection.cursor().copy(statement.encode()) as copy:
            copy.set_types([types[column] for column in insert.columns])
            for row in insert.rows():
                copy.write_row(row)

    def _statement(self, write: Write) -> tuple[str, _Values]:
        if not isinstance(write, Insert):
            return self.statements[write.name], write.params
        text, values = write.flat("%s")
        return self._backend.qualified(text), values
