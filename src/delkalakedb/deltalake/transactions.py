"""Transactions over several tables.

    with dk.transaction(catalog) as tx:
        tx.write("dim", customers, mode="overwrite")
        tx.delete("fact", "day < '2026-01-01'")

The tables are read as they were together at one moment, with the transaction's own
writes on top. At the end all writes are committed in one SQL transaction, or none.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from importlib.metadata import entry_points
from types import TracebackType
from typing import Any, Self, TypeVar

import deltalake
from arro3.core import RecordBatchReader

from delkalakedb.catalog import (
    CatalogOrUri,
    PendingSnapshot,
    Snapshot,
    name_in,
    using_catalog,
)
from delkalakedb.catalog.commit import Committed
from delkalakedb.deltalake.raw import SqlRawTable
from delkalakedb.deltalake.table import DeltaTable
from delkalakedb.deltalake.write import arrow_data
from delkalakedb.errors import TableExistsError, TransactionError, VersionNotFoundError
from delkalakedb.model.new_actions import check_custom_metadata
from delkalakedb.model.records import Table
from delkalakedb.telemetry import PublishWarning
from delkalakedb.write import Operation, Together
from delkalakedb.write.engines.deltars import (
    IN_PRIVATE,
    DeltaRs,
    NewSchema,
    creation,
    split_properties,
)

T = TypeVar("T")


class Transaction:
    """A transaction over tables of one catalog, committed when its block ends.

    Args:
        catalog: an open catalog, or the URI of one.
        storage_options: of the tables' object stores, as deltalake takes them.
    """

    def __init__(
        self,
        catalog: CatalogOrUri,
        *,
        storage_options: dict[str, str] | None = None,
    ) -> None:
        self._given = catalog
        self._options = storage_options
        self._resources = ExitStack()
        self._tables: Together | None = None
        self._ended = False
        self.committed: tuple[Committed, ...] = ()

    def __enter__(self) -> Self:
        if self._tables is not None or self._ended:
            raise TransactionError("a transaction is entered once, and not nested")
        catalog = self._resources.enter_context(using_catalog(self._given))
        self._tables = Together(catalog, self._options)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        tables = self.tables
        self._ended = True
        with self._resources:
            if error is not None:
                tables.discard()
                return
            try:
                self.committed = tables.commit()
            except PublishWarning as warning:
                self.committed = warning.committed
                raise

    @property
    def tables(self) -> Together:
        """The tables, with what is staged for them."""
        if self._ended:
            raise TransactionError("the transaction has ended")
        if self._tables is None:
            raise TransactionError("enter the transaction first, in a with statement")
        return self._tables

    def table(self, name: str) -> DeltaTable:
        """Return a table as the transaction sees it; changes to it are staged."""
        name, _ = name_in(self.tables.catalog, name)
        return _Handle(self.tables, name, self._options)

    def write(
        self,
        name: str,
        data: Any,
        mode: Any = "error",
        *,
        location: str | None = None,
        **options: Any,
    ) -> None:
        """Stage a `write_deltalake`; the first write creates the table.

        A DataFrame of Spark is written by Spark, with the options of its `write`.
        `location` is where a new table will be; an existing table keeps its location.

        Here and in every other method, `name` is a table's name, or its URI in this
        catalog.
        """
        name, place = name_in(self.tables.catalog, name)
        location = location or place
        if (writer := _writer_of(data)) is not None:
            writer(self.tables, name, data, mode, location=location, **options)
            return
        data = arrow_data(data)
        if self.tables.has(name):
            deltalake.write_deltalake(self.table(name), data, mode=mode, **options)
        else:
            self._create(name, data, location, mode=mode, **options)

    def create_table(
        self,
        name: str,
        schema: NewSchema,
        *,
        location: str | None = None,
        partition_by: Sequence[str] | str | None = None,
        configuration: Mapping[str, str | None] | None = None,
        description: str | None = None,
    ) -> Table:
        """Stage the creation of an empty table, as `Catalog.create_table` does."""
        name, place = name_in(self.tables.catalog, name)
        if self.tables.has(name):
            raise TableExistsError(f"{name}: the table exists already")
        operation = creation(
            schema,
            partition_by=partition_by,
            configuration=configuration,
            description=description,
        )
        self.tables.stage_new(name, operation, location or place)
        return self.tables.snapshot(name).table

    def delete(
        self, name: str, predicate: str | None = None, **options: Any
    ) -> dict[str, Any]:
        """Stage a `DeltaTable.delete`."""
        return self.table(name).delete(predicate, **options)

    def update(self, name: str, **options: Any) -> dict[str, Any]:
        """Stage a `DeltaTable.update`."""
        return self.table(name).update(**options)

    def merge(
        self, name: str, source: Any, predicate: str, **options: Any
    ) -> deltalake.table.TableMerger:
        """Return the builder of a `DeltaTable.merge`, which `execute()` stages."""
        return self.table(name).merge(source, predicate, **options)

    def alter(self, name: str) -> deltalake.table.TableAlterer:
        """Return a `DeltaTable.alter` whose changes are staged."""
        return self.table(name).alter

    def _create(
        self,
        name: str,
        data: Any,
        location: str | None,
        *,
        configuration: Mapping[str, str | None] | None = None,
        **options: Any,
    ) -> None:
        given, ours = split_properties(configuration)
        check_custom_metadata(options.get("commit_properties"))
        private = {**options, "post_commithook_properties": IN_PRIVATE}

        def write(folder: str) -> None:
            deltalake.write_deltalake(folder, data, configuration=given, **private)

        operation = Operation("write", DeltaRs(write, properties=ours))
        self.tables.stage_new(name, operation, location)


def _writer_of(data: Any) -> Callable[..., None] | None:
    """Return the function that stages data of a library that deltalake doesn't take."""
    library = type(data).__module__.partition(".")[0]
    for entry in entry_points(group="delkalakedb.writers", name=library):
        writer: Callable[..., None] = entry.load()
        return writer
    return None


