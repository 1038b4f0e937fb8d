"""Transactions over several tables.

    with dk.transaction(catalog) as tx:
        tx.write("dim", customers, mode="overwrite")
        tx.delete("fact", "day < '2026-01-01'")

The tables are read as they were together at one moment, with the transaction's own
writes on top. At the end all of it is ratified in one SQL transaction, or none of it.
"""

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, TypeVar

import deltalake

from delkalakedb.catalog import Catalog, Snapshot, connect
from delkalakedb.catalog.pending import PendingSnapshot, new_table
from delkalakedb.commits import commit
from delkalakedb.errors import (
    TableExistsError,
    TableNotFoundError,
    TransactionError,
)
from delkalakedb.model.txnlog import Committed, Staged
from delkalakedb.storage import canonical_location
from delkalakedb.table.alters import IN_PRIVATE
from delkalakedb.table.raw import SqlRawTable
from delkalakedb.table.table import DeltaTable
from delkalakedb.uri import Uri, parse_uri
from delkalakedb.workspace import Captured, Operation, run, run_new, split_properties

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
        self._catalog: Catalog | None = None
        self._ended = False
        self._versions: dict[str, int] = {}
        self._pending: dict[str, PendingSnapshot] = {}
        self._staged: list[Staged] = []
        self._captured: list[Captured[Any]] = []
        self.committed: tuple[Committed, ...] = ()

    def __enter__(self) -> Self:
        if self._catalog is not None or self._ended:
            raise TransactionError("a transaction is entered once, and not nested")
        if isinstance(self._given, Catalog):
            self._catalog = self._given
        else:
            given = self._given
            uri = parse_uri(given) if isinstance(given, str) else given
            self._catalog = self._resources.enter_context(connect(uri))
        # One statement: these versions were the latest at one moment.
        self._versions = {t.name: t.version for t in self._catalog.tables()}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended = True
        with self._resources:
            if error is not None:
                self._discard()
            elif self._staged:
                self._ratify()

    def table(self, name: str) -> DeltaTable:
        """A table as the transaction sees it; what is done to it is staged."""
        return _Handle(self, name, self._options)

    def write(self, name: str, data: Any, mode: Any = "error", **options: Any) -> None:
        """What `write_deltalake` does; the first write creates the table."""
        if name in self._pending or name in self._open()._versions:
            deltalake.write_deltalake(self.table(name), data, mode=mode, **options)
        else:
            self._create(name, data, options)

    def create_table(
        self,
        name: str,
        schema: Any,
        *,
        location: str | None = None,
        partition_by: list[str] | str | None = None,
        configuration: Mapping[str, str | None] | None = None,
        description: str | None = None,
    ) -> None:
        """Create an empty table."""
        if name in self._pending or name in self._open()._versions:
            raise TableExistsError(f"{name}: the table exists already")
        given, ours = split_properties(configuration)

        def create(folder: str) -> None:
            deltalake.DeltaTable.create(
                folder,
                schema,
                partition_by=partition_by,
                configuration=given,
                description=description,
                post_commithook_properties=IN_PRIVATE,
            )

        self._stage_new(name, Operation("create", create, properties=ours), location)

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

    def snapshot(self, name: str) -> Snapshot:
        """A table as the transaction sees it."""
        catalog = self._open().catalog
        if name in self._pending:
            return self._pending[name]
        if name not in self._versions:
            raise TableNotFoundError(f"{name}: the catalog has no such table")
        return catalog.snapshot(name, self._versions[name])

    @property
    def catalog(self) -> Catalog:
        """The catalog of the tables."""
        if self._catalog is None:
            raise TransactionError("enter the transaction first, in a with statement")
        return self._catalog

    def stage(self, name: str, operation: Operation[T]) -> T:
        """Run an operation on a table as the transaction sees it."""
        snapshot = self.snapshot(name)
        captured = run(snapshot, operation, self._options)
        self._captured.append(captured)
        seen = (
            snapshot
            if isinstance(snapshot, PendingSnapshot)
            else PendingSnapshot.over(snapshot)
        )
        for staged in captured.staged(snapshot):
            seen = self._add(staged, seen)
        self._pending[name] = seen
        return captured.result

    def _add(self, staged: Staged, seen: PendingSnapshot) -> PendingSnapshot:
        reads = replace(staged.reads, version=seen.read_version)
        self._staged.append(replace(staged, reads=reads))
        return seen.then(staged, _now_ms())

    def _create(self, name: str, data: Any, options: dict[str, Any]) -> None:
        given, ours = split_properties(options.pop("configuration", None))
        location = options.pop("location", None)
        private = {**options, "post_commithook_properties": IN_PRIVATE}

        def write(folder: str) -> None:
            deltalake.write_deltalake(folder, data, configuration=given, **private)

        self._stage_new(name, Operation("write", write, properties=ours), location)

    def _stage_new(
        self, name: str, operation: Operation[None], location: str | None
    ) -> None:
        catalog = self._open().catalog
        where = canonical_location(location or catalog.default_location(name))
        captured = run_new(name, where, operation, self._options)
        self._captured.append(captured)
        (actions,) = captured.commits
        staged = Staged(name, actions, location=where)
        self._staged.append(staged)
        self._pending[name] = new_table(catalog.backend, staged, _now_ms())

    def _open(self) -> Self:
        if self._ended:
            raise TransactionError("the transaction has ended")
        if self._catalog is None:
            raise TransactionError("enter the transaction first, in a with statement")
        return self

    def _ratify(self) -> None:
        try:
            self.committed = commit(
                self.catalog, *self._staged, storage_options=self._options
            )
        except deltalake.exceptions.DeltaError:
            # Refused before anything was written; after a lost connection, who knows.
            self._discard()
            raise

    def _discard(self) -> None:
        for captured in self._captured:
            captured.discard()


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

    def __init__(self, within: Transaction, name: str) -> None:
        self._within = within
        super().__init__(within.catalog, name, None, within._options)

    def _load(self, version: int | None) -> Snapshot:
        if version is None:
            return self._within.snapshot(self._name)
        return super()._load(version)

    def _commit(self, *args: Any, **options: Any) -> None:
        raise TransactionError(
            "restore, vacuum and repair can't be part of a transaction"
        )

    def _perform(self, operation: Operation[T], commit_properties: Any) -> T:
        result = self._within.stage(self._name, operation)
        self.update_incremental()
        return result


class _Handle(DeltaTable):
    def __init__(
        self, within: Transaction, name: str, options: dict[str, str] | None
    ) -> None:
        self._storage_options = options
        self._table = _StagedTable(within, name)  # type: ignore[assignment]


def _now_ms() -> int:
    return int(time.time() * 1000)
