"""Tables of the catalog's metadata for queries: `deltasql.tables` and so on.

They hold what `Catalog` and `Snapshot` return, so they are equal on every engine.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from delkalakedb.catalog import Catalog
from delkalakedb.deltalake import predicate_from
from delkalakedb.mirror.publisher import status
from delkalakedb.model.predicate.matcher import matcher
from delkalakedb.model.schema.schema import parse_schema
from delkalakedb.query.sources import Source, filtered
from delkalakedb.settings import redact

_TIME = pa.timestamp("ms", "UTC")
_TABLES = pa.schema(
    [
        ("name", pa.string()),
        ("version", pa.int64()),
        ("timestamp", _TIME),
        ("num_files", pa.int64()),
        ("size_bytes", pa.int64()),
        ("location", pa.string()),
        ("id", pa.string()),
        ("description", pa.string()),
        ("partition_columns", pa.list_(pa.string())),
        ("configuration", pa.string()),
        ("min_reader_version", pa.int32()),
        ("min_writer_version", pa.int32()),
        ("reader_features", pa.list_(pa.string())),
        ("writer_features", pa.list_(pa.string())),
    ]
)
_COLUMNS = pa.schema(
    [
        ("table_name", pa.string()),
        ("name", pa.string()),
        ("type", pa.string()),
        ("nullable", pa.bool_()),
        ("partition_column", pa.bool_()),
    ]
)
_HISTORY = pa.schema(
    [
        ("table_name", pa.string()),
        ("version", pa.int64()),
        ("timestamp", _TIME),
        ("operation", pa.string()),
        ("operation_parameters", pa.string()),
        ("operation_metrics", pa.string()),
        ("user_metadata", pa.string()),
        ("engine_info", pa.string()),
        ("read_version", pa.int64()),
        ("isolation_level", pa.string()),
        ("is_blind_append", pa.bool_()),
        ("transaction_id", pa.string()),
        ("db_user", pa.string()),
        ("os_user", pa.string()),
        ("host", pa.string()),
        ("client", pa.string()),
        ("num_added_files", pa.int64()),
        ("num_removed_files", pa.int64()),
        ("added_bytes", pa.int64()),
        ("removed_bytes", pa.int64()),
    ]
)
_FILES = pa.schema(
    [
        ("table_name", pa.string()),
        ("path", pa.string()),
        ("partition_values", pa.string()),
        ("size_bytes", pa.int64()),
        ("num_records", pa.int64()),
        ("modification_time_ms", pa.int64()),
        ("stats", pa.string()),
        ("tags", pa.string()),
        ("deletion_vector", pa.string()),
        ("added_version", pa.int64()),
    ]
)
_LAG = pa.schema(
    [
        ("table_name", pa.string()),
        ("ratified_version", pa.int64()),
        ("published_version", pa.int64()),
        ("versions_behind", pa.int64()),
        ("seconds_behind", pa.float64()),
        ("state", pa.string()),
        ("last_error", pa.string()),
    ]
)
_NAMED = parse_schema(
    '{"type":"struct","fields":[{"name":"table_name","type":"string",'
    '"nullable":false,"metadata":{}}]}'
)

_Rows = Callable[[Catalog, list[str], ds.Expression | None], Iterator[pa.RecordBatch]]


def meta_source(catalog: Catalog, name: str) -> Source:
    """Return the source of one of `METATABLES`, which loads rows when it is scanned."""
    schema, rows = METATABLES[name]

    def scan(
        columns: list[str], where: ds.Expression | None
    ) -> Iterator[pa.RecordBatch]:
        # All columns, because the filter may need columns that aren't selected.
        wanted = columns if where is None else schema.names
        typed = pa.schema([schema.field(column) for column in wanted])
        found = rows(catalog, wanted, where)
        reader = pa.RecordBatchReader.from_batches(typed, found)
        return filtered(reader, columns, where)

    return Source(schema, scan)


def _tables(
    catalog: Catalog, columns: list[str], where: ds.Expression | None
) -> Iterator[pa.RecordBatch]:
    tables = (table.to_dict() for table in catalog.tables())
    yield _batch(
        ({**row, "location": redact(row["location"])} for row in tables),
        _TABLES,
        columns,
    )


def _columns(
    catalog: Catalog, columns: list[str], where: ds.Expression | None
) -> Iterator[pa.RecordBatch]:
    rows = (
        {
            "table_name": table.name,
            "name": ".".join(leaf.path),
            "type": leaf.type,
            "nullable": leaf.nullable,
            "partition_column": leaf.path[0] in table.partition_columns,
        }
        for table in catalog.tables()
        for leaf in table.schema.leaves()
    )
    yield _batch(rows, _COLUMNS, columns)


def _history(
    catalog: Catalog, columns: list[str], where: ds.Expression | None
) -> Iterator[pa.RecordBatch]:
    for name in _names(catalog, _HISTORY, where):
        commits = catalog.snapshot(name).history()
        rows = ({**commit.to_dict(), "table_name": name} for commit in commits)
        yield _batch(rows, _HISTORY, columns)


def _files(
    catalog: Catalog, columns: list[str], where: ds.Expression | None
) -> Iterator[pa.RecordBatch]:
    stored = [column for column in columns if column != "table_name"]
    for name in _names(catalog, _FILES, where):
        for batch in catalog.snapshot(name).files(columns=stored or ["path"]):
            names = pa.repeat(pa.scalar(name), batch.num_rows)
            arrays = [
                names if column == "table_name" else batch[column] for column in columns
            ]
            yield pa.record_batch(arrays, names=columns)


def _lag(
    catalog: Catalog, columns: list[str], where: ds.Expression | None
) -> Iterator[pa.RecordBatch]:
    rows = ({**one.to_dict(), "table_name": one.table} for one in status(catalog))
    yield _batch(rows, _LAG, columns)


def _names(
    catalog: Catalog, columns: pa.Schema, where: ds.Expression | None
) -> list[str]:
    """Return the names of the tables that match a filter on `table_name`."""
    names = [table.name for table in catalog.tables()]
    if where is None:
        return names
    keep = matcher(predicate_from(where, columns, _NAMED), ["table_name"])
    return [name for name in names if keep({"table_name": name}, None)]


def _batch(
    rows: Iterator[dict[str, Any]], schema: pa.Schema, columns: list[str]
) -> pa.RecordBatch:
    typed = pa.schema([schema.field(column) for column in columns])
    values = [[_value(row, column) for column in columns] for row in rows]
    arrays = [
        pa.array((row[i] for row in values), field.type)
        for i, field in enumerate(typed)
    ]
    return pa.record_batch(arrays, schema=typed)


def _value(row: dict[str, Any], column: str) -> Any:
    if column == "timestamp":
        return row["timestamp_ms"]
    value = row[column]
    return json.dumps(value) if isinstance(value, dict) else value


METATABLES: dict[str, tuple[pa.Schema, _Rows]] = {
    "tables": (_TABLES, _tables),
    "columns": (_COLUMNS, _columns),
    "history": (_HISTORY, _history),
    "files": (_FILES, _files),
    "lag": (_LAG, _lag),
}