def transaction(
    catalog: CatalogOrUri, *, storage_options: dict[str, str] | None = None
) -> Transaction:
    """Return a transaction over tables of one catalog, for a `with` statement.

    Args:
        catalog: an open catalog, or the URI of one.
        storage_options: of the tables' object stores, as deltalake takes them.
    """
    return Transaction(catalog, storage_options=storage_options)


class _StagedTable(SqlRawTable):
    """The stand-in for deltalake's raw table whose commits are only staged."""

    def __init__(
        self, tables: Together, name: str, options: dict[str, str] | None
    ) -> None:
        self._tables = tables
        super().__init__(tables.catalog, name, None, options)

    @property
    def snapshot(self) -> Snapshot:
        self._tables.check_open()
        return self._loaded

    @snapshot.setter
    def snapshot(self, loaded: Snapshot) -> None:
        self._loaded = loaded

    def get_latest_version(self) -> int:
        return self.current().version

    def _load(self, version: int | None) -> Snapshot:
        current = self.current()
        if version in (None, current.version):
            return current
        if version > self._read_version():
            raise VersionNotFoundError(
                f"{self.name}: the transaction sees no version {version}; it read "
                f"version {self._read_version()} and is at {current.version} now"
            )
        return super()._load(version)

    def _version_at(self, timestamp_ms: int) -> int:
        return min(super()._version_at(timestamp_ms), self._read_version())

    def _read_version(self) -> int:
        """Return the newest version that isn't the transaction's own."""
        current = self.current()
        if isinstance(current, PendingSnapshot):
            return current.read_version
        return current.version

    def current(self) -> Snapshot:
        # Loaded each time, because the transaction may have staged more since.
        return self._tables.snapshot(self.name)

    def check_upkeep(self, operation: str) -> None:
        raise TransactionError(f"{operation} can't be part of a transaction")

    def load_cdf(self, **options: Any) -> RecordBatchReader:
        if isinstance(self.snapshot, PendingSnapshot):
            raise TransactionError(
                f"{self.name}: changes are known once the transaction has ended"
            )
        reader: RecordBatchReader = super().load_cdf(**options)
        return reader

    def perform(self, operation: Operation[T], commit_properties: Any) -> T:
        check_custom_metadata(commit_properties)
        result = self._tables.stage(self.name, operation)
        self.update_incremental()
        return result


class _Handle(DeltaTable):
    def __init__(
        self, tables: Together, name: str, options: dict[str, str] | None
    ) -> None:
        self._storage_options = options
        self._catalog_uri = tables.catalog.uri.with_table(name)
        self._table = _StagedTable(  # type: ignore[assignment]
            tables, name, options
        )
