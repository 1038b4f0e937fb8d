"""SQL queries over the tables of a catalog, run by DuckDB.

DuckDB has its own database in memory, and no access to the network. It plans a query
without access to any file, and runs it with access to the folders of the tables that
the query names. So a query can read only the catalog's tables and metadata
(`deltasql.tables` and so on).
Each table is read at one version, all of them as they were at one time, unless `AT
(VERSION => ...)` names another version.

DuckDB itself parses a query, to JSON. So names in texts, aliases and common table
expressions aren't mistaken for tables. DuckDB has JSON only for queries, not for other
statements.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING, Any

from delkalakedb.catalog import Catalog
from delkalakedb.errors import QueryError, TableNotFoundError, did_you_mean
from delkalakedb.query.duck import (
    BATCH_ROWS,
    Query,
    Selected,
    explained,
    run_query,
    sealed_duckdb,
)

if TYPE_CHECKING:
    from delkalakedb.query.parquet import ParquetFiles
    from delkalakedb.query.sources import Source

Params = Sequence[Any] | Mapping[str, Any]
_META = "deltasql."
_NAME = r'(?:[^\W\d]\w*|"(?:[^"]|"")+")'
_GAP = r"(?:\s|--[^\n]*\n|/\*.*?\*/)+"
# Texts, comments and other quoted names are matched, too, so that nothing in them is
# replaced.
_TRAVEL = re.compile(
    r"""--[^\n]* | /\*.*?\*/ | \$(?P<tag>\w*)\$.*?\$(?P=tag)\$
    | (?<!\w)e'(?:[^'\\]|\\.|'')*' | '(?:[^']|'')*'
    | (?: (?P<table>NAME(?:\.NAME)*)@(?P<version>\d+)\b
      | (?:\bFOR(?:GAP))?\b(?:SYSTEM_)?(?P<unit>VERSION|TIME(?:STAMP)?)
        (?:GAP)AS(?:GAP)OF(?:GAP)(?P<value>\d+|'(?:[^']|'')*') )
      (?P<alias>(?:GAP)AS(?:GAP)NAME(?:\s*\([^()]*\))?|(?:GAP)(?P<word>NAME))?
    | "(?:[^"]|"")*" """.replace("GAP", _GAP).replace("NAME", _NAME),
    re.DOTALL | re.IGNORECASE | re.VERBOSE,
)
_KEYWORDS = """
    SELECT keyword_name FROM duckdb_keywords()
    WHERE keyword_category IN ('reserved', 'type_function')
"""
_NAMES = ("catalog_name", "schema_name", "table_name")


@contextmanager
def select(
    catalog: Catalog,
    sql: str,
    *,
    params: Params | None = None,
    limit: int | None = None,
    batch_rows: int = BATCH_ROWS,
    storage_options: Mapping[str, str] | None = None,
) -> Iterator[Selected]:
    """Run a query and yield its rows.

    Args:
        catalog: the catalog whose tables the query names.
        sql: a SELECT, WITH, FROM, VALUES, DESCRIBE or SUMMARIZE, in DuckDB's SQL.
        params: values for the placeholders, in their order or by name.
        limit: the largest number of rows.
        batch_rows: the approximate number of rows in a batch.
        storage_options: of the tables' object stores.

    Raises:
        QueryError: the query can't be parsed or bound, or fails on a row.
        TableNotFoundError: the query names a table that the catalog doesn't have.
    """
    # Not a name that the query itself has, for a common table expression.
    prefix = next(p for n in count() if (p := f"dk{'_' * n}") not in sql.lower())
    tables = _Tables(catalog, storage_options, prefix)
    with sealed_duckdb() as connection:
        with explained():
            text = rewrite(connection, sql, tables.name)
        query = Query(text, params, limit=limit, batch_rows=batch_rows)
        files = tables.plan(connection, query)
    folders = frozenset(found.folder for found in files.values())
    with sealed_duckdb(folders) as connection:
        with explained():
            tables.register(connection, files)
        with run_query(connection, query, tables.sources) as rows:
            yield rows


