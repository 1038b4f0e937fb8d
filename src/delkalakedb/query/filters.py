"""The filters of a query on each of its tables, before the query runs.

DuckDB's plan of a query says which scan reads a table, and the conditions that DuckDB
pushes down to the scan. Each table is planned with columns of its own names, such as
`t0c3`, which identify a scan. A condition is text in the plan. DuckDB translates it
once more, as the condition of a query on the table alone, to the pyarrow expression
that a dataset gets. A plan of an unexpected form yields no filters.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from delkalakedb.errors import QueryError
from delkalakedb.query.duck import Query, explained, quoted
from delkalakedb.query.sources import Source

Filters = list[ds.Expression | None]
"""The filter of each scan of a table; None for a scan of all rows."""

# a column, or a field of one
_OWN = re.compile(r'"?t(\d+)c\d+\b')


def find_filters(
    connection: Any, query: Query, tables: Mapping[str, pa.Schema]
) -> dict[str, Filters]:
    """Return the filters of the scans of each table.

    A table is left out if its scans aren't all known, and if a limit may end a scan of
    all of its rows early.

    Args:
        connection: of DuckDB; the query's tables don't exist in it yet.
        query: the query.
        tables: the columns of each table that the query names.
    """
    found: dict[str, Filters] = {}
    with suppress(QueryError), explained():
        for number, (name, schema) in enumerate(tables.items()):
            _create_stand_in(connection, number, name, schema)
        plan = _plan(connection, query)
        limited = query.limit is not None or any("LIMIT" in n["name"] for n in plan)
        for node in plan:
            if "ARROW_SCAN" not in node["name"]:
                continue
            scan = node["extra_info"]
            owner = _OWN.match(_listed(scan, "Projections")[0])
            if owner is None:
                return {}
            name = [*tables][int(owner[1])]
            conditions = _listed(scan, "Filters")
            where = _translated(connection, int(owner[1]), tables[name], conditions)
            found.setdefault(name, []).append(where)
        if limited:
            found = {n: f for n, f in found.items() if all(w is not None for w in f)}
        return found
    return {}


def _create_stand_in(
    connection: Any, number: int, name: str, schema: pa.Schema
) -> None:
    """Create a view of the table's name and columns, over columns of own names."""
    own = pa.schema(
        [field.with_name(f"t{number}c{i}") for i, field in enumerate(schema)]
    )
    connection.register(f"t{number}", Source(own, lambda *_: iter(())))
    columns = ", ".join(
        f"{mine} AS {quoted(named)}"
        for mine, named in zip(own.names, schema.names, strict=True)
    )
    connection.execute(f"CREATE TEMP VIEW {name} AS SELECT {columns} FROM t{number}")


def _plan(connection: Any, query: Query) -> list[dict[str, Any]]:
    """Return the nodes of DuckDB's plan."""
    text = f"EXPLAIN (FORMAT JSON) {query.sql}"
    rows = connection.execute(text, query.params).fetchall()
    return [node for root in json.loads(rows[0][1]) for node in _nodes(root)]


def _nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node["children"]:
        yield from _nodes(child)


def _listed(scan: dict[str, Any], key: str) -> list[str]:
    found = scan.get(key, [])
    return [found] if isinstance(found, str) else list(found)


def _translated(
    connection: Any, number: int, schema: pa.Schema, conditions: list[str]
) -> ds.Expression | None:
    """Return the conditions as an expression, as far as DuckDB translates them."""
    if not conditions:
        return None
    found: Filters = []

    def scan(
        columns: list[str], where: ds.Expression | None
    ) -> Iterator[pa.RecordBatch]:
        found.append(where)
        return iter(())

    connection.register("filtered", Source(schema, scan))
    columns = ", ".join(
        f"{quoted(name)} AS t{number}c{i}" for i, name in enumerate(schema.names)
    )
    where = " AND ".join(f"({condition})" for condition in conditions)
    with suppress(QueryError), explained():
        text = f"SELECT 1 FROM (SELECT {columns} FROM filtered) WHERE {where}"
        connection.execute(text).fetchall()
    return found[0] if found else None
