"""CREATE, REPLACE and DROP TABLE, and COMMENT ON TABLE."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql.types import DataType, StructField

from delkalakedb.catalog import Snapshot, open_catalog
from delkalakedb.errors import DeltaError, QueryError, TableNotFoundError
from delkalakedb.migrate import drop_table
from delkalakedb.model.actions import Metadata, known
from delkalakedb.model.rules.protocol import check_writable
from delkalakedb.settings import format_uri, is_deltasql, require_table
from delkalakedb.spark.face import DeltaTable, IdentityGenerator, write
from delkalakedb.spark.pyspark_api import parse_type
from delkalakedb.spark.sparksql.relations import (
    Session,
    check_no_query,
    run_query,
    take_version,
)
from delkalakedb.spark.sparksql.statement import (
    Cursor,
    Name,
    Part,
)
from delkalakedb.spark.writer import CURRENT_DEFAULT, commit_info, evolved_protocol
from delkalakedb.write import Operation, Target, perform
from delkalakedb.write.engines import InPlace, Work

_AFTER_TYPE = ("NOT NULL", "COMMENT", "GENERATED", "DEFAULT", "FIRST", "AFTER")
# columns of a clone's result, and the metrics of its commit
_CLONED = {
    "source_table_size": "sourceTableSize",
    "source_num_of_files": "sourceNumOfFiles",
    "num_removed_files": "numRemovedFiles",
    "num_copied_files": "numCopiedFiles",
    "removed_files_size": "removedFilesSize",
    "copied_files_size": "copiedFilesSize",
}
_REPLACING = ("overwrite", "replace")
_CLAUSES = (
    *("USING", "LOCATION", "PARTITIONED BY", "COMMENT", "TBLPROPERTIES"),
    *("CLUSTER BY", "AS", "SELECT", "WITH", "VALUES"),
)


@dataclass
class NewColumn:
    """A column of CREATE TABLE or ADD COLUMNS."""

    name: Name
    type: DataType
    nullable: bool = True
    comment: str | None = None
    generated: str | IdentityGenerator | None = None
    by_default: IdentityGenerator | None = None
    default: str | None = None

    def struct_field(self) -> StructField:
        """Return the column without the way in which its values are generated."""
        metadata = {"comment": self.comment, CURRENT_DEFAULT: self.default}
        given = {key: text for key, text in metadata.items() if text is not None}
        return StructField(self.name.parts[-1], self.type, self.nullable, given)


@dataclass
class _Clauses:
    """The clauses of CREATE TABLE."""

    columns: list[NewColumn] = field(default_factory=list)
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
    mode = "error"
    if replaces:
        mode = "replace" if verb == "REPLACE" else "overwrite"
    elif lenient:
        mode = "ignore"
    if cursor.sees("LIKE"):
        raise QueryError(
            "CREATE TABLE ... LIKE isn't supported; write CREATE TABLE new AS SELECT * "
            "FROM old WHERE false"
        )
    if kind := cursor.take("SHALLOW CLONE", "DEEP CLONE", "CLONE"):
        return _clone(session, name, mode, cursor, kind == "SHALLOW CLONE")
    clauses = _clauses(session, cursor)
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


def _clone(
    session: Session, name: Name, mode: str, cursor: Cursor, shallow: bool
) -> DataFrame:
    source = session.table(cursor.name())
    clause = take_version(cursor)
    options: dict[str, Any] = {"isShallow": shallow, "replace": mode in _REPLACING}
    if cursor.take("TBLPROPERTIES"):
        options["properties"] = dict(properties(session, cursor))
    if cursor.sees("LOCATION"):
        raise QueryError("a clone at a LOCATION isn't supported; clone to delta.`path`")
    cursor.finish()
    target = format_uri(session.uri(name)) if name.place is None else name.place
    if mode in ("ignore", "replace") and (_find(session, name) is None) == (
        mode == "replace"
    ):
        if mode == "replace":
            raise TableNotFoundError(f"{name}: the catalog has no such table")
        return session.empty()
    if clause is None:
        made = source.clone(target, **options)
    elif clause[0] == "BIGINT":
        version = int(session.value(clause[1], "BIGINT"))
        made = source.cloneAtVersion(version, target, **options)
    else:
        moment = session.value(clause[1], "STRING")
        made = source.cloneAtTimestamp(moment, target, **options)
    (commit,) = made.history(1).collect()
    row = tuple(int(commit.operationMetrics[metric]) for metric in _CLONED.values())
    schema = ", ".join(f"{column} BIGINT" for column in _CLONED)
    return session.spark.createDataFrame([row], schema)


def _clauses(session: Session, cursor: Cursor) -> _Clauses:
    found = _Clauses()
    if cursor.sees("("):
        parts = cursor.brackets().split(types=True)
        found.columns = [new_column(session, part) for part in parts]
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
                found.properties = dict(properties(session, cursor))
            case "PARTITIONED BY":
                parts = cursor.brackets().split(types=True)
                found.partitions = [_partition(part) for part in parts]
                # a partition column with a type is a new column
                typed = [part for part in parts if len(part.tokens) > 1]
                found.columns += [new_column(session, part) for part in typed]
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


def new_column(session: Session, part: Part) -> NewColumn:
    """Return the column of CREATE TABLE or ADD COLUMNS that `part` describes."""
    cursor = Cursor(part)
    if cursor.sees("CONSTRAINT") or cursor.sees("PRIMARY KEY"):
        raise QueryError(
            f"{part.raw}: add constraints with ALTER TABLE ... ADD CONSTRAINT name "
            "CHECK (...)"
        )
    name = cursor.name()
    cursor.take(":")
    kind = type_of(cursor.until(*_AFTER_TYPE, types=True))
    column = NewColumn(name, kind)
    while not cursor.done:
        match cursor.need(*_AFTER_TYPE):
            case "NOT NULL":
                column.nullable = False
            case "COMMENT":
                column.comment = session.text(cursor.string())
            case "GENERATED":
                always = cursor.need("ALWAYS AS", "BY DEFAULT AS") == "ALWAYS AS"
                if not always or cursor.sees("IDENTITY"):
                    cursor.need("IDENTITY")
                    generator = _generator(cursor)
                    column.generated = generator if always else None
                    column.by_default = None if always else generator
                else:
                    column.generated = cursor.brackets().text
            case "DEFAULT":
                value = cursor.until(*_AFTER_TYPE)
                check_no_query(value, "default of a column")
                column.default = value.text
            case _:
                raise QueryError(
                    f"{part.raw}: only NOT NULL, COMMENT, DEFAULT and GENERATED ... AS "
                    "may follow a column's type here"
                )
    return column


def _generator(cursor: Cursor) -> IdentityGenerator:
    """Take `(START WITH n INCREMENT BY n)`, of which each part may be missing."""
    generator = IdentityGenerator()
    if cursor.sees("("):
        inside = Cursor(cursor.brackets())
        while not inside.done:
            if inside.need("START WITH", "INCREMENT BY") == "START WITH":
                generator.start = int(inside.number())
            else:
                generator.step = int(inside.number())
    return generator


def type_of(part: Part) -> DataType:
    """Return the type that `part` names."""
    if not part:
        raise QueryError("a column needs a type")
    return parse_type(part.raw)


def properties(session: Session, cursor: Cursor) -> Mapping[str, str]:
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
        if column.default is not None:
            builder = builder.addColumns([column.struct_field()])
            continue
        builder = builder.addColumn(
            column.name.dotted,
            column.type,
            column.nullable,
            generatedAlwaysAs=column.generated,
            generatedByDefaultAs=column.by_default,
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
    uri = session.uri(name)
    table = require_table(uri)
    there = _find(session, name)
    if there is None and mode == "replace":
        raise TableNotFoundError(f"{table}: the catalog has no such table")
    clusters: list[str] | None = clauses.clusters or None
    overwrites = mode in _REPLACING
    if there is not None and overwrites:
        _check_kept(table, there, clauses)
        if there.clustering_columns():
            clusters = clauses.clusters
    write(
        run_query(session, query),
        format_uri(uri),
        "overwrite" if overwrites else mode,
        partition_by=clauses.partitions,
        cluster_by=clusters,
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


# ---- comment and drop


def run_comment(session: Session, cursor: Cursor) -> DataFrame:
    """Run `COMMENT ON TABLE table IS {text | NULL}`."""
    cursor.need("ON TABLE")
    name = cursor.name()
    cursor.need("IS")
    text = None if cursor.take("NULL") else session.text(cursor.string())
    cursor.finish()

    def change(snapshot: Snapshot) -> Metadata:
        return msgspec.structs.replace(snapshot.metadata, description=text)

    said = msgspec.json.encode({"comment": text}).decode()
    change_metadata(session, name, "SET TBLPROPERTIES", {"properties": said}, change)
    return session.empty()


def change_metadata(
    session: Session,
    name: Name,
    operation: str,
    parameters: Mapping[str, Any],
    change: Callable[[Snapshot], Metadata],
) -> None:
    """Commit the metadata that `change` makes of a table's snapshot.

    The protocol gets the features that the metadata needs.
    """

    def run(to: Target) -> Work[None]:
        snapshot = to.base
        snapshot._check_ours()
        metadata = change(snapshot)
        if metadata == snapshot.metadata:
            return Work(None)
        protocol = evolved_protocol(snapshot.protocol, metadata)
        check_writable(protocol, metadata)
        changed = [] if protocol == snapshot.protocol else [protocol]
        info = commit_info(operation, parameters, {})
        return Work(None, [[info, *changed, metadata]])

    perform_on(session, name, Operation(operation.lower(), InPlace(run)))


def perform_on(session: Session, name: Name, operation: Operation[None]) -> None:
    """Commit an operation on a table."""
    uri = session.uri(name)
    catalog = open_catalog(uri)
    snapshot = catalog.snapshot(require_table(uri))
    perform(catalog, snapshot, operation, storage_options=session.storage_options)


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
