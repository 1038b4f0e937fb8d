"""ALTER TABLE."""

from collections.abc import Callable
from typing import Any

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql.types import DataType, StructField, StructType

from delkalakedb.catalog import Snapshot, open_catalog
from delkalakedb.catalog.admin import rename_table
from delkalakedb.deltalake import DeltaTable as Face
from delkalakedb.errors import DeltaError, QueryError
from delkalakedb.model.actions import Metadata, Protocol, known
from delkalakedb.model.predicate.predicate import Anything
from delkalakedb.model.rules.clusters import clustering_domain
from delkalakedb.model.rules.features import CHECK_CONSTRAINTS, CLUSTERING, LEGACY
from delkalakedb.model.rules.protocol import supporting
from delkalakedb.settings import format_uri, require_table
from delkalakedb.spark.schemas import (
    find_field,
    is_mapped,
    table_schema,
)
from delkalakedb.spark.sparksql.refusals import (
    CHANGES,
    COLUMN_CHANGES,
    check_supported,
)
from delkalakedb.spark.sparksql.relations import Session, check_no_query
from delkalakedb.spark.sparksql.statement import Cursor, Name, Statement, whole_name
from delkalakedb.spark.sparksql.table_statements import (
    NewColumn,
    change_metadata,
    new_column,
    perform_on,
    properties,
    type_of,
)
from delkalakedb.spark.writer import (
    CURRENT_DEFAULT,
    check_defaults,
    commit_info,
    evolved_metadata,
)
from delkalakedb.write import Operation, Target, set_properties, unset_properties
from delkalakedb.write.engines import InPlace, Work

_COLUMN_CHANGES = (
    "COMMENT",
    "DROP NOT NULL",
    "SET DEFAULT",
    "DROP DEFAULT",
    "FIRST",
    "AFTER",
)


def run_alter(session: Session, cursor: Cursor) -> DataFrame:
    """Run `ALTER TABLE table ...`."""
    name = cursor.name()
    check_supported(cursor, CHANGES)
    action = cursor.need(*_ACTIONS)
    _ACTIONS[action](session, name, cursor)
    cursor.finish()
    return session.empty()


def _face(session: Session, name: Name) -> Face:
    options = dict(session.storage_options or {}) or None
    return Face(format_uri(session.uri(name)), storage_options=options)


def _set_properties(session: Session, name: Name, cursor: Cursor) -> None:
    uri, options = session.uri(name), session.storage_options
    given = dict(properties(session, cursor))
    set_properties(open_catalog(uri), require_table(uri), given, options)


def _unset_properties(session: Session, name: Name, cursor: Cursor) -> None:
    # Without effect, as in Delta Spark, which ignores properties that aren't set.
    cursor.take("IF EXISTS")
    keys = []
    for part in cursor.brackets().split():
        inner = Cursor(part)
        quoted = inner.token.kind == "string"
        keys.append(session.text(inner.string()) if quoted else inner.name().dotted)
        inner.finish()
    uri, options = session.uri(name), session.storage_options
    catalog, table = open_catalog(uri), require_table(uri)
    unset_properties(catalog, table, keys, if_exists=True, storage_options=options)


def _add_constraint(session: Session, name: Name, cursor: Cursor) -> None:
    constraint = cursor.identifier()
    cursor.need("CHECK")
    part = cursor.brackets()
    check_no_query(part, "condition of a constraint")
    condition = part.text
    key = f"delta.constraints.{constraint.lower()}"

    def run(to: Target) -> Work[None]:
        snapshot = to.base
        snapshot._check_ours()
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
    perform_on(session, name, Operation("add constraint", InPlace(run), Anything()))


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

    change_metadata(session, name, "DROP CONSTRAINT", {"name": constraint}, change)


def _add_columns(session: Session, name: Name, cursor: Cursor) -> None:
    listed = cursor.brackets() if cursor.sees("(") else cursor.rest()
    columns = [new_column(session, part) for part in listed.split(types=True)]
    schema = table_schema(session.snapshot(name).metadata)
    fields = [_new_field(schema, column) for column in columns]
    for column in columns:
        filled = column.generated or column.by_default or column.default
        if not column.nullable or filled is not None:
            raise QueryError(
                f"{column.name}: a new column of an existing table can't be NOT "
                "NULL or generated, or have a default; set the default with ALTER "
                "COLUMN ... SET DEFAULT"
            )
    new = StructType(fields)

    def change(snapshot: Snapshot) -> Metadata:
        return evolved_metadata(snapshot.metadata, new)

    change_metadata(session, name, "ADD COLUMNS", {"columns": new.json()}, change)


