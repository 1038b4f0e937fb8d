"""The catalog's tables in queries and statements.

Spark itself runs each query. A table of the catalog becomes a DataFrame, which takes
the place of the table's name in the query's text. Everything else in the text stays as
it was written.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from itertools import pairwise
from typing import Any

import sqlglot
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import IntegralType, StructType
from sqlglot import exp
from sqlglot.errors import SqlglotError

from delkalakedb.catalog import Snapshot, open_catalog
from delkalakedb.errors import DeltaError, QueryError
from delkalakedb.model.times import from_micros, to_ms
from delkalakedb.settings import (
    Uri,
    format_uri,
    is_deltasql,
    parse_uri,
    redact,
    require_table,
)
from delkalakedb.spark.face import DeltaTable
from delkalakedb.spark.reader import Target, read
from delkalakedb.spark.session_catalog import catalog_of, tables_of, uri_at
from delkalakedb.spark.sparksql.statement import (
    Cursor,
    Name,
    Part,
    Place,
    Statement,
    column_path,
    prefixed,
    whole_name,
)

_SCHEMAS = (("default",), ("spark_catalog", "default"))
_CHANGES = "table_changes"
# tokens after the WHERE of a query without joins
_AFTER_WHERE = (
    *("GROUP BY", "HAVING", "ORDER BY", "SORT BY", "CLUSTER BY", "DISTRIBUTE BY"),
    *("LIMIT", "OFFSET", "WINDOW", "UNION", "EXCEPT", "INTERSECT", "MINUS", "QUALIFY"),
    *("LATERAL", "SELECT", "|>", ")"),
)
_BEFORE_ALIAS = ("WHERE", ")", ",", "|>")
_VERSIONS = ("VERSION AS OF", "SYSTEM_VERSION AS OF")
_MOMENTS = ("TIMESTAMP AS OF", "SYSTEM_TIME AS OF")
_TYPES = ("TIMESTAMP", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ", "DATE")


@dataclass(frozen=True)
class Session:
    """A Spark session and its catalog, as a statement sees them."""

    spark: SparkSession
    storage_options: Mapping[str, str] | None = field(default=None, repr=False)

    @cached_property
    def catalog(self) -> Uri | None:
        """The URI of the session's catalog, or None if there is none."""
        try:
            return catalog_of(self.spark)
        except DeltaError:
            return None

    @cached_property
    def versions(self) -> Mapping[str, int]:
        """The versions of the catalog's tables, all as they were at one time."""
        catalog = catalog_of(self.spark) if self.catalog is None else self.catalog
        return {table.name: table.version for table in tables_of(catalog)}

    def uri(self, name: Name) -> Uri:
        """Return the URI of a table, which may be a new one."""
        if (place := name.place) is not None:
            if not is_deltasql(place):
                return uri_at(self.spark, place)
            uri = parse_uri(place)
            require_table(uri)
            return uri
        return catalog_of(self.spark).with_table(self._known(name) or _plain(name))

    def table(self, name: Name, alias: str | None = None) -> DeltaTable:
        """Return a table, under an alias if one is given."""
        uri = format_uri(self.uri(name))
        table = DeltaTable.forUri(self.spark, uri, self.storage_options)
        return table if alias is None else table.alias(alias)

    @cached_property
    def _latest(self) -> dict[Uri, Snapshot]:
        return {}

    def snapshot(
        self, name: Name, version: int | None = None, at_ms: int | None = None
    ) -> Snapshot:
        """Return a table at a version or a time, or at one version for all calls."""
        uri = self.uri(name)
        table = require_table(uri)
        if version is not None or at_ms is not None:
            return open_catalog(uri).snapshot(table, version, timestamp_ms=at_ms)
        if uri not in self._latest:
            known = self.versions.get(table) if name.place is None else None
            self._latest[uri] = open_catalog(uri).snapshot(table, known)
        return self._latest[uri]

    def is_table(self, name: Name) -> bool:
        """Return whether a query means a table of the catalog by `name`.

        As in Spark, a temporary view hides a table of its name.
        """
        if name.place is not None:
            return True
        if self.catalog is None or self._known(name) is None:
            return False
        return len(name.parts) > 1 or not self._is_view(name.alias)

    def _known(self, name: Name) -> str | None:
        """Return the table of a name, or the only one that differs in case."""
        wanted = _plain(name)
        if wanted in self.versions:
            return wanted
        alike = [known for known in self.versions if known.lower() == wanted.lower()]
        return alike[0] if len(alike) == 1 else None

    def _is_view(self, name: str) -> bool:
        catalog, quoted = self.spark.catalog, column_path(Name((name,)))
        return catalog.tableExists(quoted) and catalog.getTable(quoted).isTemporary

    def value(self, part: Part, kind: str) -> Any:
        """Return the value of an expression without columns, as Spark computes it."""
        query = f"SELECT CAST(({part.text}) AS {kind})"
        if kind == "TIMESTAMP":
            query = f"SELECT unix_micros(CAST(({part.text}) AS TIMESTAMP))"
        ((value,),) = self.spark.sql(query).collect()
        if value is None:
            raise DeltaError(
                f"{redact(part.raw)} is no {kind.lower()}, or null; write a time like "
                "'2026-01-31 12:30:00'"
            )
        return value

    def moment(self, clause: tuple[str, Part] | None) -> tuple[int | None, int | None]:
        """Return the version and the time of a clause that `take_version` found."""
        if clause is None:
            return None, None
        kind, part = clause
        value = self.value(part, kind)
        if kind == "BIGINT":
            return int(value), None
        return None, to_ms(from_micros(value))

    def empty(self) -> DataFrame:
        """Return the result of statements without rows."""
        return self.spark.createDataFrame([], StructType([]))

    def text(self, part: Part) -> str:
        """Return the value of a text in quotes."""
        (token, *more) = part.tokens
        if not more and not {"\\", token.text[0]} & set(token.text[1:-1]):
            return token.text[1:-1] if token.text[0] in "'\"" else token.text[2:-1]
        return str(self.value(part, "STRING"))


