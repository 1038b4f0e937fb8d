"""The methods of `SqlRawTable` that change a table by delta-rs, or by Arrow."""

import inspect
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, TypeVar

import deltalake
import msgspec
import pyarrow as pa
from deltalake._internal import RawDeltaTable

from delkalakedb.deltalake.raw.merge import MergeRequest
from delkalakedb.deltalake.raw.raw_table import SqlRawTable
from delkalakedb.errors import (
    DeltaError,
    PredicateError,
    SchemaMismatchError,
    TableExistsError,
    UnknownColumnError,
    did_you_mean,
)
from delkalakedb.model.actions import Add, Metadata, known
from delkalakedb.model.new_actions import app_txns, custom_metadata
from delkalakedb.model.predicate.matcher import is_of_partitions
from delkalakedb.model.predicate.predicate import EVERY_FILE, Predicate, parse_predicate
from delkalakedb.model.schema.properties import check_changeable
from delkalakedb.model.schema.schema import parse_path, parse_schema
from delkalakedb.model.stats.stats import parse_stats
from delkalakedb.write import Engine, Operation, Spool
from delkalakedb.write.engines import (
    Compaction,
    Purge,
    Search,
    VectorDelete,
    Vectors,
    can_purge,
    check_partitions,
    split_small,
    takes_vectors,
)
from delkalakedb.write.engines.deltars import (
    IN_PRIVATE,
    DeltaRs,
    split_properties,
    watched,
)

# bytes; delta-rs's own default
_TARGET_BYTES = 100 * 1024 * 1024
# Options that make an append more than its rows.
_ASKING = (
    "partition_by",
    "schema_mode",
    "predicate",
    "target_file_size",
    "name",
    "description",
    "configuration",
    "writer_properties",
    "commit_properties",
)
_Options = dict[str, Any]
T = TypeVar("T")


def _options(method: str, args: Sequence[Any], kwargs: _Options) -> _Options:
    """Return the arguments of a call by the names that deltalake's method has."""
    bound = _signature(method).bind(None, *args, **kwargs)
    bound.apply_defaults()
    options = {**bound.arguments, "post_commithook_properties": IN_PRIVATE}
    del options["self"]
    return options


@lru_cache
def _signature(method: str) -> inspect.Signature:
    return inspect.signature(getattr(RawDeltaTable, method))


def write(table: SqlRawTable, *args: Any, **kwargs: Any) -> None:
    """Append rows, or overwrite the table."""
    options = _options("write", args, kwargs)
    data, mode = options.pop("data"), options["mode"]
    if mode == "ignore":
        return
    if mode == "error":
        location = table.current().table.location
        raise TableExistsError(f"{table.name}: A table already exists at {location}")
    if mode == "append" and not any(map(options.get, _ASKING)):
        small, data = split_small(table.current(), data)
        if small is not None:
            table.perform(Operation("append", small), None)
            return
    with _explained_misfit(table, mode, options["batch_schema"]):
        _write(table, data, options)


def _write(table: SqlRawTable, data: Any, options: _Options) -> None:
    """Have delta-rs append rows or overwrite the table."""
    mode, predicate = options["mode"], options["predicate"]
    # The properties of an existing table that delta-rs doesn't know stay as they are.
    options["configuration"] = split_properties(options["configuration"])[0] or None
    commit_properties = options["commit_properties"]
    if mode == "overwrite" and predicate is not None:
        with closing(Spool(data)) as spool:
            engine = DeltaRs[None](lambda raw: raw.write(spool.reader(), **options))
            parsed = _parsed(table, predicate)
            partitions = table.current().metadata.partition_columns
            whole = is_of_partitions(parsed, partitions)
            search = None if whole else Search(parsed, sql=predicate)
            marking = _with_vectors(table, engine, search)
            table.perform(Operation("overwrite", marking, parsed), commit_properties)
        return
    engine = DeltaRs[None](lambda raw: raw.write(data, **options))
    operation = Operation(mode, engine, remove_all=mode == "overwrite")
    table.perform(operation, commit_properties)


@contextmanager
def _explained_misfit(table: SqlRawTable, mode: str, schema: Any) -> Iterator[None]:
    """Name the columns of data that don't fit the table in the error of a write."""
    try:
        yield
    except Exception as error:
        # delta-rs has no class of error for a value that can't be cast.
        failed_cast = re.search(r"(?i)\bcast\b", str(error)) is not None
        if not (isinstance(error, SchemaMismatchError) or failed_cast):
            raise
        from delkalakedb.model.schema.misfit import explain_misfit

        snapshot = table.current()
        data = parse_schema(deltalake.Schema.from_arrow(schema).to_json())
        found = explain_misfit(data, parse_schema(snapshot.metadata.schema_string))
        if found is None:
            raise
        what = f"{table.name}: {mode} on version {snapshot.version}"
        # The value that can't be cast is in the cause only: it may be confidential.
        cause = error.__cause__ if isinstance(error, DeltaError) else None
        raise SchemaMismatchError(f"{what}: {found}") from cause or error


