"""Statements that describe and maintain tables, such as OPTIMIZE."""

import fnmatch
import re
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql import DataFrame

from delkalakedb.errors import DeltaError, QueryError
from delkalakedb.model.actions import known
from delkalakedb.settings import is_deltasql
from delkalakedb.spark.face import DeltaTable
from delkalakedb.spark.schemas import table_schema
from delkalakedb.spark.sparksql.relations import (
    Session,
    check_no_query,
    run_query,
    take_version,
)
from delkalakedb.spark.sparksql.statement import Cursor, Name, Part, prefixed

_NAMESPACE = "default"
_COLUMNS = "col_name STRING, data_type STRING, comment STRING"
_TABLES = "namespace STRING, tableName STRING, isTemporary BOOLEAN"
_PROPERTIES = "key STRING, value STRING"


def run_describe(session: Session, cursor: Cursor) -> DataFrame:
    """Run `DESCRIBE {HISTORY | DETAIL | [TABLE] [EXTENDED]} table` or a query."""
    if cursor.take("HISTORY"):
        table = session.table(_place(session, cursor))
        limit = int(cursor.number()) if cursor.take("LIMIT") else None
        cursor.finish()
        return table.history(limit)
    if cursor.take("DETAIL"):
        table = session.table(_place(session, cursor))
        cursor.finish()
        return table.detail()
    query = cursor.take("QUERY")
    if query or any(map(cursor.sees, ("SELECT", "WITH", "VALUES", "FROM"))):
        schema = run_query(session, cursor.rest()).schema
        rows = [(f.name, f.dataType.simpleString(), None) for f in schema]
        return session.spark.createDataFrame(rows, _COLUMNS)
    cursor.take("TABLE")
    extended = bool(cursor.take("EXTENDED", "FORMATTED"))
    name = cursor.name()
    cursor.finish()
    described = list(_described(session, name, extended))
    return session.spark.createDataFrame(described, _COLUMNS)


def _described(
    session: Session, name: Name, extended: bool
) -> Iterator[tuple[str, str, str | None]]:
    snapshot = session.snapshot(name)
    table = snapshot.table
    fields = {
        field.name: (
            field.name,
            field.dataType.simpleString(),
            field.metadata.get("comment"),
        )
        for field in table_schema(snapshot.metadata)
    }
    yield from fields.values()
    if table.partition_columns:
        yield ("# Partition Information", "", "")
        yield ("# col_name", "data_type", "comment")
        yield from (fields[column] for column in table.partition_columns)
    if extended:
        properties = sorted((known(snapshot.metadata.configuration) or {}).items())
        listed = ",".join(f"{key}={value}" for key, value in properties)
        yield ("", "", "")
        yield ("# Detailed Table Information", "", "")
        yield ("Name", table.name, "")
        yield ("Type", "MANAGED", "")
        if table.description:
            yield ("Comment", table.description, "")
        yield ("Location", table.location, "")
        yield ("Provider", "delta", "")
        yield ("Table Properties", f"[{listed}]", "")


def run_show(session: Session, cursor: Cursor) -> DataFrame:
    """Run `SHOW {TABLES | TBLPROPERTIES | COLUMNS}`."""
    kind = cursor.need("TABLES", "TBLPROPERTIES", "COLUMNS")
    if kind == "TABLES":
        return _tables(session, cursor)
    if kind == "COLUMNS":
        cursor.need("IN", "FROM")
        name = cursor.name()
        cursor.finish()
        names = table_schema(session.snapshot(name).metadata).names
        return session.spark.createDataFrame([(n,) for n in names], "col_name STRING")
    name = cursor.name()
    table = session.table(name)
    key = None
    if cursor.sees("("):
        inside = Cursor(cursor.brackets())
        quoted = inside.token.kind == "string"
        key = session.text(inside.string()) if quoted else str(inside.name())
        inside.finish()
    cursor.finish()
    properties = _properties(table)
    if key is not None:
        said = f"Table spark_catalog.default.{name.alias} does not have property: {key}"
        properties = {key: properties.get(key, said)}
    rows = sorted(properties.items())
    return session.spark.createDataFrame(rows, _PROPERTIES)


def _properties(table: DeltaTable) -> dict[str, str]:
    """Return a table's properties as Delta Spark lists them, with the protocol."""
    (row,) = table.detail().collect()
    features = {f"delta.feature.{name}": "supported" for name in row.tableFeatures}
    return {
        **row.properties,
        "delta.minReaderVersion": str(row.minReaderVersion),
        "delta.minWriterVersion": str(row.minWriterVersion),
        **(features if row.minWriterVersion >= 7 else {}),
    }


def _tables(session: Session, cursor: Cursor) -> DataFrame:
    if cursor.take("IN", "FROM"):
        schema = cursor.name().dotted.lower()
        if schema.removeprefix("spark_catalog.") != _NAMESPACE:
            raise DeltaError(
                f"{schema}: a catalog has one schema, {_NAMESPACE}; use SHOW TABLES"
            )
    pattern = "*"
    cursor.take("LIKE")
    if not cursor.done:
        pattern = session.text(cursor.string())
    cursor.finish()
    views = session.spark.sql("SHOW TABLES").filter("isTemporary").collect()
    rows = [
        *((_NAMESPACE, name, False) for name in session.versions),
        *(("", row.tableName, True) for row in views),
    ]
    found = sorted(row for row in rows if _matches(row[1], pattern))
    return session.spark.createDataFrame(found, _TABLES)