class _Tables:
    """The tables of one query; each version of a table is opened once."""

    def __init__(
        self,
        catalog: Catalog,
        storage_options: Mapping[str, str] | None,
        prefix: str,
    ) -> None:
        self._catalog = catalog
        self._storage_options = storage_options
        self._prefix = prefix
        self._opened: dict[Reference, Source] = {}

    @cached_property
    def _versions(self) -> dict[str, int]:
        # One statement, so that a transaction over several tables is seen whole.
        return {
            name: version for name, (version, _) in self._catalog._versions().items()
        }

    def name(self, reference: Reference) -> str:
        """Return the name that a table has in DuckDB."""
        if reference not in self._opened:
            self._opened[reference] = self._open(reference)
        return f"{self._prefix}{1 + list(self._opened).index(reference)}"

    def plan(self, connection: Any, query: Query) -> dict[str, ParquetFiles]:
        """Return the files of those tables whose files DuckDB itself may read."""
        named = {self.name(reference): s for reference, s in self._opened.items()}
        if not any(source.is_plain for source in named.values()):
            return {}
        from delkalakedb.query.filters import find_filters

        schemas = {name: source.schema for name, source in named.items()}
        filters = find_filters(connection, query, schemas)
        plans = {name: named[name].parquet(found) for name, found in filters.items()}
        return {name: files for name, files in plans.items() if files is not None}

    def register(self, connection: Any, files: Mapping[str, ParquetFiles]) -> None:
        """Create the tables in DuckDB; pyarrow reads those without files."""
        for reference, source in self._opened.items():
            name = self.name(reference)
            if name in files:
                files[name].create_view(connection, name, source.schema)
            else:
                connection.register(name, source)

    @property
    def sources(self) -> Collection[Source]:
        """The sources of the tables."""
        return self._opened.values()

    def _open(self, reference: Reference) -> Source:
        # Imported here, because datasets load pandas; a query may name no table.
        from delkalakedb.query.sources import version_source

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
        from delkalakedb.query.metatables import METATABLES, meta_source

        name = reference.name.lower().removeprefix(_META)
        if name == reference.name.lower() or name not in METATABLES:
            raise self._unknown(reference.name)
        if reference != Reference(reference.name):
            raise QueryError(
                f"{reference.name} has no versions, so AT (...) can't be used"
            )
        return meta_source(self._catalog, name)

    def _find(self, name: str) -> str | None:
        """Return the table of a name, or the only one that differs from it in case."""
        if name in self._versions:
            return name
        same = [n for n in self._versions if n.lower() == name.lower()]
        return same[0] if len(same) == 1 else None

    def _unknown(self, name: str) -> TableNotFoundError:
        from delkalakedb.query.metatables import METATABLES

        there = [*self._versions, *(_META + name for name in METATABLES)]
        near = did_you_mean(name, there) or f"; there are {', '.join(there[:10])}."
        return TableNotFoundError(
            f"no table {name}{near} SELECT name FROM {_META}tables lists them all"
        )


@dataclass(frozen=True)
class Reference:
    """A table that a query reads, and the version or the time in its AT clause."""

    name: str
    version: int | None = None
    timestamp_ms: int | None = None


def rewrite(connection: Any, sql: str, register: Callable[[Reference], str]) -> str:
    """Return the query with the name that `register` returns for each table."""
    tree = _parsed(connection, _with_at(connection, sql))
    if len(tree["statements"]) != 1:
        raise QueryError("give one query; the shell runs several, each ending in ;")
    for node in _tables_in(tree, frozenset()):
        path, at = _path(node), _at(connection, node.pop("at_clause", None))
        name = register(Reference(".".join(path), **at))
        for key in (*_NAMES, "qualified_name"):
            node.pop(key, None)
        node |= {"table_name": name, "alias": node.get("alias") or path[-1]}
    return _text(connection, tree)