def _new_field(schema: StructType, column: NewColumn) -> StructField:
    """Return the top-level column that holds a new column or a new field."""
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
    field_ = column.struct_field()
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
    change_metadata(session, name, "RENAME COLUMN", parameters, change)


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
    change_metadata(session, name, "DROP COLUMNS", parameters, change)


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
    check_supported(cursor, COLUMN_CHANGES)
    if not any(map(cursor.sees, ("COMMENT", "DROP", "SET", "FIRST", "AFTER"))):
        # CHANGE COLUMN old new type ...
        new = cursor.identifier()
        kind = type_of(cursor.until("COMMENT", "FIRST", "AFTER", types=True))
        found = find_field(table_schema(session.snapshot(name).metadata), column)
        if new.lower() != column.lower():
            raise QueryError(f"to rename {column}, use ALTER TABLE ... RENAME COLUMN")
        if found is not None and found.dataType != kind:
            raise QueryError("a column's type can't be changed; add a column instead")
    noted: dict[str, str | None] = {}
    nullable, after = None, None
    while not cursor.done:
        match cursor.need(*_COLUMN_CHANGES):
            case "COMMENT":
                noted["comment"] = session.text(cursor.string())
            case "SET DEFAULT":
                value = cursor.rest()
                check_no_query(value, "default of a column")
                noted[CURRENT_DEFAULT] = value.text
            case "DROP DEFAULT":
                noted[CURRENT_DEFAULT] = None
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
        said = {**found.metadata, **noted}
        new = StructField(
            found.name,
            found.dataType,
            found.nullable or bool(nullable),
            {key: value for key, value in said.items() if value is not None},
        )
        check_defaults(session.spark, StructType([new]))
        at = fields.index(found)
        fields[at] = new
        if after is not None:
            del fields[at]
            fields.insert(_place_after(name, fields, after), new)
        schema_string = StructType(fields).json()
        return msgspec.structs.replace(snapshot.metadata, schema_string=schema_string)

    change_metadata(session, name, "CHANGE COLUMN", parameters, change)


def _place_after(name: Name, fields: list[StructField], after: str) -> int:
    if not after:
        return 0
    found = find_field(StructType(fields), after)
    if found is None:
        raise DeltaError(f"{name}: no column {after} to put the column after")
    return fields.index(found) + 1


def _cluster(session: Session, name: Name, cursor: Cursor) -> None:
    names = []
    if not cursor.take("NONE"):
        names = [column.dotted for column in cursor.names()]

    def run(to: Target) -> Work[None]:
        snapshot = to.base
        snapshot._check_ours()
        domain = clustering_domain(snapshot.metadata, names)
        protocol = supporting(snapshot.protocol, {CLUSTERING})
        before = ",".join(snapshot.clustering_columns())
        said = {"oldClusteringColumns": before, "newClusteringColumns": ",".join(names)}
        changed = [] if protocol == snapshot.protocol else [protocol]
        return Work(None, [[commit_info("CLUSTER BY", said, {}), *changed, domain]])

    perform_on(session, name, Operation("cluster by", InPlace(run)))


def _drop_feature(session: Session, name: Name, cursor: Cursor) -> None:
    feature = cursor.identifier()
    truncates = bool(cursor.take("TRUNCATE HISTORY"))
    session.table(name).dropFeatureSupport(feature, truncates)


_ACTIONS: dict[str, Callable[[Session, Name, Cursor], None]] = {
    "ADD COLUMNS": _add_columns,
    "ADD COLUMN": _add_columns,
    "ADD CONSTRAINT": _add_constraint,
    "ALTER COLUMN": _alter_column,
    "CHANGE COLUMN": _alter_column,
    "CLUSTER BY": _cluster,
    "DROP COLUMNS": _drop_columns,
    "DROP COLUMN": _drop_columns,
    "DROP CONSTRAINT": _drop_constraint,
    "DROP FEATURE": _drop_feature,
    "RENAME COLUMN": _rename_column,
    "RENAME TO": _rename_table,
    "SET TBLPROPERTIES": _set_properties,
    "UNSET TBLPROPERTIES": _unset_properties,
}
