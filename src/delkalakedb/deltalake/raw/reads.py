"""The reading methods of `SqlRawTable` that need Arrow or delta-rs."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pa_fs
from arro3.core import RecordBatchReader, Table

from delkalakedb.catalog import (
    Files,
    has_vectors,
    load_files as load_files_of,
    may_have_vectors,
)
from delkalakedb.catalog.read import live_rows
from delkalakedb.deltalake import dataset
from delkalakedb.deltalake.feed import Feed
from delkalakedb.deltalake.live_rows import LiveRows, row_dataset as dataset_of
from delkalakedb.deltalake.raw.raw_table import SqlRawTable
from delkalakedb.deltalake.scan import Real, open_changes
from delkalakedb.errors import ProtocolError
from delkalakedb.model.rules.features import Use
from delkalakedb.model.rules.protocol import unread_features
from delkalakedb.model.stats.add_actions import ADD_ACTION_COLUMNS, add_actions
from delkalakedb.write.engines.deltars import explained


def get_add_file_sizes(table: SqlRawTable) -> dict[str, int]:
    """Return the size of each file."""
    return load_files(table, columns=["path", "size_bytes"]).sizes()


def get_add_actions(table: SqlRawTable, flatten: bool = False) -> Table:
    """Return the files with their statistics in typed columns."""
    batches = load_files(table).table.to_batches()
    actions = add_actions(batches, table.snapshot.metadata, flatten=flatten)
    return Table.from_arrow(actions)


def get_active_partitions(
    table: SqlRawTable, predicate: Any = None
) -> frozenset[frozenset[tuple[str, str | None]]]:
    """Return the partitions that have files."""
    if isinstance(predicate, list):
        named = [column for filters in predicate for column, _, _ in filters]
        schema = table.snapshot.table.schema
        unknown = [name for name in named if schema.column(name) is None]
        if unknown:
            text = msgspec.json.encode(unknown).decode()
            raise ValueError(
                f"Filters include columns that are not in table schema: {text}"
            )
    return load_files(table, predicate, ["partition_values"]).partitions()


def dataset_partitions(
    table: SqlRawTable, schema: pa.Schema, predicate: Any = None
) -> list[tuple[str, Any]]:
    """Return the files for a pyarrow dataset, each with its rows' guarantee."""
    return dataset.dataset_files(load_files(table, predicate), schema)


def odd_files(table: SqlRawTable) -> list[str]:
    """Return the features that matter in reading files and that pyarrow ignores."""
    return dataset.odd_files(table.snapshot)


def needs_delta_rs(table: SqlRawTable) -> bool:
    """Return whether only delta-rs reads the rows, of all readers in this package."""
    snapshot = table.snapshot
    odd = unread_features(snapshot.protocol, snapshot.metadata, Use.ARROW)
    return bool(odd) and bool(odd_files(table))


def row_dataset(
    table: SqlRawTable,
    schema: pa.Schema,
    pruned: Any,
    read_options: Any,
    filesystem: Any,
) -> LiveRows:
    """Return the dataset of a version whose Parquet files alone don't give its rows."""
    if isinstance(filesystem, str):
        filesystem = pa_fs.FileSystem.from_uri(filesystem)[0]
    return dataset_of(
        table.snapshot,
        dataset.dataset_schema(schema, read_options),
        table.storage_options,
        pruned=pruned,
        filesystem=filesystem,
    )


def count(table: SqlRawTable) -> int:
    """Return the number of live rows, as far as the files' statistics tell."""
    vectors = ["deletion_vector"] if may_have_vectors(table.snapshot) else []
    files = table.snapshot.files(columns=["num_records", *vectors])
    return sum(pc.sum(live_rows(batch)).as_py() or 0 for batch in files)


def load_files(
    table: SqlRawTable,
    predicate: Any = None,
    columns: Sequence[str] = ADD_ACTION_COLUMNS,
) -> Files:
    """Return the files, or those that may hold a row that matches `predicate`."""
    return load_files_of(table.snapshot, predicate, columns)


def scan(
    table: SqlRawTable, columns: list[str] | None = None, predicate: str | None = None
) -> RecordBatchReader:
    """Return the rows, which delta-rs reads."""
    real = table.real()
    with _explained(table, "scan", real):
        reader = real.raw.scan(columns=columns, predicate=predicate)
    return real.keeping(reader)


def load_cdf(table: SqlRawTable, **options: Any) -> RecordBatchReader:
    """Return the changes of a range of versions, which delta-rs reads if it can."""
    real = table.real()
    if real.folder is not None:
        since = options.get("starting_version") or 0
        real = open_changes(table.catalog, table.snapshot, since)
    with _explained(table, "load_cdf", real):
        reader = real.raw.load_cdf(**options)
        if may_have_vectors(table.snapshot):
            # delta-rs reads the published log to its end.
            newest = None if real.folder is None else table.version()
            feed = Feed(
                table.catalog, table.snapshot, newest, options, table.storage_options
            )
            if feed.is_misread:
                return feed.read(pa.schema(reader.schema))
    return real.keeping(reader)


def _explained(
    table: SqlRawTable, operation: str, real: Real
) -> AbstractContextManager[None]:
    what = f"{table.name}: {operation} of version {table.version()}"
    return explained(what, real.seen, real.location)


def deletion_vectors(table: SqlRawTable) -> RecordBatchReader:
    """Return, for each file with a deletion vector, which rows are live."""
    return table.real().deletion_vectors()


def table_provider(table: SqlRawTable, session: Any = None) -> Any:
    """Return the table for DataFusion, which stays at the loaded version."""
    if has_vectors(table.snapshot):
        raise ProtocolError(
            f"{table.name}: DataFusion can't read the deletion vectors of version "
            f"{table.version()} through a table; use register_dataset() with the "
            "table's to_pyarrow_dataset(), or dk.QueryBuilder"
        )
    return table.real().lasting().__datafusion_table_provider__(session)
