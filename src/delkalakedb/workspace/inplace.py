"""Operations that write the table's files in their place; then they are ratified."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from delkalakedb.catalog import Snapshot
from delkalakedb.model.actions import Action
from delkalakedb.model.predicate import Predicate
from delkalakedb.workspace.files import table_files
from delkalakedb.workspace.operation import Captured, Operation

__all__ = ["Work", "stage", "stage_new"]

T = TypeVar("T")
_Options = Mapping[str, str] | None


@dataclass(frozen=True)
class Work(Generic[T]):
    """What was done for an operation.

    Args:
        result: what the operation returns.
        commits: the actions of each version that it makes.
        new_paths: the files that it wrote below the table's location, as they are
            called there; they are removed if the commits don't come to be.
        looked_at: the files that it looked at, where that is known only now; else
            those that the operation says.
    """

    result: T
    commits: Sequence[Sequence[Action]] = ()
    new_paths: Sequence[str] = ()
    looked_at: Predicate | None = None


def stage(
    snapshot: Snapshot, operation: Operation[T], storage_options: _Options
) -> Captured[T]:
    """Run an operation whose `run` takes the snapshot and gives its `Work`."""
    return _captured(snapshot.table.location, snapshot, operation, storage_options)


def stage_new(
    name: str, location: str, operation: Operation[T], storage_options: _Options
) -> Captured[T]:
    """Run an operation that makes a table; its `run` takes the location."""
    return _captured(location, location, operation, storage_options)


def _captured(
    location: str, given: Any, operation: Operation[T], storage_options: _Options
) -> Captured[T]:
    run: Callable[[Any], Any] = operation.run
    work: Work[T] = run(given)
    if work.looked_at is not None:
        operation = replace(operation, files=work.looked_at)
    files = table_files(location, storage_options)
    return Captured(operation, work.result, work.commits, files, work.new_paths)
