"""CREATE, REPLACE, ALTER and DROP TABLE."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql.types import DataType, StructField, StructType

from delkalakedb.catalog import Snapshot, open_catalog
from delkalakedb.catalog.admin import rename_table
from delkalakedb.deltalake import DeltaTable as Face
from delkalakedb.errors import DeltaError, QueryError, TableNotFoundError
from delkalakedb.migrate import drop_table
from delkalakedb.model.actions import Metadata, Protocol, known
from delkalakedb.model.predicate.predicate import Anything
from delkalakedb.model.rules.features import CHECK_CONSTRAINTS, LEGACY
from delkalakedb.model.rules.protocol import supporting
from delkalakedb.model.schema.properties import check_changeable
from delkalakedb.settings import format_uri, is_deltasql, require_table
from delkalakedb.spark.face import DeltaTable, write
from delkalakedb.spark.pyspark_api import parse_type
from delkalakedb.spark.schemas import (
    check_new_schema,
    find_field,
    is_mapped,
    table_schema,
)
from delkalakedb.spark.sparksql.relations import Session, check_no_query, run_query
from delkalakedb.spark.sparksql.statement import (
    Cursor,
    Name,
    Part,
    Statement,
    whole_name,
)
from delkalakedb.spark.writer import commit_info
from delkalakedb.write import Operation, Target, perform
from delkalakedb.write.engines import InPlace, Work
from delkalakedb.write.engines.deltars import parse_new_schema

_AFTER_TYPE = ("NOT NULL", "COMMENT", "GENERATED", "DEFAULT", "FIRST", "AFTER")
_CLAUSES = (
    *("USING", "LOCATION", "PARTITIONED BY", "COMMENT", "TBLPROPERTIES"),
    *("CLUSTER BY", "AS", "SELECT", "WITH", "VALUES"),
)


@dataclass
class _Column:
    """A column of CREATE TABLE or ADD COLUMNS."""

    name: Name
    type: DataType
    nullable: bool = True
    comment: str | None = None
    generated: str | None = None


@dataclass
class _Clauses:
    """The clauses of CREATE TABLE."""

    columns: list[_Column] = field(default_factory=list)
    partitions: list[str] = field(default_factory=list)
    clusters: list[str] = field(default_factory=list)
    properties: dict[str, str] = field(default_factory=dict)
    location: str | None = None
    comment: str | None = None
    query: Part | None = None


def run_create(session: Session, cursor: Cursor) -> DataFrame:
    """Run `[CREATE [OR]] [REPLACE] TABLE`, or `CREATE TEMP VIEW`, without its verb."""
    verb = cursor.statement.tokens[cursor.first].word
    replaces = verb == "REPLACE" or bool(cursor.take("OR REPLACE"))
    if cursor.take("TEMP VIEW", "TEMPORARY VIEW"):
        return _create_view(session, cursor, replaces)
    if verb == "CREATE" and not cursor.sees("TABLE"):
        cursor.refuse("TABLE or TEMP VIEW")
    cursor.need("TABLE")
    lenient = bool(cursor.take("IF NOT EXISTS"))
    if lenient and replaces:
        raise QueryError("OR REPLACE and IF NOT EXISTS contradict each other")
    name = cursor.name()
    clauses = _clauses(session, cursor)
    mode = "error"
    if replaces:
        mode = "replace" if verb == "REPLACE" else "overwrite"
    elif lenient:
        mode = "ignore"
    if clauses.query is None:
        _create(session, name, mode, clauses)
    else:
        _create_as(session, name, mode, clauses, clauses.query)
    return session.empty()


def _create_view(session: Session, cursor: Cursor, replaces: bool) -> DataFrame:
    name = cursor.identifier()
    cursor.need("AS")
    rows = run_query(session, cursor.rest())
    if replaces:
        rows.createOrReplaceTempView(name)
    else:
        rows.createTempView(name)
    return session.empty()


def _clauses(session: Session, cursor: Cursor) -> _Clauses:
    found = _Clauses()
    if cursor.sees("("):
        parts = cursor.brackets().split(types=True)
        found.columns = [_column(session, part) for part in parts]
    while not cursor.done:
        word = cursor.need(*_CLAUSES)
        match word:
            case "USING":
                if (format_ := cursor.identifier()).lower() not in (
                    "delta",
                    "deltasql",
                ):
                    raise QueryError(
                        f"USING {format_}: a catalog has only Delta tables; write "
                        "USING delta, or use spark.sql"
                    )
            case "LOCATION":
                found.location = session.text(cursor.string())
            case "COMMENT":
                found.comment = session.text(cursor.string())
            case "TBLPROPERTIES":
                found.properties = dict(_properties(session, cursor))
            case "PARTITIONED BY":
                parts = cursor.brackets().split(types=True)
                found.partitions = [_partition(part) for part in parts]
                # a partition column with a type is a new column
                typed = [part for part in parts if len(part.tokens) > 1]
                found.columns += [_column(session, part) for part in typed]
            case "CLUSTER BY":
                found.clusters = [name.dotted for name in cursor.names()]
            case _:
                if word != "AS":
                    cursor.at -= 1
                found.query = cursor.rest()
    if found.query is not None and found.columns:
        raise QueryError(
            "CREATE TABLE ... AS takes its columns from the query; leave them out"
        )
    return found


def _partition(part: Part) -> str:
    """Return the name of a partition column, after which its type may stand."""
    cursor = Cursor(part)
    name = cursor.name()
    if cursor.sees("("):
        raise QueryError(
            f"PARTITIONED BY {part.raw}: partition by a column; a generated column may "
            "hold the value"
        )
    return name.dotted


def _column(session: Session, part: Part) -> _Column:
    cursor = Cursor(part)
    if cursor.sees("CONSTRAINT") or cursor.sees("PRIMARY KEY"):
        raise QueryError(
            f"{part.raw}: add constraints with ALTER TABLE ... ADD CONSTRAINT name "
            "CHECK (...)"
        )
    name = cursor.name()
    cursor.take(":")
    kind = _type(cursor.until(*_AFTER_TYPE, types=True))
    column = _Column(name, kind)
    while not cursor.done:
        match cursor.need(*_AFTER_TYPE):
            case "NOT NULL":
                column.nullable = False
            case "COMMENT":
                column.comment = session.text(cursor.string())
            case "GENERATED":
                cursor.need("ALWAYS AS")
                if cursor.sees("IDENTITY"):
                    raise QueryError(f"{name}: identity columns aren't supported")
                column.generated = cursor.brackets().text
            case _:
                raise QueryError(
                    f"{part.raw}: only NOT NULL, COMMENT and GENERATED "
                    "ALWAYS AS (...) may follow a column's type here"
                )
    return column


def _type(part: Part) -> DataType:
    if not part:
        raise QueryError("a column needs a type")
    return parse_type(part.raw)


def _properties(session: Session, cursor: Cursor) -> Mapping[str, str]:
    """Take properties in parentheses."""
    found: dict[str, str] = {}
    for part in cursor.brackets().split():
        inner = Cursor(part)
        quoted = inner.token.kind == "string"
        key = session.text(inner.string()) if quoted else inner.name().dotted
        inner.take("=", "==")
        value = inner.rest()
        if not value:
            raise QueryError(f"property {key} needs a value")
        texts = all(token.kind == "string" for token in value.tokens)
        found[key] = session.text(value) if texts else value.text
    return found


def _create(session: Session, name: Name, mode: str, clauses: _Clauses) -> None:
    start: Callable[..., Any] = {
        "error": DeltaTable.create,
        "ignore": DeltaTable.createIfNotExists,
        "overwrite": DeltaTable.createOrReplace,
        "replace": DeltaTable.replace,
    }[mode]
    uri = None
    if name.place is None or is_deltasql(name.place):
        uri = format_uri(session.uri(name))
    elif clauses.location is None:
        clauses.location = name.place
    if not clauses.columns:
        raise QueryError(f"CREATE TABLE {name} needs columns, or AS and a query")
    builder = start(session.spark, uri, session.storage_options)
    for column in clauses.columns:
        builder = builder.addColumn(
            column.name.dotted,
            column.type,
            column.nullable,
            generatedAlwaysAs=column.generated,
            comment=column.comment,
        )
    if clauses.partitions:
        builder = builder.partitionedBy(*clauses.partitions)
    if clauses.clusters:
        builder = builder.clusterBy(*clauses.clusters)
    for key, value in clauses.properties.items():
        builder = builder.property(key, value)
    if clauses.location is not None:
        builder = builder.location(clauses.location)
    if clauses.comment is not None:
        builder = builder.comment(clauses.comment)
    builder.execute()


def _create_as(
    session: Session, name: Name, mode: str, clauses: _Clauses, query: Part
) -> None:
    if clauses.clusters:
        raise QueryError(
            "CLUSTER BY isn't supported with AS; create the table first, then INSERT"
        )
    uri = session.uri(name)
    table = require_table(uri)
    there = _find(session, name)
    if there is None and mode == "replace":
        raise TableNotFoundError(f"{table}: the catalog has no such table")
    if there is not None and mode in ("overwrite", "replace"):
        _check_kept(table, there, clauses)
    overwrites = mode in ("overwrite", "replace")
    write(
        run_query(session, query),
        format_uri(uri),
        "overwrite" if overwrites else mode,
        partition_by=clauses.partitions,
        overwrite_schema=overwrites,
        partition_overwrite_mode="static" if overwrites else None,
        location=clauses.location,
        configuration=clauses.properties,
        description=clauses.comment,
        storage_options=session.storage_options,
    )


def _find(session: Session, name: Name) -> Snapshot | None:
    try:
        return session.snapshot(name)
    except TableNotFoundError:
        return None


def _check_kept(table: str, there: Snapshot, clauses: _Clauses) -> None:
    """Raise `DeltaError` if a replacement would change what only ALTER can change."""
    before = known(there.metadata.configuration) or {}
    differs = any(before.get(key) != v for key, v in clauses.properties.items())
    if differs or clauses.comment not in (None, there.table.description):
        raise DeltaError(
            f"{table} exists with other properties or another comment, which REPLACE "
            "TABLE ... AS keeps; change them with ALTER TABLE or COMMENT ON TABLE"
        )


# ---- drop


def run_drop(session: Session, cursor: Cursor) -> DataFrame:
    """Run `DROP TABLE [IF EXISTS] table [PURGE]`."""
    lenient = cursor.take("IF EXISTS")
    name = cursor.name()
    purges = bool(cursor.take("PURGE"))
    cursor.finish()
    try:
        uri = session.uri(name)
        drop_table(
            open_catalog(uri),
            require_table(uri),
            with_data=purges,
            storage_options=session.storage_options,
        )
    except TableNotFoundError:
        if not lenient:
            raise
    return session.empty()


# ---- alter


def run_alter(session: Session, cursor: Cursor) -> DataFrame:
    """Run `ALTER TABLE table ...`."""
    name = cursor.name()
    action = cursor.need(*_ACTIONS)
    _ACTIONS[action](session, name, cursor)
    cursor.finish()
    return session.empty()


def _face(session: Session, name: Name) -> Face:
    options = dict(session.storage_options or {}) or None
    return Face(format_uri(session.uri(name)), storage_options=options)


def _changed(
    session: Session,
    name: Name,
    operation: str,
    parameters: Mapping[str, Any],
    change: Callable[[Snapshot], Metadata],
) -> None:
    """Commit the metadata that `change` makes of a table's snapshot."""

    def run(to: Target) -> Work[None]:
        snapshot = to.base
        snapshot.check_ours()
        metadata = change(snapshot)
        if metadata == snapshot.metadata:
            return Work(None)
        return Work(None, [[commit_info(operation, parameters, {}), metadata]])

    _perform(session, name, Operation(operation.lower(), InPlace(run)))


