"""Bulk reads from Postgres through ADBC: half the time of any other way."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from adbc_driver_postgresql import dbapi as adbc

from delkalakedb.catalog.pool import Pool
from delkalakedb.errors import CatalogError

if TYPE_CHECKING:
    from delkalakedb.config import PoolSettings

__all__ = ["BulkReader"]

MapError = Callable[[str, Exception, str | None, bool], CatalogError]


class BulkReader:
    """Connections of ADBC's own, beside those that write."""

    def __init__(
        self,
        conninfo: str,
        schema: str,
        settings: "PoolSettings",
        name: str,
        map_error: MapError,
    ) -> None:
        self._conninfo = conninfo
        self._schema = schema
        self._name = name
        self._timeout_s = settings.statement_timeout
        self._map_error = map_error
        self._pool: Pool[adbc.Connection] = Pool(
            self._connect,
            close=adbc.Connection.close,
            healthy=_healthy,
            size=settings.size,
            timeout_s=settings.connect_timeout,
            name=name,
        )

    def read(self, sql: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows of a statement, streamed."""
        try:
            with self._pool.connection() as connection:
                with connection.cursor() as cursor:
                    cursor.execute(sql)
                    for batch in cursor.fetch_record_batch():
                        yield batch.cast(schema)
                connection.rollback()
        except adbc.Error as error:
            lost = isinstance(error, adbc.OperationalError)
            raise self._map_error(self._name, error, error.sqlstate, lost) from error
        except OSError as error:
            # A stream that breaks off is Arrow's error, which has no code.
            raise self._map_error(self._name, error, None, True) from error

    def close(self) -> None:
        """Close every connection."""
        self._pool.close()

    def _connect(self) -> adbc.Connection:
        connection = adbc.connect(self._conninfo)
        quoted = self._schema.replace('"', '""')
        try:
            with connection.cursor() as cursor:
                cursor.execute(f'SET search_path TO "{quoted}"')
                if self._timeout_s is not None:
                    timeout_ms = max(1, int(self._timeout_s * 1000))
                    cursor.execute(f"SET statement_timeout TO {timeout_ms}")
            connection.commit()
        except BaseException:
            connection.close()
            raise
        return connection


def _healthy(connection: adbc.Connection) -> bool:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
            cursor.fetchall()
        connection.rollback()
    except adbc.Error:
        return False
    return True
