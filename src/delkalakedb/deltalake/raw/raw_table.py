"""The stand-in for deltalake's `RawDeltaTable` that answers from SQL.

Names, order of arguments and results are those of deltalake's own methods, because
deltalake's Python code calls these in their place. What SQL answers at once is here.
Whatever needs Arrow or delta-rs, or commits, is a function of another module of this
room, which is imported when the method is first called: a process that only opens
tables and asks for their files starts several times as fast.
"""

from __future__ import annotations

import operator
import os
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from types import MethodType, SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

import deltalake
import msgspec

from delkalakedb.catalog import Catalog, Snapshot
from delkalakedb.catalog.read import no_such_table
from delkalakedb.errors import CatalogNotFoundError, VersionNotFoundError
from delkalakedb.model.actions import known
from delkalakedb.storage import canonical_location, file_places, file_uris

if TYPE_CHECKING:
    from delkalakedb.catalog.read import Identity, SqlTxnLogReader
    from delkalakedb.deltalake.scan import Real
    from delkalakedb.model.schema.properties import TableProperties
    from delkalakedb.write import Operation

T = TypeVar("T")
# files; rows of more would take hundreds of megabytes, of which Arrow needs a part
_MOST_PLAIN = 200_000


class _Delegated:
    """A method that is a function of another module of this room."""

    def __init__(self, module: str, name: str | None = None) -> None:
        self._module = f"{__package__}.{module}"
        self._name = name or ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = self._name or name

    def __get__(self, table: object, owner: type) -> Callable[..., Any]:
        return MethodType(getattr(import_module(self._module), self._name), table)