def _perform(session: Session, name: Name, operation: Operation[None]) -> None:
    uri = session.uri(name)
    catalog = open_catalog(uri)
    snapshot = catalog.snapshot(require_table(uri))
    perform(catalog, snapshot, operation, storage_options=session.storage_options)


def _set_properties(session: Session, name: Name, cursor: Cursor) -> None:
    properties = dict(_properties(session, cursor))
    check_changeable(properties)
    alter = _face(session, name).alter
    alter.set_table_properties(properties, raise_if_not_exists=False)


def _unset_properties(session: Session, name: Name, cursor: Cursor) -> None:
    lenient = bool(cursor.take("IF EXISTS"))
    keys = []
    for part in cursor.brackets().split():
        inner = Cursor(part)
        quoted = inner.token.kind == "string"
        keys.append(session.text(inner.string()) if quoted else inner.name().dotted)
        inner.finish()
    check_changeable(keys)

    def change(snapshot: Snapshot) -> Metadata:
        before = known(snapshot.metadata.configuration) or {}
        left = {key: value for key, value in before.items() if key not in keys}
        return msgspec.structs.replace(snapshot.metadata, configuration=left)

    parameters = {"properties": msgspec.json.encode(keys).decode(), "ifExists": lenient}
    _changed(session, name, "UNSET TBLPROPERTIES", parameters, change)


