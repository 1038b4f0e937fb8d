"""SQL queries over the tables of a catalog, run by DuckDB.

DuckDB has a database of its own in memory, and is shut off from files and from the
network: all that a query can read is the catalog's tables and what the catalog knows
of them (`deltasql.tables` and so on). Every table is read at one version, and all of
them as they were at one time, unless `AT (VERSION => ...)` says another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from functools import cached_property
from typing import TYPE_CHECKING, Any

from delkalakedb.catalog import Catalog
from delkalakedb.errors import QueryError
from delkalakedb.table.duck import (
    BATCH_ROWS,
    Query,
    Selected,
    explained,
    open_duckdb,
    run_query,
)
from delkalakedb.table.statement import Reference, rewrite

if TYPE_CHECKING:
    from delkalakedb.table.sources import Source

__all__ = ["Selected", "select"]

_META = "deltasql."


@contextmanager
def select(
    catalog: Catalog,
    sql: str,
    *,
    limit: int | None = None,
    batch_rows: int = BATCH_ROWS,
    storage_options: Mapping[str, str] | None = None,
) -> Iterator[Selected]:
    """Run one query.

    Args:
        catalog: the catalog whose tables it names.
        sql: a SELECT, WITH, FROM, VALUES, DESCRIBE or SUMMARIZE, in DuckDB's SQL.
        limit: at most so many rows.
        batch_rows: about so many rows come together.
        storage_options: of the tables' object stores.

    Raises:
        QueryError: It can't be parsed or bound, or fails on a row.
    """
    with open_duckdb(sealed=True) as connection:
        sources = _Sources(catalog, connection, storage_options)
        with explained():
            text = rewrite(connection, sql, sources.register)
        query = Query(text, limit=limit, batch_rows=batch_rows)
        with run_query(connection, query, sources.opened.values()) as rows:
            yield rows


class _Sources:
    """The tables of one query, each registered once for each version of it."""

    def __init__(
        self,
        catalog: Catalog,
        connection: Any,
        storage_options: Mapping[str, str] | None,
    ) -> None:
        self._catalog = catalog
        self._connection = connection
        self._storage_options = storage_options
        self.opened: dict[Reference, Source] = {}

    @cached_property
    def _versions(self) -> dict[str, int]:
        # One statement: nobody sees half of a transaction over several tables.
        return {table.name: table.version for table in self._catalog.tables()}

    def register(self, reference: Reference) -> str:
        """The name under which a query finds a table."""
        if reference not in self.opened:
            source = self.opened[reference] = self._open(reference)
            self._connection.register(f"dk{len(self.opened)}", source)
        return f"dk{1 + list(self.opened).index(reference)}"

    def _open(self, reference: Reference) -> Source:
        # Imported here, because datasets load pandas; a query may name no table.
        from delkalakedb.table.sources import version_source

        name = self._find(reference.name)
        if name is None:
            return self._open_meta(reference)
        version = reference.version
        if version is None and reference.timestamp_ms is None:
            version = self._versions[name]
        snapshot = self._catalog.snapshot(
            name, version, timestamp_ms=reference.timestamp_ms
        )
        return version_source(self._catalog, snapshot, self._storage_options)

    def _open_meta(self, reference: Reference) -> Source:
        from delkalakedb.table.metatables import METATABLES, meta_source

        name = reference.name.lower().removeprefix(_META)
        if name == reference.name.lower() or name not in METATABLES:
            raise self._unknown(reference.name)
        if reference != Reference(reference.name):
            raise QueryError(f"{reference.name} has no versions to go back to")
        return meta_source(self._catalog, name)

    def _find(self, name: str) -> str | None:
        """The table of that name, or the only one that differs in case alone."""
        if name in self._versions:
            return name
        same = [n for n in self._versions if n.lower() == name.lower()]
        return same[0] if len(same) == 1 else None

    def _unknown(self, name: str) -> QueryError:
        from delkalakedb.table.metatables import METATABLES

        there = [*self._versions, *(_META + name for name in METATABLES)]
        near = get_close_matches(name, there, n=3) or there[:10]
        return QueryError(
            f"no table {name}; did you mean {', '.join(near)}? "
            f"SELECT name FROM {_META}tables lists them all"
        )
