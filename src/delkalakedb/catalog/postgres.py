"""Postgres: any number of processes and machines, behind a pooler or not.

A pooler such as PgBouncer in transaction mode gives each transaction another session of
the server, and other clients use that session before and after. So every statement
names the catalog's schema. Settings and prepared statements of a session are used only
where the session is known to be ours alone, because the process id that the server gave
when we connected is the one that the server has; a pooler makes its own up. Elsewhere
settings are made for one transaction, with its BEGIN, and nothing is prepared by name.
"""

from __future__ import annotations

import re
import select
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from psycopg import conninfo, sql
from psycopg.pq import Conninfo, ConnStatus, TransactionStatus

from delkalakedb.catalog.backend import (
    UNFIT,
    Backend,
    Capabilities,
    Insert,
    MovedOnError,
    Params,
    Row,
    Session,
    StoredRows,
    Write,
    no_catalog,
    unfit,
)
from delkalakedb.catalog.pool import NoFreeSlotError, Pool
from delkalakedb.catalog.postgres_dump import dump_tables, dumped_rows
from delkalakedb.catalog.prepared import Prepared, preparation
from delkalakedb.catalog.statements import load_statements, qualify
from delkalakedb.errors import (
    CatalogBusyError,
    CatalogError,
    CatalogPermissionError,
    CatalogUnavailableError,
    UnknownOutcomeError,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from delkalakedb.catalog.postgres_bulk import Connection as BulkConnection
    from delkalakedb.config import Settings
    from delkalakedb.uri import Uri

__all__ = ["PostgresBackend"]

# What every small commit sends.
_HOT = (
    "check_schema_version",
    "lock_table",
    "load_latest",
    "load_files_at_paths",
    "check_seen",
    "take_lease",
    "move_head",
    "mark_published",
    "mark_published_hash",
)
_Values = Params | Sequence[Any]
C = TypeVar("C")
# times that psycopg sends a statement before it prepares it: its own default
_PREPARE_AFTER = 5
# statements in which a backend keeps tables' names with their schema
_MOST_QUALIFIED = 1024
# From here on COPY beats rows in the text of a statement.
_COPY_ROWS = 100
_MAX_NAME_BYTES = 63
_Query = tuple[str, Params]
# Read committed, because a writer that waited for a table's lock must see what was
# committed meanwhile. A session of our own has it as its default.
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
# lock_not_available, query_canceled, serialization_failure, deadlock_detected
_BUSY = {"55P03", "57014", "40001", "40P01"}
# insufficient_privilege
_FORBIDDEN = "42501"
# read_only_sql_transaction
_READ_ONLY = "25006"
# undefined_table, invalid_schema_name: it was dropped while it was open
_NO_CATALOG = {"42P01", "3F000"}
# What a server or PgBouncer without a free slot (53300) says; libpq has no SQLSTATE of
# a refused connection.
_FULL = re.compile(
    "too many (clients|connections)|connection slots are reserved|"
    "no more connections allowed"
)
# connection, authentication, resources, operator intervention, no such database
_UNAVAILABLE = ("08", "28", "53", "57P", "3D000")


class _Connection(psycopg.Connection[Row]):
    # Of a session that is ours alone; in a shared one nothing is prepared.
    prepared: Prepared | None = None


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
            # Postgres would cut it off, and take two such schemas for one.
            raise CatalogError(
                f"{self.name}: a schema's name can't be longer than "
                f"{_MAX_NAME_BYTES} bytes"
            )
        self._quoted = sql.Identifier(self._schema).as_string()
        # psycopg takes a percent sign for a parameter.
        quoted = self._quoted.replace("%", "%%")
        self.qualified = lru_cache(_MOST_QUALIFIED)(
            lambda text: qualify(text, lambda table: f"{quoted}.{table}")
        )
        self.statements = _schema_statements(self._schema, self.qualified)
        self._settings = settings.pool
        self._conninfo = _conninfo(uri, settings)
        self._user: str | None = None
        self._gone = False
        self._pool = self._new_pool(self._connect, _Connection.close, _healthy)
        self._bulk_pool: Pool[BulkConnection] = self._new_pool(
            self._connect_bulk, _close, _is_bulk_healthy, beside=self._pool
        )

    def _new_pool(
        self,
        connect: Callable[[], C],
        close: Callable[[C], object],
        healthy: Callable[[C], bool],
        beside: Pool[Any] | None = None,
    ) -> Pool[C]:
        return Pool(
            connect,
            close=close,
            healthy=healthy,
            size=self._settings.size,
            timeout_s=self._settings.connect_timeout,
            name=self.name,
            beside=beside,
        )

    @contextmanager
    def reading(self) -> Iterator[Session]:
        with self._mapped(), self._pool.connection() as connection:
            try:
                yield _PostgresSession(self, connection)
            finally:
                _rollback(connection)

    @contextmanager
    def writing(
        self, *, durable: bool = True, any_version: bool = False
    ) -> Iterator[Session]:
        with self._mapped(), self._pool.connection() as connection:
            begin = self._begin(connection, durable, any_version)
            session = _PostgresSession(self, connection, begin)
            try:
                yield session
                self._commit(session)
            finally:
                _rollback(connection)

    def at_once(self, queries: Sequence[_Query]) -> list[list[Row]]:
        with self._mapped(), self._pool.connection() as connection:
            begin = self._begin(connection, durable=False)
            session = _PostgresSession(self, connection, begin)
            try:
                return session.finish(queries)
            finally:
                _rollback(connection)

    def _begin(
        self, connection: _Connection, durable: bool, any_version: bool = False
    ) -> list[_Query]:
        """Return the statements that begin a transaction."""
        begin = [_BEGIN]
        if connection.prepared is None:
            begin = [_BEGIN_SHARED, (self._setting(local=True), {})]
        if not durable:
            begin.append(_NOT_DURABLE)
        if not any_version:
            version = {"schema_version": self.schema_version}
            begin.append((self.statements["check_schema_version"], version))
        return begin

    def begin_read(self, connection: _Connection) -> list[_Query]:
        """Return what has to come before a read for it to have a timeout."""
        if connection.prepared is not None or self._timeout_ms is None:
            return []
        return [_BEGIN, (f"SET LOCAL statement_timeout TO {self._timeout_ms}", {})]

    def named(self, table: str) -> str:
        """Return the table's name with its schema's, for SQL without parameters."""
        return f"{self._quoted}.{table}"

    def batches(
        self, sql: str, params: Params, schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        from delkalakedb.catalog import postgres_bulk as bulk

        # ADBC has only positional parameters; ours are integers and bound here.
        values = {n: "NULL" if v is None else int(v) for n, v in params.items()}
        try:
            with self._mapped(), self._bulk_pool.connection() as connection:
                text = self.qualified(sql) % values
                yield from bulk.read(connection, text, self._timeout_ms, schema)
        except bulk.Error as error:
            lost = isinstance(error, bulk.OperationalError)
            raise _map_error(self.name, error, error.sqlstate, lost) from error
        except OSError as error:
            # A stream that breaks off is Arrow's error, which has no code.
            raise _map_error(self.name, error, None, True) from error

    def files(self, params: Params, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        from delkalakedb.catalog.packing import Packing

        packing = Packing(schema)
        sql = packing.naming(self.statements["files"])
        return map(packing.unpack, self.batches(sql, params, packing.schema))

    def find_catalog(self, session: Session) -> bool:
        found = bool(session.query("find_catalog", {"schema": self._schema}))
        # Another process may have made it again.
        self._gone = self._gone and not found
        return found

    def prepare(self, session: Session) -> None:
        # The lock comes first: two CREATE SCHEMA IF NOT EXISTS at once can collide.
        self._gone = False
        session.query("lock_migrations", {"schema": self._schema})
        # Where it exists, creating it needs a right that using it doesn't.
        if not session.query("find_schema", {"schema": self._schema}):
            session.script([f"CREATE SCHEMA {self._quoted}"])

    def db_user(self) -> str | None:
        if self._user is None:
            with self.reading() as session:
                ((self._user,),) = session.query("load_user", {})
        return self._user

    def back_up(self, file: Path, tables: Sequence[str]) -> None:
        dump_tables(file, [*map(self.named, tables)], _environment(self._conninfo))

    @contextmanager
    def open_backup(self, file: Path) -> Iterator[StoredRows]:
        with dumped_rows(file, "dl_schema_versions") as dumped:
            place = dumped.columns.split(", ").index("version")
            version = max(int(line.split(b"\t")[place]) for line in dumped.lines)
        yield _PostgresRows(file, version)

    def lock_tables(self, session: Session, tables: Sequence[str]) -> None:
        # Readers go on, and see the rows as they were.
        names = ", ".join(map(self.named, tables))
        session.script([f"LOCK TABLE {names} IN EXCLUSIVE MODE"])

    def warm_up(self) -> None:
        from delkalakedb.catalog import postgres_bulk  # noqa: F401

    def is_gone(self) -> bool:
        return self._gone

    def is_replica(self) -> bool:
        with self.reading() as session:
            ((replica,),) = session.query("load_recovery", {})
        return bool(replica)

    def close(self) -> None:
        self._pool.close()
        self._bulk_pool.close()

    def _commit(self, session: _PostgresSession) -> None:
        try:
            session.commit()
        except psycopg.errors.DivisionByZero as error:
            raise MovedOnError from error
        except psycopg.OperationalError as error:
            # An ERROR rolled it back; a FATAL may come after it was carried out.
            if error.diag.severity_nonlocalized == "ERROR":
                raise
            raise UnknownOutcomeError(
                f"{self.name}: the connection was lost during COMMIT: {error}"
            ) from error

    @property
    def _timeout_ms(self) -> int | None:
        timeout = self._settings.statement_timeout
        return None if timeout is None else timeout_ms(timeout)

    def _connect(self) -> _Connection:
        with _waiting_for_slot(psycopg.OperationalError):
            connection = _Connection.connect(
                self._conninfo, autocommit=True, prepare_threshold=None
            )
        try:
            # One message, whose last answer counts.
            cursor = psycopg.ClientCursor(connection)
            cursor.execute(
                f"{self._setting(local=False)} WHERE pg_backend_pid() = %(pid)s; "
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
            connection.prepared = Prepared(self.statements[name] for name in _HOT)
        return connection

    def _setting(self, *, local: bool) -> str:
        """Return the SELECT that makes the settings of a session or a transaction."""
        values = {
            "synchronous_commit": _DURABLE,
            "lock_timeout": f"'{timeout_ms(self._settings.lock_timeout)}'",
        }
        if self._timeout_ms is not None:
            values["statement_timeout"] = f"'{self._timeout_ms}'"
        if not local:
            values["default_transaction_isolation"] = f"'{_ISOLATION}'"
        made = (f"set_config('{n}', {v}, {local})" for n, v in values.items())
        return f"SELECT {', '.join(made)}"

    def _connect_bulk(self) -> BulkConnection:
        from delkalakedb.catalog import postgres_bulk as bulk

        with _waiting_for_slot(bulk.OperationalError):
            return bulk.connect(self._conninfo)

    @contextmanager
    def _mapped(self) -> Iterator[None]:
        try:
            yield
        except UNFIT as error:
            raise unfit(self.name, error) from error
        except psycopg.errors.InvalidArgumentForPowerFunction as error:
            # What `check_schema_version` raises.
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
    """Return the statements with the schema's name before each table's."""
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
    """Our error for a driver's, by SQLSTATE; one that lost the server has none."""
    diagnosis = error.diag if isinstance(error, psycopg.Error) else None
    # Without the line of SQL that libpq shows below an error.
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
    """A timeout as Postgres takes it, to which 0 is none at all."""
    return max(1, int(seconds * 1000))


def _conninfo(uri: Uri, settings: Settings) -> str:
    password = uri.password
    if password is None and settings.sql.password is not None:
        password = settings.sql.password.get_secret_value()
    options: dict[str, Any] = {
        "host": uri.host or "localhost",
        "port": uri.port or 5432,
        "dbname": uri.database,
        "user": uri.user,
        "password": password,
        "connect_timeout": max(2, round(settings.pool.connect_timeout)),
        "application_name": "delkalakedb",
        "client_encoding": "UTF8",
        "keepalives_idle": 30,
        "keepalives_interval": 10,
        "keepalives_count": 3,
        **uri.tls,
    }
    return conninfo.make_conninfo(
        **{key: value for key, value in options.items() if value is not None}
    )


def _healthy(connection: _Connection) -> bool:
    """Idle and open; a server that left says so on the socket, so silence is health."""
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
    from delkalakedb.catalog import postgres_bulk as bulk

    return bulk.is_healthy(connection)


def _close(connection: BulkConnection) -> None:
    connection.close()


def _has_data(socket: int) -> bool:
    if not hasattr(select, "poll"):  # On Windows, where a socket may have any number.
        return bool(select.select([socket], [], [], 0)[0])
    waiting = select.poll()
    waiting.register(socket, select.POLLIN)
    return bool(waiting.poll(0))


def _rollback(connection: _Connection) -> None:
    if connection.pgconn.transaction_status in (
        TransactionStatus.INTRANS,
        TransactionStatus.INERROR,
    ):
        # The first error counts; a connection that stays as it is won't be used again.
        # Not by way of psycopg, which would have all prepared statements forgotten.
        connection.pgconn.exec_(b"ROLLBACK")


def _bulk(write: Write) -> bool:
    return isinstance(write, Insert) and len(write) >= _COPY_ROWS


def _environment(conninfo_text: str) -> dict[str, str]:
    """How to connect, as libpq's programs read it: on no command line."""
    given = conninfo.conninfo_to_dict(conninfo_text)
    names = {
        option.keyword.decode(): option.envvar.decode()
        for option in Conninfo.get_defaults()
        if option.envvar
    }
    return {names[key]: str(value) for key, value in given.items() if key in names}


class _PostgresRows(StoredRows):
    def copy(self, session: Session, table: str) -> None:
        assert isinstance(session, _PostgresSession)
        with dumped_rows(self.file, table) as dumped:
            session.copy_text(table, dumped.columns, dumped.lines)


class _PostgresSession(Session):
    """Writes are held back, so that small ones travel with their COMMIT."""

    def __init__(
        self,
        backend: PostgresBackend,
        connection: _Connection,
        begin: Sequence[_Query] = (),
    ) -> None:
        self._backend = backend
        self._connection = connection
        # What the transaction begins with, until it has begun; a read has none.
        self._begin = begin
        self._begun = not begin
        self._pending: list[Write] = []
        self._held: list[tuple[tuple[str, Params], list[Row]]] = []

    def query(self, name: str, params: Params) -> list[Row]:
        return self.query_sql(self._backend.statements[name], params)

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
        """The rows of the transaction's last statements, which is committed."""
        return self._send([*queries, _COMMIT])[:-1]

    def hold_back(self, queries: Sequence[tuple[str, Params]]) -> list[list[Row]]:
        self._held = [(query, []) for query in queries]
        return [rows for _, rows in self._held]

    def apply(self, writes: Sequence[Write]) -> None:
        self._pending.extend(writes)

    def script(self, statements: Iterable[str]) -> None:
        self._flush()
        for statement in statements:
            named = qualify(statement, self._backend.named)
            self._send([(named.replace("%", "%%"), {})])
        # psycopg forgets them where tables are changed.
        if self._connection.prepared is not None:
            self._connection.prepared.clear()

    def commit(self) -> None:
        """Write what was held back and commit, in one round trip where rows are few."""
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
        """The rows of statements, sent after what has to come before them."""
        opening = [] if self._begun else [*self._begin]
        held, self._held, self._begun = self._held, [], True
        texts = [*opening, *(query for query, _ in held), *queries]
        answers = self._together(texts)[-len(texts) :] if texts else []
        for (_, rows), found in zip(held, answers[len(opening) :], strict=False):
            rows.extend(found)
        return answers[len(opening) + len(held) :]

    def _together(self, queries: Sequence[tuple[str, _Values]]) -> list[list[Row]]:
        """The rows of several statements, sent as one message in one round trip."""
        cursor = psycopg.ClientCursor(self._connection)
        prepared = self._connection.prepared
        literal = psycopg.adapt.Transformer(self._connection).as_literal
        made = prepared.due(text for text, _ in queries) if prepared else {}
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
            # Not `description`: it would look up the type of every column.
            found = cursor.pgresult is not None and cursor.pgresult.ntuples > 0
            answers.append(cursor.fetchall() if found else [])
            more = cursor.nextset()
        return answers

    def copy_text(self, table: str, columns: str, lines: Iterable[bytes]) -> None:
        """Write rows as COPY's text format has them."""
        self.query("load_schema_version", {})
        statement = f"COPY {self._backend.named(table)} ({columns}) FROM STDIN"
        with self._connection.cursor().copy(statement.encode()) as copy:
            for line in lines:
                copy.write(line)

    def _copy(self, insert: Insert) -> None:
        rows = self.query("load_column_types", {"table": insert.table})
        types: dict[str, str] = dict(rows)
        columns = ", ".join(insert.columns)
        table = self._backend.named(insert.table)
        statement = f"COPY {table} ({columns}) FROM STDIN (FORMAT BINARY)"
        with self._connection.cursor().copy(statement.encode()) as copy:
            copy.set_types([types[column] for column in insert.columns])
            for row in insert.rows():
                copy.write_row(row)

    def _statement(self, write: Write) -> tuple[str, _Values]:
        if not isinstance(write, Insert):
            return self._backend.statements[write.name], write.params
        text, values = write.flat("%s")
        return self._backend.qualified(text), values
