"""Transactions over several tables.

    with dk.transaction(catalog) as tx:
        tx.write("dim", customers, mode="overwrite")
        tx.delete("fact", "day < '2026-01-01'")

The tables are read as they were together at one moment, with the transaction's own
writes on top. At the end all of it is ratified in one SQL transaction, or none of it.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from importlib.metadata import entry_points
from types import TracebackType
from typing import Any, Self, TypeVar

import deltalake
from arro3.core import RecordBatchReader

from delkalakedb.catalog import Catalog, Snapshot, connect
from delkalakedb.catalog.naming import name_in
from delkalakedb.catalog.pending import PendingSnapshot
from delkalakedb.commits import Together
from delkalakedb.errors import (
    TableExistsError,
    TransactionError,
    VersionNotFoundError,
)
from delkalakedb.model.tables import Table
from delkalakedb.model.txnlog import Committed
from delkalakedb.table.alters import IN_PRIVATE
from delkalakedb.table.commit_info import check_custom_metadata
from delkalakedb.table.create import NewSchema, creation
from delkalakedb.table.raw import SqlRawTable
from delkalakedb.table.table import DeltaTable
from delkalakedb.telemetry import PublishWarning
from delkalakedb.uri import Uri, parse_uri
from delkalakedb.workspace import Operation, Stage, run, split_properties

__all__ = ["Transaction", "transaction"]

T = TypeVar("T")


class Transaction:
    """What is done here becomes true together when the block ends.

    Args:
        catalog: an open catalog, or the URI of one.
        storage_options: of the tables' object stores, as deltalake takes them.
    """

    def __init__(
        self,
        catalog: Catalog | str | Uri,
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
        catalog = self._given
        if not isinstance(catalog, Catalog):
            uri = parse_uri(catalog) if isinstance(catalog, str) else catalog
            catalog = self._resources.enter_context(connect(uri))
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
            else:
                self._commit(tables)

    def _commit(self, tables: Together) -> None:
        try:
            self.committed = tables.commit()
        except PublishWarning as warning:
            self.committed = warning.committed
            raise

    @property
    def tables(self) -> Together:
        """The tables, and what is staged of them."""
        if self._ended:
            raise TransactionError("the transaction has ended")
        if self._tables is None:
            raise TransactionError("enter the transaction first, in a with statement")
        return self._tables

    def table(self, name: str) -> DeltaTable:
        """A table as the transaction sees it; what is done to it is staged."""
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
        """What `write_deltalake` does; the first write creates the table.

        A DataFrame of Spark is written by Spark; it takes the options of its `write`.
        The location is where a new table is to be; one that exists stays.

        Here and in every other call a table may be given by its name, or by its URI if
        that is of this catalog.
        """
        name, place = name_in(self.tables.catalog, name)
        location = location or place
        if (writer := _writer_of(data)) is not None:
            writer(self.tables, name, data, mode, location=location, **options)
        elif self.tables.has(name):
            deltalake.write_deltalake(self.table(name), data, mode=mode, **options)
        else:
            self._create(name, data, location, {**options, "mode": mode})

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
        """Create an empty table, as `Catalog.create_table` does."""
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
        """What `DeltaTable.delete` does."""
        return self.table(name).delete(predicate, **options)

    def update(self, name: str, **options: Any) -> dict[str, Any]:
        """What `DeltaTable.update` does."""
        return self.table(name).update(**options)

    def merge(
        self, name: str, source: Any, predicate: str, **options: Any
    ) -> deltalake.table.TableMerger:
        """What `DeltaTable.merge` does; `execute()` stages it."""
        return self.table(name).merge(source, predicate, **options)

    def alter(self, name: str) -> deltalake.table.TableAlterer:
        """What `DeltaTable.alter` does."""
        return self.table(name).alter

    def _create(
        self, name: str, data: Any, location: str | None, options: dict[str, Any]
    ) -> None:
        given, ours = split_properties(options.pop("configuration", None))
        check_custom_metadata(options.get("commit_properties"))
        private = {**options, "post_commithook_properties": IN_PRIVATE}

        def write(folder: str) -> None:
            deltalake.write_deltalake(folder, data, configuration=given, **private)

        self.tables.stage_new(
            name, Operation("write", write, properties=ours), location
        )


def _writer_of(data: Any) -> Callable[..., None] | None:
    """Who stages data of a kind that deltalake doesn't take."""
    library = type(data).__module__.partition(".")[0]
    for entry in entry_points(group="delkalakedb.writers", name=library):
        writer: Callable[..., None] = entry.load()
        return writer
    return None


def transaction(
    catalog: Catalog | str | Uri, *, storage_options: dict[str, str] | None = None
) -> Transaction:
    """A transaction over tables of one catalog, for a `with` statement.

    Args:
        catalog: an open catalog, or the URI of one.
        storage_options: of the tables' object stores, as deltalake takes them.
    """
    return Transaction(catalog, storage_options=storage_options)


class _StagedTable(SqlRawTable):
    """The stand-in whose commits are only staged."""

    def __init__(
        self, tables: Together, name: str, options: dict[str, str] | None
    ) -> None:
        self._tables = tables
        super().__init__(tables.catalog, name, None, options)

    @property
    def _snapshot(self) -> Snapshot:
        self._tables.check_open()
        return self._loaded

    @_snapshot.setter
    def _snapshot(self, loaded: Snapshot) -> None:
        self._loaded = loaded

    def get_latest_version(self) -> int:
        return self._current().version

    def _load(self, version: int | None) -> Snapshot:
        current = self._current()
        if version in (None, current.version):
            return current
        if version > self._read_version():
            raise VersionNotFoundError(
                f"{self._name}: the transaction sees no version {version}; it read "
                f"version {self._read_version()} and is at {current.version} now"
            )
        return super()._load(version)

    def _version_at(self, timestamp_ms: int) -> int:
        return min(super()._version_at(timestamp_ms), self._read_version())

    def _read_version(self) -> int:
        """The newest version that others made."""
        current = self._current()
        if isinstance(current, PendingSnapshot):
            return current.read_version
        return current.version

    def _current(self) -> Snapshot:
        # The transaction may have gone on since the handle was taken.
        return self._tables.snapshot(self._name)

    def _check_upkeep(self, operation: str) -> None:
        raise TransactionError(f"{operation} can't be part of a transaction")

    def load_cdf(self, **options: Any) -> RecordBatchReader:
        if isinstance(self._snapshot, PendingSnapshot):
            raise TransactionError(
                f"{self._name}: changes are known once the transaction has ended"
            )
        return super().load_cdf(**options)

    def _perform(
        self, operation: Operation[T], commit_properties: Any, stage: Stage = run
    ) -> T:
        check_custom_metadata(commit_properties)
        result = self._tables.stage(self._name, operation, stage)
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
