"""DELETE, UPDATE, MERGE and INSERT, which change rows of a table."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pyspark.sql import Column, DataFrame, functions as sf
from pyspark.sql.types import (
    ArrayType,
    DataType,
    MapType,
    StructField,
    StructType,
)

from delkalakedb.catalog import open_catalog
from delkalakedb.errors import DeltaError, QueryError
from delkalakedb.model.predicate.predicate import Anything
from delkalakedb.settings import format_uri, require_table
from delkalakedb.spark.face import DeltaTable, Write, write
from delkalakedb.spark.schemas import find_field, quoted, spark_schema
from delkalakedb.spark.sparksql.relations import (
    Session,
    check_no_query,
    reads_table,
    run_query,
    take_version,
)
from delkalakedb.spark.sparksql.statement import (
    Cursor,
    Name,
    Part,
    column_path,
    joined,
    prefixed,
)
from delkalakedb.spark.writer import SETTING, by_name, check_fields, is_dynamic
from delkalakedb.write import perform

_DEFAULT = "DEFAULT"


def run_delete(session: Session, cursor: Cursor) -> DataFrame:
    """Run `DELETE FROM table [alias] [WHERE condition]`."""
    cursor.need("FROM")
    table = _target(session, cursor, "WHERE")
    condition = _where(cursor, "condition of a DELETE")
    cursor.finish()
    return table.delete(condition)


def run_update(session: Session, cursor: Cursor) -> DataFrame:
    """Run `UPDATE table [alias] SET column = value, ... [WHERE condition]`."""
    table = _target(session, cursor, "SET")
    cursor.need("SET")
    assigned = _assignments(cursor.until("WHERE"), "values of an UPDATE")
    condition = _where(cursor, "condition of an UPDATE")
    cursor.finish()
    return table.update(condition, assigned)


def _target(session: Session, cursor: Cursor, *before: str) -> DeltaTable:
    name = cursor.name()
    alias = cursor.alias(*before) or name.alias
    return session.table(name, alias)


def _where(cursor: Cursor, what: str) -> str | None:
    if not cursor.take("WHERE"):
        return None
    return _expression(cursor.rest(), what)


def _expression(part: Part, what: str) -> str:
    if not part:
        raise QueryError(f"the {what} is missing")
    check_no_query(part, what)
    return part.text


def _assignments(part: Part, what: str) -> dict[str, str]:
    """Return the values of `column = value, ...` by column."""
    assigned: dict[str, str] = {}
    for item in part.split():
        cursor = Cursor(item)
        column = column_path(cursor.name())
        cursor.need("=", "==")
        value = cursor.rest()
        if _is_default(value):
            raise QueryError(f"{column} = DEFAULT isn't supported; write the value")
        if column in assigned:
            raise QueryError(f"{column} is assigned to twice")
        assigned[column] = _expression(value, what)
    return assigned


def _is_default(part: Part) -> bool:
    return [token.word for token in part.tokens] == [_DEFAULT]


# ---- merge


def run_merge(session: Session, cursor: Cursor) -> DataFrame:
    """Run `MERGE [WITH SCHEMA EVOLUTION] INTO ...`."""
    evolves = cursor.take("WITH SCHEMA EVOLUTION")
    cursor.need("INTO")
    table = _target(session, cursor, "USING")
    cursor.need("USING")
    source = cursor.until("ON")
    cursor.need("ON")
    condition = _expression(cursor.until("WHEN"), "condition of a MERGE")
    builder = table.merge(_source(session, source), condition)
    if evolves:
        builder = builder.withSchemaEvolution()
    while not cursor.done:
        cursor.need("WHEN")
        when = cursor.need(
            "NOT MATCHED BY SOURCE", "NOT MATCHED BY TARGET", "NOT MATCHED", "MATCHED"
        )
        only = None
        if cursor.take("AND"):
            only = _expression(cursor.until("THEN"), "condition of a clause")
        cursor.need("THEN")
        action = Cursor(cursor.until("WHEN"))
        if when == "MATCHED":
            if action.take("DELETE"):
                builder = builder.whenMatchedDelete(only)
            elif action.take("UPDATE SET *"):
                builder = builder.whenMatchedUpdateAll(only)
            else:
                action.need("UPDATE SET")
                assigned = _assignments(action.rest(), "values of a MERGE")
                builder = builder.whenMatchedUpdate(only, assigned)
        elif when == "NOT MATCHED BY SOURCE":
            if action.take("DELETE"):
                builder = builder.whenNotMatchedBySourceDelete(only)
            else:
                action.need("UPDATE SET")
                assigned = _assignments(action.rest(), "values of a MERGE")
                builder = builder.whenNotMatchedBySourceUpdate(only, assigned)
        elif action.take("INSERT *"):
            builder = builder.whenNotMatchedInsertAll(only)
        else:
            values = _inserted(action)
            builder = builder.whenNotMatchedInsert(only, values)
        action.finish()
    return builder.execute()


def _source(session: Session, part: Part) -> DataFrame:
    """Return the rows of a merge's source, under the source's alias."""
    cursor, name = Cursor(part), None
    if not cursor.sees("("):
        name = cursor.name().alias
    if cursor.sees("("):
        cursor.brackets()
    else:
        take_version(cursor)
    alias = cursor.alias() or name
    if cursor.sees("("):
        cursor.names()
    cursor.finish()
    rows = run_query(session, prefixed("SELECT * FROM", part))
    return rows if alias is None else rows.alias(alias)


def _inserted(action: Cursor) -> dict[str, str]:
    """Return the values of `INSERT (columns) VALUES (values)` by column."""
    action.need("INSERT")
    columns = [column_path(name) for name in action.names()]
    action.need("VALUES")
    values = action.brackets().split()
    if len(columns) != len(values):
        raise QueryError(
            f"INSERT names {len(columns)} columns and has {len(values)} values"
        )
    return {
        column: _expression(value, "values of a MERGE")
        for column, value in zip(columns, values, strict=True)
        if not _is_default(value)
    }


# ---- insert


def run_insert(
    session: Session, cursor: Cursor, expressions: Part | None = None
) -> DataFrame:
    """Run `INSERT {INTO | OVERWRITE} [TABLE] table ... query`.

    Args:
        session: the session.
        cursor: a cursor after `INSERT`.
        expressions: the `WITH` clause before the statement.
    """
    evolves = bool(cursor.take("WITH SCHEMA EVOLUTION"))
    overwrites = cursor.need("INTO", "OVERWRITE") == "OVERWRITE"
    if cursor.sees("DIRECTORY") or cursor.sees("LOCAL DIRECTORY"):
        raise QueryError("INSERT OVERWRITE DIRECTORY writes no table; use spark.sql")
    cursor.take("TABLE")
    name = cursor.name()
    partition = _partition(cursor) if cursor.take("PARTITION") else {}
    if cursor.sees("IF NOT EXISTS"):
        cursor.refuse("a query, because IF NOT EXISTS isn't supported,")
    named = bool(cursor.take("BY NAME"))
    columns = cursor.names() if cursor.sees("(") and not _is_query(cursor) else None
    where = None
    if cursor.take("REPLACE WHERE"):
        where = _expression(cursor.until(*_QUERIES), "condition of REPLACE WHERE")
    query = cursor.rest()
    if any(map(_is_default, _values(query))):
        raise QueryError("DEFAULT isn't supported in VALUES; leave the column out")
    if expressions is not None:
        query = joined(expressions, query)
    rows = run_query(session, query)
    target = _Target(session, name, partition)
    if named:
        rows = target.by_name(rows, evolves)
    elif evolves:
        raise QueryError("INSERT WITH SCHEMA EVOLUTION needs BY NAME before the query")
    else:
        rows = target.by_position(rows, columns)
    if overwrites and partition and where is None:
        where = target.replaced()
    options: dict[str, Any] = {
        "mode": "overwrite" if overwrites or where is not None else "append",
        "merge_schema": evolves,
        "replace_where": where,
        "storage_options": session.storage_options,
    }
    if reads_table(session, query, name):
        _write_again(session, name, rows, options)
    else:
        write(rows, format_uri(session.uri(name)), **options)
    return session.empty()


def _write_again(
    session: Session, name: Name, rows: DataFrame, options: Mapping[str, Any]
) -> None:
    """Write rows that come from the table itself.

    The write conflicts with every concurrent commit that changes rows, because the rows
    were read before that commit.
    """
    uri = session.uri(name)
    snapshot = session.snapshot(name)
    operation = Write(rows, require_table(uri), **options).operation(snapshot)
    if operation is not None:
        perform(
            open_catalog(uri),
            snapshot,
            replace(operation, files=Anything()),
            retries=0,
            storage_options=session.storage_options,
        )


_QUERIES = ("SELECT", "VALUES", "WITH", "TABLE", "( SELECT", "( WITH", "( VALUES")


def _is_query(cursor: Cursor) -> bool:
    return any(cursor.sees(f"( {word}") for word in ("SELECT", "WITH", "VALUES", "("))


def _values(query: Part) -> list[Part]:
    """Return the values of a `VALUES` clause."""
    cursor = Cursor(query)
    if not cursor.take("VALUES"):
        return []
    rows = (Cursor(row) for row in cursor.rest().split())
    return [value for row in rows if row.sees("(") for value in row.brackets().split()]


def _partition(cursor: Cursor) -> dict[str, Part | None]:
    """Return the values of a `PARTITION` clause, None for columns without one."""
    spec: dict[str, Part | None] = {}
    for part in cursor.brackets().split():
        item = Cursor(part)
        column = item.identifier()
        spec[column.lower()] = item.rest() if item.take("=", "==") else None
        item.finish()
    return spec


class _Target:
    """The table of an INSERT, and its `PARTITION` clause."""

    def __init__(
        self, session: Session, name: Name, partition: Mapping[str, Part | None]
    ) -> None:
        self._name = name
        self._session = session
        self._metadata = session.snapshot(name).metadata
        self._schema = spark_schema(self._metadata)
        self._partition = partition
        known = [column.lower() for column in self._metadata.partition_columns]
        if odd := sorted(partition.keys() - set(known)):
            raise DeltaError(f"{name}: {', '.join(odd)} isn't a partition column")

    @property
    def _static(self) -> dict[str, Part]:
        return {name: v for name, v in self._partition.items() if v is not None}

    def by_position(self, rows: DataFrame, columns: list[Name] | None) -> DataFrame:
        """Return `rows` as columns of the table, all or the ones that are named."""
        static = self._static
        if columns is None:
            fields = [f for f in self._schema if f.name.lower() not in static]
        else:
            fields = [self._field(column) for column in columns]
        wanted = [field.name for field in fields]
        if len(wanted) != len(set(wanted)):
            raise QueryError(f"{self._name}: a column is named twice")
        if len(rows.columns) != len(fields):
            raise DeltaError(
                f"{self._name}: the query has {len(rows.columns)} columns for "
                f"{', '.join(wanted)}; name the columns: INSERT INTO {self._name} (...)"
            )
        given = [field.dataType for field in rows.schema]
        rows = rows.toDF(*(f"__dk_{i}" for i in range(len(given))))
        return rows.select(
            *(
                self._cast(sf.col(f"__dk_{i}"), given[i], field)
                for i, field in enumerate(fields)
            ),
            *self._constants(),
        )

    def by_name(self, rows: DataFrame, evolves: bool) -> DataFrame:
        """Return `rows` as the columns of the table with these names."""
        values = []
        for given in rows.schema:
            value, field = (
                sf.col(quoted(given.name)),
                find_field(self._schema, given.name),
            )
            if field is not None:
                value = self._named(value, given.dataType, field, evolves)
            elif not evolves:
                raise DeltaError(
                    f"{self._name}: no column {given.name}; the table has "
                    f"{', '.join(self._schema.names)}"
                )
            values.append(value)
        return rows.select(*values, *self._constants())

    def replaced(self) -> str | None:
        """Return the condition of an overwrite, or None if rows decide on it."""
        dynamic = self._partition.keys() - self._static.keys()
        setting = self._session.spark.conf.get(SETTING, "static")
        if dynamic and is_dynamic(None, setting):
            return None
        conditions = [
            f"{quoted(self._field(Name((name,))).name)} "
            + ("IS NULL" if part.text.upper() == "NULL" else f"= {part.text}")
            for name, part in self._static.items()
        ]
        return " AND ".join(conditions) or None

    def _constants(self) -> list[Column]:
        fields = {name: self._field(Name((name,))) for name in self._static}
        return [
            sf.expr(part.text).cast(fields[name].dataType).alias(fields[name].name)
            for name, part in self._static.items()
        ]

    def _field(self, column: Name) -> StructField:
        field = find_field(self._schema, column.dotted)
        if field is None:
            raise DeltaError(
                f"{self._name}: no column {column}; the table has "
                f"{', '.join(self._schema.names)}"
            )
        return field

    def _named(
        self, value: Column, given: DataType, field: StructField, evolves: bool
    ) -> Column:
        """Return a value as the column `field`, with the fields of structs by name."""
        wanted = field.dataType
        if not isinstance(wanted, StructType | ArrayType | MapType):
            return self._cast(value, given, field)
        if evolves:  # the write adds new fields
            return value.alias(field.name)
        check_fields(given, wanted)
        return by_name(value, given, wanted).alias(field.name)

    def _cast(self, value: Column, given: object, field: StructField) -> Column:
        if given == field.dataType:
            return value.alias(field.name)
        fit = value.cast(field.dataType)
        ansi = self._session.spark.conf.get("spark.sql.ansi.enabled", "true")
        if str(ansi).lower() != "true" and not isinstance(field.dataType, StructType):
            # a value that doesn't fit is an error, whatever the session's casts do
            text = sf.lit(f"{self._name}: a value doesn't fit {field.name}")
            lost = value.isNotNull() & fit.isNull()
            fit = sf.when(lost, sf.raise_error(text)).otherwise(fit)
        return fit.alias(field.name)
