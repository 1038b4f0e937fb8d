"""Where a table's operations go: to its catalog, or into a transaction."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from delkalakedb.catalog import Catalog, Snapshot
from delkalakedb.commits import Together
from delkalakedb.errors import TransactionError
from delkalakedb.table import DeltaTable
from delkalakedb.table.opened import open_catalog
from delkalakedb.table.perform import perform
from delkalakedb.uri import Uri, format_uri, require_table
from delkalakedb.workspace import Operation
from delkalakedb.workspace.inplace import stage

__all__ = ["Handle", "InCatalog", "InTransaction"]

T = TypeVar("T")


class Handle(Protocol):
    """A table, newest version first."""

    @property
    def storage_options(self) -> Mapping[str, str] | None:
        """Of the table's store."""

    def snapshot(self) -> Snapshot:
        """The table as it is now."""

    def perform(self, operation: Operation[T]) -> T:
        """Make an operation of Spark's true, or stage it."""

    def face(self) -> DeltaTable:
        """The table as deltalake has it, for what needs no Spark."""


@dataclass(frozen=True)
class InCatalog:
    """A table that is changed at once."""

    uri: Uri
    storage_options: Mapping[str, str] | None = field(default=None, repr=False)

    @property
    def catalog(self) -> Catalog:
        """The table's catalog."""
        return open_catalog(self.uri)

    def snapshot(self) -> Snapshot:
        """The table as it is now."""
        return self.catalog.snapshot(require_table(self.uri))

    def perform(self, operation: Operation[T]) -> T:
        """Make an operation true; it is run again where it lost a race."""
        result, _ = perform(
            self.catalog,
            self.snapshot(),
            operation,
            storage_options=self.storage_options,
            stage=stage,
        )
        return result

    def face(self) -> DeltaTable:
        """The table as deltalake has it."""
        options = None if self.storage_options is None else dict(self.storage_options)
        return DeltaTable(format_uri(self.uri), storage_options=options)


@dataclass(frozen=True)
class InTransaction:
    """A table whose changes become true when the transaction ends."""

    tables: Together
    name: str

    @property
    def storage_options(self) -> Mapping[str, str] | None:
        """Of the table's store."""
        return self.tables.storage_options

    def snapshot(self) -> Snapshot:
        """The table as the transaction sees it."""
        return self.tables.snapshot(self.name)

    def perform(self, operation: Operation[T]) -> T:
        """Keep what an operation comes to for the end of the transaction."""
        return self.tables.stage(self.name, operation, stage)

    def face(self) -> DeltaTable:
        """There is none: what it does would be true at once."""
        raise TransactionError(
            "restore, vacuum and generate can't be part of a transaction"
        )
