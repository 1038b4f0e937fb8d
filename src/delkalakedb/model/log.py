"""Transaction logs: their readers' interface, staged commits, and log replay."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol as Interface

from delkalakedb.errors import VersionNotFoundError
from delkalakedb.model.actions import (
    Action,
    Add,
    CommitInfo,
    DomainMetadata,
    Metadata,
    Protocol,
    Remove,
    Txn,
    dv_id,
)
from delkalakedb.model.predicate.predicate import Predicate


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
        """Return the newest version."""

    def version_at(self, timestamp_ms: int) -> int:
        """Return the newest version whose timestamp isn't after `timestamp_ms`."""

    def state(self, version: int | None = None) -> State:
        """Return the protocol and metadata at a version, by default the latest."""

    def adds(self, version: int | None = None) -> Iterator[Add]:
        """Yield the live files at a version, in no particular order."""

    def removes(self, version: int | None = None) -> Iterator[Remove]:
        """Yield the tombstones at a version, in no particular order."""

    def txns(self, version: int | None = None) -> dict[str, Txn]:
        """Return the newest `txn` of each application at a version."""

    def domains(self, version: int | None = None) -> dict[str, DomainMetadata]:
        """Return the live domains at a version."""

    def commit(self, version: int) -> tuple[Action, ...]:
        """Return the actions of one commit."""


@dataclass(frozen=True, slots=True)
class Reads:
    """What an operation looked at before it decided what to write.

    Files are read when they match any of `predicates` or are in `paths`; with
    `whole_table` all of them are. `app_ids` are the applications whose `txn`
    the operation depends on. `identity` tells the table from another one that has
    its name since; None takes whichever has the name. With `rows_only`, the operation
    depends on no row of the files it read but those that it deletes, so another commit
    may delete other rows of these files. `vectors` are the ids of deletion vectors of
    files, by path, that are known to delete only such other rows.
    """

    version: int = -1
    predicates: tuple[Predicate, ...] = ()
    paths: frozenset[str] = frozenset()
    whole_table: bool = False
    app_ids: frozenset[str] = frozenset()
    identity: tuple[int, int] | None = None
    rows_only: bool = False
    vectors: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Staged:
    """Actions that want to become the next version of a table.

    `remove_all` means a remove of every live file without naming them, so that
    a full overwrite costs one statement. `location` is where a table that doesn't
    exist yet is created; without it the table must be there.
    """

    table: str
    actions: Sequence[Action]
    reads: Reads = field(default_factory=Reads)
    remove_all: bool = False
    location: str | None = None


FileKey = tuple[str, str]


@dataclass(slots=True)
class Replay:
    """A table's state, brought forward one log entry at a time.

    Files are keyed by path and deletion vector id; no key is in both `adds` and
    `removes`. `domains` holds the live ones only. `commit_info` is of the entry at
    `version`; checkpoints and compacted entries have none.
    """

    version: int = -1
    protocol: Protocol | None = None
    metadata: Metadata | None = None
    commit_info: CommitInfo | None = None
    txns: dict[str, Txn] = field(default_factory=dict)
    domains: dict[str, DomainMetadata] = field(default_factory=dict)
    adds: dict[FileKey, Add] = field(default_factory=dict)
    removes: dict[FileKey, Remove] = field(default_factory=dict)

    def load_checkpoint(self, version: int, actions: Iterable[Action]) -> None:
        """Replace the state with the state of a checkpoint."""
        fresh = Replay()
        fresh._reconcile(actions)
        for name in self.__slots__:
            setattr(self, name, getattr(fresh, name))
        self.version = version

    def apply(
        self, version: int, actions: Iterable[Action], *, first: int | None = None
    ) -> None:
        """Apply the entry of one version, or a compacted entry from `first` on."""
        start = version if first is None else first
        if start != self.version + 1 or version < start:
            raise VersionNotFoundError(
                f"the log has a gap: after version {self.version} comes {start}"
            )
        self.commit_info = None
        self._reconcile(actions)
        self.version = version

    def _reconcile(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Add():
                    self._add(action)
                case Remove():
                    self._remove(action)
                case Txn():
                    self.txns[action.app_id] = action
                case DomainMetadata():
                    self._domain(action)
                case Metadata():
                    self.metadata = action
                case Protocol():
                    self.protocol = action
                case CommitInfo():
                    self.commit_info = action

    def _add(self, action: Add) -> None:
        key = (action.path, dv_id(action))
        self.removes.pop(key, None)
        self.adds[key] = action

    def _remove(self, action: Remove) -> None:
        key = (action.path, dv_id(action))
        self.adds.pop(key, None)
        self.removes[key] = action

    def _domain(self, action: DomainMetadata) -> None:
        if action.removed:
            self.domains.pop(action.domain, None)
        else:
            self.domains[action.domain] = action