def delete(table: SqlRawTable, *args: Any, **kwargs: Any) -> str:
    """Delete rows; return metrics as JSON."""
    options = _options("delete", args, kwargs)
    predicate = options["predicate"]
    parsed = _parsed(table, predicate)
    partitions = table.current().metadata.partition_columns
    whole = predicate is None or is_of_partitions(parsed, partitions)
    engine = DeltaRs[str](
        lambda raw: raw.delete(**options),
        reads=lambda add: not (whole and _is_counted(add)),
    )
    search = None if whole else Search(parsed, sql=predicate)
    marking = _with_vectors(table, engine, search, VectorDelete[str])
    operation = Operation("delete", marking, parsed)
    return table.perform(operation, options["commit_properties"])


def update(table: SqlRawTable, *args: Any, **kwargs: Any) -> str:
    """Update rows; return metrics as JSON."""
    options = _options("update", args, kwargs)
    _check_columns(table, "update", options["updates"])
    engine = DeltaRs[str](lambda raw: raw.update(**options))
    parsed = _parsed(table, options["predicate"])
    search = Search(parsed, sql=options["predicate"])
    operation = Operation("update", _with_vectors(table, engine, search), parsed)
    return table.perform(operation, options["commit_properties"])


def _check_columns(table: SqlRawTable, what: str, names: Iterable[str]) -> None:
    """Raise an error for an unknown column, which not every call notices."""
    schema = parse_schema(table.current().metadata.schema_string)
    known = {field.name.lower(): field.name for field in schema.fields}
    for name in names:
        first, *_ = parse_path(name)
        spelt = {first.lower(), name.lower(), name.strip('"').lower()}
        if not spelt & known.keys():
            near = did_you_mean(name, known.values())
            raise UnknownColumnError(
                f"{table.name}: {what} on version {table.current().version}: no column "
                f"{name}{near}; the table has {', '.join(known.values())}"
            )


def _with_vectors(
    table: SqlRawTable,
    engine: DeltaRs[T],
    search: Search | None,
    kind: type[Vectors[T]] = Vectors,
) -> Engine[T]:
    """Return the engine that writes deletion vectors where the table takes them."""
    if search is None or not takes_vectors(table.current()):
        return engine
    return kind(engine, search, table.catalog.settings.vectors)


def create_merge_builder(
    table: SqlRawTable, source: Any, *args: Any, **kwargs: Any
) -> MergeRequest:
    """Return the builder of a merge, which `merge_execute` runs."""
    options = _options("create_merge_builder", (source, *args), kwargs)
    return MergeRequest(options.pop("source"), options)


def merge_execute(table: SqlRawTable, merge_builder: MergeRequest) -> str:
    """Merge; return metrics as JSON."""
    with closing(Spool(merge_builder.source)) as spool:
        engine = DeltaRs[str](lambda raw: merge_builder.run(raw, spool.reader()))
        search = _matching(table, merge_builder, spool)
        operation = Operation(
            "merge", _with_vectors(table, engine, search), search.files
        )
        return table.perform(operation, merge_builder.commit_properties)


def _matching(table: SqlRawTable, merge: MergeRequest, spool: Spool) -> Search:
    """Return the rows that a merge may change, by its source's keys."""
    snapshot = table.current()
    try:
        search = merge.matching(
            snapshot.metadata, spool, with_keys=takes_vectors(snapshot)
        )
    except pa.ArrowException as error:
        raise DeltaError(
            f"{table.name}: merge on version {snapshot.version}: the source can't "
            f"be read: {error}"
        ) from error
    return replace(search, inserts=merge.inserts)


def compact_optimize(table: SqlRawTable, *args: Any, **kwargs: Any) -> str:
    """Compact small files; return metrics as JSON."""
    options = _options("compact_optimize", args, kwargs)
    snapshot = table.current()
    enough = options["target_size"] or _target_bytes(snapshot.metadata)
    filters = options["partition_filters"]
    engine = DeltaRs[str](
        watched(f"compact {table.name}", lambda raw: raw.compact_optimize(**options)),
        # delta-rs doesn't open files of the target size.
        reads=lambda add: add.size < enough,
    )
    understood = filters is None or _parsed(table, filters) != EVERY_FILE
    if not can_purge(snapshot) or not understood:
        return _rearrange(table, "compact", engine, options)
    parameters = {"targetSize": str(enough), "predicate": _json(filters or [])}
    tasks = options["max_concurrent_tasks"]
    purge = _purge("OPTIMIZE", parameters, options["commit_properties"], tasks)
    return _rearrange(table, "compact", Compaction(engine, enough, purge), options)