def _with_at(connection: Any, sql: str) -> str:
    """Return the query with DuckDB's AT clause for other ways to name a version.

    These are `table@3`, and `VERSION AS OF` and `TIMESTAMP AS OF`, as Spark has them.
    """

    def replaced(found: re.Match[str]) -> str:
        if not (found["version"] or found["unit"]):
            return found[0]
        alias, rest = found["alias"] or "", ""
        if (found["word"] or "").lower() in keywords:
            # The next clause of the query, such as WHERE.
            alias, rest = rest, alias
        unit = "TIMESTAMP" if (found["unit"] or "")[:1] in ("t", "T") else "VERSION"
        value = found["version"] or found["value"]
        return f"{found['table'] or ''}{alias} AT ({unit} => {value}){rest}"

    if not any(m["version"] or m["unit"] for m in _TRAVEL.finditer(sql)):
        return sql
    keywords = {word for (word,) in connection.sql(_KEYWORDS).fetchall()}
    return _TRAVEL.sub(replaced, sql)


def _parsed(connection: Any, sql: str) -> dict[str, Any]:
    answer = "SELECT json_serialize_sql(?::VARCHAR)"
    tree: dict[str, Any] = json.loads(_one(connection, answer, sql))
    if not tree["error"]:
        return tree
    if tree["error_type"] == "parser":
        raise QueryError(f"can't parse the query: {tree['error_message']}")
    raise QueryError(
        "only queries are run: SELECT, WITH, FROM, VALUES, DESCRIBE and SUMMARIZE"
    )


def _text(connection: Any, tree: dict[str, Any]) -> str:
    answer = "SELECT json_deserialize_sql(?::JSON)"
    return str(_one(connection, answer, json.dumps(tree)))


def _one(connection: Any, sql: str, *params: Any) -> Any:
    ((value,),) = connection.execute(sql, list(params)).fetchall()
    return value


def _tables_in(node: Any, local: frozenset[str]) -> Iterator[dict[str, Any]]:
    """Yield the tables below a node, but not the `local` names of the query."""
    if isinstance(node, list):
        for item in node:
            yield from _tables_in(item, local)
    if not isinstance(node, dict):
        return
    if node.get("type") == "RECURSIVE_CTE_NODE":
        local |= {node["cte_name"].lower()}
    if isinstance(expressions := node.get("cte_map"), dict):
        for item in expressions.get("map", []):
            # An expression may name those before it, and itself if it is recursive.
            yield from _tables_in(item["value"], local)
            local |= {item["key"].lower()}
    if node.get("type") == "SHOW_REF" and not node.get("query"):
        raise QueryError(
            "SHOW isn't supported; SELECT name FROM deltasql.tables lists tables"
        )
    if node.get("type") == "BASE_TABLE":
        path = _path(node)
        # Only the catalog's tables have versions.
        if len(path) > 1 or node.get("at_clause") or path[0].lower() not in local:
            yield node
    for name, value in node.items():
        if name != "cte_map":
            yield from _tables_in(value, local)


def _path(node: dict[str, Any]) -> list[str]:
    return [node[name] for name in _NAMES if node.get(name)]


def _at(connection: Any, clause: dict[str, Any] | None) -> dict[str, int]:
    """Return the version or the time of an AT clause, whose value may be computed."""
    if not clause:
        return {}
    if '"PARAMETER"' in json.dumps(clause["expr"]):
        raise QueryError("a version or a time is written in the query; no ? or $1")
    tree = _parsed(connection, "SELECT 1")
    tree["statements"][0]["node"]["select_list"] = [clause["expr"]]
    value, name = f"({_text(connection, tree)})", "version"
    if clause["unit"] == "VERSION":
        found = _one(connection, f"SELECT {value}::BIGINT")
    else:
        found = _one(connection, f"SELECT epoch_ms({value}::TIMESTAMPTZ)")
        name = "timestamp_ms"
    if found is None:
        raise QueryError("AT (...) needs a version or a time, not NULL")
    return {name: int(found)}