def _matches(name: str, pattern: str) -> bool:
    """Return whether a name matches a pattern with `*` and `|`, in any case."""
    choices = pattern.lower().split("|")
    quoted = (re.sub(r"([?\[])", r"[\1]", choice.strip()) for choice in choices)
    return any(fnmatch.fnmatchcase(name.lower(), choice) for choice in quoted)


def _place(session: Session, cursor: Cursor) -> Name:
    """Take a table's name, or its location in quotes."""
    if cursor.token.kind != "string":
        return cursor.name()
    place = session.text(cursor.string())
    return Name(("deltasql" if is_deltasql(place) else "delta", place))


def run_optimize(session: Session, cursor: Cursor) -> DataFrame:
    """Run `OPTIMIZE table [WHERE condition] [ZORDER BY (columns)]`."""
    builder = session.table(_place(session, cursor)).optimize()
    if cursor.take("FULL"):
        raise QueryError("OPTIMIZE FULL isn't supported; leave FULL out")
    if cursor.take("WHERE"):
        condition = cursor.until("ZORDER BY")
        check_no_query(condition, "condition of OPTIMIZE")
        builder = builder.where(condition.text)
    columns: Sequence[Name] = ()
    if cursor.take("ZORDER BY"):
        if cursor.sees("("):
            columns = cursor.names()
        else:
            columns = [cursor.name()]
            while cursor.take(","):
                columns.append(cursor.name())
    cursor.finish()
    if columns:
        return builder.executeZOrderBy([column.dotted for column in columns])
    return builder.executeCompaction()


def run_reorg(session: Session, cursor: Cursor) -> DataFrame:
    """Run `REORG TABLE table [WHERE condition] APPLY (PURGE)`."""
    cursor.need("TABLE")
    builder = session.table(_place(session, cursor)).optimize()
    if cursor.take("WHERE"):
        condition = cursor.until("APPLY")
        check_no_query(condition, "condition of REORG")
        builder = builder.where(condition.text)
    cursor.need("APPLY")
    inside = Cursor(cursor.brackets())
    inside.need("PURGE")
    inside.finish()
    cursor.finish()
    return builder.executePurge()


def run_vacuum(session: Session, cursor: Cursor) -> DataFrame:
    """Run `VACUUM table [LITE | FULL] [RETAIN n HOURS] [DRY RUN]`."""
    cursor.take("TABLE")
    table = session.table(_place(session, cursor))
    options: dict[str, Any] = {}
    while not cursor.done:
        match cursor.need("RETAIN", "DRY RUN", "LITE", "FULL", "USING INVENTORY"):
            case "RETAIN":
                options["retentionHours"] = cursor.number()
                cursor.need("HOURS")
            case "DRY RUN":
                options["dryRun"] = True
            case "USING INVENTORY":
                options["inventory"] = _inventory(session, cursor)
            case word:
                options["lite"] = word == "LITE"
    found = table.vacuum(**options)
    (detail,) = table.detail().collect()
    root = detail.location.rstrip("/")
    paths = [(root,)]
    if options.get("dryRun"):
        paths = [(f"{root}/{path}",) for (path,) in found.collect()]
    return session.spark.createDataFrame(paths, "path STRING")


def _inventory(session: Session, cursor: Cursor) -> DataFrame:
    """Take the table or the query of an inventory."""
    if cursor.sees("("):
        return run_query(session, cursor.brackets())
    first = cursor.at
    cursor.name()
    name = Part(cursor.statement, first, cursor.at)
    return run_query(session, prefixed("SELECT * FROM", name))


def run_restore(session: Session, cursor: Cursor) -> DataFrame:
    """Run `RESTORE [TABLE] table [TO] {VERSION | TIMESTAMP} AS OF value`."""
    cursor.take("TABLE")
    table = session.table(_place(session, cursor))
    cursor.take("TO")
    clause = take_version(cursor)
    if clause is None:
        cursor.refuse("VERSION AS OF or TIMESTAMP AS OF")
    cursor.finish()
    kind, part = clause
    if kind == "BIGINT":
        return table.restoreToVersion(int(session.value(part, kind)))
    return table.restoreToTimestamp(session.value(part, "STRING"))


def run_generate(session: Session, cursor: Cursor) -> DataFrame:
    """Run `GENERATE symlink_format_manifest FOR TABLE table`."""
    mode = cursor.identifier()
    cursor.need("FOR TABLE")
    table = session.table(cursor.name())
    cursor.finish()
    table.generate(mode)
    return session.empty()


def run_convert(session: Session, cursor: Cursor) -> DataFrame:
    """Run `CONVERT TO DELTA parquet.path [NO STATISTICS] [PARTITIONED BY (...)]`."""
    cursor.need("TO DELTA")
    name = cursor.name()
    cursor.take("NO STATISTICS")
    schema = None
    if cursor.take("PARTITIONED BY"):
        schema = cursor.brackets().text
    cursor.finish()
    format_, *rest = name.parts
    place = f"{format_}.`{'.'.join(rest)}`" if rest else format_
    DeltaTable.convertToDelta(session.spark, place, schema, session.storage_options)
    return session.empty()
