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

    Raises:
        CommitFailedError: At the end of the block, if another commit conflicts.
        TransactionError: The transaction is used outside its block, or is nested.

    Examples:
        >>> catalog = dk.connect("deltasql://sqlite/meta.db")
        >>> with dk.Transaction(catalog) as tx:
        ...     tx.write("cities", pa.table({"city": ["Oslo"]}))
        ...     deleted = tx.delete("sales", "city <> 'Oslo'")
        >>> [(one.table, one.version) for one in tx.committed]
        [('cities', 0), ('sales', 2)]
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
        """Return a table as the transaction sees it; changes to the table are staged.

        Args:
            name: the table's name, or its URI in this catalog.

        Returns:
            The table, with the transaction's own changes.

        Raises:
            TableNotFoundError: Neither the catalog nor the transaction has such a
                table.
            TransactionError: The transaction has ended, or hasn't begun.

        Examples:
            >>> with dk.transaction("deltasql://sqlite/meta.db") as tx:
            ...     deleted = tx.delete("sales", "id = 1")
            ...     tx.table("sales").count()
            2
        """
        name, _ = name_in(self.tables.catalog, name)
        return _Handle(self.tables, name, self._options)

    def write(
        self,
        /,
        name: str,
        data: Any,
        mode: Any = "error",
        *,
        location: str | None = None,
        **options: Any,
    ) -> None:
        """Stage a `write_deltalake`; the first write creates the table.

        Args:
            name: the table's name, or its URI in this catalog.
            data: anything that gives Arrow data, or a DataFrame of Spark.
            mode: what to do where the table exists: fail, append, replace its rows, or
                nothing.
            location: where a new table will be; an existing table keeps its location.
            options: the other options of `write_deltalake`; for a DataFrame of Spark,
                those of `delkalakedb.spark.write`.

        Raises:
            TableExistsError: The table exists, and the mode is `error`.
            SchemaMismatchError: The data doesn't match the table's schema.
            TransactionError: The transaction has ended, or hasn't begun.

        Examples:
            >>> more = pa.table({"id": [4], "city": ["Bern"], "amount": [40.0]})
            >>> with dk.transaction("deltasql://sqlite/meta.db") as tx:
            ...     tx.write("sales", more, mode="append")
            >>> tx.committed[0].version
            2
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
        """Stage the creation of an empty table, as `Catalog.create_table` does.

        Args:
            name: the table's name, or its URI in this catalog.
            schema: a deltalake `Schema`, an Arrow schema, or Delta's schema as JSON.
            location: the table's storage location; by default the folder `name` below
                the catalog's data path.
            partition_by: the partition columns.
            configuration: the table properties.
            description: the table's description.

        Returns:
            The table that the end of the transaction creates.

        Raises:
            TableExistsError: The catalog or the transaction has such a table.
            TransactionError: The transaction has ended, or hasn't begun.

        Examples:
            >>> with dk.transaction("deltasql://sqlite/meta.db") as tx:
            ...     tx.create_table("visits", pa.schema([("visits", pa.int64())])).name
            'visits'
        """
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
        self, /, name: str, predicate: str | None = None, **options: Any
    ) -> dict[str, Any]:
        """Stage a `DeltaTable.delete`.

        Args:
            name: the table's name, or its URI in this catalog.
            predicate: the rows to delete, in SQL; all rows by default.
            options: the other options of `DeltaTable.delete`.

        Returns:
            The metrics of the delete.

        Raises:
            TableNotFoundError: Neither the catalog nor the transaction has such a
                table.
            TransactionError: The transaction has ended, or hasn't begun.

        Examples:
            >>> with dk.transaction("deltasql://sqlite/meta.db") as tx:
            ...     tx.delete("sales", "amount > 15")["num_deleted_rows"]
            2
        """
        return self.table(name).delete(predicate, **options)

    def update(self, /, name: str, **options: Any) -> dict[str, Any]:
        """Stage a `DeltaTable.update`.

        Args:
            name: the table's name, or its URI in this catalog.
            options: the options of `DeltaTable.update`.

        Returns:
            The metrics of the update.

        Raises:
            TableNotFoundError: Neither the catalog nor the transaction has such a
                table.
            TransactionError: The transaction has ended, or hasn't begun.

        Examples:
            >>> with dk.transaction("deltasql://sqlite/meta.db") as tx:
            ...     done = tx.update("sales", updates={"amount": "0"})
            >>> done["num_updated_rows"]
            3
        """
        return self.table(name).update(**options)

    def merge(
        self, name: str, source: Any, predicate: str, **options: Any
    ) -> deltalake.table.TableMerger:
        """Return the builder of a `DeltaTable.merge`; its `execute()` stages the merge.

        Args:
            name: the table's name, or its URI in this catalog.
            source: the rows to merge, as anything that gives Arrow data.
            predicate: when a row of the source matches a row of the table, in SQL.
            options: the other options of `DeltaTable.merge`.

        Returns:
            The builder.

        Raises:
            TableNotFoundError: Neither the catalog nor the transaction has such a
                table.
            TransactionError: The transaction has ended, or hasn't begun.

        Examples:
            >>> more = pa.table({"id": [4], "city": ["Bern"], "amount": [40.0]})
            >>> with dk.transaction("deltasql://sqlite/meta.db") as tx:
            ...     merge = tx.merge("sales", more, "s.id = t.id", source_alias="s",
            ...                      target_alias="t")
            ...     done = merge.when_not_matched_insert_all().execute()
            >>> done["num_target_rows_inserted"]
            1
        """
        return self.table(name).merge(source, predicate, **options)

    def alter(self, name: str) -> deltalake.table.TableAlterer:
        """Return a `DeltaTable.alter` whose changes are staged.

        Args:
            name: the table's name, or its URI in this catalog.

        Returns:
            deltalake's object with methods such as `set_table_properties`.

        Raises:
            TableNotFoundError: Neither the catalog nor the transaction has such a
                table.
            TransactionError: The transaction has ended, or hasn't begun.

        Examples:
            >>> with dk.transaction("deltasql://sqlite/meta.db") as tx:
            ...     tx.alter("sales").set_table_description("what was sold")
            >>> dk.connect("deltasql://sqlite/meta.db").table("sales").description
            'what was sold'
        """
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

    Returns:
        The transaction; all its changes are committed when the block ends, or none.

    Raises:
        CommitFailedError: At the end of the block, if another commit conflicts.
        TransactionError: The transaction is used outside its block, or is nested.

    Examples:
        >>> with dk.transaction("deltasql://sqlite/meta.db") as tx:
        ...     tx.write("cities", pa.table({"city": ["Oslo"]}))
        ...     deleted = tx.delete("sales", "city <> 'Oslo'")
        >>> [(one.table, one.version) for one in tx.committed]
        [('cities', 0), ('sales', 2)]
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