@dataclass(frozen=True)
class _Relation:
    """A table in a query.

    Args:
        name: the table's name.
        place: where the name, and the version after it, are in the text.
        alias_at: where an alias belongs; None if there is one.
        version: the version in the query.
        at_ms: the time in the query.
        where: the condition on all rows that the query reads from the table.
    """

    name: Name
    place: Place
    alias_at: int | None
    version: int | None = None
    at_ms: int | None = None
    where: str | None = None
    alias: str | None = None
    changes: tuple[Any, ...] | None = None


def run_query(session: Session, query: Part) -> DataFrame:
    """Return the rows of a query over tables of the catalog, views and so on."""
    if query.tokens and query.tokens[0].word == "TABLE":
        rest = Part(query.statement, query.first + 1, query.stop)
        query = prefixed("SELECT * FROM", rest)
    relations = sorted(_relations(session, query), key=lambda found: found.place)
    if not relations:
        return session.spark.sql(query.raw, args=query.args())
    frames: dict[str, DataFrame] = {}
    keys: dict[tuple[Any, ...], str] = {}
    edits: dict[Place, str] = {}
    for found in relations:
        key = (found.name, found.version, found.at_ms, found.where, found.changes)
        if key not in keys:
            keys[key] = f"t{len(keys)}"
            frames[keys[key]] = _rows(session, found)
        edits[found.place] = f"{{{keys[key]}}}"
        if found.alias_at is not None:
            end = found.place[1]
            alias = _unformatted(f" AS {column_path(Name((found.name.alias,)))} ")
            if found.alias_at == end:
                edits[found.place] += alias
            else:
                edits[found.alias_at, found.alias_at] = alias
    places = sorted(edits)
    pieces = [_unformatted(text) for text in query.between(places)]
    texts = [*(edits[place] for place in places), ""]
    text = "".join(a + b for a, b in zip(pieces, texts, strict=True))
    return session.spark.sql(text, args=query.args(places), **frames)