class SqlRawTable:
    """A handle on one version of a table; loading and committing move it."""

    get_add_file_sizes = _Delegated("reads")
    get_add_actions = _Delegated("reads")
    get_active_partitions = _Delegated("reads")
    dataset_partitions = _Delegated("reads")
    odd_files = _Delegated("reads")
    needs_delta_rs = _Delegated("reads")
    row_dataset = _Delegated("reads")
    count = _Delegated("reads")
    load_files = _Delegated("reads")
    scan = _Delegated("reads")
    load_cdf = _Delegated("reads")
    deletion_vectors = _Delegated("reads")
    __datafusion_table_provider__ = _Delegated("reads", "table_provider")

    write = _Delegated("writes")
    delete = _Delegated("writes")
    update = _Delegated("writes")
    create_merge_builder = _Delegated("writes")
    merge_execute = _Delegated("writes")
    compact_optimize = _Delegated("writes")
    z_order_optimize = _Delegated("writes")
    purge = _Delegated("writes")
    create_write_transaction = _Delegated("writes")
    add_columns = _Delegated("writes")
    add_constraints = _Delegated("writes")
    add_feature = _Delegated("writes")
    drop_column_not_null = _Delegated("writes")
    drop_constraints = _Delegated("writes")
    set_column_metadata = _Delegated("writes")
    set_table_description = _Delegated("writes")
    set_table_name = _Delegated("writes")
    set_table_properties = _Delegated("writes")

    vacuum = _Delegated("upkeep")
    restore = _Delegated("upkeep")
    repair = _Delegated("upkeep")
    create_checkpoint = _Delegated("upkeep")
    cleanup_metadata = _Delegated("upkeep")
    compact_logs = _Delegated("upkeep")
    generate = _Delegated("upkeep")

    _loaded: Snapshot
    _moved_to: int | None = None
    _real: Real | None = None

    def __init__(
        self,
        catalog: Catalog,
        name: str,
        version: int | Snapshot | None,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        self.catalog = catalog
        self.name = name
        self.storage_options = storage_options
        self._identity: Identity | None = None
        if not isinstance(version, Snapshot):
            version = self._load(_unsigned(version))
        self.snapshot = version
        # From here on it is this table, whatever becomes of its name.
        self._identity = self.snapshot.identity

    def table_uri(self) -> str:
        """Return the storage location."""
        return f"{canonical_location(self.snapshot.location)}/"

    def version(self) -> int:
        """Return the loaded version."""
        return self.snapshot.version

    def get_latest_version(self) -> int:
        """Return the newest version."""
        return self.log.latest_version()

    def load_version(self, version: int) -> None:
        """Move to `version`."""
        self.snapshot = self._load(_unsigned(version))

    def load_with_datetime(self, text: str) -> None:
        """Move to the version at a time, or to the oldest version if all are later."""
        from delkalakedb.model.times import parse_rfc_3339, to_ms

        self.load_version(self._version_at(to_ms(parse_rfc_3339(text))))

    def update_incremental(self) -> None:
        """Move to the newest version."""
        self.snapshot = self._load(None)

    @property
    def schema(self) -> deltalake.Schema:
        """The loaded version's schema."""
        return deltalake.Schema.from_json(self.snapshot.metadata.schema_string)

    def metadata(self) -> Any:
        """Return the loaded version's metadata."""
        metadata = self.snapshot.metadata
        return SimpleNamespace(
            id=metadata.id,
            name=known(metadata.name),
            description=known(metadata.description),
            partition_columns=metadata.partition_columns,
            created_time=known(metadata.created_time),
            configuration=known(metadata.configuration) or {},
        )

    def protocol_versions(self) -> tuple[int, int, list[str] | None, list[str] | None]:
        """Return the reader and writer versions, then writer and reader features."""
        protocol = self.snapshot.protocol
        return (
            protocol.min_reader_version,
            protocol.min_writer_version,
            known(protocol.writer_features) or None,
            known(protocol.reader_features) or None,
        )

    def table_config(self) -> tuple[bool, int, bool]:
        """Return deltalake's own defaults."""
        return False, 4 * (os.cpu_count() or 1), False

    def get_num_index_cols(self) -> int:
        """Return how many columns have statistics."""
        return self._properties.data_skipping_num_indexed_cols

    def get_stats_columns(self) -> list[str] | None:
        """Return the columns that the table names for statistics, or None."""
        named = self._properties.data_skipping_stats_columns
        return None if named is None else [".".join(path) for path in named]

    def history(self, limit: int | None = None) -> tuple[int, list[str]]:
        """Return the newest commit's version, and all commitInfo, newest first."""
        commits = self.snapshot.history(_unsigned(limit))
        infos = [msgspec.json.encode(c.commit_info).decode() for c in commits]
        return commits[0].version if commits else self.version(), infos

    def transaction_version(self, app_id: str) -> int | None:
        """Return the newest version that an application recorded."""
        return self.snapshot.txn_version(app_id)

    def files(self, predicate: Any = None) -> list[str]:
        """Return the files' URIs, or the paths of the files that match `predicate`."""
        if predicate is None:
            return self.file_uris()
        from delkalakedb.catalog import load_files

        return load_files(self.snapshot, predicate, ["path"]).paths()

    def file_uris(self, predicate: Any = None) -> list[str]:
        """Return the files' URIs."""
        snapshot = self.snapshot
        # With Arrow, the list is kept for the next call.
        arrow = "pyarrow" in sys.modules or snapshot.num_files > _MOST_PLAIN
        if predicate is None and not arrow:
            places = file_places(snapshot.paths(), snapshot.location)
            return file_uris(snapshot.location, places)
        from delkalakedb.catalog import load_files

        return load_files(self.snapshot, predicate, ["path"]).uris()

    @property
    def snapshot(self) -> Snapshot:
        """The loaded version; after a commit the new one is loaded on first use."""
        if self._moved_to is not None:
            self.snapshot = self._load(self._moved_to)
        return self._loaded

    @snapshot.setter
    def snapshot(self, snapshot: Snapshot) -> None:
        self._loaded, self._moved_to = snapshot, None

    @property
    def log(self) -> SqlTxnLogReader:
        """The table's log."""
        return self.catalog.log(self.name, self._identity)

    def current(self) -> Snapshot:
        """Return the version that an operation starts from."""
        return self.snapshot

    def real(self) -> Real:
        """Return deltalake's own handle on the loaded version, only to read from."""
        from delkalakedb.deltalake.scan import open_real
        from delkalakedb.write.engines.deltars import check_delta_rs

        check_delta_rs(self.name)
        if self._real is None or self._real.version != self.version():
            options = self.storage_options
            self._real = open_real(self.catalog, self.snapshot, options)
        return self._real

    def perform(self, operation: Operation[T], commit_properties: Any) -> T:
        """Commit an operation, and move to the version that it made."""
        from delkalakedb.model.new_actions import check_custom_metadata
        from delkalakedb.write import perform

        check_custom_metadata(commit_properties)
        result, version = perform(
            self.catalog,
            self.current(),
            operation,
            retries=getattr(commit_properties, "max_commit_retries", None),
            storage_options=self.storage_options,
        )
        if version is not None:
            self._moved_to = version
        return result

    def move_to(self, version: int | None) -> None:
        """Load `version`, or the newest one."""
        self.snapshot = self._load(version)

    def check_upkeep(self, operation: str) -> None:
        """Refuse an operation that can't be done on this handle."""

    @property
    def _properties(self) -> TableProperties:
        from delkalakedb.model.schema.properties import parse_properties

        return parse_properties(self.snapshot.metadata)

    def _version_at(self, timestamp_ms: int) -> int:
        try:
            return self.log.version_at(timestamp_ms)
        except VersionNotFoundError:
            return self.log.head().first_version

    def _load(self, version: int | None) -> Snapshot:
        try:
            return self.catalog.snapshot(self.name, version, identity=self._identity)
        except CatalogNotFoundError as error:
            error.args = (f"{no_such_table(self.name)}: {error}",)
            raise


def is_ours(handle: object) -> TypeGuard[SqlRawTable]:
    """Return whether a table's handle is one of this package."""
    return isinstance(handle, SqlRawTable)


def _unsigned(number: int | None) -> int | None:
    """Return the number, if Rust and SQL both can hold it."""
    if number is None:
        return None
    number = int(operator.index(number))
    if number < 0:
        raise OverflowError("can't convert negative int to unsigned")
    if number >= 2**63:
        raise OverflowError("int too big to convert")
    return number