def _add_constraint(session: Session, name: Name, cursor: Cursor) -> None:
    constraint = cursor.identifier()
    cursor.need("CHECK")
    part = cursor.brackets()
    check_no_query(part, "condition of a constraint")
    condition = part.text
    key = f"delta.constraints.{constraint.lower()}"

    def run(to: Target) -> Work[None]:
        snapshot = to.base
        snapshot.check_ours()
        before = known(snapshot.metadata.configuration) or {}
        if any(key == other.lower() for other in before):
            raise DeltaError(
                f"{name}: Constraint '{constraint}' already exists; drop it with ALTER "
                f"TABLE {name} DROP CONSTRAINT {constraint}"
            )
        rows = _rows(session, snapshot).filter(f"NOT coalesce(({condition}), FALSE)")
        if count := rows.count():
            raise DeltaError(
                f"{count} rows in {name} violate the new CHECK constraint ({condition})"
            )
        metadata = msgspec.structs.replace(
            snapshot.metadata, configuration={**before, key: condition}
        )
        parameters = {"name": constraint, "expr": condition}
        info = commit_info("ADD CONSTRAINT", parameters, {})
        protocol = _with_constraints(snapshot.protocol)
        changed = [] if protocol == snapshot.protocol else [protocol]
        return Work(None, [[info, *changed, metadata]])

    # reads all rows, because each must meet the constraint
    _perform(session, name, Operation("add constraint", InPlace(run), Anything()))


