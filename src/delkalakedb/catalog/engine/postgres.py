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

import re
import secrets
import select
from collections.abc import (
    Callable,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import lru_cache, partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakValueDictionary

import psycopg
from psycopg import conninfo, sql
from psycopg.pq import Conninfo, ConnStatus, TransactionStatus

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
from delkalakedb.errors import (
    CatalogBusyError,
    CatalogError,
    CatalogPermissionError,
    CatalogUnavailableError,
    UnknownOutcomeError,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from delkalakedb.catalog.engine.postgres_bulk import Connection as BulkConnection
    from delkalakedb.settings import Settings, Uri

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

    def leave(self, user: object) -> None:
        """End the use by one catalog; the last one closes the connections."""
        self.users.discard(user)
        if not self.users:
            self.pool.close_idle()
            self.bulk_pool.close_idle()

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
    capabilities = Capabilities(table_locks=True, interval_index=True)
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
                yield from bulk.read(
                    connection, text, self._database.timeout_ms, schema
                )
        except bulk.Error as error:
            lost = isinstance(error, bulk.OperationalError)
            raise _map_error(self.name, error, error.sqlstate, lost) from error
        except OSError as error:
            # Arrow's error for a stream that broke off, which has no SQLSTATE
            raise _map_error(self.name, error, None, True) from error

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
        connection.pgconn.exec_(b"ROLLBACK")


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
            return [self._connection.execute(sql.encode(), params).fetchall()]
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
