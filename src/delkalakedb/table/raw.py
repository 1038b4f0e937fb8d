"""The stand-in for deltalake's `RawDeltaTable` that answers from SQL."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from arro3.core import RecordBatchReader, Table

from delkalakedb.errors import ProtocolError
from delkalakedb.model.actions import DeletionVector
from delkalakedb.model.addactions import ADD_ACTION_COLUMNS, add_actions
from delkalakedb.model.codec import decode_struct
from delkalakedb.table.dataset import dataset_files, odd_files
from delkalakedb.table.files import Files, has_vectors, load_files, may_have_vectors
from delkalakedb.table.real import Real, open_changes, open_real
from delkalakedb.table.upkeep import SqlRawUpkeep
from delkalakedb.table.writes import SqlRawWrites
from delkalakedb.workspace.deltars import check_delta_rs
from delkalakedb.workspace.failures import explained

__all__ = ["SqlRawTable"]


class SqlRawTable(SqlRawWrites, SqlRawUpkeep):
    """A handle on one version of a table; loading moves it."""

    _real: Real | None = None

    def get_add_file_sizes(self) -> dict[str, int]:
        """The size of each file."""
        return self.load_files(columns=["path", "size_bytes"]).sizes()

    def get_add_actions(self, flatten: bool = False) -> Table:
        """The files with their statistics in typed columns."""
        batches = self.load_files().table.to_batches()
        actions = add_actions(batches, self._snapshot.metadata, flatten=flatten)
        return Table.from_arrow(actions)

    def get_active_partitions(
        self, predicate: Any = None
    ) -> frozenset[frozenset[tuple[str, str | None]]]:
        """The partitions that have files."""
        self._check_columns(predicate)
        return self.load_files(predicate, ["partition_values"]).partitions()

    def dataset_partitions(
        self, schema: pa.Schema, predicate: Any = None
    ) -> list[tuple[str, Any]]:
        """The files for a pyarrow dataset, each with what holds for all its rows."""
        return dataset_files(self.load_files(predicate), schema)

    def odd_files(self) -> list[str]:
        """The features that delta-rs heeds in reading files, and pyarrow doesn't."""
        return odd_files(self._snapshot)

    def count(self) -> int:
        """The rows, as far as the files' statistics say; deleted ones don't count."""
        vectors = ["deletion_vector"] if may_have_vectors(self._snapshot) else []
        files = self._snapshot.files(columns=["num_records", *vectors])
        return sum(map(_live_rows, files))

    def load_files(
        self, predicate: Any = None, columns: Sequence[str] = ADD_ACTION_COLUMNS
    ) -> Files:
        """The files, or those that may hold a row that matches."""
        return load_files(self._snapshot, predicate, columns)

    def scan(
        self, columns: list[str] | None = None, predicate: str | None = None
    ) -> RecordBatchReader:
        """The rows, read by delta-rs."""
        real = self.real()
        with self._explained("scan", real):
            reader = real.raw.scan(columns=columns, predicate=predicate)
        return real.keeping(reader)

    def load_cdf(self, **options: Any) -> RecordBatchReader:
        """The changes of a range of versions, read by delta-rs."""
        real = self.real()
        if real.folder is not None:
            since = options.get("starting_version") or 0
            real = open_changes(self._catalog, self._snapshot, since)
        with self._explained("load_cdf", real):
            reader = real.raw.load_cdf(**options)
        return real.keeping(reader)

    def deletion_vectors(self) -> RecordBatchReader:
        """The rows to keep of each file that has a deletion vector."""
        return self.real().deletion_vectors()

    def __datafusion_table_provider__(self, session: Any = None) -> Any:
        """The table for DataFusion; it stays at the loaded version."""
        if has_vectors(self._snapshot):
            raise ProtocolError(
                f"{self._name}: DataFusion can't read the deletion vectors of version "
                f"{self.version()} through a table; use scan() or dk.QueryBuilder"
            )
        return self.real().lasting().__datafusion_table_provider__(session)

    def real(self) -> Real:
        """deltalake's own handle on the loaded version, never to be committed to."""
        check_delta_rs(self._name)
        if self._real is None or self._real.version != self.version():
            self._real = open_real(self._catalog, self._snapshot, self._storage_options)
        return self._real

    def _explained(self, operation: str, real: Real) -> AbstractContextManager[None]:
        what = f"{self._name}: {operation} of version {self.version()}"
        return explained(what, real.seen, real.location)

    def _check_columns(self, predicate: Any) -> None:
        if isinstance(predicate, list):
            named = [column for filters in predicate for column, _, _ in filters]
            schema = self._snapshot.table.schema
            unknown = [name for name in named if schema.column(name) is None]
            if unknown:
                text = msgspec.json.encode(unknown).decode()
                raise ValueError(
                    f"Filters include columns that are not in table schema: {text}"
                )


def _live_rows(files: pa.RecordBatch) -> int:
    counted = files.filter(pc.is_valid(files["num_records"]))
    rows = int(pc.sum(counted["num_records"]).as_py() or 0)
    if "deletion_vector" not in files.schema.names:
        return rows
    vectors = counted["deletion_vector"].drop_null().to_pylist()
    return rows - sum(decode_struct(v, DeletionVector).cardinality for v in vectors)
