"""The rows of a table, copied from one catalog to another of any engine.

A copy changes only the table's number, because each catalog numbers its own tables, and
the numbers of files and columns, because they contain the table's number.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from delkalakedb.catalog.engine import Backend, Insert
from delkalakedb.catalog.read import COLUMNS_PER_TABLE, FILES_PER_TABLE, Head

# rows; more than a table can have
_ALL = 2**62
# `removed_version` of a live file, in engines that don't have NULL there
_ALIVE = 2**63 - 1
# rows that are copied or compared at once
_BATCH_ROWS = 20_000
# the columns that contain the table's number, and the factor of that number
_PER_TABLE = {
    "table_id": 1,
    "file_id": FILES_PER_TABLE,
    "column_id": COLUMNS_PER_TABLE,
}


@dataclass(frozen=True, slots=True)
class CatalogTable:
    """A table of the catalog's schema that has rows of a Delta table.

    `key` is the column that says which Delta table a row belongs to. `order` names the
    columns that are unique for each row.
    """

    table: str
    order: str
    numbers: str
    texts: str = ""
    booleans: str = ""
    doubles: str = ""
    key: str = "table_id"

    @property
    def schema(self) -> pa.Schema:
        """The columns as an Arrow schema."""
        kinds = {
            pa.int64(): self.numbers,
            pa.string(): self.texts,
            pa.bool_(): self.booleans,
            pa.float64(): self.doubles,
        }
        return pa.schema(
            [(name, kind) for kind, names in kinds.items() for name in names.split()]
        )


PARTS = (
    CatalogTable(
        "dl_table_versions",
        "version",
        "table_id version timestamp_ms read_version metadata_version protocol_version "
        "num_added_files num_removed_files added_bytes removed_bytes num_files "
        "size_bytes",
        "transaction_id operation operation_parameters operation_metrics user_metadata "
        "engine_info isolation_level db_user os_user host client commit_info "
        "other_actions published_sha256",
        "is_blind_append",
    ),
    CatalogTable("dl_metadata", "version", "table_id version", "action"),
    CatalogTable("dl_protocols", "version", "table_id version", "action"),
    CatalogTable(
        "dl_txns",
        "version, app_id",
        "table_id version txn_version",
        "app_id action",
    ),
    CatalogTable(
        "dl_domains", "version, domain", "table_id version", "domain action", "removed"
    ),
    CatalogTable(
        "dl_cdc_files",
        "version, ordinal",
        "table_id version ordinal size_bytes",
        "path action",
    ),
    CatalogTable(
        "dl_files",
        "file_id",
        "file_id table_id path_hash added_version removed_version size_bytes "
        "modification_time_ms num_records base_row_id default_row_commit_version "
        "null_fields deletion_timestamp_ms",
        "path dv_id partition_values stats tags deletion_vector clustering_provider "
        "extra remove_fields",
        "data_change remove_data_change",
        key="file_id",
    ),
    CatalogTable(
        "dl_number_stats",
        "file_id, column_id",
        "file_id column_id class added_version removed_version",
        booleans="has_null",
        doubles="lo hi",
        key="file_id",
    ),
    CatalogTable(
        "dl_text_stats",
        "file_id, column_id",
        "file_id column_id class added_version removed_version",
        "lo hi",
        "has_null",
        key="file_id",
    ),
)


def renumbered(head: Head, table_id: int) -> Head:
    """Return `head` with the number `table_id`."""
    shift = (table_id - head.table_id) * COLUMNS_PER_TABLE
    columns = tuple(
        msgspec.structs.replace(column, column_id=column.column_id + shift)
        for column in head.stat_columns
    )
    return replace(head, table_id=table_id, stat_columns=columns)


def count_rows(backend: Backend, part: CatalogTable, table_id: int) -> int:
    """Return how many rows `part` has of a table."""
    sql = _filled(backend, "count_copied", part)
    with backend.reading() as session:
        (count,) = session.values_sql(sql, _span(part, table_id))
    return int(count)


def read_rows(
    backend: Backend, part: CatalogTable, table_id: int, done: int, number: int
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a part after the first `done`, renumbered to `number`."""
    schema = part.schema
    # as numbers, because SQLite has no booleans
    booleans = {name: pa.int64() for name in part.booleans.split()}
    plain = pa.schema([(f.name, booleans.get(f.name, f.type)) for f in schema])
    params = {**_span(part, table_id), "rows": _ALL, "done": done}
    sql = _filled(backend, "copy_rows", part)
    shift = number - table_id
    for batch in backend.batches(sql, params, plain):
        for start in range(0, batch.num_rows, _BATCH_ROWS):
            yield _shifted(batch.slice(start, _BATCH_ROWS), shift).cast(schema)


def inserts(part: CatalogTable, rows: pa.RecordBatch) -> list[Insert]:
    """Return the inserts of `rows`."""
    if "removed_version" not in rows.schema.names or part.table == "dl_files":
        return [_insert(part, rows)]
    # The engine's default marks a live file, so a live row has no such column.
    alive = pc.is_null(rows["removed_version"])
    living = rows.filter(alive).drop_columns(["removed_version"])
    dead = rows.filter(pc.invert(alive))
    return [_insert(part, some) for some in (living, dead) if some.num_rows]


def find_difference(
    source: tuple[Backend, int], target: tuple[Backend, int]
) -> str | None:
    """Return the first part in which two tables differ, or None.

    Args:
        source: the backend and the number of one table.
        target: the backend and the number of the other table.
    """
    number = target[1]
    for part in PARTS:
        both = [
            _chunks(read_rows(backend, part, table_id, 0, number))
            for backend, table_id in (source, target)
        ]
        for ours, theirs in zip_longest(*both):
            if ours is None or theirs is None or not ours.equals(theirs):
                return part.table
    return None


def _chunks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield the rows of `batches` in tables of `_BATCH_ROWS` rows."""
    held: pa.Table | None = None
    for batch in batches:
        more = pa.Table.from_batches([batch])
        held = more if held is None else pa.concat_tables([held, more])
        while held.num_rows >= _BATCH_ROWS:
            yield held.slice(0, _BATCH_ROWS).combine_chunks()
            held = held.slice(_BATCH_ROWS)
    if held is not None and held.num_rows:
        yield held.combine_chunks()


def _insert(part: CatalogTable, rows: pa.RecordBatch) -> Insert:
    return Insert(part.table, {n: rows[n].to_pylist() for n in rows.schema.names})


def _shifted(rows: pa.RecordBatch, shift: int) -> pa.RecordBatch:
    for index, name in enumerate(rows.schema.names):
        if unit := _PER_TABLE.get(name):
            moved = pc.add(rows.column(index), pa.scalar(shift * unit, pa.int64()))
            rows = rows.set_column(index, name, moved)
    return rows


def _span(part: CatalogTable, table_id: int) -> dict[str, int]:
    unit = _PER_TABLE[part.key]
    return {"first": table_id * unit, "end": (table_id + 1) * unit}


def _filled(backend: Backend, statement: str, part: CatalogTable) -> str:
    sql = backend.statements[statement]
    names = {
        "columns": ", ".join(_selected(field) for field in part.schema),
        "table": part.table,
        "key": part.key,
        "order": part.order,
    }
    for name, text in names.items():
        sql = sql.replace(f"{{{name}}}", text)
    return sql


def _selected(field: pa.Field) -> str:
    if pa.types.is_boolean(field.type):
        return f"CAST({field.name} AS INTEGER) AS {field.name}"
    if field.name == "removed_version":
        return f"NULLIF(removed_version, {_ALIVE}) AS removed_version"
    return str(field.name)
