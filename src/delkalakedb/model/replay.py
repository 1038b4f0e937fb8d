"""Action reconciliation: from a log's entries to the table they describe."""

from collections.abc import Iterable
from dataclasses import dataclass, field

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

__all__ = ["FileKey", "Replay"]

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
        """Start from a checkpoint; what was there before is forgotten."""
        fresh = Replay()
        fresh._reconcile(actions)
        for name in self.__slots__:
            setattr(self, name, getattr(fresh, name))
        self.version = version

    def apply(
        self, version: int, actions: Iterable[Action], *, first: int | None = None
    ) -> None:
        """Apply the entry of one version, or a compacted one from `first` on."""
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