def _with_constraints(protocol: Protocol) -> Protocol:
    if protocol.min_writer_version >= 7:
        return supporting(protocol, {CHECK_CONSTRAINTS})
    version = max(protocol.min_writer_version, LEGACY[CHECK_CONSTRAINTS])
    return msgspec.structs.replace(protocol, min_writer_version=version)


def _rows(session: Session, snapshot: Snapshot) -> DataFrame:
    from delkalakedb.spark.reader import read_snapshot

    options = session.storage_options
    return read_snapshot(session.spark, snapshot, storage_options=options)


def _drop_constraint(session: Session, name: Name, cursor: Cursor) -> None:
    lenient = bool(cursor.take("IF EXISTS"))
    constraint = cursor.identifier()
    key = f"delta.constraints.{constraint.lower()}"

    def change(snapshot: Snapshot) -> Metadata:
        before = known(snapshot.metadata.configuration) or {}
        left = {k: value for k, value in before.items() if k.lower() != key}
        if len(left) == len(before) and not lenient:
            raise DeltaError(
                f"{name}: Cannot drop nonexistent constraint {constraint}; write DROP "
                "CONSTRAINT IF EXISTS to ignore that"
            )
        return msgspec.structs.replace(snapshot.metadata, configuration=left)

    _changed(session, name, "DROP CONSTRAINT", {"name": constraint}, change)


