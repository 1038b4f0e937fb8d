"""A catalog's tables in a connection of DuckDB that the caller has opened.

DuckDB has no hook for unknown tables. So each table gets a view, in a database in
memory that is attached to the connection. The view scans a `Source`, which opens the
newest version of the table at each scan. DuckDB fixes the columns of a `Source` when it
is registered, and registers it for one connection only, not for its cursors.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from typing import Any, Self

import pyarrow as pa
import pyarrow.dataset as ds

from delkalakedb.catalog import Catalog
from delkalakedb.errors import (
    QueryError,
    SchemaMismatchError,
    TableNotFoundError,
    did_you_mean,
)
from delkalakedb.query.duck import explained, quoted
from delkalakedb.query.metatables import METATABLES, meta_source
from delkalakedb.query.sources import Source, version_source

_META = "deltasql"


class Attachment:
    """Views of a catalog's tables in a DuckDB connection; a context manager.

    The tables are `lake.sales` and so on, where `lake` is the `name`. The catalog's
    metadata is in `lake.deltasql.tables`, `.columns`, `.history`, `.files` and `.lag`.

    A query reads each table at its newest version. Tables that were created later, and
    new columns, appear after `refresh`.

    Args:
        catalog: an open catalog.
        connection: a connection of DuckDB, or a cursor of one.
        name: the database in DuckDB that gets the views.
        tables: the names of the tables; all by default.
        storage_options: of the tables' object stores.

    Raises:
        QueryError: The connection has a database of this name.
        TableNotFoundError: The catalog has no table of a name in `tables`.

    Examples:
        >>> import duckdb
        >>> catalog = dk.connect("deltasql://sqlite/meta.db")
        >>> with catalog.attach(duckdb.connect()) as attached:
        ...     attached.tables
        ['sales']
    """

    def __init__(
        self,
        catalog: Catalog,
        connection: Any,
        name: str = "lake",
        *,
        tables: Collection[str] | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        self._catalog = catalog
        self._connection = connection
        self._name = name
        self._chosen = tables
        self._storage_options = storage_options
        self._registered: dict[tuple[str, str], Source] = {}
        known = "SELECT database_name FROM duckdb_databases()"
        with explained():
            for (other,) in connection.execute(known).fetchall():
                if other.lower() == name.lower():
                    raise QueryError(
                        f"the connection already has a database {other}; attach the "
                        "catalog by another name, as in attach(connection, 'lake2')"
                    )
            connection.execute(f"ATTACH ':memory:' AS {quoted(name)}")
            connection.execute(f"CREATE SCHEMA {quoted(name)}.{_META}")
        try:
            self.refresh()
        except BaseException:
            self.detach()
            raise

    @property
    def tables(self) -> list[str]:
        """The names of the tables that have a view, sorted."""
        return sorted(name for schema, name in self._registered if schema == "main")

    def refresh(self) -> None:
        """Add views of new tables and columns, and remove views of dropped tables.

        Raises:
            QueryError: DuckDB can't make a view, or two names differ only in case.

        Examples:
            >>> import duckdb
            >>> catalog = dk.connect("deltasql://sqlite/meta.db")
            >>> with catalog.attach(duckdb.connect()) as attached:
            ...     catalog.rename_table("sales", "orders")
            ...     attached.refresh()
            ...     attached.tables
            ['orders']
        """
        wanted = {("main", n): self._newest(n) for n in self._names()}
        if not self._registered:
            for name in METATABLES:
                wanted[_META, name] = meta_source(self._catalog, name)
        for key in [*self._registered]:
            schema, name = key
            if schema == "main":
                source = wanted.get(key)
                if source and source.schema.equals(self._registered[key].schema):
                    # Kept, because a running query may scan it.
                    del wanted[key]
                else:
                    self._remove(schema, name)
        with explained():
            for (schema, name), source in wanted.items():
                self._add(schema, name, source)

    def detach(self) -> None:
        """Remove the views from the connection; nothing happens if it is closed.

        Examples:
            >>> import duckdb
            >>> attached = dk.connect("deltasql://sqlite/meta.db").attach(duckdb.connect())
            >>> attached.detach()
            >>> attached.tables
            []
        """
        with suppress(QueryError), explained():
            # DuckDB keeps a database that it is using.
            self._connection.execute(f"DETACH DATABASE IF EXISTS {quoted(self._name)}")
            for schema, name in [*self._registered]:
                self._connection.unregister(self._hidden(schema, name))
        self._registered.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()

    def __repr__(self) -> str:
        return f"Attachment({self._name}, {len(self.tables)} tables, {self._catalog!r})"

    def _names(self) -> list[str]:
        there = sorted(self._catalog._versions())
        if self._chosen is None:
            names = there
        else:
            names = [*dict.fromkeys(self._chosen)]
            if unknown := [n for n in names if n not in there and not self._registered]:
                raise TableNotFoundError(
                    f"no table {unknown[0]}{did_you_mean(unknown[0], there)}"
                )
            names = [name for name in names if name in there]
        folded: dict[str, str] = {}
        for name in names:
            if (other := folded.setdefault(name.lower(), name)) != name:
                raise QueryError(
                    f"DuckDB can't tell the tables {other} and {name} apart, whose "
                    "names differ only in case; attach one of them with tables=[...]"
                )
        return names

    def _newest(self, name: str) -> Source:
        """Return a source of the version that is the newest when it is scanned."""

        def opened() -> Source:
            snapshot = self._catalog.snapshot(name)
            return version_source(self._catalog, snapshot, self._storage_options)

        def scan(
            columns: list[str], where: ds.Expression | None
        ) -> Iterator[pa.RecordBatch]:
            newest = opened()
            for field in schema:
                at = newest.schema.get_field_index(field.name)
                if at < 0 or newest.schema.field(at).type != field.type:
                    raise SchemaMismatchError(
                        f"{name}: the column {field.name} has changed since the "
                        "catalog was attached; call refresh() of the attachment"
                    )
            yield from newest.scan(columns, where)

        schema = opened().schema
        return Source(schema, scan)

    def _hidden(self, schema: str, name: str) -> str:
        return f"deltasql {self._name}.{schema}.{name}"

    def _add(self, schema: str, name: str, source: Source) -> None:
        hidden = self._hidden(schema, name)
        self._connection.register(hidden, source)
        self._registered[schema, name] = source
        self._connection.execute(
            f"CREATE VIEW {quoted(self._name)}.{schema}.{quoted(name)} AS "
            f"SELECT * FROM {quoted(hidden)}"
        )

    def _remove(self, schema: str, name: str) -> None:
        with explained():
            self._connection.execute(
                f"DROP VIEW IF EXISTS {quoted(self._name)}.{schema}.{quoted(name)}"
            )
            self._connection.unregister(self._hidden(schema, name))
        del self._registered[schema, name]
