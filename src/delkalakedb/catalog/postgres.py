"""Postgres: any number of processes and machines."""

import select
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
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
    unfit,
)
from delkalakedb.catalog.packing import Packing
from delkalakedb.catalog.pool import Pool
from delkalakedb.catalog.postgres_dump import dump_tables, dumped_rows
from delkalakedb.catalog.prepared import Prepared, preparation
from delkalakedb.catalog.statements import load_statements
from delkalakedb.errors import (
    CatalogBusyError,
    CatalogError,
    CatalogUnavailableError,
    UnknownOutcomeError,
)

if TYPE_CHECKING:
    from delkalakedb.catalog.postgres_bulk import BulkReader
    from delkalakedb.config import Settings
    from delkalakedb.uri import Uri

__all__ = ["PostgresBackend"]

# What every small commit sends.
_HOT = (
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
# From here on COPY beats rows in the text of a statement.
_COPY_ROWS = 100
_MAX_NAME_BYTES = 63
_BEGIN: tuple[str, Params] = ("BEGIN", {})
_NOT_DURABLE: tuple[str, Params] = ("SET LOCAL synchronous_commit TO off", {})
_COMMIT: tuple[str, Params] = ("COMMIT", {})
# lock_not_available, query_canceled, serialization_failure, deadlock_detected
_BUSY = {"55P03", "57014", "40001", "40P01"}
# undefined_table, invalid_schema_name: it was dropped while it was open
_NO_CATALOG = {"42P01", "3F000"}
# connection, authentication, resources, operator intervention, no such database
_UNAVAILABLE = ("08", "28", "53", "57P", "3D000")


class _Connection(psycopg.Connection[Row]):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.prepared = Prepared(PostgresBackend.statements[name] for name in _HOT)


class PostgresBackend(Backend):
    """A catalog in one schema of a Postgres database."""

    engine = "postgres"
    capabilities = Capabilities(table_locks=True, interval_index=True)
    placeholder = "%({})s"
    statements = load_statements(engine, placeholder)

    @classmethod
    def identity(cls, uri: "Uri") -> tuple[object, ...]:
        tls = tuple(sorted(uri.tls.items()))
        where = (uri.host, uri.port, uri.database, uri.schema)
        return (*where, uri.user, uri.password, tls)

    def __init__(self, uri: "Uri", settings: "Settings") -> None:
        self._name = str(uri)
        self._schema = uri.schema or "public"
        if len(self._schema.encode()) > _MAX_NAME_BYTES:
            # Postgres would cut it off, and take two such schemas for one.
            raise CatalogError(
                f"{self._name}: a schema's name can't be longer than "
                f"{_MAX_NAME_BYTES} bytes"
            )
        self._settings = settings
        self._conninfo = _conninfo(uri, settings)
        self._user: str | None = None
        self._gone = False
        self._pool: Pool[_Connection] = Pool(
            self._connect,
            close=_Connection.close,
            healthy=_healthy,
            size=settings.pool.size,
            timeout_s=settings.pool.connect_timeout,
            name=self._name,
        )
        self._bulk: BulkReader | None = None

    @contextmanager
    def reading(self) -> Iterator[Session]:
        with self._mapped(), self._pool.connection() as connection:
            yield _PostgresSession(connection, begun=True)

    @contextmanager
    def writing(self, *, durable: bool = True) -> Iterator[Session]:
        with self._mapped(), self._pool.connection() as connection:
            session = _PostgresSession(connection, begun=False, durable=durable)
            try:
                yield session
                self._commit(session)
            finally:
                _rollback(connection)

    def at_once(self, queries: Sequence[tuple[str, Params]]) -> list[list[Row]]:
        with self._mapped(), self._pool.connection() as connection:
            session = _PostgresSession(connection, begun=False, durable=False)
            try:
                return session.finish(queries)
            finally:
                _rollback(connection)

    def batches(
        self, sql: str, params: Params, schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        # ADBC has only positional parameters; ours are integers and bound here.
        values = {n: "NULL" if v is None else int(v) for n, v in params.items()}
        return self._bulk_reader().read(sql % values, schema)

    def files(self, params: Params, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        packing = Packing(schema)
        sql = packing.naming(self.statements["files"])
        return map(packing.unpack, self.batches(sql, params, packing.schema))

    def find_catalog(self, session: Session) -> bool:
        return bool(session.query("find_catalog", {"schema": self._schema}))

    def prepare(self, session: Session) -> None:
        # The lock comes first: two CREATE SCHEMA IF NOT EXISTS at once can collide.
        self._gone = False
        session.query("lock_migrations", {"schema": self._schema})
        # Where it exists, creating it needs a right that using it doesn't.
        if not session.query("find_schema", {"schema": self._schema}):
            schema = sql.Identifier(self._schema).as_string().replace("%", "%%")
            session.script([f"CREATE SCHEMA {schema}"])

    def db_user(self) -> str | None:
        if self._user is None:
            with self.reading() as session:
                ((self._user,),) = session.query("load_user", {})
        return self._user

    def back_up(self, file: Path, tables: Sequence[str]) -> None:
        schema = sql.Identifier(self._schema).as_string()
        names = [f"{schema}.{table}" for table in tables]
        dump_tables(file, names, _environment(self._conninfo))

    @contextmanager
    def open_backup(self, file: Path) -> Iterator[StoredRows]:
        with dumped_rows(file, "dl_schema_versions") as dumped:
            place = dumped.columns.split(", ").index("version")
            version = max(int(line.split(b"\t")[place]) for line in dumped.lines)
        yield _PostgresRows(file, version)

    def lock_tables(self, session: Session, tables: Sequence[str]) -> None:
        # Readers go on, and see the rows as they were.
        session.script([f"LOCK TABLE {', '.join(tables)} IN EXCLUSIVE MODE"])

    def warm_up(self) -> None:
        self._bulk_reader()

    def is_gone(self) -> bool:
        return self._gone

    def close(self) -> None:
        self._pool.close()
        if self._bulk is not None:
            self._bulk.close()

    def _commit(self, session: "_PostgresSession") -> None:
        try:
            session.commit()
        except psycopg.errors.DivisionByZero as error:
            raise MovedOnError from error
        except psycopg.OperationalError as error:
            # An ERROR rolled it back; a FATAL may come after it was carried out.
            if error.diag.severity_nonlocalized == "ERROR":
                raise
            raise UnknownOutcomeError(
                f"{self._name}: the connection was lost during COMMIT: {error}"
            ) from error

    def _connect(self) -> _Connection:
        connection = _Connection.connect(self._conninfo, autocommit=True)
        try:
            # One message, whose last answer counts.
            cursor = connection.execute(sql.SQL("; ").join(self._session_settings()))
            while cursor.nextset():
                pass
            ((durability, encoding),) = cursor.fetchall()
            # A commit that was published must never be lost by the database.
            if durability in ("off", "local"):
                connection.execute("SET synchronous_commit TO on")
            if encoding != "UTF8":
                raise CatalogError(
                    f"{self._name}: the database's encoding is {encoding}; a catalog "
                    "needs UTF8: CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0"
                )
        except BaseException:
            connection.close()
            raise
        return connection

    def _session_settings(self) -> Iterator[sql.Composable]:
        pool = self._settings.pool
        yield sql.SQL("SET search_path TO {}").format(sql.Identifier(self._schema))
        # Whoever waited for a table's lock must see what was committed meanwhile.
        yield sql.SQL("SET default_transaction_isolation TO 'read committed'")
        yield sql.SQL("SET lock_timeout TO {}").format(timeout_ms(pool.lock_timeout))
        if pool.statement_timeout is not None:
            yield sql.SQL("SET statement_timeout TO {}").format(
                timeout_ms(pool.statement_timeout)
            )
        yield sql.SQL(
            "SELECT current_setting('synchronous_commit'), "
            "current_setting('server_encoding')"
        )

    def _bulk_reader(self) -> "BulkReader":
        if self._bulk is None:
            # On first use: ADBC brings pandas and polars in, seconds of imports.
            from delkalakedb.catalog.postgres_bulk import BulkReader

            pool = self._settings.pool
            self._bulk = BulkReader(
                self._conninfo, self._schema, pool, self._name, _map_error
            )
        return self._bulk

    @contextmanager
    def _mapped(self) -> Iterator[None]:
        try:
            yield
        except UNFIT as error:
            raise unfit(self._name, error) from error
        except psycopg.Error as error:
            self._gone = self._gone or error.sqlstate in _NO_CATALOG
            lost = isinstance(error, psycopg.OperationalError)
            raise _map_error(self._name, error, error.sqlstate, lost) from error


def _map_error(
    name: str, error: Exception, code: str | None, lost: bool
) -> CatalogError:
    """Our error for a driver's, by SQLSTATE; one that lost the server has none."""
    text = f"{name}: {str(error).strip()}"
    if code in _BUSY:
        return CatalogBusyError(text)
    if (code is None and lost) or (code or "").startswith(_UNAVAILABLE):
        return CatalogUnavailableError(text)
    return CatalogError(text)


def timeout_ms(seconds: float) -> int:
    """A timeout as Postgres takes it, to which 0 is none at all."""
    return max(1, int(seconds * 1000))


def _conninfo(uri: "Uri", settings: "Settings") -> str:
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
    waiting = select.poll()
    waiting.register(pgconn.socket, select.POLLIN)
    if waiting.poll(0):
        try:
            connection.execute("SELECT 1")
        except psycopg.Error:
            return False
    return True


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
        self, connection: _Connection, *, begun: bool, durable: bool = True
    ) -> None:
        self._connection = connection
        self._begun = begun
        self._begin = [_BEGIN] if durable else [_BEGIN, _NOT_DURABLE]
        self._pending: list[Write] = []
        self._held: list[tuple[tuple[str, Params], list[Row]]] = []

    def query(self, name: str, params: Params) -> list[Row]:
        return self.query_sql(PostgresBackend.statements[name], params)

    def query_sql(self, sql: str, params: Params) -> list[Row]:
        return self.query_many([(sql, params)])[0]

    def query_many(self, queries: Sequence[tuple[str, Params]]) -> list[list[Row]]:
        self._flush()
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
            self._send([(statement, {})])
        # psycopg forgets them where tables are changed.
        self._connection.prepared.clear()

    def commit(self) -> None:
        """Write what was held back and commit, in one round trip where rows are few."""
        if any(map(_bulk, self._pending)):
            self._flush()
        if self._begun or self._pending:
            pending, self._pending = self._pending, []
            self._send([*map(_statement, pending), _COMMIT])

    def _flush(self) -> None:
        pending, self._pending = self._pending, []
        for bulk, group in groupby(pending, _bulk):
            writes = list(group)
            if not bulk:
                self._send([*map(_statement, writes)])
                continue
            self._send([])
            for write in writes:
                if isinstance(write, Insert):
                    self._copy(write)

    def _send(self, queries: Sequence[tuple[str, _Values]]) -> list[list[Row]]:
        """The rows of statements, sent after what has to come before them."""
        opening = [] if self._begun else self._begin
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
        made = prepared.due(text for text, _ in queries)
        texts = [preparation(text, name) for text, name in made.items()]
        for query, values in queries:
            texts.append(
                prepared.call(query, values, made, literal)
                or cursor.mogrify(query.encode(), values)
            )
        cursor.execute(";\n".join(texts).encode())
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
        statement = f"COPY {table} ({columns}) FROM STDIN"
        with self._connection.cursor().copy(statement.encode()) as copy:
            for line in lines:
                copy.write(line)

    def _copy(self, insert: Insert) -> None:
        rows = self.query("load_column_types", {"table": insert.table})
        types: dict[str, str] = dict(rows)
        columns = ", ".join(insert.columns)
        statement = f"COPY {insert.table} ({columns}) FROM STDIN (FORMAT BINARY)"
        with self._connection.cursor().copy(statement.encode()) as copy:
            copy.set_types([types[column] for column in insert.columns])
            for row in insert.rows():
                copy.write_row(row)


def _statement(write: Write) -> tuple[str, _Values]:
    if not isinstance(write, Insert):
        return PostgresBackend.statements[write.name], write.params
    return write.flat("%s")