def _add_columns(session: Session, name: Name, cursor: Cursor) -> None:
    listed = cursor.brackets() if cursor.sees("(") else cursor.rest()
    columns = [_column(session, part) for part in listed.split(types=True)]
    metadata = session.snapshot(name).metadata
    schema = table_schema(metadata)
    fields = [_new_field(schema, column) for column in columns]
    check_new_schema(StructType([*schema, *fields]), metadata)
    for column in columns:
        if not column.nullable or column.generated:
            raise QueryError(
                f"{column.name}: a new column of an existing table can't be NOT "
                "NULL or generated"
            )
    added: Any = parse_new_schema(StructType(fields).json())
    _face(session, name).alter.add_columns(added.fields)


def _new_field(schema: StructType, column: _Column) -> StructField:
    """Return the top-level column that holds a new column or a new field."""
    metadata = {} if column.comment is None else {"comment": column.comment}
    *path, last = column.name.parts
    kinds: list[str] = []
    there: DataType = schema
    for part in path:
        found = find_field(there, part) if isinstance(there, StructType) else None
        if found is None or not isinstance(found.dataType, StructType):
            raise DeltaError(f"{column.name}: there is no struct {part} to add to")
        kinds.append(found.name)
        there = found.dataType
    if isinstance(there, StructType) and find_field(there, last) is not None:
        raise DeltaError(f"{column.name}: there is such a column already")
    field_ = StructField(last, column.type, True, metadata)
    for part in reversed(kinds):
        field_ = StructField(part, StructType([field_]), True)
    return field_


def _rename_table(session: Session, name: Name, cursor: Cursor) -> None:
    new = cursor.name()
    uri, target = session.uri(name), session.uri(new)
    if target.with_table("x") != uri.with_table("x"):
        raise DeltaError(f"{new}: a table can't be moved to another catalog")
    rename_table(open_catalog(uri), require_table(uri), require_table(target))


def _rename_column(session: Session, name: Name, cursor: Cursor) -> None:
    old = cursor.identifier()
    cursor.need("TO")
    new = cursor.identifier()

    def change(snapshot: Snapshot) -> Metadata:
        field_ = _mapped_field(snapshot, name, old)
        schema = table_schema(snapshot.metadata)
        if (other := find_field(schema, new)) is not None and other != field_:
            raise DeltaError(f"{name}: there is a column {new} already")
        fields = [
            StructField(new, f.dataType, f.nullable, f.metadata) if f == field_ else f
            for f in schema
        ]
        partitions = [
            new if column == field_.name else column
            for column in snapshot.metadata.partition_columns
        ]
        return msgspec.structs.replace(
            snapshot.metadata,
            schema_string=StructType(fields).json(),
            partition_columns=partitions,
        )

    parameters = {"oldColumnPath": old, "newColumnPath": new}
    _changed(session, name, "RENAME COLUMN", parameters, change)


def _drop_columns(session: Session, name: Name, cursor: Cursor) -> None:
    lenient = bool(cursor.take("IF EXISTS"))
    listed = cursor.brackets() if cursor.sees("(") else cursor.rest()
    names = [whole_name(part).dotted for part in listed.split()]

    def change(snapshot: Snapshot) -> Metadata:
        schema = table_schema(snapshot.metadata)
        there = [c for c in names if find_field(schema, c) is not None]
        gone = [
            _mapped_field(snapshot, name, column)
            for column in (there if lenient else names)
        ]
        left = [field_ for field_ in schema if field_ not in gone]
        if kept := [
            f.name for f in gone if f.name in snapshot.metadata.partition_columns
        ]:
            raise DeltaError(f"{name}: partition column {kept[0]} can't be dropped")
        if not left:
            raise DeltaError(f"{name}: a table needs a column; drop the table")
        schema_string = StructType(left).json()
        return msgspec.structs.replace(snapshot.metadata, schema_string=schema_string)

    parameters = {"columns": msgspec.json.encode(names).decode()}
    _changed(session, name, "DROP COLUMNS", parameters, change)


