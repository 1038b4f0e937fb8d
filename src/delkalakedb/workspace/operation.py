"""One operation of an engine, and what it came to."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec

from delkalakedb.catalog import Snapshot
from delkalakedb.errors import StorageError
from delkalakedb.model.actions import Action, Add, CommitInfo, Remove, Txn
from delkalakedb.model.predicate import Anything, Predicate
from delkalakedb.model.txnlog import Reads, Staged
from delkalakedb.workspace.files import TableFiles

__all__ = ["Captured", "Operation", "Stage", "StageNew"]

T = TypeVar("T")

_log = logging.getLogger("delkalakedb.workspace")


@dataclass(frozen=True)
class Operation(Generic[T]):
    """One call of an engine, and how much of the table it may look at.

    Args:
        name: what it is called in errors.
        run: the call. For delta-rs it takes a real `RawDeltaTable`, or the path of an
            empty folder for a table that isn't there yet.
        files: it sees the files that may hold a row that matches; none without.
        rearranges: it says nothing new, so it depends on the files it replaces alone.
        remove_all: it replaces every file, and sees none of them.
        reads: which of the files that it sees it opens; others needn't be there.
        properties: table properties to set that delta-rs doesn't know.
    """

    name: str
    run: Callable[[Any], T]
    files: Predicate | None = None
    rearranges: bool = False
    remove_all: bool = False
    properties: Mapping[str, str | None] = field(default_factory=dict)
    reads: Callable[[Add], bool] = lambda add: True


@dataclass(frozen=True)
class Captured(Generic[T]):
    """What an operation returned and committed, its new files in their place."""

    operation: Operation[T]
    result: T
    commits: Sequence[Sequence[Action]]
    files: TableFiles
    new_paths: Sequence[str]

    def staged(self, snapshot: Snapshot) -> tuple[Staged, ...]:
        """The commits, as made on a snapshot."""
        return tuple(self._staged(actions, snapshot) for actions in self.commits)

    def discard(self) -> None:
        """Remove the new files: no version will name them.

        Those that can't be removed are left to vacuum: the reason for discarding them
        matters more to the caller.
        """
        try:
            self.files.discard(self.new_paths)
        except (OSError, StorageError) as error:
            _log.warning("files without a version stay: %s", error)

    def _staged(self, actions: Sequence[Action], snapshot: Snapshot) -> Staged:
        operation = self.operation
        if operation.remove_all:
            actions = _counting_removed(actions, snapshot.table.num_files)
        return Staged(
            snapshot.table.name,
            actions,
            self._reads(actions, snapshot),
            operation.remove_all,
        )

    def _reads(self, actions: Sequence[Action], snapshot: Snapshot) -> Reads:
        files, rearranges = self.operation.files, self.operation.rearranges
        seen = None if rearranges else files
        everything = isinstance(seen, Anything)
        removed = (a.path for a in actions if rearranges and isinstance(a, Remove))
        return Reads(
            version=snapshot.version,
            predicates=() if seen is None or everything else (seen,),
            paths=frozenset(removed),
            whole_table=everything,
            app_ids=frozenset(a.app_id for a in actions if isinstance(a, Txn)),
            identity=snapshot.identity,
        )


Stage = Callable[[Snapshot, Operation[Any], Mapping[str, str] | None], Captured[Any]]
"""Runs an operation on a snapshot, with the options of the table's store."""
StageNew = Callable[[str, str, Operation[Any], Mapping[str, str] | None], Captured[Any]]
"""Runs the operation that makes a table, of a name and at a location."""


def _counting_removed(actions: Sequence[Action], num_files: int) -> tuple[Action, ...]:
    """The actions of an overwrite that saw no files, with the number of those."""
    return tuple(
        _with_removed(action, num_files) if isinstance(action, CommitInfo) else action
        for action in actions
    )


def _with_removed(info: CommitInfo, num_files: int) -> CommitInfo:
    metrics = info.fields.get("operationMetrics")
    if not isinstance(metrics, dict):
        return info
    # As delta-rs says it, and as Delta Spark does.
    counts = {"num_removed_files": num_files, "numRemovedFiles": str(num_files)}
    metrics = {name: counts.get(name, value) for name, value in metrics.items()}
    fields = {**info.fields, "operationMetrics": metrics}
    return msgspec.structs.replace(info, fields=fields)
