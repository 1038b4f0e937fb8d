"""A query's text, and the tables that it reads.

DuckDB parses it and says what it found as JSON; so names in texts, aliases and common
table expressions aren't mistaken for tables. Only queries have such a form.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from delkalakedb.errors import QueryError

__all__ = ["Reference", "rewrite"]

_NAMES = ("catalog_name", "schema_name", "table_name")


@dataclass(frozen=True)
class Reference:
    """A table that a query reads, and the version or the time it wants."""

    name: str
    version: int | None = None
    timestamp_ms: int | None = None


def rewrite(connection: Any, sql: str, register: Callable[[Reference], str]) -> str:
    """The query with each table under the name that `register` gives it."""
    tree = _parsed(connection, sql)
    if len(tree["statements"]) != 1:
        raise QueryError("give one query; several, each with its ;, are for the shell")
    _Tables(connection, register).replace(tree, frozenset())
    return _text(connection, tree)


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
    ((value,),) = connection.sql(sql, params=list(params)).fetchall()
    return value


class _Tables:
    """The tables of one query, as they are come upon."""

    def __init__(self, connection: Any, register: Callable[[Reference], str]) -> None:
        self._connection = connection
        self._register = register

    def replace(self, node: Any, local: frozenset[str]) -> None:
        """Rename the tables below a node; `local` names are the query's own."""
        if isinstance(node, list):
            for item in node:
                self.replace(item, local)
        elif isinstance(node, dict):
            if isinstance(node.get("cte_map"), dict):
                local = self._expressions(node["cte_map"], local)
            self._visit(node, local)

    def _expressions(
        self, found: dict[str, Any], local: frozenset[str]
    ) -> frozenset[str]:
        for item in found.get("map", []):
            # It may name itself and those before it.
            local |= {item["key"].lower()}
            self.replace(item["value"], local)
        return local

    def _visit(self, node: dict[str, Any], local: frozenset[str]) -> None:
        kind = node.get("type")
        if kind == "SHOW_REF" and not node.get("query"):
            raise QueryError(
                "SHOW isn't known here; SELECT name FROM deltasql.tables lists tables"
            )
        if kind == "BASE_TABLE":
            self._rename(node, local)
        for name, value in node.items():
            if name != "cte_map":
                self.replace(value, local)

    def _rename(self, node: dict[str, Any], local: frozenset[str]) -> None:
        path = [node[name] for name in _NAMES if node.get(name)]
        if len(path) == 1 and path[0].lower() in local:
            return
        at = self._at(node.pop("at_clause", None))
        name = self._register(Reference(".".join(path), **at))
        for key in (*_NAMES, "qualified_name"):
            node.pop(key, None)
        node |= {"table_name": name, "alias": node.get("alias") or path[-1]}

    def _at(self, clause: dict[str, Any] | None) -> dict[str, int]:
        if not clause:
            return {}
        tree = _parsed(self._connection, "SELECT 1")
        tree["statements"][0]["node"]["select_list"] = [clause["expr"]]
        value = _text(self._connection, tree)
        if clause["unit"] == "VERSION":
            return {"version": self._number(f"SELECT ({value})::BIGINT")}
        time = f"SELECT epoch_ms(({value})::TIMESTAMPTZ)"
        return {"timestamp_ms": self._number(time)}

    def _number(self, sql: str) -> int:
        value = _one(self._connection, sql)
        if value is None:
            raise QueryError("AT (...) needs a version or a time, not NULL")
        return int(value)