def _mapped_field(snapshot: Snapshot, name: Name, column: str) -> StructField:
    """Return a column that may be renamed or dropped."""
    metadata = snapshot.metadata
    schema = table_schema(metadata)
    found = find_field(schema, column)
    if found is None:
        there = ", ".join(schema.names)
        raise DeltaError(f"{name}: no column {column}; the table has {there}")
    if not is_mapped(metadata):
        raise DeltaError(
            f"{name}: columns can't be renamed or dropped, because data files have "
            "their names; that needs column mapping, which is set when a table is "
            "created (delta.columnMapping.mode = name)"
        )
    configuration = known(metadata.configuration) or {}
    texts = [v for k, v in configuration.items() if k.startswith("delta.constraints.")]
    texts += [str(f.metadata.get("delta.generationExpression", "")) for f in schema]
    for text in filter(None, texts):
        words = {token.text.strip("`").lower() for token in Statement(text).tokens}
        if found.name.lower() in words:
            raise DeltaError(
                f"{name}: column {column} can't be changed, because ({text}) uses it"
            )
    return found


def _alter_column(session: Session, name: Name, cursor: Cursor) -> None:
    column = cursor.identifier()
    parameters: dict[str, Any] = {"column": column}
    if cursor.take("TYPE", "SET DATA TYPE"):
        raise QueryError("a column's type can't be changed; add a column instead")
    if not any(map(cursor.sees, ("COMMENT", "DROP", "SET", "FIRST", "AFTER"))):
        # CHANGE COLUMN old new type ...
        new = cursor.identifier()
        kind = _type(cursor.until("COMMENT", "FIRST", "AFTER", types=True))
        found = find_field(table_schema(session.snapshot(name).metadata), column)
        if new.lower() != column.lower():
            raise QueryError(f"to rename {column}, use ALTER TABLE ... RENAME COLUMN")
        if found is not None and found.dataType != kind:
            raise QueryError("a column's type can't be changed; add a column instead")
    comment, nullable, after = None, None, None
    while not cursor.done:
        match cursor.need("COMMENT", "DROP NOT NULL", "FIRST", "AFTER"):
            case "COMMENT":
                comment = session.text(cursor.string())
            case "DROP NOT NULL":
                nullable = True
            case "FIRST":
                after = ""
            case _:
                after = cursor.identifier()

    def change(snapshot: Snapshot) -> Metadata:
        fields = list(table_schema(snapshot.metadata))
        found = find_field(StructType(fields), column)
        if found is None:
            there = ", ".join(field_.name for field_ in fields)
            raise DeltaError(f"{name}: no column {column}; the table has {there}")
        noted = {} if comment is None else {"comment": comment}
        new = StructField(
            found.name,
            found.dataType,
            found.nullable or bool(nullable),
            {**found.metadata, **noted},
        )
        at = fields.index(found)
        fields[at] = new
        if after is not None:
            del fields[at]
            fields.insert(_place_after(name, fields, after), new)
        schema_string = StructType(fields).json()
        return msgspec.structs.replace(snapshot.metadata, schema_string=schema_string)

    _changed(session, name, "CHANGE COLUMN", parameters, change)


def _place_after(name: Name, fields: list[StructField], after: str) -> int:
    if not after:
        return 0
    found = find_field(StructType(fields), after)
    if found is None:
        raise DeltaError(f"{name}: no column {after} to put the column after")
    return fields.index(found) + 1


_ACTIONS: dict[str, Callable[[Session, Name, Cursor], None]] = {
    "ADD COLUMNS": _add_columns,
    "ADD COLUMN": _add_columns,
    "ADD CONSTRAINT": _add_constraint,
    "ALTER COLUMN": _alter_column,
    "CHANGE COLUMN": _alter_column,
    "DROP COLUMNS": _drop_columns,
    "DROP COLUMN": _drop_columns,
    "DROP CONSTRAINT": _drop_constraint,
    "RENAME COLUMN": _rename_column,
    "RENAME TO": _rename_table,
    "SET TBLPROPERTIES": _set_properties,
    "UNSET TBLPROPERTIES": _unset_properties,
}