def purge(
    table: SqlRawTable,
    partition_filters: Sequence[Any] | None = None,
    dead_share: float = 0.0,
    max_concurrent_tasks: int | None = None,
    commit_properties: Any = None,
) -> str:
    """Rewrite files without their deleted rows; return metrics as JSON."""
    snapshot = table.current()
    metadata = snapshot.metadata
    where: Predicate = EVERY_FILE
    if partition_filters:
        schema = parse_schema(metadata.schema_string)
        columns = metadata.partition_columns
        where = parse_predicate(partition_filters, schema, columns)
    check_partitions(snapshot, where)
    parameters = {"predicate": _json(partition_filters or []), "applyPurge": "true"}
    engine = _purge("REORG", parameters, commit_properties, max_concurrent_tasks)
    engine = replace(engine, dead_share=dead_share)
    operation = Operation("purge", engine, where, rearranges=True)
    return _json(table.perform(operation, commit_properties))


def _purge(
    name: str, parameters: _Options, commit_properties: Any, max_tasks: int | None
) -> Purge:
    return Purge(
        operation=name,
        parameters=parameters,
        custom=custom_metadata(commit_properties),
        txns=app_txns(commit_properties),
        max_tasks=max_tasks,
    )


def z_order_optimize(table: SqlRawTable, *args: Any, **kwargs: Any) -> str:
    """Rewrite files in Z-order; return metrics as JSON."""
    options = _options("z_order_optimize", args, kwargs)
    _check_columns(table, "z_order", options["z_order_columns"])
    what = f"z-order {table.name}"
    engine = DeltaRs[str](watched(what, lambda raw: raw.z_order_optimize(**options)))
    return _rearrange(table, "z_order", engine, options)


def _rearrange(
    table: SqlRawTable, name: str, engine: Engine[str], options: _Options
) -> str:
    files = _parsed(table, options["partition_filters"])
    operation = Operation(name, engine, files, rearranges=True)
    return table.perform(operation, options["commit_properties"])


def create_write_transaction(table: SqlRawTable, *args: Any, **kwargs: Any) -> None:
    """Commit files that are at the location already, without moving this handle."""
    options = _options("create_write_transaction", args, kwargs)
    overwrites, filters = options["mode"] == "overwrite", options["partitions_filters"]
    operation = Operation[None](
        "write transaction",
        DeltaRs(lambda raw: raw.create_write_transaction(**options)),
        _parsed(table, filters) if overwrites and filters else None,
        remove_all=overwrites and not filters,
    )
    here = table.snapshot
    table.perform(operation, options["commit_properties"])
    table.snapshot = here


def set_table_properties(table: SqlRawTable, *args: Any, **kwargs: Any) -> None:
    """Set table properties."""
    options = _options("set_table_properties", args, kwargs)
    options["properties"], others = split_properties(options["properties"])
    engine = DeltaRs[None](
        lambda raw: raw.set_table_properties(**options), properties=others
    )
    operation = Operation("set_table_properties", engine)
    try:
        table.perform(operation, options["commit_properties"])
    except DeltaError:
        # Says which property there isn't, and which one may be meant.
        check_changeable(options["properties"])
        raise


def _alter(
    method: str,
    table: SqlRawTable,
    *args: Any,
    files: Predicate | None = None,
    **kwargs: Any,
) -> None:
    options = _options(method, args, kwargs)
    engine = DeltaRs[None](lambda raw: getattr(raw, method)(**options))
    table.perform(Operation(method, engine, files), options["commit_properties"])


add_columns = partial(_alter, "add_columns")
# Reads all rows, because each must meet the constraint.
add_constraints = partial(_alter, "add_constraints", files=EVERY_FILE)
add_feature = partial(_alter, "add_feature")
drop_column_not_null = partial(_alter, "drop_column_not_null")
drop_constraints = partial(_alter, "drop_constraints")
set_column_metadata = partial(_alter, "set_column_metadata")
set_table_description = partial(_alter, "set_table_description")
set_table_name = partial(_alter, "set_table_name")


def _parsed(table: SqlRawTable, predicate: str | Sequence[Any] | None) -> Predicate:
    """Return the predicate; one that only delta-rs understands matches every file."""
    metadata = table.current().metadata
    try:
        if isinstance(predicate, str) and not _reads_alike(predicate):
            return EVERY_FILE
        return parse_predicate(
            predicate or None,
            parse_schema(metadata.schema_string),
            metadata.partition_columns,
        )
    except PredicateError:
        return EVERY_FILE


def _reads_alike(predicate: str) -> bool:
    # sqlglot takes long to import and to parse, so it is used only where it can matter.
    if "distinct" not in predicate.lower():
        return True
    from delkalakedb.model.predicate.sql import reads_alike

    return reads_alike(predicate)


def _target_bytes(metadata: Metadata) -> int:
    """Return how large compaction makes files, as delta-rs reads the properties."""
    given = (known(metadata.configuration) or {}).get("delta.targetFileSize") or ""
    size_bytes = int(given) if given.isascii() and given.isdecimal() else 0
    return size_bytes or _TARGET_BYTES


def _is_counted(add: Add) -> bool:
    """Return whether the log says how many rows a file has, without opening it."""
    stats = parse_stats(known(add.stats))
    counted = stats is not None and stats.num_records is not None
    return counted and known(add.deletion_vector) is None


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
