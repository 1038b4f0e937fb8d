"""The stand-in for deltalake's `RawDeltaTable` that answers from SQL."""

import operator
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import deltalake
import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from arro3.core import RecordBatchReader, Table

from delkalakedb.catalog import Catalog, Snapshot
from delkalakedb.errors import ProtocolError, VersionNotFoundError
from delkalakedb.model.actions import DeletionVector, known
from delkalakedb.model.addactions import ADD_ACTION_COLUMNS, add_actions
from delkalakedb.model.codec import decode_struct
from delkalakedb.model.properties import parse_properties
from delkalakedb.storage import canonical_location
from delkalakedb.table.dataset import dataset_files, odd_files
from delkalakedb.table.files import Files, has_vectors, load_files, may_have_vectors
from delkalakedb.table.real import Real, open_changes, open_real
from delkalakedb.table.upkeep import SqlRawUpkeep
from delkalakedb.table.writes import SqlRawWrites
from delkalakedb.workspace.deltars import check_delta_rs
from delkalakedb.workspace.failures import explained

__all__ = ["SqlRawTable"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_RFC_3339 = re.compile(
    r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII
)


class SqlRawTable(SqlRawWrites, SqlRawUpkeep):
    """A handle on one version of a table; loading moves it."""

    def __init__(
        self,
        catalog: Catalog,
        name: str,
        version: int | None,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        self._catalog = catalog
        self._name = name
        self._storage_options = storage_options
        self._real: Real | None = None
        self._identity = None
        self._snapshot: Snapshot = self._load(_unsigned(version))
        # From here on it is this table, whatever becomes of its name.
        self._identity = self._snapshot.identity

    def table_uri(self) -> str:
        """The storage location."""
        return f"{canonical_location(self._snapshot.table.location)}/"

    def version(self) -> int:
        """The loaded version."""
        return self._snapshot.version

    def get_latest_version(self) -> int:
        """The newest version."""
        return self._log.latest_version()

    def load_version(self, version: int) -> None:
        """Move to a version."""
        self._snapshot = self._load(_unsigned(version))

    def load_with_datetime(self, text: str) -> None:
        """Move to the version of a time; the oldest one where it is too old."""
        self.load_version(self._version_at(_parse_time_ms(text)))

    def update_incremental(self) -> None:
        """Move to the newest version."""
        self._snapshot = self._load(None)

    @property
    def schema(self) -> deltalake.Schema:
        """The loaded version's schema."""
        return deltalake.Schema.from_json(self._snapshot.metadata.schema_string)

    def metadata(self) -> Any:
        """The loaded version's metadata."""
        metadata = self._snapshot.metadata
        return SimpleNamespace(
            id=metadata.id,
            name=known(metadata.name),
            description=known(metadata.description),
            partition_columns=metadata.partition_columns,
            created_time=known(metadata.created_time),
            configuration=known(metadata.configuration) or {},
        )

    def protocol_versions(self) -> tuple[int, int, list[str] | None, list[str] | None]:
        """Reader and writer version, writer features, reader features."""
        protocol = self._snapshot.protocol
        return (
            protocol.min_reader_version,
            protocol.min_writer_version,
            known(protocol.writer_features) or None,
            known(protocol.reader_features) or None,
        )

    def table_config(self) -> tuple[bool, int, bool]:
        """What deltalake says of its own defaults."""
        return False, 4 * (os.cpu_count() or 1), False

    def get_num_index_cols(self) -> int:
        """How many columns have statistics."""
        return parse_properties(self._snapshot.metadata).data_skipping_num_indexed_cols

    def get_stats_columns(self) -> list[str] | None:
        """Which columns have statistics, where the table names them."""
        named = parse_properties(self._snapshot.metadata).data_skipping_stats_columns
        return None if named is None else [".".join(path) for path in named]

    def history(self, limit: int | None = None) -> tuple[int, list[str]]:
        """The newest commit's version, and commitInfo as JSON, newest first."""
        commits = self._snapshot.history(_unsigned(limit))
        infos = [msgspec.json.encode(c.commit_info).decode() for c in commits]
        return commits[0].version if commits else self.version(), infos

    def transaction_version(self, app_id: str) -> int | None:
        """The newest version that an application recorded."""
        return self._snapshot.txn_version(app_id)

    def files(self, predicate: Any = None) -> list[str]:
        """The files: where they are, or within the table where filtered."""
        files = self.load_files(predicate, ["path"])
        return files.uris() if predicate is None else files.paths()

    def file_uris(self, predicate: Any = None) -> list[str]:
        """Where the files are."""
        return self.load_files(predicate, ["path"]).uris()

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

    def _version_at(self, timestamp_ms: int) -> int:
        try:
            return self._log.version_at(timestamp_ms)
        except VersionNotFoundError:
            return self._log.head().first_version

    def _load(self, version: int | None) -> Snapshot:
        return self._catalog.snapshot(self._name, version, identity=self._identity)

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


def _unsigned(number: int | None) -> int | None:
    """The number, as far as Rust and SQL both have it."""
    if number is None:
        return None
    number = int(operator.index(number))
    if number < 0:
        raise OverflowError("can't convert negative int to unsigned")
    if number >= 2**63:
        raise OverflowError("int too big to convert")
    return number


def _parse_time_ms(text: str) -> int:
    if not _RFC_3339.fullmatch(text):
        raise ValueError(
            f"Failed to parse datetime string: {text!r} is not like "
            "2026-01-31T12:30:00Z or 2026-01-31T12:30:00+02:00 (RFC 3339)"
        )
    try:
        moment = datetime.fromisoformat(text.upper())
    except ValueError as error:
        raise ValueError(f"Failed to parse datetime string: {error}") from error
    return (moment - _EPOCH) // timedelta(milliseconds=1)