def _unformatted(text: str) -> str:
    """Return `text` so that `str.format` leaves it as it is."""
    return text.replace("{", "{{").replace("}", "}}")


def _rows(session: Session, found: _Relation) -> DataFrame:
    if found.changes is not None:
        return _changed_rows(session, found.name, *found.changes)
    snapshot = session.snapshot(found.name, found.version, found.at_ms)
    options = session.storage_options
    target = Target(session.spark, snapshot, found.alias, options)
    return target.rows(found.where)


def _changed_rows(
    session: Session,
    name: Name,
    first: int | datetime,
    last: int | datetime | None = None,
) -> DataFrame:
    """Return the change data feed of a table between two versions or times."""
    return read(
        session.spark,
        format_uri(session.uri(name)),
        changes_from=first,
        changes_to=last,
        storage_options=session.storage_options,
    )


def _relations(session: Session, query: Part) -> Iterator[_Relation]:
    words = {token.word for token in query.tokens}
    if not words & {"FROM", "JOIN", "TABLE"}:
        return
    for node in _parsed(query).find_all(exp.Table):
        if isinstance(node.this, exp.Anonymous):
            if node.this.name.lower() == _CHANGES:
                yield _table_changes(session, query, node)
        elif _is_named(node):
            parts = tuple(part.name for part in node.parts)
            name = Name(parts)
            local = len(parts) == 1 and name.alias.lower() in _local_names(node)
            if not local and session.is_table(name):
                yield _relation(session, query, node, name)


def reads_table(session: Session, query: Part, name: Name) -> bool:
    """Return whether a query reads the newest version of a table."""
    uri = session.uri(name)
    return any(
        found.version is None
        and found.at_ms is None
        and found.changes is None
        and session.uri(found.name) == uri
        for found in _relations(session, query)
    )


def _is_named(node: exp.Table) -> bool:
    return all(isinstance(p, exp.Identifier) and "end" in p.meta for p in node.parts)


def _parsed(query: Part) -> Any:
    try:
        return sqlglot.parse_one(query.raw, dialect="spark")
    except (SqlglotError, RecursionError) as error:
        # without sqlglot's text, which may show a part of a password
        found = getattr(error, "errors", None) or [{}]
        line, said = found[0].get("line", 1), found[0].get("description", "")
        raise QueryError(
            f"can't find the tables in the query (line {line}: {said}); read the "
            "tables with delkalakedb.spark.read, make them views with "
            "createOrReplaceTempView, and call spark.sql"
        ) from None


def _local_names(node: Any) -> Iterator[str]:
    """Yield the names of the common table expressions that `node` may use."""
    child, parent = node, node.parent
    while parent is not None:
        clause = parent.args.get("with_") or parent.args.get("with")
        if isinstance(parent, exp.With):
            for expression in parent.expressions:
                if expression is child and not parent.args.get("recursive"):
                    break
                yield expression.alias.lower()
                if expression is child:
                    break
        elif clause is not None and clause is not child:
            yield from (expression.alias.lower() for expression in clause.expressions)
        child, parent = parent, parent.parent


def _relation(session: Session, query: Part, node: exp.Table, name: Name) -> _Relation:
    start = query.start + min(part.meta["start"] for part in node.parts)
    end = query.start + max(part.meta["end"] for part in node.parts) + 1
    cursor = _after(query, end)
    before = _before(query, start)
    version, at_ms = session.moment(take_version(cursor))
    stop = _end(cursor, end)
    sampled = cursor.take("TABLESAMPLE")
    if sampled:
        cursor.brackets()
        if cursor.take("REPEATABLE"):
            cursor.brackets()
    alias_at = None if node.alias else _end(cursor, stop)
    where = None
    if before == "FROM" and not sampled:
        cursor.alias(*_BEFORE_ALIAS, *(w.split()[0] for w in _AFTER_WHERE))
        if cursor.take("WHERE"):
            where = _condition(cursor.until(*_AFTER_WHERE))
    alias = node.alias or name.alias
    return _Relation(name, (start, stop), alias_at, version, at_ms, where, alias)


