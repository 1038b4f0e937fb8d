"""Bulk reads from Postgres through ADBC, in half the time that psycopg takes.

A read is a transaction of its own, because a pooler may give each transaction another
session, in which a statement that was prepared before doesn't exist. Between reads a
connection has no transaction open.

ADBC's DB-API module isn't used, because it imports pandas and polars if they are
installed, which costs each process that makes a checkpoint half a second of CPU time.
"""

from collections.abc import Generator
from contextlib import closing, suppress

import adbc_driver_postgresql as postgresql
import pyarrow as pa
from adbc_driver_manager import (
    AdbcConnection,
    AdbcStatement,
    Error as Error,
    OperationalError as OperationalError,
)

_ANSWER = pa.schema({"x": pa.int32()})


class Connection:
    """A connection to one database, in autocommit mode."""

    def __init__(self, conninfo: str) -> None:
        self._database = postgresql.connect(conninfo)
        try:
            self.connection = AdbcConnection(self._database)
        except BaseException:
            self._database.close()
            raise

    def close(self) -> None:
        """Close the connection."""
        try:
            self.connection.close()
        finally:
            self._database.close()


def is_healthy(connection: Connection) -> bool:
    """Return whether the server answers."""
    try:
        found = list(read(connection, "SELECT 1 AS x", None, _ANSWER))
    except (Error, OSError):
        return False
    return bool(found)


def read(
    connection: Connection, sql: str, timeout_ms: int | None, schema: pa.Schema
) -> Generator[pa.RecordBatch, None, None]:
    """Stream the rows of a statement; the server cancels it after `timeout_ms`."""
    raw = connection.connection
    raw.set_autocommit(False)
    try:
        if timeout_ms is not None:
            with closing(AdbcStatement(raw)) as statement:
                statement.set_sql_query(f"SET LOCAL statement_timeout TO {timeout_ms}")
                statement.execute_update()
        with closing(AdbcStatement(raw)) as statement:
            statement.set_sql_query(sql)
            stream, _ = statement.execute_query()
            with pa.RecordBatchReader.from_stream(stream) as batches:
                for batch in batches:
                    yield batch.cast(schema)
    finally:
        # Suppressed so that the caller sees the first error. The pool drops a broken
        # connection.
        with suppress(Error):
            raw.set_autocommit(True)
