"""What a transaction log can be asked and told, wherever it is kept.

`FileTxnLogReader` replays a `_delta_log`, `SqlTxnLogReader` asks the catalog; for
the same table they give the same answers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol as Interface

from delkalakedb.model.actions import (
    Action,
    Add,
    DomainMetadata,
    Metadata,
    Protocol,
    Remove,
    Txn,
)
from delkalakedb.model.predicate import Predicate

__all__ = [
    "Committed",
    "Conflicted",
    "Reads",
    "Skipped",
    "Staged",
    "State",
    "TxnLogReader",
    "TxnLogWriter",
]


@dataclass(frozen=True, slots=True)
class State:
    """A table at one version, but for its files."""

    version: int
    timestamp_ms: int
    protocol: Protocol
    metadata: Metadata


class TxnLogReader(Interface):
    """The read side of a table's log."""

    def latest_version(self) -> int:
        """The newest version."""

    def version_at(self, timestamp_ms: int) -> int:
        """The newest version whose timestamp isn't after `timestamp_ms`."""

    def state(self, version: int | None = None) -> State:
        """Protocol and metadata at a version, the latest by default."""

    def adds(self, version: int | None = None) -> Iterator[Add]:
        """The live files at a version, in no particular order."""

    def removes(self, version: int | None = None) -> Iterator[Remove]:
        """The tombstones at a version, in no particular order."""

    def txns(self, version: int | None = None) -> dict[str, Txn]:
        """The newest `txn` of each application at a version."""

    def domains(self, version: int | None = None) -> dict[str, DomainMetadata]:
        """The live domains at a version."""

    def commit(self, version: int) -> tuple[Action, ...]:
        """The actions of one commit."""


@dataclass(frozen=True, slots=True)
class Reads:
    """What an operation looked at before it decided what to write.

    Files are read when they match any of `predicates` or are in `paths`; with
    `whole_table` all of them are. `app_ids` are the applications whose `txn`
    the operation depends on. `identity` tells the table from another one that has
    its name since; None takes whichever has the name.
    """

    version: int = -1
    predicates: tuple[Predicate, ...] = ()
    paths: frozenset[str] = frozenset()
    whole_table: bool = False
    app_ids: frozenset[str] = frozenset()
    identity: tuple[int, int] | None = None

    @property
    def nothing(self) -> bool:
        """Whether the operation looked at no file at all."""
        return not (self.predicates or self.paths or self.whole_table)


@dataclass(frozen=True, slots=True)
class Staged:
    """Actions that want to become the next version of a table.

    `remove_all` stands for a remove of every live file without naming them, so that
    a full overwrite costs one statement. `location` is where a table that doesn't
    exist yet is created; without it the table must be there.
    """

    table: str
    actions: Sequence[Action]
    reads: Reads = field(default_factory=Reads)
    remove_all: bool = False
    location: str | None = None


@dataclass(frozen=True, slots=True)
class Committed:
    """The staged actions are version `version` of `table`."""

    table: str
    version: int
    timestamp_ms: int
    transaction_id: str
    operation: str
    num_added_files: int
    num_removed_files: int
    added_bytes: int


@dataclass(frozen=True, slots=True)
class Skipped:
    """The application's transaction is in the table already; nothing was written."""

    table: str
    version: int
    app_id: str


@dataclass(frozen=True, slots=True)
class Conflicted:
    """The staged actions lost against `winner_version` and can't be rebased on it."""

    table: str
    rule: str
    detail: str
    winner_version: int
    winner_operation: str


class TxnLogWriter(Interface):
    """The write side of one or several tables' logs."""

    def ratify(
        self, staged: Sequence[Staged]
    ) -> tuple[Committed | Skipped, ...] | Conflicted:
        """Make all of `staged` true, or none of it."""