def _condition(part: Part) -> str | None:
    try:
        return part.text if part else None
    except QueryError:
        # an argument without a literal: Spark gets it, but no file is skipped
        return None


def _table_changes(session: Session, query: Part, node: exp.Table) -> _Relation:
    start = query.start + node.this.meta["start"]
    cursor = _after(query, query.start + node.this.meta["end"] + 1)
    given = cursor.brackets().split()
    if not 2 <= len(given) <= 3:
        raise QueryError(
            f"{_CHANGES} takes a table's name as text, and the first and the last "
            "version or time"
        )
    name = text_name(session.text(_string(given[0])))
    bounds = tuple(_bound(session, part) for part in given[1:])
    end = _end(cursor, start)
    alias_at = None if node.alias else end
    return _Relation(name, (start, end), alias_at, changes=bounds)


def _string(part: Part) -> Part:
    cursor = Cursor(part)
    found = cursor.string()
    cursor.finish()
    return found


def _bound(session: Session, part: Part) -> int | datetime:
    """Return the version or the time that an expression without columns gives."""
    (field,) = session.spark.sql(f"SELECT ({part.text}) AS value").schema
    if isinstance(field.dataType, IntegralType):
        return int(session.value(part, "BIGINT"))
    return from_micros(session.value(part, "TIMESTAMP"))


def take_version(cursor: Cursor) -> tuple[str, Part] | None:
    """Take `VERSION AS OF` or `TIMESTAMP AS OF`; return its type and its value."""
    at = cursor.at
    cursor.take("FOR")
    if cursor.take(*_VERSIONS):
        return "BIGINT", _operand(cursor)
    if cursor.take(*_MOMENTS):
        return "TIMESTAMP", _operand(cursor)
    cursor.at = at
    return None


def _operand(cursor: Cursor) -> Part:
    """Take a literal, a parameter, a call of a function, or parentheses."""
    first = cursor.at
    if cursor.sees("("):
        cursor.brackets()
    elif cursor.token.kind == "string":
        cursor.string()
    elif cursor.token.kind in ("number", "marker"):
        cursor.at += 1
    elif cursor.take(":"):
        cursor.identifier()
    elif cursor.token.word in _TYPES:
        cursor.identifier()
        cursor.string()
    else:
        cursor.identifier()
        if not cursor.sees("("):
            cursor.refuse("a time in quotes, or parentheses around another expression,")
        cursor.brackets()
    if not cursor.done and cursor.token.text in ("+", "-"):
        cursor.refuse("parentheses around the time, not an operator,")
    return Part(cursor.statement, first, cursor.at)


def _after(query: Part, place: int) -> Cursor:
    """Return a cursor at the first token after a place."""
    tokens = query.statement.tokens
    first = next(
        (i for i in range(query.first, query.stop) if tokens[i].start >= place),
        query.stop,
    )
    return Cursor(Part(query.statement, first, query.stop))


def _before(query: Part, place: int) -> str:
    """Return the keyword before a place."""
    found = [token.word for token in query.tokens if token.end <= place]
    return found[-1] if found else ""


def _end(cursor: Cursor, otherwise: int) -> int:
    """Return where the last token that was taken ends."""
    if cursor.at == cursor.first:
        return otherwise
    return cursor.statement.tokens[cursor.at - 1].end


def text_name(text: str) -> Name:
    """Return the name of a table that is written in a text."""
    return whole_name(Statement(text).whole)


def _plain(name: Name) -> str:
    """Return a table's name in the catalog, without Spark's own schema."""
    parts = name.parts
    if tuple(part.lower() for part in parts[:-1]) in _SCHEMAS:
        parts = parts[-1:]
    return ".".join(parts)


def check_no_query(part: Part, what: str) -> None:
    """Raise `QueryError` if a condition or a value contains a query."""
    words = [token.word for token in part.tokens]
    for first, second in pairwise(words):
        if first == "(" and second in ("SELECT", "WITH", "FROM", "VALUES"):
            raise QueryError(
                f"a subquery isn't supported in the {what}; use MERGE INTO with the "
                "subquery as its source"
            )
